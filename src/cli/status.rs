//! `rallypoint status`: who has joined, who is missing, who waits for what, and why.
//!
//! The server has the answers. This file fetches them, [`render`] puts them into words, and [`watch`] keeps
//! them up to date.

mod bar;
mod changes;
mod render;
mod text_writer;
mod watch;
mod words;

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use anyhow::{Context, bail};
use clap::builder::BoolishValueParser;
use serde::de::DeserializeOwned;

use self::text_writer::{TextWriter, clean};
use super::flags::{AdminPort, Output};
use super::units::duration;
use super::{Outcome, UsageError, run_client, terminal};
use rallypoint_api::{Run, RunKind, RunList, RunState, RunSummary};
use rallypoint_node::client::http::{self, AdminUrl};

const AFTER_HELP: &str = "`#` is there, `x` is gone again, `.` is missing. On a terminal --watch redraws in \
                          place; elsewhere it prints a line when something changes. JSON is the server's \
                          document as it is, with --watch one on each line, whenever it changes. Exit code: \
                          0 shown, 1 no answer or no such run, 2 usage";

/// How many runs are fetched with all details for one overview. The list is enough for the others.
const MAX_DETAILS: usize = 16;

/// Tell who has joined, who is missing, and who waits for what.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    #[command(flatten)]
    admin: AdminPort,

    /// Only this run, with everything that is known about it
    #[arg(long, env = "RALLYPOINT_RUN", value_name = "RUN_ID")]
    run: Option<String>,

    /// Keep showing what changes, until interrupted
    #[arg(long, env = "RALLYPOINT_WATCH", value_parser = BoolishValueParser::new())]
    watch: bool,

    /// Pause between two looks with --watch
    #[arg(long, env = "RALLYPOINT_STATUS_INTERVAL", value_name = "TIME", default_value = "1s",
        value_parser = duration)]
    interval: Duration,

    /// Give up on a request after this time
    #[arg(long, env = "RALLYPOINT_STATUS_TIMEOUT", value_name = "TIME", default_value = "5s",
        value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    output: Output,
}

impl Args {
    pub(super) fn run(mut self) -> anyhow::Result<Outcome> {
        self.run = self.run.filter(|run| !run.is_empty());
        if self.interval < Duration::from_millis(10) {
            return Err(UsageError("--interval is too short; at least 10ms".into()).into());
        }
        let source = Source { admin: self.admin.url(), run: self.run, timeout: self.timeout };
        let done = run_client(async {
            match (self.watch, self.output.is_json()) {
                (true, true) => watch::documents(&source, self.interval).await,
                (true, false) => watch::text(&source, self.interval).await,
                (false, true) => print_document(&source.document().await?),
                (false, false) => print(&source.look().await?.text(stdout_writer())),
            }
        });
        match done {
            Ok(()) => Ok(Outcome::Done),
            // The reader in `rallypoint status | head -1` has seen enough.
            Err(error) if is_broken_pipe(&error) => Ok(Outcome::Done),
            Err(error) => Err(error),
        }
    }
}

/// The source of the documents.
#[derive(Debug)]
struct Source {
    admin: AdminUrl,
    run: Option<String>,
    timeout: Duration,
}

impl Source {
    /// The document as the server sent it: the list, or the requested run.
    async fn document(&self) -> anyhow::Result<Vec<u8>> {
        match &self.run {
            None => self.get("/api/v1/runs").await,
            Some(run) => self.get(&run_path(run, None)).await,
        }
    }

    /// All documents for one text.
    async fn look(&self) -> anyhow::Result<Look> {
        if self.run.is_some() {
            return Ok(Look::One(Box::new(read(&self.document().await?)?)));
        }
        let list: RunList = read(&self.document().await?)?;
        let details = self.details(list.runs.iter().filter(|run| has_more_to_tell(run))).await;
        Ok(Look::All(list, details))
    }

    /// The changed documents since `before`, and the unchanged ones from it.
    async fn look_again(&self, before: Option<Look>) -> anyhow::Result<Look> {
        if self.run.is_some() {
            return self.look().await;
        }
        let list: RunList = read(&self.document().await?)?;
        let mut known = match before {
            Some(Look::All(_, details)) => details,
            _ => HashMap::new(),
        };
        let keys: HashSet<RunKey> = list.runs.iter().map(RunKey::of).collect();
        known.retain(|key, _| keys.contains(key));
        let is_new = |run: &&RunSummary| {
            known.get(&RunKey::of(run)).is_none_or(|whole| whole.summary.version != run.version)
        };
        let new = self.details(list.runs.iter().filter(is_new)).await;
        known.extend(new);
        Ok(Look::All(list, known))
    }

    /// The details of these runs. Omits a run that is gone by now, or that this version cannot read.
    async fn details(&self, runs: impl Iterator<Item = &RunSummary>) -> Details {
        let mut details = HashMap::new();
        for run in runs.take(MAX_DETAILS) {
            let key = RunKey::of(run);
            if let Ok(body) = self.get(&run_path(&run.run_id, Some(&key))).await
                && let Ok(whole) = read::<Run>(&body)
            {
                details.insert(key, Rc::new(whole));
            }
        }
        details
    }

    async fn get(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let admin = &self.admin;
        let answer =
            http::request(admin, "GET", path, self.timeout).await.with_context(|| admin.to_string())?;
        if !answer.is_success() {
            bail!("{admin}{path}: {} ({})", clean(&answer.text()), answer.status);
        }
        Ok(answer.body)
    }
}

fn run_path(run: &str, key: Option<&RunKey>) -> String {
    let query = match key {
        Some(RunKey { store: Some(port), kind, .. }) => format!("?store={port}&kind={}", kind.name()),
        Some(key) => format!("?kind={}", key.kind.name()),
        None => String::new(),
    };
    format!("/api/v1/runs/{}{query}", http::path_part(run))
}

/// The identity of a run: two stores, or two backends, may each have a run with one id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RunKey {
    run_id: String,
    kind: RunKind,
    /// `None` for a native run, whose workers get another store in each round.
    store: Option<u16>,
}

impl RunKey {
    fn of(run: &RunSummary) -> Self {
        let store = run.store.filter(|_| run.kind != RunKind::Native);
        Self { run_id: run.run_id.clone(), kind: run.kind, store }
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(body)
        .context("this version does not understand the answer; does the server have another version?")
}

/// Whether an overview shows more about this run than the list contains.
fn has_more_to_tell(run: &RunSummary) -> bool {
    let ranks_missing =
        run.ranks.as_ref().is_some_and(|ranks| ranks.expected.is_some_and(|n| ranks.joined < n));
    let missing = run.nodes.missing.is_some_and(|n| n > 0);
    let too_few_or_many = run.ranks.as_ref().is_some_and(|ranks| ranks.gone > 0) || run.nodes.redundant > 0;
    // Whether its nodes send heartbeats is in the details.
    let may_be_over = run.kind == RunKind::Native && run.state == RunState::Running;
    let is_told = run.explanation.is_some() || run.notes > 0 || run.exit.is_some();
    // Who closed a run is told, and it may still have waiting nodes.
    let goes_on = !run.state.is_over();
    run.state == RunState::Closed
        || goes_on && (may_be_over || is_told || missing || ranks_missing || too_few_or_many)
}

/// The details of some runs.
type Details = HashMap<RunKey, Rc<Run>>;

/// The documents at one moment.
#[derive(Debug, Clone)]
enum Look {
    All(RunList, Details),
    One(Box<Run>),
}

impl Look {
    fn out(&self, out: TextWriter) -> TextWriter {
        match self {
            Self::All(list, details) => render::runs(list, details, out),
            Self::One(run) => render::run(run, out),
        }
    }

    fn text(&self, out: TextWriter) -> String {
        self.out(out).text()
    }

    fn now(&self) -> f64 {
        match self {
            Self::All(list, _) => list.now,
            Self::One(run) => run.now,
        }
    }
}

/// A text writer for standard output: as wide as the terminal, if there is one, and with colour if wanted
/// (NO_COLOR, CLICOLOR, TERM).
fn stdout_writer() -> TextWriter {
    let stdout = std::io::stdout();
    let color = AutoStream::choice(&stdout) != ColorChoice::Never;
    TextWriter::new(terminal_size::terminal_size_of(&stdout).map(|(width, _)| width.0.into()), color)
}

/// Prints the text of a writer.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    Ok(stdout.flush()?)
}

/// Prints a document of the server as a line.
fn print_document(document: &[u8]) -> anyhow::Result<()> {
    Ok(terminal::write(&[document.trim_ascii_end(), b"\n"].concat())?)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
