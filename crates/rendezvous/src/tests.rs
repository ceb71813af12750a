//! The rendezvous by cases: each test shows one thing that nodes rely on.

pub(super) mod costs;
mod random;

use super::*;
use rallypoint_protocol::ids::Nodes;

const RUN: &str = "train";

/// A rendezvous with a clock that the test moves. Deadlines come in their order.
struct Table {
    core: Rendezvous,
    now: Timestamp,
    facts: Vec<String>,
    completed: Vec<Arc<Round>>,
    ended: Vec<String>,
    notified: usize,
    released: usize,
}

fn label(text: &str) -> Label {
    Label::new(text).expect("a label")
}

fn run() -> RunId {
    RunId::new(RUN.as_bytes())
}

/// A join of `node` with `min` to `max` nodes. The test changes the other wishes.
fn join(node: &str, min: u32, max: u32) -> Join {
    let info = NodeInfo {
        name: label(node),
        address: label(&format!("10.0.0.{}", node.len())),
        role: None,
        local_world_size: None,
        torch_version: None,
    };
    let wanted = Wanted { min_nodes: min, max_nodes: max, ..Wanted::default() };
    Join {
        node: label(node),
        join_id: "1".into(),
        info,
        payload: None,
        rank: None,
        watched: true,
        previous: None,
        wanted,
    }
}

fn again(node: &str, id: &str, min: u32, max: u32) -> Join {
    Join { join_id: id.into(), ..join(node, min, max) }
}

fn report(node: &str, round: u64, rank: u32, world: u32, max: u32) -> Report {
    let Join { node, join_id, info, wanted, .. } = join(node, 1, max);
    Report { node, join_id, info, place: RankInRound { round, rank }, world_size: world, wanted }
}

impl Table {
    fn new() -> Self {
        Self::with_limit(1000)
    }

    fn with_limit(max_runs: usize) -> Self {
        Self {
            core: Rendezvous::new(Terms::default(), max_runs),
            now: Timestamp::default(),
            facts: Vec::new(),
            completed: Vec::new(),
            ended: Vec::new(),
            notified: 0,
            released: 0,
        }
    }

    fn collect(&mut self) {
        for decision in self.core.take_decisions() {
            match decision {
                Decision::Completed(round) => self.completed.push(round),
                Decision::Ended(_, node) => self.ended.push(node.to_string()),
                Decision::Notify(_) => self.notified += 1,
                Decision::Release(_) => self.released += 1,
                Decision::Forget(_) | Decision::Dissolved(_) => {}
                Decision::Tell(_, fact) => self.facts.push(fact.to_string()),
            }
        }
    }

    /// Joins, and leaves a poll waiting if there is no answer yet.
    fn join(&mut self, join: Join) -> Result<JoinStanding, RunRefusal> {
        let node = join.node.clone();
        let joined = self.core.join(&run(), join, self.now);
        let joined = joined.and_then(|()| self.core.standing(&run(), &node));
        if matches!(joined, Ok(JoinStanding::Waiting | JoinStanding::Redundant)) {
            self.core.park(&run(), &node);
        }
        self.collect();
        joined
    }

    /// Several nodes join.
    fn all_join(&mut self, nodes: &[&str], min: u32, max: u32) {
        for node in nodes {
            self.join(join(node, min, max)).expect("no refusal");
        }
    }

    fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.core.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.core.tick(self.now);
            self.collect();
        }
        self.now = end;
    }

    /// The poll of a node ends, and nothing more is heard from the node.
    fn cut(&mut self, node: &str) {
        self.core.unpark(&run(), &label(node), self.now);
        self.collect();
    }

    /// A heartbeat that waits at the server.
    fn beat(&mut self, node: &str, round: u64) -> Action {
        let rank = self.rank(node).unwrap_or(0);
        let view =
            self.core.heartbeat(&run(), report(node, round, rank, rank + 1, 100), self.now).expect("a view");
        self.core.park_in_round(&run(), &label(node), round);
        self.collect();
        view.action
    }

    fn rank(&self, node: &str) -> Option<u32> {
        match self.core.standing(&run(), &label(node)) {
            Ok(JoinStanding::Complete { rank, .. }) => Some(rank),
            _ => None,
        }
    }

    fn ranks(&self, nodes: &[&str]) -> Vec<Option<u32>> {
        nodes.iter().map(|node| self.rank(node)).collect()
    }

    fn action(&self, node: &str, round: u64) -> Action {
        self.core.action(&run(), &label(node), round).action
    }

    fn snapshot(&self) -> RunSnapshot {
        self.core.snapshot_of(&run(), self.now).expect("a run")
    }

    fn leave(&mut self, node: &str) -> bool {
        self.leave_with(node, None)
    }

    fn leave_with(&mut self, node: &str, outcome: Option<Outcome>) -> bool {
        let said = LeaveRequest { why: None, outcome };
        let left = self.core.leave(&run(), &label(node), said, self.now);
        self.collect();
        left
    }

    fn close(&mut self) {
        self.core.close(&run(), "the test", self.now).expect("a run");
        self.collect();
    }

    fn reason(&self, node: &str) -> String {
        self.core.progress(&run(), &label(node), self.now).expect("it waits").reason
    }

    #[track_caller]
    fn told(&self, words: &str) {
        assert!(self.facts.iter().any(|fact| fact.contains(words)), "`{words}` is not in {:#?}", self.facts);
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_fixed_round_is_complete_with_its_last_node() {
    let mut table = Table::new();
    assert_eq!(table.join(join("a", 2, 2)), Ok(JoinStanding::Waiting));
    table.advance(3 * SECOND);
    assert!(matches!(table.join(join("b", 2, 2)), Ok(JoinStanding::Complete { rank: 1, .. })));
    assert_eq!(table.ranks(&["a", "b"]), [Some(0), Some(1)]);
    table.told("round 1 complete: 2 nodes in 3 s; last: b (10.0.0.1)");
}

#[test]
fn an_elastic_round_waits_a_last_call_for_more_and_completes_at_once_when_full() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 4);
    assert!(
        table.reason("a").contains("enough nodes are there; 30 s left for more, up to 4"),
        "{}",
        table.reason("a")
    );
    table.advance(29 * SECOND);
    assert!(table.completed.is_empty());
    table.advance(SECOND);
    assert_eq!(table.completed[0].participants.len(), 2);
    let mut table = Table::new();
    table.all_join(&["a", "b", "c", "d"], 2, 4);
    assert_eq!(table.completed[0].participants.len(), 4);
}

fn expect(table: &mut Table, nodes: u32) -> Result<String, Unfit> {
    let comes = table.core.expect(&run(), Nodes::exactly(nodes), table.now);
    table.collect();
    comes.map(Option::unwrap_or_default)
}

#[test]
fn a_round_is_complete_as_soon_as_the_expected_nodes_are_there() {
    let mut table = Table::new();
    assert_eq!(expect(&mut table, 3), Ok(String::new()), "nobody knows the run yet");
    table.all_join(&["a", "b"], 2, 4);
    assert!(table.reason("a").contains("30 s left for more, up to 3"), "{}", table.reason("a"));
    table.join(join("c", 2, 4)).expect("complete");
    assert_eq!(table.completed[0].participants.len(), 3);
    assert_eq!(table.join(join("d", 2, 4)), Ok(JoinStanding::Redundant));
    assert!(table.reason("d").contains("all 3 places are taken (`rallypoint ctl expect`)"));
    for (node, rank) in [("a", 0), ("b", 1), ("c", 2)] {
        assert_eq!((table.rank(node), table.beat(node, 1)), (Some(rank), Action::Continue));
    }
    // If that many nodes are there already, the forming round is complete. With fewer it waits for the last
    // call.
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 4);
    let comes = expect(&mut table, 2).expect("it fits");
    assert_eq!((comes.as_str(), table.completed.len()), ("round 1 has 2 nodes, and goes on", 1));
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 4);
    let comes = expect(&mut table, 4).expect("it fits");
    assert_eq!(comes, "round 1 gathers, and is complete with 4 nodes; 2 joined");
    table.advance(30 * SECOND);
    assert_eq!(table.completed[0].participants.len(), 2);
}

#[test]
fn a_round_forms_anew_when_other_nodes_are_expected() {
    let mut table = Table::new();
    table.all_join(&["a", "b", "c", "d"], 2, 4);
    for node in ["a", "b", "c", "d"] {
        table.beat(node, 1);
    }
    let comes = expect(&mut table, 3).expect("it fits");
    assert_eq!(
        comes,
        "round 1 is over (it has 4 nodes, and an operator expects 3), and the next one is complete with 3 \
         nodes"
    );
    for node in ["d", "c", "b", "a"] {
        assert_eq!(table.action(node, 1), Action::Rejoin);
        table.join(again(node, "2", 2, 4)).expect("a place, or none");
    }
    assert_eq!(table.completed[1].participants.len(), 3);
    assert_eq!(table.core.standing(&run(), &label("d")), Ok(JoinStanding::Redundant));
    // If more nodes are expected, the redundant node is taken in.
    for node in ["a", "b", "c"] {
        assert_eq!(table.beat(node, 2), Action::Continue);
    }
    let comes = expect(&mut table, 4).expect("it fits");
    assert_eq!(
        comes,
        "round 2 has 3 nodes; they are told to join again, and the next one is complete with 4 nodes"
    );
    for node in ["a", "b", "c"] {
        table.join(again(node, "3", 2, 4)).expect("a place");
    }
    assert_eq!(table.completed[2].participants.len(), 4);
    table.told("round 2 is over: it has 3 nodes, and an operator expects 4");
    // If the round lacks a node, the next one that comes starts a new round.
    table.leave("d");
    for node in ["a", "b", "c"] {
        table.join(again(node, "4", 2, 4)).expect("a place");
    }
    table.advance(30 * SECOND);
    for node in ["a", "b", "c"] {
        table.beat(node, 4);
    }
    let comes = expect(&mut table, 4).expect("it fits");
    assert!(comes.starts_with("round 4 goes on with 3 nodes; with the next node"), "{comes}");
    assert_eq!(table.action("a", 4), Action::Continue);
}

#[test]
fn of_more_nodes_than_are_expected_those_stand_by_that_came_last() {
    let mut table = Table::new();
    for (rank, node) in (0..).zip(["a", "b", "c"]) {
        table.join(Join { rank: Some(rank), ..join(node, 2, 6) }).expect("a place");
    }
    expect(&mut table, 2).expect("it fits");
    assert_eq!(table.ranks(&["a", "b", "c"]), [Some(0), Some(1), None]);
    assert_eq!(table.core.standing(&run(), &label("c")), Ok(JoinStanding::Redundant));
    let snapshot = table.snapshot();
    assert_eq!((snapshot.in_round, snapshot.waiting, snapshot.redundant), (2, 0, 1));
    assert_eq!(snapshot.terms.max_nodes, 2);
}

#[test]
fn numbers_that_no_round_can_have_are_refused_and_change_nothing() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 4);
    for nodes in [1, 5] {
        let unfit = expect(&mut table, nodes).expect_err("it does not fit").to_string();
        let says =
            format!("the nodes of run train ask for 2:4, so its rounds cannot have {nodes}: say a number");
        assert!(unfit.starts_with(&says), "{unfit}");
    }
    table.join(join("c", 2, 4)).expect("a place");
    assert!(table.completed.is_empty());
    // An expectation from before the first node holds as far as the terms allow, and until the run is
    // forgotten.
    let mut table = Table::new();
    expect(&mut table, 9).expect("nobody is there");
    table.all_join(&["a", "b", "c", "d"], 2, 4);
    assert_eq!(table.completed[0].participants.len(), 4);
    table.core.remove(&run(), "an operator", table.now);
    table.collect();
    for node in ["a", "b", "c", "d"] {
        table.leave(node);
    }
    table.advance(61 * SECOND);
    table.all_join(&["a", "b", "c"], 2, 3);
    assert_eq!(table.completed[1].participants.len(), 3);
}

#[test]
fn more_time_and_that_a_run_is_to_go_outlive_a_restart() {
    let mut before = Table::new();
    before.core.keep_changes();
    before.join(join("a", 2, 2)).expect("a place");
    assert!(before.core.take_kept().is_empty(), "a round that forms is not kept");
    before.core.extend(&run(), Duration::from_hours(1), before.now).expect("it forms");
    let kept = before.core.take_kept();
    let [KeptChange::Run(id, record, _)] = &kept[..] else { panic!("it is kept: {kept:?}") };
    let mut table = Table::new();
    table.core.restore(id, (**record).clone(), Vec::new(), table.now);
    table.join(join("a", 2, 2)).expect("a place");
    table.advance(Duration::from_mins(89));
    assert!(table.ended.is_empty());
    table.advance(Duration::from_mins(1));
    assert_eq!(table.ended, ["a"]);
    // The extra time was for that round only.
    table.join(again("a", "2", 2, 2)).expect("a place");
    table.advance(Duration::from_mins(30));
    assert_eq!(table.ended, ["a", "a"]);

    before.join(join("b", 2, 2)).expect("complete");
    before.core.remove(&run(), "an operator", before.now);
    let mut kept = before.core.take_kept();
    let Some(KeptChange::Run(id, record, members)) = kept.pop() else { panic!("it is kept: {kept:?}") };
    let mut table = Table::new();
    let members = members.into_iter().map(|(_, member)| member).collect();
    table.core.restore(&id, *record, members, table.now);
    assert!(table.leave("a") && table.leave("b"));
    table.advance(SECOND);
    assert!(table.core.snapshot(table.now).is_empty(), "it is forgotten with its last node");
}

/// Joins of a run that loses a node one second after its connection closed.
fn with_grace(node: &str, id: &str) -> Join {
    let join = again(node, id, 2, 8);
    let wanted = Wanted { grace: Some(SECOND), last_call: Some(Duration::from_millis(200)), ..join.wanted };
    Join { wanted, ..join }
}

/// Four nodes in a round, each with a heartbeat that waits.
fn four_with_grace() -> Table {
    let mut table = Table::new();
    for node in ["a", "b", "c", "d"] {
        table.join(with_grace(node, "1")).expect("a place");
    }
    table.advance(SECOND);
    for node in ["a", "b", "c", "d"] {
        assert_eq!(table.beat(node, 1), Action::Continue);
    }
    table
}

#[test]
fn nodes_whose_connections_closed_are_lost_after_the_grace_and_the_others_keep_their_order() {
    let mut table = four_with_grace();
    for node in ["a", "c"] {
        table.core.cut(&run(), &label(node), table.now);
        table.advance(Duration::from_millis(100));
    }
    table.advance(Duration::from_millis(799));
    assert_eq!(table.action("b", 1), Action::Continue, "they may come again");
    table.advance(Duration::from_millis(1));
    assert_eq!(table.action("b", 1), Action::Rejoin);
    assert!(
        table.facts.iter().any(|fact| fact.contains("rank 0, c (10.0.0.1), rank 2: the connections closed")),
        "{:?}",
        table.facts
    );
    for node in ["d", "b"] {
        table.join(with_grace(node, "2")).expect("a place");
    }
    table.advance(Duration::from_millis(300));
    assert_eq!(table.ranks(&["b", "d"]), [Some(0), Some(1)]);
    assert_eq!(table.completed[1].participants.len(), 2);
}

#[test]
fn with_a_grace_signs_of_life_wait_longer_at_the_server() {
    let hold = |table: Table| table.core.hold(&run());
    let mut without = Table::new();
    without.all_join(&["a", "b"], 2, 2);
    let (with, without) = (hold(four_with_grace()), hold(without));
    assert!(with > without, "a process that dies meanwhile is noticed at once: {with:?}, {without:?}");
    assert!(with < Terms::default().patience(), "one that is stopped is noticed soon");
}

#[test]
fn a_node_that_comes_again_within_the_grace_keeps_its_place() {
    let mut table = four_with_grace();
    table.core.cut(&run(), &label("a"), table.now);
    table.advance(Duration::from_millis(900));
    assert_eq!(table.beat("a", 1), Action::Continue);
    table.advance(10 * SECOND);
    assert_eq!(table.action("b", 1), Action::Continue);
    // Silence behind an open connection has the keep-alive time.
    table.cut("a");
    table.advance(14 * SECOND);
    assert_eq!(table.action("b", 1), Action::Continue);
    table.advance(SECOND);
    assert_eq!(table.action("b", 1), Action::Rejoin);
}

#[test]
fn a_node_that_dies_while_it_waits_holds_the_others_up_for_the_grace_only() {
    let mut table = Table::new();
    for node in ["a", "b", "c"] {
        table.join(with_grace(node, "1")).expect("a place");
    }
    table.core.cut(&run(), &label("b"), table.now);
    table.advance(Duration::from_millis(999));
    assert!(table.completed.is_empty());
    table.advance(Duration::from_millis(201));
    assert_eq!(table.ranks(&["a", "c"]), [Some(0), Some(1)]);
}

/// The server is killed, and the next one takes the runs over.
fn restarted(mut before: Table) -> Table {
    let mut table = Table { now: before.now, ..Table::new() };
    for change in before.core.take_kept() {
        let KeptChange::Run(id, record, members) = change else { continue };
        let members = members.into_iter().map(|(_, member)| member).collect();
        table.core.restore(&id, *record, members, before.now).expect("a round");
    }
    table
}

#[test]
fn a_node_that_dies_with_the_server_is_lost_before_a_silent_one_if_there_is_a_grace() {
    let with_keep_alive = |node: &str, id: &str, grace| {
        let join = with_grace(node, id);
        let wanted = Wanted { grace, keep_alive: Some(SECOND), keep_alive_misses: Some(5), ..join.wanted };
        Join { wanted, ..join }
    };
    for (grace, lost) in [(Some(Duration::from_millis(200)), 1200), (Some(SECOND), 2000), (None, 5000)] {
        let mut table = Table::new();
        table.core.keep_changes();
        for node in ["a", "b", "c"] {
            table.join(with_keep_alive(node, "1", grace)).expect("a place");
        }
        table.advance(SECOND);
        let mut table = restarted(table);
        table.advance(Duration::from_millis(lost - 200));
        for node in ["b", "c"] {
            assert_eq!(table.beat(node, 1), Action::Continue, "who comes before that keeps its place");
        }
        table.advance(Duration::from_millis(199));
        assert_eq!(table.action("b", 1), Action::Continue, "{grace:?}");
        table.advance(Duration::from_millis(1));
        assert_eq!(table.action("b", 1), Action::Rejoin, "{grace:?}");
        for node in ["c", "b"] {
            table.join(with_keep_alive(node, "2", grace)).expect("a place");
        }
        table.advance(Duration::from_millis(200));
        assert_eq!(table.ranks(&["b", "c"]), [Some(0), Some(1)]);
    }
}

#[test]
fn peers_read_the_payload_of_each_join_also_after_a_restart() {
    let mut table = Table::new();
    table.core.keep_changes();
    let said = |node: &str, id: &str, text: &str| Join {
        payload: Some(Payload::new(text).expect("it is short")),
        ..again(node, id, 2, 2)
    };
    let read = |round: &Round| -> Vec<Option<String>> {
        let payloads = round.participants.iter().map(|it| it.payload.as_ref());
        payloads.map(|payload| payload.map(|payload| payload.as_str().to_owned())).collect()
    };
    table.join(said("a", "1", "{\"step\": 1}")).expect("a place");
    table.join(join("b", 2, 2)).expect("complete");
    table.join(said("a", "2", "two\nlines")).expect("a place");
    table.join(said("b", "2", "")).expect("complete");
    assert_eq!(read(&table.completed[0]), [Some("{\"step\": 1}".into()), None]);
    assert_eq!(read(&table.completed[1]), [Some("two\nlines".into()), Some(String::new())]);
    let Some(KeptChange::Run(id, record, members)) = table.core.take_kept().pop() else {
        panic!("it is kept")
    };
    // The journal of an older server has no payloads.
    let rows: Vec<_> = members.iter().map(|(_, row)| serde_json::to_value(row).expect("JSON")).collect();
    for is_old in [false, true] {
        let member = |mut row: serde_json::Value| {
            if is_old {
                row.as_object_mut().expect("an object").remove("payload").expect("it is kept");
            }
            serde_json::from_value(row).expect("a member")
        };
        let members = rows.iter().cloned().map(member).collect();
        let round = Table::new().core.restore(&id, (*record).clone(), members, table.now).expect("a round");
        let wanted = if is_old { vec![None, None] } else { read(&table.completed[1]) };
        assert_eq!(read(&round), wanted);
    }
}

#[test]
fn a_payload_has_at_most_4_kib() {
    assert!(Payload::new(&"x".repeat(4096)).is_ok());
    let refused = Payload::new(&"x".repeat(4097)).expect_err("it is too long");
    assert_eq!(refused.to_string(), "has 4097 bytes, and may have at most 4096");
    // JSON writes a control character in six bytes.
    assert_eq!(Payload::new("a\n\"").expect("it is short").memory(), 3 + 1 + 6 + 2);
}

#[test]
fn a_retry_joins_only_once_and_hears_the_same() {
    let mut table = Table::new();
    table.all_join(&["a", "a", "a"], 2, 2);
    assert_eq!(table.core.snapshot(table.now)[0].waiting, 1);
    table.join(join("b", 2, 2)).expect("complete");
    assert!(matches!(table.join(join("a", 2, 2)), Ok(JoinStanding::Complete { rank: 0, .. })));
    assert_eq!(table.completed.len(), 1);
    assert_eq!(table.action("b", 1), Action::Continue);
}

#[test]
fn a_late_node_waits_and_the_others_are_told_to_join_again_with_their_ranks() {
    let mut table = Table::new();
    table.all_join(&["a", "b", "c"], 2, 4);
    table.advance(30 * SECOND);
    for node in ["a", "b", "c"] {
        assert_eq!(table.beat(node, 1), Action::Continue);
    }
    assert_eq!(table.join(join("d", 2, 4)), Ok(JoinStanding::Waiting));
    assert_eq!(
        (table.action("a", 1), table.core.action(&run(), &label("a"), 1).waiting),
        (Action::Rejoin, 1)
    );
    assert!(
        table.reason("d").contains("3 nodes of round 1 not yet joined again: a"),
        "{}",
        table.reason("d")
    );
    for node in ["c", "b", "a"] {
        assert_eq!(table.completed.len(), 1);
        table.join(again(node, "2", 2, 4)).expect("a place");
    }
    assert_eq!(table.completed.len(), 2);
    assert_eq!(table.ranks(&["a", "b", "c", "d"]), [Some(0), Some(1), Some(2), Some(3)]);
    assert_eq!(table.action("a", 1), Action::Rejoin, "the old round is over");
    assert_eq!(table.action("a", 2), Action::Continue);
}

#[test]
fn nodes_beyond_the_maximum_stand_by_until_a_place_is_free() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 2);
    assert_eq!(table.beat("a", 1), Action::Continue);
    table.beat("b", 1);
    assert_eq!(table.join(join("spare", 2, 2)), Ok(JoinStanding::Redundant));
    assert_eq!(table.action("a", 1), Action::Continue, "a spare disturbs nobody");
    assert!(table.leave("b"));
    assert_eq!(table.action("a", 1), Action::Rejoin);
    table.join(again("a", "2", 2, 2)).expect("complete");
    assert_eq!(table.ranks(&["a", "spare"]), [Some(0), Some(1)]);
}

#[test]
fn nodes_that_leave_together_are_told_together() {
    let mut table = Table::new();
    let nodes = ["a", "b", "c", "d"];
    table.all_join(&nodes, 4, 4);
    for node in ["d", "b"] {
        table.leave(node);
        assert_eq!(table.action("a", 1), Action::Rejoin, "the others are not kept waiting");
    }
    table.join(again("a", "2", 4, 4)).expect("a place");
    table.advance(SECOND);
    table.leave("c");
    table.advance(SECOND);
    table.told(
        "round 1 is over: d (10.0.0.1), rank 3, b (10.0.0.1), rank 1, c (10.0.0.1), rank 2: left; its nodes \
         are to join again",
    );
    // The next round is complete before the report: the earlier one is over only for its own nodes.
    let mut table = Table::new();
    table.all_join(&["a", "b"], 1, 2);
    table.leave("b");
    table.join(again("c", "1", 1, 2)).expect("a place");
    table.join(again("a", "2", 1, 2)).expect("complete");
    assert_eq!(table.action("a", 2), Action::Continue);
    table.leave("c");
    assert_eq!(table.action("a", 2), Action::Rejoin);
    table.told("round 1 is over: b (10.0.0.1), rank 1: left; its nodes are to join again");
    // No node is left that could be told.
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 2);
    table.leave("a");
    table.leave("b");
    table.advance(2 * SECOND);
    table.told("round 1 is over: a (10.0.0.1), rank 0, b (10.0.0.1), rank 1: left; no node of it is left");
}

#[test]
fn a_node_that_falls_silent_is_lost_after_three_intervals_and_the_others_join_again() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 2);
    table.beat("a", 1);
    table.beat("b", 1);
    table.cut("b");
    table.advance(14 * SECOND);
    assert_eq!(table.action("a", 1), Action::Continue);
    let notified = table.notified;
    table.advance(SECOND);
    assert_eq!((table.action("a", 1), table.notified), (Action::Rejoin, notified + 1));
    table.told("round 1 is over: b (10.0.0.1), rank 1: not heard from for 15 s");
    assert_eq!(table.beat("b", 1), Action::Rejoin, "it hears so when it comes back");
}

#[test]
fn nodes_that_fall_silent_together_are_lost_together_and_named_until_they_are_back() {
    let mut table = Table::new();
    table.all_join(&["a", "b", "c"], 3, 3);
    table.beat("a", 1);
    for node in ["b", "c"] {
        table.beat(node, 1);
        table.core.unpark(&run(), &label(node), table.now);
        table.advance(Duration::from_millis(900));
    }
    table.advance(15 * SECOND);
    table.told("b (10.0.0.1), rank 1, c (10.0.0.1), rank 2: not heard from for 14 s");
    // The report says of each node how its loss was noticed.
    let mut other = Table::new();
    other.all_join(&["a", "b", "c"], 3, 3);
    for node in ["a", "b", "c"] {
        other.beat(node, 1);
    }
    other.cut("b");
    other.core.cut(&run(), &label("c"), other.now);
    other.advance(15 * SECOND);
    other.told(
        "round 1 is over: c (10.0.0.1), rank 2: the connection closed, and nothing came for 15 s; b \
         (10.0.0.1), rank 1: not heard from for 15 s; its nodes are to join again",
    );
    // Each silent node may be the reason why another one joins again.
    let mut other = Table::new();
    other.all_join(&["a", "b", "c"], 3, 3);
    other.cut("b");
    other.cut("c");
    other.advance(8 * SECOND);
    other.join(again("a", "2", 3, 3)).expect("it waits");
    other.told(
        "b (10.0.0.1), rank 1, c (10.0.0.1), rank 2: not heard from for 8 s; a \
         (10.0.0.1), rank 0: joined again",
    );
    table.join(again("a", "2", 3, 3)).expect("it waits");
    let reason = table.snapshot().reason;
    assert!(reason.ends_with("; given up: b (10.0.0.1), rank 1, c (10.0.0.1), rank 2"), "{reason}");
    table.join(join("b", 3, 3)).expect("it waits");
    assert_eq!(table.snapshot().reason, "1 more node is needed; given up: c (10.0.0.1), rank 2");
    // A node that was there all the time replaces nobody, though it has the host name of another.
    let info = NodeInfo { name: label("c"), address: label("10.0.0.9"), ..join("a", 3, 3).info };
    table.join(Join { info, ..again("a", "3", 3, 3) }).expect("it waits");
    table.join(join("d", 4, 4)).expect_err("another number of nodes");
    let reason = table.snapshot().reason;
    assert!(reason.ends_with("given up: c (10.0.0.1), rank 2; refused: d (10.0.0.1)"), "{reason}");
}

#[test]
fn who_joins_again_does_not_stand_for_another_of_its_host() {
    let mut table = Table::new();
    let one = |node: &str, id: &str| Join { node: label(node), ..again("host", id, 3, 3) };
    for node in ["a", "b", "c"] {
        table.join(one(node, "1")).expect("a place");
    }
    for node in ["a", "b", "c"] {
        table.beat(node, 1);
    }
    table.cut("b");
    table.advance(16 * SECOND);
    table.join(one("a", "2")).expect("it waits");
    table.join(one("c", "2")).expect("it waits");
    let absent: Vec<_> = table.snapshot().absent.iter().map(|absent| absent.node.to_string()).collect();
    assert_eq!(absent, ["b"]);
}

#[test]
fn nodes_with_one_id_are_named_as_they_displace_each_other() {
    let mut table = Table::new();
    let at = |address: &str, id: &str| {
        let worker = again("worker", id, 3, 3);
        Join { info: NodeInfo { address: label(address), ..worker.info.clone() }, ..worker }
    };
    for (address, id) in [("10.0.0.1", "1"), ("10.0.0.2", "2"), ("10.0.0.2", "3")] {
        table.join(at(address, id)).expect("no refusal");
    }
    let text = "worker (10.0.0.2) has lost its place: worker (10.0.0.2) joined with the same node id";
    table.told(text);
    let text =
        "2 more nodes are needed; displaced by another of the same id: worker (10.0.0.1), worker (10.0.0.2)";
    assert_eq!(table.snapshot().reason, text);
    // A process that was killed and is started again elsewhere displaces nobody.
    let facts = table.facts.len();
    table.core.cut(&run(), &label("worker"), table.now);
    table.join(at("10.0.0.4", "4")).expect("no refusal");
    assert_eq!(table.facts.len(), facts, "{:?}", table.facts);
}

#[test]
fn the_last_that_gives_up_says_who_was_missing() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 3, 3);
    let gave_up = || LeaveRequest { why: Some(label("gave up waiting")), outcome: None };
    table.core.leave(&run(), &label("a"), gave_up(), table.now);
    table.collect();
    let is_abandoned = |fact: &String| fact.contains("given up");
    assert!(!table.facts.iter().any(is_abandoned), "{:?}", table.facts);
    table.core.leave(&run(), &label("b"), gave_up(), table.now);
    table.collect();
    let text = "round 1 was given up after 0 s: 2 more nodes are needed; left: a (10.0.0.1); b (10.0.0.1): \
                left (gave up waiting)";
    table.told(text);
}

#[test]
fn who_is_there_is_named_while_nothing_is_known_of_the_others_and_who_is_silent_there() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 3, 3);
    assert_eq!(table.snapshot().reason, "1 more node is needed; there are a (10.0.0.1), b (10.0.0.1)");
    let mut crowd = Table::new();
    let names: Vec<String> = (10..30).rev().map(|n| format!("n{n}")).collect();
    crowd.all_join(&names.iter().map(String::as_str).collect::<Vec<_>>(), 99, 99);
    let first: Vec<String> = (10..18).map(|n| format!("n{n} (10.0.0.3)")).collect();
    let text = format!("79 more nodes are needed; there are {} and 12 more", first.join(", "));
    assert_eq!(crowd.snapshot().reason, text);
    table.core.cut(&run(), &label("b"), table.now);
    table.advance(4 * SECOND);
    let reason = table.snapshot().reason;
    assert_eq!(reason, "1 more node is needed; there is a (10.0.0.1); connection closed: b (10.0.0.1)");
}

#[test]
fn two_processes_of_one_name_are_told_apart_where_both_are_named() {
    let mut table = Table::new();
    let vm = |node: &str, min, max| {
        let vm = join(node, min, max);
        Join { info: NodeInfo { name: label("vm"), ..vm.info.clone() }, ..vm }
    };
    table.join(vm("one", 3, 3)).expect("a place");
    table.all_join(&["a"], 3, 3);
    table.join(vm("two", 2, 2)).expect_err("other terms");
    table.core.cut(&run(), &label("one"), table.now);
    table.advance(4 * SECOND);
    let reason = table.snapshot().reason;
    assert!(reason.contains("refused: vm (10.0.0.3), node id two"), "{reason}");
    assert!(reason.ends_with("connection closed: vm, node id one (10.0.0.3)"), "{reason}");
}

#[test]
fn each_node_is_told_once_and_those_with_one_name_are_told_apart() {
    let mut table = Table::new();
    let info = NodeInfo { name: label("vm"), ..join("a", 3, 3).info };
    for node in ["one", "two"] {
        table.join(Join { info: info.clone(), ..join(node, 3, 3) }).expect("a place");
    }
    table.core.cut(&run(), &label("two"), table.now);
    table.advance(4 * SECOND);
    let reason = table.snapshot().reason;
    let apart = "there is vm, node id one (10.0.0.1); connection closed: vm, node id two (10.0.0.1)";
    assert!(reason.ends_with(apart), "{reason}");
    let mut table = Table::new();
    table.all_join(&["a", "b", "c"], 3, 3);
    for node in ["a", "b", "c"] {
        table.beat(node, 1);
    }
    table.join(again("a", "2", 3, 3)).expect("it waits");
    table.core.cut(&run(), &label("b"), table.now);
    table.advance(4 * SECOND);
    let reason = table.snapshot().reason;
    let once = "2 nodes of round 1 not yet joined again: c (10.0.0.1); connection closed: b (10.0.0.1)";
    assert!(reason.ends_with(once), "{reason}");
}

#[test]
fn silence_after_a_restart_counts_from_that() {
    let mut before = Table::new();
    before.core.keep_changes();
    before.all_join(&["a", "b"], 2, 2);
    let mut table = restarted(before);
    table.beat("a", 1);
    table.advance(8 * SECOND);
    table.beat("a", 1);
    table.advance(8 * SECOND);
    table.told(
        "round 1 is over: b (10.0.0.1), rank 1: not heard from for 15 s, since the server was restarted",
    );
}

#[test]
fn a_broken_poll_keeps_its_place_for_the_keep_alive() {
    let mut table = Table::new();
    table.all_join(&["a"], 2, 2);
    table.cut("a");
    table.advance(14 * SECOND);
    table.all_join(&["a"], 2, 2);
    table.cut("a");
    table.advance(15 * SECOND);
    table.told("round 1: a (10.0.0.1): not heard from for 15 s");
    table.all_join(&["b"], 2, 2);
    assert!(table.completed.is_empty(), "a lost node does not fill a round");
    table.all_join(&["a"], 2, 2);
    assert_eq!(table.completed.len(), 1, "its retry is a join again");
}

#[test]
fn a_server_that_was_stopped_blames_nobody_for_silence() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 2);
    table.cut("a");
    table.now = table.now + 600 * SECOND;
    table.core.tick(table.now);
    table.collect();
    assert_eq!(table.action("b", 1), Action::Continue);
}

#[test]
fn a_node_that_joins_again_after_a_failure_starts_a_new_round_with_its_rank() {
    let mut table = Table::new();
    table.all_join(&["a", "b", "c"], 3, 3);
    for node in ["a", "b", "c"] {
        table.beat(node, 1);
    }
    table.join(again("b", "2", 3, 3)).expect("a place");
    table.told("b (10.0.0.1), rank 1: joined again");
    assert_eq!(table.action("a", 1), Action::Rejoin);
    table.join(again("c", "2", 3, 3)).expect("a place");
    table.join(again("a", "2", 3, 3)).expect("complete");
    assert_eq!(table.ranks(&["a", "b", "c"]), [Some(0), Some(1), Some(2)]);
    assert_eq!(table.completed[1].number, 2);
}

#[test]
fn who_joins_again_after_others_were_cut_off_is_not_the_cause() {
    let mut table = Table::new();
    let nodes = ["a", "b", "c", "d"];
    table.all_join(&nodes, 4, 4);
    for node in nodes {
        table.beat(node, 1);
    }
    table.core.cut(&run(), &label("d"), table.now);
    table.advance(Duration::from_millis(400));
    table.core.cut(&run(), &label("c"), table.now);
    table.advance(Duration::from_millis(400));
    // Its agent has closed its heartbeat, and joins again in a moment.
    table.core.cut(&run(), &label("a"), table.now);
    table.join(again("b", "2", 4, 4)).expect("a place");
    table.told(
        "round 1 is over: c (10.0.0.1), rank 2, d (10.0.0.1), rank 3: the connections closed, and nothing \
         came for 0.4 s; b (10.0.0.1), rank 1: joined again",
    );
    let reason = table.snapshot().reason;
    assert!(reason.starts_with("3 nodes of round 1 not yet joined again"), "{reason}");
}

#[test]
fn a_process_that_was_cut_off_as_it_joined_gives_its_place_to_the_one_that_comes_in_its_place() {
    let mut table = Table::new();
    let anew = |node: &str, name: &str| Join { node: label(node), ..join(name, 3, 3) };
    table.all_join(&["a", "b"], 3, 3);
    table.core.cut(&run(), &label("b"), table.now);
    // It may come again at once, and another node may have its name.
    table.advance(Duration::from_millis(100));
    table.join(anew("early", "b")).expect("a place");
    assert_eq!(table.completed.len(), 0);
    table.join(anew("b", "b")).expect("complete");
    assert_eq!(table.completed.len(), 1);

    let mut table = Table::new();
    table.all_join(&["a", "b"], 3, 3);
    table.core.cut(&run(), &label("b"), table.now);
    table.advance(5 * SECOND);
    table.join(anew("new", "b")).expect("a place");
    assert!(table.completed.is_empty(), "the dead process is not counted");
    let snapshot = table.snapshot();
    assert_eq!((snapshot.waiting, snapshot.absent.len()), (2, 0), "{snapshot:?}");
    table.join(anew("other", "b")).expect("complete");
    assert_eq!(table.completed.len(), 1, "one that waits there keeps its place");

    // The new process asks for the rank of its predecessor.
    let mut table = Table::new();
    let ranked = |node: &str, name: &str, rank| Join { rank: Some(rank), ..anew(node, name) };
    for (node, rank) in [("a", 0), ("b", 1)] {
        table.join(ranked(node, node, rank)).expect("a place");
    }
    table.core.cut(&run(), &label("b"), table.now);
    table.advance(SECOND);
    assert_eq!(table.join(ranked("new", "b", 1)), Ok(JoinStanding::Waiting));
    table.join(ranked("b", "b", 1)).expect_err("its place is taken");
}

#[test]
fn a_round_is_complete_only_with_nodes_that_are_heard_from() {
    let cut = |table: &mut Table, node| table.core.cut(&run(), &label(node), table.now);
    // Its connection broke when the last node came: it keeps its place, and the round is complete when it is
    // back.
    let mut table = Table::new();
    table.all_join(&["a", "b"], 3, 3);
    cut(&mut table, "b");
    table.all_join(&["c"], 3, 3);
    table.advance(14 * SECOND);
    assert_eq!(table.completed.len(), 0);
    assert!(
        table
            .reason("a")
            .ends_with("whether all of them are alive is not known; connection closed: b (10.0.0.1)"),
        "{}",
        table.reason("a")
    );
    table.all_join(&["b"], 3, 3);
    assert_eq!(table.ranks(&["a", "b", "c"]), [Some(0), Some(1), Some(2)]);

    // The node is dead, and another one stands by. If the process is only stopped, its silence is noticed
    // later.
    for stops in [false, true] {
        let mut table = Table::new();
        table.all_join(&["a", "b"], 3, 3);
        if stops {
            table.cut("b");
            table.advance(8 * SECOND);
        } else {
            cut(&mut table, "b");
        }
        table.all_join(&["c", "d"], 3, 3);
        table.advance(6 * SECOND);
        assert_eq!(table.completed.len(), 0);
        table.advance(9 * SECOND);
        assert_eq!(table.ranks(&["a", "c", "d"]), [Some(0), Some(1), Some(2)]);
    }

    // A last call does not end while a node is silent, and does not begin again when the node is back.
    let mut table = Table::new();
    table.all_join(&["a", "b", "c"], 2, 4);
    table.advance(20 * SECOND);
    cut(&mut table, "c");
    table.advance(5 * SECOND);
    assert_eq!(table.snapshot().state, RoundState::LastCall);
    table.advance(6 * SECOND);
    assert_eq!((table.completed.len(), table.snapshot().closes_at), (0, Some(table.now + 4 * SECOND)));
    table.all_join(&["c"], 2, 4);
    assert_eq!(table.completed.len(), 1);

    // At the deadline, the nodes that are not silent are enough, or too few.
    for (min, ends) in [(2, [None, None, Some("left")]), (3, [Some("join_timeout"); 3])] {
        let mut table = Table::new();
        for node in ["a", "b", "c"] {
            let mut join = join(node, min, 4);
            join.wanted.join_timeout = Some(10 * SECOND);
            table.join(join).expect("a place");
        }
        table.advance(9 * SECOND);
        cut(&mut table, "c");
        table.advance(SECOND);
        let ended = ["a", "b", "c"].map(|node| table.core.standing(&run(), &label(node)).err());
        assert_eq!(ended.each_ref().map(|why| why.as_ref().map(RunRefusal::code)), ends);
    }
}

#[test]
fn a_node_that_came_anew_is_told_from_the_process_before() {
    let mut table = Table::new();
    table.all_join(&["a", "b", "c"], 2, 4);
    table.advance(30 * SECOND);
    for node in ["a", "b", "c"] {
        table.beat(node, 1);
    }
    table.join(again("a", "2", 2, 4)).expect("a place");
    // A node of the last round that has the name of another one is not a successor.
    let info = NodeInfo { name: label("c"), ..join("a", 2, 4).info };
    table.join(Join { info, ..again("a", "3", 2, 4) }).expect("a place");
    assert!(!table.reason("a").contains("came anew"), "{}", table.reason("a"));
    table.core.cut(&run(), &label("b"), table.now);
    let anew = Join { node: label("new"), ..join("b", 2, 4) };
    table.join(anew).expect("a place");
    let reason = table.reason("a");
    let words = "2 nodes of round 1 not yet joined again: b (10.0.0.1), rank 1, c (10.0.0.1), rank 2 (that \
                 process of before: b came anew)";
    assert!(reason.contains(words), "{reason}");
}

#[test]
fn no_round_completes_without_the_nodes_that_may_still_join_again_before_the_deadline() {
    let mut table = Table::new();
    table.all_join(&["a", "b", "c"], 1, 3);
    for node in ["a", "b", "c"] {
        table.beat(node, 1);
    }
    table.join(again("a", "2", 1, 3)).expect("a place");
    table.advance(Duration::from_mins(29));
    assert_eq!(table.completed.len(), 1);
    table.advance(Duration::from_mins(1));
    assert_eq!((table.completed.len(), table.rank("a")), (2, Some(0)), "enough nodes are there");
    assert_eq!(table.action("b", 1), Action::Rejoin, "the round of b is fenced");
}

#[test]
fn requested_ranks_are_given_and_a_live_duplicate_is_refused_with_both_named() {
    let mut table = Table::new();
    table.join(Join { rank: Some(1), ..join("a", 2, 2) }).expect("a place");
    assert!(table.reason("a").ends_with("node ranks not there: 0"), "{}", table.reason("a"));
    let refusal = table.join(Join { rank: Some(1), ..join("bb", 2, 2) }).expect_err("a duplicate");
    assert_eq!(refusal.code(), "duplicate_rank");
    assert!(refusal.to_string().contains("bb (10.0.0.2), but a (10.0.0.1) has it"), "{refusal}");
    let refusal = table.join(Join { rank: Some(2), ..join("c", 2, 2) }).expect_err("too great");
    assert!(refusal.to_string().contains("ranks are below 2"), "{refusal}");
    table.join(Join { rank: Some(0), ..join("c", 2, 2) }).expect("complete");
    assert_eq!(table.ranks(&["a", "c"]), [Some(1), Some(0)]);
}

#[test]
fn a_replacement_waits_for_the_rank_of_a_silent_node_and_gets_it() {
    let mut table = Table::new();
    for (node, rank) in [("a", 0), ("b", 1)] {
        table.join(Join { rank: Some(rank), ..join(node, 2, 2) }).expect("a place");
    }
    table.beat("a", 1);
    table.beat("b", 1);
    table.cut("b");
    let replacement = || Join { rank: Some(1), ..join("b2", 2, 2) };
    assert_eq!(table.join(replacement()), Ok(JoinStanding::Redundant));
    assert!(table.reason("b2").contains("node rank 1 is held by b (10.0.0.1), not heard from for 0 s"));
    table.advance(15 * SECOND);
    table.join(Join { rank: Some(0), ..again("a", "2", 2, 2) }).expect("complete");
    assert_eq!(table.ranks(&["a", "b2"]), [Some(0), Some(1)]);
}

#[test]
fn a_replacement_is_refused_when_the_silent_node_comes_back() {
    let mut table = Table::new();
    for (node, rank) in [("a", 0), ("b", 1)] {
        table.join(Join { rank: Some(rank), ..join(node, 2, 2) }).expect("a place");
    }
    table.beat("a", 1);
    table.beat("b", 1);
    table.cut("b");
    assert_eq!(table.join(Join { rank: Some(1), ..join("b2", 2, 2) }), Ok(JoinStanding::Redundant));
    table.beat("b", 1);
    assert_eq!(table.ended, ["b2"]);
    let refusal = table.core.standing(&run(), &label("b2")).expect_err("refused");
    assert_eq!(refusal.code(), "duplicate_rank");
}

#[test]
fn other_parameters_are_refused_and_named_until_everybody_is_gone() {
    let mut table = Table::new();
    table.all_join(&["a"], 2, 4);
    let mut other = join("b", 3, 4);
    other.wanted.last_call = Some(SECOND);
    let refusal = table.join(other).expect_err("other parameters");
    let words = "started with other parameters by a (10.0.0.1): min_nodes is 2 there and 3 here, last_call \
                 is 30 s there and 1 s here";
    assert!(refusal.to_string().contains(words), "{refusal}");
    table.leave("a");
    table.join(join("b", 1, 1)).expect("nobody is there to disagree");
    assert_eq!(table.rank("b"), Some(0));
}

#[test]
fn a_deadline_is_announced_can_be_extended_and_then_names_who_is_missing() {
    let mut table = Table::new();
    table.join(Join { rank: Some(0), ..join("a", 3, 3) }).expect("a place");
    table.advance(Duration::from_mins(25));
    let view = table.snapshot();
    assert!(view.is_expiring, "{view:?}");
    assert_eq!(view.reason, "2 more nodes are needed; node ranks not there: 1, 2");
    let extended = table.core.extend(&run(), Duration::from_mins(10), table.now).expect("it forms");
    assert_eq!(extended, (1, Duration::from_mins(15)));
    table.advance(Duration::from_mins(14));
    assert!(table.ended.is_empty());
    table.advance(Duration::from_mins(1));
    assert_eq!(table.ended, ["a"]);
    let refusal = table.core.standing(&run(), &label("a")).expect_err("given up");
    assert!(refusal.to_string().contains("1 of at least 3 nodes joined within 40 min"), "{refusal}");
    assert_eq!(
        refusal,
        table.join(Join { rank: Some(0), ..join("a", 3, 3) }).expect_err("a retry hears the same")
    );
    table.join(Join { rank: Some(0), ..again("a", "2", 3, 3) }).expect("nothing is closed by that");
}

#[test]
fn closing_turns_away_who_waits_and_lets_spares_go_gracefully() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 2);
    table.beat("a", 1);
    table.beat("b", 1);
    table.join(join("spare", 2, 2)).expect("redundant");
    table.close();
    let spare = table.core.standing(&run(), &label("spare")).expect_err("closed");
    assert_eq!((table.action("a", 1), spare.code()), (Action::Closed, "graceful_exit"));
    assert_eq!(table.join(join("late", 2, 2)).expect_err("closed").code(), "closed");
    assert_eq!(table.released, 1);
    table.leave("a");
    table.leave("b");
    table.advance(9 * SECOND);
    assert_eq!(table.join(join("late", 2, 2)).expect_err("closed").code(), "closed");
    table.advance(SECOND);
    table.all_join(&["x", "y"], 2, 2);
    table.told("had been closed and is started again by x");
    assert_eq!(table.completed[1].number, 2, "rounds count on");
}

#[test]
fn a_run_has_finished_when_all_nodes_of_its_round_left_as_they_succeeded() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 2);
    table.advance(10 * SECOND);
    table.beat("a", 1);
    table.beat("b", 1);
    table.close();
    assert!(table.leave_with("a", Some(Outcome::Succeeded)));
    let view = table.snapshot();
    assert_eq!((view.succeeded, view.round_size, view.finished), (1, 2, None));
    assert!(table.leave_with("b", Some(Outcome::Succeeded)));
    table.told("finished: 2 nodes after 10 s");
    assert_eq!(table.snapshot().finished, Some(table.now));
    table.advance(10 * SECOND);
    table.all_join(&["x", "y"], 2, 2);
    assert_eq!((table.snapshot().succeeded, table.snapshot().finished), (0, None), "that was the last run");
}

#[test]
fn a_run_that_had_finished_is_started_again_as_such_and_that_is_no_warning() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 2);
    for node in ["a", "b"] {
        table.beat(node, 1);
        table.leave_with(node, Some(Outcome::Succeeded));
    }
    table.close();
    table.advance(11 * SECOND);
    table.all_join(&["c"], 2, 2);
    table.told("had finished and is started again by c (10.0.0.1)");
}

#[test]
fn a_run_has_not_finished_when_a_node_failed_or_does_not_tell() {
    for outcome in [Some(Outcome::Failed), None] {
        let mut table = Table::new();
        table.all_join(&["a", "b"], 2, 2);
        table.close();
        table.leave_with("a", Some(Outcome::Succeeded));
        table.leave_with("b", outcome);
        let view = table.snapshot();
        assert_eq!((view.state, view.succeeded, view.finished), (RoundState::Closed, 1, None));
    }
}

#[test]
fn the_first_node_that_fails_is_told_with_those_that_are_still_in_the_round() {
    let mut table = Table::new();
    table.all_join(&["a", "b", "c"], 3, 3);
    table.close();
    let why = Some(label("its agent failed: ChildFailedError"));
    let failed = LeaveRequest { why, outcome: Some(Outcome::Failed) };
    table.core.leave(&run(), &label("b"), failed, table.now);
    table.advance(SECOND);
    table.leave_with("c", Some(Outcome::Failed));
    table.advance(2 * SECOND);
    table.leave_with("a", Some(Outcome::Failed));
    table.advance(10 * SECOND);
    let told: Vec<_> = table.facts.iter().filter(|fact| fact.contains("failed")).collect();
    let text = "round 1: b (10.0.0.1), rank 1: failed (its agent failed: ChildFailedError); c (10.0.0.1), \
                rank 2: failed; still in the round: a (10.0.0.1)";
    assert_eq!(told, [text]);

    // The last node that fails leaves nobody alone.
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 2);
    table.close();
    table.leave_with("a", Some(Outcome::Succeeded));
    table.leave_with("b", Some(Outcome::Failed));
    table.advance(10 * SECOND);
    assert!(table.facts.iter().all(|fact| !fact.contains("failed")), "{:?}", table.facts);
}

#[test]
fn a_node_whose_poll_broke_is_told_unless_it_comes_again() {
    let mut table = Table::new();
    table.all_join(&["a", "b", "c"], 3, 3);
    for node in ["a", "b", "c"] {
        table.beat(node, 1);
    }
    let broken = |table: &mut Table, node| table.core.cut(&run(), &label(node), table.now);
    broken(&mut table, "a");
    broken(&mut table, "b");
    table.advance(SECOND);
    table.beat("a", 1);
    broken(&mut table, "c");
    table.advance(2 * SECOND);
    let told: Vec<_> = table.facts.iter().filter(|fact| fact.contains("closed")).collect();
    let text = "b (10.0.0.1), rank 1, c (10.0.0.1), rank 2: the connections closed, and nothing came for 2 \
                s; given up after 15 s of silence";
    assert_eq!(told, [text]);
    table.advance(13 * SECOND);
    table.told(
        "b (10.0.0.1), rank 1, c (10.0.0.1), rank 2: the connections closed, and nothing came for 14 s",
    );

    // One node left. The poll of another was answered before its process fell silent.
    let mut table = Table::new();
    table.all_join(&["a", "b"], 3, 3);
    broken(&mut table, "a");
    table.leave("a");
    table.cut("b");
    table.advance(10 * SECOND);
    assert!(table.facts.iter().all(|fact| !fact.contains("closed")), "{:?}", table.facts);
}

#[test]
fn nodes_that_are_late_are_told_once_and_together() {
    let mut table = Table::new();
    table.all_join(&["a", "b", "c", "d"], 4, 4);
    for node in ["a", "b", "c", "d"] {
        table.beat(node, 1);
    }
    // Their polls are answered. Then b and c are stopped, and a and d are slow.
    table.cut("a");
    table.cut("b");
    table.advance(2 * SECOND);
    table.cut("c");
    table.cut("d");
    table.advance(4 * SECOND);
    table.beat("d", 1);
    table.advance(SECOND);
    table.beat("a", 1);
    let told = |table: &Table| {
        let late = table.facts.iter().filter(|fact| fact.contains("of silence"));
        late.cloned().collect::<Vec<_>>()
    };
    assert_eq!(told(&table), Vec::<String>::new());
    table.advance(SECOND);
    let text = "b (10.0.0.1), rank 1, c (10.0.0.1), rank 2: not heard from for 5.5 s; \
                given up after 15 s of silence";
    assert_eq!(told(&table), [text]);
    table.advance(6 * SECOND);
    assert_eq!(told(&table), [text], "once");
    // A node that comes again and is stopped once more is reported once more.
    table.beat("b", 1);
    table.cut("b");
    table.advance(8 * SECOND);
    assert_eq!(told(&table).len(), 2);
    table.told("c (10.0.0.1), rank 2: not heard from for 15 s");

    // A waiting node is reported like a node of a round.
    let mut table = Table::new();
    table.all_join(&["a", "b"], 3, 3);
    table.cut("b");
    table.advance(8 * SECOND);
    assert_eq!(told(&table).len(), 1);

    // The server itself was stopped, and heard nobody.
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 2);
    table.beat("a", 1);
    table.now = table.now + 60 * SECOND;
    table.advance(8 * SECOND);
    assert_eq!(told(&table), Vec::<String>::new());
}

#[test]
fn a_refused_join_and_a_time_out_are_told_with_their_run() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 4, 4);
    table.join(join("late", 3, 3)).expect_err("another number of nodes");
    table.told("late (10.0.0.4) was refused: run train was started with other parameters by a (10.0.0.1)");
    table.advance(Terms::default().join_timeout);
    table.told("2 more nodes are needed; refused: late (10.0.0.4); there are a (10.0.0.1), b (10.0.0.1)");

    let mut table = Table::new();
    let asks = |node: &str, rank| Join { rank: Some(rank), ..join(node, 3, 3) };
    table.join(asks("a", 0)).expect("a place");
    table.join(asks("c", 2)).expect("a place");
    table.advance(Terms::default().join_timeout);
    table.told("1 more node is needed; node ranks not there: 1");
}

#[test]
fn a_node_that_leaves_an_open_run_breaks_its_round_unless_it_succeeded() {
    let mut table = Table::new();
    table.all_join(&["a", "b", "c"], 3, 3);
    table.beat("c", 1);
    table.leave_with("a", Some(Outcome::Succeeded));
    assert_eq!(table.action("c", 1), Action::Continue);
    table.leave_with("b", Some(Outcome::Failed));
    assert_eq!(table.action("c", 1), Action::Rejoin);
}

#[test]
fn a_round_that_was_taken_over_after_a_restart_can_finish() {
    let mut table = Table::new();
    for (node, rank) in [("a", 0), ("b", 1)] {
        table.core.heartbeat(&run(), report(node, 4, rank, 2, 2), table.now).expect("adopted");
    }
    for node in ["a", "b"] {
        assert_eq!(table.snapshot().finished, None);
        table.leave_with(node, Some(Outcome::Succeeded));
    }
    assert!(table.snapshot().finished.is_some());
}

#[test]
fn an_unwatched_node_holds_its_place_only_until_the_round_is_complete() {
    let mut table = Table::new();
    let shell = |node: &str, id: &str| Join { watched: false, ..again(node, id, 2, 2) };
    table.join(shell("a", "1")).expect("a place");
    table.join(shell("b", "1")).expect("complete");
    table.advance(Duration::from_mins(10));
    assert_eq!(table.ranks(&["a", "b"]), [Some(0), Some(1)], "nobody misses it");
    assert_eq!(table.released, 0);
    table.join(shell("b", "2")).expect("a place");
    table.join(shell("c", "1")).expect("a new round does not wait for it");
    assert_eq!(table.completed[1].number, 2);
}

#[test]
fn a_restarted_server_takes_the_round_over_and_counts_on() {
    let mut table = Table::new();
    let core = &mut table.core;
    for (node, rank) in [("a", 0), ("b", 1)] {
        let view = core.heartbeat(&run(), report(node, 7, rank, 2, 3), table.now).expect("a view");
        assert_eq!(view.action, Action::Continue);
        core.park_in_round(&run(), &label(node), 7);
    }
    table.collect();
    table.told("round 7 of 2 nodes goes on after a restart of the server, as a (10.0.0.1) reported");
    let view = table.core.heartbeat(&run(), report("c", 7, 1, 2, 3), table.now).expect("a view");
    assert_eq!(view.action, Action::Rejoin, "rank 1 is taken");
    let view = table.core.heartbeat(&run(), report("d", 6, 0, 2, 3), table.now).expect("a view");
    assert_eq!(view.action, Action::Rejoin, "an older round is over");
    table.join(join("e", 1, 3)).expect("a place");
    assert_eq!(table.action("a", 7), Action::Rejoin);
    table.join(again("b", "2", 1, 3)).expect("a place");
    table.join(again("a", "2", 1, 3)).expect("a place");
    assert_eq!(table.completed[0].number, 8);
    assert_eq!(table.ranks(&["a", "b", "e"]), [Some(0), Some(1), Some(2)]);
}

#[test]
fn after_a_restart_the_first_join_brings_the_terms_that_reports_do_not_have() {
    let mut table = Table::new();
    for (node, rank) in [("a", 0), ("b", 1)] {
        table.core.heartbeat(&run(), report(node, 4, rank, 2, 3), table.now).expect("taken over");
    }
    let with_last_call = |node, max, seconds| {
        let mut join = join(node, 1, max);
        join.wanted.last_call = Some(Duration::from_secs(seconds));
        join
    };
    let other_nodes = table.join(with_last_call("c", 4, 7)).expect_err("the number of nodes is known");
    assert!(other_nodes.to_string().contains("max_nodes is 3 there and 4 here"), "{other_nodes}");
    table.join(with_last_call("c", 3, 7)).expect("the last call is not known");
    let other_time = table.join(with_last_call("d", 3, 8)).expect_err("now it is");
    assert!(other_time.to_string().contains("last_call is 7 s there and 8 s here"), "{other_time}");
}

#[test]
fn after_a_restart_nodes_that_do_not_report_are_waited_for_and_then_given_up() {
    let mut table = Table::new();
    table.core.heartbeat(&run(), report("a", 3, 0, 2, 2), table.now).expect("a view");
    table.core.park_in_round(&run(), &label("a"), 3);
    table.collect();
    assert_eq!(
        table.join(join("fresh", 1, 2)),
        Ok(JoinStanding::Redundant),
        "the place may be another node's"
    );
    table.advance(60 * SECOND);
    table.told("1 of 2 nodes did not report after the server was restarted");
    assert_eq!(table.action("a", 3), Action::Rejoin);
    table.join(again("a", "2", 1, 2)).expect("complete");
    assert_eq!(table.ranks(&["a", "fresh"]), [Some(0), Some(1)]);
}

#[test]
fn a_late_report_of_an_older_round_does_not_take_the_numbers_back() {
    let mut table = Table::new();
    // Nodes of three rounds come back to a restarted server: a knows only the first round, c was in the last
    // one.
    table.core.heartbeat(&run(), report("a", 1, 0, 2, 2), table.now).expect("a view");
    let last = Some(RankInRound { round: 3, rank: 0 });
    table.join(Join { previous: last, ..again("c", "3", 1, 2) }).expect("a place");
    table.core.heartbeat(&run(), report("b", 2, 1, 2, 2), table.now).expect("a view");
    table.collect();
    table.advance(2 * 60 * SECOND);
    assert_eq!(table.completed.first().map(|round| round.number), Some(4));
}

#[test]
fn a_round_of_which_a_restart_left_only_the_number_is_taken_over_or_counted() {
    for somebody_reports in [true, false] {
        let mut before = Table::new();
        before.core.keep_changes();
        before.all_join(&["a", "b"], 1, 2);
        let Some(KeptChange::Run(id, record, _)) = before.core.kept(&run()) else { panic!("it is kept") };
        let mut table = Table::new();
        // Its store could not be opened again, so its nodes are not restored.
        let round = table.core.restore(&id, *record, Vec::new(), table.now);
        assert_eq!(round, None);
        if somebody_reports {
            let view = table.core.heartbeat(&run(), report("a", 1, 0, 2, 2), table.now).expect("a view");
            assert_eq!(view.action, Action::Continue);
        } else {
            table.join(join("new", 1, 2)).expect("a place");
            table.advance(60 * SECOND);
            assert_eq!(table.completed[0].number, 2, "round 1 may still be somewhere");
            let view = table.core.heartbeat(&run(), report("a", 1, 0, 2, 2), table.now).expect("a view");
            assert_eq!(view.action, Action::Rejoin, "there is a newer round");
        }
    }
}

#[test]
fn a_node_that_joins_again_at_a_restarted_server_brings_round_and_rank() {
    let mut table = Table::new();
    let back = |node, rank| Join { previous: Some(RankInRound { round: 4, rank }), ..again(node, "5", 2, 2) };
    table.join(back("b", 1)).expect("a place");
    table.join(back("a", 0)).expect("complete");
    assert_eq!((table.completed[0].number, table.ranks(&["a", "b"])), (5, vec![Some(0), Some(1)]));
}

#[test]
fn a_round_without_a_store_fails_with_the_reason_and_can_be_tried_again() {
    let mut table = Table::new();
    table.core.join(&run(), join("a", 1, 1), table.now).expect("complete");
    table.core.no_store(&run(), "no port left", table.now);
    table.collect();
    let refusal = table.core.standing(&run(), &label("a")).expect_err("failed");
    assert_eq!(refusal.to_string(), "run train round 1 has no store for its workers: no port left");
    table.join(again("a", "2", 1, 1)).expect("complete");
    assert_eq!(table.completed.last().expect("a round").number, 2);
}

#[test]
fn different_releases_of_pytorch_are_said() {
    let mut table = Table::new();
    for (node, version) in [("a", "2.6.0"), ("b", "2.15.0")] {
        let mut join = join(node, 2, 2);
        join.info.torch_version = Some(label(version));
        table.join(join).expect("a place");
    }
    table.told("different releases of PyTorch: 2.15.0 on 1, 2.6.0 on 1");
}

#[test]
fn runs_and_nodes_are_limited_and_idle_runs_make_room() {
    let mut table = Table::with_limit(2);
    let other = |n: u32| RunId::new(format!("run-{n}").as_bytes());
    for n in 0..2 {
        table.core.join(&other(n), join("a", 2, 2), table.now).expect("room");
    }
    let full = table.core.join(&other(2), join("a", 2, 2), table.now).expect_err("no room");
    assert!(full.to_string().contains("--max-runs"), "{full}");
    table.core.leave(&other(0), &label("a"), LeaveRequest::default(), table.now);
    table.core.join(&other(2), join("a", 2, 2), table.now).expect("room");
    let mut crowd = (0..1000).map(|n| table.core.join(&other(2), join(&format!("n{n}"), 2, 2), table.now));
    assert_eq!(crowd.find_map(Result::err).expect("a limit").code(), "too_many_nodes");
}

#[test]
fn when_memory_is_short_runs_that_are_over_keep_the_number_of_their_nodes() {
    let mut table = Table::with_limit(100);
    let id = |n: u32| RunId::new(format!("run-{n}").as_bytes());
    let node = |n: u32| format!("node-{n}");
    for n in 0..3 {
        for of in 0..10 {
            let mut join = join(&node(of), 10, 10);
            join.watched = n == 1;
            table.core.join(&id(n), join, table.now).expect("room");
        }
        table.advance(SECOND);
    }
    let shown = |table: &Table, n: u32| {
        let run = table.core.snapshot_of(&id(n), table.now).expect("it is known");
        (run.round_size, run.nodes.len(), run.let_go)
    };
    assert_eq!(shown(&table, 0), (10, 10, 0));
    // Memory for a few more nodes with the longest texts.
    table.core.limit_memory(table.core.memory() + 20_000);
    for n in 0..8 {
        table.core.join(&id(3), join(&node(n), 200, 200), table.now).expect("the oldest makes room");
    }
    assert_eq!(
        (shown(&table, 0), shown(&table, 1), shown(&table, 2)),
        ((10, 0, 10), (10, 10, 0), (10, 10, 0))
    );
    let full = (8..200).find_map(|n| table.core.join(&id(3), join(&node(n), 200, 200), table.now).err());
    assert_eq!(full.expect("no room").code(), "no_memory");
    let left = table.core.snapshot(table.now).into_iter().map(|run| run.run_id).collect::<Vec<_>>();
    assert_eq!((left, shown(&table, 1)), (vec![id(1), id(3)], (10, 10, 0)), "who may be alive stays");
    table.core.join(&id(3), join(&node(0), 200, 200), table.now).expect("it asks again");
}

#[test]
fn runs_whose_nodes_have_no_request_open_make_room_whatever_keep_alive_they_asked_for() {
    let mut table = Table::with_limit(100);
    let id = |n: u32| RunId::new(format!("run-{n}").as_bytes());
    let mut abandoned = join("a", 2, 2);
    abandoned.wanted.keep_alive = Some(Duration::from_mins(20));
    table.core.join(&id(0), abandoned.clone(), table.now).expect("room");
    table.core.park(&id(0), &label("a"));
    for n in 1..100 {
        table.core.join(&id(n), abandoned.clone(), table.now).expect("room");
        table.core.park(&id(n), &label("a"));
        table.core.unpark(&id(n), &label("a"), table.now);
    }
    let full = table.core.join(&id(100), join("a", 2, 2), table.now).expect_err("each may ask again at once");
    assert_eq!(full.code(), "too_many_runs");
    table.advance(14 * SECOND);
    table.core.join(&id(7), abandoned, table.now).expect("it asks again");
    table.advance(2 * SECOND);
    for n in 100..198 {
        table.core.join(&id(n), join("a", 2, 2), table.now).expect("room");
        table.core.park(&id(n), &label("a"));
    }
    let mut left: Vec<RunId> = table.core.snapshot(table.now).into_iter().map(|run| run.run_id).collect();
    left.retain(|run| (0..100).any(|n| *run == id(n)));
    assert_eq!(left, [id(0), id(7)], "one waits here, one has just asked");
    table.core.join(&id(200), join("a", 2, 2), table.now).expect_err("and nobody else makes room");
}

#[test]
fn a_report_that_is_not_taken_over_changes_nothing() {
    let mut table = Table::new();
    table.all_join(&["a", "b"], 2, 3);
    table.advance(30 * SECOND);
    table.beat("a", 1);
    table.beat("b", 1);
    let most = [2, 7, (1 << 48) - 1, 1 << 48, u64::MAX];
    for round in most {
        let before = format!("{:?}", table.core.runs);
        let view =
            table.core.heartbeat(&run(), report("stranger", round, 0, 1, 1), table.now).expect("a view");
        assert_eq!(view.action, Action::Rejoin);
        assert_eq!(format!("{:?}", table.core.runs), before, "round {round}");
    }
    for node in ["a", "b", "c"] {
        table.join(again(node, "2", 2, 3)).expect("a place");
    }
    assert_eq!(table.completed[1].number, 2);
    // The run may also be unknown.
    let other = RunId::new(b"other");
    table.core.heartbeat(&other, report("stranger", u64::MAX, 0, 1, 1), table.now).expect("a view");
    assert!(table.core.snapshot_of(&other, table.now).is_none());
    // The nodes of a forming round have terms. A report with other terms is not about their round.
    table.core.join(&other, join("a", 2, 2), table.now).expect("a place");
    table.core.heartbeat(&other, report("stranger", 5, 0, 1, 1), table.now).expect("a view");
    assert_eq!(table.core.snapshot_of(&other, table.now).expect("forms").round, 1);
}

#[test]
fn a_run_counts_on_from_the_greatest_number_that_a_stranger_can_say() {
    let mut table = Table::new();
    table.core.heartbeat(&run(), report("stranger", (1 << 48) - 1, 0, 1, 1), table.now).expect("taken over");
    table.advance(16 * SECOND);
    for number in [1 << 48, (1 << 48) + 1] {
        let place = table.completed.last().map(|round| RankInRound { round: round.number, rank: 0 });
        for node in ["a", "b"] {
            let again = Join { previous: place, ..again(node, &number.to_string(), 2, 2) };
            table.join(again).expect("a place");
        }
        assert_eq!(table.completed.last().expect("a round").number, number);
        assert_eq!((table.beat("a", number), table.beat("b", number)), (Action::Continue, Action::Continue));
    }
}

#[test]
fn terms_that_contradict_themselves_are_refused() {
    let mut table = Table::new();
    for (min, max) in [(0, 1), (3, 2), (1, 1_000_000)] {
        assert_eq!(table.join(join("a", min, max)).expect_err("bad").code(), "bad_request");
    }
    let mut endless = join("a", 1, 1);
    endless.wanted.join_timeout = Some(Duration::MAX);
    assert_eq!(table.join(endless).expect_err("bad").code(), "bad_request");
    let mut sleepy = join("a", 1, 1);
    sleepy.wanted.keep_alive = Some(Duration::from_hours(7 * 24));
    assert_eq!(table.join(sleepy).expect_err("bad").code(), "bad_request");
    let none = Join { previous: Some(RankInRound { round: 0, rank: 0 }), ..join("a", 1, 1) };
    assert_eq!(table.join(none).expect_err("bad").code(), "bad_request");
    assert!(table.core.heartbeat(&run(), report("a", 1, 2, 2, 2), table.now).is_err());
    assert!(Label::new("").is_err() && Label::new("a\nb").is_err() && Label::new(&"x".repeat(257)).is_err());
}

#[test]
fn a_spare_gets_a_place_in_the_round_after_one_that_was_completed_without_stragglers() {
    let mut table = Table::new();
    table.all_join(&["b", "f", "d", "c"], 2, 4);
    table.join(join("spare", 2, 4)).expect("redundant");
    for node in ["b", "f", "d", "c"] {
        table.beat(node, 1);
    }
    table.advance(16 * SECOND);
    table.join(again("c", "2", 2, 4)).expect("a place");
    table.join(again("d", "2", 2, 4)).expect("a place");
    table.advance(Duration::from_mins(30));
    assert_eq!(table.completed.len(), 2);
    assert_eq!(table.action("c", 2), Action::Rejoin, "a node waits for the next round");
    assert_eq!(table.core.snapshot(table.now)[0].waiting, 1);
}
