//! Counters: values that are decimal text.

use bytes::Bytes;

/// The text of a counter.
pub(super) fn decimal(number: i64) -> Bytes {
    Bytes::copy_from_slice(itoa::Buffer::new().format(number).as_bytes())
}

/// Reads a counter as PyTorch does: the longest leading decimal integer after blanks and a sign; what follows it is
/// ignored. `None` if there is none or it does not fit. Source: `proto-notes/wire.md`, "Counters".
pub(super) fn parse_counter(text: &[u8]) -> Option<i64> {
    let start = text.iter().position(|b| !matches!(b, b' ' | b'\t'..=b'\r'))?;
    let (negative, digits) = match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    let end = digits.iter().position(|b| !b.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 {
        return None;
    }
    digits[..end].iter().try_fold(0_i64, |sum, digit| {
        // The low half of a digit's byte is its number.
        let digit = i64::from(digit & 0x0f);
        let sum = sum.checked_mul(10)?;
        if negative { sum.checked_sub(digit) } else { sum.checked_add(digit) }
    })
}

#[cfg(test)]
mod tests {
    use super::parse_counter;

    #[test]
    fn counters_are_read_as_pytorch_reads_them() {
        for (text, number) in [
            ("5", Some(5)),
            ("-7", Some(-7)),
            ("12abc", Some(12)),
            ("1.5", Some(1)),
            ("0x10", Some(0)),
            (" 7", Some(7)),
            ("\t\n7", Some(7)),
            ("+5", Some(5)),
            ("007", Some(7)),
            ("5\0", Some(5)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("abc", None),
            ("", None),
            ("-", None),
            ("- 5", None),
            ("\x0012", None),
        ] {
            assert_eq!(parse_counter(text.as_bytes()), number, "{text:?}");
        }
    }
}
