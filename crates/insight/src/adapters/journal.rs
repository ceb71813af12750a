//! What is remembered of the runs when the server is restarted: since when what is, and what happened before.
//! Their keys, nodes and waits are in the store, where the next server sees them again. These it would not.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;
use crate::facts::{MOST_MOMENTS, RunKey, Runs, TimelineEntry, TrackedNode, TrackedRun};
use crate::reason::{Finding, Names};
use crate::rules::losses;
use rallypoint_api::{RunKind, RunState};
use rallypoint_protocol::ids::{RunId, Timestamp};

/// A run's past. Times are Unix times in seconds, as the next server has another clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Past {
    first_seen: f64,
    state: RunState,
    state_since: f64,
    round: u64,
    started: Option<f64>,
    completed: Option<f64>,
    /// When its workers had met.
    met: Option<f64>,
    /// Who was there.
    #[serde(default)]
    there: Names,
    /// What happened last: when, the code of it, and in words.
    timeline: Vec<(f64, String, String)>,
}

impl Past {
    /// What happened before the last of these is forgotten with the server.
    const MOMENTS: usize = 16;

    /// Whether its processes had met and it was not over: they may go on without a server.
    pub(crate) fn goes_on(&self) -> bool {
        !self.state.is_over() && (self.completed.is_some() || self.met.is_some())
    }
}

impl TrackedRun {
    /// What is to be remembered of it.
    pub(crate) fn past(&self, epoch: Epoch) -> Past {
        let unix = |at: Option<Timestamp>| at.map(|at| epoch.unix(at));
        let forgotten = self.timeline.len().saturating_sub(Past::MOMENTS);
        let moments = self.timeline.iter().skip(forgotten);
        let nodes = self.participants().filter(|node| node.gone.is_none()).map(TrackedNode::told);
        let ranks = || Names::of_some(self.world.shown().live(), |(rank, it)| it.label(rank));
        Past {
            first_seen: epoch.unix(self.first_seen),
            state: self.state,
            state_since: epoch.unix(self.state_since),
            round: self.round.number,
            started: unix(self.round.started),
            completed: unix(self.round.completed),
            met: unix(self.world.shown().met),
            there: if self.has_agents() { Names::of(nodes) } else { ranks() },
            timeline: moments.map(|it| (epoch.unix(it.at), it.code.clone(), it.text.clone())).collect(),
        }
    }

    /// It is the run of this past, seen again by the next server.
    pub(crate) fn recall(&mut self, past: &Past, epoch: Epoch) {
        let earlier = |at: &mut Timestamp, was: f64| *at = epoch.at(was).min(*at);
        let earlier_if = |at: &mut Option<Timestamp>, was: Option<f64>| {
            if let (Some(at), Some(was)) = (at, was) {
                earlier(at, was);
            }
        };
        earlier(&mut self.first_seen, past.first_seen);
        if self.state == past.state {
            earlier(&mut self.state_since, past.state_since);
        }
        if self.round.number == past.round {
            let is_told = self.told_start == self.round.started;
            earlier_if(&mut self.round.started, past.started);
            earlier_if(&mut self.round.completed, past.completed);
            let shown = self.world.shown_at();
            if let Some(meeting) = self.world.meetings.get_mut(shown) {
                earlier_if(&mut meeting.met, past.met);
                earlier_if(&mut meeting.first_met, past.met);
            }
            if is_told {
                self.told_start = self.round.started;
            }
        }
        let since = std::mem::take(&mut self.timeline);
        for (at, code, text) in past.timeline.iter().take(MOST_MOMENTS) {
            self.remember(epoch.at(*at), code, text.clone());
        }
        for TimelineEntry { at, code, text } in since {
            self.remember(at, &code, text);
        }
        self.touch();
    }
}

/// The row of a run: its id, and its past. Without that there is nothing to remember any more.
pub type PastRow = (Vec<u8>, Option<Past>);

/// What the last server knew of its runs, and what the next one will.
#[derive(Debug, Default)]
pub(crate) struct Pasts {
    /// Runs that have not been seen since this server started.
    of_before: BTreeMap<RunKey, Past>,
    /// Stores of such runs that had met: without agents, their ranks have no run's id.
    without_agents: BTreeSet<u16>,
    /// The runs that have a row.
    kept: BTreeSet<RunKey>,
    /// When this server looked first.
    looked: Option<Timestamp>,
}

/// Whoever comes again to a server that was restarted has done so within this time.
const COMES_BACK: Duration = Duration::from_secs(30);
/// For how long it is told that nobody has come back.
const NOT_BACK_SHOWN: Duration = Duration::from_hours(1);

impl Pasts {
    /// Runs to which nobody has come back, whether their keys went with those who had written them or not.
    pub(crate) fn not_back(&self, runs: &Runs, now: Timestamp) -> Vec<(RunKey, Finding)> {
        let is_told = |at: &Timestamp| (COMES_BACK..NOT_BACK_SHOWN).contains(&now.since(*at));
        let Some(looked) = self.looked.filter(is_told) else { return Vec::new() };
        let found = self.of_before.iter().filter_map(|(key, past)| {
            // Agents of the c10d backend need the store all the time.
            let needs_it = runs.get(key).is_some_and(|run| run.kind == RunKind::C10d);
            let may_go_on = past.goes_on() && !needs_it;
            Some((key.clone(), losses::not_back(key, &past.there, may_go_on, looked)?))
        });
        found.collect()
    }

    pub(crate) fn restore(&mut self, rows: impl Iterator<Item = PastRow>) {
        self.of_before = rows.filter_map(|(id, past)| Some((run_of(&id)?, past?))).collect();
        self.kept = self.of_before.keys().cloned().collect();
    }

    /// Gives the runs that are seen again their pasts. The others are over, or go on without the server.
    pub(crate) fn recall(&mut self, runs: &mut Runs, epoch: Epoch, now: Timestamp) {
        if self.looked.is_none() {
            let had_met = self.of_before.iter().filter(|(key, past)| key.id().is_some() && past.goes_on());
            self.without_agents = had_met.filter_map(|(key, _)| key.port()).collect();
        }
        let looked = *self.looked.get_or_insert(now);
        self.without_agents.retain(|&port| {
            let Some(ranks) = runs.get_mut(&RunKey::Store { port, id: None }) else { return true };
            // Else it was there besides.
            if ranks.first_seen > looked {
                ranks.life.had_met_before = Some(looked);
            }
            false
        });
        let up = now.since(looked);
        self.of_before.retain(|key, past| {
            match runs.get_mut(key) {
                // The rendezvous shows its runs when their nodes ask again.
                None if key.port().is_none() => return up < COMES_BACK,
                Some(run) if run.kind == RunKind::Announced => return up < COMES_BACK,
                None => return !past.state.is_over(),
                Some(run) if up.is_zero() || key.port().is_none() => {
                    run.recall(past, epoch);
                    return run.life.ended_with_server && !past.state.is_over();
                }
                Some(run) if run.restored.is_some() => return run.is_empty(),
                // It comes anew, or a part of it.
                Some(run) => run.life.had_met_before = Some(looked),
            }
            false
        });
    }

    pub(crate) fn take_changed(&mut self, runs: &mut Runs, epoch: Epoch) -> Vec<PastRow> {
        let of_before = &self.of_before;
        let gone = self.kept.extract_if(.., |key| !runs.contains_key(key) && !of_before.contains_key(key));
        let mut rows: Vec<PastRow> = gone.map(|key| (row_id(&key), None)).collect();
        // An announcement is made again: there is nothing to remember of it.
        for (key, run) in runs.iter_mut().filter(|(_, run)| run.kind != RunKind::Announced) {
            if std::mem::replace(&mut run.kept_version, run.version) != run.version {
                if !self.kept.contains(key) {
                    self.kept.insert(key.clone());
                }
                rows.push((row_id(key), Some(run.past(epoch))));
            }
        }
        rows
    }

    /// The next rows that there are, behind the one with this id.
    pub(crate) fn some(&self, runs: &Runs, after: Option<&[u8]>, most: usize, epoch: Epoch) -> Vec<PastRow> {
        let behind = after.and_then(run_of).map_or(Unbounded, Excluded);
        let past = |key: &RunKey| match runs.get(key) {
            Some(run) => Some(run.past(epoch)),
            None => self.of_before.get(key).cloned(),
        };
        self.kept.range((behind, Unbounded)).take(most).map(|key| (row_id(key), past(key))).collect()
    }
}

/// Names a run in the journal: its kind, the port of its store, and its id.
pub(crate) fn row_id(key: &RunKey) -> Vec<u8> {
    let kind = match key {
        RunKey::Id(_) => b'n',
        RunKey::Store { id: Some(_), .. } => b'i',
        RunKey::Store { id: None, .. } => b's',
    };
    let id = key.id().map_or(&b""[..], RunId::as_bytes);
    [&[kind][..], &key.port().unwrap_or(0).to_be_bytes(), id].concat()
}

/// The run of a row, if there is such a kind of runs.
pub(crate) fn run_of(row_id: &[u8]) -> Option<RunKey> {
    let (&[kind, high, low], id) = row_id.split_first_chunk()?;
    let (port, id) = (u16::from_be_bytes([high, low]), RunId::new(id));
    Some(match kind {
        b'n' => RunKey::Id(id),
        b'i' => RunKey::Store { port, id: Some(id) },
        b's' => RunKey::Store { port, id: None },
        _ => return None,
    })
}
