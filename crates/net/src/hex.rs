//! Hexadecimal text of keys and digests in files that people read.

use std::fmt::Write;

/// The lowercase hexadecimal form.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// 32 bytes from exactly 64 hexadecimal digits; `None` for anything else.
pub fn decode32(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = (high * 16 + low) as u8;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written is read back; anything that is not 64 digits is refused.
    #[test]
    fn only_64_digits_are_a_key() {
        let bytes: [u8; 32] = std::array::from_fn(|i| (i * 7) as u8);
        assert_eq!(decode32(&encode(&bytes)), Some(bytes));
        assert_eq!(decode32(&encode(&bytes)[1..]), None);
        assert_eq!(decode32(&"g".repeat(64)), None);
        assert_eq!(decode32(&"+1".repeat(32)), None);
        assert_eq!(decode32(&"ä".repeat(32)), None);
    }
}
