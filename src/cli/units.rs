//! Durations and sizes as users write them: `30s`, `10m`, `1GiB`, `off`.

use std::time::Duration;

use bytesize::ByteSize;

use rallypoint_api::{BadDuration, PeerDuration};

/// Longer than any program runs. A time up to this limit can be added to any moment. A year has 8766 hours.
const MAX_YEARS: u64 = 100;

/// Parses `30s`, `10m`, `1h 30m`. Refuses a bare number, so that nobody has to guess its unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let time =
        humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 30s or 10m"))?;
    if time > Duration::from_hours(MAX_YEARS * 8766) {
        return Err(format!("must be at most {MAX_YEARS} years"));
    }
    Ok(time)
}

/// Parses a duration above zero.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time.is_zero() { Err("must be more than 0".into()) } else { Ok(time) })
}

/// Parses a duration that is sent to a server.
pub(super) fn peer_duration(text: &str) -> Result<PeerDuration, String> {
    duration(text)?.try_into().map_err(|error: BadDuration| error.to_string())
}

/// Parses a duration above zero that is sent to a server.
pub(super) fn positive_peer_duration(text: &str) -> Result<PeerDuration, String> {
    positive_duration(text)?.try_into().map_err(|error: BadDuration| error.to_string())
}

/// A duration, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MaybeOff(pub(super) Option<Duration>);

impl std::fmt::Display for MaybeOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(time) => humantime::format_duration(time).fmt(f),
            None => f.write_str("off"),
        }
    }
}

/// Parses a duration or `off`.
pub(super) fn duration_or_off(text: &str) -> Result<MaybeOff, String> {
    match text {
        "off" => Ok(MaybeOff(None)),
        _ => duration(text).map(|duration| MaybeOff(Some(duration))),
    }
}

/// Parses `on` or `off`.
pub(super) fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".into()),
    }
}

/// Parses a size into bytes: `8192`, `8KiB`, `1.5GiB`, or `1Gi` as in Kubernetes.
pub(super) fn size(text: &str) -> Result<usize, String> {
    const MOST: u64 = 1_000_000_000_000_000;
    let size: ByteSize = text.trim().parse().map_err(|_| "write it like 8192, 8KiB, 1Gi or 1.5GiB")?;
    let bytes = Some(size.as_u64()).filter(|bytes| (1..=MOST).contains(bytes));
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| "must be between 1 B and 1 PB".into())
}

/// Formats a size so that [`size`] parses it to the same number.
pub(super) fn size_text(bytes: usize) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_read_as_written() {
        assert_eq!(size("8192"), Ok(8192));
        assert_eq!(size("8KiB"), Ok(8192));
        assert_eq!(size("1Gi"), Ok(1 << 30));
        assert_eq!(size("100M"), Ok(100_000_000));
        assert_eq!(size("1.5 GiB"), Ok(1_610_612_736));
        assert!(
            size("many").is_err() && size("0").is_err() && size("-1KiB").is_err() && size("inf").is_err()
        );
        for bytes in [1, 8192, 8 << 20, 3 << 30, 1025] {
            assert_eq!(size(&size_text(bytes)), Ok(bytes));
        }
        assert_eq!(duration("1h 30m"), Ok(Duration::from_mins(90)));
        assert!(duration("30").is_err());
        assert!(duration("100years").is_ok() && duration("101years").is_err());
        assert!(duration("18446744073709551615s").is_err());
        assert!(peer_duration("7d").is_ok() && peer_duration("8d").is_err());
        for maybe in [MaybeOff(None), MaybeOff(Some(Duration::from_mins(90)))] {
            assert_eq!(duration_or_off(&maybe.to_string()), Ok(maybe));
        }
    }
}
