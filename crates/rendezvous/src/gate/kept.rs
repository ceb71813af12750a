//! What a restarted server must know of the gates: which gates have opened, and their pods.
//!
//! A gate where pods still wait is not kept, because they announce themselves every few seconds until it
//! opens. At an open gate no pod does. If it were forgotten, a replaced pod would wait for all others, which
//! never announce themselves again.

use super::{Announcement, Gate, Gates, Opened, PodKey, Pods};
use rallypoint_protocol::ids::Timestamp;

/// A change of one run's gate that the journal must be told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptChange {
    /// The run.
    pub run_id: String,
    /// How it opened. `None` if there is no open gate any more.
    pub opened: Option<Opened>,
    /// Pods that have changed, with their announcements. `None` for a pod that is gone.
    pub pods: Vec<(PodKey, Option<Announcement>)>,
}

impl Gate {
    /// Replaces this gate by an empty one, and returns it. The journal must forget what it keeps of it.
    pub(super) fn begin_anew(&mut self, now: Timestamp) -> Self {
        let last = std::mem::replace(self, Self::new(now));
        if last.opened.is_some() {
            self.moved.extend(last.members.behind(None).cloned());
        }
        last
    }
}

impl Gates {
    /// The changes since the last call.
    pub fn take_kept(&mut self) -> Vec<KeptChange> {
        let unkept = std::mem::take(&mut self.unkept);
        unkept.into_iter().map(|(run_id, pods)| self.change(run_id, pods)).collect()
    }

    fn change(&self, run_id: String, pods: impl IntoIterator<Item = PodKey>) -> KeptChange {
        let gate = self.by_run.get(&run_id).filter(|gate| gate.opened.is_some());
        let with_said = |key: PodKey| {
            let said = gate.and_then(|gate| Some(gate.members.get(&key)?.said.clone()));
            (key, said)
        };
        let pods = pods.into_iter().map(with_said).collect();
        KeptChange { run_id, opened: gate.and_then(Gate::opened), pods }
    }

    /// The next pods of an open gate, once more: at most `most` pods, after `last` in order.
    pub fn kept(&self, run_id: &str, last: Option<&PodKey>, most: usize) -> Option<KeptChange> {
        let gate = self.by_run.get(run_id).filter(|gate| gate.opened.is_some())?;
        let pods: Vec<_> = gate.members.behind(last).take(most).cloned().collect();
        (!pods.is_empty()).then(|| self.change(run_id.to_owned(), pods))
    }

    /// The runs whose gates are open.
    pub fn open_runs(&self) -> Vec<String> {
        let open = self.by_run.iter().filter(|(_, gate)| gate.opened.is_some());
        open.map(|(run_id, _)| run_id.clone()).collect()
    }

    /// Restores an open gate from the journal. Its pods count as alive until they are silent for too long.
    pub fn restore(&mut self, run_id: &str, opened: Opened, pods: &[Announcement], now: Timestamp) {
        if pods.is_empty() || self.by_run.len() >= self.max_runs {
            return;
        }
        let mut members = Pods::default();
        for said in pods {
            members.insert(said, now, self.pod_timeout);
        }
        let largest = members.values().map(|member| member.said.memory()).max().unwrap_or(0);
        self.version = self.version.saturating_add(1);
        let gate = Gate {
            live: members.len(),
            members,
            largest,
            opened: Some(opened),
            is_restored: true,
            has_changed: false,
            version: self.version,
            ..Gate::new(now)
        };
        self.by_run.insert(run_id.to_owned(), gate);
    }
}
