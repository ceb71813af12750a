//! What is remembered of a run when the server is restarted: since when what is, and what happened before.
//!
//! Its keys, nodes and waits are in the store, where the next server sees them again. These it would not.

use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;
use crate::facts::run::TrackedRun;
use crate::facts::run::limits::MOST_MOMENTS;
use crate::facts::run::round::TimelineEntry;
use rallypoint_api::{RunKind, RunState};
use rallypoint_protocol::ids::Timestamp;

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
    /// What happened last: when, the code of it, and in words.
    timeline: Vec<(f64, String, String)>,
}

impl Past {
    /// What happened before the last of these is forgotten with the server.
    const MOMENTS: usize = 16;

    /// Whether its processes had met and it was not over: they may go on without a server.
    pub(crate) fn goes_on(&self) -> bool {
        !self.is_over() && (self.completed.is_some() || self.met.is_some())
    }

    /// Whether it was over.
    pub(crate) const fn is_over(&self) -> bool {
        self.state.is_over()
    }
}

impl TrackedRun {
    /// What is to be remembered of it, if that has changed since the last call.
    pub(crate) fn take_past(&mut self, epoch: Epoch) -> Option<Past> {
        let is_changed = std::mem::replace(&mut self.kept_version, self.version) != self.version;
        is_changed.then(|| self.past(epoch))
    }

    /// What is to be remembered of it.
    pub(crate) fn past(&self, epoch: Epoch) -> Past {
        let unix = |at: Option<Timestamp>| at.map(|at| epoch.unix(at));
        let forgotten = self.timeline.len().saturating_sub(Past::MOMENTS);
        let moments = self.timeline.iter().skip(forgotten);
        Past {
            first_seen: epoch.unix(self.first_seen),
            state: self.state,
            state_since: epoch.unix(self.state_since),
            round: self.round.number,
            started: unix(self.round.started),
            completed: unix(self.round.completed),
            met: unix(self.world.shown().met),
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
            let is_told = self.told.start == self.round.started;
            earlier_if(&mut self.round.started, past.started);
            earlier_if(&mut self.round.completed, past.completed);
            earlier_if(&mut self.world.shown_mut().met, past.met);
            if is_told {
                self.told.start = self.round.started;
            }
        }
        let since = std::mem::take(&mut self.timeline);
        for (at, code, text) in past.timeline.iter().take(MOST_MOMENTS) {
            self.remember(epoch.at(*at), code, text.clone());
        }
        for TimelineEntry { at, code, text } in since {
            self.remember(at, &code, text);
        }
        if self.life.ended_with_server && !past.state.is_over() {
            // Agents of the c10d backend need the store all the time.
            self.life.not_back = Some(past.goes_on() && self.kind != RunKind::C10d);
        }
        self.touch();
    }
}
