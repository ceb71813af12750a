//! Bytes in flight between relays and the server.

use bytes::Bytes;

use super::super::jobs::ADDRESSES;
use super::super::mutants::Mutant;
use super::super::plan::MILLI;
use super::super::server::{PORT, ask};
use super::elastic::Process;
use super::{Checked, Event, Piece, Pipe, Way, World};
use rallypoint_protocol::Request;
use rallypoint_store::Observed;

impl World {
    pub(super) fn pipe(&mut self, conn: u32, way: Way) -> Option<&mut Pipe> {
        let conn = self.conns.get_mut(&conn)?;
        Some(match way {
            Way::ToServer => &mut conn.up,
            Way::ToRelay => &mut conn.down,
        })
    }

    pub(super) fn put(&mut self, conn: u32, way: Way, piece: Piece) {
        let slow = self.random.one_in(10);
        let delay = self.random.between(20, if slow { 20 * MILLI } else { MILLI });
        let now = self.now;
        let Some(pipe) = self.pipe(conn, way) else { return };
        pipe.pieces.push_back(piece);
        pipe.last = pipe.last.max(now + delay);
        let after = pipe.last - now;
        self.at(after, Event::Arrive(conn, way));
    }

    /// Puts bytes into a pipe, in pieces that are cut anywhere.
    pub(super) fn put_bytes(&mut self, conn: u32, way: Way, mut bytes: Bytes) {
        while !bytes.is_empty() {
            let all = bytes.len() as u64;
            let len = if self.random.one_in(4) { self.random.between(1, all) } else { all };
            let piece = bytes.split_to(len as usize);
            self.put(conn, way, Piece::Bytes(piece));
        }
    }

    pub(super) fn arrive(&mut self, conn: u32, way: Way) -> Checked {
        let Some(it) = self.conns.get(&conn) else { return Ok(()) };
        let late = if way == Way::ToServer { it.up_comes_at } else { 0 };
        let until = self.relays[it.relay].partitioned_until.max(late);
        if until > self.now {
            // The piece comes later, in its order.
            let again = until - self.now;
            if let Some(it) = self.conns.get_mut(&conn) {
                it.stuck_until = it.stuck_until.max(until);
            }
            self.at(again, Event::Arrive(conn, way));
            return Ok(());
        }
        let Some(pipe) = self.pipe(conn, way).filter(|pipe| !pipe.is_dead) else { return Ok(()) };
        let Some(piece) = pipe.pieces.pop_front() else { return Ok(()) };
        match way {
            Way::ToServer => {
                self.arrives_at_server(conn, piece);
                Ok(())
            }
            Way::ToRelay => self.arrives_at_relay(conn, piece),
        }
    }

    pub(super) fn arrives_at_relay(&mut self, conn: u32, piece: Piece) -> Checked {
        let now = self.timestamp();
        let Some(relay) = self.conns.get(&conn).filter(|it| it.relay_has).map(|it| it.relay) else {
            return Ok(());
        };
        let Piece::Bytes(bytes) = piece else { return self.relay_loses(conn, "closed by the server") };
        let it = &mut self.relays[relay];
        let Some(end) = &mut it.end else { return Ok(()) };
        it.input.extend_from_slice(&bytes);
        let received = end.receive(&mut it.input, now);
        self.deliver(relay)?;
        if let Err(why) = received {
            return Err(format!("relay {relay} does not understand the server: {why}"));
        }
        Ok(())
    }

    pub(super) fn arrives_at_server(&mut self, conn: u32, piece: Piece) {
        if self.conns.get(&conn).is_none_or(|it| !it.server_has) {
            return;
        }
        let Some(server) = &mut self.server else { return };
        let Some(line) = server.lines.get_mut(&conn) else { return };
        match piece {
            Piece::Bytes(bytes) => line.input.extend_from_slice(&bytes),
            Piece::End => {
                self.server_loses(conn, "closed by the relay");
                return;
            }
        }
        self.want_turn(conn);
    }

    pub(super) fn server_loses(&mut self, conn: u32, why: &str) {
        let Some(it) = self.conns.get_mut(&conn).filter(|it| it.server_has) else { return };
        it.server_has = false;
        let relay = it.relay;
        self.put(conn, Way::ToRelay, Piece::End);
        trace!(self, "the server loses connection {conn}: {why}");
        if let Some(server) = &mut self.server
            && let Some(served) = server.lines.remove(&conn)
            && let Some(line) = &served.line
        {
            server.links.lost(line, why);
            if self.mutant == Some(Mutant::LinkMemoryKept) {
                let mut kept = server.stores.budget().reservation();
                kept.set(1);
                std::mem::forget(kept);
            }
        }
        self.take_for_dead(relay);
    }

    /// Planted bugs: what happens to ranks and agents whose link breaks.
    fn take_for_dead(&self, relay: usize) {
        let (Some(mutant), Some(server)) = (self.mutant, &self.server) else { return };
        let ranks = self.job.processes.iter().map(|it| (it.client, ADDRESSES[it.rank].to_owned()));
        let role = |it: &Process| format!("/{}/torchelastic/role_info/{}", it.agent.terms.run, it.node);
        let agents = self.elastic.processes.iter().map(|it| (it.client, role(it)));
        let (victims, is_said_dead): (Vec<(usize, String)>, bool) = match mutant {
            Mutant::AddressSpentTooEarly => (ranks.collect(), false),
            Mutant::RoleSpentTooEarly => (agents.collect(), false),
            Mutant::AwayCountsAsDeath => (ranks.collect(), true),
            Mutant::AgentAwayCountsAsDeath => (agents.collect(), true),
            _ => return,
        };
        for (no, key) in victims {
            let client = &self.clients[no];
            let Some(&conn) = self.known_as.get(&no).filter(|_| client.plan.relay == Some(relay)) else {
                continue;
            };
            if client.is_gone() {
                continue;
            }
            if is_said_dead {
                server.watch.change_insight(|insight, now| {
                    insight.observe(PORT, now, Observed::Gone { conn, used_own_keys: true });
                });
            } else {
                self.is_deaf.set(true);
                ask(&server.listener, &[Request::Delete { key: key.as_bytes() }]);
                self.is_deaf.set(false);
            }
        }
    }
}
