//! Faults of static agents and their ranks.

use super::faults;

#[test]
fn faults_of_static_runs() {
    faults(
        "
= static: a node dies and is replaced while the others go on
staticrun 3; get 1..3 static/assigned_ranks/#; get 0 static/role_info/2; pass 5; leave 2; pass 3
static 12:2 of 3
tells waiting never never seen | missing
= static: a node comes again, and another dies that went on with the attempt before
staticrun 3
for 1..3: get 0 static/role_info/%; get % static/assigned_ranks/%
pass 5; leave 0; pass 3; static 10:0 of 3; pass 1; leave 1
tells waiting: node 1 never never seen | while joining
= static: a node that nobody counts on dies while another has not come
static 0 of 2; pass 2; static 3 of 4; pass 1; leave 3
tells nodes_missing: node 1 never gone: node 3
= static: a node never comes, and nobody has said how many there are
static 0,2 of 4
tells nodes_missing: node 1, node 3, rank 0 never wait_cycle
= static: of the nodes that are not there, one has never come and one has died
static 0,1 of 3; leave 1
tells nodes_missing: node 2, node 1 never node 1 and node 2 | never seen: node 1
= static: a node with a larger --nnodes waits for ranks that nobody hands out
static 0 of 2; static 2 of 3; static 1 of 2; assign 0 2x1
tells join_refused: node 2, 10.77.0.12, rank 0 never from node 0 | look at rank 0
= static: of two agents with rank 0 the older starts its workers again, and the other dies
static 0,1,2:0 of 2; assign 2 2x1; pass 2; restarts 0; pass 2; leave 2; pass 3; said lost=0
static 12:0 of 2; leave 0; pass 3; see missing.name=
tells lost: 10.77.0.10
said duplicate_rank=1; holds duplicate_rank=0
= static: an operator resets the store while nodes join
static 0,1 of 3; pass 2; reset
tells waiting never wait_cycle | each waits for the next
= static: a node dies before its ranks have come
staticrun 2; workers 0..2 of 4; leave 1
tells lost: node 1, 10.77.0.11 never while training | node_silent
= static: a node dies, and the others wait for it at the exit barrier
staticrun 3; sexit 0,1; leave 2
tells exit_barrier: node 2 never node_silent
= static: the ranks of a node that is there never come
staticrun 2; workers 0..2 of 4; await 100,101 2
tells waiting: rank 2, rank 0, node 1, 10.77.0.11, rank 3, rank 1 never meet at
= static: a rank fails, that of the other node with it, and both nodes start their workers again
staticrun 2; workers 0..4 of 4; pass 5
for 3,0,2,1: leave 100+%; pass 0.1
restarts 0; pass 0.5; restarts 1; assign 0 2x2
never round 1 | missing | of 2 nodes | rank 0
tells round_over: node 0, 10.77.0.10, node 1, 10.77.0.11, rank 3, host103
= static: a node starts its workers again long after that of the rank that failed first
staticrun 2; workers 0..4 of 4; pass 5; leave 102..104; restarts 1; pass 1
rank 204..206:2 of 4 at 10.77.0.11; leave 100; pass 2; leave 101; restarts 0
tells round_over: node 0, 10.77.0.10, rank 2, host102 never round 1 | missing | of 2 nodes | rank 0
= static: two agents have one node rank, and another is free
static 0,1,2:1,3:2 of 4
tells nodes_missing: node 3 never connection closed
= static: two agents have one node rank, and 0 is free
static 1,2:1,3:2 of 3
tells waiting: node 0 never connection closed
= static: a rank fails before all have come, and its agent ends the other one of its node
staticrun 2; workers 1..4 of 4; pass 5; leave 103; pass 0.2; leave 102
tells lost: rank 3, host103, rank 2, host102 never rank 2 on host102 and rank 3
= static: the program counts on more ranks than the nodes have workers
staticrun 2; workers 0..4 of 5
for 0..4: await 100+% 4
tells waiting: rank 4
says waiting for rank 4: never seen, the agents count on 4 ranks | world size that its launcher sets
= static: a rank fails before it has published, and its agent ends the other one of its node
staticrun 2; workers 0..3 of 4; pass 5; leave 102
tells lost: rank 2, host102, rank 3, rank 1, node 1, 10.77.0.11 never look at the log of what ended;
= static: a node starts its workers again after the other has finished
staticrun 2; workers 0..4 of 4; pass 5; leave 100..102; sexit 0; pass 2; leave 102..104; restarts 1
for 2,3: rank 202+%:% of 4 at 10.77.0.11; await 202+% 0
tells waiting: rank 0
= static: a rank that has come again gives up, and its node starts its workers once more
staticrun 2; workers 0..4 of 4; pass 5; leave 102..104; restarts 1
rank 204..206:2 of 4 at 10.77.0.11; pass 20; leave 204..206; restarts 1
tells lost: rank 2, host204, rank 3, host205 never 20 s earlier
= static: a node is killed before all ranks have come
staticrun 2; workers 0..1 of 4; workers 2..4 of 4; pass 5; leave 102..104,1
tells lost: rank 2, host102, rank 3, host103 never and then | of the same node
= static: a worker fails long after it has closed its group
staticrun 2; workers 0..4 of 4; pass 5; leave 100..104; pass 20; restarts 1
tells round_over: node 1, 10.77.0.11 never ended first
rank 200:0 of 4 at 10.77.0.10; await 200 2; pass 5; says for rank 2 | not seen since the last attempt ended
= static: a rank fails, and with it the whole job
staticrun 2; workers 0..4 of 4; pass 5
for 3,0,2,1: leave 100+%; pass 0.1
leave 0; pass 0.2; leave 1
tells run_ended: rank 3, host103 never first: node
= static: all nodes end one after the other
staticrun 3
for 1,2,0: leave %; pass 0.2
tells run_ended: node 1, 10.77.0.11 never finished:
= static: node ranks begin at 1
static 1,2 of 2
tells waiting: node 0
= static: all nodes are killed
staticrun 2; leave 0,1
tells run_ended never finished:
",
    );
}

#[test]
fn static_nodes_are_counted_as_what_they_are() {
    faults(
        "
= a static node that died is missing
static 0,1 of 3; pass 3; leave 1; pass 3; see nodes.joined=1 nodes.missing=2 missing.name=node 1,node 2
= static nodes that go on with the attempt before wait for no round
staticrun 3; pass 5; leave 1; static 11:1 of 3; pass 3; see nodes.joined=1 nodes.waiting=0 nodes.earlier=2
see nodes.missing=0 participants.state=earlier,joined,earlier
= a static node that is missing is said once
expect 3..3; static 0,1 of 3; pass 20; said nodes_missing waiting=0
= static: all nodes have arrived at the exit barrier, and it does not end [soon free]
staticrun 2; sexit 0,1; pass 6
says 2 of 2 nodes have finished | no other node is known | counts on more nodes | --nnodes
nowhere have not finished
= static: a node has not arrived at the exit barrier [soon free]
staticrun 2; sexit 0; pass 6
says connected: node 1
nowhere no other node
= a static node that starts its workers again stays in the round
staticrun 2; pass 5
3x restarts 1; pass 5; see state=running round=0 nodes.joined=2 nodes.earlier=0 nodes.missing=0
said round_over=3; sexit 0; sexit 1 last; pass 2
= a static node that starts its workers again after another has died waits for that one
staticrun 2; pass 5; leave 1; pass 1; restarts 0; wait 0 static/role_info/0 static/role_info/1; pass 8
see nodes.joined=1 nodes.gone=0 nodes.missing=1; said round_over=0 nodes_missing; static 11:1 of 2
assign 0 2x2; pass 2; see nodes.joined=2; said round_complete=2
= a static job that is started again has a document of its own
staticrun 2; leave 0,1; pass 5; said run_ended=1; static 10:0,11:1 of 2; assign 10 2x1; pass 3
see explanations.code=round_complete
= node 0 that has not come is missing though nobody has said how many there are
static 2 of 3; pass 3; see nodes.expected=null nodes.missing=2 missing.name=node 0,node 1
= a larger static job beside another is no node too many
staticrun 2; pass 5; static 12:2,10:0,11:1 of 3; assign 10 3x1; pass 10; said join_refused=0 duplicate_rank
see nodes.joined=2 nodes.redundant=1 nodes.missing=0
= a node that ended alone just before the others came is not said to be absent
static 10:0 of 3; pass 2; leave 10; pass 0.2; static 2,11:1 of 3; pass 8
see missing.rank=0 missing.presence=closed; static 12:0 of 3; assign 12 3x1; pass 5
see nodes.joined=3 nodes.gone=0 nodes.missing=0
= a node that ended alone just before the others came is not said to be absent (2)
static 10:1 of 3; pass 2; leave 10; pass 0.2; static 2,11:0 of 3; pass 8
see missing.rank=1 missing.presence=closed; static 12:1 of 3; assign 11 3x1; pass 5
see nodes.joined=3 nodes.gone=0 nodes.missing=0
= a node that ended alone just before the others came is not said to be absent (3)
static 10:0 of 3; pass 2; leave 10; pass 15; static 2,11:1 of 3; pass 8
see missing.rank=0 missing.presence=closed; static 12:0 of 3; assign 12 3x1; pass 5
see nodes.joined=3 nodes.gone=0 nodes.missing=0
= a node that ended alone just before the others came is not said to be absent (4)
static 10:1 of 3; pass 2; leave 10; pass 15; static 2,11:0 of 3; pass 8
see missing.rank=1 missing.presence=closed; static 12:1 of 3; assign 11 3x1; pass 5
see nodes.joined=3 nodes.gone=0 nodes.missing=0
= a node that ended alone just before the others came is not said to be absent (5)
static 10:0 of 3; pass 2; leave 10; pass 200; static 2,11:1 of 3; pass 8
see missing.rank=0 missing.presence=never_seen; static 12:0 of 3; assign 12 3x1; pass 5
see nodes.joined=3 nodes.gone=0 nodes.missing=0
= a node that ended alone just before the others came is not said to be absent (6)
static 10:1 of 3; pass 2; leave 10; pass 200; static 2,11:0 of 3; pass 8
see missing.rank=1 missing.presence=never_seen; static 12:1 of 3; assign 11 3x1; pass 5
see nodes.joined=3 nodes.gone=0 nodes.missing=0
= static: who gave up on another and ends is no cause [soon free]
static 0,1 of 3; pass 6; cancel 1; leave 1; pass 4
says gave up on others before
= static: a rank that fails is told without those of its node that had come [soon free]
staticrun 2; workers 0..3 of 4; pass 5; leave 100; pass 4; said lost=1
nowhere of their nodes not published: rank 1
",
    );
}
