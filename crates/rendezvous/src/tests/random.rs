//! Random schedules of nodes, networks, operators and servers, and what must hold after every step.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const MIN: u32 = 2;
const MAX: u32 = 4;

#[derive(Debug, Clone)]
enum Step {
    /// A node joins, retries, or joins again because its last answer said so.
    Join(usize),
    /// It falls silent.
    Cut(usize),
    /// The connection of its poll breaks.
    Break(usize),
    /// It sends a heartbeat for the round in which it believes to be.
    Beat(usize),
    /// Its process ends, and another process takes its name.
    Restart(usize),
    Leave(usize, Option<Outcome>),
    Close,
    Extend,
    /// Seconds pass.
    Wait(u64),
    /// A peer that is in no round reports that it is in this one.
    Stranger(u64),
    /// The server forgets everything.
    ServerRestart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let node = 0..6_usize;
    let step = prop_oneof![
        10 => node.clone().prop_map(Step::Join),
        3 => node.clone().prop_map(Step::Cut),
        3 => node.clone().prop_map(Step::Break),
        6 => node.clone().prop_map(Step::Beat),
        1 => node.clone().prop_map(Step::Restart),
        1 => (node, prop_oneof![Just(None), Just(Some(Outcome::Succeeded)), Just(Some(Outcome::Failed))])
            .prop_map(|(node, outcome)| Step::Leave(node, outcome)),
        6 => prop_oneof![Just(1), Just(5), Just(16), Just(40), 1..2000_u64].prop_map(Step::Wait),
        2 => prop_oneof![1..6_u64, Just((1 << 48) - 1), any::<u64>()].prop_map(Step::Stranger),
        1 => Just(Step::ServerRestart),
        1 => prop_oneof![3 => Just(Step::Extend), 1 => Just(Step::Close)],
    ];
    proptest::collection::vec(step, 1..120)
}

/// What a node believes.
#[derive(Debug, Clone, Default)]
struct Node {
    join_id: u32,
    /// Its place, from the last answer to its join.
    place: Option<(u64, u32, u32)>,
    waits: bool,
    asked_rank: bool,
}

/// The state before a step.
#[derive(Debug, Default)]
struct Before {
    /// The nodes of the current round that are surely alive.
    nodes: BTreeSet<(u64, String)>,
    /// The time that the forming round still has.
    deadline: Option<Duration>,
    /// Whether no node of the round may still report.
    is_whole: bool,
}

struct World {
    table: Table,
    nodes: Vec<Node>,
    /// The greatest round number that this server has completed or been told.
    told: u64,
    seen: usize,
}

fn name(n: usize) -> String {
    format!("n{n}")
}

impl World {
    fn new() -> Self {
        let nodes = (0..6).map(|n| Node { asked_rank: n == 1, ..Node::default() }).collect();
        Self { table: Table::new(), nodes, told: 0, seen: 0 }
    }

    fn join_of(&self, n: usize) -> Join {
        let node = &self.nodes[n];
        let previous = node.place.map(|(round, rank, _)| RankInRound { round, rank });
        let rank = node.asked_rank.then_some(1);
        let join = again(&name(n), &node.join_id.to_string(), MIN, MAX);
        let wanted = Wanted { grace: Some(SECOND), ..join.wanted };
        Join { rank, previous, wanted, ..join }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Join(n) => {
                if !self.nodes[n].waits {
                    self.nodes[n].join_id += 1;
                }
                let join = self.join_of(n);
                let previous = join.previous;
                let answer = self.table.join(join);
                if answer.is_ok() && self.table.completed.len() == self.seen {
                    let learned = previous.filter(|place| place.can_be_learned());
                    self.told = self.told.max(learned.map_or(0, |place| place.round));
                }
                self.take_answer(n, answer);
            }
            Step::Cut(n) => self.table.cut(&name(n)),
            Step::Break(n) => {
                self.table.core.cut(&run(), &label(&name(n)), self.table.now);
                self.table.collect();
            }
            Step::Beat(n) => {
                let node = self.nodes[n].clone();
                if let (Some((round, rank, world)), false) = (node.place, node.waits) {
                    let mut report = report(&name(n), round, rank, world, MAX);
                    report.join_id = node.join_id.to_string().into();
                    report.wanted.min_nodes = MIN;
                    self.table.core.heartbeat(&run(), report, self.table.now).expect("a view");
                    self.table.core.park_in_round(&run(), &label(&name(n)), round);
                    self.table.collect();
                    self.told = self.told.max(self.learned().unwrap_or_default().0);
                }
            }
            Step::Restart(n) => {
                self.table.cut(&name(n));
                self.nodes[n] = Node {
                    join_id: self.nodes[n].join_id,
                    asked_rank: self.nodes[n].asked_rank,
                    ..Node::default()
                };
            }
            Step::Leave(n, outcome) => {
                self.table.leave_with(&name(n), outcome);
                self.nodes[n].waits = false;
            }
            Step::Close => {
                let _ = self.table.core.close(&run(), "the test", self.table.now);
                self.table.collect();
            }
            Step::Extend => {
                let _ = self.table.core.extend(&run(), Duration::from_mins(5), self.table.now);
                self.table.collect();
            }
            Step::Wait(secs) => {
                self.table.advance(Duration::from_secs(secs));
                // A run that was forgotten begins again.
                if !self.table.core.runs.contains_key(&run()) {
                    self.told = 0;
                }
            }
            Step::Stranger(round) => {
                let mut report = report("stranger", round.max(1), 0, MIN, MAX);
                report.wanted.min_nodes = MIN;
                self.table.core.heartbeat(&run(), report, self.table.now).expect("a view");
                self.table.collect();
                self.told = self.told.max(self.learned().unwrap_or_default().0);
            }
            Step::ServerRestart => {
                let now = self.table.now;
                let completed = std::mem::take(&mut self.table.completed);
                self.told = 0;
                self.table = Table { now, completed, ..Table::new() };
            }
        }
    }

    /// The number of a round that was learned from reports, and whether some of its nodes may still report.
    fn learned(&self) -> Option<(u64, bool)> {
        let current = self.table.core.runs.get(&run())?.current.as_ref()?;
        current.adoption.as_ref().map(|_| (current.round.number, current.unreported() > 0))
    }

    fn take_answer(&mut self, n: usize, answer: Result<JoinStanding, RunRefusal>) {
        let node = &mut self.nodes[n];
        match answer {
            Ok(JoinStanding::Complete { round, rank }) => {
                let world = (round.participants.len() as u32).max(rank + 1);
                node.place = Some((round.number, rank, world));
                node.waits = false;
            }
            Ok(_) => node.waits = true,
            Err(_) => node.waits = false,
        }
    }

    /// Waiting polls get the answers of the last step.
    fn answer_polls(&mut self) {
        for n in 0..self.nodes.len() {
            if self.nodes[n].waits {
                let standing = self.table.core.standing(&run(), &label(&name(n)));
                // A restarted server does not know the join. The node's retry will join again.
                if !matches!(standing, Err(RunRefusal::Left | RunRefusal::UnknownRun)) {
                    self.take_answer(n, standing);
                }
            }
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        for round in &self.table.completed[self.seen..] {
            let nodes = round.participants.len() as u32;
            prop_assert!((MIN..=MAX).contains(&nodes), "round {} has {nodes} nodes", round.number);
            let members: BTreeSet<String> = round.participants.iter().map(|p| p.node.to_string()).collect();
            prop_assert_eq!(members.len() as u32, nodes, "each node once");
            prop_assert!(round.number > self.told, "round {} after {}", round.number, self.told);
            self.told = round.number;
        }
        self.seen = self.table.completed.len();
        let snapshots = self.table.core.snapshot(self.table.now);
        let Some(view) = snapshots.first() else { return Ok(()) };
        let in_round: Vec<&NodeSnapshot> =
            view.nodes.iter().filter(|n| matches!(n.state, NodeState::InRound { .. })).collect();
        let ranks: BTreeSet<u32> = in_round
            .iter()
            .filter_map(|n| match n.state {
                NodeState::InRound { rank } => Some(rank),
                _ => None,
            })
            .collect();
        prop_assert_eq!(ranks.len(), in_round.len(), "ranks are distinct: {:?}", view);
        prop_assert_eq!(in_round.len() as u32, view.in_round);
        prop_assert!(ranks.iter().all(|rank| *rank < MAX));
        let count =
            |wanted: fn(&NodeState) -> bool| view.nodes.iter().filter(|n| wanted(&n.state)).count() as u32;
        prop_assert_eq!(count(|state| matches!(state, NodeState::Waiting { .. })), view.waiting);
        prop_assert_eq!(count(|state| matches!(state, NodeState::Redundant { .. })), view.redundant);
        // With enough nodes and nobody to wait for, the round is complete, at the latest after the last call.
        if view.waiting >= MAX {
            let waits = !self.table.core.runs[&run()].doubtful.is_empty();
            prop_assert!(view.state == RoundState::Closed || waits, "a full round waits: {view:?}");
        }
        if view.waiting > 0 {
            let closes_at = self.table.core.runs[&run()].closes_at().expect("who waits has a deadline");
            prop_assert!(closes_at > view.at);
        }
        prop_assert!(
            self.table.core.next_deadline().is_none_or(|at| at >= self.table.now),
            "no deadline is missed"
        );
        let run = &self.table.core.runs[&run()];
        // Who is silent too long is lost, and who has closed its connection sooner.
        let is_late =
            |member: &&run::Member| member.may_be_late() && member.given_up(&run.terms) <= self.table.now;
        prop_assert_eq!(run.members.values().find(is_late).map(|member| &member.info.name), None);
        let parked = run.members.values().filter(|member| member.parked).count();
        prop_assert_eq!(run.silent_since().is_none(), parked > 0, "{} polls wait", parked);
        let members = run.members.iter().map(|(node, member)| member.memory(node)).sum::<usize>();
        prop_assert_eq!(run.members_memory, members);
        prop_assert_eq!(
            self.table.core.memory(),
            self.table.core.runs.values().map(Run::memory).sum::<usize>()
        );
        prop_assert!(view.succeeded <= view.round_size, "{view:?}");
        prop_assert!(view.finished.is_none() || view.succeeded == view.round_size, "{view:?}");
        // At most one round goes on, and all nodes that are told to go on are in it.
        let going_on: BTreeSet<u64> = (0..self.nodes.len())
            .filter_map(|n| Some((n, self.nodes[n].place?.0)))
            .filter(|(n, round)| self.table.action(&name(*n), *round) == Action::Continue)
            .map(|(_, round)| round)
            .collect();
        prop_assert!(going_on.len() <= 1, "two rounds go on: {going_on:?}");
        Ok(())
    }

    /// The state to compare with the state after a step.
    fn alive_in_round(&self) -> Before {
        let snapshots = self.table.core.snapshot(self.table.now);
        let Some(view) = snapshots.first() else { return Before::default() };
        let core = &self.table.core.runs[&run()];
        let is_alive =
            |n: &&NodeSnapshot| core.members[&n.node].parked && matches!(n.state, NodeState::InRound { .. });
        let nodes = view.nodes.iter().filter(is_alive).map(|n| (view.round, n.node.to_string())).collect();
        let is_whole = self.learned().is_none_or(|(_, is_open)| !is_open);
        Before { nodes, deadline: core.closes_at().map(|at| at.since(view.at)), is_whole }
    }

    /// A node that was alive in a round is still in it, whatever other nodes did.
    fn check_stays(&self, step: &Step, before: &Before) -> Result<(), TestCaseError> {
        let Before { nodes, deadline, is_whole } = before;
        let actor = match step {
            // A report of a later round ends a learned round that is not complete yet.
            Step::Beat(_) | Step::Stranger(_) if !is_whole => return Ok(()),
            Step::Join(n)
            | Step::Leave(n, _)
            | Step::Restart(n)
            | Step::Cut(n)
            | Step::Break(n)
            | Step::Beat(n) => Some(name(*n)),
            Step::Extend | Step::Stranger(_) => None,
            Step::Wait(secs) if Duration::from_secs(*secs) < deadline.unwrap_or(Duration::from_mins(30)) => {
                None
            }
            // Closing ends the round, and a restarted server knows no node.
            Step::Wait(_) | Step::Close | Step::ServerRestart => return Ok(()),
        };
        let now_in = self.alive_in_round().nodes;
        let gone = nodes
            .iter()
            .find(|(round, node)| Some(node) != actor.as_ref() && !now_in.contains(&(*round, node.clone())));
        prop_assert!(gone.is_none(), "{gone:?} was in its round and alive before {step:?}");
        Ok(())
    }

    /// From any state: when nothing is in the way any more, all nodes that keep trying get into one round.
    fn all_meet_at_last(&mut self) -> Result<(), TestCaseError> {
        // All polls break, all nodes end, and closed runs are over. What is left must not block any node.
        (0..6).for_each(|n| self.table.cut(&name(n)));
        self.table.advance(Duration::from_mins(2));
        for n in 0..4 {
            self.nodes[n] = Node { join_id: self.nodes[n].join_id + 1, ..Node::default() };
            let join = self.join_of(n);
            let answer = self.table.join(join);
            prop_assert!(answer.is_ok(), "{answer:?}");
        }
        for n in 0..4 {
            prop_assert!(
                self.table.rank(&name(n)).is_some(),
                "{n} has not met: {:?}",
                self.table.core.snapshot(self.table.now)
            );
        }
        Ok(())
    }
}

fn rounds_are_sound_and_waits_end(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new();
    for step in steps {
        let before = world.alive_in_round();
        world.step(step);
        world.check()?;
        world.check_stays(step, &before)?;
        world.answer_polls();
    }
    world.all_meet_at_last()
}

/// A restarted server learns the terms from the next join. With them the time of a node may be over that
/// closed its connection before.
#[test]
fn terms_that_come_later_hold_for_who_closed_its_connection_before() {
    let joins = [2, 1, 3, 0].map(Step::Join);
    let after = [Step::ServerRestart, Step::Beat(2), Step::Break(2), Step::Wait(1), Step::Join(3)];
    let steps: Vec<Step> = joins.into_iter().chain(after).collect();
    rounds_are_sound_and_waits_end(&steps).expect("sound");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_happens_rounds_are_sound_and_waits_end(steps in steps()) {
        rounds_are_sound_and_waits_end(&steps)?;
    }

    #[test]
    fn nobody_waits_beyond_the_deadline(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.answer_polls();
        }
        // No node does anything more, and polls stay: at the deadline each waiting node has a round or a
        // reason.
        let waiting = |world: &World| -> (BTreeSet<String>, Option<Duration>) {
            let snapshots = world.table.core.snapshot(world.table.now);
            let nodes = snapshots.iter().flat_map(|view| &view.nodes);
            let waits = |n: &&NodeSnapshot| matches!(n.state, NodeState::Waiting { .. });
            let names = nodes.filter(waits).map(|n| n.node.to_string()).collect();
            // A last call may end before, and begin again.
            let forming = world.table.core.runs.get(&run()).and_then(|run| run.forming.as_ref());
            (names, forming.map(|forming| forming.deadline.since(world.table.now)))
        };
        let (before, left) = waiting(&world);
        world.table.advance(left.unwrap_or_default());
        let (after, _) = waiting(&world);
        prop_assert!(before.is_disjoint(&after), "{before:?} {after:?}");
    }
}
