//! Processes that are connected, and of which nothing comes that should.

use std::time::Duration;

use crate::facts::{LATEST, RunKey, TrackedNode, TrackedRun};
use crate::identity::processes::Graph;
use crate::reason::{Code, Finding, Names, Place, Presence, Sighting};
use rallypoint_api::Seen;
use rallypoint_protocol::ids::{Elapsed, Timestamp};
use rallypoint_protocol::keys::{ExpectedWriter, Wanted, wanted};

impl Graph<'_> {
    /// Who waits for what another process writes reads it as soon as it is there. These have not.
    pub(crate) fn of_answered(&self) -> Vec<(Option<RunKey>, Finding)> {
        /// A link that broke without a word is known to be away by then.
        const BROKEN: Duration = Duration::from_secs(8);
        let found = self.store.answered.keys().filter_map(|&conn| {
            let (ago, wait) = self.store.answered(conn, self.now).filter(|(ago, _)| ago.0 >= BROKEN)?;
            let Wanted { writer, what, .. } = wanted(wait.view.missing.first()?);
            let place = match writer {
                ExpectedWriter::Node(_) => Place::Node,
                ExpectedWriter::Rank(_) | ExpectedWriter::NcclRankZero => Place::Rank,
                _ => return None,
            };
            let is_back = self.jobs.links.back_for(wait.view.peer, self.now).is_some();
            let is_here = !is_back && !self.jobs.links.is_away(wait.view.peer);
            let (run, who) = (self.run_waiting(&wait.view).filter(|_| is_here)?, self.who(conn));
            let since = Timestamp(self.now.0.saturating_sub(ago.0));
            let says =
                format!("{who} waited for {what}, was answered {ago} ago, and has asked for nothing since");
            let nodes = Names::of([who.clone()]);
            let reason =
                Code::NodeSilent.says(says).misses(place, &nodes, Sighting::at(Presence::Silent, since));
            Some((Some(run), Finding::new(reason, who, since).seen([self.evidence(conn, wait)])))
        });
        found.collect()
    }

    /// Nodes of a c10d run that have missed heartbeats, and those of them that others have taken out of the
    /// round. While an agent waits here it sends none.
    pub(crate) fn without_heartbeat(&self, run: &TrackedRun) -> Option<Finding> {
        let late = run.late_after().unwrap_or(LATEST);
        let is_awake = self.now.since(self.jobs.awake_since) >= late;
        // When all were frozen for so long each takes itself for dead: they read the state, and send no
        // heartbeats any more.
        let heard_at = |node: &TrackedNode| node.conn.and_then(|conn| self.store.heard.get(&conn));
        let asked = |node: &TrackedNode| heard_at(node).is_some_and(|at| self.now.since(*at) < late);
        let may_be_late = |node: &&TrackedNode| is_awake && node.is_there() && !node.finished && !asked(node);
        let client = |node: &TrackedNode| node.conn.and_then(|conn| self.store.clients.get(&conn));
        let may_send = |node: &&TrackedNode| {
            client(node).is_some_and(|client| {
                !self.store.waited_just_now(client, self.now)
                    && !self.jobs.links.is_away(client.peer)
                    && self.jobs.links.back_for(client.peer, self.now).is_none_or(|since| since >= late)
            })
        };
        let is_out = |node: &&TrackedNode| node.is_silent() && node.round == run.round.number;
        let is_old = |node: &&TrackedNode| self.now.since(node.last_heartbeat) >= late;
        let out = run.lingering().filter(is_out).filter(is_old);
        let late_nodes = run.late_nodes(self.now).filter(may_be_late);
        let silent: Vec<_> = late_nodes.chain(out).filter(may_send).collect();
        let heard = silent.iter().map(|node| node.last_heartbeat).max()?;
        let nodes = Names::of(silent.iter().map(|node| node.label()));
        let (about, silent_for) = (nodes.to_string(), Elapsed(self.now.since(heard)));
        let reason = Code::NodeSilent
            .says(format!("{nodes}: connected, last heartbeat {silent_for} ago"))
            .misses(Place::Node, &nodes, Sighting::at(Presence::Silent, heard));
        let heard_of = silent.iter().map(|node| node.evidence(Seen::Heard, None, node.last_heartbeat));
        Some(Finding::new(reason, about, heard).seen(heard_of))
    }
}
