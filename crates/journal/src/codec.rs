//! How numbers and bytes are written in a row: numbers as LEB128, bytes after their length.

/// Why this release cannot read bytes as rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRow {
    /// A newer release wrote a row that must not be skipped.
    #[error("a row of kind {0}, which a newer release of rallypoint has written")]
    Newer(u8),
    /// The bytes end inside a row, or contain an invalid number.
    #[error("a row of kind {0} that cannot be read")]
    Malformed(u8),
}

/// Reads the fields of one row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    left: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.left.split_first()?;
        self.left = rest;
        Some(first)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    /// A number that may be negative.
    pub(super) fn signed(&mut self) -> Option<i64> {
        let folded = self.number()?;
        Some((folded >> 1).cast_signed() ^ (folded & 1).cast_signed().wrapping_neg())
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?.try_into().ok()?;
        let (bytes, rest) = self.left.split_at_checked(len)?;
        self.left = rest;
        Some(bytes)
    }

    /// The outer `None` means that the bytes cannot be read as an option.
    #[expect(clippy::option_option, reason = "not readable, or readable and not there")]
    pub(super) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.byte()? {
            0 => Some(None),
            1 => Some(Some(read(self)?)),
            _ => None,
        }
    }
}

pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    loop {
        match u8::try_from(number) {
            Ok(last @ ..0x80) => return out.push(last),
            _ => out.push(number.to_le_bytes()[0] | 0x80),
        }
        number >>= 7;
    }
}

pub(super) fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_number(out, (number << 1 ^ number >> 63).cast_unsigned());
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(value.is_some().into());
    if let Some(value) = value {
        put(out, value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_come_back(number: u64, signed: i64) {
            let mut out = Vec::new();
            put_number(&mut out, number);
            put_signed(&mut out, signed);
            let mut fields = Fields::new(&out);
            prop_assert_eq!((fields.number(), fields.signed()), (Some(number), Some(signed)));
            prop_assert_eq!(fields.byte(), None);
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_none() {
        let mut most = [0xff; 10];
        most[9] = 1;
        assert_eq!(Fields::new(&most).number(), Some(u64::MAX));
        most[9] = 2;
        assert_eq!(Fields::new(&most).number(), None);
        assert_eq!(Fields::new(&[0x80; 11]).number(), None);
    }
}
