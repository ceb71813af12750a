//! Text that a peer chose. One rule for all of it: names in the API must be plain, and text from the traffic
//! of a store is escaped when it is shown. So nobody can forge a log line or control a terminal.

use std::fmt::{Display, Formatter, Result as Written, Write};
use std::sync::Arc;

/// Whether `c` is shown as what it is: not a control character, a line end, an invisible character, or one
/// that changes the direction of text. These are the characters that Rust's own `Debug` leaves unescaped,
/// with quotes and backslashes.
pub fn is_plain(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    // Tested behind a letter, because accents are not escaped there.
    let mut text = [b'a', 0, 0, 0, 0];
    let len = c.encode_utf8(&mut text[1..]).len();
    std::str::from_utf8(&text[..=len]).is_ok_and(|text| text.escape_debug().nth(1) == Some(c))
}

/// `1 node`, `3 nodes`.
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(n: N, one: &str, many: &str) -> String {
    format!("{n} {}", if n == N::from(1) { one } else { many })
}

/// A text in which everything that is not [plain](is_plain) is escaped.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(pub &'a str);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let mut rest = self.0;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| !is_plain(*c)) {
            write!(f, "{}{}", &rest[..at], c.escape_default())?;
            rest = &rest[at..][c.len_utf8()..];
        }
        f.write_str(rest)
    }
}

/// Bytes of a key or an id made fit for a log line: lossy UTF-8, [`Shown`], at most 200 characters.
#[derive(Debug, Clone, Copy)]
pub struct ShownKey<'a>(pub &'a [u8]);

impl Display for ShownKey<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        const SHOWN: usize = 200;
        let head = &self.0[..self.0.len().min(4 * SHOWN)];
        let text = String::from_utf8_lossy(head);
        let cut = text.char_indices().nth(SHOWN).map_or(text.len(), |(at, _)| at);
        Shown(&text[..cut]).fmt(f)?;
        if cut < text.len() || head.len() < self.0.len() { f.write_char('…') } else { Ok(()) }
    }
}

/// A short text that a peer chose: a node's id, a name, a role. It has 1 to 256 bytes of [plain](is_plain)
/// characters, and copies are cheap.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Arc<str>);

/// A text that is not a [`Label`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must have 1 to {} bytes and no character that controls, hides or turns text", Label::MOST)]
pub struct BadLabel;

impl Label {
    /// Most bytes.
    const MOST: usize = 256;

    /// Takes the text.
    pub fn new(text: &str) -> Result<Self, BadLabel> {
        let fits = (1..=Self::MOST).contains(&text.len()) && text.chars().all(is_plain);
        if fits { Ok(Self(text.into())) } else { Err(BadLabel) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl serde::Serialize for Label {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Label {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::new(&text).map_err(serde::de::Error::custom)
    }
}

impl Display for Label {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_key_is_short_and_has_no_control_characters() {
        assert_eq!(ShownKey(b"/a\nb\x00").to_string(), "/a\\nb\\u{0}");
        let long = ShownKey(&[b'x'; 5000]).to_string();
        assert_eq!(long.chars().count(), 201);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn nothing_that_steers_a_terminal_or_hides_is_plain() {
        assert_eq!(Shown("a\x1b[2Jb\n\u{7}\u{9b}c").to_string(), "a\\u{1b}[2Jb\\n\\u{7}\\u{9b}c");
        assert_eq!(Shown("\u{202e}evil\u{2066}").to_string(), "\\u{202e}evil\\u{2066}");
        for hidden in
            ['\u{200b}', '\u{2028}', '\u{feff}', '\u{ad}', '\u{e0041}', '\u{61c}', '\u{7f}', '\u{a0}']
        {
            assert!(!is_plain(hidden), "{hidden:?}");
        }
        let plain = "größe gro\u{308}ße 節点 узел नोड โหนด 🚀 \"a\\b'";
        assert_eq!(Shown(plain).to_string(), plain);
        assert!(Label::new(plain).is_ok() && Label::new("a\nb").is_err() && Label::new("").is_err());
    }

    #[test]
    fn every_character_is_plain_or_escaped_to_plain_ones() {
        for c in '\0'..=char::MAX {
            let shown = Shown(c.encode_utf8(&mut [0; 4])).to_string();
            assert!(shown.chars().all(is_plain), "{c:?}");
            assert!(!c.is_control() || shown.is_ascii(), "{c:?}");
        }
    }
}
