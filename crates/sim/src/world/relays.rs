//! The relays: the real end of a link, and the times at which it connects.

use bytes::BytesMut;

use super::super::mutants::Mutant;
use super::super::plan::{MILLI, SECOND};
use super::super::server::ServerLine;
use super::{Checked, Conn, Event, Piece, Pipe, TICK_OF_LINK, Way, World};
use rallypoint_link::{FRAMES_AT_ONCE, Identity, RelayEnd, RelayEvent, RelayLife, SessionLost};

impl World {
    pub(super) fn start_relay(&mut self, relay: usize) {
        let life = self.random.next();
        let it = &mut self.relays[relay];
        it.life = life;
        it.attempts = 0;
        let identity = Identity { name: format!("node-{relay}"), life: RelayLife(life) };
        it.end = Some(RelayEnd::new(identity));
        trace!(self, "relay {relay} starts");
        self.at(0, Event::Connect(relay));
    }

    /// The relay tries to connect.
    pub(super) fn connect(&mut self, relay: usize) {
        let is_cut = self.relays[relay].partitioned_until > self.now;
        let now = self.timestamp();
        let it = &mut self.relays[relay];
        let Some(end) = &mut it.end else { return };
        if it.conn.is_some() {
            return;
        }
        let Some(server) = self.server.as_mut().filter(|_| !is_cut) else { return self.connect_later(relay) };
        let conn = self.next_conn;
        self.next_conn += 1;
        end.connected(now);
        it.input.clear();
        it.conn = Some(conn);
        let line = ServerLine {
            line: None,
            input: BytesMut::new(),
            out: BytesMut::new(),
            held: None,
            has_turn: false,
        };
        server.lines.insert(conn, line);
        let it = Conn {
            relay,
            up: Pipe::default(),
            down: Pipe::default(),
            up_comes_at: 0,
            stuck_until: 0,
            relay_has: true,
            server_has: true,
        };
        self.conns.insert(conn, it);
        trace!(self, "relay {relay} connects: connection {conn}");
        self.at(TICK_OF_LINK, Event::RelayTick(conn));
        self.at(TICK_OF_LINK, Event::LineTick(conn));
    }

    pub(super) fn connect_later(&mut self, relay: usize) {
        let it = &mut self.relays[relay];
        let longest = ((50 * MILLI) << it.attempts.min(10)).min(2 * SECOND);
        it.attempts += 1;
        let after = longest / 2 + self.random.below(longest / 2);
        self.at(after, Event::Connect(relay));
    }

    /// The relay's connection has ended, as the relay sees it.
    pub(super) fn relay_loses(&mut self, conn: u32, why: &str) -> Checked {
        let Some(it) = self.conns.get_mut(&conn).filter(|it| it.relay_has) else { return Ok(()) };
        it.relay_has = false;
        let relay = it.relay;
        self.put(conn, Way::ToServer, Piece::End);
        trace!(self, "relay {relay} loses connection {conn}: {why}");
        let it = &mut self.relays[relay];
        if it.conn == Some(conn) {
            it.conn = None;
            it.attempts = 0;
            if let Some(end) = &mut it.end {
                end.lost();
            }
            self.connect_later(relay);
            self.deliver(relay)?;
        }
        Ok(())
    }

    pub(super) fn send(&mut self, relay: usize) {
        let now = self.timestamp();
        let it = &mut self.relays[relay];
        it.is_sending = false;
        let (Some(end), Some(conn)) = (&mut it.end, it.conn) else { return };
        let mut out = BytesMut::new();
        end.put_frames(&mut out, FRAMES_AT_ONCE, now);
        self.put_bytes(conn, Way::ToServer, out.freeze());
    }

    pub(super) fn relay_tick(&mut self, conn: u32) {
        let now = self.timestamp();
        let Some(relay) = self.conns.get(&conn).filter(|it| it.relay_has).map(|it| it.relay) else { return };
        let Some(end) = &mut self.relays[relay].end else { return };
        if let Err(why) = end.tick(now) {
            let _ = self.relay_loses(conn, &why.to_string());
        }
        self.at(TICK_OF_LINK, Event::RelayTick(conn));
    }

    /// Passes on what the relay's end has for its clients.
    pub(super) fn deliver(&mut self, relay: usize) -> Checked {
        loop {
            let it = &mut self.relays[relay];
            let Some(end) = &mut it.end else { return Ok(()) };
            let is_up = end.is_up();
            let Some(event) = end.next_event() else { return Ok(()) };
            match event {
                RelayEvent::Reply(no, bytes) => {
                    let Some((client, unread)) = it.clients.get_mut(&no) else { continue };
                    let client = *client;
                    if !unread.is_empty() || self.random.one_in(4) {
                        if self.mutant == Some(Mutant::WakeUpLostAtFullBuffer)
                            && self.clients[client].waits().is_some()
                        {
                            end.delivered(no, bytes.len());
                            continue;
                        }
                        if unread.is_empty() {
                            let after = self.random.below(20 * MILLI);
                            self.at(after, Event::Reads(client));
                        }
                        let it = &mut self.relays[relay];
                        if let Some((_, unread)) = it.clients.get_mut(&no) {
                            unread.extend_from_slice(&bytes);
                        }
                        if !is_up {
                            it.early.insert(client);
                        }
                        continue;
                    }
                    end.delivered(no, bytes.len());
                    self.client_gets(client, &bytes, !is_up)?;
                }
                RelayEvent::Lost(no, why) => {
                    let Some((client, _)) = it.clients.remove(&no) else { continue };
                    end.close(no);
                    if self.mutant == Some(Mutant::RefusedUnseen) && self.shortage.may_be_why(&why) {
                        continue;
                    }
                    let is_over = self.may_lose_worker(client);
                    let it = &self.relays[relay];
                    let is_allowed = match &why {
                        SessionLost::Finished => self.clients[client].is_gone(),
                        SessionLost::Forgotten => self.server_life > 1 && (it.was_long_away || self.has_lost),
                        SessionLost::NotRead => false,
                        SessionLost::AwayTooLong => it.was_long_away || self.has_lost,
                        SessionLost::Ended(why) => {
                            it.was_long_away || self.has_lost || self.shortage.may_be_why(why)
                        }
                    };
                    if !is_allowed && !is_over {
                        return Err(format!("client {client} is closed, and should not be: {why}"));
                    }
                    self.client_dies(client, &why.to_string());
                }
                RelayEvent::Up => {
                    trace!(self, "relay {relay} has its link");
                }
                RelayEvent::Unheard(addr) => return Err(format!("what {addr} said is lost")),
                RelayEvent::Refused(refuse) => {
                    if !refuse.retry {
                        return Err(format!("relay {relay} is refused: {}", refuse.reason));
                    }
                    trace!(self, "relay {relay} is refused: {}", refuse.reason);
                    if let Some(conn) = self.relays[relay].conn {
                        self.relay_loses(conn, "refused")?;
                    }
                }
            }
        }
    }
}
