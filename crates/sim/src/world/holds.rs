//! Participants of barriers, and pods at their gates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::plan::{MILLI, Micros, SECOND};
use super::super::server::Server;
use super::calls::{Answer, Caller};
use super::nodes::{Doing, label};
use super::{Checked, Event, World};
use rallypoint_api::Explanation;
use rallypoint_insight::testing::{held, yes};
use rallypoint_protocol::ids::Nodes;
use rallypoint_rendezvous::barrier::{Arrival, ArrivalRefusal, ArrivalStanding};
use rallypoint_rendezvous::gate::{Announcement, PodStanding};
use rallypoint_server::{Ended, NotHeld};

/// A participant that comes to a barrier again and again.
pub(super) struct Participant {
    barrier: usize,
    number: usize,
    /// The number of the present use.
    turn: u32,
    has_arrived: bool,
    pub(super) is_done: bool,
}

pub(super) struct Pod {
    gate: usize,
    number: usize,
    has_announced: bool,
    /// It was let through, to the store on this port.
    pub(super) went: Option<u16>,
}

/// What is true of the barriers and gates.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The number that the server gave to each use of a barrier.
    generations: BTreeMap<(usize, u32), u64>,
}

impl Participant {
    pub(super) fn new(barrier: usize, number: usize) -> Self {
        Self { barrier, number, turn: 1, has_arrived: false, is_done: false }
    }

    pub(super) fn barrier(&self) -> String {
        format!("barrier-{}", self.barrier)
    }

    pub(super) fn name(&self) -> String {
        format!("participant-{}", self.number)
    }

    pub(super) fn arrival_id(&self) -> String {
        self.turn.to_string()
    }
}

impl Pod {
    pub(super) fn new(gate: usize, number: usize) -> Self {
        Self { gate, number, has_announced: false, went: None }
    }

    pub(super) fn run(&self) -> String {
        format!("pods-{}", self.gate)
    }

    pub(super) fn is_announced_at(&self, gate: usize) -> bool {
        self.gate == gate && self.has_announced
    }
}

impl World {
    /// The server, and how long the next request may wait there. Without a server, `again` comes a little
    /// later.
    fn server_and_wait(&mut self, again: Event) -> Option<(&Server, Duration)> {
        let wait = Duration::from_micros(self.runs.random.below(SECOND));
        if self.server.is_none() {
            self.at(300 * MILLI, again);
        }
        Some((self.server.as_ref()?, wait))
    }

    /// Participants that are reported to wait at a barrier have arrived there.
    pub(super) fn check_said_of_barrier(&self, said: &Explanation) -> Checked {
        let has_come = |who: &String| {
            let is_it = |it: &&Participant| it.name() == *who;
            self.runs.participants.iter().find(is_it).is_some_and(|it| it.has_arrived || it.turn > 0)
        };
        let is_of_store = said.store.is_some();
        yes(is_of_store || held(&said.facts).iter().all(has_come), "one of them has not arrived")
    }

    pub(super) fn arrives(&mut self, n: usize) -> Checked {
        if self.runs.participants[n].is_done || self.has_call(Caller::Participant(n)) {
            return Ok(());
        }
        let Some((server, wait)) = self.server_and_wait(Event::Arrives(n)) else { return Ok(()) };
        let rounds = Arc::clone(&server.rounds);
        let it = &mut self.runs.participants[n];
        it.has_arrived = true;
        let arrival = Arrival {
            participant: label(&it.name()),
            arrival_id: it.arrival_id().into(),
            size: self.plan.runs.barriers[it.barrier].participants.len() as u32,
            members: None,
            timeout: Duration::from_mins(10),
        };
        let barrier = label(&it.barrier());
        trace!(self, "{} arrives at {barrier} ({})", arrival.participant, arrival.arrival_id);
        self.call(Caller::Participant(n), async move {
            Answer::Arrived(rounds.arrive(&barrier, arrival, wait).await)
        })
    }

    pub(super) fn participant_hears(
        &mut self,
        n: usize,
        standing: Result<ArrivalStanding, Ended>,
    ) -> Checked {
        let it = &self.runs.participants[n];
        let (barrier, turn) = (it.barrier, it.turn);
        let mut after: Micros = 10 * MILLI;
        match standing {
            Ok(ArrivalStanding::Released { generation, .. }) => {
                trace!(self, "participant {n} is let go, generation {generation}");
                let others = self.runs.participants.iter().filter(|it| it.barrier == barrier);
                let is_early = |it: &&Participant| !it.is_done && (it.turn, it.has_arrived) < (turn, true);
                if let Some(early) = others.clone().find(is_early) {
                    return Err(format!(
                        "{} is let go from use {turn} of {}, and {} has not arrived",
                        self.runs.participants[n].name(),
                        early.barrier(),
                        early.name()
                    ));
                }
                let known = *self.runs.told.generations.entry((barrier, turn)).or_insert(generation);
                if known != generation {
                    return Err(format!(
                        "use {turn} of barrier {barrier} is generation {known}, and is {generation}"
                    ));
                }
                let uses = self.plan.runs.barriers[barrier].uses;
                let it = &mut self.runs.participants[n];
                (it.turn, it.has_arrived, it.is_done) = (turn + 1, false, turn == uses);
            }
            Ok(ArrivalStanding::Waiting { .. }) => {}
            Err(Ended::Barrier(ArrivalRefusal::Gone)) => after = 200 * MILLI,
            Err(why) if self.shortage.may_be_why(&why) => after = 200 * MILLI,
            Err(why) => return Err(format!("participant {n} is refused: {why}")),
        }
        self.at(after, Event::Arrives(n));
        Ok(())
    }

    pub(super) fn announces(&mut self, pod: usize) -> Checked {
        if self.runs.pods[pod].went.is_some() || self.has_call(Caller::Pod(pod)) {
            return Ok(());
        }
        let Some((server, wait)) = self.server_and_wait(Event::Announces(pod)) else { return Ok(()) };
        let (gates, stores) = (Arc::clone(&server.gates), Arc::clone(&server.stores));
        let it = &mut self.runs.pods[pod];
        it.has_announced = true;
        let (run, name) = (it.run(), format!("pod-{}-{}", it.gate, it.number));
        let said = Announcement {
            pod: name,
            uid: String::new(),
            node_rank: None,
            nodes: Nodes::exactly(self.plan.runs.gates[it.gate].pods.len() as u32),
            address: [10, 1, it.gate as u8, it.number as u8].into(),
            torch: None,
            world_size: None,
            ip: None,
            restarts: false,
        };
        trace!(self, "{} announces itself", said.pod);
        self.call(Caller::Pod(pod), async move {
            let standing = gates.hold(&run, &said, wait, || None).await;
            let named = standing.map(|standing| {
                let is_let_go = matches!(standing, PodStanding::Go(_));
                let store = is_let_go.then(|| stores.store_for_run(&run).ok()).flatten();
                (standing, store.map(|store| store.port))
            });
            Answer::Held(named)
        })
    }

    pub(super) fn pod_hears(
        &mut self,
        pod: usize,
        standing: Result<(PodStanding, Option<u16>), NotHeld>,
    ) -> Checked {
        match standing {
            Ok((PodStanding::Go(_), port)) => {
                let gate = self.runs.pods[pod].gate;
                trace!(self, "pod {pod} may go, store {port:?}");
                let others = || self.runs.pods.iter().filter(|it| it.gate == gate);
                if others().any(|it| !it.has_announced) {
                    return Err(format!("pod {pod} may go, and not all of its run are there"));
                }
                let Some(port) = port else { return Err(format!("pod {pod} has no store")) };
                let has_another = |it: &Pod| it.went.is_some_and(|other| other != port);
                // The store is given up when nobody has used it for a long time.
                if others().any(has_another)
                    && self.runs.went_at.get(&gate).is_some_and(|at| self.now < at + 5 * SECOND)
                {
                    return Err(format!(
                        "pod {pod} is sent to the store on {port}, and another pod elsewhere"
                    ));
                }
                self.runs.went_at.entry(gate).or_insert(self.now);
                self.runs.pods[pod].went = Some(port);
            }
            Ok((PodStanding::Waiting(_), _)) => self.at(10 * MILLI, Event::Announces(pod)),
            Ok((PodStanding::Parked { .. }, _)) => return Err(format!("pod {pod} is parked")),
            Err(why) if self.shortage.may_be_why(&why) => self.at(200 * MILLI, Event::Announces(pod)),
            Err(why) => return Err(format!("pod {pod} is refused: {why}")),
        }
        Ok(())
    }

    /// What has not come to its end, if anything.
    pub(super) fn holds_problem(&self) -> Option<String> {
        let held = self.runs.participants.iter().find(|it| !it.is_done);
        if let Some(it) = held {
            return Some(format!("{} waits at {}, use {}", it.name(), it.barrier(), it.turn));
        }
        let pod = self.runs.pods.iter().position(|it| it.went.is_none());
        pod.map(|pod| format!("pod {pod} waits at its gate"))
    }

    /// The server died in a way that may lose what it had told, so that does not count any more.
    pub(super) fn forget_runs(&mut self) {
        self.runs.truths.iter_mut().for_each(super::super::truth::RunTruth::forget);
        self.runs.told = Told::default();
        self.runs.went_at.clear();
        // Workers do not connect twice.
        for it in &mut self.runs.nodes {
            if let Doing::Works { port, .. } = &mut it.doing {
                *port = None;
            }
        }
        // Participants and pods that were let through do not come again, so the others would wait for ever.
        for it in &mut self.runs.participants {
            it.is_done = true;
        }
        for it in &mut self.runs.pods {
            it.went = it.went.or(Some(0));
        }
    }
}
