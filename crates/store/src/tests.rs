//! Tests of the store: clients that talk to one [`World`], on an invented clock.

mod barriers;
mod client;
mod costs;
mod invariants;
mod limits;
mod plain;
mod polls;
mod queues;
mod random;
mod rows;
mod slices;
mod stale_idle;
mod stale_leftovers;
mod stale_pairs;
mod stale_promises;
mod stale_published;
mod stale_resets;
mod stale_schedules;
mod stale_searches;
mod stale_writers;
mod views;
mod waits;
pub(super) mod work;
mod world;

use super::{Cleanup, Effects, Observed};
use crate::testing::{Bytewise, Said, model};
use client::Client;
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::{List, Reply};
use world::World;

/// One step of what a request led to, in order: a reply to the one who asked, or a wake-up.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Effect {
    Reply(Said),
    Wake(ConnId),
}

#[derive(Debug, Default)]
struct Recorder {
    effects: Vec<Effect>,
    cleanups: Vec<Cleanup>,
    observing: bool,
    observed: Vec<Observed>,
}

impl Effects for Recorder {
    fn reply(&mut self, reply: Reply<'_>) {
        let all = |list: List<'_>| {
            list.iter().map(|one| Effect::Reply(Said::Bytes(one.to_vec()))).collect::<Vec<_>>()
        };
        match reply {
            Reply::Keys(keys) => self.effects.extend(all(keys)),
            Reply::Values(values) => self.effects.extend(all(values.as_list())),
            reply => self.effects.push(Effect::Reply(reply.into())),
        }
    }

    fn wake(&mut self, conn: ConnId, _: Timestamp) {
        self.effects.push(Effect::Wake(conn));
    }

    fn cleanup(&mut self, cleanup: Cleanup) {
        self.cleanups.push(cleanup);
    }

    fn observes(&self) -> bool {
        self.observing
    }

    fn observe(&mut self, observed: Observed) {
        if self.observing {
            self.observed.push(observed);
        }
    }
}
