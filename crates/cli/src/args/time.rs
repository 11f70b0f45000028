//! Times as people write them: a number and a unit.

use std::time::Duration;

/// How often; `None` for never.
#[derive(Clone, Copy, Debug)]
pub struct Period(pub Option<Duration>);

/// How often keys are taken anew, such as `1500ms`, `15s` or `2m`; 0 needs no unit. An hour at most, and a second at least: what a replica has said
/// under the last key but one does not count any more, and one that lags must have heard it before.
pub fn refresh(text: &str) -> Result<Duration, String> {
    let said = "write it as 1500ms, 15s or 2m; from 1s to 60m, or 0 for never";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let ms = read(text, &[("ms", 1), ("s", 1_000), ("m", 60_000)]);
    match ms.ok_or(said)? {
        0 => Ok(Duration::ZERO),
        ms @ 1_000..=3_600_000 => Ok(Duration::from_millis(ms)),
        _ => Err(said.into()),
    }
}

/// How long a request may wait, such as `500ms` or `10s`: from 250 ms, which is as long as any patience is at the least, to a minute.
pub fn patience(text: &str) -> Result<Duration, String> {
    let ms = read(text, &[("ms", 1), ("s", 1_000)]);
    let ms = ms.filter(|ms| (250..=60_000).contains(ms));
    let ms = ms.ok_or("write it as 500ms or 10s; from 250ms to 60s")?;
    Ok(Duration::from_millis(ms))
}

/// How often replicas recover, such as `90s`, `10m` or `2h`; or `off`.
pub fn period(text: &str) -> Result<Period, String> {
    if text == "off" {
        return Ok(Period(None));
    }
    let seconds = read(text, &[("s", 1), ("m", 60), ("h", 3600)]);
    let seconds = seconds.filter(|s| *s > 0 && *s <= 366 * 86_400);
    match seconds {
        Some(seconds) => Ok(Period(Some(Duration::from_secs(seconds)))),
        None => Err(format!("{text}: write it as 90s, 10m, 2h, or off")),
    }
}

/// A number with one of these units, in what the unit is worth.
fn read(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let mut read = units.iter().filter_map(|(unit, worth)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*worth)
    });
    read.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times have a unit and bounds.
    #[test]
    fn times_have_units() {
        let ms = |text| refresh(text).map(|time| time.as_millis());
        let good = [
            ("0", 0),
            ("0s", 0),
            ("1500ms", 1_500),
            ("15s", 15_000),
            ("60m", 3_600_000),
        ];
        for (text, expected) in good {
            assert_eq!(ms(text), Ok(expected), "{text}");
        }
        for text in [
            "15",
            "",
            "s",
            "-1s",
            "999ms",
            "61m",
            "1.5s",
            "99999999999999999999s",
        ] {
            assert!(ms(text).is_err(), "{text}");
        }
    }

    /// Patience is bounded on both sides.
    #[test]
    fn patience_has_bounds() {
        assert_eq!(
            patience("2500ms"),
            Ok(quorate_node::PATIENCE),
            "the default"
        );
        assert_eq!(patience("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(patience("60s"), Ok(Duration::from_secs(60)));
        for text in ["249ms", "61s", "0", "2m", "2.5s", ""] {
            assert!(patience(text).is_err(), "{text}");
        }
    }

    fn every(text: &str) -> Result<Option<Duration>, String> {
        period(text).map(|period| period.0)
    }

    #[test]
    fn periods_are_as_people_write_them() {
        assert_eq!(every("90s"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(every("2h"), Ok(Some(Duration::from_secs(7200))));
        assert_eq!(every("off"), Ok(None));
        for wrong in [
            "",
            "m",
            "10",
            "0s",
            "-1m",
            "1d",
            "10µ",
            "99999999999999999999s",
        ] {
            assert!(every(wrong).is_err(), "{wrong}");
        }
    }
}
