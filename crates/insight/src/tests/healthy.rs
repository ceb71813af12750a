//! Whatever the moments at which a healthy job is looked at, nothing is said against it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::lab::Lab;
use super::replay::replay;
use super::stories::{Stage as _, stories};
use crate::Settings;
use rallypoint_api::RunState;
use rallypoint_store::StaleKeyConfig;

/// Pauses between two looks in milliseconds, as they are on a machine that has other things to do.
fn pauses() -> impl Strategy<Value = Vec<u64>> {
    let pause = prop_oneof![4 => 1..30_u64, 4 => 80..130_u64, 1 => 300..4000_u64];
    prop::collection::vec(pause, 1..30)
}

/// When the old connection of a rank that meets again is seen to close.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Close {
    First,
    AfterConnect,
    AfterPublish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Do {
    Connect,
    Publish,
    /// Reads the address of a rank; waits for it if it is not there.
    Read(u32),
    /// Leaves the meeting, which it can do once all have read all.
    Close,
}

/// One rank of `env://` in all its meetings.
struct Member {
    rank: u32,
    /// What there is left to do, each with its meeting; what is next is the last.
    plan: Vec<(usize, Do)>,
    /// Its connections, the oldest first.
    open: Vec<u32>,
    waits: bool,
}

impl Member {
    fn new(rank: u32, sizes: &[u32], close: Close) -> Self {
        let (mut plan, mut old) = (Vec::new(), None);
        for (meeting, &size) in sizes.iter().enumerate().filter(|&(_, &size)| rank < size) {
            let others = (0..size).filter(|&other| other != rank).map(Do::Read);
            let mut steps: Vec<_> =
                [Do::Connect, Do::Publish].into_iter().chain(others).map(|step| (meeting, step)).collect();
            if let Some(old) = old.replace(meeting) {
                steps.insert(close as usize, (old, Do::Close));
            }
            plan.extend(steps);
        }
        plan.extend(old.map(|old| (old, Do::Close)));
        plan.reverse();
        Self { rank, plan, open: Vec::new(), waits: false }
    }
}

/// Ranks that meet as often as there are sizes.
struct Job {
    ranks: Vec<Member>,
    sizes: Vec<u32>,
    done: BTreeSet<(usize, u32, Do)>,
    connections: u32,
}

impl Job {
    fn new(sizes: &[u32], close: Close) -> Self {
        let most = sizes.iter().copied().max().unwrap_or(0);
        let ranks = (0..most).map(|rank| Member::new(rank, sizes, close)).collect();
        Self { ranks, sizes: sizes.to_vec(), done: BTreeSet::new(), connections: 0 }
    }

    fn has_done(&self, meeting: usize, rank: u32, what: Do) -> bool {
        self.done.contains(&(meeting, rank, what))
    }

    /// All ranks of a meeting have connected to each other.
    fn has_met(&self, meeting: usize) -> bool {
        let all = || 0..self.sizes[meeting];
        let has_met = |rank| {
            let has_read = |other| other == rank || self.has_done(meeting, rank, Do::Read(other));
            self.has_done(meeting, rank, Do::Publish) && all().all(has_read)
        };
        all().all(has_met)
    }

    fn can_go_on(&self, member: &Member) -> bool {
        match member.plan.last() {
            Some(&(meeting, Do::Read(other))) => {
                let before = (0..meeting).rev().find(|&before| other < self.sizes[before]);
                let is_away = before.is_none_or(|before| self.has_done(before, other, Do::Close));
                self.has_done(meeting, other, Do::Publish) || !member.waits && is_away
            }
            Some(&(meeting, Do::Close)) => self.has_met(meeting),
            Some((0, _)) => true,
            Some((meeting, _)) if member.rank < self.sizes[meeting - 1] => self.has_met(meeting - 1),
            // Newcomers come when the meeting before is over: nothing tells those who come earlier from
            // strangers.
            Some((meeting, _)) => {
                (0..self.sizes[meeting - 1]).all(|rank| self.has_done(meeting - 1, rank, Do::Close))
            }
            None => false,
        }
    }

    /// One of those who can go on does so. `false` at the end.
    fn step(&mut self, lab: &mut Lab, pick: usize) -> bool {
        let able: Vec<usize> = (0..self.ranks.len()).filter(|&at| self.can_go_on(&self.ranks[at])).collect();
        let Some(&at) = able.get(pick % able.len().max(1)) else { return false };
        let member = &mut self.ranks[at];
        let Some(&(meeting, step)) = member.plan.last() else { return false };
        let (rank, conn) = (member.rank, member.open.last().copied().unwrap_or_default());
        match step {
            Do::Connect => {
                self.connections += 1;
                member.open.push(self.connections);
                lab.come(self.connections, &format!("10.0.0.{at}"), 2000 + rank);
                lab.add(self.connections, "init/", 1);
            }
            Do::Publish => lab.publish(conn, rank, self.sizes[meeting] as usize),
            Do::Read(other) => {
                member.waits = !self.done.contains(&(meeting, other, Do::Publish));
                if member.waits {
                    lab.wait_for_rank(conn, other);
                    return true;
                }
                lab.get(conn, &format!("/default_pg/0//cpu//0/{other}"));
            }
            Do::Close => lab.leave(member.open.remove(0)),
        }
        member.plan.pop();
        self.done.insert((meeting, rank, step));
        true
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
        prop_assert!(job.ranks.iter().all(|rank| rank.plan.is_empty()), "the model is stuck");
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
        let (pass, last) = (millis as f64 / 1000.0, nodes - 1);
        // Longer than it takes to say that workers meet elsewhere.
        let (works, ends) = if together { (0, 0) } else { (40, 3) };
        lab.play(&format!(
            "for 0..{last}: agent %; pass {pass}; cas % join
            agent {last}; pass {pass}; cas {last} join complete; exchange 0 {nodes} 1; pass {pass}
            for 0..{nodes}: rank 100+%:% of {nodes} at 10.77.0.1%; pass {pass}
            met 100..{} {nodes}; pass {works}
            for 0..{nodes}: leave 100+%; pass {pass}
            pass {ends}
            for 0..{last}: exit %; pass {pass}
            exit {last} last; pass {pass}; cas 0 close
            for 0..{nodes}: leave %; pass {pass}
            pass 12",
            100 + nodes
        ));
        prop_assert_eq!(lab.complaints(), [""; 0]);
        prop_assert_eq!(lab.texts("workers_elsewhere"), [""; 0]);
        prop_assert_eq!((lab.texts("round_complete").len(), lab.texts("run_finished").len()), (2, 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn recorded_jobs(pauses in pauses()) {
        for name in [
            "run1_c10d_4x2",
            "run4_plugin_workers_external",
            "run4_env_standalone",
            "run4_static_sidecar_agentstore",
            "run4_static_standalone_4x",
            "run7_c10d_torch24",
        ] {
            let mut lab = Lab::new();
            lab.pauses.clone_from(&pauses);
            lab.scene.is_free();
            let lab = replay(name, lab, 20.0);
            prop_assert_eq!(lab.complaints(), [""; 0], "{}", name);
            prop_assert_eq!(lab.texts("run_finished").len() + lab.texts("run_ended").len(), 1, "{}", name);
        }
    }
}

#[test]
fn healthy_jobs_are_told_as_they_are() {
    stories(
        "healthy",
        "
= nothing is said of programs that keep keys of their own in a store
worker 0,1 at 10.0.0.1; set 0,1 /shard-#; pass 3; leave 0,1; pass 10; silent; said run_started=0 run_ended=0
= ranks that meet and leave between two looks have finished
rank 0,1 of 2 at 10.0.0.1; met 0,1 2; leave 1,0; pass 0.01; rank 0,1 of 2 at 10.0.0.1; met 0,1 2; leave 1,0
pass 5; silent; moments round_complete=2; said round_complete=1
= ranks that meet again are told once
20x rank 0 of 3 at 10.0.0.1; pass 0.3; rank 1 of 3 at 10.0.0.1; pass 0.3; rank 2 of 3 at 10.0.0.1; pass 0.3; \
met 0..3 3; pass 9; leave 0..3; pass 0.1
pass 5; silent; moments round_complete=20; said round_complete=1 run_started=1
= a static job follows a c10d one of the same id
run 2; pass 20; exit 0; exit 1 last; cas 0 close; leave 0,1; pass 5; static 11:1,10:0 of 2; assign 10 2x1
pass 40; sexit 10; sexit 11 last; leave 10,11; pass 5; silent; said run_finished=2
= a job of rpc runs and ends
worker 0,1 at 10.0.0.1; set 0,1 /rpc_prefix_0/names/# worker; pass 40; see state=running; leave 0,1; pass 5
silent; see state=ended
= a rank that begins anew before another has left has lost nobody
rank 0..3 of 3 at 10.0.0.1; pass 10; leave 0; rank 10:0 of 3 at 10.0.0.1; pass 0.5; see rank_grid.states=joo
for 1,2: leave %; pass 0.3; rank 10+%:% of 3 at 10.0.0.1
pass 10; silent; said round_complete=2
= workers that have left were not elsewhere
run 1; rank 5:0 of 1 at 10.77.0.10; pass 60; leave 5; pass 20; said workers_elsewhere=0
= a run finishes without a node that was taken out of the round
run 3; joins 3 wait drop:2; exit 0; exit 1 last; pass 2
= nodes that have finished are of the round after others have taken them out
run 3; pass 5; exit 0,1
5x pass 5; cas 2
cas 2 drop:0 drop:1; pass 2; see nodes.joined=3 nodes.missing=0 exit.arrived=2; silent
see waits.who=node0 (node rank 0),node1 (node rank 1); restart 1; pass 3; see exit.arrived=2 exit.expected=3
exit 2 last; pass 1; said run_finished=1
= nodes that have finished are of the round after others have taken them out (2)
run 3; exit 0,1; pass 16; cas 2 drop:0 drop:1; pass 1; leave 2; pass 3
see nodes.joined=2 nodes.gone=1 nodes.missing=1
= nodes that have finished are of the round after others have taken them out (3)
run 3; exit 0,1; pass 16; cas 2 drop:0 drop:1; exit 2 last; leave 0..3; pass 5
see state=finished nodes.joined=3
",
    );
}
