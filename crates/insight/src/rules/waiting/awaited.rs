//! Waits for what one process is to write.

use super::{AGAIN, Group, UNTOLD};
use crate::facts::{Meeting, TrackedNode, TrackedRun};
use crate::identity::processes::Graph;
use crate::reason::{
    But, Code, ENDED, Names, OTHER_PORT, Place, Presence, Reason, Sighting, TAKEN_OUT, if_some,
};
use rallypoint_api::RunKind;
use rallypoint_protocol::ids::{ConnId, Elapsed, counted};
use rallypoint_protocol::keys::{ExpectedWriter, Wanted};

/// All others have found this server.
const OWN_STORE: &str = "look at rank 0: has it started, does it reach this server, or does it host a store \
                         of its own, as it does without TORCHELASTIC_USE_AGENT_STORE=True?";

impl Graph<'_> {
    /// They wait for what one process is to write.
    pub(super) fn awaited(
        &self,
        run: &TrackedRun,
        meeting: &Meeting,
        Group { waits, since, .. }: &Group,
        asked: &Wanted,
        seen: &Sighting,
    ) -> Option<Reason> {
        let who = self.writer(Some(run), *waits.first()?, asked)?;
        let (is_unseen, is_plain) = (seen.is_unseen(), seen.is_plain());
        let is_node = matches!(asked.writer, ExpectedWriter::Node(_));
        let (is_static, has_replaced) = (run.kind == RunKind::Static, meeting.replaced().next().is_some());
        let (gone, missing) = match asked.writer {
            ExpectedWriter::Rank(_) if seen.but == Some(But::MetBefore) && !has_replaced => {
                Default::default()
            }
            ExpectedWriter::Rank(rank) => self.absent(run, meeting, Some(rank)),
            // A complete round counts all of them, also those that have not told their roles.
            ExpectedWriter::Node(rank) if run.kind == RunKind::C10d => {
                let is_without = |other: u32| other != rank && !run.round.roles.contains(&other);
                let others = run.participants().filter(|node| node.rank.is_some_and(is_without));
                (self.with_ends(others), Names::default())
            }
            // A static node that has come shows that there are all with lower ranks.
            ExpectedWriter::Node(rank) if is_static && is_unseen => {
                let others = run.never_came().filter(|other| *other != rank);
                (Names::default(), Names::of(others.map(|rank| format!("node {rank}"))))
            }
            _ => Default::default(),
        };
        let is_short = is_unseen || !gone.is_empty() || !missing.is_empty();
        let (ended, elsewhere) = match asked.writer {
            ExpectedWriter::Rank(_) if is_short => {
                (self.ended_near(run, |_| true), self.elsewhere(run, meeting))
            }
            ExpectedWriter::Rank(_) => Default::default(),
            ExpectedWriter::Node(_) if !is_static || !is_unseen => Default::default(),
            // The other ranks of an NCCL job before have told no rank either.
            _ => (self.ended_near(run, |it| it.only_counted_itself), Names::default()),
        };
        let staying = self.staying(run, meeting, &asked.writer);
        // Without agents the processes of before make their group again.
        let is_same = !has_replaced && matches!(asked.writer, ExpectedWriter::Rank(_));
        let before = if is_same { "not published again either" } else { "in the attempt before" };
        let replaced = meeting.replaced().filter(|_| !is_static && !staying.is_empty());
        let replaced = Names::of(replaced.map(|rank| run.rank_label_in(meeting, rank)));
        let place = if is_node { Place::Node } else { Place::Rank };
        // Another meeting is in no bar, and an address that was dropped counts twice or not at all.
        let has_dropped = meeting.live().any(|(_, info)| info.is_dropped());
        let is_shown = meeting.number == run.world.shown().number && !has_dropped;
        let of = Some(meeting).filter(|_| is_shown && matches!(asked.writer, ExpectedWriter::Rank(_)));
        let published = if_some(of, |of| format!("{} published; ", Place::Rank.have(of.joined(), of.size)));
        let is_untold = matches!(seen.presence, Presence::NeverSeen | Presence::Unknown);
        let is_taken_out = |conn: &ConnId| run.node_of(*conn).is_some_and(TrackedNode::is_out);
        let look_at = match () {
            () if is_node && waits.iter().all(is_taken_out) => TAKEN_OUT,
            () if !staying.is_empty() && !is_same => But::MetBefore.look_at(),
            () if is_same
                && asked.writer.rank().is_some_and(|rank| meeting.not_again().any(|it| it == rank)) =>
            {
                AGAIN
            }
            () if !elsewhere.is_empty() => OTHER_PORT,
            () if (is_untold || seen.presence == Presence::NotAgain)
                && is_plain
                && seen.behind.is_none()
                && !ended.is_empty() =>
            {
                ENDED
            }
            () if is_untold
                && is_plain
                && seen.behind.is_none()
                && asked.writer == ExpectedWriter::Rank(0)
                && !run.has_agents() =>
            {
                OWN_STORE
            }
            () => seen.look_at(place),
        };
        let waited = Elapsed(self.now.since(*since));
        let waiting = counted(waits.len(), "process waits", "processes wait");
        let reason = Code::Waiting
            .says(format!("{published}for {waited} waiting for {who}: {}", seen.says(self.now)))
            .look_at(look_at)
            .held(&Names::of_some(waits, |conn| self.waiter(*conn)))
            .misses(place, &Names::of([who]), seen.clone())
            .lacks("gone too", place, &gone, Presence::Closed)
            .lacks("not published either", place, &missing, run.unseen().presence)
            .lacks(before, place, &staying, Presence::Connected)
            .and("come in the place of another process", &replaced)
            .lacks(UNTOLD, Place::Process, &ended, Presence::Closed)
            .and("in another store", &elsewhere)
            .then(&format!("; {waiting} for {}", asked.what));
        Some(if let Some(of) = of { reason.joined(Place::Rank, of.joined(), of.size) } else { reason })
    }
}
