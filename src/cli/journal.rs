//! `rallypoint journal`: shows the contents of a server's journal, in a folder or an etcd. Reads only.

use std::io::Write;

use anyhow::Context;

use super::etcd::{EtcdFlags, JournalPlace};
use super::terminal::say;
use super::{Outcome, UsageError};
use rallypoint_journal::segment::{Pieces, commits};
use rallypoint_journal::{Damage, Reached, Row, SessionId, SessionRow, rows};
use rallypoint_protocol::ids::{ShownKey, counted};
use rallypoint_server::journal::etcd::{Etcd, Log};
use rallypoint_server::journal::{Look, Segments, read};

/// Look into the journal of a server, without changing it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Tell whether all of it can be read, and what it holds; exit code 1 if it is damaged
    Check {
        #[command(flatten)]
        journal: Place,
    },
    /// Print every row that can be read, one a line
    Dump {
        #[command(flatten)]
        journal: Place,
    },
}

#[derive(Debug, clap::Args)]
struct Place {
    /// The folder, or etcd://HOST:2379,HOST:2379/PREFIX
    #[arg(value_name = "PATH|etcd://…")]
    path: JournalPlace,

    #[command(flatten)]
    etcd: EtcdFlags,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let (journal, act): (_, fn(&dyn Segments) -> anyhow::Result<Outcome>) = match self.action {
            Action::Check { journal } => (journal, check),
            Action::Dump { journal } => (journal, dump),
        };
        journal.etcd.check(&journal.path)?;
        match &journal.path {
            JournalPlace::Off => Err(UsageError("write the folder, or etcd://…".into()).into()),
            JournalPlace::Folder(path) => {
                let place = || path.display().to_string();
                act(&Look::at(path).with_context(place)?).with_context(place)
            }
            JournalPlace::Etcd(members, prefix) => {
                let etcd = Etcd::look(journal.etcd.config(members, prefix))?;
                act(&Log::look(&etcd)).with_context(|| etcd.place())
            }
        }
    }
}

fn damaged(journal: &dyn Segments, damage: &Damage) -> Outcome {
    say(format_args!("damaged: {}, byte {}: {}", journal.name(damage.segment), damage.at, damage.what));
    Outcome::NotDone
}

fn check(journal: &dyn Segments) -> anyhow::Result<Outcome> {
    let mut bytes = 0_u64;
    let read = read(journal, |_, segment| bytes = bytes.saturating_add(segment.len() as u64))?;
    let recovered = match read {
        Ok(recovered) => recovered,
        Err(damage) => {
            return Ok(damaged(journal, &damage));
        }
    };
    let image = &recovered.image;
    let mut out = std::io::stdout().lock();
    writeln!(out, "whole: {} in {bytes} bytes", counted(recovered.commits, "commit", "commits"))?;
    for torn in &recovered.torn {
        let (segment, at, len) = (journal.name(torn.segment), torn.at, torn.len);
        writeln!(out, "torn end: {segment}, byte {at}: {len} bytes that were never acknowledged")?;
    }
    if let Some(since) = recovered.unfinished {
        let segment = journal.name(since);
        writeln!(out, "not counted: {segment} and later, begun after an error and not complete")?;
    }
    for (id, store) in &image.stores {
        let (port, owner) = (store.port, ShownKey(&store.owner));
        let (keys, queues) = (counted(store.keys.len() as u64, "key", "keys"), store.queues.len());
        writeln!(out, "store {id} on port {port} {owner}: {keys}, {queues} queues")?;
    }
    Ok(Outcome::Done)
}

fn dump(journal: &dyn Segments) -> anyhow::Result<Outcome> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    let read = read(journal, |number, segment| {
        for commit in commits(&segment.get(0, segment.len()), number) {
            for row in rows(commit.rows) {
                let place = format_args!("{number}:{}", commit.at);
                let line = match &row {
                    Ok(Some(row)) => writeln!(out, "{place} {}", words(row)),
                    Ok(None) => writeln!(out, "{place} a row of a newer release"),
                    Err(bad) => writeln!(out, "{place} {bad}"),
                };
                written = std::mem::replace(&mut written, Ok(())).and(line);
            }
        }
    })?;
    // It is no failure if the reader closes the pipe early.
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    if let Err(damage) = read {
        return Ok(damaged(journal, &damage));
    }
    Ok(Outcome::Done)
}

/// A row in words.
fn words(row: &Row<'_>) -> String {
    let gone = |id: &[u8]| format!("`{}` is gone", ShownKey(id));
    match row {
        Row::Epoch(epoch) => format!("start {}", epoch.number),
        Row::Whole(since) => format!("all was written again since segment {since}"),
        Row::Store(id, Some(open)) => {
            format!("store {id} is open on port {} {}", open.port, ShownKey(open.owner))
        }
        Row::Store(id, None) => format!("store {id} is closed"),
        Row::Key(store, key, None) => format!("store {store} key {}", gone(key)),
        Row::Key(store, key, Some(it)) => {
            let writer = it.writer.map_or(String::new(), |writer| format!(" by connection {writer}"));
            format!("store {store} key `{}` = `{}`{writer}", ShownKey(key), ShownKey(it.value))
        }
        Row::Part(store, key, at, more) => {
            format!("store {store} key `{}` is longer: from byte {at} on `{}`", ShownKey(key), ShownKey(more))
        }
        Row::Item(store, key, number, item) => {
            format!("store {store} queue `{}` item {number} = `{}`", ShownKey(key), ShownKey(item))
        }
        Row::Queue(store, key, first, next) => {
            format!("store {store} queue `{}` has items {first} to {next}, not included", ShownKey(key))
        }
        Row::Client(store, client, None) => format!("store {store} connection {client} is gone"),
        Row::Client(store, client, Some(_)) => format!("store {store} connection {client} is of a job"),
        Row::Read(store, client, group, Some((first, last))) => {
            format!("store {store} connection {client} has read {first} to {last} of `{}`", ShownKey(group))
        }
        Row::Read(store, client, group, None) => {
            format!("store {store} connection {client} has read nothing of `{}`", ShownKey(group))
        }
        Row::Unread(store, Some(group)) => format!("store {store} group {}", gone(group)),
        Row::Unread(store, None) => format!("store {store}: nobody has read any address"),
        Row::Job(store, _) => format!("store {store} job"),
        Row::Link(link, Some(it)) => format!("link {link} of relay `{}`", ShownKey(it.name)),
        Row::Link(link, None) => format!("link {link} is gone"),
        Row::Session(id, Some(SessionRow::Open { store, conn, client })) => {
            format!("{} of {}, connection {conn} of store {store}", session(*id), ShownKey(client))
        }
        Row::Session(id, Some(SessionRow::Over)) => format!("{} is over", session(*id)),
        Row::Session(id, None) => format!("{} is gone", session(*id)),
        Row::Reached(id, it) => {
            let Reached { applied, replied, acknowledged, .. } = it;
            format!(
                "{}: {applied} bytes applied, {replied} answered, {acknowledged} of them delivered",
                session(*id)
            )
        }
        Row::Reply(id, at, bytes) => format!("{}: {} bytes of replies from {at}", session(*id), bytes.len()),
        Row::Entry(table, id, Some(_)) => format!("{} `{}`", table.name(), ShownKey(id)),
        Row::Entry(table, id, None) => format!("{} {}", table.name(), gone(id)),
    }
}

fn session(SessionId { link, no }: SessionId) -> String {
    format!("link {link} session {no}")
}
