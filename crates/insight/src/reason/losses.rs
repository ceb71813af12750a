//! Nodes and ranks that are gone, in one form: who, how that was seen, and how many are left.

use super::words::{
    GAVE_UP_ON, after_giving_up, are_left, connections, if_some, of_whole, the_link, whole_of,
};
use super::{Code, Last, Names, Reason, Unit};
use crate::presence::{CUT_OFF, FROZEN, Place};
use crate::totals::Tally;
use rallypoint_api::Severity;
use rallypoint_protocol::ids::Elapsed;

/// Their connections closed, or were given up.
pub(crate) struct Loss {
    pub(crate) nodes: Names,
    /// Their connections were given up: their links were away for too long, or their hosts did not answer.
    pub(crate) cut_off: bool,
    /// The links that were away.
    pub(crate) links: Names,
    /// How far the run had got then.
    pub(crate) when: &'static str,
    pub(crate) left: u32,
    pub(crate) expected: Option<u32>,
    pub(crate) unit: Unit,
    /// They had given up on others just before.
    pub(crate) gave_up: bool,
}

/// Worker processes ended before all ranks had met.
pub(crate) struct RankLoss {
    /// In the order in which they ended.
    pub(crate) ranks: Names,
    /// Ranks of the same nodes that had not come: one of those may have failed first.
    pub(crate) unseen: Names,
    pub(crate) joined: u32,
    pub(crate) world_size: Option<u32>,
    /// All of them had given up on others just before.
    pub(crate) gave_up: bool,
    /// The ranks that had met before go on, and nobody waits for it.
    pub(crate) go_on: bool,
}

impl Reason {
    /// Every process of a run without agents has ended. `first`: what ended before all others, and how long
    /// before the last one.
    pub(crate) fn all_ended(processes: u32, ran: Elapsed, first: Option<(String, Elapsed)>) -> Self {
        let whose = whole_of(processes, Unit::Process);
        let first = if_some(first, |(rank, before)| format!("; first: {rank}, {before} before the last"));
        Code::RunEnded
            .says(format!("ended: {whose} closed after {ran}{first}"))
            .predicate()
            .expects(Some(processes))
            .fact("processes", processes)
    }

    /// They are gone, of what is told as `field`.
    fn gone(who: &Names, how: &str, left: &str, field: &str, last: Last) -> Self {
        let what = if field == "ranks" { Place::Rank } else { Place::Node };
        Code::Lost.says(format!("{who}: {how}; {left}")).fact(field, who).misses(what, who, last)
    }

    /// Victims of others are no error.
    fn after_others(self, gave_up: bool) -> Self {
        if gave_up { self.severe(Severity::Warning).look_at(GAVE_UP_ON) } else { self }
    }

    /// Another node took them out of the round, as no heartbeat came for so long, though their connections
    /// had not closed.
    pub(crate) fn taken_out(nodes: &Names, by: &str, silent: Elapsed, left: u32) -> Self {
        let how = format!("last heartbeat {silent} ago, taken out of the round by {by}");
        Self::gone(nodes, &how, &are_left(left, None, Unit::Node), "nodes", Last::TakenOut)
            .look_at(FROZEN)
            .fact("by", by)
            .fact("silent", silent)
    }
}

impl From<Loss> for Reason {
    fn from(loss: Loss) -> Self {
        let Loss { nodes, cut_off, links, when, left, expected, unit, gave_up } = loss;
        let n = nodes.count();
        let how = match (cut_off, links.is_empty()) {
            (false, _) => connections(n).to_owned(),
            (true, false) => format!("{} of {links} away for longer than --link-grace", the_link(&links)),
            (true, true) if n > 1 => "given up, as the hosts did not answer".to_owned(),
            (true, true) => "given up, as the host did not answer".to_owned(),
        };
        let how = format!("{how}{when}{}", after_giving_up(gave_up, &nodes));
        let last = if cut_off { Last::Unreachable } else { Last::Closed };
        let reason = Self::gone(&nodes, &how, &are_left(left, expected, unit), "nodes", last)
            .expects(expected)
            .fact("left", left)
            .fact("cut_off", cut_off)
            .fact("links", links);
        let reason = if cut_off { reason.look_at(CUT_OFF) } else { reason.tally(Tally::Deaths(n)) };
        reason.after_others(gave_up)
    }
}

impl From<RankLoss> for Reason {
    fn from(RankLoss { ranks, unseen, joined, world_size, gave_up, go_on }: RankLoss) -> Self {
        let n = ranks.count();
        let how = match n {
            1 => "connection closed before all ranks had published",
            _ => "connections closed, in this order, before all ranks had published",
        };
        let how = format!("{how}{}", after_giving_up(gave_up, &ranks));
        let met = if go_on { ", and had met before" } else { "" };
        let left = format!("{} left{met}", of_whole(joined, world_size));
        let title = "of their nodes not published";
        let reason = Self::gone(&ranks, &how, &left, "ranks", Last::Closed)
            .look_at(
                "look at the log of what ended first: torchrun ends the other ranks of its node then; the \
                 ranks of other nodes wait for them until their time-outs",
            )
            .joined(joined, world_size)
            .lacks(title, "unseen", Place::Rank, &unseen, Last::NeverSeen)
            .after_others(gave_up);
        if go_on { reason.severe(Severity::Warning) } else { reason }
    }
}
