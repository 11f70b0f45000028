//! The way in for those who replicate a service of their own: all that it takes, under one name.
//!
//! A group of 3f+1 replicas runs your service and agrees on the order of all operations; a client believes a result when 2f+1
//! replicas say the same. So up to f replicas may be broken or hacked, and your service goes on and stays right. Its file
//! service is one such service; yours is another. Three things are to be written: the service, what a replica's process does,
//! and what a client does.
//!
//! The crates are not on a registry. All that is used here comes from this one and from the standard library, beside a program's own choice of
//! executor, if it has one. With a clone of the repository beside the program's own directory:
//!
//! ```toml
//! [dependencies]
//! quorate-service = { path = "../quorate/crates/service" } # or { git = "..." }, where a repository can be reached
//! ```
//!
//! # The service
//!
//! A [`Service`] is a function of an ordered map of bytes (the replicated state) and an operation (bytes, in an encoding of your
//! own) to a result (bytes) and writes to the map. This one counts:
//!
//! ```
//! use quorate_service::{Bytes, Call, Fault, Local, Service, Txn};
//!
//! #[derive(Clone, Debug)]
//! struct Counter;
//!
//! impl Service for Counter {
//!     fn is_read_only(&self, op: &[u8]) -> bool {
//!         op == b"get"
//!     }
//!
//!     fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
//!         let kept = txn.get(b"count")?.unwrap_or_default();
//!         let count = kept.as_ref().try_into().map_or(0, u64::from_le_bytes);
//!         if op.as_ref() == b"get" {
//!             return Ok(count.to_le_bytes().to_vec().into());
//!         }
//!         let next = Bytes::from(count.wrapping_add(1).to_le_bytes().to_vec());
//!         txn.put("count".into(), next.clone());
//!         Ok(next)
//!     }
//! }
//!
//! // Four replicas in this process, to try it.
//! let group = Local::start(4, Counter)?;
//! let session = group.session()?;
//! let count = session.call_blocking("add".into()).expect("the session is open");
//! assert_eq!(count[..], 1u64.to_le_bytes());
//! # Ok::<_, quorate_service::LocalError>(())
//! ```
//!
//! Correct replicas must come to equal results and states, or they look faulty to each other. So the service takes
//! everything from the state, the [`Call`] and the operation: no clock ([`Call::now`] is the time that the replicas have
//! agreed on), no randomness, no order of a hash map, no files, and no fields that change. What it keeps, it keeps in the
//! [`Txn`]; keys whose first byte is 0 are taken. Who calls is [`Call::client`], a public key that has been authenticated:
//! permissions can be built on it.
//!
//! An operation may be anything that any client sends: decode it as you would what comes from a network, and answer nonsense with a
//! result that says so. A panic stops every replica at the same operation: [`Daemon::wait`] says so at each. The operation has been agreed on, so it stops
//! them again when they start again. Mend the service so that it answers that operation, and all operations before it as they were answered,
//! and start all replicas with it: the group goes on with everything that it had. A read that is not ordered stops replicas when it is asked, and is forgotten with them.
//! [`Fault`] is for a store that fails, and takes
//! this one replica out; let `?` pass it on. What an operation does is all or nothing by itself: results are
//! given when it is done, [`Txn::rollback`] undoes.
//!
//! What an operation reads, all replicas read, and one of them sends. Where answers hold large values of the state byte for byte, name these in
//! [`Service::read`]: then only who sends an answer reads them, and the others vouch for their digests, which they have already.
//!
//! Operations are executed one after the other. If yours wait for something, say with [`Service::uses`] what they touch and give
//! replicas worker threads ([`Options::workers`], [`Local::start_with`]; hundreds if need be): then those that don't conflict are at work at the same time.
//! Things are known by numbers of the service's own choice ([`Scope::Object`]: a class, and a number in it) or by their names:
//!
//! ```
//! # use quorate_service::{Scope, Uses};
//! # let (from, to) = (b"alice", b"bob");
//! const ACCOUNTS: u32 = 0; // what differs by class never conflicts
//! let transfer = Uses::none().write(Scope::named(ACCOUNTS, from)).write(Scope::named(ACCOUNTS, to));
//! let balance = Uses::none().read(Scope::named(ACCOUNTS, from));
//! ```
//!
//! Results and state are the same as one after the other, if the declaration is right: let [`check::uses`] try it in a test.
//! Where it is wrong, replicas differ, and at last the group stands still. The same test finds operations that only say that they read, and results
//! that are longer than [`Service::result_bytes`] says: replicas keep results for a while, in a memory that is bounded by that.
//!
//! # A replica
//!
//! Each server runs one process. Members are listed in a group file, with their public keys; `quorate init --no-key-holders` makes one, and
//! [`Group::new`] does. (Without that option replicas have key holders, `quorate keyholder`, processes that have the keys by which they are known: then
//! [`Options::key_holder`] says where it listens.) A replica is started with [`Daemon::start`]. Its directory is its own. [`Options::first_start`]
//! is true when the replica starts for the first time, and never again: whether it has run is what matters, not whether the directory is there.
//! `quorate init` makes the directory too, with the key in it, and the first start is still one.
//!
//! ```no_run
//! # use quorate_service::{Bytes, Call, Fault, Service, Txn};
//! # #[derive(Clone, Debug)]
//! # struct Counter;
//! # impl Service for Counter {
//! #     fn is_read_only(&self, _: &[u8]) -> bool { false }
//! #     fn execute(&self, _: &mut Txn<'_>, _: &Call, _: &Bytes) -> Result<Bytes, Fault> { Ok(Bytes::new()) }
//! # }
//! use quorate_service::{Daemon, Group, Options, ReplicaId, keys};
//!
//! let group = Group::load("group.toml".as_ref())?.into();
//! let key = keys::load("replica-0/key".as_ref())?;
//! let options = Options {
//!     first_start: false, // true at the very first start alone, also where `quorate init` has made the directory
//!     ..Options::new(group, ReplicaId(0), key, "replica-0")
//! };
//! let replica = Daemon::start(options, Counter)?;
//! let stopper = replica.stopper(); // for the thread that hears SIGTERM
//! replica.wait()?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! All replicas of a group must run the same service, from the same version: a new one that gives other results is a new
//! group. How they agree (on disk or in memory, by MACs or signatures) is in the group file too, see [`Group::with_protocol`]. A replica that was stopped comes back from its directory; one that has lost it must not come back under its key.
//!
//! # A client
//!
//! ```no_run
//! use quorate_service::{Group, Identity, Session, keys};
//!
//! # async fn client() -> Result<(), Box<dyn std::error::Error>> {
//! let group = Group::load("group.toml".as_ref())?;
//! let identity = Identity::new(&keys::load("client.key".as_ref())?);
//! let session = Session::connect(&group, &identity)?; // clones share it
//! let count = session.call("add".into()).await;
//! let same = session.read("get".into()).await;
//! # Ok(())
//! # }
//! ```
//!
//! [`Session::call`] has an operation executed exactly once, however often messages were lost on the way.
//! [`Session::read`] is for operations that only read: they are answered without being ordered where that gives the same.
//! Both see all that was answered before they were called, to this client or another. Up to 64 calls and 64 reads are in flight in a session, and
//! further ones wait. What is asked by `read` must not change anything: it is not executed where it does before it has waited in vain, and may then be executed
//! more than once. They work in any executor; threads that may wait have [`Session::call_blocking`]. A program that does
//! one thing after the other is served fastest by an [`InlineSession`], which has no thread of its own.
//!
//! A call waits until enough replicas are there, for as long as it takes; to give up, drop the future, or have a
//! thread wait with [`Session::call_blocking_for`]. An operation has at least one byte and at most
//! [`MAX_OP_BYTES`]: an empty one only keeps a session alive, and no service sees it. A result has at most [`MAX_RESULT_BYTES`], less 16.
//! A replica keeps the last results of a session, in case that they are lost on the way, but no more than 1 MiB of them: where calls have results of more than
//! [`SHORT_RESULT`] bytes, say so with [`Session::connect_for_results`], which then has fewer in flight. Otherwise one whose answer was lost may end as
//! [`NoResult::ResultGone`]. Reads are not kept: they read again.
//! Where there is no result, [`NoResult`] says why: mostly that the group has ended the session, after 45 seconds without a sign of life, and whether the
//! operation was executed is not known then. Make those that matter repeatable, or look first. [`Service::session_ended`] is where a service lets
//! go of what a session held, such as locks; of much of it in parts.
//!
//! # Examples
//!
//! `cargo run --example counter`, `key_value` and `null`: each a service with a client that uses it, in this crate. The second
//! executes on worker threads, the third asks asynchronously, with many operations in flight. `last_word` is a service with a replica's process and a
//! client in 70 lines, for the files of `quorate init --no-key-holders`; `processes` runs it, and kills a replica. The service of `null`, which is that of the benchmarks
//! and can be told to wait, to conflict and to say much, is in [`mod@null`].

pub mod check;
mod local;
pub mod null;

pub use bytes::Bytes;
pub use local::{Local, LocalError};
pub use quorate_client::session::{Gathering, ReportError, SHORT_RESULT, Ticket};
pub use quorate_client::{InlineSession, NoResult, Session, TimedCallError};
pub use quorate_execution::graph::{Conflicts, Scope, Uses};
pub use quorate_execution::{Call, Ran, Reading, Rest, Service};
pub use quorate_net::group::{Durability, Files, Problem, Protocol, Purpose};
pub use quorate_net::{Group, GroupError, Identity, KeyError, keys};
pub use quorate_node::{
    Daemon, DaemonError, KeyHolder, Options, Sealing, Stopper, Trust, Tuning, Verification,
};
pub use quorate_state::{Fault, Txn};
pub use quorate_wire::message::report::Report;
pub use quorate_wire::message::{MAX_OP_BYTES, MAX_RESULT_BYTES};
pub use quorate_wire::{Authentication, ClientId, KeyPair, PublicKey, ReplicaId, SessionId, Time};
