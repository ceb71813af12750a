//! The reference: all requests, in the order in which the server has committed them, and one simple store
//! that answers them. What a crash takes away is removed here too, and the rest is done again.

use std::collections::BTreeMap;
use std::ops::Range;

use super::client::Client;
use rallypoint_store::testing::Said;
use rallypoint_store::testing::model::{Act, Key, Model, Outcome};

/// One action of the server. A client is known by the number of its connection.
#[derive(Debug, Clone)]
pub(super) enum Done {
    Connected {
        conn: u32,
        client: usize,
    },
    /// These keys of a request were written or answered, and more keys remain.
    Begun {
        conn: u32,
        act: Act,
        keys: Range<usize>,
    },
    /// The request is finished. `before` of its keys were written or answered earlier.
    Applied {
        conn: u32,
        act: Act,
        before: usize,
    },
    Left {
        conn: u32,
    },
    /// The server continues after another one. These connections are still there.
    Restarted {
        live: Vec<u32>,
    },
}

/// Which commit contains an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    /// It is safe.
    Surely,
    /// It survives if this commit does.
    With(u64),
    /// It happened while the journal could not be written.
    Nowhere,
}

/// The progress of one client.
#[derive(Debug, Default, Clone)]
pub(super) struct Come {
    /// The number of applied requests, which is the number of the next one.
    pub(super) next: usize,
    /// The answers of the applied requests. If the next request is done in part, also the beginning of its
    /// answer.
    pub(super) answers: Vec<Vec<Said>>,
    /// How many keys of the next request are done.
    begun: usize,
    /// The outstanding wait.
    waits: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Reference {
    log: Vec<(Kept, Done)>,
    model: Model,
    clients: BTreeMap<u32, usize>,
    come: Vec<Come>,
}

impl Reference {
    pub(super) fn new(clients: usize) -> Self {
        Self { come: vec![Come::default(); clients], ..Self::default() }
    }

    pub(super) fn add_client(&mut self) {
        self.come.push(Come::default());
    }

    pub(super) fn come(&self, client: usize) -> &Come {
        &self.come[client]
    }

    /// Whether the request `no` of a client has its answer, even if the answer is still in flight.
    pub(super) fn is_answered(&self, client: usize, no: usize) -> bool {
        let come = &self.come[client];
        no < come.next && come.answers.get(no).is_some_and(|answer| !answer.is_empty())
    }

    /// The value of a key in the store.
    pub(super) fn value(&self, key: Key) -> Option<&str> {
        self.model.plain.get(key).map(String::as_str)
    }

    /// The client with this connection.
    pub(super) fn client_of(&self, conn: u32) -> Option<usize> {
        self.clients.get(&conn).copied()
    }

    /// The server has done something.
    pub(super) fn done(&mut self, kept: Kept, done: Done, clients: &[Client]) -> Result<(), String> {
        self.apply(&done, clients)?;
        self.log.push((kept, done));
        Ok(())
    }

    /// Everything that happened while the journal could not be written is in this commit now.
    pub(super) fn is_whole(&mut self, commit: u64) {
        for (kept, _) in &mut self.log {
            if *kept == Kept::Nowhere {
                *kept = Kept::With(commit);
            }
        }
    }

    /// The journal cannot be written: nothing behind this commit is kept.
    pub(super) fn is_lost_behind(&mut self, commit: u64) {
        for (kept, _) in &mut self.log {
            if *kept > Kept::With(commit) {
                *kept = Kept::Nowhere;
            }
        }
    }

    /// The server is gone, and everything behind this commit is lost.
    pub(super) fn crash(&mut self, commit: u64, clients: &[Client]) -> Result<(), String> {
        self.log.retain(|(kept, _)| *kept <= Kept::With(commit));
        for (kept, _) in &mut self.log {
            *kept = Kept::Surely;
        }
        self.model = Model::default();
        self.clients.clear();
        self.come.iter_mut().for_each(|come| *come = Come::default());
        let log = std::mem::take(&mut self.log);
        for (_, done) in &log {
            self.apply(done, clients)?;
        }
        self.log = log;
        Ok(())
    }

    /// The server is gone, and everything is lost.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.come.len());
    }

    fn apply(&mut self, done: &Done, clients: &[Client]) -> Result<(), String> {
        match *done {
            Done::Connected { conn, client } => {
                self.clients.insert(conn, client);
            }
            Done::Begun { conn, ref act, ref keys } => {
                return self.request(conn, act, keys.start, Some(keys.end), clients);
            }
            Done::Applied { conn, ref act, before } => {
                return self.request(conn, act, before, None, clients);
            }
            Done::Left { conn } => {
                let outcomes = self.model.act(conn as usize, &Act::Leave);
                self.clients.remove(&conn);
                self.note(conn, 0, outcomes)?;
            }
            Done::Restarted { ref live } => {
                let gone: Vec<u32> =
                    self.clients.keys().filter(|conn| !live.contains(conn)).copied().collect();
                self.model.restart(&gone.iter().map(|&conn| conn as usize).collect::<Vec<_>>());
                self.clients.retain(|conn, _| live.contains(conn));
                for come in &mut self.come {
                    // The wait will be sent again.
                    if let Some(no) = come.waits.take() {
                        come.next = no;
                        come.answers.truncate(no);
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies a request from its key number `from` on: up to a later key, or to its end.
    fn request(
        &mut self,
        conn: u32,
        act: &Act,
        from: usize,
        to: Option<usize>,
        clients: &[Client],
    ) -> Result<(), String> {
        let Some(client) = self.client_of(conn) else {
            return Err(format!("a request of connection {conn}, which is not there: {act:?}"));
        };
        let come = &mut self.come[client];
        let no = come.next;
        let asked = clients[client].issued.get(no);
        if asked.map(|asked| format!("{asked:?}")) != Some(format!("{act:?}")) {
            return Err(format!("client {client}: applied {act:?}, but its request {no} is {asked:?}"));
        }
        if from != come.begun {
            return Err(format!(
                "client {client}: its request {no} ({act:?}) goes on behind {from} keys, and {} are done",
                come.begun
            ));
        }
        if from == 0 {
            come.answers.push(Vec::new());
        }
        come.begun = to.unwrap_or(0);
        if to.is_none() {
            come.next += 1;
            come.waits = None;
        }
        let act = match act {
            Act::MultiSet(pairs) => &Act::MultiSet(pairs[from..to.unwrap_or(pairs.len())].to_vec()),
            Act::MultiGet(keys) => &Act::MultiGet(keys[from..to.unwrap_or(keys.len())].to_vec()),
            act => act,
        };
        let outcomes = self.model.act(conn as usize, act);
        self.note(conn, no, outcomes)?;
        if self.model.is_waiting(conn as usize) {
            self.come[client].waits = Some(no);
        }
        Ok(())
    }

    fn note(&mut self, conn: u32, no: usize, outcomes: Vec<Outcome>) -> Result<(), String> {
        for outcome in outcomes {
            match outcome {
                Outcome::Reply(said) => {
                    let client = self.clients.get(&conn).copied();
                    if let Some(answer) = client.and_then(|client| self.come[client].answers.get_mut(no)) {
                        answer.push(said);
                    }
                }
                Outcome::Wake(conn) => {
                    let Some(client) = self.client_of(conn as u32) else { continue };
                    let come = &mut self.come[client];
                    let Some(no) = come.waits.take() else {
                        return Err(format!("the model wakes client {client}, which does not wait"));
                    };
                    come.answers[no].push(Said::StopWaiting);
                }
                Outcome::Refused => return Err("the model refuses a request".into()),
            }
        }
        Ok(())
    }

    /// Checks what a client has received for its request `no`. `may_be_early`: the relay may have answered a
    /// CANCEL_WAIT while the server was away.
    pub(super) fn check(
        &self,
        client: usize,
        no: usize,
        clients: &[Client],
        may_be_early: bool,
    ) -> Result<(), String> {
        let Client { issued, seen, .. } = &clients[client];
        let Some(seen) = &seen[no] else { return Ok(()) };
        let is_given_up = matches!(issued.get(no + 1), Some(Act::Cancel));
        let Some(right) = self.come[client].answers.get(no) else {
            let is_early = matches!(issued[no], Act::Cancel) || is_given_up && seen.is_empty();
            return if is_early && may_be_early || is_unanswered(&issued[no]) {
                Ok(())
            } else {
                let act = &issued[no];
                Err(format!(
                    "client {client} has got {seen:?} for its request {no} ({act:?}), which is in no commit"
                ))
            };
        };
        // The wait had ended, but the client was told that it is cancelled.
        if right == seen || is_given_up && seen.is_empty() {
            return Ok(());
        }
        Err(format!(
            "client {client} has got {seen:?} for its request {no} ({:?}), and should have got {right:?}",
            issued[no]
        ))
    }
}

fn is_unanswered(act: &Act) -> bool {
    matches!(act, Act::Set(..) | Act::Append(..) | Act::MultiSet(_) | Act::Push(..))
}
