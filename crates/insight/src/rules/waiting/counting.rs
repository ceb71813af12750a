//! Hosts of stores that count who comes, and go on when all have.

use std::time::Duration;

use super::UNTOLD;
use crate::facts::{Meeting, RunKey, TrackedRun, Waiting};
use crate::identity::processes::Graph;
use crate::reason::{Code, ENDED, Finding, Names, OTHER_PORT, Place, Presence, Reason, SAME_WORLD_SIZE};
use rallypoint_protocol::ids::{ConnId, Elapsed, counted};
use rallypoint_store::Counted;

impl Graph<'_> {
    /// What is said of a host that counts who comes, and of those that wait for it. `waiters` has the host.
    pub(super) fn counts(
        &self,
        of: Option<(&TrackedRun, &Meeting)>,
        host: ConnId,
        came: Counted,
        waiters: usize,
    ) -> Option<Reason> {
        /// It reads the number every 10 ms, and goes on when it is large enough.
        const GOES_ON: Duration = Duration::from_secs(2);
        const PAUSES: Duration = Duration::from_millis(200);
        let run = of.map(|(run, _)| run);
        let of_agents = run.filter(|run| run.has_agents());
        let of_ranks = of.filter(|_| of_agents.is_none());
        let of_live = of_ranks.filter(|(_, meeting)| meeting.is_live());
        let expected = of_live.and_then(|(run, meeting)| run.world.agreed(meeting));
        let asks_for_more = expected.is_some_and(|expected| came.clients >= expected);
        if (asks_for_more || came.ago >= PAUSES) && came.unchanged < GOES_ON {
            return None;
        }
        let (gone, missing) = match (of_agents, of_ranks) {
            (Some(run), _) => {
                let missing = run.never_came().map(|rank| format!("node {rank}"));
                (self.with_ends(run.participants()), Names::of(missing))
            }
            (None, Some((run, meeting))) if !asks_for_more => self.absent(run, meeting, None),
            _ => Default::default(),
        };
        let of_missing = of_ranks.filter(|_| !missing.is_empty());
        let silent = of_missing.map(|(run, meeting)| self.may_be_ranks(run, meeting)).unwrap_or_default();
        let elsewhere = of_missing.map(|(run, meeting)| self.elsewhere(run, meeting)).unwrap_or_default();
        let passed = run.filter(|_| !missing.is_empty()).map(|run| self.ended_near(run, |_| true));
        let passed = passed.unwrap_or_default();
        let connected = if asks_for_more {
            let connected = Place::Process.have(came.clients, None);
            format!("{connected}, as many as the others count on, so it counts on more")
        } else {
            Place::Process.have(came.clients, expected)
        };
        let host_label = self.host_label(host, run);
        // The others may have waited for longer.
        let waited = Elapsed(self.now.since(self.store.waits.get(&host)?.since));
        let text = format!(
            "{host_label} has waited {waited} until all processes of the job have connected: {connected}"
        );
        let look_at = match () {
            () if asks_for_more => SAME_WORLD_SIZE,
            () if !elsewhere.is_empty() => OTHER_PORT,
            () if !gone.is_empty() || !passed.is_empty() => ENDED,
            () => Code::Waiting.rule().look_at,
        };
        let others = waiters.saturating_sub(1);
        let waits = match others {
            0 => String::new(),
            _ => format!("; {} for it", counted(others, "other process waits", "other processes wait")),
        };
        let place = if of_agents.is_some() { Place::Node } else { Place::Rank };
        let title = if silent.is_empty() { "missing" } else { "not published" };
        let reason = Code::Waiting
            .says(text)
            .look_at(look_at)
            .held(&Names::of([host_label]))
            .joined(Place::Process, came.clients, expected)
            .lacks("gone", place, &gone, Presence::Closed)
            .lacks(title, place, &missing, Presence::NeverSeen)
            .may_be("connected, and told no rank here", silent)
            .lacks(UNTOLD, Place::Process, &passed, Presence::Closed)
            .and("in another store", &elsewhere);
        Some(reason.then(&waits))
    }

    /// Hosts of which nothing else is known: nobody else has come, or several jobs may be theirs.
    pub(super) fn hosts_of_no_run(&self) -> Vec<(Option<RunKey>, Finding)> {
        let is_of_none = |wait: &&Waiting| {
            self.store.clients.get(&wait.view.conn).is_none_or(|client| client.run.is_none())
        };
        let hosts = self.store.waits.values().filter(is_of_none);
        let hosts = hosts.filter_map(|wait| Some((wait, wait.view.counted?)));
        let found = hosts.filter_map(|(wait, counted)| {
            let host = wait.view.conn;
            let reason = self.counts(None, host, counted, 1)?;
            let about = format!("those that {host:?} counts");
            Some((None, Finding::new(reason, about, wait.since).seen([self.evidence(host, wait)])))
        });
        found.collect()
    }
}
