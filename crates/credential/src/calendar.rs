//! Dates in UTC for people, from and to seconds since 1970. After the proleptic Gregorian calendar of ISO 8601.

use alloc::format;
use alloc::string::String;

/// The seconds of a day.
pub const DAY: u64 = 86_400;
/// The days from 0000-03-01 to 1970-01-01.
const EPOCH: u64 = 719_468;
/// The days of 400 years, after which the calendar repeats.
const ERA: u64 = 146_097;
/// The last second that has four digits of a year.
pub const LAST: u64 = 253_402_300_799;

/// The date and time of a second, as `2027-01-31 23:59:59`; later than the year 9999, "the end of time".
pub fn show(seconds: u64) -> String {
    if seconds > LAST {
        return "the end of time".into();
    }
    // Counted from March on, so that the day that some years lack is the last one.
    let days = seconds / DAY + EPOCH;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    let s = seconds % DAY;
    let (hour, minute, second) = (s / 3600, s / 60 % 60, s % 60);
    format!("{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02}")
}

/// The second that `2027-01-31 23:59:59` or, with a `T` and a `Z`, `2027-01-31T23:59:59Z` means; of a date alone, its first second.
/// `None` for what is no date, or one before 1970.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time),
        None => (text, "00:00:00"),
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    if year < 1970 || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = y / 400 * ERA + y % 400 * 365 + y % 400 / 4 - y % 400 / 100
        + (153 * m + 2) / 5
        + day.checked_sub(1)?
        - EPOCH;
    let seconds = days * DAY + hour * 3600 + minute * 60 + second;
    // A day that the month lacks would come out as one of the next month.
    show(seconds).starts_with(date).then_some(seconds)
}

/// Three numbers of so many digits each.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(between);
    let mut out = [0; 3];
    for (number, digits) in out.iter_mut().zip(digits) {
        let part = parts.next()?;
        let right = part.len() == digits && part.bytes().all(|b| b.is_ascii_digit());
        *number = part.parse().ok().filter(|_| right)?;
    }
    parts.next().is_none().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known dates; and every day up to 2400 is the one after the day before, and is read back.
    #[test]
    fn dates_are_right() {
        assert_eq!(show(0), "1970-01-01 00:00:00");
        assert_eq!(show(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(show(4_107_542_399), "2100-02-28 23:59:59");
        assert_eq!(show(4_107_542_400), "2100-03-01 00:00:00");
        assert_eq!(show(LAST), "9999-12-31 23:59:59");
        let mut before = String::new();
        for day in 0..157_000 {
            let text = show(day * DAY + 7);
            assert_eq!(parse(&text), Some(day * DAY + 7));
            assert!(before < text);
            before = text;
        }
    }

    /// What is no date is not taken for another one.
    #[test]
    fn other_text_is_no_date() {
        assert_eq!(parse("2027-01-31"), parse("2027-01-31T00:00:00Z"));
        for text in [
            "",
            "2027",
            "2027-1-31",
            "2027-02-29",
            "2027-13-01",
            "2027-00-10",
            "2027-01-00",
            "1969-12-31",
            "2027-01-31 24:00:00",
            "2027-01-31 10:00",
            "+027-01-31",
            "2027-01-31-01",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
