//! Links that are away: told as such, and nobody is said to have died.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use super::lab::{Lab, announcement};
use super::stories::stories;
use crate::LinkEvent;
use rallypoint_api::{Explanation, Node, NodeState, Presence, Severity};
use rallypoint_rendezvous::gate::{Contact, Gates};

/// Pods have passed their gate, each with one rank, and rank 0 waits for rank 1.
#[test]
fn a_pod_that_is_missed_is_told_as_its_relay_is() {
    stories(
        "links",
        "
= a rank whose relay has left is linked to its pod
own; gate train-0:0/3 train-1:1/3 train-2:2/3; rank 0 of 3 at 10.1.0.0; await 0 1; pass 4
link train-1 left; pass 32
see explanation.facts.missing.presence.behind.is=left,null; link train-1 came; pass 32
see explanation.facts.missing.presence.behind.is=announced,null
= a rank whose link is away or lost is linked to its pod
own; gate train-0:0/3 train-1:1/3 train-2:2/3; rank 0 of 3 at 10.1.0.0; await 0 1; pass 4
away 10.77.0.11 train-1; pass 32
see explanation.facts.missing.presence.behind.is=away,null; link train-1 lost; pass 32
see explanation.facts.missing.presence.behind.is=unreachable,null
= what a relay did before its pod announced itself is of another job
link train-1 left; pass 60; own; gate train-0:0/2 train-1:1/2; rank 0 of 2 at 10.1.0.0; await 0 1; pass 32
see explanation.facts.missing.presence.behind.is=announced
= a pod that is gone is told beside one that is not
own; gate train-0:0/3 train-1:1/3 train-2:2/3; rank 0 of 3 at 10.1.0.0; await 0 1; pass 4
link train-2@3c1f20aa left; pass 32; see explanation.facts.missing.presence.behind.is=announced,null
= who has told no rank is not the one whose relay has left
own; gate train-0:0/3 train-1:1/3 train-2:2/3; rank 0 of 3 at 10.1.0.0; await 0 1; pass 4
link train-1:29500@10.0.0.7#1 left; worker 2 at 10.1.0.2; add 2 init/; pass 32
see explanation.facts.missing.presence.behind.is=left,null
= a relay says nothing of pods with one name or with several ranks
own; gate train:0/2 train:1/2; rank 0 of 2 at 10.1.0.0; await 0 1; link train left; pass 32
see explanation.facts.missing.presence.behind.is=announced; link train namesake; pass 32
see explanation.facts.missing.presence.behind.is=announced
= a relay says nothing of pods with one name or with several ranks (2)
own; gate a:0/2 b:1/2; rank 0 of 4 at 10.1.0.0; await 0 1; link b left; pass 32
see explanation.facts.missing.presence.is=never_seen,never_seen,never_seen
= a static node that has not come is linked to its pod
own; gate train-0:0/2 train-1:1/2; come 1 7 at 10.1.0.1; set 1 static/role_info/1 {}
wait 1 static/assigned_ranks/1; link train-0 left; pass 32; said nodes_missing=1
= a c10d node that has not come is linked to its pod
gate node0:0/2 node1:1/2; agent 0; pass 0.1; cas 0 join; pass 5; link node1 left; pass 32; said nodes_missing
",
    );
}

#[test]
fn who_is_behind_a_link_that_is_away_is_told_as_that() {
    stories(
        "links",
        "
= a link that comes back was away and nothing else
run 3; pass 4; away 10.77.0.11 train-1; pass 2.5; holds link_away=1; said link_away=1; back; pass 10
holds link_away=0; said link_away=1 lost=0; see state=running
= what a process behind a link does is not known while it is away
rank 10:1 of 2 at 10.77.0.10; rank 11:0 of 2 at 10.77.0.11; wait 10 pg/cpu//1/0; pass 5
away 10.77.0.11 train-1; pass 35; said waiting
= a rank behind a link that is away neither counts as there nor waits [soon]
rank 10:0 of 3 at 10.77.0.10; rank 11:1 of 3 at 10.77.0.11; await 10 2; pass 0.1; await 11 2
away 10.77.0.11 train-1; pass 8; see rank_grid.states=ja. ranks.joined=1 ranks.away=1
see explanation.facts.held.shown=rank 0 on host10 waits.who=rank 0 on host10
back; pass 2; see rank_grid.states=jj. ranks.joined=2 ranks.away=0
see explanation.facts.held.shown=rank 0 on host10,rank 1 on host11
= who comes from the address of a link and is not behind it is there [soon]
rank 0..12 of 13 at 10.77.0.11; await 0..12 12; pass 1; away 10.77.0.11 train-1; pass 8
see ranks.joined=4 ranks.away=8; said waiting
= who is behind a link that is away claims no rank
rank 11:1 of 3 at 10.77.0.^; away 10.77.0.11 train-1; rank 12:1 of 3 at 10.77.0.^; pass 5
said duplicate_rank=0; rank 13:1 of 3 at 10.77.0.^; pass 5; said duplicate_rank=1
= a job behind a link that is away is no second job
come 11 11 at 10.77.0.11; set@first 11 static/role_info/0 {}; away 10.77.0.11 train-1
come 12 12 at 10.77.0.12; set@second 12 static/role_info/0 {}; pass 5; said two_jobs=0
back; pass 5; said two_jobs=1
= a node whose link was away for too long is lost with it and not dead
run 3; rank 10:1 of 3 at 10.77.0.11; pass 2; link train-1 lost 2; cut 1,10 train-1; pass 5
said link_away=1 lost=1; link train-0 lost 2; link train-2 lost 2; cut 0 train-0; cut 2 train-2; pass 5
said lost=2; see state=gone
= a node is taken out of its round because its link is away
run 3; pass 2; away 10.77.0.11 train-1; pass 5; cas 0 drop:1; pass 2; said lost=1
= ranks whose link was away for too long have not ended
rank 0..3 of 3 at 10.77.0.#; pass 10; link train-1 lost 2; cut 1 train-1; pass 70; said ranks_ended=0
leave 2; pass 70; said ranks_ended
= a rank whose link was away for too long is named when its session ends
rank 0..3 of 3 at 10.77.0.#; pass 10; link train-1 lost 2; cut 1 train-1; pass 5; said lost=1 link_away=1
= ranks whose hosts do not answer are cut off and have not ended
rank 0..3 of 3 at 10.77.0.#; pass 20; leave 0; pass 10; said ranks_ended=1; cut 1,2; pass 70
said lost=1 ranks_ended=1
= a rank that is cut off before all have met is told so to those that wait for it
rank 0,1 of 3 at 10.77.0.#; await 0 2; pass 5; cut 1; pass 5; said lost=1; await 0 1; pass 32; holds waiting
= a node whose host does not answer is cut off and not dead
run 3; pass 2; cut 1; pass 5; said lost=1
= nodes that are cut off are not said to have ended [soon]
all 0..4; wait 1..4 c10d/MASTER_ADDR; pass 2; leave 0; cut 3; pass 8
see missing.name=node0,node3 missing.presence=closed,unreachable
= nodes that are cut off are not said to have ended (2) [soon]
all 0..2; wait 1 c10d/MASTER_ADDR; pass 2; cut 0; pass 8
= nodes that are cut off are not said to have ended (3) [soon]
run 2; exit 0; pass 2; cut 1; pass 8; explained
= nodes that are cut off are not said to have ended (4) [soon]
static 1,0 of 3; pass 2; cut 1; pass 8; explained
= who waits beside a node that is cut off is told as much
run 3; pass 2; cut 1
for 0,2: cas % leave; cas % wait
pass 40; said stands_by
= the rank of a static node that was cut off before this attempt has no dead node
static 0..3 of 3; assign 0 3x1; pass 2; cut 2; leave 1; pass 2; static 3:1 of 3
rank 10:1 of 3 at 10.77.0.11; await 10 2; pass 40; explained
= many links that are away are one line
away 10.77.0.11 train-#300; pass 7; said link_away=1
= a node behind a link that is away is not said to run still [soon]
agent 0..3; cas 0,1 join; cas 2 join complete; exchange 0 3 1; pass 0.3; exit 0; pass 2
9x away 10.77.0.11 node1; pass 1
holds exit_barrier
= a node behind a link that is away is not said to run still (2) [soon]
agent 0; agent 1,2 at 10.77.0.11; cas 0,1 join; cas 2 join complete; exchange 0 3 1; pass 0.3; exit 0; pass 2
9x away 10.77.0.11 node1; pass 1
holds exit_barrier
",
    );
}

/// All had met, the last one died, and another comes in its place, which waits for who had met before. The
/// link of that one is up or away.
#[test]
fn who_went_on_before_is_not_said_to_be_there_when_its_link_is_away() {
    stories(
        "links",
        "
= who went on with the attempt before is not said to be there when its link is away
static 0..3 of 3; assign 0 3x1; get 1,2 static/assigned_ranks/#; get 0 static/role_info/2; pass 5; leave 2
pass 3; static 12:2 of 3; pass 40; said waiting
= who went on with the attempt before is not said to be there when its link is away (2)
static 0..3 of 3; assign 0 3x1; get 1,2 static/assigned_ranks/#; get 0 static/role_info/2; pass 5; leave 2
pass 3; static 12:2 of 3; away 10.77.0.10 train-0; pass 40; said waiting
= who went on with the attempt before is not said to be there when its link is away (3)
rank 0..3 of 3 at 10.77.0.#; met 0..3 3; pass 20; leave 2; pass 1; rank 12:2 of 3 at 10.77.0.2; await 12 0
pass 40; said waiting
= who went on with the attempt before is not said to be there when its link is away (4)
rank 0..3 of 3 at 10.77.0.#; met 0..3 3; pass 20; leave 2; pass 1; rank 12:2 of 3 at 10.77.0.2; await 12 0
away 10.77.0.0 train-0; pass 40; said waiting
",
    );
}

/// Three pods at their gate, each at an address of its own.
struct Pods {
    lab: Lab,
    gates: Gates,
}

impl Pods {
    fn announce(ranks: Range<u32>) -> Self {
        let mut pods = Self { lab: Lab::new(), gates: Gates::new(Duration::from_secs(30), 1) };
        ranks.for_each(|rank| pods.announces(rank));
        pods
    }

    fn announces(&mut self, rank: u32) {
        let said = announcement(&format!("train-{rank}"), rank, 3);
        self.gates.announce("job", &said, None, self.lab.now).expect("it is taken");
        self.lab.look_at_gate("job", &self.gates);
    }

    /// Lets time pass, while those with these ranks are connected.
    fn pass(&mut self, seconds: u32, connected: &[u32]) {
        let is_connected = |addr| connected.iter().any(|rank| addr == IpAddr::from([10, 1, 0, *rank as u8]));
        let contact = |addr| if is_connected(addr) { Contact::Connected } else { Contact::None };
        for _ in 0..seconds {
            self.gates.tick(self.lab.now, contact);
            self.lab.look_at_gate("job", &self.gates);
            self.lab.pass(1.0);
        }
    }

    fn said(&self) -> Option<Explanation> {
        self.lab.run("job").explanations.into_iter().find(|said| said.code == "pods_idle")
    }

    /// How many are shown to be there, and gone.
    fn assert_counted(&self, there: u32, gone: u32) {
        let run = self.lab.run("job");
        let nodes = &run.summary.nodes;
        // Nobody misses them when all have left.
        let missing = if there == 0 { 0 } else { gone };
        assert_eq!((nodes.joined, nodes.gone, nodes.missing), (there, gone, Some(missing)));
        assert_eq!(run.missing.len() as u32, missing);
        assert!(
            run.missing.iter().all(|node| node.presence == Presence::Announced && node.last_seen.is_some())
        );
        let is_there = |node: &&Node| node.state == NodeState::Announced;
        assert_eq!(run.participants.iter().filter(is_there).count() as u32, there);
        assert!(self.said().is_some(), "it is told");
    }
}

/// They import something, or hang in it, or have ended.
#[test]
fn pods_of_which_nothing_comes_after_the_gate_are_told() {
    let mut pods = Pods::announce(0..3);
    pods.pass(20, &[]);
    for name in ["train-0", "train-1:29500", "train-2"] {
        pods.lab.link(name, LinkEvent::Came);
    }
    pods.pass(15, &[0, 1, 2]);
    assert_eq!(pods.said().map(|said| said.severity), Some(Severity::Info));
    pods.lab.link("train-2", LinkEvent::Left);
    pods.pass(9, &[0, 1]);
    assert_eq!(pods.said().map(|said| said.severity), Some(Severity::Warning));
    pods.assert_counted(2, 1);
    // It does not count at the gate any more.
    pods.pass(31, &[0, 1]);
    pods.assert_counted(2, 1);
    // Then the others end, and the gate is forgotten.
    pods.lab.link("train-0", LinkEvent::Left);
    pods.lab.link("train-1:29500", LinkEvent::Left);
    pods.pass(40, &[]);
    pods.assert_counted(0, 3);
    // They are started again.
    for (rank, name) in (0..).zip(["train-0", "train-1:29500", "train-2"]) {
        pods.lab.link(name, LinkEvent::Came);
        pods.announces(rank);
    }
    pods.pass(1, &[0, 1, 2]);
    pods.assert_counted(3, 0);
}

/// Without relays nothing is heard of them.
#[test]
fn pods_without_relays_are_not_heard_of_after_the_gate() {
    let mut pods = Pods::announce(0..3);
    pods.pass(25, &[]);
    // One is started again and again, and passes the open gate each time.
    pods.announces(1);
    pods.pass(15, &[]);
    pods.pass(25, &[]);
    // One comes at last.
    let lab = &mut pods.lab;
    lab.joins(0, "job", "join");
    lab.pass(1.0);
    assert!(pods.said().is_none());
    assert_eq!(pods.lab.run("job").summary.nodes.expected.map(|it| it.min), Some(3));
    // Or none ever.
    let mut pods = Pods::announce(0..3);
    pods.pass(631, &[]);
    assert!(pods.lab.insight.documents(pods.lab.now).list(0).runs.is_empty());
}
