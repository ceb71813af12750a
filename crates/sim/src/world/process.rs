//! The process of the server: its start, its death, and what it does in between.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;

use super::super::mutants::{Mutant, rewrite};
use super::super::plan::{Keeping, MILLI, SECOND};
use super::super::server::{Server, ServerLine, now_or_never};
use super::{Checked, Event, GRACE, Piece, TICK_OF_LINK, TICK_OF_SERVER, Way, World, relay_of};
use rallypoint_link::{Frame, SessionNo};
use rallypoint_server::clock::invented;
use rallypoint_server::journal::{CommitNumber, Failed};
use rallypoint_server::link::{Bearer, Turn};
use rallypoint_store::testing::request;

impl World {
    pub(super) fn start_server(&mut self) -> Checked {
        if self.server.is_some() {
            return Ok(());
        }
        self.server_life += 1;
        let left = self.disk.disk.clone();
        let left = rewrite(&left, self.mutant, &self.outstanding_waits());
        self.disk = self.disk.again(left);
        let ahead = self.plan.ahead(self.server_life);
        invented::calendar_is_ahead(ahead);
        trace!(self, "the server starts, its calendar {ahead} s ahead");
        self.server = match Server::start(self.plan.keeping, &self.disk, self.server_life) {
            Ok(server) => Some(server),
            Err(Failed::Io(why)) if !self.is_calm => {
                trace!(self, "it cannot: {why}");
                self.at(SECOND, Event::Start);
                return Ok(());
            }
            Err(why) => return Err(format!("the server cannot start: {why:?}")),
        };
        self.runs.started = self.now;
        self.words.begin();
        self.listen()?;
        self.at(TICK_OF_SERVER, Event::ServerTick(self.server_life));
        Ok(())
    }

    /// The waits of clients behind relays, with their bytes.
    pub(super) fn outstanding_waits(&self) -> BTreeMap<(String, u32), u64> {
        let mut waits = BTreeMap::new();
        for (relay, it) in self.relays.iter().enumerate() {
            for (&SessionNo(no), &(client, _)) in &it.clients {
                let it = &self.clients[client];
                if let Some(wait) = it.waits().filter(|&wait| self.reference.come(client).next == wait) {
                    let bytes = request(&it.issued[wait]).map_or(0, |request| request.0.len() as u64);
                    waits.insert((format!("node-{relay}"), no), bytes);
                }
            }
        }
        waits
    }

    /// The server dies. With `is_power_cut`, the disk keeps only what survives a loss of power.
    pub(super) fn crash(&mut self, is_power_cut: bool) -> Checked {
        if self.server.is_none() {
            return Ok(());
        }
        self.listen()?;
        self.section.clear();
        self.tally.crashes += 1;
        self.is_deaf.set(true);
        let server = self.server.take();
        self.known_as.clear();
        if server.as_ref().is_some_and(|server| server.journal.is_none() || server.is_troubled) {
            self.has_lost = true;
            self.heard_of.clear();
            self.words.forget();
            self.forget_runs();
            let clients = self.clients.iter().enumerate();
            self.excused.extend(clients.filter(|(_, it)| !it.issued.is_empty()).map(|(n, _)| n));
        }
        let troubled = server.as_ref().filter(|server| server.is_troubled).map(|_| self.troubled_since);
        let left =
            if is_power_cut { self.disk.after_power_cut(&mut self.random) } else { self.disk.after_kill() };
        let last = self.disk.last_commit(&left);
        // The journal may have been whole again, and the server may have died before it said so.
        if let Some(whole) = troubled.and_then(|since| self.disk.whole_behind(&left, since)) {
            self.reference.is_whole(whole);
        }
        trace!(self, "the server dies (power cut: {is_power_cut}); what is left ends with commit {last}");
        // Dropping the server ends its sessions and requests. Nobody may notice that.
        self.drop_all_calls();
        self.free_memory();
        drop(server);
        self.is_deaf.set(false);
        self.disk.disk = left;
        if self.plan.keeping == Keeping::Nothing {
            self.reference.forget();
        } else {
            self.reference.crash(last, &self.clients)?;
        }
        self.check_all_kept()?;
        // Its connections break.
        let conns: Vec<u32> =
            self.conns.iter().filter(|(_, it)| it.server_has).map(|(&conn, _)| conn).collect();
        for conn in conns {
            if let Some(it) = self.conns.get_mut(&conn) {
                it.server_has = false;
            }
            self.put(conn, Way::ToRelay, Piece::End);
        }
        for client in 0..self.clients.len() {
            if self.clients[client].plan.relay.is_none()
                && !self.clients[client].is_gone()
                && !self.clients[client].issued.is_empty()
            {
                self.client_dies(client, "the server is gone");
            }
        }
        Ok(())
    }

    /// What clients were told must still be true.
    pub(super) fn check_all_kept(&self) -> Checked {
        for client in 0..self.clients.len() {
            if self.clients[client].is_gone() || self.excused.contains(&client) {
                continue;
            }
            for no in 0..self.clients[client].issued.len() {
                self.reference
                    .check(client, no, &self.clients, true)
                    .map_err(|why| format!("after the death of the server: {why}"))?;
            }
        }
        Ok(())
    }

    /// The disk may have stopped in the middle of a step, or may be full.
    pub(super) fn look_at_disk(&mut self) -> Checked {
        if self.server.is_some() && self.disk.disk.is_stopped() {
            trace!(self, "the disk stops in the middle of a write");
            let is_power_cut = self.plan.keeping == Keeping::Disk && self.random.one_in(2);
            if let Some(server) = self.server.as_mut().filter(|_| self.is_full) {
                // The disk was full before it stopped.
                server.is_troubled = true;
            }
            self.at(self.stopped_for, Event::Start);
            return self.crash(is_power_cut);
        }
        if let Some(server) = &mut self.server
            && let Some(journal) = &server.journal
            && !server.is_troubled
            && journal.trouble().is_some()
        {
            server.is_troubled = true;
            let last = self.disk.last_commit(&self.disk.after_kill());
            // First take in what was done up to here.
            trace!(self, "the journal cannot be written; it ends with commit {last}");
            self.listen()?;
            self.reference.is_lost_behind(last);
            self.troubled_since = last;
        }
        Ok(())
    }

    pub(super) fn fill(&mut self, room: Option<usize>) {
        self.is_full = room.is_some();
        self.disk.disk.limit(room);
    }

    pub(super) fn want_turn(&mut self, conn: u32) {
        if let Some(server) = &mut self.server
            && let Some(line) = server.lines.get_mut(&conn)
            && !std::mem::replace(&mut line.has_turn, true)
            && line.held.is_none()
        {
            self.soon(Event::Turn(conn));
        }
    }

    pub(super) fn turn(&mut self, conn: u32) -> Checked {
        let Some(relay) = self.conns.get(&conn).map(|it| it.relay) else { return Ok(()) };
        let Some(server) = &mut self.server else { return Ok(()) };
        let safe = server.safe();
        let Some(served) = server.lines.get_mut(&conn).filter(|line| line.held.is_none()) else {
            return Ok(());
        };
        served.has_turn = false;
        let ServerLine { line, input, out, .. } = served;
        if line.is_none() {
            let hello = match Frame::take(input) {
                Ok(Some(Frame::Hello(hello))) => hello,
                Ok(None) => return Ok(()),
                other => return Err(format!("relay {relay} begins with {other:?}")),
            };
            let peer = SocketAddr::from(([10, 0, 0, relay as u8 + 1], 1000 + conn as u16));
            match server.links.take_in(&hello, &Bearer { peer, grant: None }) {
                Ok(taken) => *line = Some(taken),
                Err(refuse) => {
                    let mut out = BytesMut::new();
                    Frame::Refuse(refuse).put(&mut out);
                    self.put_bytes(conn, Way::ToRelay, out.freeze());
                    self.server_loses(conn, "refused");
                    return Ok(());
                }
            }
        }
        let Some(line) = &*line else { return Ok(()) };
        match server.links.turn(line, input, out) {
            Err(why) => {
                self.listen()?;
                return Err(format!("the server does not understand relay {relay}: {why}"));
            }
            Ok(Turn::Over) => {
                server.lines.remove(&conn);
                self.server_loses(conn, "a newer one has taken over");
            }
            Ok(Turn::On { has_more, has_new }) => {
                if has_new {
                    served.held = Some(safe);
                    if self.is(Mutant::ReplyBeforeCommit) {
                        self.release(conn);
                    } else {
                        self.soon(Event::Safe(conn));
                    }
                }
                if has_more {
                    self.want_turn(conn);
                }
            }
        }
        Ok(())
    }

    /// Frames leave when everything that they depend on is safe.
    pub(super) fn safe(&mut self, conn: u32) -> Checked {
        let Some(server) = &mut self.server else { return Ok(()) };
        let Some(line) = server.lines.get_mut(&conn) else { return Ok(()) };
        let Some(held) = &mut line.held else { return Ok(()) };
        let is_safe = now_or_never(held);
        self.look_at_disk()?;
        if self.server.is_none() {
            return Ok(());
        }
        if is_safe {
            self.release(conn);
        } else {
            self.soon(Event::Sync(self.server_life));
            self.at(MILLI, Event::Safe(conn));
        }
        Ok(())
    }

    pub(super) fn release(&mut self, conn: u32) {
        let Some(server) = &mut self.server else { return };
        let Some(line) = server.lines.get_mut(&conn) else { return };
        line.held = None;
        let out = line.out.split().freeze();
        line.has_turn = true;
        self.put_bytes(conn, Way::ToRelay, out);
        self.soon(Event::Turn(conn));
    }

    pub(super) fn line_tick(&mut self, conn: u32) {
        let Some(server) = &self.server else { return };
        let Some(served) = server.lines.get(&conn) else { return };
        // A connection that waits for the disk does nothing else.
        if served.held.is_none()
            && let Some(line) = &served.line
        {
            if let Err(why) = line.tick() {
                self.server_loses(conn, &why.to_string());
                return;
            }
            self.want_turn(conn);
        }
        self.at(TICK_OF_LINK, Event::LineTick(conn));
    }

    pub(super) fn server_tick(&mut self, life: u32) -> Checked {
        if life != self.server_life {
            return Ok(());
        }
        let Some(server) = &self.server else { return Ok(()) };
        if self.mutant != Some(Mutant::LeaseKeptTooLong) {
            server.stores.tick();
        }
        let now = rallypoint_protocol::ids::Timestamp(Duration::from_micros(self.now - self.runs.started));
        server.gates.tick(now, &server.links.relays());
        for link in server.links.view() {
            // The tick that ends these sessions may be this one.
            if link.away.is_some_and(|away| away >= Duration::from_micros(GRACE))
                && let Some(relay) = relay_of(&link.name)
            {
                self.relays[relay].was_long_away = true;
            }
        }
        if !self.is(Mutant::GraceNeverEnds) {
            server.links.tick();
        }
        let is_over = |away: Duration| away > Duration::from_micros(GRACE + SECOND);
        if let Some(link) = server.links.view().into_iter().find(|link| link.away.is_some_and(is_over)) {
            return Err(format!("the link of {} is away for {:?}, and is kept", link.name, link.away));
        }
        if let Some(journal) = &server.journal {
            // The journal tries again after seconds of the real clock, so each tick is an hour later than the
            // one before.
            let tick = u32::try_from(self.now / TICK_OF_SERVER).unwrap_or(u32::MAX);
            journal.tick(self.start + Duration::from_hours(1) * tick);
            if server.tidying.is_none() {
                self.soon(Event::TidyStep(life));
            }
        }
        self.at(TICK_OF_SERVER, Event::ServerTick(life));
        if self.has_runs() {
            self.check_runs()?;
            self.look_at_calls(true);
        }
        self.look()
    }

    pub(super) fn tidy(&mut self, life: u32) {
        let Some(server) = self.server.as_mut().filter(|_| life == self.server_life) else { return };
        let Some(journal) = server.journal.clone() else { return };
        let before = journal.stats().tidied;
        let goes_on = server.tidy(self.mutant);
        if journal.stats().tidied > before && server.is_troubled && !self.disk.disk.is_stopped() {
            server.is_troubled = false;
            let CommitNumber(last) = journal.commit(|_| ());
            trace!(self, "the journal is whole again with commit {last}");
            self.reference.is_whole(last);
        }
        if goes_on {
            self.soon(Event::TidyStep(life));
        }
    }
}
