//! Whatever the moments at which a healthy job is looked at, nothing is said against it.

use proptest::prelude::*;

use super::lab::Lab;
use super::replay::{self, Script};
use crate::Settings;
use rallypoint_api::RunState;
use rallypoint_store::StaleKeyConfig;

/// Pauses between two looks in milliseconds, as they are on a machine that has other things to do.
fn pauses() -> impl Strategy<Value = Vec<u64>> {
    let pause = prop_oneof![4 => 1..30_u64, 4 => 80..130_u64, 1 => 300..4000_u64];
    prop::collection::vec(pause, 1..30)
}

#[track_caller]
fn assert_silent(lab: &Lab) {
    assert_eq!(lab.complaints(), [""; 0]);
}

#[test]
fn nothing_is_said_of_programs_that_keep_keys_of_their_own_in_a_store() {
    let mut lab = Lab::new();
    for n in [0, 1] {
        lab.worker(n, "10.0.0.1");
        lab.set(n, &format!("/shard-{n}"), b"1");
    }
    lab.pass(3.0);
    lab.leave_all([0, 1]);
    lab.pass(10.0);
    assert_eq!(lab.said.len(), 0, "{:?}", lab.said);
}

/// When the old connection of a rank that meets again is seen to close.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Close {
    First,
    AfterConnect,
    AfterPublish,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Do {
    Connect,
    Publish,
    /// Reads the address of a rank; waits for it if it is not there.
    Read(u32),
    /// Leaves, which it can do once all have read all.
    Close,
}

/// One rank of `env://` in all its meetings.
struct Member {
    rank: u32,
    /// What there is left to do, each in its meeting.
    plan: std::vec::IntoIter<(usize, Do)>,
    next: Option<(usize, Do)>,
    /// Its connections, the oldest first.
    open: Vec<u32>,
    waits: bool,
}

impl Member {
    fn new(rank: u32, sizes: &[u32], close: Close) -> Self {
        let mut plan = Vec::new();
        let mut has_old = false;
        for (meeting, &size) in sizes.iter().enumerate().filter(|&(_, &size)| rank < size) {
            let others = (0..size).filter(|&other| other != rank).map(Do::Read);
            let mut steps = vec![Do::Connect, Do::Publish];
            if has_old {
                steps.insert(close as usize, Do::Close);
            }
            steps.extend(others);
            // The last steps of a meeting are those in which it is left.
            plan.extend(steps.into_iter().map(|step| (meeting, step)));
            has_old = true;
        }
        plan.push((sizes.len(), Do::Close));
        let mut plan = plan.into_iter();
        let next = plan.next();
        Self { rank, plan, next, open: Vec::new(), waits: false }
    }
}

/// Job that meet as often as there are sizes.
struct Job {
    ranks: Vec<Member>,
    sizes: Vec<u32>,
    /// For each meeting: who has published, how many addresses have been read, who has left.
    published: Vec<Vec<u32>>,
    read: Vec<u32>,
    left: Vec<Vec<u32>>,
    connections: u32,
}

impl Job {
    fn new(sizes: &[u32], close: Close) -> Self {
        let most = sizes.iter().copied().max().unwrap_or(0);
        Self {
            ranks: (0..most).map(|rank| Member::new(rank, sizes, close)).collect(),
            sizes: sizes.to_vec(),
            published: vec![Vec::new(); sizes.len()],
            read: vec![0; sizes.len()],
            left: vec![Vec::new(); sizes.len()],
            connections: 0,
        }
    }

    /// All ranks of a meeting have connected to each other.
    fn has_met(&self, meeting: usize) -> bool {
        let size = self.sizes[meeting];
        self.read[meeting] == size * (size - 1) && self.published[meeting].len() == size as usize
    }

    /// The meeting before this one in which a rank was.
    fn before(&self, rank: u32, meeting: usize) -> Option<usize> {
        (0..meeting).rev().find(|&at| rank < self.sizes[at])
    }

    fn can_go_on(&self, rank: &Member) -> bool {
        match rank.next {
            Some((meeting, Do::Read(other))) => {
                let is_left =
                    self.before(other, meeting).is_none_or(|before| self.left[before].contains(&other));
                self.published[meeting].contains(&other) || !rank.waits && is_left
            }
            Some((0, _)) => true,
            Some((meeting, _)) if rank.rank < self.sizes[meeting - 1] => self.has_met(meeting - 1),
            // Newcomers come when the meeting before is over: nothing tells those who come earlier from
            // strangers.
            Some((meeting, step)) => {
                step == Do::Close || self.left[meeting - 1].len() == self.sizes[meeting - 1] as usize
            }
            None => false,
        }
    }

    /// One of those who can go on does so. `false` at the end.
    fn step(&mut self, lab: &mut Lab, pick: usize) -> bool {
        let able: Vec<usize> = (0..self.ranks.len()).filter(|&at| self.can_go_on(&self.ranks[at])).collect();
        let Some(&at) = able.get(pick % able.len().max(1)) else { return false };
        let rank = &mut self.ranks[at];
        let Some((meeting, step)) = rank.next else { return false };
        let conn = rank.open.last().copied().unwrap_or_default();
        match step {
            Do::Connect => {
                self.connections += 1;
                let conn = self.connections;
                rank.open.push(conn);
                lab.come(conn, &format!("10.0.0.{at}"), 2000 + rank.rank);
                lab.add(conn, "init/", 1);
            }
            Do::Publish => {
                lab.publish(conn, rank.rank, self.sizes[meeting] as usize);
                self.published[meeting].push(rank.rank);
            }
            Do::Read(other) if self.published[meeting].contains(&other) => {
                rank.waits = false;
                lab.get(conn, &format!("/default_pg/0//cpu//0/{other}"));
                self.read[meeting] += 1;
            }
            Do::Read(other) => {
                rank.waits = true;
                lab.wait_for_rank(conn, other);
                return true;
            }
            Do::Close => {
                lab.leave(rank.open.remove(0));
                let rank = rank.rank;
                self.before(rank, meeting).into_iter().for_each(|before| self.left[before].push(rank));
            }
        }
        let rank = &mut self.ranks[at];
        rank.next = rank.plan.next();
        true
    }

    fn is_done(&self) -> bool {
        self.ranks.iter().all(|rank| rank.next.is_none())
    }
}

proptest! {
    // As many as `PROPTEST_CASES` says.
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn ranks_that_meet_as_often_as_they_like(
        sizes in prop::collection::vec(1..5_u32, 1..4),
        close in prop::sample::select(vec![Close::First, Close::AfterConnect, Close::AfterPublish]),
        order in prop::collection::vec(
            (any::<u16>(), prop::sample::select(vec![0, 0, 0, 1, 5, 40, 300_u64])), 1..40),
        pauses in pauses(),
    ) {
        let settings = Settings { explain_after: std::time::Duration::from_mins(2), ..Settings::default() };
        let mut lab = Lab::with(settings, StaleKeyConfig::default());
        lab.pauses = pauses;
        lab.scene.is_free();
        let mut job = Job::new(&sizes, close);
        for (pick, millis) in order.into_iter().cycle() {
            if !job.step(&mut lab, usize::from(pick)) {
                break;
            }
            lab.pass(millis as f64 / 1000.0);
        }
        prop_assert!(job.is_done(), "the model is stuck");
        lab.pass(12.0);
        prop_assert_eq!(lab.complaints(), [""; 0]);
        prop_assert_eq!(lab.moments("round_complete"), sizes.len(), "{:?}", lab.texts("round_complete"));
        prop_assert!(!lab.texts("run_ended").is_empty());
        prop_assert_eq!(lab.run("store:29500").summary.state, RunState::Ended);
    }

    #[test]
    fn agents_and_their_workers(
        nodes in 1..4_u32,
        together in any::<bool>(),
        millis in prop::sample::select(vec![0, 3, 90, 700_u64]),
        pauses in pauses(),
    ) {
        let mut lab = Lab::expecting(nodes, nodes);
        lab.pauses = pauses;
        lab.scene.is_free();
        let pass = millis as f64 / 1000.0;
        for n in 0..nodes {
            lab.agent(n, "job");
            lab.pass(pass);
            lab.cas(n, "job", if n + 1 == nodes { "join complete" } else { "join" });
        }
        lab.exchange("job", 0, nodes, 1);
        lab.pass(pass);
        let workers = 100..100 + nodes;
        for n in workers.clone() {
            lab.rank(n, &format!("10.77.0.{}", n - 90), n - 100, nodes as usize);
            lab.pass(pass);
        }
        for n in workers.clone() {
            (0..nodes).for_each(|rank| lab.get(n, &format!("/default_pg/0//cpu//0/{rank}")));
        }
        if !together {
            // Longer than it takes to say that workers meet elsewhere.
            lab.pass(40.0);
        }
        for n in workers {
            lab.leave(n);
            lab.pass(pass);
        }
        if !together {
            lab.pass(3.0);
        }
        for n in 0..nodes {
            lab.reach_exit(n, "job", n + 1 == nodes);
            lab.pass(pass);
        }
        lab.cas(0, "job", "close");
        for n in 0..nodes {
            lab.leave(n);
            lab.pass(pass);
        }
        lab.pass(12.0);
        prop_assert_eq!(lab.complaints(), [""; 0]);
        prop_assert_eq!(lab.texts("workers_elsewhere"), [""; 0]);
        prop_assert_eq!((lab.texts("round_complete").len(), lab.texts("run_finished").len()), (2, 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn recorded_jobs(pauses in pauses()) {
        let jobs: [(&str, Script); 6] = [
            ("run1_c10d_4x2", replay::RUN_1),
            ("run4_plugin_workers_external", replay::RUN_4_PLUGIN),
            ("run4_env_standalone", &[]),
            ("run4_static_sidecar_agentstore", &[]),
            ("run4_static_standalone_4x", &[]),
            ("run7_c10d_torch24", replay::RUN_7),
        ];
        for (name, script) in jobs {
            let mut lab = Lab::new();
            lab.pauses.clone_from(&pauses);
            lab.scene.is_free();
            let lab = replay::replay(name, script, lab, 20.0);
            prop_assert_eq!(lab.complaints(), [""; 0], "{}", name);
            prop_assert_eq!(lab.texts("run_finished").len() + lab.texts("run_ended").len(), 1, "{}", name);
        }
    }
}

#[test]
fn ranks_that_meet_and_leave_between_two_looks_have_finished() {
    let mut lab = Lab::new();
    for meeting in 0..2 {
        (0..2).for_each(|n| lab.rank(n, "10.0.0.1", n, 2));
        (0..2).for_each(|n| lab.get(n, &format!("/default_pg/0//cpu//0/{}", 1 - n)));
        // Member 1 is the first to leave: with it goes the address of rank 0, which has read its.
        lab.leave_all([1, 0]);
        lab.pass(if meeting == 0 { 0.01 } else { 5.0 });
    }
    assert_silent(&lab);
    assert_eq!((lab.moments("round_complete"), lab.texts("round_complete").len()), (2, 1));
}

/// A program that makes its process group again and again is one run, and its log does not grow with them.
#[test]
fn ranks_that_meet_again_are_told_once() {
    let mut lab = Lab::new();
    for _ in 0..20 {
        for n in 0..3 {
            lab.worker(n, "10.0.0.1");
            lab.pass(0.3);
            lab.publish(n, n, 3);
        }
        (0..3).for_each(|n| (0..3).for_each(|rank| lab.get(n, &format!("/default_pg/0//cpu//0/{rank}"))));
        lab.pass(9.0);
        (0..3).for_each(|n| lab.leave(n));
        lab.pass(0.1);
    }
    lab.pass(5.0);
    assert_silent(&lab);
    assert_eq!((lab.moments("round_complete"), lab.texts("round_complete").len()), (20, 1));
    assert_eq!(lab.texts("run_started").len(), 1, "{:?}", lab.said);
}

/// `none` is the id of each job that is given none.
#[test]
fn a_static_job_follows_a_c10d_one_of_the_same_id() {
    let mut lab = Lab::new();
    lab.complete_run("none", 2);
    lab.pass(20.0);
    (0..2).for_each(|n| lab.reach_exit(n, "none", n == 1));
    lab.cas(0, "none", "close");
    (0..2).for_each(|n| lab.leave(n));
    lab.pass(5.0);
    for n in [1, 0] {
        lab.static_node(10 + n, "none", n, 2);
    }
    lab.assign_static(10, "none", 2, 1);
    lab.pass(40.0);
    (0..2).for_each(|n| lab.exit_static(10 + n, "none", n == 1));
    (0..2).for_each(|n| lab.leave(10 + n));
    lab.pass(5.0);
    assert_silent(&lab);
    assert_eq!(lab.texts("run_finished").len(), 2, "{:?}", lab.said);
}

/// Its workers tell no ranks, but where they listen.
#[test]
fn a_job_of_rpc_runs_and_ends() {
    let mut lab = Lab::new();
    for n in 0..2 {
        lab.worker(n, "10.0.0.1");
        lab.set(n, &format!("/rpc_prefix_0/names/{n}"), format!("worker{n}").as_bytes());
    }
    lab.pass(40.0);
    assert_eq!(lab.run("store:29500").summary.state, RunState::Running);
    (0..2).for_each(|n| lab.leave(n));
    lab.pass(5.0);
    assert_silent(&lab);
    assert_eq!(lab.run("store:29500").summary.state, RunState::Ended);
}

#[test]
fn a_rank_that_begins_anew_before_another_has_left_has_lost_nobody() {
    let mut lab = Lab::new();
    (0..3).for_each(|n| lab.rank(n, "10.0.0.1", n, 3));
    lab.pass(10.0);
    lab.leave(0);
    lab.rank(10, "10.0.0.1", 0, 3);
    lab.pass(0.5);
    assert_eq!(
        lab.run("store:29500").rank_grid.expect("ranks").states,
        "joo",
        "the others have met before, not now"
    );
    for n in 1..3 {
        lab.leave(n);
        lab.pass(0.3);
        lab.rank(10 + n, "10.0.0.1", n, 3);
    }
    lab.pass(10.0);
    assert_silent(&lab);
    assert_eq!(lab.texts("round_complete").len(), 2, "once for each time they meet");
}

#[test]
fn workers_that_have_left_were_not_elsewhere() {
    let mut lab = Lab::new();
    lab.complete_run("job", 1);
    lab.rank(5, "10.77.0.10", 0, 1);
    lab.pass(60.0);
    lab.leave(5);
    lab.pass(20.0);
    assert_eq!(lab.texts("workers_elsewhere"), [""; 0]);
}

#[test]
fn a_run_finishes_without_a_node_that_was_taken_out_of_the_round() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.joins(3, "job", "wait drop:2");
    lab.reach_exit(0, "job", false);
    lab.reach_exit(1, "job", true);
    lab.pass(2.0);
}

#[test]
fn nodes_that_have_finished_are_of_the_round_after_others_have_taken_them_out() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.pass(5.0);
    lab.reach_exit(0, "job", false);
    lab.reach_exit(1, "job", false);
    for _ in 0..5 {
        lab.pass(5.0);
        lab.cas(2, "job", "");
    }
    // They wait on the connection of their heartbeats.
    lab.cas(2, "job", "drop:0 drop:1");
    lab.pass(2.0);
    let run = lab.run("job");
    assert_eq!((run.summary.nodes.joined, run.summary.nodes.missing), (3, Some(0)));
    assert_eq!(run.summary.exit.expect("a barrier").arrived, 2);
    let mut who: Vec<&str> = run.waits.iter().filter_map(|wait| wait.who.as_deref()).collect();
    who.sort_unstable();
    assert_eq!(who, ["node0 (node rank 0)", "node1 (node rank 1)"]);
    assert_eq!(lab.complaints(), [""; 0]);

    lab.restart(1.0, &[]);
    lab.pass(3.0);
    let exit = lab.run("job").summary.exit.expect("a barrier");
    assert_eq!((exit.arrived, exit.expected), (2, Some(3)), "as the roles say that the nodes had told");
    lab.reach_exit(2, "job", true);
    lab.pass(1.0);
    assert_eq!(lab.texts("run_finished").len(), 1);

    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.reach_exit(0, "job", false);
    lab.reach_exit(1, "job", false);
    lab.pass(16.0);
    lab.cas(2, "job", "drop:0 drop:1");
    lab.pass(1.0);
    lab.leave(2);
    lab.pass(3.0);
    let nodes = lab.run("job").summary.nodes;
    assert_eq!((nodes.joined, nodes.gone, nodes.missing), (2, 1, Some(1)));

    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    (0..2).for_each(|n| lab.reach_exit(n, "job", false));
    lab.pass(16.0);
    lab.cas(2, "job", "drop:0 drop:1");
    lab.reach_exit(2, "job", true);
    (0..3).for_each(|n| lab.leave(n));
    lab.pass(5.0);
    let summary = lab.run("job").summary;
    assert_eq!((summary.state, summary.nodes.joined), (RunState::Finished, 3));
}
