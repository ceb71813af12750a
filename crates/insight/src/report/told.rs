//! What has been said about the runs, and which of it the subscribers do not have yet.

use std::collections::BTreeMap;

use crate::epoch::Epoch;
use crate::facts::RunKey;
use crate::report::log::{Change, ExplanationLog};
use rallypoint_api::{RunGone, RunSummary};

/// What has been said, what has changed, and which versions of the runs the subscribers have.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) log: ExplanationLog,
    changes: Vec<Change>,
    shown: BTreeMap<RunKey, u64>,
}

impl Told {
    /// Changes kept until they are taken.
    const MOST_CHANGES: usize = 16_384;

    pub(crate) fn new(explain_after: std::time::Duration, epoch: Epoch) -> Self {
        let log = ExplanationLog::new(explain_after, epoch);
        Self { log, changes: Vec::new(), shown: BTreeMap::new() }
    }

    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    pub(crate) fn tell(&mut self, change: Change) {
        if self.changes.len() < Self::MOST_CHANGES {
            self.changes.push(change);
        }
    }

    /// Whether the subscribers have this version of a run.
    pub(crate) fn is_shown(&self, key: &RunKey, version: u64) -> bool {
        self.shown.get(key) == Some(&version)
    }

    pub(crate) fn show(&mut self, key: RunKey, summary: RunSummary) {
        self.shown.insert(key, summary.version);
        self.tell(Change::Run(summary));
    }

    pub(crate) fn forget(&mut self, key: &RunKey, run_id: impl FnOnce() -> String) {
        self.log.forget(key);
        if self.shown.remove(key).is_some() {
            self.tell(Change::RunGone(RunGone { run_id: run_id(), store: key.port() }));
        }
    }
}
