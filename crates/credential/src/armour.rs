//! The text form, for mail: a summary for people, then the bytes in base64 (RFC 4648, section 4) between two lines, and a sum.
//!
//! The summary says nothing to a program: what counts is signed, below it. [`Armoured::summary`] tells whether the two agree, so that
//! nobody is shown one thing and made to use another. Lines may have been indented, quoted or ended otherwise on the way.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::{Chain, MAX_BYTES, Malformed, calendar};

const BEGIN: &str = "-----BEGIN QUORATE CREDENTIAL-----";
const END: &str = "-----END QUORATE CREDENTIAL-----";
/// The summary begins with this line.
const TITLE: &str = "Quorate credential. What counts is the signed block below.";
/// Characters of base64 on a line.
const LINE: usize = 64;
/// Characters of a list of rights on a line.
const FOLD: usize = 56;
/// The longest text that is read, in bytes; a mail around a credential.
pub const MAX_TEXT: usize = 1 << 20;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Why a text holds no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadText {
    /// There is no block, or it has no end.
    NoBlock,
    /// There are several blocks, and it would be a guess which is meant.
    SeveralBlocks,
    /// The text is longer than [`MAX_TEXT`], or the block than a credential can be.
    TooLong,
    /// The block was changed on the way.
    Damaged,
    /// The block came as it was sent, but is no credential.
    Malformed(Malformed),
}

impl fmt::Display for BadText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadText::NoBlock => write!(
                f,
                "there is no credential in it: a line {BEGIN:?} and its end are missing"
            ),
            BadText::SeveralBlocks => write!(
                f,
                "there are several credentials in it: put each in a file of its own"
            ),
            BadText::TooLong => write!(f, "it is too long for a credential"),
            BadText::Damaged => {
                write!(f, "the credential was damaged on the way: ask for it again")
            }
            BadText::Malformed(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for BadText {}

/// Whether the summary in front of a credential is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summary {
    /// It says what is signed.
    True,
    /// There is none: nothing stands in front of it.
    Missing,
    /// Words stand in front of it, and no summary that begins as one: they were compared with nothing.
    NotFound,
    /// It says something else. Somebody may want to deceive a reader.
    Untrue,
}

/// What a text holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Armoured {
    /// The credential.
    pub chain: Chain,
    /// How it goes with the words in front of it.
    pub summary: Summary,
}

/// The whole text form of a chain, ASCII, in lines of at most 72 characters where the chain's own words are no longer.
pub fn write(chain: &Chain) -> String {
    let bytes = chain.to_bytes();
    let mut out = format!("{TITLE}\n\n{}\n{BEGIN}\n", summary(chain));
    let coded = encode(&bytes);
    for line in coded.as_bytes().chunks(LINE) {
        out.extend(line.iter().map(|b| char::from(*b)));
        out.push('\n');
    }
    out + &format!("={:08x}\n{END}\n", crc32fast::hash(&bytes))
}

/// What a chain says, for people, a line for each thing.
pub fn summary(chain: &Chain) -> String {
    let mut out = format!(
        "volume\n  {}\nissued by\n  {}\n",
        chain.volume().0,
        chain.owner()
    );
    for (at, link) in chain.links().iter().enumerate() {
        let terms = &link.terms;
        let below = if terms.scope.subtree {
            ", and all below it"
        } else {
            ""
        };
        let window = &terms.window;
        let lines = [
            format!("to\n  {}", terms.subject),
            format!("object:  {}{below}", terms.scope.object),
            format!("may:     {}", fold(&terms.rights.to_string())),
            format!("from:    {} UTC", calendar::show(window.not_before)),
            format!("until:   {} UTC", calendar::show(window.not_after)),
            format!("depth:   {}", terms.depth),
            format!("serial:  {}", terms.serial),
        ];
        out += &format!("link {}\n", at + 1);
        let caveats = terms
            .caveats
            .iter()
            .map(|caveat| format!("only:    {caveat}"));
        for line in lines.into_iter().chain(caveats) {
            out += &format!("  {}\n", line.replace('\n', "\n  "));
        }
    }
    out
}

/// Breaks a list of rights before a line gets too long for mail.
fn fold(list: &str) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for word in list.split_inclusive(' ') {
        if column + word.len() > FOLD {
            out.push_str("\n         ");
            column = 0;
        }
        out.push_str(word);
        column += word.len();
    }
    out
}

/// Reads the text form; whatever stands before and after the block is left alone.
///
/// # Errors
/// [`BadText`].
pub fn read(text: &str) -> Result<Armoured, BadText> {
    if text.len() > MAX_TEXT {
        return Err(BadText::TooLong);
    }
    let lines: Vec<&str> = text.lines().map(bare).collect();
    let mut begins = (0..lines.len()).filter(|at| lines[*at] == BEGIN);
    let begin = begins.next().ok_or(BadText::NoBlock)?;
    if begins.next().is_some() {
        return Err(BadText::SeveralBlocks);
    }
    let block = &lines[begin + 1..];
    let end = block.iter().position(|line| *line == END);
    let block = &block[..end.ok_or(BadText::NoBlock)?];
    let chain = chain(block)?;
    let summary = compare(&lines[..begin], &chain);
    Ok(Armoured { chain, summary })
}

/// A line without what mail programs put around it.
fn bare(line: &str) -> &str {
    line.trim_matches(|c: char| c == '>' || c.is_ascii_whitespace())
}

fn chain(block: &[&str]) -> Result<Chain, BadText> {
    let mut coded = Vec::new();
    for line in block.iter().filter(|line| !line.is_empty()) {
        // Four characters for three bytes, and the sum.
        if coded.len() + line.len() > MAX_BYTES.div_ceil(3) * 4 + 9 {
            return Err(BadText::TooLong);
        }
        coded.extend_from_slice(line.as_bytes());
    }
    let at = coded.len().checked_sub(9).ok_or(BadText::Damaged)?;
    let (coded, sum) = coded.split_at(at);
    let bytes = decode(coded).ok_or(BadText::Damaged)?;
    if sum != format!("={:08x}", crc32fast::hash(&bytes)).as_bytes() {
        return Err(BadText::Damaged);
    }
    Chain::from_bytes(bytes.into()).map_err(BadText::Malformed)
}

/// By words, since mail programs break lines.
fn compare(before: &[&str], chain: &Chain) -> Summary {
    let words = |text: &[&str]| {
        let words = text.iter().flat_map(|line| line.split_ascii_whitespace());
        words.map(String::from).collect::<Vec<_>>()
    };
    let all = words(before);
    let (title, expected) = (words(&[TITLE]), words(&[&summary(chain)]));
    let at = all.windows(title.len()).position(|part| part == title);
    match at {
        None if all.is_empty() => Summary::Missing,
        None => Summary::NotFound,
        Some(at) if all[at + title.len()..] == expected => Summary::True,
        Some(_) => Summary::Untrue,
    }
}

fn encode(bytes: &[u8]) -> String {
    let mut out = String::new();
    for part in bytes.chunks(3) {
        let word = (0..3).fold(0, |word, i| {
            word << 8 | u32::from(part.get(i).copied().unwrap_or(0))
        });
        for i in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * i) & 63) as usize];
            out.push(if i > part.len() {
                '='
            } else {
                char::from(digit)
            });
        }
    }
    out
}

/// The bytes of their one form; `None` for other text, such as one with bits in the last digit that belong to no byte.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.iter().take_while(|c| **c != b'=').count();
    let padding = text.len() - digits;
    if padding > 2 || text[digits..].iter().any(|c| *c != b'=') {
        return None;
    }
    for part in text[..digits].chunks(4) {
        let mut word = 0_u32;
        for c in part {
            word = word << 6 | ALPHABET.iter().position(|a| a == c)? as u32;
        }
        word <<= 6 * (4 - part.len());
        let bytes = part.len() - 1;
        let [_, read @ ..] = word.to_be_bytes();
        if read[bytes..].iter().any(|b| *b != 0) {
            return None;
        }
        out.extend(&read[..bytes]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 4648, section 10; and what is not the one form is refused.
    #[test]
    fn base64_has_one_form() {
        let examples = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        for (length, text) in examples.iter().enumerate() {
            let bytes = &b"foobar"[..length];
            assert_eq!(encode(bytes), *text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes));
        }
        for text in [
            "Zh==", "Zm9=", "Z===", "====", "Zg=", "Zg==Zg==", "Zm9v Zm9", "Zm-v", "=Zg=",
        ] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(encode(&all).as_bytes()), Some(all));
    }
}
