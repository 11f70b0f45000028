//! Operations and answers, and every limit.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::codec::{Decode, DecodeError, Encode, Reader};
use quorate_wire::{record, tagged};

/// The most routers that have epochs.
pub const MAX_INSTANCES: usize = 64;
/// The most of one client.
pub const MAX_INSTANCES_OF_CLIENT: usize = 16;
/// The most epochs that there are at a time: with all routers there, each has room for one that it has lost and nobody has taken over yet.
pub const MAX_EPOCHS: usize = 2 * MAX_INSTANCES;
/// The most epochs of one client.
pub const MAX_EPOCHS_OF_CLIENT: usize = 2 * MAX_INSTANCES_OF_CLIENT;
/// The most keys that an epoch holds.
pub const MAX_HELD: u32 = 1024;
/// The most keys in one operation.
pub const MAX_KEYS: usize = 8;
/// The most intentions that an epoch has begun and not ended. One that takes over has those of the others beside.
pub const MAX_INTENTS: u32 = 128;
/// The longest record of an intention, in bytes.
pub const MAX_RECORD_BYTES: usize = 4096;
/// How many intentions are told at a time.
pub const MAX_TOLD: usize = 32;
/// The most values.
pub const MAX_VALUES: usize = 64;
/// The longest name of a value, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 256 << 10;
/// The shortest and the longest lease, in milliseconds.
pub const LEASES: core::ops::RangeInclusive<u32> = 100..=300_000;

/// The number of an epoch; rises with each that is registered.
pub type Epoch = u64;
/// What is held.
pub type Key = [u8; 32];

record! {
    /// A router begins.
    pub struct Register {
        /// The same in all lives of one router. The epochs of its former lives, registered by the same client, have run out with this.
        pub instance: [u8; 16],
        /// How long it may be silent, in milliseconds.
        pub lease: u32,
    }
}

record! {
    /// Keys of an epoch.
    pub struct Keys {
        /// Whose.
        pub epoch: Epoch,
        /// All or none.
        pub keys: Vec<Key> => MAX_KEYS, "keys",
    }
}

record! {
    /// Something is about to be done.
    pub struct Begin {
        /// By whom.
        pub epoch: Epoch,
        /// Under which keys, which it holds.
        pub keys: Vec<Key> => MAX_KEYS, "keys",
        /// What.
        pub record: Bytes,
    }
}

record! {
    /// An intention.
    pub struct Ended {
        /// Whose it is now.
        pub epoch: Epoch,
        /// Its number.
        pub number: u64,
    }
}

record! {
    /// Epochs that have run out are taken over.
    pub struct TakeOver {
        /// By whom.
        pub by: Epoch,
        /// Which.
        pub dead: Vec<Epoch> => MAX_EPOCHS, "epochs",
    }
}

record! {
    /// What is open in an epoch, from after a number.
    pub struct Open {
        /// Which.
        pub epoch: Epoch,
        /// The last number that is known already; 0 at first.
        pub after: u64,
    }
}

record! {
    /// A value is replaced.
    pub struct Put {
        /// Its name.
        pub name: Bytes,
        /// The version that is there; 0: none.
        pub version: u64,
        /// From now on.
        pub value: Bytes,
    }
}

tagged! {
    /// What can be asked.
    pub enum Op {
        /// Begins an epoch.
        1 => Register(Register),
        /// Renews its lease.
        2 => Renew(Epoch),
        /// Holds keys.
        3 => Hold(Keys),
        /// Lets go of keys. Those of open intentions are held until these end.
        4 => Release(Keys),
        /// Begins an intention.
        5 => Begin(Begin),
        /// Ends one. One that has ended stays so.
        6 => End(Ended),
        /// Takes over what was under way elsewhere, in a new epoch.
        7 => TakeOver(TakeOver),
        /// The epochs that this one has taken over can do nothing any more, anywhere: they need not be known.
        8 => Fenced(Epoch),
        /// Ends an epoch in which nothing is under way.
        9 => Leave(Epoch),
        /// Tells what is open.
        10 => Open(Open),
        /// Replaces a value.
        11 => Put(Put),
        /// Tells a value.
        12 => Get(Bytes),
        /// Tells all epochs.
        13 => List(()),
    }
}

record! {
    /// An epoch has begun.
    pub struct Begun {
        /// Its number.
        pub epoch: Epoch,
        /// Those that it stands in for: what they have left elsewhere is to be found under their numbers.
        pub ancestors: Vec<Epoch>,
    }
}

record! {
    /// An intention that has not ended.
    pub struct Intention {
        /// Its number.
        pub number: u64,
        /// What it was begun with.
        pub record: Bytes,
    }
}

record! {
    /// A value.
    pub struct Value {
        /// How often it was replaced; 0 if there is none.
        pub version: u64,
        /// What it is.
        pub value: Bytes,
    }
}

record! {
    /// An epoch, as it is told.
    pub struct Listed {
        /// Its number.
        pub epoch: Epoch,
        /// Agreed time until which it can't be taken over; 0 if its router has begun anew.
        pub expires: quorate_wire::Time,
        /// Keys that it holds.
        pub held: u32,
        /// Intentions that have not ended.
        pub open: u32,
    }
}

tagged! {
    /// Why something was refused.
    pub enum Refused {
        /// It means nothing.
        1 => Malformed(()),
        /// The client stands in no list of the group's.
        2 => NotAMember(()),
        /// There is no such epoch: it was left or taken over, or is another client's.
        3 => NoEpoch(()),
        /// Another epoch holds one of the keys.
        4 => Held(Epoch),
        /// An intention is begun under a key that its epoch does not hold.
        5 => NotHeld(()),
        /// The lease of this one has not run out.
        6 => Alive(Epoch),
        /// A limit.
        7 => TooMany(()),
        /// Something is under way in it.
        8 => UnderWay(()),
        /// The value has this version.
        9 => Version(u64),
    }
}

tagged! {
    /// What is answered.
    pub enum Reply {
        /// It is done.
        0 => Done(()),
        /// It is not, and nothing has changed.
        1 => Refused(Refused),
        /// [`Op::Register`], [`Op::TakeOver`].
        2 => Begun(Begun),
        /// [`Op::Renew`]: which others have run out.
        3 => Renewed(Vec<Epoch>),
        /// [`Op::Begin`].
        4 => Number(u64),
        /// [`Op::Open`]: those with the lowest numbers; none are left if there are none.
        5 => Open(Vec<Intention>),
        /// [`Op::Get`]; and [`Op::Put`], without what is known.
        6 => Value(Value),
        /// [`Op::List`].
        7 => Epochs(Vec<Listed>),
    }
}

impl Op {
    /// What a client has sent.
    ///
    /// # Errors
    /// What keeps it from being an operation.
    pub fn read(bytes: Bytes) -> Result<Op, DecodeError> {
        let mut r = Reader::new(bytes);
        let op = Op::decode(&mut r)?;
        r.finish()?;
        Ok(op)
    }

    /// As it is sent.
    pub fn write(&self) -> Bytes {
        self.to_bytes().into()
    }
}
