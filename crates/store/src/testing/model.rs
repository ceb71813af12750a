//! A store as simple as possible: maps and lists that are searched from end to end. It is right because it is
//! easy to read; `random` compares the real store with it.

use std::collections::{BTreeMap, BTreeSet};

use super::Said;
use crate::number::parse_counter;
use rallypoint_protocol::keys::{Address, KeyPattern, RendezvousPart, classify};

pub type Key = &'static str;

/// A request, or the end of one connection and the start of another.
#[derive(Debug, Clone)]
pub enum Act {
    Set(Key, String),
    CompareSet(Key, String, String),
    Get(Key),
    Add(Key, i64),
    Check(Vec<Key>),
    Wait(Vec<Key>),
    NumKeys,
    Delete(Key),
    Append(Key, String),
    MultiGet(Vec<Key>),
    MultiSet(Vec<(Key, String)>),
    Cancel,
    Ping(u32),
    Push(Key, String),
    Pop(Key),
    Len(Key),
    List,
    Barrier(Key, i64),
    Abandon,
    Leave,
}

/// [`super::Effect`], with numbers for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Reply(Said),
    Wake(usize),
    Refused,
}

#[derive(Debug, Clone)]
enum Wait {
    Keys(Vec<Key>),
    Barrier { key: Key, counted: i64 },
}

impl Wait {
    /// Whether both wait for the same long list, so that one registration stands for both.
    fn is_shared_with(&self, other: &Self) -> bool {
        const FEWEST_SHARED: usize = 16;
        let (Self::Keys(own), Self::Keys(keys)) = (self, other) else { return false };
        own == keys && keys.len() >= FEWEST_SHARED
    }
}

#[derive(Debug, Default)]
pub struct Model {
    pub plain: BTreeMap<Key, String>,
    pub queues: BTreeMap<Key, Vec<String>>,
    /// Waits, oldest first.
    waits: Vec<(usize, Wait)>,
    /// Clients that were woken for an item and have not asked for anything since.
    offers: BTreeMap<usize, Key>,
    writers: BTreeMap<Key, usize>,
    /// Clients that have read an address, with its group and rank.
    reads: BTreeSet<(usize, &'static [u8], u32)>,
    /// Clients that have used the keys of a run of the static backend.
    agents: BTreeSet<(usize, &'static [u8])>,
    outcomes: Vec<Outcome>,
}

impl Model {
    pub fn act(&mut self, client: usize, act: &Act) -> Vec<Outcome> {
        if let Some(&offered) = self.offers.get(&client)
            && !matches!(act, Act::Abandon)
        {
            self.offers.remove(&client);
            if !matches!(act, Act::Pop(key) if *key == offered) {
                self.offer(offered);
            }
            self.forget_empty_groups();
        }
        match act {
            Act::Set(key, value) => self.store(client, key, value.clone()),
            Act::CompareSet(key, expected, desired) => match self.plain.get(key).cloned() {
                Some(current) if current != *expected => self.say_text(&current),
                None if !expected.is_empty() => self.say_text(expected),
                _ => {
                    self.say_text(desired);
                    self.store(client, key, desired.clone());
                }
            },
            Act::Get(key) => self.get(client, key),
            Act::Add(key, delta) => match self.counter(key) {
                None => self.outcomes.push(Outcome::Refused),
                Some(count) => {
                    let sum = count.wrapping_add(*delta);
                    self.say(Said::Number(sum));
                    self.write(client, key, sum.to_string());
                }
            },
            Act::Check(keys) => self.say(Said::Ready(keys.iter().all(|key| self.is_present(key)))),
            Act::Wait(keys) => {
                self.end_wait(client);
                self.forget_empty_groups();
                for key in keys {
                    self.uses(client, key);
                }
                if keys.iter().all(|key| self.is_present(key)) {
                    self.say(Said::StopWaiting);
                } else {
                    self.waits.push((client, Wait::Keys(keys.clone())));
                }
            }
            Act::NumKeys => self.say(Said::Number(self.plain.len() as i64)),
            Act::Delete(key) => {
                let deleted = self.plain.contains_key(key);
                self.lose(key);
                self.say(Said::Number(i64::from(deleted)));
            }
            Act::Append(key, more) => {
                let value = self.plain.get(key).cloned().unwrap_or_default() + more;
                self.store(client, key, value);
            }
            Act::MultiGet(keys) => keys.iter().for_each(|key| self.get(client, key)),
            Act::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.store(client, key, value.clone());
                }
            }
            Act::Cancel => {
                self.end_wait(client);
                self.say(Said::Cancelled);
            }
            Act::Ping(nonce) => self.say(Said::Nonce(*nonce)),
            Act::Push(key, item) => {
                self.queues.entry(key).or_default().push(item.clone());
                self.offer(key);
            }
            Act::Pop(key) => {
                let queue = self.queues.entry(key).or_default();
                let len = queue.len();
                let item = (len > 0).then(|| queue.remove(0));
                self.say(Said::Number(len as i64));
                if let Some(item) = item {
                    self.say_text(&item);
                }
            }
            Act::Len(key) => self.say(Said::Number(self.queues.get(key).map_or(0, Vec::len) as i64)),
            Act::List => {
                self.say(Said::Number(self.plain.len() as i64));
                let keys: Vec<Key> = self.plain.keys().copied().collect();
                for key in keys {
                    self.say_text(key);
                }
            }
            Act::Barrier(key, world_size) => self.barrier(client, key, *world_size),
            Act::Abandon => self.end_wait(client),
            Act::Leave => self.leave(client),
        }
        self.forget_empty_groups();
        std::mem::take(&mut self.outcomes)
    }

    /// The server dies and the next one goes on: all waits are over, and the clients that are still there
    /// repeat theirs.
    pub fn restart(&mut self, gone: &[usize]) {
        let mut waiting: Vec<usize> = self.waits.iter().map(|(client, _)| *client).collect();
        waiting.sort_unstable();
        self.offers.clear();
        for client in waiting {
            self.end_wait(client);
        }
        for &client in gone {
            self.leave(client);
        }
        self.forget_empty_groups();
    }

    pub fn is_waiting(&self, client: usize) -> bool {
        self.waits.iter().any(|(waiter, _)| *waiter == client)
    }

    fn say(&mut self, said: Said) {
        self.outcomes.push(Outcome::Reply(said));
    }

    fn say_text(&mut self, text: &str) {
        self.say(Said::Bytes(text.into()));
    }

    fn is_present(&self, key: Key) -> bool {
        self.plain.contains_key(key) || self.queues.get(key).is_some_and(|queue| !queue.is_empty())
    }

    fn counter(&self, key: Key) -> Option<i64> {
        self.plain.get(key).map_or(Some(0), |text| parse_counter(text.as_bytes()))
    }

    fn get(&mut self, client: usize, key: Key) {
        self.uses(client, key);
        let value = self.plain.get(key).cloned().unwrap_or_default();
        self.say_text(&value);
        if let (Some(address), Some(&writer)) = (address(key), self.writers.get(key))
            && writer != client
        {
            self.reads.insert((client, address.group, address.writer()));
        }
    }

    /// Stores a value that is not a counted arrival: earlier arrivals are not in it.
    fn store(&mut self, client: usize, key: Key, value: String) {
        self.uncount(key);
        self.write(client, key, value);
    }

    fn write(&mut self, client: usize, key: Key, value: String) {
        self.uses(client, key);
        if let Some(address) = address(key)
            && let is_again = self.writers.insert(key, client) == Some(client)
            && address.is_first()
        {
            if is_again {
                self.reads.retain(|&(reader, of, _)| reader != client || of != address.group);
            } else {
                self.spend_paired(address.group, address.writer(), key);
            }
        }
        self.plain.insert(key, value);
        let is_over = |model: &Self, wait: &Wait| {
            let Wait::Keys(keys) = wait else { return false };
            keys.contains(&key) && keys.iter().all(|key| model.is_present(key))
        };
        while let Some(at) = self.waits.iter().position(|(_, wait)| is_over(self, wait)) {
            let (waiter, first) = self.waits.remove(at);
            self.outcomes.push(Outcome::Wake(waiter));
            // All clients that wait for the same long list wake with it, before others that came between
            // them.
            for (waiter, _) in self.waits.extract_if(.., |(_, wait)| wait.is_shared_with(&first)) {
                self.outcomes.push(Outcome::Wake(waiter));
            }
        }
    }

    /// The value is gone, for whatever reason.
    fn lose(&mut self, key: Key) {
        if self.plain.remove(key).is_some() {
            self.uncount(key);
            self.writers.remove(key);
        }
    }

    fn uncount(&mut self, lost: Key) {
        for (_, wait) in &mut self.waits {
            if let Wait::Barrier { key, counted } = wait
                && *key == lost
            {
                *counted = 0;
            }
        }
    }

    /// Offers an item of `queue` to the first client that waits for nothing else.
    fn offer(&mut self, queue: Key) {
        if self.queues.get(queue).is_none_or(Vec::is_empty) {
            return;
        }
        let ready = self.waits.iter().position(|(_, wait)| {
            matches!(wait, Wait::Keys(keys)
                if keys.contains(&queue) && keys.iter().all(|key| self.is_present(key)))
        });
        if let Some(at) = ready {
            let (client, _) = self.end_wait_at(at);
            self.offers.insert(client, queue);
            self.outcomes.push(Outcome::Wake(client));
        }
    }

    /// One registration stands for all clients that wait for the same long list. When the wait of the
    /// registered client ends, the next one takes over its place, before others that came in between. Its own
    /// place in the list of each key could only be found by a look at all waiters.
    fn end_wait_at(&mut self, at: usize) -> (usize, Wait) {
        let ended = self.waits.remove(at);
        let next = self.waits.iter().position(|(_, wait)| wait.is_shared_with(&ended.1));
        if let Some(next) = next.filter(|next| *next >= at) {
            let next = self.waits.remove(next);
            self.waits.insert(at, next);
        }
        ended
    }

    fn end_wait(&mut self, client: usize) {
        if let Some(at) = self.waits.iter().position(|(waiter, _)| *waiter == client)
            && let (_, Wait::Barrier { key, counted }) = self.end_wait_at(at)
            && counted > 0
            && let Some(count @ 1..) = self.counter(key)
        {
            self.plain.insert(key, (count - counted).max(0).to_string());
        }
    }

    fn barrier(&mut self, client: usize, key: Key, world_size: i64) {
        let Some(count) = self.counter(key) else {
            return self.outcomes.push(Outcome::Refused);
        };
        // The barrier names its group before the wait of its client ends, so the group stays the same. Only
        // where the client waited for this very key may the name go with the wait, and the group with the
        // name.
        let waited_for_it = self.waits.iter().any(|(waiter, wait)| {
            *waiter == client
                && match wait {
                    Wait::Keys(keys) => keys.contains(&key),
                    Wait::Barrier { key: k, .. } => *k == key,
                }
        });
        let mut own = 1;
        if let Some(at) = self.waits.iter().position(
            |(waiter, wait)| matches!(wait, Wait::Barrier { key: k, .. } if *waiter == client && *k == key),
        ) && let (_, Wait::Barrier { counted, .. }) = self.waits.remove(at)
        {
            own += counted;
        }
        self.end_wait(client);
        if waited_for_it {
            self.forget_empty_groups();
        }
        let count = count.wrapping_add(1);
        self.write(client, key, count.to_string());
        if count < world_size {
            self.waits.push((client, Wait::Barrier { key, counted: own }));
            return;
        }
        self.say(Said::StopWaiting);
        for (waiter, wait) in self.waits.clone() {
            if matches!(wait, Wait::Barrier { key: k, .. } if k == key) {
                self.waits.retain(|(other, _)| *other != waiter);
                self.outcomes.push(Outcome::Wake(waiter));
            }
        }
    }

    fn leave(&mut self, client: usize) {
        self.end_wait(client);
        let own: Vec<Key> =
            self.writers.iter().filter(|(_, writer)| **writer == client).map(|(key, _)| *key).collect();
        for key in own {
            self.lose(key);
        }
        self.reads.retain(|(reader, ..)| *reader != client);
        let (left, stay): (BTreeSet<_>, _) =
            std::mem::take(&mut self.agents).into_iter().partition(|(agent, _)| *agent == client);
        self.agents = stay;
        for (_, run) in left {
            // The exit barrier of a static run goes with the last client of the run.
            if !self.agents.iter().any(|(_, other)| *other == run) {
                let over: Vec<Key> =
                    self.plain.keys().copied().filter(|key| exit_of(key) == Some(run)).collect();
                for key in over {
                    self.lose(key);
                }
            }
        }
    }

    fn uses(&mut self, client: usize, key: Key) {
        if let Some(run) = address(key).and_then(|it| it.run_id).or_else(|| exit_of(key)) {
            self.agents.insert((client, run));
        }
    }

    /// Spends the addresses of clients that have read the address of `rank`, then the addresses of clients
    /// that have read one of these, and so on; all but `keep`.
    fn spend_paired(&mut self, group: &'static [u8], rank: u32, keep: Key) {
        let mut spent = vec![rank];
        while !spent.is_empty() {
            let has_read = |writer| spent.iter().any(|&rank| self.reads.contains(&(writer, group, rank)));
            let paired: Vec<(Key, usize)> = self
                .writers
                .iter()
                .map(|(key, writer)| (*key, *writer))
                .filter(|&(key, writer)| {
                    key != keep && address(key).is_some_and(|of| of.group == group) && has_read(writer)
                })
                .collect();
            spent = paired.iter().filter_map(|(key, _)| address(key)).map(|of| of.writer()).collect();
            for (key, writer) in paired {
                self.lose(key);
                self.reads.retain(|&(reader, of, _)| reader != writer || of != group);
            }
        }
    }

    /// A group without names that comes back later is a new group.
    fn forget_empty_groups(&mut self) {
        let mut named: BTreeSet<Key> = self.plain.keys().copied().collect();
        named.extend(self.queues.iter().filter(|(_, items)| !items.is_empty()).map(|(key, _)| key));
        named.extend(self.offers.values());
        for (_, wait) in &self.waits {
            match wait {
                Wait::Keys(keys) => named.extend(keys),
                Wait::Barrier { key, .. } => {
                    named.insert(key);
                }
            }
        }
        let groups: BTreeSet<_> = named.into_iter().filter_map(address).map(|of| of.group).collect();
        self.reads.retain(|(_, group, _)| groups.contains(group));
    }
}

fn address(key: Key) -> Option<Address<'static>> {
    match classify(key.as_bytes()) {
        Some(KeyPattern::Address(address)) => Some(address),
        _ => None,
    }
}

/// The run of the static backend to which this exit barrier belongs.
fn exit_of(key: Key) -> Option<&'static [u8]> {
    use RendezvousPart::{ExitBarrier, ExitBarrierDone};
    match classify(key.as_bytes()) {
        Some(KeyPattern::Rendezvous {
            run_id,
            part: ExitBarrier { in_round: false } | ExitBarrierDone { in_round: false },
            ..
        }) => Some(run_id),
        _ => None,
    }
}
