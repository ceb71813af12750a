//! The faults of a plan.

use super::super::plan::{Fault, Keeping, Micros};
use super::{Checked, Event, Piece, Way, World};
use rallypoint_server::clock::invented;

impl World {
    pub(super) fn fault(&mut self, n: usize) -> Checked {
        let (_, fault) = self.plan.faults[n];
        trace!(self, "FAULT {fault:?}");
        match fault {
            Fault::Kill { away } => {
                if self.server.is_some() {
                    self.crash(false)?;
                    self.at(away, Event::Start);
                }
            }
            Fault::PowerCut { away } => {
                if self.server.is_some() {
                    self.crash(true)?;
                    self.at(away, Event::Start);
                }
            }
            Fault::KillInWrite { steps, away } => {
                if self.server.is_some() && self.plan.keeping != Keeping::Nothing {
                    self.disk.disk.stop_after(steps as usize);
                    self.stopped_for = away;
                }
            }
            Fault::Break { relay } => self.cut(relay, true, true),
            Fault::HalfOpen { relay } => self.cut(relay, true, false),
            Fault::HalfOpenAtServer { relay } => self.cut(relay, false, true),
            Fault::Partition { relay, lasts } => {
                self.tally.breaks += 1;
                self.relays[relay].partitioned_until = self.now + lasts;
            }
            Fault::KillRelay { relay, away } => self.kill_relay(relay, away),
            Fault::KillClient { client } => {
                if !self.clients[client].is_gone() {
                    self.client_closes(client)?;
                }
            }
            Fault::Full { lasts } => {
                let room = self.random.below(300);
                self.fill(Some(room as usize));
                let steps = if self.plan.seed % 4 == 1 { 3 } else { 0 };
                self.at(lasts, Event::Freed { steps });
            }
            Fault::Refuses { what, lasts } => {
                self.is_full = true;
                self.disk.disk.refuse(Some(what));
                self.at(lasts, Event::NotRefused);
            }
            Fault::CalendarSet { ahead } => invented::calendar_is_ahead(ahead),
            Fault::MemoryUsedUp { leaves, lasts } => {
                self.use_up_memory(leaves);
                self.at(lasts, Event::MemoryIsFree);
            }
        }
        Ok(())
    }

    /// A relay's connection breaks. `at_relay` and `at_server` say which end notices at once.
    pub(super) fn cut(&mut self, relay: usize, at_relay: bool, at_server: bool) {
        let Some(conn) = self.relays[relay].conn else { return };
        self.tally.breaks += 1;
        if let Some(it) = self.conns.get_mut(&conn) {
            for pipe in [&mut it.up, &mut it.down] {
                // A part of the bytes in flight still arrives.
                let arrives = self.random.below(pipe.pieces.len() as u64 + 1) as usize;
                pipe.pieces.truncate(arrives);
            }
            it.up.is_dead = !at_server;
            it.down.is_dead = !at_relay;
        }
        if at_relay {
            self.put(conn, Way::ToRelay, Piece::End);
        }
        if at_server {
            self.put(conn, Way::ToServer, Piece::End);
        }
    }

    pub(super) fn kill_relay(&mut self, relay: usize, away: Micros) {
        let it = &mut self.relays[relay];
        if it.end.take().is_none() {
            return;
        }
        it.was_killed = true;
        let clients: Vec<usize> =
            std::mem::take(&mut it.clients).into_values().map(|(client, _)| client).collect();
        let conn = it.conn.take();
        for client in clients {
            self.client_dies(client, "its relay is gone");
        }
        if let Some(conn) = conn {
            if let Some(it) = self.conns.get_mut(&conn) {
                it.relay_has = false;
            }
            self.put(conn, Way::ToServer, Piece::End);
        }
        self.at(away, Event::StartRelay(relay));
    }
}
