//! Text for a terminal: safe words, lines within its width, and colour only if wanted.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use rallypoint_protocol::ids::Shown;

pub(super) const BAD: Style = AnsiColor::Red.on_default();
pub(super) const WARN: Style = AnsiColor::Yellow.on_default();
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
pub(super) const STRONG: Style = Style::new().bold();
pub(super) const FAINT: Style = Style::new().dimmed();

/// Longest shown text from a peer, in characters.
const MAX_SHOWN: usize = 2000;

/// Makes a peer's text safe for a terminal, and cuts long text.
pub(super) fn clean(text: &str) -> String {
    let cut = text.char_indices().nth(MAX_SHOWN).map(|(at, _)| at);
    let shown = Shown(&text[..cut.unwrap_or(text.len())]);
    if cut.is_some() { format!("{shown}…") } else { shown.to_string() }
}

/// Text in one style. The text must be [`clean`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) style: Style,
    pub(super) text: String,
}

impl Span {
    pub(super) fn new(style: Style, text: impl Into<String>) -> Self {
        Self { style, text: text.into() }
    }

    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self::new(Style::new(), text)
    }
}

fn width_of(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.text.width()).sum()
}

/// Lines of at most `width` columns.
#[derive(Debug)]
pub(super) struct TextWriter {
    width: usize,
    color: bool,
    lines: Vec<Vec<Span>>,
}

impl TextWriter {
    /// An empty text. Without a width, lines may have any length.
    pub(super) fn new(width: Option<usize>, color: bool) -> Self {
        Self { width: width.filter(|&width| width > 0).unwrap_or(usize::MAX), color, lines: Vec::new() }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// An empty line.
    pub(super) fn gap(&mut self) {
        self.lines.push(Vec::new());
    }

    /// Puts pieces beside each other, two columns apart. A piece that does not fit begins a new line,
    /// `indent` columns in. A piece that is too long for a line is wrapped.
    pub(super) fn pieces(&mut self, indent: usize, pieces: impl IntoIterator<Item = Vec<Span>>) {
        let indent = indent.min(self.width / 4);
        let mut line: Vec<Span> = Vec::new();
        for piece in pieces {
            let (used, wanted) = (width_of(&line), width_of(&piece));
            if line.is_empty() {
                line = piece;
            } else if used.saturating_add(2).saturating_add(wanted) <= self.width {
                line.push(Span::plain("  "));
                line.extend(piece);
            } else {
                self.lines.push(std::mem::take(&mut line));
                match piece.as_slice() {
                    [only] if indent.saturating_add(wanted) > self.width => {
                        self.sentence(indent, indent, only.style, &only.text);
                        line = self.lines.pop().unwrap_or_default();
                    }
                    _ => {
                        line.push(Span::plain(" ".repeat(indent)));
                        line.extend(piece);
                    }
                }
            }
        }
        self.lines.push(line);
    }

    /// A wrapped sentence in one style: the first line is `first` columns in, the others `rest`.
    pub(super) fn sentence(&mut self, first: usize, rest: usize, style: Style, text: &str) {
        if self.width == usize::MAX {
            self.lines.push(vec![Span::plain(" ".repeat(first)), Span::new(style, text)]);
            return;
        }
        let limit = self.width / 4;
        let (first, rest) = (" ".repeat(first.min(limit)), " ".repeat(rest.min(limit)));
        let options = textwrap::Options::new(self.width)
            .initial_indent(&first)
            .subsequent_indent(&rest)
            .word_splitter(textwrap::WordSplitter::NoHyphenation);
        for line in textwrap::wrap(text, options) {
            let words = line.trim_start_matches(' ');
            let margin = &line[..line.len().saturating_sub(words.len())];
            self.lines.push(vec![Span::plain(margin), Span::new(style, words)]);
        }
    }

    /// The whole text; each line has its line end.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let mut left = self.width;
            for span in line {
                let shown = cut(&span.text, left);
                left = left.saturating_sub(shown.width());
                if self.color && span.style != Style::new() {
                    let _ = write!(text, "{}{shown}{}", span.style, span.style.render_reset());
                } else {
                    text.push_str(shown);
                }
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
        text
    }
}

/// The longest start of `text` that is at most `width` columns wide.
pub(super) fn cut(text: &str, width: usize) -> &str {
    let mut used = 0_usize;
    for (at, c) in text.char_indices() {
        used = used.saturating_add(c.width().unwrap_or(0));
        if used > width {
            return &text[..at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_is_left() {
        assert_eq!(clean("a\x1b[2Jb\n\u{202e}c"), "a\\u{1b}[2Jb\\n\\u{202e}c");
        assert_eq!(clean(&"x".repeat(3 * MAX_SHOWN)).chars().count(), MAX_SHOWN + 1);
    }

    #[test]
    fn a_wide_character_is_not_cut_in_half() {
        assert_eq!(cut("節点", 3), "節");
        assert_eq!(cut("ab", 0), "");
    }
}
