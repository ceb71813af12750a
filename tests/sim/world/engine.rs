//! What is heard of the engine, and compared with the reference.

use super::super::reference::{Done, Kept};
use super::{Checked, FIRST_PORT, Note, World};

impl World {
    /// Takes what was heard into the reference.
    pub(super) fn listen(&mut self) -> Checked {
        let notes = std::mem::take(&mut *self.heard.borrow_mut());
        for note in notes {
            let done = match note {
                Note::Connected(conn, addr) => {
                    let client = usize::from(addr.port() - FIRST_PORT);
                    self.known_as.insert(client, conn);
                    self.heard_of.insert(client);
                    Done::Connected { conn: conn.serial(), client }
                }
                Note::Applied(conn, act) => {
                    self.tally.requests += 1;
                    trace!(self, "    applied for connection {conn}: {act:?}");
                    Done::Applied { conn, act }
                }
                Note::Left(conn) => {
                    self.check_left(conn)?;
                    Done::Left { conn }
                }
                Note::Restored(live) => Done::Restarted { live },
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

    /// A session ends only for a reason.
    pub(super) fn check_left(&mut self, conn: u32) -> Checked {
        let Some(client) = self.reference.client_of(conn) else { return Ok(()) };
        trace!(self, "    connection {conn} of client {client} is over");
        let it = &self.clients[client];
        let is_allowed = match it.plan.relay {
            Some(relay) => self.relays[relay].end.is_none() || self.relays[relay].was_long_away,
            None => false,
        };
        if it.is_gone() || is_allowed || self.excused.contains(&client) {
            return Ok(());
        }
        Err(format!("the server has ended the session of client {client}, which is there"))
    }

    /// Everything stands still: clients have what the reference says, no more and no less.
    pub(super) fn compare(&mut self) -> Checked {
        self.tally.compared += 1;
        for client in 0..self.clients.len() {
            let it = &self.clients[client];
            if it.is_gone() || it.issued.is_empty() || self.excused.contains(&client) {
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
