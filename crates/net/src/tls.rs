//! Links are TLS 1.3 with raw public keys (RFC 7250) on both sides.
//!
//! There are no certificates and no names: the group file lists the keys, a server takes whoever is in it, and
//! a client expects one certain key. A stranger is refused within the handshake.
//!
//! Where replicas have key holders, their keys in handshakes are epoch keys, which the group file does not list. So any key will do
//! for the handshake, and whose it is follows from the certificate that comes after it (`epochs.rs`).
//!
//! Where the group has an owner, any key will do as well, and who comes as a guest says so in the handshake, by another name of the protocol;
//! whether it is let in follows from the credential that comes after it (`guests.rs`).
//!
//! Absent on purpose: TLS 1.2, session tickets and early data. A resumed session would outlive the keys that
//! made it, and early data can be replayed.

use std::fmt;
use std::sync::Arc;

use quorate_credential::Chain;
use quorate_wire::{Digest, EpochCertificate, KeyPair, MacKey, PublicKey, ReplicaId, Signer};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, CommonState, DigitallySignedStruct, DistinguishedName, Error,
    ServerConfig, SignatureScheme, version,
};

use crate::frame::Frame;
use crate::group::{Group, Replica};

/// The protocol's name in the handshake (ALPN). Its number rises with what is sent, and with what is executed: replicas that come to other states by the same operations
/// would stop the group at the next checkpoint.
pub const PROTOCOL: &[u8] = b"quorate/4";

/// Its name for those who come as guests.
const GUEST_PROTOCOL: &[u8] = b"quorate-guest/4";

/// The label under which both ends derive the key of request MACs (RFC 8446, 7.5).
const MAC_LABEL: &[u8] = b"quorate request mac";

/// RFC 8410, 7: version 0, algorithm id-Ed25519, and the heads of two nested octet strings. The seed follows.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// RFC 8410, 4: algorithm id-Ed25519 and the head of a bit string. The public key follows.
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A key in the form in which handshakes use it.
#[derive(Clone)]
pub struct Identity {
    key: KeyPair,
    certified: Arc<CertifiedKey>,
    provider: Arc<CryptoProvider>,
    certificate: Option<EpochCertificate>,
    credential: Option<Chain>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?})", self.public())
    }
}

impl Identity {
    /// Prepares a key pair for handshakes.
    pub fn new(key: &KeyPair) -> Identity {
        let mut pkcs8 = PKCS8_PREFIX.to_vec();
        pkcs8.extend_from_slice(&key.seed());
        let signer = aws_lc_rs::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8))
            .expect("every 32-byte seed is an Ed25519 key");
        let spki = CertificateDer::from(spki_of(&key.public()));
        Identity {
            key: key.clone(),
            certified: Arc::new(CertifiedKey::new(vec![spki], signer)),
            provider: Arc::new(provider()),
            certificate: None,
            credential: None,
        }
    }

    /// Prepares a replica's epoch key, with the certificate of it.
    pub fn of_epoch(key: &KeyPair, certificate: EpochCertificate) -> Identity {
        Identity {
            certificate: Some(certificate),
            ..Identity::new(key)
        }
    }

    /// Prepares the key of somebody whom the group file does not name, and who comes in by a credential for that key.
    pub fn of_guest(key: &KeyPair, credential: Chain) -> Identity {
        Identity {
            credential: Some(credential),
            ..Identity::new(key)
        }
    }

    /// What lets it in, where the group file does not name it.
    pub(crate) fn credential(&self) -> Option<Frame> {
        let chain = self.credential.as_ref()?;
        Some(Frame::of_bytes(&chain.to_bytes()))
    }

    /// What a replica of this group signs with for others to pass on.
    pub fn signer(&self, group: Digest) -> Signer {
        match &self.certificate {
            Some(certificate) => Signer::of_epoch(self.key.clone(), certificate.clone()),
            None => Signer::standing(group, self.key.clone()),
        }
    }

    /// What says whose key it is, where the group file does not.
    pub(crate) fn certificate(&self) -> Option<Frame> {
        self.certificate.as_ref().map(Frame::encode)
    }

    /// Whose key it is.
    pub(crate) fn replica_of(&self, group: &Group) -> Option<ReplicaId> {
        match (&self.certificate, group.identities()) {
            (Some(certificate), Some(_)) => Some(certificate.replica),
            (None, None) => group.replica_of_key(&self.public()),
            _ => None,
        }
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.key.public()
    }

    /// The key pair.
    pub fn key(&self) -> &KeyPair {
        &self.key
    }

    /// What a replica needs to accept connections of the group's replicas and clients.
    pub fn server_config(&self, group: &Arc<Group>) -> Arc<ServerConfig> {
        let verifier = MembersOnly {
            group: group.clone(),
            algorithms: self.provider.signature_verification_algorithms,
        };
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&version::TLS13])
            .expect("the provider has TLS 1.3 suites")
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(
                self.certified.clone(),
            )));
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        if group.owner().is_some() {
            config.alpn_protocols.push(GUEST_PROTOCOL.to_vec());
        }
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Arc::new(config)
    }

    /// What it takes to connect to the holder of the key `expected`, and to nobody else.
    pub fn client_config(&self, expected: PublicKey) -> Arc<ClientConfig> {
        self.dialing(Some(expected))
    }

    /// What it takes to connect to a replica: to the holder of its key, or to whoever answers and shows its certificate then.
    pub(crate) fn dialing_config(&self, group: &Group, entry: &Replica) -> Arc<ClientConfig> {
        self.dialing(group.identities().is_none().then_some(entry.key))
    }

    fn dialing(&self, expected: Option<PublicKey>) -> Arc<ClientConfig> {
        let verifier = ExactlyThisKey {
            expected,
            algorithms: self.provider.signature_verification_algorithms,
        };
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&version::TLS13])
            .expect("the provider has TLS 1.3 suites")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                self.certified.clone(),
            )));
        let protocol = match self.credential {
            None => PROTOCOL,
            Some(_) => GUEST_PROTOCOL,
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        config.enable_early_data = false;
        Arc::new(config)
    }
}

/// The name in the client's API that TLS does not send, since keys are what counts.
pub fn server_name() -> ServerName<'static> {
    ServerName::try_from("quorate").expect("a valid name")
}

/// Who is at the other end of a finished handshake; `None` if the protocols differ or there is no key.
pub fn peer_key(connection: &CommonState) -> Option<PublicKey> {
    if connection.alpn_protocol() != Some(PROTOCOL) && !is_of_guest(connection) {
        return None;
    }
    let [only] = connection.peer_certificates()? else {
        return None;
    };
    key_of_spki(only)
}

/// Whether the client's side of a finished handshake comes as a guest.
pub(crate) fn is_of_guest(connection: &CommonState) -> bool {
    connection.alpn_protocol() == Some(GUEST_PROTOCOL)
}

/// The key for MACs on requests that both ends of this connection know, and nobody else.
///
/// `export` is the connection's own `export_keying_material`, with the label given here.
///
/// # Errors
/// If the handshake is not finished.
pub fn mac_key(
    export: impl FnOnce([u8; 32], &[u8]) -> Result<[u8; 32], Error>,
) -> Result<MacKey, Error> {
    export([0; 32], MAC_LABEL).map(MacKey)
}

/// AES-128-GCM first: it is the fastest where processors have AES instructions, and strong enough.
fn provider() -> CryptoProvider {
    use aws_lc_rs::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    CryptoProvider {
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..aws_lc_rs::default_provider()
    }
}

fn spki_of(key: &PublicKey) -> Vec<u8> {
    let mut spki = SPKI_PREFIX.to_vec();
    spki.extend_from_slice(&key.0);
    spki
}

fn key_of_spki(spki: &[u8]) -> Option<PublicKey> {
    let key = spki.strip_prefix(&SPKI_PREFIX)?;
    Some(PublicKey(key.try_into().ok()?))
}

/// The one key that a peer has shown, with nothing beside it.
fn shown_key(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<PublicKey, Error> {
    if !intermediates.is_empty() {
        return Err(CertificateError::BadEncoding.into());
    }
    key_of_spki(end_entity).ok_or_else(|| CertificateError::BadEncoding.into())
}

fn verify_signature(
    message: &[u8],
    cert: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    if signature.scheme != SignatureScheme::ED25519 {
        return Err(CertificateError::BadSignature.into());
    }
    let spki = SubjectPublicKeyInfoDer::from(cert.as_ref());
    rustls::crypto::verify_tls13_signature_with_raw_key(message, &spki, signature, algorithms)
}

fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(
        rustls::PeerIncompatible::Tls12NotOffered,
    ))
}

/// A server's view: whoever is in the group may come in, and who may have a certificate or a credential.
#[derive(Debug)]
struct MembersOnly {
    group: Arc<Group>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for MembersOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let key = shown_key(end_entity, intermediates)?;
        match self.group.member(&key) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None if self.group.identities().is_some() || self.group.owner().is_some() => {
                Ok(ClientCertVerified::assertion())
            }
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(message, cert, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// A dialer's view: one replica was called, and only that one may answer. Where its key is not known before, anyone may.
#[derive(Debug)]
struct ExactlyThisKey {
    expected: Option<PublicKey>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ExactlyThisKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = shown_key(end_entity, intermediates)?;
        if self.expected.is_none_or(|expected| expected == shown) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(message, cert, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{Files, Purpose};
    use rustls::{ClientConnection, ServerConnection};

    fn key(seed: u8) -> KeyPair {
        KeyPair::from_seed(&[seed; 32])
    }

    fn group() -> Arc<Group> {
        let replicas = vec![("127.0.0.1:7000".to_string(), key(1).public())];
        let clients = vec![("laptop".to_string(), key(2).public())];
        let group = Group::new(
            "test",
            replicas,
            clients,
            Files::default(),
            Purpose::Service,
        );
        Arc::new(group.unwrap())
    }

    /// Runs a handshake in memory until both sides rest.
    fn shake(
        client: &mut ClientConnection,
        server: &mut ServerConnection,
    ) -> Result<(), (&'static str, Error)> {
        for _ in 0..10 {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().map_err(|e| ("server", e))?;
            }
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().map_err(|e| ("client", e))?;
            }
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok(())
    }

    fn connect(
        client: &KeyPair,
        server: &KeyPair,
        expected: PublicKey,
    ) -> (
        ClientConnection,
        ServerConnection,
        Result<(), (&'static str, Error)>,
    ) {
        let config = Identity::new(client).client_config(expected);
        let mut c = ClientConnection::new(config, server_name()).unwrap();
        let config = Identity::new(server).server_config(&group());
        let mut s = ServerConnection::new(config).unwrap();
        let outcome = shake(&mut c, &mut s);
        (c, s, outcome)
    }

    /// Members meet: each knows the other's key, both derive the same MAC key, and a new link has another one.
    #[test]
    fn members_authenticate_each_other() {
        let (client, server) = (key(2), key(1));
        let (c, s, outcome) = connect(&client, &server, server.public());
        outcome.unwrap();
        assert_eq!(peer_key(&c), Some(server.public()));
        assert_eq!(peer_key(&s), Some(client.public()));
        let suite = c.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        let at_client = mac_key(|out, label| c.export_keying_material(out, label, None)).unwrap();
        let at_server = mac_key(|out, label| s.export_keying_material(out, label, None)).unwrap();
        assert!(at_client == at_server);
        let (again, _, outcome) = connect(&client, &server, server.public());
        outcome.unwrap();
        let other = mac_key(|out, label| again.export_keying_material(out, label, None)).unwrap();
        assert!(other != at_client);
    }

    /// A key that is not in the group's file is refused by the server, within the handshake.
    #[test]
    fn a_stranger_is_refused() {
        let (_, s, outcome) = connect(&key(9), &key(1), key(1).public());
        let (who, error) = outcome.unwrap_err();
        assert_eq!(who, "server");
        assert_eq!(error, CertificateError::UnknownIssuer.into());
        assert!(s.is_handshaking());
    }

    /// A server with another key than the one expected is refused, even if the group knows that key.
    #[test]
    fn a_wrong_server_is_refused() {
        let (_, _, outcome) = connect(&key(2), &key(1), key(2).public());
        let (who, error) = outcome.unwrap_err();
        assert_eq!(who, "client");
        assert_eq!(error, CertificateError::NotValidForName.into());
    }

    /// Who shows a member's key without having its secret fails on the signature.
    #[test]
    fn a_borrowed_public_key_is_refused() {
        let thief = Identity {
            certified: Arc::new(CertifiedKey::new(
                vec![CertificateDer::from(spki_of(&key(2).public()))],
                Identity::new(&key(9)).certified.key.clone(),
            )),
            ..Identity::new(&key(9))
        };
        let config = thief.client_config(key(1).public());
        let mut c = ClientConnection::new(config, server_name()).unwrap();
        let config = Identity::new(&key(1)).server_config(&group());
        let mut s = ServerConnection::new(config).unwrap();
        assert_eq!(shake(&mut c, &mut s).unwrap_err().0, "server");
    }
}
