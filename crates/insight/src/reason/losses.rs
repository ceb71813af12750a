//! Nodes and ranks that are gone, in one form: who, how that was seen, and how many are left.

use super::words::{GAVE_UP_ON, after_giving_up, connections, if_some, the_link};
use super::{Code, Names, Reason};
use crate::presence::{CUT_OFF, FROZEN, Place, Presence, Sighting};
use crate::totals::Tally;
use rallypoint_api::Severity;
use rallypoint_protocol::ids::{Elapsed, Timestamp};

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
    pub(crate) of: Place,
    /// When the first of them was lost.
    pub(crate) since: Timestamp,
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
    /// When the first of them ended.
    pub(crate) since: Timestamp,
    /// All of them had given up on others just before.
    pub(crate) gave_up: bool,
    /// The ranks that had met before go on, and nobody waits for it.
    pub(crate) go_on: bool,
}

impl Reason {
    /// Every process of a run without agents has ended. `first`: what ended before all others, and how long
    /// before the last one.
    pub(crate) fn all_ended(processes: u32, ran: Elapsed, first: Option<(String, Elapsed)>) -> Self {
        let whose = Place::Process.connections_of(processes);
        let first = if_some(first, |(rank, before)| format!("; first: {rank}, {before} before the last"));
        Code::RunEnded
            .says(format!("ended: {whose} closed after {ran}{first}"))
            .predicate()
            .expects(Some(processes))
    }

    /// They are gone.
    fn gone(of: Place, who: &Names, how: &str, left: &str, seen: Sighting) -> Self {
        Code::Lost.says(format!("{who}: {how}; {left}")).misses(of, who, seen)
    }

    /// Victims of others are no error.
    fn after_others(self, gave_up: bool) -> Self {
        if gave_up { self.severe(Severity::Warning).look_at(GAVE_UP_ON) } else { self }
    }

    /// Another node took them out of the round, as no heartbeat came for so long, though their connections
    /// had not closed.
    pub(crate) fn taken_out(nodes: &Names, by: &str, heard: Timestamp, now: Timestamp, left: u32) -> Self {
        let silent = Elapsed(now.since(heard));
        let how = format!("last heartbeat {silent} ago, taken out of the round by {by}");
        let seen = Presence::TakenOut.at(heard);
        Self::gone(Place::Node, nodes, &how, &Place::Node.left(left, None), seen).look_at(FROZEN)
    }
}

impl From<Loss> for Reason {
    fn from(loss: Loss) -> Self {
        let Loss { nodes, cut_off, links, when, left, expected, of, since, gave_up } = loss;
        let n = nodes.count();
        let how = match (cut_off, links.is_empty()) {
            (false, _) => connections(n).to_owned(),
            (true, false) => format!("{} of {links} away for longer than --link-grace", the_link(&links)),
            (true, true) if n > 1 => "given up, as the hosts did not answer".to_owned(),
            (true, true) => "given up, as the host did not answer".to_owned(),
        };
        let how = format!("{how}{when}{}", after_giving_up(gave_up, &nodes));
        let seen = Presence::gone(cut_off).at(since);
        let reason = Self::gone(of, &nodes, &how, &of.left(left, expected), seen).joined(of, left, expected);
        let reason = if cut_off { reason.look_at(CUT_OFF) } else { reason.tally(Tally::Deaths(n)) };
        reason.after_others(gave_up)
    }
}

impl From<RankLoss> for Reason {
    fn from(RankLoss { ranks, unseen, joined, world_size, since, gave_up, go_on }: RankLoss) -> Self {
        let n = ranks.count();
        let how = match n {
            1 => "connection closed before all ranks had published",
            _ => "connections closed, in this order, before all ranks had published",
        };
        let how = format!("{how}{}", after_giving_up(gave_up, &ranks));
        let met = if go_on { ", and had met before" } else { "" };
        let left = format!("{}{met}", Place::Rank.left(joined, world_size));
        let title = "of their nodes not published";
        let reason = Self::gone(Place::Rank, &ranks, &how, &left, Presence::Closed.at(since))
            .look_at(
                "look at the log of what ended first: torchrun ends the other ranks of its node then; the \
                 ranks of other nodes wait for them until their time-outs",
            )
            .joined(Place::Rank, joined, world_size)
            .lacks(title, Place::Rank, &unseen, Presence::NeverSeen)
            .after_others(gave_up);
        if go_on { reason.severe(Severity::Warning) } else { reason }
    }
}
