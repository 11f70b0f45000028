//! What an operation touches, and in which of its two steps.

use alloc::vec;
use alloc::vec::Vec;

use quorate_wire::mutants::{Mutant, is_on};

/// A part of the state, in a hierarchy of the service's own making: everything, classes, objects, ranges of an object.
///
/// Two scopes overlap where one lies in the other, or where two ranges of one object have a number in common. What
/// the numbers stand for is the service's affair. Two things may have the same number: that costs parallelism
/// and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of the state.
    Everything,
    /// All objects of a class.
    Class(u32),
    /// One object of a class.
    Object(u32, u64),
    /// The numbers from the first to the last, both included, of one object of a class.
    Range(u32, u64, u64, u64),
}

impl Scope {
    /// The object of a class that has this name.
    pub fn named(class: u32, name: &[u8]) -> Scope {
        // FNV-1a. Names that collide only wait for each other.
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Scope::Object(class, hash)
    }

    pub(super) fn overlaps(self, other: Scope) -> bool {
        use Scope::{Class, Everything, Object, Range};
        match (self, other) {
            (Everything, _) | (_, Everything) => true,
            (Class(a), Class(b) | Object(b, _) | Range(b, ..))
            | (Object(a, _) | Range(a, ..), Class(b)) => a == b,
            (Object(a, x), Object(b, y) | Range(b, y, ..)) | (Range(a, x, ..), Object(b, y)) => {
                (a, x) == (b, y)
            }
            (Range(a, x, from, to), Range(b, y, start, end)) => {
                let meet = match is_on(Mutant::RangeEndsLeftOut) {
                    true => from < end && start < to,
                    false => from <= end && start <= to,
                };
                (a, x) == (b, y) && meet
            }
        }
    }
}

/// How a scope is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The run step reads it.
    Read,
    /// The run step reads and writes it.
    Write,
    /// Only the settle step touches it; it may read and write.
    Settle,
}

/// A scope and how it is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// What.
    pub scope: Scope,
    /// How.
    pub mode: Mode,
}

/// All that an operation touches.
///
/// It may name more than the operation then touches (what depends on the state must be named in its widest form),
/// and never less.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Uses(Vec<Use>);

impl Uses {
    /// The most uses that are kept apart; with more, the operation counts as touching everything.
    pub const MAX: usize = 64;

    /// Nothing: the operation is a function of itself alone.
    pub fn none() -> Uses {
        Uses(Vec::new())
    }

    /// The operation conflicts with all others.
    pub fn everything() -> Uses {
        Uses(vec![Use {
            scope: Scope::Everything,
            mode: Mode::Write,
        }])
    }

    /// The run step reads this too.
    pub fn read(self, scope: Scope) -> Uses {
        self.with(scope, Mode::Read)
    }

    /// The run step reads and writes this too.
    pub fn write(self, scope: Scope) -> Uses {
        self.with(scope, Mode::Write)
    }

    /// The settle step touches this too.
    pub fn settle(self, scope: Scope) -> Uses {
        self.with(scope, Mode::Settle)
    }

    /// Whether there is nothing to run: all that the operation touches, it touches when it settles.
    pub fn only_settles(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|a| a.mode == Mode::Settle)
    }

    /// What is touched, in the order in which it was named; some of it perhaps twice.
    pub fn all(&self) -> &[Use] {
        &self.0
    }

    fn with(mut self, scope: Scope, mode: Mode) -> Uses {
        if self.0.len() >= Uses::MAX {
            if is_on(Mutant::UsesCut) {
                return self;
            }
            return Uses::everything();
        }
        self.0.push(Use { scope, mode });
        self
    }
}
