//! Output: a line for people on stderr, data on stdout. Parts of both come from a server, and through it from
//! a peer. So control characters are escaped for a terminal. Pipes and files get data byte for byte.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

use rallypoint_protocol::ids::Shown;

/// Says one line on stderr.
pub(super) fn say(text: impl Display) {
    eprintln!("rallypoint: {}", Shown(&text.to_string()));
}

/// Writes data to stdout.
pub(super) fn write(data: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    if stdout.is_terminal() {
        stdout.write_all(shown_lines(data).as_bytes())?;
    } else {
        stdout.write_all(data)?;
    }
    stdout.flush()
}

/// Like [`write()`], but without an error if the reader closes the pipe early.
pub(super) fn print(data: &[u8]) -> std::io::Result<()> {
    match write(data) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes a line of data to stdout.
pub(super) fn print_line(line: impl Display) -> std::io::Result<()> {
    print(format!("{line}\n").as_bytes())
}

/// Data that is safe for a terminal: line ends and tabs stay; other control characters are escaped.
fn shown_lines(data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    let mut shown = String::with_capacity(text.len());
    for part in text.split_inclusive(['\n', '\t']) {
        let plain = part.strip_suffix(['\n', '\t']).unwrap_or(part);
        shown.push_str(&Shown(plain).to_string());
        shown.push_str(&part[plain.len()..]);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_lines_but_nothing_that_steers_it() {
        assert_eq!(shown_lines(b"a\tb\n\x1b]0;x\x07\r\nc\xff"), "a\tb\n\\u{1b}]0;x\\u{7}\\r\nc\u{fffd}");
        assert_eq!(shown_lines(b""), "");
    }
}
