//! What has been said about the runs, and which of it the subscribers do not have yet.

use std::collections::BTreeMap;

use super::epoch::Epoch;
use super::explanation_log::{Change, ExplanationLog};
use super::run::RunKey;
use rallypoint_api::{RunGone, RunSummary};

/// What has been said, what has changed, and which versions of the runs the subscribers have.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) log: ExplanationLog,
    changes: Vec<Change>,
    shown: BTreeMap<RunKey, u64>,
}

impl Told {
    /// Changes kept until they are taken.
    const MOST_CHANGES: usize = 16_384;

    pub(super) fn new(explain_after: std::time::Duration, epoch: Epoch) -> Self {
        let log = ExplanationLog::new(explain_after, epoch);
        Self { log, changes: Vec::new(), shown: BTreeMap::new() }
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn tell(&mut self, change: Change) {
        if self.changes.len() < Self::MOST_CHANGES {
            self.changes.push(change);
        }
    }

    /// Whether the subscribers have this version of a run.
    pub(super) fn is_shown(&self, key: &RunKey, version: u64) -> bool {
        self.shown.get(key) == Some(&version)
    }

    pub(super) fn show(&mut self, key: RunKey, summary: RunSummary) {
        self.shown.insert(key, summary.version);
        self.tell(Change::Run(summary));
    }

    pub(super) fn forget(&mut self, key: &RunKey, run_id: impl FnOnce() -> String) {
        self.log.forget(key);
        if self.shown.remove(key).is_some() {
            self.tell(Change::RunGone(RunGone { run_id: run_id(), store: key.port() }));
        }
    }
}
