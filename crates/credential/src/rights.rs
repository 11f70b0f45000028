//! What may be done: a set of named rights.

use core::fmt;
use core::ops::{BitAnd, BitOr};

use alloc::string::String;
use alloc::vec::Vec;

/// A set of rights. Only the bits of [`Rights::NAMES`] can be in it.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights(u16);

impl Rights {
    /// No right.
    pub const NONE: Rights = Rights(0);
    /// Find a name in a directory, and see an object's attributes.
    pub const LOOKUP: Rights = Rights(1);
    /// List a directory.
    pub const READDIR: Rights = Rights(1 << 1);
    /// Read content, the target of a symbolic link, extended attributes.
    pub const READ: Rights = Rights(1 << 2);
    /// Change content anywhere, and its length.
    pub const WRITE: Rights = Rights(1 << 3);
    /// Add content at the end.
    pub const APPEND: Rights = Rights(1 << 4);
    /// Make a new object in a directory.
    pub const CREATE: Rights = Rights(1 << 5);
    /// Take a name out of a directory, also by renaming over it.
    pub const UNLINK: Rights = Rights(1 << 6);
    /// Move an object out of a directory.
    pub const RENAME_FROM: Rights = Rights(1 << 7);
    /// Move an object into a directory.
    pub const RENAME_INTO: Rights = Rights(1 << 8);
    /// Change mode, owner, times, extended attributes.
    pub const SETATTR: Rights = Rights(1 << 9);
    /// Give an object one more name.
    pub const LINK: Rights = Rights(1 << 10);
    /// Pass on a part of the credential.
    pub const DELEGATE: Rights = Rights(1 << 11);
    /// Take back what was passed on below.
    pub const REVOKE: Rights = Rights(1 << 12);

    /// What `r` stands for.
    pub const READING: Rights = Rights(0b111);
    /// What `w` stands for.
    pub const WRITING: Rights = Rights(0b111_1111_1000);
    /// All there are.
    pub const ALL: Rights = Rights((1 << 13) - 1);

    /// Each right with its name in commands and summaries, in order of the bits.
    pub const NAMES: [(Rights, &'static str); 13] = [
        (Rights::LOOKUP, "lookup"),
        (Rights::READDIR, "readdir"),
        (Rights::READ, "read"),
        (Rights::WRITE, "write"),
        (Rights::APPEND, "append"),
        (Rights::CREATE, "create"),
        (Rights::UNLINK, "unlink"),
        (Rights::RENAME_FROM, "rename-from"),
        (Rights::RENAME_INTO, "rename-into"),
        (Rights::SETATTR, "setattr"),
        (Rights::LINK, "link"),
        (Rights::DELEGATE, "delegate"),
        (Rights::REVOKE, "revoke"),
    ];

    /// The bits, as they are encoded.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The set of some bits; `None` where one of them stands for no right.
    pub fn from_bits(bits: u16) -> Option<Rights> {
        (bits & !Rights::ALL.0 == 0).then_some(Rights(bits))
    }

    /// Whether all of `other` is in this set.
    pub fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }

    /// What is in this set and not in `other`.
    pub fn without(self, other: Rights) -> Rights {
        Rights(self.0 & !other.0)
    }

    /// Whether there is no right in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names of the rights in it, in order of the bits.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let named = Rights::NAMES.into_iter();
        named.filter(move |n| self.contains(n.0)).map(|n| n.1)
    }

    /// Reads what people write: `r`, `w`, `rw`, `all`, or names with commas between them, such as `r,append,create`.
    ///
    /// # Errors
    /// The word that is none of these.
    pub fn parse(text: &str) -> Result<Rights, String> {
        text.split(',').try_fold(Rights::NONE, |rights, word| {
            let more = match word.trim() {
                "r" => Some(Rights::READING),
                "w" => Some(Rights::WRITING),
                "rw" => Some(Rights::READING | Rights::WRITING),
                "all" => Some(Rights::ALL),
                name => Rights::NAMES.iter().find(|n| n.1 == name).map(|n| n.0),
            };
            more.map(|more| rights | more).ok_or_else(|| word.into())
        })
    }
}

impl BitOr for Rights {
    type Output = Rights;

    fn bitor(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }
}

impl BitAnd for Rights {
    type Output = Rights;

    fn bitand(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        match names.is_empty() {
            true => f.write_str("nothing"),
            false => f.write_str(&names.join(", ")),
        }
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// The names cover each bit once, in order, and are read back.
    #[test]
    fn each_bit_has_a_name() {
        for (at, (right, name)) in Rights::NAMES.iter().enumerate() {
            assert_eq!(right.bits(), 1 << at);
            assert_eq!(Rights::parse(name), Ok(*right));
        }
        let all = Rights::ALL.to_string().replace(' ', "");
        assert_eq!(Rights::parse(&all), Ok(Rights::ALL));
        assert_eq!(Rights::from_bits(1 << 13), None);
        assert_eq!(Rights::parse("rw"), Rights::parse("r,w"));
        let rest = Rights::DELEGATE | Rights::REVOKE;
        assert_eq!(Rights::READING | Rights::WRITING | rest, Rights::ALL);
        assert_eq!(Rights::READING & Rights::WRITING, Rights::NONE);
        assert_eq!(Rights::parse("r,fly"), Err("fly".into()));
    }
}
