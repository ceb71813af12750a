//! Native runs: the rendezvous and insight together, beside the traffic of a store.

use std::time::Duration;

use super::lab::{Lab, PORT};
use crate::{Settings, StoreOwner};
use rallypoint_api::{Evidence, Explanation, KnownFrom, RunKind, RunState, Seen, Severity};
use rallypoint_protocol::ids::{Label, RunId};
use rallypoint_rendezvous::{
    Action, Decision, Join, JoinStanding, KeptChange, LeaveRequest, NodeInfo, Outcome, RankInRound,
    Rendezvous, Report, RoundState, RunRefusal, RunSnapshot, Terms, Wanted,
};
use rallypoint_store::{DropCause, Observed, StaleKeyConfig};

/// A native run beside a laboratory.
pub(super) struct Native {
    pub(super) lab: Lab,
    core: Rendezvous,
    run: RunId,
    nodes: (u32, u32),
    /// What its nodes ask for, if not for the default.
    keep_alive: Option<Duration>,
    /// The store of a complete round.
    store: Option<u16>,
}

const ROLES: &str = "/torch.rendezvous.job.1/torchelastic/role_info";

fn address(rank: u32) -> String {
    format!("10.0.0.{rank}")
}

fn failed() -> LeaveRequest {
    LeaveRequest { why: Some(label("ChildFailedError")), outcome: Some(Outcome::Failed) }
}

fn label(text: &str) -> Label {
    Label::new(text).expect("a label")
}

impl Native {
    fn new(max: u32) -> Self {
        Self::of(Lab::new(), (2, max))
    }

    pub(super) fn soon(nodes: (u32, u32)) -> Self {
        Self::of(Lab::soon(), nodes)
    }

    fn of(lab: Lab, nodes: (u32, u32)) -> Self {
        let core = Rendezvous::new(Terms::default(), 10);
        Self { lab, core, run: RunId::new(b"job"), nodes, keep_alive: None, store: None }
    }

    /// Insight hears what has happened.
    fn tell(&mut self) {
        for decision in self.core.take_decisions() {
            if let Decision::Tell(run, fact) = decision {
                if let Some(snapshot) = self.core.snapshot_of(&run, self.lab.now) {
                    self.observe(&snapshot);
                }
                self.lab.insight.tell_native(&run, &fact, self.lab.now);
            }
        }
        for run in self.core.take_changed() {
            if let Some(snapshot) = self.core.snapshot_of(&run, self.lab.now) {
                self.observe(&snapshot);
            }
        }
    }

    fn observe(&mut self, snapshot: &RunSnapshot) {
        let store = self.store.filter(|_| snapshot.state == RoundState::Complete);
        self.lab.insight.observe_native(snapshot, store);
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            min_nodes: self.nodes.0,
            max_nodes: self.nodes.1,
            keep_alive: self.keep_alive,
            ..Wanted::default()
        }
    }

    fn info(name: &str, address: &str) -> NodeInfo {
        let (name, address) = (label(name), label(address));
        NodeInfo { name, address, role: None, local_world_size: None, torch_version: None }
    }

    fn join(&mut self, node: &str, join_id: &str, previous: Option<RankInRound>) {
        // Whether it is taken is what insight is asked for.
        let _ = self.join_as(node, node, "10.0.0.1", join_id, previous);
    }

    /// A node of that name and address joins, and waits for the answer.
    pub(super) fn join_as(
        &mut self,
        node: &str,
        name: &str,
        address: &str,
        join_id: &str,
        previous: Option<RankInRound>,
    ) -> Result<(), RunRefusal> {
        let join = Join {
            node: label(node),
            join_id: join_id.into(),
            info: Self::info(name, address),
            rank: None,
            payload: None,
            watched: true,
            previous,
            wanted: self.wanted(),
        };
        let joined = self.core.join(&self.run, join, self.lab.now);
        self.ask_again(node);
        joined
    }

    /// Its join is asked for again, and waits.
    pub(super) fn ask_again(&mut self, node: &str) {
        self.core.park(&self.run, &label(node));
        self.tell();
    }

    /// How its join stands.
    pub(super) fn standing(&self, node: &str) -> Result<JoinStanding, RunRefusal> {
        self.core.standing(&self.run, &label(node))
    }

    fn beat(&mut self, node: &str, rank: u32) {
        let place = RankInRound { round: 1, rank };
        self.beat_as(node, node, "10.0.0.1", "1", place, 2).expect("a view");
    }

    /// A heartbeat, which waits for something to do.
    pub(super) fn beat_as(
        &mut self,
        node: &str,
        name: &str,
        address: &str,
        join_id: &str,
        place: RankInRound,
        world_size: u32,
    ) -> Result<Action, RunRefusal> {
        let report = Report {
            node: label(node),
            join_id: join_id.into(),
            info: Self::info(name, address),
            place,
            world_size,
            wanted: self.wanted(),
        };
        let view = self.core.heartbeat(&self.run, report, self.lab.now)?;
        self.core.park_in_round(&self.run, &label(node), place.round);
        self.tell();
        Ok(view.action)
    }

    /// The server is restarted, with its journal: it knows of the complete round, and not who waited.
    pub(super) fn restart_server(&mut self) {
        let kept = self.core.kept(&self.run);
        self.core = Rendezvous::new(Terms::default(), 10);
        if let Some(KeptChange::Run(run, record, members)) = kept {
            let members = members.into_iter().map(|(_, member)| member).collect();
            self.core.restore(&run, *record, members, self.lab.now);
        }
        self.tell();
    }

    /// The connection of its request breaks.
    pub(super) fn cut(&mut self, node: &str) {
        self.core.cut(&self.run, &label(node), self.lab.now);
        self.tell();
    }

    /// Its request has been answered, and no other has come.
    pub(super) fn unpark(&mut self, node: &str) {
        self.core.unpark(&self.run, &label(node), self.lab.now);
        self.tell();
    }

    pub(super) fn leave(&mut self, node: &str, said: LeaveRequest) {
        self.core.leave(&self.run, &label(node), said, self.lab.now);
        self.tell();
    }

    /// Whether that closes it.
    pub(super) fn close(&mut self, by: &str) -> bool {
        let closes = self.core.close(&self.run, by, self.lab.now);
        self.tell();
        closes.unwrap_or(false)
    }

    pub(super) fn extend(&mut self, seconds: u64) {
        // Only a round that forms has a deadline.
        let _ = self.core.extend(&self.run, Duration::from_secs(seconds), self.lab.now);
        self.tell();
    }

    /// The rendezvous looks at its deadlines.
    pub(super) fn tick(&mut self) {
        self.core.tick(self.lab.now);
        self.tell();
    }

    fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.lab.pass(1.0);
            self.tick();
        }
        self.lab.pass(0.5);
    }

    /// The store of the complete round is there.
    fn open_store(&mut self) {
        self.store = Some(PORT);
        self.lab.insight.own_store(PORT, StoreOwner::Round(self.run.clone()));
        let snapshot = self.core.snapshot_of(&self.run, self.lab.now).expect("a run");
        self.observe(&snapshot);
    }

    /// An operator resets the store of the complete round, which closes it.
    fn reset_store(&mut self) {
        let reset = Observed::StoreReset { cause: DropCause::Operator };
        self.lab.insight.observe(PORT, self.lab.now, reset);
        self.lab.insight.forget_store(PORT);
    }

    /// A round of these nodes, each at an address of its own, in which all are alive. Their agents come to
    /// its store with `roles`.
    fn of_all(names: &[&str], roles: &[u32]) -> Self {
        Self::of_all_in(Lab::new(), names.len() as u32, names, roles)
    }

    /// As `of_all`, where what lasts for 3 s is said.
    fn of_all_soon(min: u32, names: &[&str]) -> Self {
        Self::of_all_in(Lab::soon(), min, names, &[])
    }

    /// A round of a, b and c, whose agents wait for b, which has told no role.
    fn without_role_of_b() -> Self {
        let mut native = Self::of_all(&["a", "b", "c"], &[0, 2]);
        let roles: Vec<String> = (0..3).map(|rank| format!("{ROLES}/{rank}")).collect();
        native.lab.wait(0, &roles.iter().map(String::as_str).collect::<Vec<_>>());
        native.lab.wait(2, &["/torch.rendezvous.job.1/torchelastic/assigned_ranks/2"]);
        native
    }

    fn of_all_in(lab: Lab, min: u32, names: &[&str], roles: &[u32]) -> Self {
        let mut native = Self::of(lab, (min, names.len() as u32));
        native.come(names);
        (0..).zip(names).for_each(|(rank, name)| native.beats(name, rank, names.len()));
        native.open_store();
        native.tell_roles(roles);
        native
    }

    /// Nodes of these names come, each at an address of its own.
    fn come(&mut self, names: &[&str]) {
        for (rank, name) in (0..).zip(names) {
            self.join_as(&format!("id{rank}"), name, &address(rank), "1", None).expect("it joins");
        }
    }

    /// One of them, in a first round of so many.
    fn beats(&mut self, name: &str, rank: u32, nodes: usize) {
        let place = RankInRound { round: 1, rank };
        let _ = self.beat_as(&format!("id{rank}"), name, &address(rank), "1", place, nodes as u32);
    }

    /// Their agents come to the store.
    fn tell_roles(&mut self, roles: &[u32]) {
        for &rank in roles {
            self.lab.come(rank, &address(rank), 100 + rank);
            self.lab.set(rank, &format!("{ROLES}/{rank}"), b"{}");
        }
    }

    /// Ranks of two, each on its host, meet in the store of the run.
    fn ranks_meet(&mut self, world: usize) {
        (0..2).for_each(|rank| self.lab.rank(rank, &format!("10.0.0.{rank}"), rank, world));
    }

    /// A node joins as `rallypoint join` does: it sends no heartbeats later.
    fn join_once(&mut self, node: &str, rank: Option<u32>) {
        let (info, wanted) = (Self::info(node, "10.0.0.1"), self.wanted());
        let (node, join_id) = (label(node), "1".into());
        let join = Join {
            node: node.clone(),
            join_id,
            info,
            rank,
            payload: None,
            watched: false,
            previous: None,
            wanted,
        };
        self.core.join(&self.run, join, self.lab.now).expect("it joins");
        self.ask_again(node.as_str());
    }

    /// The node with this rank joins again, under its name.
    fn joins_again(&mut self, name: &str, rank: u32) {
        let place = Some(RankInRound { round: 1, rank });
        self.join_as(&format!("id{rank}"), name, &address(rank), "2", place).expect("it joins");
    }

    /// The texts of what is shown of the run, by code.
    fn shown(&self, code: &str) -> Vec<String> {
        let all = self.lab.run("job").explanations.into_iter();
        all.filter(|said| said.code == code && said.holds).map(|said| said.text).collect()
    }

    /// The agent of this rank arrives at the exit barrier, and waits there.
    fn reach_exit(&mut self, rank: u32) {
        const EXIT: &str = "/torch.rendezvous.job.1/torchelastic/agent/terminal_state";
        self.lab.add(rank, &format!("{EXIT}/num_members"), 1);
        self.lab.wait(rank, &[&format!("{EXIT}/last_member")]);
    }

    /// A round of two, in which both are alive.
    fn of_two(max: u32) -> Self {
        let mut native = Self::new(max);
        native.join("a", "1", None);
        native.join("b", "1", None);
        native.pass(40);
        native.beat("a", 0);
        native.beat("b", 1);
        native.pass(5);
        assert_eq!(native.lab.complaints(), Vec::<&str>::new());
        native
    }

    fn rejoin(&mut self, node: &str, rank: u32) {
        self.join(node, "2", Some(RankInRound { round: 1, rank }));
    }
}

#[test]
fn a_newcomer_is_the_cause_of_a_new_round_and_no_node_of_the_old_one() {
    let mut native = Native::of_two(3);
    native.join("c", "1", None);
    native.pass(1);
    let run = native.lab.run("job");
    assert_eq!((run.summary.nodes.missing, run.missing), (Some(0), vec![]), "a and b are on their way");
    native.rejoin("a", 0);
    native.pass(1);
    native.rejoin("b", 1);
    native.pass(5);
    assert_eq!(native.lab.complaints(), Vec::<&str>::new());
    assert_eq!(native.lab.run("job").summary.nodes.joined, 3);
}

#[test]
fn a_silent_node_is_blamed_and_not_the_one_that_joins_again_for_it() {
    let mut native = Native::of_two(2);
    native.cut("b");
    native.pass(4);
    // The workers of a fail for it.
    native.rejoin("a", 0);
    native.pass(2);
    let blamed = native.lab.texts("round_over");
    assert_eq!(blamed.len(), 1, "{blamed:?}");
    let names: Vec<_> = native.lab.run("job").missing.into_iter().filter_map(|node| node.name).collect();
    assert!(names.is_empty() || names == ["b"], "{names:?}");
    native.pass(30);
}

#[test]
fn nodes_that_are_gone_are_missing_by_name_with_the_remedy_for_them() {
    let mut native = Native::of_two(2);
    native.leave("b", LeaveRequest { why: Some(label("its agent was told to stop")), outcome: None });
    let is_told = |native: &Native| native.shown("nodes_missing")[0].contains("told to join again: a");
    for _ in 0..8 {
        native.beat("a", 0);
        native.pass(5);
    }
    assert!(is_told(&native));
    native.rejoin("a", 0);
    native.pass(40);
    assert!(!is_told(&native));
    let run = native.lab.run("job");
    let names: Vec<_> = run.missing.iter().map(|node| (node.name.as_deref(), node.known_from)).collect();
    assert_eq!(names, [(Some("b"), KnownFrom::Left)]);
    assert!(run.explanations.iter().any(|said| said.code == "nodes_missing"));
}

#[test]
fn a_pod_that_announced_itself_and_has_not_joined_is_missing_by_name() {
    let mut native = Native::new(2);
    native.lab.gate("job", &[("a", 0, 2), ("b", 1, 2)], &[]);
    native.join("a", "1", None);
    native.pass(40);
    let run = native.lab.run("job");
    let names: Vec<_> = run.missing.iter().map(|node| (node.name.as_deref(), node.known_from)).collect();
    assert_eq!(names, [(Some("b"), KnownFrom::Announced)]);
    assert!(run.explanations.iter().any(|said| said.code == "nodes_missing"));
}

#[test]
fn a_failed_worker_and_a_refused_node_are_told_with_the_run() {
    let mut native = Native::of_two(2);
    assert!(native.close("node a"));
    native.leave("a", failed());
    native.pass(3);
    for _ in 0..3 {
        native.join("late", "1", None);
        native.pass(1);
    }
    let refused = native.lab.texts("join_refused");
    assert_eq!(refused.len(), 1, "{refused:?}");
}

#[test]
fn two_backends_under_one_id_are_two_runs_and_a_finding() {
    let mut native = Native::new(2);
    native.join("a", "1", None);
    native.pass(2);
    assert_eq!(native.lab.complaints(), Vec::<&str>::new());
    native.lab.joins(1, "job", "join");
    native.pass(3);
    let list = native.lab.insight.list(0, native.lab.now);
    let mut kinds: Vec<_> = list.runs.iter().map(|run| run.kind.name()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["c10d", "native"], "each is shown once");
    let says = |said: &Explanation| said.code == "two_backends";
    assert!(list.runs.iter().all(|run| run.explanation.as_ref().is_some_and(says)), "{:?}", list.runs);
    for kind in [RunKind::C10d, RunKind::Native] {
        let run = native.lab.insight.run("job", None, Some(kind), native.lab.now).expect("a run");
        assert!(run.explanations.iter().any(says), "{kind:?}: {:?}", run.explanations);
    }
    native.pass(40);
    assert_eq!(
        native.lab.texts("nodes_missing"),
        [""; 0],
        "the node that is missing is there, with the other backend"
    );
}

#[test]
fn what_native_nodes_did_is_shown_with_when() {
    let seen = |native: &Native, code: &str| {
        let said = native.lab.said.iter().find(|(_, said)| said.code == code);
        let (at, said) = said.unwrap_or_else(|| panic!("{code} was not said"));
        let one = |one: &Evidence| (one.seen, one.who.clone(), (at - one.at).round() as i64);
        said.evidence.iter().map(one).collect::<Vec<_>>()
    };
    let mut native = Native::of_two(2);
    native.cut("b");
    native.pass(20);
    assert_eq!(seen(&native, "run_started")[0].1, "a (10.0.0.1)");
    assert_eq!(seen(&native, "node_silent"), [(Seen::Closed, "b (10.0.0.1), rank 1".into(), 3)]);
    assert_eq!(seen(&native, "lost"), [(Seen::Closed, "b (10.0.0.1), rank 1".into(), 15)]);
    native.rejoin("a", 0);
    native.pass(40);
    let waits = seen(&native, "nodes_missing");
    assert!(matches!(&waits[..], [(Seen::Joined, who, 25..)] if who == "a"), "{waits:?}");
    let mut native = Native::of_two(2);
    assert!(native.close("node a"));
    native.leave("a", LeaveRequest { why: None, outcome: Some(Outcome::Failed) });
    native.pass(3);
    let failed = native.lab.run("job").explanations.into_iter().find(|said| !said.evidence.is_empty());
    let failed = failed.expect("it is told");
    assert_eq!((failed.code.as_str(), failed.evidence[0].seen), ("run_closed", Seen::Left));
}

/// Its agents also arrive at torch's exit barrier, in the run's store.
#[test]
fn a_native_run_is_told_once_that_it_has_finished() {
    let mut native = Native::of_two(2);
    native.open_store();
    for n in 0..2 {
        native.lab.come(n, &format!("10.0.0.{n}"), n);
        native.lab.add(n, "/torch.rendezvous.job.1/torchelastic/agent/terminal_state/num_members", 1);
    }
    native.lab.set(1, "/torch.rendezvous.job.1/torchelastic/agent/terminal_state/last_member", b"x");
    native.pass(1);
    let done = || LeaveRequest { why: None, outcome: Some(Outcome::Succeeded) };
    for node in ["a", "b"] {
        native.leave(node, done());
    }
    native.pass(5);
    assert_eq!(native.lab.texts("run_finished").len(), 1, "{:?}", native.lab.said);
    assert_eq!(native.lab.run("job").summary.state, RunState::Finished);
}

#[test]
fn a_node_that_is_stopped_is_named_before_it_is_given_up() {
    let mut native = Native::of_two(2);
    native.unpark("b");
    native.pass(8);
    let told = native.lab.said.iter().find(|(_, said)| said.code == "node_silent");
    let (at, said) = told.expect("it is named");
    assert_eq!(said.severity, Severity::Warning);
    assert!(matches!(&said.evidence[..], [heard] if heard.seen == Seen::Heard && at - heard.at > 7.0));
    let shown = native.lab.run("job").explanations;
    assert!(shown.iter().any(|said| said.code == "node_silent"), "{shown:?}");
}

#[test]
fn a_rank_of_a_native_round_that_ends_alone_is_told() {
    let play = |leaves: &[u32], breaks: bool| {
        let mut native = Native::of_two(2);
        native.lab.insight.own_store(PORT, StoreOwner::Run("job".into()));
        native.ranks_meet(2);
        native.pass(12);
        for &rank in leaves {
            native.lab.leave(rank);
        }
        if breaks {
            native.rejoin("a", 0);
        }
        native.pass(35);
        native
    };
    let native = play(&[1], false);
    let told = native.lab.said.iter().find(|(_, said)| said.code == "ranks_ended");
    let after = told.map(|(at, said)| at - said.since);
    assert!(after.is_some_and(|seconds| seconds < 8.0), "{after:?}");
    assert_eq!(native.lab.texts("ranks_ended").len(), 1);
    for healthy in [play(&[], false), play(&[0, 1], false), play(&[1], true)] {
        assert_eq!(healthy.lab.texts("ranks_ended"), Vec::<&str>::new());
    }
}

/// A node that is not heard from is named, and not its ranks: they end with it.
#[test]
fn the_ranks_of_a_native_node_that_is_not_heard_from_are_not_told_besides() {
    let mut native = Native::soon((2, 2));
    for (rank, node) in ["a", "b"].into_iter().enumerate() {
        native.join(node, "1", None);
        native.beat(node, rank as u32);
    }
    native.lab.insight.own_store(PORT, StoreOwner::Run("job".into()));
    native.ranks_meet(2);
    native.pass(5);
    native.lab.leave(1);
    native.cut("b");
    native.pass(12);
    assert_eq!(native.lab.texts("node_silent").len(), 1, "{:?}", native.lab.said);
    assert!(native.lab.texts("ranks_ended").is_empty(), "{:?}", native.lab.said);
}

/// One node died, and another has never come: both are to be looked at.
#[test]
fn a_native_round_that_lacks_more_than_what_is_silent_says_so() {
    let settings = Settings { explain_after: Duration::from_secs(4), ..Settings::default() };
    let mut native = Native::of(Lab::with(settings, StaleKeyConfig::default()), (3, 3));
    for node in ["a", "b"] {
        native.join(node, "1", None);
    }
    native.pass(2);
    native.cut("b");
    native.pass(8);
    let shown = native.lab.run("job").explanations;
    assert!(shown.iter().any(|said| said.code == "nodes_missing"));
}

#[test]
fn ranks_go_with_the_store_of_their_round() {
    let mut native = Native::of_two(2);
    native.lab.insight.own_store(PORT, StoreOwner::Run("job".into()));
    native.ranks_meet(3);
    native.pass(2);
    assert_eq!(native.lab.run("job").summary.ranks.map(|ranks| ranks.joined), Some(2));
    native.lab.insight.forget_store(PORT);
    native.pass(2);
    assert_eq!(native.lab.run("job").summary.ranks.map_or(0, |ranks| ranks.joined), 0);
}

#[test]
fn ranks_of_a_round_that_is_over_end_while_the_next_one_forms() {
    let mut native = Native::of_two(2);
    native.open_store();
    native.ranks_meet(3);
    native.pass(2);
    let there = |native: &Native| native.lab.run("job").summary.ranks.map(|ranks| ranks.joined);
    assert_eq!(there(&native), Some(2));
    native.rejoin("a", 0);
    (0..2).for_each(|rank| native.lab.leave(rank));
    native.pass(2);
    assert_eq!(there(&native), Some(0));
    assert_eq!(native.lab.texts("lost"), Vec::<&str>::new(), "their agents have ended them");
}

#[test]
fn the_chain_of_waits_leads_to_the_native_node_that_has_told_no_role() {
    let mut native = Native::without_role_of_b();
    native.pass(33);
    let said = native.lab.said.iter().find(|(_, said)| said.code == "waiting").expect("it is said");
    let mut who: Vec<_> = said.1.evidence.iter().map(|wait| wait.who.as_str()).collect();
    who.sort_unstable();
    assert_eq!(who, ["a (node rank 0)", "c (node rank 2)"]);
    // An agent whose connection closes is known by none any more.
    native.lab.leave(2);
    native.pass(2);
    assert_eq!(native.shown("waiting").len(), 1);
}

#[test]
fn agents_at_the_exit_barrier_of_a_native_run_are_told_with_those_they_wait_for() {
    let mut native = Native::of_all(&["a", "b", "c"], &[0, 1, 2]);
    native.pass(2);
    native.reach_exit(0);
    native.pass(33);
    let said = native.shown("exit_barrier");
    let text = "job: 1 of 3 nodes has finished and waited 34 s at the exit barrier; connected, not finished: \
                b (node rank 1) and c (node rank 2)";
    assert_eq!(said, [text]);
    let run = native.lab.run("job").summary;
    assert_eq!(
        (run.state, run.exit.map(|exit| exit.arrived), run.nodes.joined),
        (RunState::Exiting, Some(1), 3)
    );
    // Who gives up there has finished all the same.
    native.lab.leave(0);
    native.unpark("id0");
    native.ask_again("id0");
    native.pass(1);
    // The run is closed by a node that fails; the others are there still.
    assert!(native.close("node c"));
    native.leave("id2", failed());
    native.reach_exit(1);
    native.pass(4);
    let said = native.shown("exit_barrier");
    assert_eq!(said.len(), 1, "{said:?}");
    let nodes = native.lab.run("job").summary.nodes;
    assert_eq!((nodes.joined, nodes.gone), (2, 1));
}

#[test]
fn an_agent_at_the_exit_barrier_of_a_round_that_is_given_up_is_told_with_the_next_one() {
    let mut native = Native::of_all(&["a", "b", "c"], &[0, 1, 2]);
    native.reach_exit(0);
    native.pass(2);
    native.cut("id2");
    native.pass(16);
    let place = Some(RankInRound { round: 1, rank: 1 });
    native.join_as("id1", "b", &address(1), "2", place).expect("it joins");
    native.pass(33);
    let said = native.shown("nodes_missing");
    assert_eq!(said.len(), 1, "{said:?}");
    native.lab.leave(0);
    native.pass(2);
}

#[test]
fn ranks_that_wait_in_a_closed_run_are_told_until_they_leave() {
    let mut native = Native::of_all(&["a", "b"], &[0, 1]);
    native.lab.multi_set(
        0,
        &[
            ("/torch.rendezvous.job.1/torchelastic/assigned_ranks/0".into(), "[0, 2, 0, 2]".into()),
            ("/torch.rendezvous.job.1/torchelastic/assigned_ranks/1".into(), "[1, 2, 1, 2]".into()),
        ],
    );
    native.lab.rank(10, &address(0), 0, 2);
    native.lab.wait_for_rank(10, 1);
    native.pass(2);
    assert!(native.close("node b"));
    native.leave("id1", failed());
    native.pass(33);
    let said = native.shown("waiting");
    assert_eq!(said.len(), 1, "{said:?}");
    native.leave("id0", failed());
    native.pass(3);
    assert_eq!(native.shown("waiting"), Vec::<String>::new());
}

#[test]
fn nodes_with_one_name_are_told_with_their_addresses() {
    let mut native = Native::of_all(&["vm", "vm", "vm"], &[]);
    native.cut("id1");
    native.pass(2);
    for rank in [2, 0] {
        let place = Some(RankInRound { round: 1, rank });
        native.join_as(&format!("id{rank}"), "vm", &address(rank), "2", place).expect("it joins");
    }
    native.pass(5);
    let names = |native: &Native| {
        let missing = native.lab.run("job").missing.into_iter();
        missing.map(|node| (node.name, node.rank, node.known_from)).collect::<Vec<_>>()
    };
    let vm = |from| vec![(Some("vm at 10.0.0.1".to_owned()), Some(1), from)];
    assert_eq!(
        (names(&native), native.lab.run("job").summary.nodes.missing),
        (vm(KnownFrom::EarlierRound), Some(1))
    );
    native.pass(10);
    assert_eq!(names(&native), vm(KnownFrom::Lost));
    native.pass(20);
    native.join_as("id3", "vm", &address(3), "1", None).expect("it joins");
    native.pass(1);
}

#[test]
fn native_runs_that_would_be_complete_together_are_told_of_each_other() {
    let mut native = Native::new(3);
    native.nodes = (3, 3);
    native.join("a", "1", None);
    native.join("b", "1", None);
    native.run = RunId::new(b"jbo");
    native.join("c", "1", None);
    native.lab.pass(31.0);
    assert_eq!(native.lab.texts("nodes_missing").len(), 2, "{:?}", native.lab.said);
}

#[test]
fn who_is_silent_in_a_round_that_forms_is_not_said_to_be_there() {
    let mut native = Native::new(3);
    native.nodes = (3, 3);
    native.join("a", "1", None);
    native.join("b", "1", None);
    native.pass(25);
    native.cut("b");
    native.pass(8);
    let run = native.lab.run("job");
    assert!(run.explanations.iter().any(|said| said.code == "nodes_missing"));
}

#[test]
fn that_a_round_expires_holds_until_it_is_given_up_or_has_more_time() {
    let mut native = Native::new(2);
    native.join("a", "1", None);
    native.pass(60 * 25 + 3);
    assert_eq!(native.shown("round_deadline").len(), 1);
    native.extend(600);
    native.pass(2);
    assert_eq!(native.shown("round_deadline").len(), 0);
    native.pass(60 * 10);
    assert_eq!((native.shown("round_deadline").len(), native.lab.texts("round_deadline").len()), (1, 3));
    native.pass(60 * 5);
    assert_eq!(native.lab.texts("round_deadline").len(), 4);
    assert!(
        native.lab.run("job").explanations.iter().all(|said| said.code != "round_deadline" || !said.holds)
    );
}

#[test]
fn in_the_last_call_a_round_closes_when_that_is_over() {
    let mut native = Native::new(3);
    let closes_in = |native: &Native| {
        let run = native.lab.run("job");
        (run.summary.state, run.summary.deadline.map(|at| (at - run.now).round() as i64))
    };
    native.join("a", "1", None);
    native.pass(2);
    assert_eq!(closes_in(&native), (RunState::Joining, Some(30 * 60 - 2)));
    native.join("b", "1", None);
    native.pass(2);
    assert_eq!(closes_in(&native), (RunState::LastCall, Some(28)));
}

#[test]
fn nobody_is_told_to_join_again_where_no_node_is_left() {
    let mut native = Native::of_two(2);
    native.cut("a");
    native.cut("b");
    native.pass(20);
    let said = native.lab.said.iter().find(|(_, said)| said.code == "lost");
    assert_eq!(said.map(|(_, said)| said.severity), Some(Severity::Error));
}

#[test]
fn nodes_that_have_not_reported_after_a_restart_are_missing_by_their_ranks() {
    let mut native = Native::new(3);
    let place = RankInRound { round: 4, rank: 1 };
    native.beat_as("b", "b", &address(1), "1", place, 3).expect("a view");
    native.pass(10);
    let run = native.lab.run("job");
    let ranks: Vec<_> = run.missing.iter().filter_map(|node| node.rank).collect();
    assert_eq!((ranks, run.summary.nodes.missing), (vec![0, 2], Some(1)), "two at least, and up to three");
    let silent = native.lab.texts("node_silent");
    assert_eq!(silent.len(), 1, "{silent:?}");
}

#[test]
fn two_complete_jobs_may_have_one_id() {
    let mut native = Native::of_two(2);
    native.lab.static_node(1, "job", 1, 2);
    native.lab.static_node(0, "job", 0, 2);
    native.lab.assign_static(0, "job", 2, 1);
    native.pass(10);
    assert_eq!(native.lab.texts("two_backends"), Vec::<&str>::new());
}

#[test]
fn what_fails_after_an_operator_closed_the_store_of_a_round_is_told_with_that() {
    // Whether its ranks have met or not.
    for met in [false, true] {
        let of_round = || {
            let mut native = Native::of_all(&["a", "b"], &[0, 1]);
            for rank in 0..=u32::from(met) {
                native.lab.rank(10 + rank, &address(rank), rank, 2);
            }
            native.pass(2);
            native.reset_store();
            native.pass(1);
            let dropped = native.lab.texts("store_reset");
            assert_eq!(dropped.len(), usize::from(!met), "{dropped:?}");
            native
        };
        let mut native = of_round();
        native.pass(5);
        let held = native.lab.run("job").explanations.into_iter().find(|said| said.code == "store_reset");
        let held = held.expect("it is held");
        assert_eq!(held.severity, if met { Severity::Info } else { Severity::Warning });
        native.leave("id1", LeaveRequest::default());
        native.pass(5);
        let held = native.lab.run("job").explanations;
        assert!(held.iter().all(|said| said.code != "store_reset" || !said.holds), "{held:?}");
        let told = |native: &Native, code: &str| {
            let said = native.lab.said.iter().find(|(_, said)| said.code == code);
            assert!(said.is_some(), "{code} was not said");
        };
        let mut native = of_round();
        native.close("node b");
        native.leave("id1", failed());
        native.pass(4);
        told(&native, "run_closed");
        let mut native = of_round();
        let lost = label("its agent lost the round's store: DistNetworkError");
        native.leave("id1", LeaveRequest { why: Some(lost), outcome: None });
        native.pass(2);
        told(&native, "lost");
        let mut native = of_round();
        native.joins_again("b", 1);
        native.pass(1);
        told(&native, "round_over");
        // The store of the next round is another one.
        native.joins_again("a", 0);
        native.pass(1);
        native.leave("id1", LeaveRequest::default());
        native.pass(3);
    }
}

#[test]
fn a_node_that_dies_in_a_closed_run_is_told_and_no_more_in_the_round() {
    let mut native = Native::of_all(&["a", "b", "c"], &[0, 1, 2]);
    native.lab.rank(10, &address(0), 0, 3);
    native.lab.wait_for_rank(10, 2);
    native.pass(1);
    native.close("node c");
    native.leave("id2", failed());
    native.pass(5);
    native.cut("id1");
    native.pass(4);
    native.pass(13);
    let run = native.lab.run("job");
    assert_eq!((run.summary.nodes.joined, run.summary.nodes.gone), (1, 2));
    assert_eq!(run.waits.len(), 1, "what lingers in a closed run still waits");
    native.leave("id0", failed());
    native.pass(20);
    assert_eq!(native.lab.texts("lost").len(), 1, "who leaves has not died");
}

#[test]
fn what_has_finished_is_not_missing_and_its_round_needs_what_has_died() {
    // One node of so many has finished, the last one has died, and those between join again.
    let play = |names: &[&str], min: u32| {
        let last = names.len() as u32 - 1;
        let mut native = Native::of_all(names, &(0..=last).collect::<Vec<_>>());
        native.nodes = (min, last + 1);
        native.reach_exit(0);
        native.pass(4);
        native.cut(&format!("id{last}"));
        native.pass(16);
        for rank in 1..last {
            let place = Some(RankInRound { round: 1, rank });
            native
                .join_as(&format!("id{rank}"), names[rank as usize], &address(rank), "2", place)
                .expect("it joins");
        }
        native.pass(33);
        native
    };
    for names in [&["a", "b"][..], &["a", "b", "c"]] {
        let native = play(names, names.len() as u32);
        let run = native.lab.run("job");
        let missing: Vec<_> = run.missing.into_iter().filter_map(|node| node.name).collect();
        let nodes = &run.summary.nodes;
        assert_eq!((nodes.missing, nodes.gone, nodes.finished), (Some(1), 1, 1));
        assert_eq!(nodes.joined + nodes.finished + 1, names.len() as u32, "all are counted once");
        let waits: Vec<_> = run.waits.iter().map(|wait| wait.who.as_deref()).collect();
        assert_eq!(waits, [Some("a")]);
        assert_eq!(missing, names[names.len() - 1..]);
        assert!(run.explanations.iter().any(|said| said.code == "nodes_missing"));
    }
    // Another comes for the one that has died.
    let mut native = play(&["a", "b"], 2);
    native.join_as("id9", "b", &address(1), "1", None).expect("it joins");
    native.pass(33);
    let run = native.lab.run("job");
    let nodes = &run.summary.nodes;
    assert_eq!((nodes.joined, nodes.missing, nodes.gone, nodes.finished), (1, Some(0), 0, 1));
    assert!(run.explanations.iter().any(|said| said.code == "nodes_missing" && said.holds));
}

#[test]
fn a_pod_that_is_started_again_is_told_with_its_process_of_before() {
    let mut native = Native::of_all_soon(3, &["a", "b", "c"]);
    native.cut("id1");
    native.pass(1);
    native.join_as("id9", "b", &address(1), "1", None).expect("it waits");
    native.pass(4);
    let said = native.shown("stands_by");
    assert_eq!(said.len(), 1, "{said:?}");
    let nodes = native.lab.run("job").summary.nodes;
    assert_eq!((nodes.waiting, nodes.redundant), (1, 0), "it is not beyond the maximum");
    native.joins_again("a", 0);
    native.joins_again("c", 2);
    native.pass(4);
    let run = native.lab.run("job");
    assert_eq!((run.summary.nodes.missing, run.missing.len()), (Some(0), 0), "it is there");
    let told = run.explanations.iter().find(|said| said.code == "nodes_missing" && said.holds);
    let told = told.expect("it is told");
    assert_eq!(told.severity, Severity::Info);
    native.pass(6);
    assert_eq!(native.lab.run("job").summary.state, RunState::Running);
    assert_eq!(native.lab.texts("node_came_late"), Vec::<&str>::new(), "it came before the round began");
}

/// It is told as one that is not heard from. A twin that is there stands by.
#[test]
fn a_spare_whose_connection_closed_does_not_stand_by() {
    for closes in [true, false] {
        let mut native = Native::of_two(2);
        native.lab.scene.is_free();
        native.join("c", "1", None);
        native.pass(31);
        assert!(native.shown("stands_by").concat().contains("c has"), "{:?}", native.lab.said);
        if closes {
            native.cut("c");
        }
        native.pass(4);
        assert_eq!(native.shown("stands_by").is_empty(), closes, "{:?}", native.shown("stands_by"));
    }
}

#[test]
fn a_silent_node_is_told_with_the_process_that_came_in_its_place() {
    let mut native = Native::of_all_soon(3, &["a", "b", "c"]);
    native.unpark("id1");
    native.pass(1);
    native.join_as("id9", "b", &address(1), "1", None).expect("it waits");
    native.pass(8);
    assert_eq!(native.lab.texts("node_silent").len(), 1);
}

#[test]
fn a_round_is_not_complete_with_a_node_that_died_while_it_waited() {
    let mut native = Native::soon((3, 3));
    native.join_once("a", None);
    native.join_as("b", "b", &address(1), "1", None).expect("a place");
    native.cut("b");
    native.pass(1);
    native.join_once("c", None);
    native.pass(5);
    assert_eq!(native.lab.texts("round_complete"), Vec::<&str>::new());
    assert_eq!(native.lab.run("job").summary.state, RunState::Joining);
    assert!(!native.lab.texts("nodes_missing").is_empty());
    // What comes in its place has another name, and gets in when it is given up.
    native.join_once("d", None);
    native.pass(3);
    native.pass(9);
}

#[test]
fn a_round_that_nobody_has_joined_is_waited_for_since_the_last_one_was_over() {
    let mut native = Native::of_all_soon(3, &["a", "b", "c"]);
    native.leave("id1", LeaveRequest::default());
    native.pass(5);
    assert_eq!(native.shown("nodes_missing").len(), 1);
    native.cut("id2");
    native.pass(3);
    native.lab.pass(1.0);
    native.ask_again("id2");
    native.joins_again("a", 0);
    native.pass(3);
}

#[test]
fn what_is_silent_is_the_cause_and_not_who_was_refused() {
    let mut native = Native::soon((3, 3));
    native.join_as("id0", "a", &address(0), "1", None).expect("it joins");
    native.join_as("id1", "b", &address(1), "1", None).expect("it joins");
    native.nodes = (2, 2);
    native.join_as("other", "other", &address(7), "1", None).expect_err("it asks for two");
    native.pass(5);
    assert_eq!(native.lab.texts("join_refused").len(), 1);
    native.cut("id1");
    native.pass(7);
    native.ask_again("id1");
    native.pass(2);
}

#[test]
fn after_a_restart_who_does_not_come_back_is_named_and_the_restart_is_told() {
    for keep_alive in [5, 2] {
        let mut native = Native::soon((2, 3));
        native.keep_alive = Some(Duration::from_secs(keep_alive));
        native.come(&["n0", "n1", "n2"]);
        (0..3).for_each(|rank| native.beats(&format!("n{rank}"), rank, 3));
        native.pass(3);
        native.restart_server();
        native.joins_again("n1", 1);
        native.joins_again("n0", 0);
        native.lab.pass(0.5);
        let late = if keep_alive == 5 { 8 } else { 4 };
        native.pass(late);
        let run = native.lab.run("job");
        assert!(run.explanations.iter().any(|said| said.code == "nodes_missing" && said.holds));
        let closes = run.summary.deadline.map_or(0.0, |at| at - run.now);
        assert!((30.0..40.0).contains(&closes), "it is given up, and the last call begins: {closes}");
        native.pass(9);
        assert_eq!(native.lab.texts("lost"), Vec::<&str>::new());
    }
}

/// A state of a run of the nodes a, b and c, with ranks 0 to 2 in round 1, where there is one.
fn in_state(state: &str) -> Native {
    let names = ["a", "b", "c"];
    let mut native = match state {
        "joining" | "last call" => {
            let mut native = Native::soon(if state == "joining" { (3, 3) } else { (2, 3) });
            native.come(&names[..2]);
            native
        }
        _ => Native::of_all_in(Lab::soon(), 3, &names, &[0, 1, 2]),
    };
    native.pass(2);
    match state {
        "exit" => native.reach_exit(0),
        "closed" => {
            native.close("node c");
            native.leave("id2", failed());
        }
        "next round" => native.joins_again("a", 0),
        _ => {}
    }
    native.pass(1);
    native
}

fn happens(native: &mut Native, event: &str) {
    let done = || LeaveRequest { why: None, outcome: Some(Outcome::Succeeded) };
    match event {
        "is killed" => native.cut("id1"),
        "is frozen" => native.unpark("id1"),
        "leaves" => native.leave("id1", LeaveRequest::default()),
        "finishes" => native.leave("id1", done()),
        "comes anew" => {
            native.cut("id1");
            native.pass(1);
            let _ = native.join_as("id9", "b", &address(1), "1", None);
        }
        "comes under another name" => {
            native.cut("id1");
            native.pass(1);
            let _ = native.join_as("id9", "d", &address(9), "1", None);
        }
        "does not come back after a restart" => {
            native.restart_server();
            // Who only waited joins again, as if for the first time.
            let was_complete = native.store.is_some();
            for (rank, name) in [(0, "a"), (2, "c")].into_iter().filter(|_| was_complete) {
                let (id, place) = (format!("id{rank}"), RankInRound { round: 1, rank });
                let told = native.beat_as(&id, name, &address(rank), "1", place, 3);
                if name == "a" && told == Ok(Action::Rejoin) {
                    native.joins_again("a", 0);
                }
            }
        }
        _ => unreachable!("{event}"),
    }
}

#[test]
fn in_each_state_each_event_is_told_as_what_it_is() {
    let states = ["joining", "last call", "complete", "exit", "closed", "next round"];
    let events = [
        "is killed",
        "is frozen",
        "leaves",
        "finishes",
        "comes anew",
        "comes under another name",
        "does not come back after a restart",
    ];
    for (state, event) in states.iter().flat_map(|state| events.map(|event| (*state, event))) {
        let mut native = in_state(state);
        happens(&mut native, event);
        let case = format!("{state}: b {event}");
        for _ in 0..12 {
            native.pass(1);
            // What holds is looked at again.
            native.lab.pass(0.5);
            let run = native.lab.run("job");
            let nodes = &run.summary.nodes;
            let (missing, min) = (nodes.missing.unwrap_or(0), nodes.expected.as_ref().map_or(0, |of| of.min));
            if matches!(run.summary.state, RunState::Joining | RunState::LastCall) {
                assert!(missing == 0 || nodes.joined + nodes.finished + missing <= min, "{case}: {nodes:?}");
            }
            assert!(run.missing.len() <= missing as usize, "{case}: {missing}, {:?}", run.missing);
        }
        let told = |code: &str, part: &str| {
            let of_code = native.lab.said.iter().filter(|(_, said)| said.code == code);
            let texts: Vec<_> = of_code.map(|(_, said)| said.text.as_str()).collect();
            assert!(
                texts.iter().any(|text| text.contains(part)),
                "{case}: {code} with {part}, but {texts:?}"
            );
        };
        let untold = |code: &str, part: &str| {
            let texts = native.lab.texts(code);
            assert!(!texts.iter().any(|text| text.contains(part)), "{case}: {code} with {part}: {texts:?}");
        };
        let died = "lost";
        let b = "b (10.0.0.1)";
        match (event, state) {
            ("leaves", "complete" | "exit") => told("lost", b),
            ("leaves" | "finishes", "joining" | "last call") | ("leaves", "next round") => {
                told("nodes_missing", b);
            }
            ("finishes", "next round") => {
                assert_eq!(native.lab.run("job").summary.nodes.finished, 1);
            }
            ("leaves" | "finishes", _) => untold("lost", b),
            ("comes anew", "joining" | "last call") => {}
            ("comes anew" | "comes under another name", "closed") => {
                told("join_refused", "");
                told("node_silent", b);
            }
            ("comes anew", _) => {
                told("node_silent", b);
            }
            ("is killed" | "is frozen" | "comes under another name", _) => {
                told("node_silent", b);
                told(died, b);
            }
            (_, "joining" | "last call") => assert_eq!(native.lab.run("job").summary.state, RunState::Gone),
            (_, "closed") => untold("lost", b),
            (_, "next round") => told("not_back", b),
            _ => told("lost", b),
        }
    }
}

#[test]
fn a_node_that_waited_for_its_place_came_when_it_asked_for_it() {
    let mut native = Native::of_all_soon(2, &["a", "b"]);
    native.cut("id1");
    native.pass(1);
    native.joins_again("a", 0);
    native.pass(5);
    native.join_as("id9", "b", &address(1), "1", None).expect("it waits");
    native.pass(12);
}

#[test]
fn a_round_with_enough_nodes_waits_only_until_what_is_silent_is_given_up() {
    let mut native = Native::of_all_soon(2, &["a", "b", "c"]);
    native.pass(1);
    native.cut("id2");
    native.pass(1);
    native.joins_again("a", 0);
    native.joins_again("b", 1);
    native.pass(4);
    let run = native.lab.run("job");
    let told = run.explanations.iter().find(|said| said.code == "nodes_missing" && said.holds);
    let told = told.expect("it is told");
    assert_eq!((told.severity, run.summary.nodes.missing), (Severity::Info, Some(0)));
    let closes = run.summary.deadline.map(|at| (at - run.now).round());
    assert_eq!(closes, Some(39.0), "and the last call begins then");
    assert_eq!(native.lab.texts("lost"), Vec::<&str>::new());
    native.pass(12);
    assert_eq!(native.lab.texts("lost").len(), 1);
    // It is told once, if the round is over for it.
    let mut native = Native::of_all_soon(2, &["a", "b", "c"]);
    native.cut("id1");
    native.pass(1);
    native.cut("id2");
    native.pass(20);
    native.joins_again("a", 0);
    native.pass(4);
    let died = native.lab.texts("lost");
    assert_eq!(died.len(), 1, "{died:?}");
}

#[test]
fn a_death_is_the_cause_and_not_who_was_refused() {
    let mut native = Native::of_all_soon(2, &["a", "b"]);
    native.nodes = (3, 3);
    native.join_as("other", "other", &address(7), "1", None).expect_err("it asks for three");
    native.nodes = (2, 2);
    native.cut("id1");
    native.pass(17);
    native.joins_again("a", 0);
    native.pass(5);
    let run = native.lab.run("job");
    assert!(run.explanations.iter().any(|said| said.code == "nodes_missing" && said.holds));
}

#[test]
fn that_a_later_round_has_finished_is_said_of_that_round() {
    let mut native = Native::of_two(2);
    native.rejoin("a", 0);
    native.rejoin("b", 1);
    native.pass(3);
    for node in ["a", "b"] {
        native.leave(node, LeaveRequest { why: None, outcome: Some(Outcome::Succeeded) });
    }
    native.pass(3);
}

#[test]
fn of_a_group_without_heartbeats_it_is_said_what_is_not_known() {
    let mut native = Native::soon((3, 3));
    native.join_once("a", Some(0));
    native.join_once("c", None);
    native.pass(2);
    native.cut("a");
    native.pass(5);
    native.join_once("d", None);
    native.pass(1);
    // Its connection had broken, and it is alive.
    native.join_once("a", Some(0));
    let completed = native.lab.now;
    native.pass(2);
    let run = native.lab.run("job");
    assert!(run.participants.iter().all(|node| node.last_heartbeat.is_none()), "{:?}", run.participants);
    // Its rank is free, and what asks for it begins another round.
    native.join_once("b", Some(0));
    native.pass(5);
    let run = native.lab.run("job");
    assert!(run.explanations.iter().any(|said| said.code == "nodes_missing" && said.holds));
    assert_eq!((run.summary.nodes.missing, run.missing.len()), (Some(2), 2));
    native.leave("b", LeaveRequest::default());
    native.pass(2);
    let run = native.lab.run("job").summary;
    assert_eq!((run.state, run.nodes.joined), (RunState::Running, 3));
    assert_eq!(run.state_since.round() as u64, completed.0.as_secs_f64().round() as u64);
}

#[test]
fn a_run_that_is_started_again_is_counted_if_it_had_finished() {
    for (outcome, restarts) in [(Outcome::Succeeded, 1), (Outcome::Failed, 0)] {
        let mut native = Native::of_two(2);
        native.close("node a");
        for node in ["a", "b"] {
            native.leave(node, LeaveRequest { why: None, outcome: Some(outcome) });
        }
        native.pass(11);
        native.join("a", "2", None);
        native.pass(1);
        assert_eq!(native.lab.texts("run_started").len(), 3);
        assert_eq!(native.lab.insight.totals().restarted, restarts, "{outcome:?}");
    }
}

#[test]
fn nodes_that_die_one_after_the_other_are_all_gone() {
    let mut native = Native::of_all(&["a", "b", "c"], &[0, 1, 2]);
    let gone = |native: &Native| {
        let nodes = native.lab.run("job").summary.nodes;
        (nodes.joined, nodes.gone, nodes.missing)
    };
    for node in ["id0", "id1", "id2"] {
        native.cut(node);
        native.pass(2);
    }
    native.pass(11);
    assert_eq!(gone(&native), (0, 2, Some(3)), "nothing is heard of the third");
    native.pass(5);
    assert_eq!((native.lab.run("job").summary.state, gone(&native)), (RunState::Gone, (0, 3, Some(0))));
    let names: Vec<_> = native.lab.run("job").participants.into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn the_next_round_runs_since_it_is_complete_however_fast_that_was() {
    let mut native = Native::of_two(2);
    native.rejoin("a", 0);
    native.rejoin("b", 1);
    native.pass(1);
    let run = native.lab.run("job");
    assert_eq!((run.summary.round, run.summary.state), (2, RunState::Running));
    assert!(run.now - run.summary.state_since < 2.0, "{} {}", run.now, run.summary.state_since);
}

#[test]
fn who_never_came_is_not_forgotten_beside_who_is_gone() {
    let mut native = Native::of(Lab::new(), (3, 3));
    native.join("a", "1", None);
    native.join("b", "1", None);
    native.pass(5);
    native.cut("b");
    native.pass(45);
    let explained = native.lab.run("job").explanations;
    assert!(explained.iter().any(|said| said.code == "nodes_missing"));
    // The other comes: only the one that is gone is needed.
    native.join("c", "1", None);
    native.pass(2);
    let explained = native.lab.run("job").explanations;
    assert!(explained.iter().any(|said| said.code == "nodes_missing"));
}

#[test]
fn nodes_with_one_id_are_told_and_not_looked_for_elsewhere() {
    let mut native = Native::of(Lab::new(), (3, 3));
    for (address, join_id) in [("10.0.0.1", "1"), ("10.0.0.2", "2"), ("10.0.0.3", "3")] {
        native.join_as("worker", "worker", address, join_id, None).expect("no refusal");
        native.pass(1);
    }
    native.pass(45);
    assert_eq!(native.lab.texts("join_refused").len(), 2);
    assert_eq!(native.shown("nodes_missing").len(), 1);
}

#[test]
fn when_the_last_gives_up_it_is_told_what_was_missing() {
    let mut native = Native::of(Lab::new(), (3, 3));
    native.join("a", "1", None);
    native.join("b", "1", None);
    native.pass(5);
    let gave_up = || LeaveRequest { why: Some(label("gave up waiting")), outcome: None };
    native.leave("a", gave_up());
    native.leave("b", gave_up());
    native.pass(3);
    assert_eq!(native.lab.texts("round_deadline").len(), 1);
}

/// Agents that wait in a round's store cannot be told that it is over. Seen with torch: nobody had gone on.
#[test]
fn who_waits_in_a_round_that_was_given_up_is_told_why_it_was() {
    let mut native = Native::without_role_of_b();
    native.unpark("id1");
    native.pass(33);
    assert_eq!(native.lab.texts("lost").len(), 1, "{:?}", native.lab.said);
    assert!(!native.shown("waiting").is_empty());
}

#[test]
fn a_node_that_is_not_heard_from_is_not_said_to_run_still() {
    let mut native = Native::of_all_soon(2, &["a", "b", "c"]);
    native.tell_roles(&[0, 1, 2]);
    native.reach_exit(0);
    native.cut("id1");
    native.pass(6);
    let [said] = &native.shown("exit_barrier")[..] else { panic!("{:?}", native.lab.said) };
    let end = "; connected, not finished: c (node rank 2); nothing heard: b (node rank 1)";
    assert!(said.ends_with(end), "{said}");
}

/// Processes that rebuild their groups are told as those who go on; agents start their workers again.
#[test]
fn survivors_that_meet_again_in_the_same_processes_are_told_so() {
    for grace in [Some(Duration::from_secs(1)), None] {
        let mut native = Native::new(3);
        native.core = Rendezvous::new(Terms { grace, ..Terms::default() }, 10);
        let nodes = [("a", 0), ("b", 1), ("c", 2)];
        native.come(&["a", "b", "c"]);
        for (name, rank) in nodes {
            native.beats(name, rank, 3);
        }
        native.cut("id2");
        for _ in 0..17 {
            native.pass(1);
            nodes[..2].iter().for_each(|&(name, rank)| native.beats(name, rank, 3));
        }
        native.joins_again("a", 0);
        native.joins_again("b", 1);
        native.pass(40);
        let told = native.lab.texts("round_complete").join("\n");
        let says = ["job round 2 complete: 2 of 3 go on", "nobody was started again; lost: c"];
        assert_eq!(says.iter().all(|says| told.contains(says)), grace.is_some(), "{told}");
        // It is the run's headline, too, and no longer that they are told to join again.
        let headline = native.lab.run("job").summary.explanation.expect("a headline");
        let (code, severity) =
            if grace.is_some() { ("round_complete", "warning") } else { ("lost", "error") };
        assert_eq!((&*headline.code, headline.severity.name()), (code, severity), "{headline:?}");
    }
}
