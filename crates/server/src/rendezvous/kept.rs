//! The runs and barriers in the journal: a row for each run, for each node of its complete round, and for the
//! last release of each barrier.

use std::collections::HashMap;
use std::sync::Arc;

use crate::stores::{RoundStore, StoreHost};
use rallypoint_journal::{Entries, Image, Row, Table};
use rallypoint_protocol::ids::{Label, RunId, Timestamp};
use rallypoint_rendezvous::barrier::{Barriers, ReleaseRecord};
use rallypoint_rendezvous::{KeptChange, MemberRecord, Rendezvous, Round, RunRecord};

/// The id of a node's row: its rank and its run.
fn member_id(run: &RunId, rank: u32) -> Vec<u8> {
    [&rank.to_be_bytes()[..], run.as_bytes()].concat()
}

/// Appends the rows of a change.
pub(super) fn put(change: &KeptChange, out: &mut Vec<u8>) {
    match change {
        KeptChange::Run(run, record, members) => {
            put_entry(Table::Run, run.as_bytes(), record, out);
            for (rank, member) in members {
                put_entry(Table::Member, &member_id(run, *rank), member, out);
            }
        }
        KeptChange::Forgotten(run, most) => {
            Row::Entry(Table::Run, run.as_bytes(), None).encode(out);
            for rank in 0..*most {
                Row::Entry(Table::Member, &member_id(run, rank), None).encode(out);
            }
        }
    }
}

/// Appends the row of a barrier.
pub(super) fn put_barrier(name: &Label, record: Option<&ReleaseRecord>, out: &mut Vec<u8>) {
    match record {
        Some(record) => put_entry(Table::Barrier, name.as_str().as_bytes(), record, out),
        None => Row::Entry(Table::Barrier, name.as_str().as_bytes(), None).encode(out),
    }
}

/// Restores the barriers from the journal.
pub(super) fn restore_barriers(barriers: &mut Barriers, before: &Image, now: Timestamp) {
    for (name, body) in before.entries.get(&Table::Barrier).into_iter().flatten() {
        let name = std::str::from_utf8(name).ok().and_then(|name| Label::new(name).ok());
        if let (Some(name), Ok(record)) = (name, serde_json::from_slice(body)) {
            barriers.restore(name, record, now);
        }
    }
}

fn put_entry(table: Table, id: &[u8], record: &impl serde::Serialize, out: &mut Vec<u8>) {
    // Records are structs of numbers and texts; they always have a JSON form.
    if let Ok(body) = serde_json::to_vec(record) {
        Row::Entry(table, id, Some(&body)).encode(out);
    }
}

/// Restores the runs from the journal. Returns their complete rounds, with their stores. A round whose store
/// is not open again is restored by its nodes' reports instead.
pub(super) fn restore(
    core: &mut Rendezvous,
    before: &Image,
    stores: &StoreHost,
    now: Timestamp,
) -> Vec<(RunId, Arc<Round>, Option<RoundStore>)> {
    let none = Entries::new();
    let entries = |table| before.entries.get(&table).unwrap_or(&none);
    let mut members = HashMap::<&[u8], Vec<MemberRecord>>::new();
    // The ids begin with the rank, so the members come ordered by rank.
    for (id, body) in entries(Table::Member) {
        if let (Some(run), Ok(member)) = (id.get(4..), serde_json::from_slice(body)) {
            members.entry(run).or_default().push(member);
        }
    }
    let mut rounds = Vec::new();
    for (id, body) in entries(Table::Run) {
        let Ok(record) = serde_json::from_slice::<RunRecord>(body) else {
            tracing::warn!(run.id = %RunId::new(id), "the journal says something of a run that this release \
                                                      cannot read");
            continue;
        };
        let run = RunId::new(id);
        let mut members = members.remove(&**id).unwrap_or_default();
        let mut store = None;
        if let Some((number, held)) = record.store(&members) {
            store = stores.claim(&run, number, held);
            if store.is_none() {
                members.clear();
            }
        }
        if let Some(round) = core.restore(&run, record, members, now) {
            rounds.push((run, round, store));
        }
    }
    rounds
}
