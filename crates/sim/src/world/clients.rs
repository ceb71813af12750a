//! The clients: their requests, and what happens with their replies.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};

use super::super::client::{Sends, State};
use super::super::mutants::Mutant;
use super::super::plan::MILLI;
use super::super::server::PORT;
use super::{Checked, Event, FIRST_PORT, World};
use rallypoint_link::FIRST_STORE;
use rallypoint_store::testing::model::Act;

impl World {
    pub(super) fn client_sends(&mut self, client: usize, sends: &Sends) -> Checked {
        if let Some(after) = sends.next_after {
            self.at(after, Event::Act(client));
        }
        if let (Some(after), State::Reading(no)) = (sends.patience, self.clients[client].state) {
            self.at(after, Event::GiveUp(client, no));
        }
        if sends.closes {
            trace!(self, "client {client} closes its connection");
            return self.client_closes(client);
        }
        if sends.bytes.is_empty() {
            return Ok(());
        }
        let act = self.clients[client].issued.last().map(|act| format!("{act:?}"));
        trace!(self, "client {client} asks: {}", act.unwrap_or_default());
        let Some(relay) = self.clients[client].plan.relay else {
            self.direct_sends(client, &sends.bytes);
            return Ok(());
        };
        let addr = SocketAddr::from(([127, 0, 0, 1], FIRST_PORT + client as u16));
        let store = self.clients[client].store.unwrap_or(FIRST_STORE);
        let it = &mut self.relays[relay];
        let Some(end) = &mut it.end else {
            self.client_dies(client, "there is no relay");
            return Ok(());
        };
        let known = it.clients.iter().find(|(_, (of, _))| *of == client).map(|(&no, _)| no);
        let Some(no) = known.or_else(|| end.open(store, addr)) else { return Ok(()) };
        it.clients.entry(no).or_insert((client, BytesMut::new()));
        if self.mutant == Some(Mutant::GetMergedWithOlder)
            && let Some(key @ Act::Get(_)) = self.clients[client].issued.last()
        {
            let same = |other: &&(usize, BytesMut)| {
                let it = &self.clients[other.0];
                let is_key = |no: usize| format!("{:?}", it.issued[no]) == format!("{key:?}");
                let asks = matches!(it.state, State::Reading(no) if is_key(no));
                other.0 != client && asks
            };
            if let Some((older, _)) = it.clients.values().find(same) {
                self.merged.insert(*older, client);
                return Ok(());
            }
        }
        // In two parts, cut anywhere.
        let cut = self.random.below(sends.bytes.len() as u64 + 1) as usize;
        for part in [&sends.bytes[..cut], &sends.bytes[cut..]] {
            if !part.is_empty() {
                end.from_client(no, Bytes::copy_from_slice(part));
            }
        }
        self.deliver(relay)
    }

    pub(super) fn client_closes(&mut self, client: usize) -> Checked {
        self.is_gone(client);
        if let Some(relay) = self.clients[client].plan.relay {
            let it = &mut self.relays[relay];
            let no = it.clients.iter().find(|(_, (of, _))| *of == client).map(|(&no, _)| no);
            if let (Some(no), Some(end)) = (no, &mut it.end) {
                it.clients.remove(&no);
                end.close(no);
            }
            return self.deliver(relay);
        }
        if let Some(server) = &mut self.server {
            server.directs.remove(&client);
        }
        self.listen()
    }

    /// The other side closes a client's connection.
    pub(super) fn client_dies(&mut self, client: usize, why: &str) {
        trace!(self, "client {client} is closed: {why}");
        self.is_gone(client);
    }

    /// Remembers both the old and the new truth: another client may come before anything else happens.
    fn is_gone(&mut self, client: usize) {
        self.remember();
        self.clients[client].state = State::Gone;
        self.remember();
    }

    /// Bytes of replies have reached a client.
    pub(super) fn client_gets(&mut self, client: usize, bytes: &[u8], is_early: bool) -> Checked {
        let it = &mut self.clients[client];
        let (answered, next) = it.receive(bytes).map_err(|why| format!("client {client}: {why}"))?;
        for no in answered {
            trace!(self, "client {client} has {:?}", self.clients[client].seen[no]);
            if !self.excused.contains(&client) {
                self.reference.check(client, no, &self.clients, is_early)?;
            }
        }
        if let Some(after) = next {
            self.at(after, Event::Act(client));
        }
        match self.merged.remove(&client) {
            Some(follower) => self.client_gets(follower, bytes, is_early),
            None => Ok(()),
        }
    }

    pub(super) fn client_reads(&mut self, client: usize) -> Checked {
        let Some(relay) = self.clients[client].plan.relay else { return Ok(()) };
        let it = &mut self.relays[relay];
        let Some(end) = &mut it.end else { return Ok(()) };
        let found = it.clients.iter_mut().find(|(_, (of, _))| *of == client);
        let Some((&no, (_, unread))) = found else { return Ok(()) };
        let bytes = std::mem::take(unread);
        end.delivered(no, bytes.len());
        let is_early = it.early.remove(&client) || !end.is_up();
        self.client_gets(client, &bytes, is_early)
    }

    pub(super) fn direct_sends(&mut self, client: usize, bytes: &[u8]) {
        let is_new = self.clients[client].issued.len() == 1;
        let Some(server) = &mut self.server else { return self.client_dies(client, "there is no server") };
        if is_new {
            let addr = SocketAddr::from(([10, 0, 1, 1], FIRST_PORT + client as u16));
            let Some(direct) = server.connect(self.clients[client].store.unwrap_or(PORT), addr) else {
                return self.client_dies(client, "there is no such store");
            };
            server.directs.insert(client, direct);
        }
        let Some(direct) = server.directs.get_mut(&client) else {
            return self.client_dies(client, "no connection");
        };
        direct.input.extend_from_slice(bytes);
        direct.has_turn = true;
        let delay = self.random.between(20, MILLI);
        self.at(delay, Event::DirectArrives(client));
    }

    pub(super) fn direct_turn(&mut self, client: usize) {
        let Some(server) = &mut self.server else { return };
        let Some(direct) = server.directs.get_mut(&client).filter(|direct| !direct.is_held) else { return };
        direct.has_turn = false;
        if direct.turn() {
            direct.is_held = true;
            self.soon(Event::DirectSafe(client));
        } else if direct.conversation.ending.is_some() && self.shortage.is_there() {
            server.directs.remove(&client);
            self.client_dies(client, "it was refused");
        } else if direct.conversation.more_to_apply {
            // Other connections had to get their turn first.
            direct.has_turn = true;
            self.soon(Event::DirectTurn(client));
        }
    }

    pub(super) fn direct_safe(&mut self, client: usize) -> Checked {
        let Some(server) = &mut self.server else { return Ok(()) };
        let Some(direct) = server.directs.get_mut(&client).filter(|direct| direct.is_held) else {
            return Ok(());
        };
        let is_safe = direct.is_safe() || self.mutant == Some(Mutant::DirectReplyBeforeCommit);
        self.look_at_disk()?;
        self.listen()?;
        let Some(server) = &mut self.server else { return Ok(()) };
        let Some(direct) = server.directs.get_mut(&client) else { return Ok(()) };
        if !is_safe {
            self.soon(Event::Sync(self.server_life));
            self.at(MILLI, Event::DirectSafe(client));
            return Ok(());
        }
        let replies: Vec<u8> = direct.replies.drain().flat_map(|piece| piece.bytes).collect();
        direct.is_held = false;
        direct.has_turn = true;
        self.soon(Event::DirectTurn(client));
        self.client_gets(client, &replies, false)
    }
}
