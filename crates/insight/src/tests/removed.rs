//! c10d nodes that others take out of the round, that die in it, and those that come after them.

use super::stories::stories;

#[test]
fn nodes_that_are_taken_out_or_die_in_a_round() {
    stories(
        "removed",
        "
= a node that was taken out and is back is not missing
run 3; pass 16; cas 0 drop:1; pass 40; see nodes.joined=2 nodes.missing=1 missing.name=node1
see missing.presence=taken_out; said node_silent; get 1 /torch.rendezvous.job; pass 3
see nodes.joined=3 nodes.missing=0 missing.name=; leave 1; pass 3
= who waits for the master sends no heartbeats and its round does not run yet [free]
all 0..2; wait 1 c10d/MASTER_ADDR; pass 14; see state=exchanging; cas 0 drop:1; pass 9
said lost=1 node_silent=0; see state=exchanging nodes.joined=2
= a node that was taken out before the ranks were handed out is none of the round [free]
all 0..3; cas 0 drop:2; wait 2 c10d/torchelastic/assigned_ranks/2
set 0 c10d/torchelastic/assigned_ranks/0 [0,2,0,2]; pass 5; see nodes.joined=2; said node_silent=0
= who waits for a dead node is not gone and the dead one is named
all 0..3; set 0,1 c10d/torchelastic/role_info/# {}
wait 0 c10d/torchelastic/role_info/0 c10d/torchelastic/role_info/1 c10d/torchelastic/role_info/2
wait 1 c10d/torchelastic/assigned_ranks/1; pass 1; leave 2; pass 14
agent 7 at 10.77.0.12; cas 7 drop:0 drop:2 wait; pass 3; see missing.name=; pass 40
cas 7 drop:1 next join; pass 70
never waiting for node rank 0
= of those that a round may lack the connected are named before the dead
all 0..3; wait 0 c10d/torchelastic/role_info/2; wait 1 c10d/torchelastic/assigned_ranks/1; pass 1; leave 2
pass 14; agent 7 at 10.77.0.17; cas 7 drop:0 drop:2 wait; pass 3; cas 7 drop:1 next join; pass 3
see missing.name=node0,node1
= a dead node is missing by name while its successor has another place
agent 0,1; cas 0,1 join; leave 1; pass 0.5; agent 7 at 10.77.0.11; agent 2; cas 7,2 join; pass 3
cas 2 complete; pass 5; see nodes.joined=3 nodes.gone=1 nodes.missing=1 missing.name=node1 missing.rank=1
= all that a round counts and that are dead are named
join 0..3; pass 5; leave 0,1; joins 3 join complete; wait 2 c10d/MASTER_ADDR; pass 40
= the death of a node that was taken out is said
run 3; pass 16; cas 0 drop:1; pass 5; leave 1; pass 3; see nodes.gone=1
= the death of a node that was taken out is said (2)
join 0..2; pass 16; cas 0 drop:1; pass 5; leave 1; pass 3; see nodes.gone=1
= ranks that ended for newcomers are no news
run 2; rank 10..12:0 of 2 at 10.77.0.^; pass 5; joins 3 wait; pass 1
for 0,1: leave 10+%; cas % leave; cas % wait
cas 0 next join; pass 2; see state=joining ranks=null
= a spare is a note
run 2; joins 3 redundant; pass 40; silent
= who asked for another number and has gone is no loss
run 2; joins 3 wait; cas 0,1 leave; cas 0 next join; cas 3,1 join; pass 5; leave 3; pass 3; said lost; pass 60
said nnodes_differ
= who asked for another number and has gone is no loss (2) [nodes 2..2]
for 0..3: join %; pass 1
leave 1; pass 3; said lost; cas 0; pass 60; said nnodes_differ; cas 0 drop:1; pass 60; said nnodes_differ
= who asked for another number and has gone is no loss (3)
join 0..3; leave 1; pass 40; said lost nodes_missing
= the death of a node that waits is said
run 2; joins 3 wait; pass 1; leave 3; pass 3; said lost=1
= nodes that read the state are not silent
run 2
3x cas 0,1; pass 5
60x get 0,1 /torch.rendezvous.job; pass 1
said node_silent=0; pass 15; said node_silent
= a round that counts a dead node says so
join 0..2; pass 5; leave 1; pass 5; joins 2 join complete; pass 2
see explanations.code=round_complete,lost,run_started explanations.severity=error,error,info
see explanations.evidence.pid=1001,1001,null; wait 2 c10d/torchelastic/role_info/1; pass 40
= a round that counts a dead node says so (2)
join 0..2; pass 5; leave 1; pass 0.5; joins 2 join complete; pass 2
see explanations.code=round_complete,lost,run_started explanations.severity=error,error,info
see explanations.evidence.pid=1001,1001,null; wait 2 c10d/torchelastic/role_info/1; pass 40
= a node that is silent again is said to be
run 3
16x cas 0,2; pass 1
cas 0 drop:1
5x cas 0,2; pass 1
get 1 /torch.rendezvous.job
14x cas 0,2; pass 1
see missing.name=node1 missing.last_seen=21.9
",
    );
}
