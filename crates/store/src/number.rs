//! Counters: values that are decimal text.

use bytes::Bytes;

/// The text of a counter.
pub(super) fn decimal(number: i64) -> Bytes {
    Bytes::copy_from_slice(itoa::Buffer::new().format(number).as_bytes())
}

/// Reads a counter as PyTorch does: the longest leading decimal integer after blanks and a sign; what follows
/// it is ignored. `None` if there is none or it does not fit. Source: `proto-notes/wire.md`, "Counters".
pub(super) fn parse_counter(text: &[u8]) -> Option<i64> {
    let text = skip(text, |b| matches!(b, b' ' | b'\t'..=b'\r'));
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if !digits.first()?.is_ascii_digit() {
        return None;
    }
    let mut digits = skip(digits, |b| b == b'0').iter().take_while(|b| b.is_ascii_digit());
    digits.try_fold(0_i64, |sum, digit| {
        // The low half of a digit's byte is its number.
        let digit = i64::from(digit & 0x0f);
        let sum = sum.checked_mul(10)?;
        if negative { sum.checked_sub(digit) } else { sum.checked_add(digit) }
    })
}

/// The text behind its first bytes that are to be skipped. A value may begin with megabytes of zeros, so the
/// text is read in pieces that the processor compares as a whole.
fn skip(mut text: &[u8], is_skipped: impl Fn(u8) -> bool) -> &[u8] {
    while let Some((piece, rest)) = text.split_first_chunk::<64>()
        && piece.iter().fold(true, |all, &b| all & is_skipped(b))
    {
        #[cfg(test)]
        super::tests::work::step();
        text = rest;
    }
    let more = text.iter().position(|&b| !is_skipped(b)).unwrap_or(text.len());
    &text[more..]
}

#[cfg(test)]
mod tests {
    use super::super::tests::work;
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
            let long = format!("{}{text}", " ".repeat(1000));
            assert_eq!(parse_counter(long.as_bytes()), number, "{long:?}");
            if text.starts_with(|c: char| c.is_ascii_digit()) {
                let long = format!("{}{text}", "0".repeat(1000));
                assert_eq!(parse_counter(long.as_bytes()), number, "{long:?}");
            }
        }
    }

    #[test]
    fn a_number_behind_megabytes_takes_few_steps() {
        let text = format!("{}{}7", " ".repeat(1 << 20), "0".repeat(1 << 20));
        let steps = work::of(|| assert_eq!(parse_counter(text.as_bytes()), Some(7)));
        assert!(steps < 50_000, "{steps}");
    }
}
