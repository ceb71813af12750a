//! What insight says about links.

use super::super::super::rough::STRANGER;
use super::super::{Checked, World, relay_of};
use super::Moment;
use rallypoint_api::Explanation;
use rallypoint_insight::testing::{missing, yes};
use rallypoint_store::testing::model::Act;

impl World {
    /// The wait of a client, as far as the server can know it: a request that is held up on its way is not
    /// known.
    pub(super) fn asked(&self, client: usize) -> Option<&Act> {
        let it = &self.clients[client];
        let no = it.waits()?;
        // The reference does not contain requests to the stores of rounds.
        let has_arrived = self.reference.come(client).next > no || self.excused.contains(&client);
        // An answer in flight has already ended the wait.
        let is_over = self.reference.is_answered(client, no);
        (!is_over && (has_arrived || !self.may_be_stuck(client))).then(|| &it.issued[no])
    }

    /// Whether the server may not know what a client did last, because it has not yet noticed that the link
    /// is away.
    pub(super) fn may_be_stuck(&self, client: usize) -> bool {
        const NOTICED_AFTER: f64 = 9.0;
        let (from, now) = (self.seconds() - NOTICED_AFTER, self.seconds());
        let relay = self.clients[client].plan.relay;
        let is_up = |moment: &Moment| relay.is_none_or(|relay| moment.up[relay]);
        from < 0.0 || self.words.past.any_since(from, now, is_up)
    }

    /// Whether bytes pass between a relay and the server.
    pub(super) fn is_up(&self, relay: usize) -> bool {
        let it = &self.relays[relay];
        let has_line = |conn: &u32| {
            self.server
                .as_ref()
                .is_some_and(|server| server.lines.get(conn).is_some_and(|line| line.line.is_some()))
        };
        it.partitioned_until <= self.now
            && it.conn.filter(has_line).and_then(|conn| self.conns.get(&conn)).is_some_and(|conn| {
                conn.stuck_until <= self.now
                    && conn.relay_has
                    && conn.server_has
                    && !conn.up.is_dead
                    && !conn.down.is_dead
            })
    }

    pub(super) fn some_link_was_away(&self) -> Checked {
        self.was(|moment| moment.up.iter().any(|up| !up), "no link was away")
    }

    pub(super) fn check_said_of_links(&self, said: &Explanation) -> Checked {
        let links = if said.code == "link_away" { missing(&said.facts, None) } else { Vec::new() };
        let (strangers, relays): (Vec<String>, Vec<String>) =
            links.into_iter().partition(|name| name.starts_with(STRANGER));
        yes(strangers.is_empty() || !self.plan.rough.is_empty(), "no stranger was there")?;
        let relays = relays.iter().map(|name| relay_of(name).ok_or("no relay has this name"));
        let relays = relays.collect::<Result<Vec<usize>, _>>()?;
        match said.code.as_str() {
            "link_away" if !missing(&said.facts, Some("away")).is_empty() => {
                relays.iter().try_for_each(|&relay| self.was(|moment| !moment.up[relay], "it is there"))
            }
            "link_away" => {
                let was_away = |&relay: &usize| self.relays[relay].was_long_away;
                yes(relays.iter().all(was_away), "it was not away for so long")
            }
            "waiting_at_barrier" => self.check_said_of_barrier(said),
            "waiting_for_key" => {
                let is_there = self.clients.iter().any(|client| !client.issued.is_empty());
                yes(is_there || !strangers.is_empty(), "nobody waits")
            }
            "gave_up" => yes(self.clients.iter().any(crate::client::Client::is_gone), "nobody has ended"),
            "ranks_ended" => self.no_rank_was_there(),
            _ => Err("nothing of that kind is so".into()),
        }
    }
}
