//! Small values in words: durations, ranks, names.

use std::fmt::Write;

use rallypoint_protocol::ids::Elapsed;

/// A duration.
pub(super) fn elapsed(seconds: f64) -> Elapsed {
    Elapsed::of_seconds(seconds)
}

/// The time since the first one: `+31.0 s`.
pub(super) fn after_first(seconds: f64) -> String {
    if (0.0..99.95).contains(&seconds) {
        format!("+{seconds:.1} s")
    } else {
        format!("+{}", elapsed(seconds))
    }
}

/// Ascending numbers as ranges: `2, 5-7, 12`. Shows at most `most` ranges, and then the number of the rest.
pub(super) fn ranges(numbers: impl IntoIterator<Item = u64>, most: usize) -> String {
    let (mut text, mut shown, mut left) = (String::new(), 0, 0_u64);
    let mut range: Option<(u64, u64)> = None;
    let mut put = |(first, last): (u64, u64)| {
        if shown == most {
            left = left.saturating_add(last.saturating_sub(first)).saturating_add(1);
            return;
        }
        let comma = if shown > 0 { ", " } else { "" };
        let dash = if Some(last) == first.checked_add(1) { format!(", {last}") } else { format!("-{last}") };
        let dash = if first == last { String::new() } else { dash };
        let _ = write!(text, "{comma}{first}{dash}");
        shown = usize::saturating_add(shown, 1);
    };
    for n in numbers {
        range = match range {
            Some((first, last)) if Some(n) == last.checked_add(1) => Some((first, n)),
            other => {
                if let Some(whole) = other {
                    put(whole);
                }
                Some((n, n))
            }
        };
    }
    if let Some(whole) = range {
        put(whole);
    }
    if left > 0 {
        let _ = write!(text, " and {left} more");
    }
    text
}

/// At most `most` names, and then the number of the rest. `total` may exceed the number of names.
pub(super) fn names(names: &[String], most: usize, total: usize) -> String {
    let shown = &names[..names.len().min(most)];
    let left = total.max(names.len()).saturating_sub(shown.len());
    match (shown.is_empty(), left) {
        (_, 0) => shown.join(", "),
        (true, left) => left.to_string(),
        (false, left) => format!("{} and {left} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_ranges() {
        assert_eq!(ranges([2, 5, 6, 7, 9, 10], 9), "2, 5-7, 9, 10");
        assert_eq!(ranges([2, 5, 6, 7, 9, 10], 2), "2, 5-7 and 2 more");
        assert_eq!(ranges([], 2), "");
        assert_eq!(ranges([0, u64::MAX], 9), "0, 18446744073709551615");
        assert_eq!(
            ranges([u64::MAX, 3, 1], 1),
            "18446744073709551615 and 2 more",
            "a server may say anything"
        );
    }

    #[test]
    fn names_end_with_how_many_more_there_are() {
        let two = ["a".to_owned(), "b".to_owned()];
        assert_eq!(names(&two, 5, 2), "a, b");
        assert_eq!(names(&two, 5, 4), "a, b and 2 more");
        assert_eq!(names(&two, 1, 2), "a and 1 more");
        assert_eq!(names(&[], 5, 3), "3");
    }
}
