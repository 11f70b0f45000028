//! What faulty clients, and strangers, do to a group: a process of its own, which the benchmark starts.
//!
//! Each attacker is a thread that sends at a bounded rate, so that the processor time that the attack costs itself does not become the
//! measure; the benchmark reports it. They know the protocol and keep to it only as far as it serves the attack.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use quorate_agreement::client::{Client, ClientOptions, ClientOutput};
use quorate_net::{ClientEvent, ClientLinks, Frame, Group, Identity, keys};
use quorate_wire::message::{
    AuthRequest, ClientMessage, Control, EVERYONE, Read as UnorderedRead, ReplicaMessage, Request,
};
use quorate_wire::{Authenticator, Encode, Mac, MacKey, ReplicaId, RequestNumber, SessionId, View};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::load::Random;
use crate::null::NullOp;

/// How often an attacker sends some.
const TICK: Duration = Duration::from_millis(2);
/// How often it asks for the view.
const ASK: Duration = Duration::from_millis(200);
/// How long an attacker waits for its session.
const PATIENCE: Duration = Duration::from_secs(20);
/// Connections that one stranger holds open.
const HELD: usize = 200;
/// An operation, or a result, that is as long as may be.
const GIANT: usize = 1 << 20;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Nothing but to take processor time: what other attacks are compared with.
    Burn,
    /// Requests whose MACs are right for the primary and wrong for the backups: the Big MAC attack (Aardvark, NSDI 2009, 3.1).
    WrongMacs,
    /// The same request again and again, signed, to all replicas.
    Repeats,
    /// Requests that the backups are asked to watch, and the primary never sees.
    Watches,
    /// Bytes that are no message, over a new connection each time.
    Garbage,
    /// Operations of a MiB.
    Giants,
    /// One session after the other is opened.
    Sessions,
    /// Reads with results of a MiB that are never taken.
    Deaf,
    /// Connections by who has no key of the group's: whole handshakes, half of one, noise, silence.
    Strangers,
    /// Nothing but right requests, in any number: no window is kept.
    Greedy,
}

impl Attack {
    /// All but the one that only burns.
    pub const ALL: [Attack; 9] = [
        Attack::Repeats,
        Attack::Watches,
        Attack::Garbage,
        Attack::Giants,
        Attack::Sessions,
        Attack::Deaf,
        Attack::Strangers,
        Attack::Greedy,
        // Last: what replicas learn by it they keep for a minute, and they learn nothing while they have just started.
        Attack::WrongMacs,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Attack::Burn => "burn",
            Attack::WrongMacs => "wrong MACs",
            Attack::Repeats => "repeats",
            Attack::Watches => "watches",
            Attack::Garbage => "garbage",
            Attack::Giants => "giants",
            Attack::Sessions => "sessions",
            Attack::Deaf => "deaf",
            Attack::Strangers => "strangers",
            Attack::Greedy => "greedy",
        }
    }

    /// Whether it has operations ordered, or reads served, as correct clients do besides.
    pub fn has_orders(self) -> bool {
        use Attack::{Deaf, Giants, Greedy, Sessions, Watches};
        matches!(self, Deaf | Giants | Greedy | Sessions | Watches)
    }

    /// Messages, connections or operations in a second, of all attackers together.
    pub fn rate(self) -> u64 {
        match self {
            Attack::Burn => 0,
            Attack::WrongMacs => 10_000,
            Attack::Repeats => 50_000,
            Attack::Watches => 5_000,
            Attack::Garbage => 500,
            Attack::Giants => 200,
            Attack::Sessions => 5_000,
            Attack::Deaf => 5_000,
            Attack::Strangers => 1_000,
            Attack::Greedy => 20_000,
        }
    }
}

impl FromStr for Attack {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Attack> {
        let mut all = Attack::ALL.into_iter().chain([Attack::Burn]);
        all.find(|attack| attack.name() == name)
            .with_context(|| format!("there is no attack {name:?}"))
    }
}

/// What the process is told, as JSON in its last argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The attack's name.
    pub attack: String,
    /// The group file.
    pub group: PathBuf,
    /// The attackers' key files.
    pub keys: Vec<PathBuf>,
    /// Sendings in a second, of all attackers together; for [`Attack::Burn`] thousandths of a processor.
    pub per_second: u64,
}

/// Attacks until standard input ends. Says a line when it begins.
///
/// # Errors
/// Where an attacker can't begin.
pub fn run(spec: &str) -> Result<()> {
    let spec: Spec = serde_json::from_str(spec).context("this command is the benchmark's own")?;
    let attack: Attack = spec.attack.parse()?;
    if attack == Attack::Burn {
        for _ in 0..2 {
            std::thread::spawn(move || burn(spec.per_second / 2));
        }
        return until_told();
    }
    let group = Arc::new(Group::load(&spec.group)?);
    let each = (spec.per_second / spec.keys.len().max(1) as u64).max(1);
    let mut threads = Vec::new();
    for (at, key) in spec.keys.iter().enumerate() {
        let key = match attack {
            Attack::Strangers => keys::generate()?,
            _ => keys::load(key)?,
        };
        let attacker = Attacker::new(attack, &group, Identity::new(&key), at as u64)?;
        threads.push(attacker);
    }
    for attacker in threads {
        std::thread::spawn(move || attacker.run(each));
    }
    until_told()
}

fn until_told() -> Result<()> {
    println!("ready");
    std::io::stdout().flush()?;
    let mut byte = [0];
    while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
    // Its threads go with the process.
    std::process::exit(0)
}

/// Takes so many thousandths of a processor.
fn burn(thousandths: u64) {
    let (mut x, mut due) = (1u64, clock());
    loop {
        due += Duration::from_millis(10);
        let until = clock() + Duration::from_micros(10 * thousandths.min(1_000));
        while clock() < until {
            for _ in 0..100 {
                x = std::hint::black_box(x.wrapping_mul(3));
            }
        }
        std::thread::sleep(due.saturating_duration_since(clock()));
    }
}

struct Attacker {
    attack: Attack,
    group: Arc<Group>,
    me: Identity,
    links: ClientLinks,
    keys: Vec<Option<MacKey>>,
    session: SessionId,
    view: View,
    number: u64,
    op: Bytes,
    random: Random,
    held: Vec<TcpStream>,
    /// What is said again and again.
    repeated: Vec<Frame>,
}

impl Attacker {
    /// With an open session, where the attack needs one.
    fn new(attack: Attack, group: &Arc<Group>, me: Identity, seed: u64) -> Result<Attacker> {
        let links = ClientLinks::connect(group, &me)?;
        let padding = if attack == Attack::Giants { GIANT } else { 0 };
        let mut attacker = Attacker {
            attack,
            keys: vec![None; group.quorum().n()],
            group: group.clone(),
            me,
            links,
            session: SessionId(0),
            view: View(0),
            number: 1,
            op: NullOp::default().encode(padding),
            random: Random(seed),
            held: Vec::new(),
            repeated: Vec::new(),
        };
        if !matches!(attack, Attack::Strangers | Attack::Garbage) {
            attacker.open()?;
        }
        if attack == Attack::Repeats {
            let request = attacker.signed();
            let forms = [
                ClientMessage::Repeat,
                ClientMessage::Request,
                ClientMessage::Watch,
            ];
            attacker.repeated = forms
                .map(|form| Frame::encode(&form(request.clone())))
                .into();
        }
        Ok(attacker)
    }

    /// Opens a session as a correct client does.
    fn open(&mut self) -> Result<()> {
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce)?;
        let nonce = u64::from_le_bytes(nonce);
        let (quorum, options) = (self.group.quorum(), ClientOptions::default());
        let (group, key) = (self.group.id(), self.me.key().clone());
        let mut client = Client::new(group, quorum, options, key, nonce, 0);
        let began = clock();
        loop {
            let now = began.elapsed();
            if now > PATIENCE {
                bail!("an attacker waits for its session in vain");
            }
            let now = now.as_millis() as u64;
            client.on_tick(now);
            let outputs: Vec<_> = client.drain().collect();
            for output in outputs {
                match output {
                    ClientOutput::Send(to, message) => {
                        self.links.send(to, &Frame::encode(&message));
                    }
                    ClientOutput::Opened(session) => {
                        self.session = session;
                        self.links.flush();
                        return Ok(());
                    }
                    ClientOutput::Done(..) => {}
                }
            }
            self.links.flush();
            self.links.poll(Some(Duration::from_millis(10)))?;
            while let Some(event) = self.links.next_event() {
                match event {
                    ClientEvent::Up(id, key) => {
                        self.keys[usize::from(id.0)] = Some(key.clone());
                        client.on_link(id, Some(key));
                    }
                    ClientEvent::Down(id) => client.on_link(id, None),
                    ClientEvent::Message(id, ReplicaMessage::Reply(reply)) => {
                        client.on_reply(id, reply, now);
                    }
                    ClientEvent::Message(..) => {}
                }
            }
        }
    }

    /// Attacks for ever. What fails, fails: the group may have had enough of it.
    fn run(mut self, per_second: u64) {
        let began = clock();
        let (mut sent, mut asked) = (0, began);
        loop {
            let due = (began.elapsed().as_secs_f64() * per_second as f64) as u64;
            // What could not be sent in time is not made up for.
            sent = sent.max(due.saturating_sub(per_second / 10 + 1));
            while sent < due {
                sent += 1;
                self.strike();
            }
            if self.attack == Attack::WrongMacs && asked.elapsed() > ASK {
                asked = clock();
                self.tell_all(&Frame::encode(&ClientMessage::ReportPlease(0)));
            }
            self.links.flush();
            if self.attack == Attack::Deaf {
                std::thread::sleep(TICK);
                continue;
            }
            let _ = self.links.poll(Some(TICK));
            while let Some(event) = self.links.next_event() {
                self.on_event(event);
            }
        }
    }

    fn on_event(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Up(id, key) => self.keys[usize::from(id.0)] = Some(key),
            ClientEvent::Message(_, ReplicaMessage::Report(report)) => {
                self.view = self.view.max(report.view);
            }
            ClientEvent::Message(_, ReplicaMessage::Reply(reply)) => {
                self.view = self.view.max(reply.view);
            }
            ClientEvent::Message(..) | ClientEvent::Down(_) => {}
        }
    }

    fn tell_all(&mut self, frame: &Frame) {
        for id in self.group.quorum().replicas() {
            self.links.send(id, frame);
        }
    }

    fn primary(&self) -> ReplicaId {
        self.group.quorum().primary(self.view)
    }

    fn request(&mut self) -> Request {
        self.number += 1;
        let number = RequestNumber(self.number);
        Request::new(self.me.public(), self.session, number, self.op.clone())
    }

    fn signed(&mut self) -> AuthRequest {
        let request = self.request();
        let signature = self.me.key().sign_in(&self.group.id(), &request.digest());
        let auth = Authenticator::Signed(signature.into());
        let replier = EVERYONE;
        AuthRequest {
            request,
            auth,
            replier,
        }
    }

    /// MACs that are right for all, or for one alone.
    fn with_macs(&mut self, request: Request, right_for: Option<ReplicaId>) -> AuthRequest {
        let digest = request.digest();
        let wrong = |id: ReplicaId| right_for.is_some_and(|right| right != id);
        let macs = self
            .group
            .quorum()
            .replicas()
            .map(|id| match &self.keys[usize::from(id.0)] {
                Some(key) if !wrong(id) => key.mac(&digest),
                _ => Mac([7; 16]),
            });
        let auth = Authenticator::Macs(macs.collect());
        let replier = self.primary();
        AuthRequest {
            request,
            auth,
            replier,
        }
    }

    /// Does it once.
    fn strike(&mut self) {
        let primary = self.primary();
        match self.attack {
            Attack::Burn => {}
            Attack::WrongMacs => {
                let request = self.request();
                let request = self.with_macs(request, Some(primary));
                let frame = Frame::encode(&ClientMessage::Request(request));
                self.links.send(primary, &frame);
            }
            Attack::Repeats => {
                let at = self.random.below(self.repeated.len() as u32) as usize;
                let frame = self.repeated[at].clone();
                self.tell_all(&frame);
            }
            Attack::Watches => {
                let frame = Frame::encode(&ClientMessage::Watch(self.signed()));
                for id in self.group.quorum().others(primary) {
                    self.links.send(id, &frame);
                }
            }
            Attack::Garbage => self.say_garbage(),
            Attack::Giants => {
                let request = self.request();
                let request = self.with_macs(request, None);
                self.tell_all(&Frame::encode(&ClientMessage::Request(request)));
            }
            Attack::Sessions => {
                self.number += 1;
                let number = u64::from(self.random.below(u32::MAX)) << 32 | self.number;
                let op = Control::Open(()).to_bytes().into();
                let (me, number) = (self.me.public(), RequestNumber(number));
                let request = Request::new(me, SessionId(0), number, op);
                let request = self.with_macs(request, None);
                let frame = Frame::encode(&ClientMessage::Request(request));
                self.links.send(primary, &frame);
            }
            Attack::Deaf => {
                self.number += 1;
                let op = NullOp {
                    read_only: true,
                    result: GIANT as u32,
                    ..NullOp::default()
                };
                let frame = Frame::encode(&ClientMessage::Read(UnorderedRead {
                    early: false,
                    session: self.session,
                    number: RequestNumber(self.number),
                    replier: EVERYONE,
                    op: op.encode(0),
                }));
                self.tell_all(&frame);
            }
            Attack::Strangers => self.knock(),
            Attack::Greedy => {
                let request = self.request();
                let request = self.with_macs(request, None);
                let frame = Frame::encode(&ClientMessage::Request(request));
                self.links.send(primary, &frame);
            }
        }
    }

    /// Says something that is no message on links that stand, and makes others.
    fn say_garbage(&mut self) {
        struct Garbage([u8; 64]);
        impl Encode for Garbage {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.0);
            }
        }
        if self.keys.iter().all(Option::is_some) {
            self.tell_all(&Frame::encode(&Garbage([0xff; 64])));
            self.links.flush();
            self.keys.fill(None);
            // A link that has just ended is dialed again after a while; this one wants to be quicker.
            if let Ok(links) = ClientLinks::connect(&self.group, &self.me) {
                self.links = links;
            }
        }
    }

    fn knock(&mut self) {
        if self.random.below(4) == 0 {
            // Four whole handshakes, which go on while others are polled for.
            if let Ok(links) = ClientLinks::connect(&self.group, &self.me) {
                self.links = links;
            }
            return;
        }
        let at = self.random.below(self.group.quorum().n() as u32) as usize;
        let Some(entry) = self.group.replicas().get(at) else {
            return;
        };
        let Ok(mut stream) = TcpStream::connect(&entry.address) else {
            return;
        };
        let patience = Some(Duration::from_millis(1));
        let _ = stream.set_write_timeout(patience);
        // The beginning of a record that announces a handshake; noise; nothing.
        let words: &[u8] = match self.random.below(3) {
            0 => &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],
            1 => &[0xff; 512],
            _ => &[],
        };
        let _ = stream.write_all(words);
        if self.held.len() >= HELD {
            let at = self.random.below(HELD as u32) as usize;
            self.held.swap_remove(at);
        }
        self.held.push(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are read back as what they were written for.
    #[test]
    fn names() {
        for attack in Attack::ALL {
            assert_eq!(attack.name().parse::<Attack>().unwrap(), attack);
        }
        assert!("kindness".parse::<Attack>().is_err());
    }
}
