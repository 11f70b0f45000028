//! Sizes and numbers as people write them: with a letter for a power of a step.

/// Bytes, such as `4096`, `500M` or `1TiB`, in steps of 1,024; not none.
pub fn bytes(text: &str) -> Result<u64, String> {
    match number(text, 1024)? {
        0 => Err("it has to be more than nothing".into()),
        bytes => Ok(bytes),
    }
}

/// How much a cache may take.
pub fn cache(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)?;
    let may = (4 << 20..=64 << 30).contains(&bytes);
    may.then_some(bytes)
        .ok_or_else(|| "it may be from 4M to 64G".into())
}

/// A number with a letter for a power of the step.
pub fn number(text: &str, step: u64) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = &text[digits.len()..];
    let power = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        _ => return Err(format!("{unit:?} is no unit; there are K, M, G, T and P")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is no number; write it as 500M"))?;
    let in_all = step
        .checked_pow(power)
        .and_then(|unit| number.checked_mul(unit));
    in_all.ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are read as people write them; what is none is refused.
    #[test]
    fn sizes_are_read() {
        assert_eq!(bytes("10G"), Ok(10 << 30));
        assert_eq!(bytes("1TiB"), Ok(1 << 40));
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(number("1M", 1000), Ok(1_000_000));
        assert_eq!(cache("4M"), Ok(4 << 20));
        assert_eq!(cache("64G"), Ok(64 << 30));
        assert!(cache("3M").is_err() && cache("65G").is_err());
        for wrong in [
            "",
            "0",
            "0G",
            "G",
            "ten",
            "1.5G",
            "-1",
            "1X",
            "99999999999P",
            "20000P",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
