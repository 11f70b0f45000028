//! An action, and what it did to the attributes of some objects.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_wire::{Decode, DecodeError, Encode, Reader};

use super::Action;
use crate::types::{Ino, Stamp};

/// The most objects that one [`WithAttrs`] looks at.
pub const MAX_OBJECTS: usize = 3;

/// See [`Action::WithAttrs`]. The attributes are those right before and right after the action: nothing comes between.
///
/// It succeeds whatever comes of the action, and says that in its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithAttrs {
    /// Whose attributes, at most [`MAX_OBJECTS`].
    pub objects: Vec<Ino>,
    /// The ctime that the first object must have: if it has another, nothing is done, and the action's outcome is `EAGAIN`.
    pub guard: Option<Stamp>,
    /// What is done: any other action. A write done in this way runs beside no other change.
    pub action: Box<Action>,
}

impl WithAttrs {
    /// An action without a guard.
    pub fn new(objects: Vec<Ino>, action: Action) -> WithAttrs {
        WithAttrs {
            objects,
            guard: None,
            action: Box::new(action),
        }
    }
}

impl Encode for WithAttrs {
    fn encode(&self, out: &mut Vec<u8>) {
        self.objects.encode(out);
        self.guard.encode(out);
        self.action.encode(out);
    }

    fn string_bytes(&self) -> usize {
        self.action.string_bytes()
    }
}

impl Decode for WithAttrs {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let objects = quorate_wire::codec::bounded(r, MAX_OBJECTS, "objects")?;
        let guard = Option::decode(r)?;
        // Bytes could nest as deep as they are long, and the stack is not so deep.
        const WITH_ATTRS: u8 = 29;
        if u8::decode(&mut r.clone())? == WITH_ATTRS {
            return Err(DecodeError::Invalid("nested WithAttrs"));
        }
        let action = Box::new(Action::decode(r)?);
        Ok(WithAttrs {
            objects,
            guard,
            action,
        })
    }
}
