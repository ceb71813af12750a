//! Links that are away: told as such, and nobody is said to have died.

use super::stories::stories;

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
run 3; pass 2; cut 1; pass 5; said lost=1; holds lost=1
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

/// They import something, or hang in it, or have ended. Without relays nothing is heard of them.
#[test]
fn pods_of_which_nothing_comes_after_the_gate() {
    stories(
        "links",
        "
= pods of which nothing comes after the gate are told
announce train-0:0/3 train-1:1/3 train-2:2/3; attended 20
link train-0 came; link train-1:29500 came; link train-2 came; attended 15 0..3
see explanations.code=pods_idle explanations.severity=info; link train-2 left; attended 9 0,1
see explanations.code=pods_idle explanations.severity=warning nodes.joined=2 nodes.gone=1 nodes.missing=1
see missing.presence=announced missing.last_seen=35.0 participants.state=announced,announced,gone
attended 31 0,1; holds pods_idle; see nodes.joined=2 nodes.gone=1 nodes.missing=1 missing.presence=announced
see missing.last_seen=35.0 participants.state=announced,announced,gone
link train-0 left; link train-1:29500 left; attended 40; holds pods_idle
see nodes.joined=0 nodes.gone=3 nodes.missing=0 missing.name= participants.state=gone,gone,gone
link train-0 came; announce train-0:0/3; link train-1:29500 came; announce train-1:1/3
link train-2 came; announce train-2:2/3; attended 1 0..3; holds pods_idle
see nodes.joined=3 nodes.gone=0 nodes.missing=0 participants.state=announced,announced,announced
= pods without relays are not heard of after the gate
announce train-0:0/3 train-1:1/3 train-2:2/3; attended 25; announce train-1:1/3; attended 40
join 0; pass 1; see explanations.code=run_started nodes.expected.min=3
= pods without relays are not heard of after the gate (2)
announce train-0:0/3 train-1:1/3 train-2:2/3; attended 631; runs 0
",
    );
}
