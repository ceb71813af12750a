//! Processes that are connected, and of which nothing comes that should.

use std::time::Duration;

use crate::facts::{RunKey, TrackedNode, TrackedRun};
use crate::identity::processes::Graph;
use crate::reason::{Code, Finding, Hold, Names, Place, Presence, Sighting};
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
            let is_back = self.links.back_for(wait.view.peer, self.now).is_some();
            let is_here = !is_back && !self.links.is_away(wait.view.peer);
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
    pub(crate) fn without_heartbeat(&self, run: &TrackedRun) -> Vec<Finding> {
        let late = run.late_after();
        let is_awake = late.is_some_and(|late| self.now.since(self.awake_since) >= late);
        let late = late.unwrap_or_default();
        // When all were frozen for so long each takes itself for dead: they read the state, and send no
        // heartbeats any more.
        let asked = |node: &TrackedNode| {
            let at = node.conn.and_then(|conn| self.store.heard.get(&conn));
            at.is_some_and(|at| self.now.since(*at) < late)
        };
        let may_be_late = |node: &&TrackedNode| is_awake && node.is_there() && !node.finished && !asked(node);
        let client = |node: &TrackedNode| node.conn.and_then(|conn| self.store.clients.get(&conn));
        let may_send = |node: &&TrackedNode| {
            client(node).is_some_and(|client| {
                !self.store.waited_just_now(client, self.now)
                    && !self.links.is_away(client.peer)
                    && self.links.back_for(client.peer, self.now).is_none_or(|since| since >= late)
            })
        };
        let silent: Vec<_> = run.late_nodes(self.now).filter(may_be_late).filter(may_send).collect();
        let is_out = |node: &&TrackedNode| node.is_silent() && node.round == run.round.number;
        let out = || run.lingering().filter(is_out).filter(may_send);
        let out_since = out().map(|node| node.membership_since).max();
        let (again, out): (Vec<_>, Vec<_>) =
            out().partition(|node| node.last_heartbeat > node.membership_since);
        let silent = silent.into_iter().chain(again).collect();
        // `is_told`: an earlier explanation says that they were taken out.
        let told = |silent: Vec<&TrackedNode>, out: &str, is_told: bool| {
            let heard = silent.iter().map(|node| node.last_heartbeat).max()?;
            let since = out_since.filter(|_| is_told).unwrap_or(heard);
            let nodes = Names::of(silent.iter().map(|node| node.label()));
            let about = nodes.to_string();
            let silent_for = Elapsed(self.now.since(heard));
            let reason = Code::NodeSilent
                .says(format!("{nodes}: connected, last heartbeat {silent_for} ago{out}"))
                .misses(Place::Node, &nodes, Sighting::at(Presence::Silent, heard))
                .when(is_told, |reason| reason.hold(Hold::Lasting));
            let heard_of = silent.iter().map(|node| node.evidence(Seen::Heard, None, node.last_heartbeat));
            Some(Finding::new(reason, about, since).seen(heard_of))
        };
        let out = told(out, "; others have taken them out of the round", true);
        let told = [told(silent, "", false), out];
        told.into_iter().flatten().collect()
    }
}
