//! The fifteen things that go wrong, each with its healthy twin that stays silent.

use super::lab::{Lab, PORT, announcement};
use super::state::StateModel;
use super::stories::{Stage as _, stories};
use rallypoint_protocol::ids::{ConnId, Label, Timestamp, count};
use rallypoint_rendezvous::barrier::OpenBarrier;
use rallypoint_rendezvous::gate::Announcement;
use rallypoint_store::Observed;

#[test]
fn nodes_that_do_not_come_or_come_late() {
    stories(
        "cases",
        "
= case 1 a node never arrives [nodes 4..4]
join 0..3; until 29; silent; until 35; until 300; said nodes_missing=4
see state=joining nodes.joined=3 nodes.missing=1 explanation.code=nodes_missing
= case 1 a missing node is named if it announced itself
gate node0:0/4 node1:1/4 node2:2/4 node3:3/4; join 0,1,3; until 35; see missing.name=node2 missing.rank=2
= case 1 a pod never announces itself
gate@train-llm train-llm-0:0/4 train-llm-1:1/4 train-llm-3:3/4; until 29; silent; until 41
see kind=gathering state=joining store=null nodes.joined=3 nodes.missing=1 nodes.expected.min=4
see nodes.expected.source=announced missing.name=train-llm-2 missing.rank=2
see participants.state=announced,announced,announced
gate@train-llm train-llm-0:0/4 train-llm-1:1/4 train-llm-2:2/4 train-llm-3:3/4
pass 2; see explanation=null; join@train-llm 0; pass 1; see kind=c10d
nogate@train-llm; pass 601; see nodes.expected=null
= case 1 a node that neither joined nor announced itself is named by its rank
gate node0-x7k2p:0/3 node1-aaaaa:1/3; join 0; until 35
see missing.name=node1-aaaaa,null missing.rank=1,2 missing.presence=announced,never_seen
= case 1 nobody has said how many
join 0; until 35; expect 2..2 node0 node7; pass 40; see nodes.expected.min=2 nodes.expected.source=api
= case 2 a node is late and comes [nodes 3..3]
for 0..2: agent %; pass 0.1; cas % join
pass 45; agent 2; pass 0.1; cas 2 join complete; exchange 0 3 1; pass 3
= case 2 a node is late and comes (2) [nodes 3..3]
for 0..2: agent %; pass 0.1; cas % join
pass 20; agent 2; pass 0.1; cas 2 join complete; exchange 0 3 1; pass 120; silent
= two nodes that come late have come [nodes 3..3]
join 0; pass 40; all 1..3; pass 2
= a static node that takes the place of a dead one has come again
static 0,2 of 3; pass 20; leave 2; pass 20; static 1,3:2 of 3; pass 2
= a c10d node that was taken out has come again [nodes 3..3]
join 0..2; pass 35; cas 1; pass 15; cas 0 drop:1; pass 2; join 2; pass 3; cas 1 join complete; pass 2
= static runs tell who is missing by rank [nodes 3..3]
for 1..3: come % % at 10.0.0.%; set % static/role_info/% {}; wait % static/assigned_ranks/%
until 35; see missing.rank=0
= a job whose nodes have two ids is told with both (4) [nodes 4..4]
join@one 0,1; join@other 2; pass 33
",
    );
}

#[test]
fn nodes_that_die_or_finish() {
    stories(
        "cases",
        "
= case 3 a node dies while joining [nodes 4..4]
join 0..3; pass 5; leave 1; pass 5; deaths 1; see participants.state=joined,gone,joined
= case 4 a node dies while training [nodes 4..4]
run 4; pass 60; silent; leave 2; pass 5
= case 4 a dead node is missed by name however torch drops it
run 3; pass 10; leave 1; pass 5; cas 0 drop:1 next; pass 0.1; cas 0,2 join; pass 35
= case 4 a dead node is missed by name however torch drops it (2)
run 3; pass 10; leave 1; pass 5; cas 0 drop:1; pass 0.1; cas 0 next; pass 0.1; cas 0,2 join; pass 35
= case 4 nodes that finish do not die [nodes 4..4]
run 4; pass 600
for 0..3: exit %; pass 3
exit 3 last; pass 3; cas 3 close; leave 0..4; pass 60; silent; see state=finished; deaths 0
= case 4 nodes of an old release finish too [nodes 2..2]
run 2; pass 600; set 0,1 c10d/torchelastic/agent/terminal_state# #
set 0,1 c10d/torchelastic/agent/terminal_state#.FIN FIN; cas 0 close; leave 0..2; pass 60; silent
see state=finished
= many that die together are one line
run 40; pass 10; leave 5..35; pass 5; said lost=1; deaths 30
= a job that is stopped is one line
run 8; pass 10; leave 0..8; pass 5; see state=gone
= case 14 the exit barrier [nodes 3..3]
run 3; pass 100; exit 0,2; pass 35; see state=exiting exit.arrived=2; pass 80; said exit_barrier=1
silent; pass 10; said exit_barrier=2; leave 0,2; pass 90; says nobody waits at the exit barrier
= case 14 the exit barrier (2) [nodes 2..2]
run 2; exit 0; pass 40; silent; leave 1; pass 5; said exit_barrier=2
= who left a moment before the end is not dead when the next job comes
static 0..2 of 2; assign 0 2x1; pass 10; leave 1; sexit 0 last; static 2:1 of 2; pass 3
said run_finished=1 lost=0
= a node that died while joining and came again is not gone [nodes 5..5]
join 0..3; leave 1,2; pass 3; see nodes.gone=2; come 11 2001 at 10.77.0.11; cas 11 join; pass 1
see nodes.joined=2 nodes.gone=1 nodes.missing=3 missing.name=node2
= nodes that wait for the next round wait for those that stay
run 3; joins 3 wait
for 0,2: cas % leave; cas % wait
pass 40; said stands_by
= nodes that wait for the next round are not missing
run 4; until 20; leave 1
for 0,2,3: pass 0.5; cas % leave; cas % wait
pass 3; see state=restarting nodes.joined=0 nodes.gone=1 nodes.waiting=3 nodes.missing=1 missing.name=node1
pass 40; cas 0 drop:1 next join; cas 2,3 join; pass 1; see state=joining nodes.missing=1 missing.name=node1
= a node that asks for fewer nodes than a complete round has is told [soon]
run 3; agent 3
40x cas 3 redundant; pass 0.07; cas 3 leave; pass 0.07; see nodes.redundant=1
leave 3; pass 1; see nodes.redundant=0
",
    );
}

#[test]
fn ranks_that_wait_or_are_claimed_twice() {
    stories(
        "cases",
        "
= ranks of an old release meet and finish too
worker 0..2 at 10.0.0.1
for 0..2: set % //worker/attempt_0/default_pg/0//cpu//0/% old
pass 20; leave 0..2; pass 20; silent; said run_ended=1
= case 5 rank zero is slow
worker 0..3 at 10.0.0.1; publish 1,2 of 3; await 1,2 0; until 35
= case 5 rank zero is slow (2)
worker 0..3 at 10.0.0.1; wait 1,2 pg/cuda//0; until 35
= case 5 rank zero is slow (3)
worker 0..3 at 10.0.0.1; wait 1,2 pg/cuda//0/nccl_storekey_0; until 35; see waits.store=29500,29500
= case 5 rank zero is slow (4)
worker 0..3 at 10.0.0.1; wait 0..3 pg/cuda//0; pass 10; set 0 pg/cuda//0 nccl; pass 100; silent
= case 5 a chain of waits is followed to its root
worker 0..3; publish 0,1 of 4; await 0,1 2; until 35; see rank_grid.states=jj.. waits.writer=rank 2,rank 2
= a rank that is prepared for another world size is not shown as missing
rank 0,1 of 3; rank 2 of 4; pass 5; see rank_grid.states=jjj; leave 2; pass 5; see rank_grid.states=jj.
= a rank that has left is not never seen in the facts
rank 0..3 of 4; await 0 3; leave 2; pass 35; holds waiting
see explanation.facts.missing.presence.is=never_seen,closed explanation.facts.missing.at=null,0.0
= what was lost before all came is past [soon free]
gather 0,1 of 3; pass 2; leave 1; pass 3; holds lost=1; leave 0; pass 0.3
rank 10..13:0 of 3; pass 3; said lost=1; see explanation=null; see state=running
= who was lost before a run was over is named by its end [soon free]
run 2; exit 0; pass 5; leave 1; pass 5; holds lost=1; leave 0; pass 5; see explanation.code=run_ended
says first: node1
= a job that ends beside one that gathers leaves a run that goes on [soon free]
rank 0,1 of 3; await 0,1 2; rank 10..12:0 of 2; pass 7; leave 10,11; pass 6; says had met closed after
holds two_jobs=0 world_sizes_differ=0; see explanation.code=waiting
= a rank that does not meet again is told after it has ended [soon free]
gather 0,1 of 2; pass 2; publish 0 of 2; pass 5; holds waiting=1; leave 1; pass 5; holds waiting=1
says gone, and not published again: rank 1 on host1 (connection closed
= of six processes of which two had ended the last four are told [soon free]
gather 0,1 of 4; rank 4,5:0 of 4; pass 5; leave 4,5; pass 5; rank 2,3 of 4; pass 5; leave 0..4; pass 5
says the connections of the last 4 processes closed within
= an attempt that did not meet is over when the next begins [soon free]
gather 0,1 of 3; pass 5; leave 0,1; pass 5; rank 10:0 of 3; await 10 1; pass 7
see explanation.facts.missing.presence.is=not_again,not_again
= a rank is claimed twice while two are there [soon free]
gather 0 of 3; rank 5:0 of 3; pass 4; holds duplicate_rank=1; leave 5; pass 3; said duplicate_rank=1
see explanation.code=waiting
= case 6 two nodes claim one rank
rank 0,1,2:1 of 3 at 10.0.0.^; pass 5
= case 6 two nodes claim one rank (2)
rank 0..3,3:1,4:2 of 4 at 10.0.0.^; pass 5
= case 6 two nodes claim one rank (3)
rank 0,1,2:1 of 3 at 10.0.0.^; leave 1; pass 5; said duplicate_rank=0
= case 6 two nodes claim one rank (4)
come 0 0 at 10.0.0.0; come 1 1 at 10.0.0.1; set 0,1 static/role_info/1 {}; pass 5
= case 6 two nodes claim one rank (5)
rank 0..3 of 3 at 10.0.0.1; pass 60; silent
= case 7 the ranks disagree on the world size
rank 0,1 of 2 at 10.0.0.1; rank 2,3 of 4 at 10.0.0.1; pass 5
= a process that leaves before all have met
rank 0..3 of 4 at 10.0.0.1; leave 1; pass 5; see rank_grid.states=jxj.
= who writes traces is not taken for rank 0
worker 0..2 at 10.0.0.1; set 0 pg/cuda//0 nccl; wait 1 pg/cuda//0; get 1 pg/cuda//0
set 0..2 pg/cuda//NCCL_#_trace_start; pass 1; leave 1; pass 40
= who writes checkpoints is no rank
rank 0..2 of 2 at 10.0.0.1; come 2 3002 at 10.0.0.1; come 3 3003 at 10.0.0.1
set 2:0,3:1 /AsyncCheckpointProcess//0//cpu//0/# gloo; pass 30; see ranks.joined=2 ranks.connected=2
leave 0..4; pass 30; silent
= case 11 a client gave up
rank 1..4 of 4 at 10.0.0.1; await 1..4 0; pass 20; cancel 1..4; pass 4; said gave_up=1
= case 11 a client gave up (2)
rank 1:0 of 1 at 10.0.0.1; wait 1 /mine; pass 10; cancel 1
wait 1 /default_pg/store_based_barrier_key:0:last_worker; pass 10; cancel 1; pass 5; said gave_up=0
= a rank whose watchdog fired
rank 0 of 1; set 0 /exception_dump; set 0 pg/cuda//remote_error:0; pass 3; said gave_up=1
= an agent that gave up on another and ends is its victim
for 1,2: come % 10% at 10.0.0.%; set % static/role_info/% {}; wait % static/assigned_ranks/%
pass 60; cancel 1; pass 0.5; leave 1; pass 5; said lost=1
= the list of runs tells that ranks wait for a key of the program
rank 0..2 of 2 at 10.0.0.1; set 0 pg/epoch-1; wait 1 pg/epoch_1; pass 20; see notes=0 explanation=null
pass 15; see notes=1 explanation=null; set 0 pg/epoch_1; pass 3; see notes=0
",
    );
}

#[test]
fn jobs_that_disagree() {
    stories(
        "cases",
        "
= case 7 one group formed and others are left over [nodes 4..4]
agent 0..4; cas 0 join; cas 1 join complete; cas 2,3 wait; exchange 0 2 1; pass 45
= case 7 one group formed and others are left over (2) [nodes 2..4]
agent 0..3; cas 0 join; cas 1 join deadline; pass 2; cas 0 complete; exchange 0 2 1; pass 60; cas 2 wait
pass 3; cas 0 next join; cas 1 join; cas 2 join complete; exchange 1 3 1; pass 100; silent
= case 7 nodes that ask for different numbers complete no round [nodes 4..4]
join 0..4; pass 29; silent; pass 3
= case 7 nodes that ask for different numbers complete no round (2) [nodes 2..4]
join 0; joins 1 join deadline; pass 60; silent
= case 7 a static node beyond the number of nodes
for 0..3: come % % at 10.0.0.%; set % static/role_info/% {}
assign 0 2x1; pass 5
= case 7 pods that announce different numbers
gate a:0/2 away b:1/3; join 0; pass 5
= case 7 a pod that was turned away is not told as one that never came
gate a:0/3 away b:1/4; until 33; see missing.name=b,null missing.presence=announced,never_seen
gate a:0/2 away b:1/4; pass 2; holds pods_missing
= case 7 a pod is held back because its rank is taken
gate a:0/2 b:1/2 away c:1/2; pass 5; join 0; pass 5; said duplicate_rank=1; holds duplicate_rank
= case 7 a pod that was turned away may be the one that is missing
gate a:0/3 b:1/3 away c:1/3; until 33
= case 8 the run is closed
run 2; exit 0; exit 1 last; cas 0 close; leave 0,1; pass 4; agent 7; pass 3
= case 8 a run is closed once [nodes 2..2]
run 2; cas 1 close; leave 1; pass 20; cas 0 drop:1 leave next; pass 5; said run_closed=1
= who closes a round that was complete and takes all out with that has ended that round
all 0..3; wait 0 c10d/torchelastic/role_info/2; wait 1 c10d/torchelastic/assigned_ranks/1
wait 2 c10d/MASTER_ADDR; pass 60; cancel 2; cas 2 drop:0 drop:1 leave next close; leave 2; pass 0.8
for 0..2: cancel %; leave %
pass 5; said run_closed=1 gave_up=3; see round=0 state=closed
= what is told after the next round has begun is said of its own round
all 0..2; wait 0 c10d/torchelastic/role_info/1; pass 60; cancel 0; leave 0; cas 1 drop:0 leave next
cas 1 join; pass 3; see round=1
= who closes a complete round is named with those that go on
run 2; pass 5; cas 1 close; leave 1; pass 5; see nodes.joined=1 nodes.missing=0
= case 10 the elastic deadlock [nodes 2..4]
run 2; pass 30; joins 2 wait; pass 1; cas 0 next join; cas 1 join; cas 2 join complete
wait 2 /torch.rendezvous.job.1/MASTER_ADDR; set 1 /torch.rendezvous.job.1/torchelastic/role_info/1 {}
wait 1 /torch.rendezvous.job.1/torchelastic/assigned_ranks/1
set 0 /torch.rendezvous.job.1/torchelastic/role_info/0 {}
wait 0 /torch.rendezvous.job.1/torchelastic/role_info/1 /torch.rendezvous.job.1/torchelastic/role_info/2
pass 6; see waits.store=29500,29500,29500
= case 10 who waits in a round that is over is not told of the nodes of the next [nodes 2..2]
run 3; wait 1 c10d/MASTER_ADDR2 c10d/torchelastic/assigned_ranks/7; wait 2 c10d/torchelastic/role_info/9
pass 1; cas 0 next join complete; exchange 1 1 1; pass 40; said wait_cycle=0
= case 11 agents that give up keep their names [nodes 2..4]
run 3; pass 1; wait 1,2 c10d/torchelastic/assigned_ranks/#0; pass 12; cancel 1; cas 1 next; cas 1 close
cancel 2; pass 4
= case 13 the workers meet elsewhere
run 2; pass 35; see workers_store=node0:41234; pass 300; silent; said workers_elsewhere=1
= case 13 the workers meet elsewhere (2)
run 2; pass 20; rank 10:0,11:1 of 2 at 10.77.0.^; pass 60; silent; said workers_elsewhere=0
= case 15 two jobs use one store
rank 0..2 of 2; get 0 pg/cpu//0/1; get 1 pg/cpu//0/0; pass 10; silent; rank 3:1 of 2 at 10.0.0.^; pass 0.5
rank 2:0 of 2 at 10.0.0.^; pass 5.5; said duplicate_rank=0
= case 15 two jobs use one store (2)
come 0 0 at 10.0.0.0; set 0 /a/torchelastic/role_info/0 {}
come 1 1 at 10.0.0.1; set 1 /b/torchelastic/role_info/0 {}; pass 5
= case 15 two jobs use one store (3)
run@one 2; all@two 2..4; pass 8; silent
= a state that cannot be read harms nothing and is told once
agent 0; set 0 /torch.rendezvous.job nonsense!; pass 5
for 0..20: set 0 /torch.rendezvous.job nonsense%; pass 0.5
said unreadable_state=1; see run_id=job
= a run tells where its debug server is [free]
rank 0..2 of 2; set 1 /debug_server/rank1 http://node1:41234; pass 1; see debug_server=null
set 0 /debug_server/rank0 http://node0:41234; pass 1; see debug_server=node0:25999
set 0 /debug_server/rank0 http://x/@y:1; pass 1; see debug_server=null
set 0 /debug_server/rank0 http://:1; pass 1; see debug_server=null
set 0 /debug_server/rank0 http://node0:41234; pass 1; see debug_server=node0:25999; leave 0..2
pass 100; see debug_server=null
= a job whose nodes have two ids is told with both [nodes 3..3]
join@train 0,1; join@trian 2; pass 33
= static runs that have each node rank together are told of each other
static@train 0,2 of 3; static@trian 1 of 3; pass 2; leave 2; pass 33; said nodes_missing=3 waiting=1
= static runs that have each node rank together are told of each other (2)
static@train 0,2 of 3; static@trian 1:2 of 3; pass 33
= static runs that have each node rank together are told of each other (3)
static@train 0,2 of 4; static@other 1 of 4; pass 33
",
    );
}

#[test]
fn what_is_told_of_times_and_names_and_strangers() {
    stories(
        "cases",
        "
= case 12 a foreign client
3x foreign
pass 5; holds wrong_port
= a client of the store comes to the admin port
3x foreign admin
pass 405; holds wrong_port=0
= a run is over since its last connection closed and not since that was noticed [free]
run 2; until 5; leave 0..2; until 9; see state=gone state_since=5.0
= a run is over since its last connection closed and not since that was noticed (2) [free]
rank 0..2 of 2 at 10.0.0.1; until 5; leave 0..2; until 9; see state=ended state_since=5.0
= a run is over since its last connection closed and not since that was noticed (3) [free]
looks 2000; run 1; until 5; exit 0 last; until 9; see state=finished state_since=5.0
= a closed run that is forgotten is begun anew [free]
run 2; exit 0; exit 1 last; cas 0 close; leave 0,1; pass 20; forget; agent 0; pass 1; see state=joining
recent started_at; run 2; pass 10; see state=running
= pods disagree since the second of them came [free]
announce a:0/3; pass 9; announce b:1/4; pass 2; see explanations.since=10.0
= a pod that was at the gate and is gone has its own time and remedy
announce train-0:0/3 train-1:1/3 train-2:2/4; parks train-0:0/3 train-1:1/3 train-2:2/4; pass 20
unparks train-1:1/3 train-2:2/4; pass 12; holds pods_missing
says turned away: pod train-2 with rank 2 (nothing heard for 10 s)
= a node keeps its name when it joins again
for 0,1: conn % 1000+% at 10.77.0.10; first %; cas % join
conn 2 1002 at 10.77.0.10; first 2; cas 2 join complete; pass 1
see participants.pid=1000,1001,1002 participants.name=node0,node0_1001,node0_1002; leave 0
for 1,2: pass 0.5; cas % leave; cas % wait
pass 2; see participants.pid=1000,1001,1002 participants.name=node0,node0_1001,node0_1002
cas 1 drop:0 next join; cas 2 join complete; pass 1
see participants.pid=1001,1002 participants.name=node0_1001,node0_1002
",
    );
}

#[test]
fn a_run_is_finished_until_it_is_started_again() {
    let mut lab = Lab::new();
    lab.complete_run("job", 2);
    assert_eq!(lab.insight.finished("job"), None);
    lab.play("exit 0; exit 1 last; pass 2");
    assert!(lab.insight.finished("job").is_some());
    assert_eq!(lab.insight.finished("other"), None);
    // Its old announcements do not make it gather again, but new ones do.
    let since = lab.now;
    lab.play("pass 1; gate a:0/2; pass 1");
    let kinds: Vec<_> =
        lab.insight.documents(lab.now).list(0).runs.iter().map(|run| run.kind.name()).collect();
    assert_eq!(kinds, ["gathering", "c10d"]);
    assert!(lab.insight.finished("job").is_some_and(|at| at <= since));
    lab.insight.came_late("job", &announcement("late", 1, 2), lab.now);
    lab.play("pass 1\nsays pod late at | was turned away at the gate: the run had finished");
}

#[test]
fn pods_tell_where_a_rank_is_missed_that_they_come_again_and_again_or_count_on_fewer() {
    for (of, words) in [
        (2, "its pod train-0: announced itself, it has come and gone 3 times | that pod's log"),
        (4, "waiting for rank 2: never seen, the pods count on 2 ranks | (WORLD_SIZE)"),
    ] {
        let mut lab = Lab::new();
        lab.scene.is_free();
        for (rank, request) in [(0, 1), (1, 1), (0, 1), (0, 2), (0, 3), (0, 4)] {
            let pod = announcement(&format!("train-{rank}"), rank, 2);
            let said = Announcement { world_size: Some(2), ..pod };
            lab.gates.announce("store:29500", &said, None, lab.now).expect("taken");
            lab.gates.park("store:29500", &said, request);
        }
        lab.look_at_gate("store:29500");
        lab.play(&format!("rank 1 of {of}; await 1 {}; pass 33\nsays {words}", of - 2));
    }
}

#[test]
fn barriers_whose_names_differ_by_a_slip_are_told_together() {
    let mut lab = Lab::new();
    let open = |name, there: &[&str]| {
        let (arrived, since, name) = (count(there.len()), Timestamp::default(), Label::new(name));
        let [silent, missing, gave_up, refused] = Default::default();
        let (name, there) = (name.expect("a label"), there.iter().map(|who| (*who).to_owned()).collect());
        OpenBarrier { name, size: 3, arrived, there, silent, missing, gave_up, refused, since }
    };
    lab.insight.barriers(vec![
        open("epoch-1", &["w0"]),
        open("epoch_1", &["w1", "w2"]),
        open("epoch-2", &[]),
    ]);
    lab.play("pass 33\nsays `epoch-1`: 1 of 3 has arrived (w0) | `epoch_1` is another: 2 of 3 (w1 and w2)");
    lab.play("says `epoch-2`: 0 of 3 | busy, have they ended");
}

#[test]
fn a_wait_that_begins_or_ends_changes_the_run() {
    let mut lab = Lab::new();
    lab.play("worker 0..2 at 10.0.0.1; publish 1 of 2; pass 10");
    let version = |lab: &Lab| lab.run("store:29500").summary.version;
    let before = version(&lab);
    lab.play("20x await 1 0; pass 0.3; get 1 pg/cpu//0/1; pass 0.3");
    assert_eq!(version(&lab), before, "short waits are none");
    lab.play("await 1 0; pass 3");
    let waits = version(&lab);
    assert!(waits > before);
    lab.pass(10.0);
    assert_eq!(version(&lab), waits, "it goes on");
    lab.play("get 1 pg/cpu//0/1; pass 2");
    assert!(version(&lab) > waits);
}

#[test]
fn one_id_on_two_ports_is_told() {
    let mut lab = Lab::expecting(3, 3);
    lab.scene.is_row("cases", "a job whose nodes have two ids is told with both (2)");
    lab.join("train", 0..2);
    let mut there = StateModel::default();
    there.change(2, "node2", 1002, "join", lab.now);
    let (conn, peer) = (ConnId::new(7, 7), ([10, 77, 0, 12], 40000).into());
    let (port, key) = (PORT + 1, || b"/torch.rendezvous.train".as_slice().into());
    lab.insight.observe(port, lab.now, Observed::Client { conn, peer, pid: Some(1002), key: key() });
    let value = there.value().into();
    lab.insight.observe(port, lab.now, Observed::Wrote { conn, key: key(), value });
    lab.pass(33.0);
}
