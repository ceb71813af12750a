//! Faults of c10d and native agents, of pods and barriers, and of what these have in common.

use super::super::lab::Lab;
use super::super::stories::Stage as _;
use super::faults;
use rallypoint_api::RunState;

#[test]
fn faults_of_backends() {
    faults(
        "
= static and c10d agents with one id
static 0 of 2; pass 1; join 1
tells two_backends: node 0, 10.77.0.10, node1 never node_silent | have joined | has joined | node rank 0: 
= c10d agents, and one of the static rendezvous with their id
join 0..2; pass 1; static 2 of 3; pass 2; cas 0
tells two_backends: node 2, 10.77.0.12, node0, node1 never lost:  | have joined | node rank 0: 
= a pod runs python itself, and the other torchrun, in the store of their run
own; static 1 of 2; rank 10:0 of 2 at 10.0.0.1; await 10 1; pass 8
tells two_backends: node 1, host10, rank 0 never have joined | waiting for
= c10d: two agents have the host name and the process id of one node
join 0; come 5 1000 at 10.78.0.10; first 5; pass 1; cas 5 join
2x pass 4; cas 0; pass 1; cas 5
tells duplicate_rank: node0_1000_0, 10.77.0.10, 10.78.0.10 never nnodes
= c10d: no agent is heard of any more, though all are connected
run 2
2x pass 5; cas 0..2
pass 10
tells node_silent: node0, node 0, node1, node 1 never connection closed | ; others have
= c10d: a node dies before its rank has come here
run 3
for 0,2: rank 10+%:% of 3 at 10.77.0.1#; await 10+% 1
pass 1; leave 1
tells waiting: rank 1, rank 0, node1
= c10d: an operator resets the store while the job trains
run 2; pass 5; reset; forget; wait 0..2 /torch.rendezvous.job
tells store_reset never wait_cycle | connection closed | have joined
= c10d: a node dies a moment before the last one makes the round complete
join 0..3; pass 1; leave 1; agent 3; pass 0.3; cas 3 join complete
tells lost: node1 never node_silent
= c10d: of two nodes that died while joining, torch has taken out one
all 0..4; pass 5; cas 0 next join; cas 1..4 join; leave 1,2; pass 3; cas 0 drop:1
tells nodes_missing within 11.5: node1, node2 never never seen
= static: nodes of one job have different ids
static 0,1 of 3; static@jbo 2 of 3
tells waiting: node 0, node 1 never two jobs
= c10d: an agent closes the run after a failure
run 2; pass 5; cas 1 close
tells run_closed: node1, node 1 never only 0
= c10d: the only agent closes the run after a failure
run 1; pass 5; cas 0 close
tells run_closed: node0, node 0
= c10d: a node comes to a complete round with another --nnodes, and torch restarts all
run 2; pass 5; joins 2 wait
tells nnodes_differ: node2, node1, node 1 never connection closed | never seen
= c10d: the round with that node is never complete
run 2; joins 2 wait; cas 0 next join; cas 2,1 join
tells nnodes_differ: node2 never connection closed
= c10d: a node gives up, closes the run, and says who did not come
expect 3..3 node0 node1 node2; join 0..2; pass 2; cas 1 leave; cas 1 close
tells run_closed: node1, node2 never missing: node1
= c10d: a node comes to a run that failed
run 2; cas 1 close; pass 1; agent 2
tells join_refused: pid 1002, 10.77.0.12, node1, node 1 never finished and was closed
= c10d: an agent is frozen, and another takes it out of the round
run 3
3x pass 5; cas 0,1
cas 0 drop:2
tells lost: node2, node 2, node0, node 0 never connection closed
= c10d: the only agent of a round is frozen, and the next takes it out as the next round begins
run 1; joins 1 wait; pass 16; cas 1 drop:0 next join complete
tells lost: node0, node 0 never connection closed
= c10d: a node dies as the last one comes, and the round takes it in
join 0..2; pass 3; leave 1; joins 2 join complete
tells lost: node1
= c10d: the node that others wait for at the exit barrier died, and was taken out of the round
run 2; pass 2; leave 1; pass 15; cas 0 drop:1; exit 0
tells exit_barrier: node1 never still running
= c10d: an operator named the nodes, one has died, and two have not come
expect 4..4 node0 node1 node2 node3; join 0..2; leave 1
tells nodes_missing: node2, node3, node1 never among them
= c10d: node rank 0 is taken out of the round before it has handed out the ranks
all 0..3
for 1..3: wait % c10d/torchelastic/assigned_ranks/%
joins 3 wait drop:0
tells waiting: node0, node 0 never never seen
= c10d: two agents are cut off while the nodes join
join 0..3; pass 15; cas 0 drop:1 drop:2
tells lost: node1, node2 never connection closed
= c10d: a node that was cut off while the nodes join is missing by its name
expect 3..3; join 0..2; pass 2; cas 0 drop:1
tells nodes_missing: node1 never connection closed | gone: 
= c10d: only the node that was cut off is not there
expect 2..2; join 0..2; pass 1; cas 0 drop:1
tells nodes_missing: node1 never been missing | never seen
= c10d: a node that is dead is taken out of the round
run 3; leave 2; pass 15; cas 0 drop:2
tells lost within 0: node2, node 2 never node_silent
= c10d: a node dies, and those that are left wait for the next round
run 3; pass 5; leave 1
for 0,2: cas % leave; cas % wait
tells stands_by: node0, node2, node1 never beside a complete
= c10d: a node dies while another is between the round and the wait list
run 3; pass 5; leave 1; cas 0 leave; cas 0 wait; cas 2 leave
tells lost: node1, node 1 never 1 of 3
= c10d: two runs of which nobody says how many they are, with a slip in an id
join@train-llm 0..2; join@train-lm 2
tells nodes_missing: node0, node1
says not complete either: run train-lm (node2)
= c10d: a node dies while it is not seen what its workers do
run 3; pass 5; leave 2
tells lost: node2, node 2 never while training
",
    );
}

#[test]
fn what_backends_have_in_common() {
    faults(
        "
= who replaces a dead node is not left over while torch takes it in
run 3; leave 1; pass 2; joins 7 redundant; pass 10; cas 0 drop:1; cas 7 wait
for 0,2: cas % leave; cas % wait; pass 2
pass 6; said stands_by lost=1
= the workers store is elsewhere only if it is
staticrun 2; set 0 /job/MASTER_ADDR node0; set 0 /job/MASTER_PORT 29500; workers 0..4 of 4; pass 1
see workers_store=null
= the workers store of one round is not that of the next
run 2; set 0 c10d/MASTER_ADDR node0; set 0 c10d/MASTER_PORT 29500; pass 2; see workers_store=node0:29500
cas 1 next join; pass 2; see workers_store=null
= a run that follows another at once has times of its own
rank 0,1 of 2; pass 20; leave 0,1; pass 0.3; rank 10..12:0 of 2 at 10.0.0.1; pass 2
recent state_since started_at
= a pod whose node has another name is not missing
gate a:0/3 b:1/3 c:2/3; join 9; pass 6; see missing.name=; said nodes_missing
= a pod that gathers for another run is named
gate job-0:0/3 job-2:2/3; gate@jop job-1:1/3; gate@other other-0:0/3; pass 40; holds pods_missing=3
= a barrier that counts on more than there are is too large
rank 0,1 of 2; pass 2; barrier 0..2 ckpt 3; pass 6; said waiting_at_barrier
= an agent that is frozen is named before torch takes it out
run 3
6x pass 5; cas 0..3
silent
3x pass 5; cas 0,2
pass 5; cas 0..3; said node_silent=2
6x pass 5; cas 0..3
said node_silent=2
= a round is complete with fewer nodes than are expected [soon free]
expect 3..3; run 2; pass 6; said nnodes_differ
= who was taken out does not come to the exit barrier [soon free]
run 3; pass 16; cas 0 drop:2; exit 0,1; pass 8
says finished and waited | taken out of the round: node2
= what keeps nodes apart is said before who is missing [soon]
static 0 of 2; static 1:0 of 2; pass 8; see explanations.code=duplicate_rank,nodes_missing,run_started
= an explanation says how sure it is [soon]
gather 0..3 of 4; pass 8; leave 1; pass 5
see explanations.code=waiting,lost,run_started explanations.certainty=eliminated,seen,seen
= an explanation carries its evidence [soon]
gather 0,1 of 3; pass 8; leave 1; pass 5; see explanation.evidence=null
see explanations.evidence.seen=waits,closed,null explanations.evidence.at=0.0,8.0,null
see explanations.evidence.key=/default_pg/0//cpu//0/2,null,null explanations.evidence.pid=2000,2001,null
see explanations.evidence.who=rank 0 on host0,rank 1 on host1,null
see explanations.evidence.peer=10.0.0.0:40000,10.0.0.1:40001,null
= pods of one job that gather for two runs are told of each other [soon free]
gate@train a-0:0/2; gate@trian a-1:1/2; pass 6
says announced for another run: pod a-1 for run trian
",
    );
}

#[test]
fn the_metrics_of_a_closed_run_count_who_is_still_there() {
    let mut lab = Lab::soon();
    lab.play("run 3; pass 10; cas 1 close; leave 1");
    for (left, there) in [("", 2), ("leave 0", 1), ("leave 2", 0)] {
        lab.play(left);
        lab.pass(2.0);
        let figures = lab.insight.documents(lab.now).figures();
        let [run] = &figures[..] else { panic!("{figures:?}") };
        let nodes = &run.summary.nodes;
        // None of them is waited for.
        assert_eq!((run.summary.state, nodes.joined, nodes.missing), (RunState::Closed, there, Some(0)));
    }
}
