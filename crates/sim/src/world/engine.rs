//! What the engine did, compared with the reference.

use super::super::agent;
use super::super::jobs::ADDRESSES;
use super::super::plan::{BARRIERS, NUMBERS, QUEUES, TEXTS};
use super::super::reference::{Done, Kept};
use super::{Checked, FIRST_PORT, Note, World};
use rallypoint_protocol::Request;
use rallypoint_store::testing::model::{Act, Key};

impl World {
    /// Adds what the engine did to the reference.
    pub(super) fn listen(&mut self) -> Checked {
        let notes = std::mem::take(&mut *self.heard.borrow_mut());
        for note in notes {
            match note {
                Note::Connected(conn, addr) if addr.port() < FIRST_PORT => {
                    self.strangers.insert(conn.serial());
                    continue;
                }
                Note::Connected(conn, _) => drop(self.strangers.remove(&conn.serial())),
                Note::Begun(conn, ..) | Note::Applied(conn, ..) | Note::Left(conn)
                    if self.strangers.contains(&conn) =>
                {
                    continue;
                }
                _ => {}
            }
            let done = match note {
                Note::Connected(conn, addr) => {
                    let client = usize::from(addr.port() - FIRST_PORT);
                    self.known_as.insert(client, conn);
                    self.heard_of.insert(client);
                    Done::Connected { conn: conn.serial(), client }
                }
                Note::Begun(_, _, keys) if keys.is_empty() => continue,
                Note::Begun(conn, act, keys) => {
                    trace!(self, "    applied for connection {conn}, keys {keys:?}: {act:?}");
                    Done::Begun { conn, act, keys }
                }
                Note::Applied(conn, act, before) => {
                    self.tally.requests += 1;
                    trace!(self, "    applied for connection {conn}: {act:?}");
                    Done::Applied { conn, act, before }
                }
                Note::Left(conn) => {
                    self.check_left(conn)?;
                    Done::Left { conn }
                }
                Note::Restored(live) => {
                    trace!(self, "    restored: connections {live:?}");
                    Done::Restarted { live }
                }
                Note::Committed(number) => {
                    let is_troubled = self.server.as_ref().is_some_and(|server| server.is_troubled);
                    let kept = if is_troubled { Kept::Nowhere } else { Kept::With(number) };
                    for done in std::mem::take(&mut self.section) {
                        self.reference.done(kept, done, &self.clients)?;
                    }
                    continue;
                }
            };
            self.section.push(done);
        }
        Ok(())
    }

    /// A session may end only for a reason.
    pub(super) fn check_left(&mut self, conn: u32) -> Checked {
        let Some(client) = self.reference.client_of(conn) else { return Ok(()) };
        trace!(self, "    connection {conn} of client {client} is over");
        let it = &self.clients[client];
        let is_allowed = match it.plan.relay {
            Some(relay) => self.relays[relay].end.is_none() || self.relays[relay].was_long_away,
            None => false,
        };
        if it.is_gone() || is_allowed || self.excused.contains(&client) || self.shortage.is_there() {
            return Ok(());
        }
        Err(format!("the server has ended the session of client {client}, which is there"))
    }

    /// Whether everything that a client had asked for before it left must be done: its relay brings it.
    fn is_brought_to_its_end(&self, client: usize) -> bool {
        let it = &self.clients[client];
        let relay = it.plan.relay.map(|relay| &self.relays[relay]);
        let is_linked = relay.is_some_and(|relay| !relay.was_killed && !relay.was_long_away);
        it.has_finished && is_linked && self.server_life == 1 && !self.shortage.was_there
    }

    /// The world is at rest: clients have exactly what the reference says.
    pub(super) fn compare(&mut self) -> Checked {
        self.tally.compared += 1;
        if let Some(server) = &self.server {
            let (counted, held) = server.links.memory();
            if counted != held {
                return Err(format!("{counted} bytes are counted for the links, which hold {held}"));
            }
        }
        for client in 0..self.clients.len() {
            let it = &self.clients[client];
            let has_left = it.is_gone() && !self.is_brought_to_its_end(client);
            if has_left || it.issued.is_empty() || self.excused.contains(&client) {
                continue;
            }
            let come = self.reference.come(client);
            if come.next != it.issued.len() {
                return Err(format!(
                    "client {client}: {} of its {} requests are applied, and nothing is on its way",
                    come.next,
                    it.issued.len()
                ));
            }
            if it.is_gone() {
                continue;
            }
            for no in 0..it.issued.len() {
                self.reference.check(client, no, &self.clients, false)?;
                if it.seen[no].is_none() && !come.answers[no].is_empty() {
                    return Err(format!(
                        "client {client} does not get the answer to its request {no} ({:?}): {:?}",
                        it.issued[no], come.answers[no]
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The request as the model writes it.
pub(super) fn act_of(request: &Request<'_>) -> Act {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match *request {
        Request::Set { key, value } => Act::Set(key_of(key), text(value.as_slice())),
        Request::CompareSet { key, expected, desired } => {
            Act::CompareSet(key_of(key), text(expected), text(desired.as_slice()))
        }
        Request::Get { key } => Act::Get(key_of(key)),
        Request::Add { key, delta } => Act::Add(key_of(key), delta),
        Request::Check(keys) => Act::Check(keys.iter().map(key_of).collect()),
        Request::Wait(keys) => Act::Wait(keys.iter().map(key_of).collect()),
        Request::NumKeys => Act::NumKeys,
        Request::Delete { key } => Act::Delete(key_of(key)),
        Request::Append { key, value } => Act::Append(key_of(key), text(value)),
        Request::MultiGet(keys) => Act::MultiGet(keys.iter().map(key_of).collect()),
        Request::MultiSet(pairs) => {
            Act::MultiSet(pairs.iter().map(|(key, value)| (key_of(key), text(value.as_slice()))).collect())
        }
        Request::CancelWait => Act::Cancel,
        Request::Ping { nonce } => Act::Ping(nonce),
        Request::QueuePush { key, value } => Act::Push(key_of(key), text(value.as_slice())),
        Request::QueuePop { key } => Act::Pop(key_of(key)),
        Request::QueueLen { key } => Act::Len(key_of(key)),
        Request::ListKeys => Act::List,
        Request::Barrier { key, world_size } => Act::Barrier(key_of(key), world_size),
    }
}

fn key_of(key: &[u8]) -> Key {
    let all = TEXTS.iter().chain(&NUMBERS).chain(&QUEUES).chain(&BARRIERS).chain(&ADDRESSES);
    if let Some(known) = all.copied().find(|known| known.as_bytes() == key) {
        return known;
    }
    let is_of_agents = key.starts_with(b"/torch.rendezvous.") || key.starts_with(b"/static-");
    std::str::from_utf8(key).ok().filter(|_| is_of_agents).map_or("?", agent::key)
}
