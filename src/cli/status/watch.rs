//! `--watch`: looks at intervals, until interrupted. It reports an unreachable server and waits for it.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

use super::super::terminal::say;
use super::render::time_of_day;
use super::text_writer::{BAD, FAINT};
use super::text_writer::{TextWriter, clean, cut};
use super::words::elapsed;
use super::{Look, Source, changes, print, print_document, stdout_writer};

/// Text: redrawn in place on a terminal, otherwise one line for each change.
pub(super) async fn text(source: &Source, interval: Duration) -> anyhow::Result<()> {
    if std::io::stdout().is_terminal() {
        redrawn(source, interval).await
    } else {
        line_by_line(source, interval).await
    }
}

/// Documents, one per line, whenever something other than the time has changed.
pub(super) async fn documents(source: &Source, interval: Duration) -> anyhow::Result<()> {
    let mut before = None;
    let mut silence = Silence::default();
    loop {
        let looked = source.document().await.and_then(|body| super::read::<serde_json::Value>(&body));
        silence.tell(source, looked.as_ref().err());
        if let Ok(document) = looked {
            let mut timeless = document.clone();
            timeless.as_object_mut().map(|fields| fields.remove("now"));
            if before.as_ref() != Some(&timeless) {
                print_document(document.to_string().as_bytes())?;
                before = Some(timeless);
            }
        }
        tokio::time::sleep(interval).await;
    }
}

async fn line_by_line(source: &Source, interval: Duration) -> anyhow::Result<()> {
    let mut before: Option<Look> = None;
    let mut silence = Silence::default();
    loop {
        let looked = source.look_again(before.clone()).await;
        silence.tell(source, looked.as_ref().err());
        if let Ok(look) = looked {
            for line in changes::lines(before.as_ref(), &look) {
                print(&line)?;
            }
            before = Some(look);
        }
        tokio::time::sleep(interval).await;
    }
}

/// Reports on stderr when the server is unreachable, and when it is back.
#[derive(Default)]
struct Silence {
    since: Option<Instant>,
}

impl Silence {
    fn tell(&mut self, source: &Source, error: Option<&anyhow::Error>) {
        match (error, self.since) {
            (Some(error), None) => {
                self.since = Some(Instant::now());
                say(format_args!("{error:#}; trying again until it answers"));
            }
            (None, Some(since)) => {
                self.since = None;
                say(format_args!(
                    "{} answers again after {}",
                    source.admin,
                    elapsed(since.elapsed().as_secs_f64())
                ));
            }
            _ => {}
        }
    }
}

async fn redrawn(source: &Source, interval: Duration) -> anyhow::Result<()> {
    let mut screen = Screen::default();
    let mut last: Option<Look> = None;
    let mut gone_since: Option<Instant> = None;
    loop {
        let looked = source.look().await;
        let mut out = stdout_writer();
        match looked {
            Ok(look) => {
                gone_since = None;
                let title = format!("{}, {} UTC", source.admin, time_of_day(look.now()));
                out.sentence(0, 2, FAINT, &title);
                last = Some(look);
            }
            Err(error) => {
                let since = *gone_since.get_or_insert_with(Instant::now);
                let silent = elapsed(since.elapsed().as_secs_f64());
                let error = clean(&format!("{error:#}"));
                out.sentence(0, 2, BAD, &format!("no answer for {silent}, trying again: {error}"));
                if let Some(last) = &last {
                    let from = format!("what was there at {} UTC:", time_of_day(last.now()));
                    out.sentence(0, 2, FAINT, &from);
                }
            }
        }
        if let Some(last) = &last {
            out = last.out(out);
        }
        let (width, height) = terminal_size::terminal_size_of(std::io::stdout())
            .map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)));
        let drawn = screen.draw(&out, width, height);
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(drawn.as_bytes())?;
        stdout.flush()?;
        drop(stdout);
        tokio::time::sleep(interval).await;
    }
}

/// The text on the terminal, so that it can be overwritten.
#[derive(Debug, Default)]
struct Screen {
    lines: usize,
    width: usize,
}

impl Screen {
    /// The bytes that replace the last text by `out`. Text higher than the terminal is cut: lines that have
    /// scrolled away cannot be overwritten.
    fn draw(&mut self, out: &TextWriter, width: usize, height: usize) -> String {
        const CLEAR_ALL: &str = "\x1b[2J\x1b[H";
        const CLEAR_BELOW: &str = "\x1b[J";
        let text = out.text();
        let all: Vec<&str> = text.lines().collect();
        let room = height.saturating_sub(1).max(1);
        let mut drawn = match self.lines {
            // At another width, the terminal wraps the old lines differently: their position is unknown.
            _ if self.width != width && self.width > 0 => CLEAR_ALL.to_owned(),
            0 => String::new(),
            lines => format!("\x1b[{lines}F{CLEAR_BELOW}"),
        };
        let shown = if all.len() > room { room.saturating_sub(1) } else { all.len() };
        for line in &all[..shown] {
            drawn.push_str(line);
            drawn.push('\n');
        }
        if shown < all.len() {
            let more = format!("({} more lines)", all.len().saturating_sub(shown));
            drawn.push_str(cut(&more, width));
            drawn.push('\n');
        }
        self.lines = if shown < all.len() { shown.saturating_add(1) } else { shown };
        self.width = width;
        drawn
    }
}

#[cfg(test)]
mod tests {
    use anstyle::Style;

    use super::*;

    fn out(lines: usize) -> TextWriter {
        let mut out = TextWriter::new(Some(20), false);
        for n in 0..lines {
            out.sentence(0, 0, Style::new(), &format!("line {n}"));
        }
        out
    }

    #[test]
    fn a_screen_is_written_over_from_where_it_began() {
        let mut screen = Screen::default();
        assert_eq!(screen.draw(&out(2), 20, 24), "line 0\nline 1\n");
        assert_eq!(screen.draw(&out(1), 20, 24), "\x1b[2F\x1b[Jline 0\n");
        assert_eq!(screen.draw(&out(1), 30, 24), "\x1b[2J\x1b[Hline 0\n");
    }

    #[test]
    fn what_is_higher_than_the_terminal_is_cut() {
        let mut screen = Screen::default();
        assert_eq!(screen.draw(&out(9), 20, 4), "line 0\nline 1\n(7 more lines)\n");
        assert_eq!(screen.draw(&out(9), 20, 0), "\x1b[3F\x1b[J(9 more lines)\n");
        assert_eq!(screen.draw(&out(0), 20, 4), "\x1b[1F\x1b[J");
    }
}
