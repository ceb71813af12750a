//! Requests of the HTTP API in flight: the real code of the server, driven by hand.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::super::mutants::Mutant;
use super::super::plan::{Keeping, MILLI, Micros, SECOND};
use super::super::server::Flag;
use super::nodes::{Doing, label, run_id};
use super::{Checked, Event, World};
use rallypoint_rendezvous::barrier::ArrivalStanding;
use rallypoint_rendezvous::gate::PodStanding;
use rallypoint_rendezvous::{Action, HeartbeatView, JoinStanding};
use rallypoint_server::{Ended, Joined, NotExpected, NotHeld};

/// The sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    Node(usize),
    /// A participant of a barrier.
    Participant(usize),
    Pod(usize),
    Operator(usize),
}

/// The answer to a request.
pub(super) enum Answer {
    Joined(Result<Joined, Ended>),
    Beat(Result<HeartbeatView, Ended>),
    Arrived(Result<ArrivalStanding, Ended>),
    /// With the port of the run's store.
    Held(Result<(PodStanding, Option<u16>), NotHeld>),
    Expects(Result<Option<String>, NotExpected>),
}

pub(super) struct Call {
    caller: Caller,
    /// Gives the answer. `None` if the answer is held for too long.
    task: Pin<Box<dyn Future<Output = Option<Answer>>>>,
    woken: Arc<Flag>,
    /// It will be polled in a moment.
    is_due: bool,
}

impl Call {
    pub(super) fn is_of_operator(&self) -> bool {
        matches!(self.caller, Caller::Operator(_))
    }
}

impl World {
    pub(super) fn has_call(&self, caller: Caller) -> bool {
        self.runs.calls.values().any(|call| call.caller == caller)
    }

    /// The server gets a request. Its answer is held until it may leave.
    pub(super) fn call(&mut self, caller: Caller, task: impl Future<Output = Answer> + 'static) -> Checked {
        let Some(stores) = self.server.as_ref().map(|server| Arc::clone(&server.stores)) else {
            return Ok(());
        };
        let is_covered = !self.is(Mutant::AnswerBeforeCommit);
        let task = async move { if is_covered { stores.covered(task).await } else { Some(task.await) } };
        let no = self.runs.next_call;
        self.runs.next_call += 1;
        if let Caller::Node(node) = caller
            && let label = self.runs.nodes[node].label().to_string()
            && let Some(last) = self.runs.heard.get(&label)
        {
            const TOLD_WITHIN: Micros = 4 * SECOND;
            let silence = self.now - last;
            let known = self.runs.silences.entry(label).or_default();
            // The longest silence counts until it has been reported.
            if silence >= known.0 || self.now > known.1 + TOLD_WITHIN {
                *known = (silence, self.now);
            }
        }
        self.is_heard(caller);
        let call = Call { caller, task: Box::pin(task), woken: Arc::default(), is_due: false };
        self.runs.calls.insert(no, call);
        self.poll_call(no)
    }

    pub(super) fn poll_call(&mut self, no: u64) -> Checked {
        let Some(call) = self.runs.calls.get_mut(&no) else { return Ok(()) };
        call.is_due = false;
        let waker = Waker::from(Arc::clone(&call.woken));
        let polled = call.task.as_mut().poll(&mut Context::from_waker(&waker));
        let caller = call.caller;
        self.look_at_disk()?;
        if self.server.is_none() {
            // The poll has killed the server.
            return Ok(());
        }
        let Poll::Ready(answer) = polled else {
            if self.plan.keeping == Keeping::Disk {
                self.soon(Event::Sync(self.server_life));
            }
            return Ok(());
        };
        let Some(mut answer) = answer else {
            trace!(self, "the answer to {caller:?} was held for too long");
            self.is_heard(caller);
            self.runs.calls.remove(&no);
            self.is_cut(caller);
            return Ok(());
        };
        if let Caller::Node(node) = caller {
            self.node_is_told(node, &mut answer)?;
        }
        if let Caller::Node(node) = caller
            && self.is_node_stopped(node)
        {
            // A stopped process finds its answer when it continues.
            self.is_heard(caller);
            self.runs.late.insert(node, answer);
            self.runs.calls.remove(&no);
            return Ok(());
        }
        self.is_heard(caller);
        self.runs.calls.remove(&no);
        if !self.is_calm && self.runs.random.one_in(16) {
            trace!(self, "the answer to {caller:?} is lost");
            self.is_cut(caller);
            return Ok(());
        }
        self.answered(caller, answer)
    }

    pub(super) fn answered(&mut self, caller: Caller, answer: Answer) -> Checked {
        match (caller, answer) {
            (Caller::Node(node), Answer::Joined(joined)) => self.node_joined(node, joined),
            (Caller::Node(node), Answer::Beat(beat)) => self.node_beat(node, beat),
            (Caller::Participant(n), Answer::Arrived(standing)) => self.participant_hears(n, standing),
            (Caller::Pod(pod), Answer::Held(standing)) => self.pod_hears(pod, standing),
            (Caller::Operator(n), Answer::Expects(said)) => self.operator_hears(n, said),
            _ => Err("an answer to another question".into()),
        }
    }

    fn is_cut(&mut self, caller: Caller) {
        match caller {
            Caller::Node(node) => self.node_is_cut(node),
            Caller::Participant(n) => self.at(200 * MILLI, Event::Arrives(n)),
            Caller::Pod(pod) => self.at(200 * MILLI, Event::Announces(pod)),
            // Nobody knows whether the change was made.
            Caller::Operator(_) => {}
        }
    }

    /// The server hears from a node now: its request comes, or ends.
    fn is_heard(&mut self, caller: Caller) {
        if let Caller::Node(node) = caller {
            self.runs.heard.insert(self.runs.nodes[node].label().to_string(), self.now);
        }
    }

    /// The connection of a request breaks. `false` if there is no request.
    pub(super) fn drop_calls(&mut self, caller: Caller) -> bool {
        if self.has_call(caller) {
            self.is_heard(caller);
        }
        let before = self.runs.calls.len();
        self.runs.calls.retain(|_, call| call.caller != caller);
        if let Caller::Node(node) = caller {
            self.runs.late.remove(&node);
        }
        self.runs.calls.len() < before
    }

    /// The server is gone: its requests end, and it does not notice.
    pub(super) fn drop_all_calls(&mut self) {
        let calls = std::mem::take(&mut self.runs.calls);
        for caller in calls.values().map(|call| call.caller).collect::<Vec<_>>() {
            self.is_heard(caller);
            self.is_cut(caller);
        }
        self.runs.keeper = None;
        // The next server counts from its own start.
        self.runs.unused.clear();
    }

    /// Woken requests get their turn. After time has passed, `all` requests do.
    pub(super) fn look_at_calls(&mut self, all: bool) {
        let is_forgotten = self.is(Mutant::JoinNotWoken) && !all;
        let due: Vec<u64> = (self.runs.calls.iter_mut())
            .filter(|(_, call)| (call.woken.take() || all) && !call.is_due && !is_forgotten)
            .map(|(&no, call)| {
                call.is_due = true;
                no
            })
            .collect();
        for no in due {
            let after = self.runs.random.below(300);
            self.at(after, Event::Poll(no));
        }
        self.keep_time(all);
    }

    /// The server's own timer of runs.
    fn keep_time(&mut self, is_tick: bool) {
        let Some(server) = self.server.as_ref().filter(|_| !self.is(Mutant::DeadlineMissed)) else { return };
        let rounds = Arc::clone(&server.rounds);
        let (task, woken) = self.runs.keeper.get_or_insert_with(|| {
            let flag = Arc::<Flag>::default();
            (Box::pin(async move { rounds.keep_time().await }), flag)
        });
        if woken.take() || is_tick {
            let waker = Waker::from(Arc::clone(woken));
            let _never = task.as_mut().poll(&mut Context::from_waker(&waker));
        }
    }

    /// No request waits for something that has happened already, and no deadline was missed.
    pub(super) fn check_waiting(&self) -> Checked {
        let Some(server) = &self.server else { return Ok(()) };
        let now = self.timestamp();
        let late = server
            .rounds
            .inspect(|core, barriers| core.next_deadline().into_iter().chain(barriers.next_deadline()).min());
        // The server counts time from its own start.
        let own = rallypoint_protocol::ids::Timestamp(
            now.0.saturating_sub(std::time::Duration::from_micros(self.runs.started)),
        );
        if let Some(at) = late.filter(|at| own.since(*at) > std::time::Duration::from_millis(600)) {
            return Err(format!("a deadline of the runs was at {at:?}, and it is {own:?}"));
        }
        for call in self.runs.calls.values().filter(|call| !call.is_due) {
            let misses = match call.caller {
                Caller::Node(node) => {
                    let it = &self.runs.nodes[node];
                    let (run, who) = (run_id(it.run), it.label());
                    server.rounds.inspect(|core, _| match it.doing {
                        Doing::Joins => {
                            matches!(core.standing(&run, &who), Ok(JoinStanding::Complete { .. }))
                        }
                        Doing::Works { place, .. } => {
                            core.action(&run, &who, place.round).action != Action::Continue
                        }
                        Doing::Absent => false,
                    })
                }
                Caller::Participant(n) => {
                    let it = &self.runs.participants[n];
                    let (name, who) = (label(&it.barrier()), label(&it.name()));
                    let id = it.arrival_id();
                    server.rounds.inspect(|_, barriers| {
                        let standing = barriers.standing(&name, &who, &id, own);
                        matches!(standing, Ok(ArrivalStanding::Released { .. }))
                    })
                }
                Caller::Pod(pod) => {
                    let gates = server.gates.look();
                    let gate = gates.of(&self.runs.pods[pod].run());
                    gate.is_some_and(|gate| gate.opened().is_some())
                }
                Caller::Operator(_) => false,
            };
            // An answer may still wait for the disk.
            if misses && self.plan.keeping != Keeping::Disk {
                return Err(format!("{:?} waits for what has happened", call.caller));
            }
        }
        Ok(())
    }
}
