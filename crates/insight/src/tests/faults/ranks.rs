//! Faults of ranks without agents.

use super::super::stories::stories_with;
use super::faults;

#[test]
fn faults_of_ranks_without_agents() {
    faults(
        "
= env: two of four never come
gather 0,3 of 4
tells waiting: rank 1, rank 2
= env: ranks 0 and 2 never come
gather 1,3 of 4
tells waiting: rank 0, rank 2
= env: rank 0 waits for a key of the program on a second connection
gather 0,1 of 2; pass 5; as 10 0; wait 10 data_redy; wait 1 pg/cpu//1/0
tells waiting: key data_redy, rank 0, host0 never waits for nothing
= env: the address of rank 0 was dropped, its peer was replaced
gather 0,1 of 3; pass 2; leave 1; pass 2; rank 11:1 of 3; await 11 0
tells waiting: rank 0, host0 never waiting for rank 0: never seen
cancel 11; pass 5; says gave up on | from rank 0 on host0: what it had published was dropped
= env: an operator resets the store while ranks come
gather 0,1 of 3; pass 2; reset; rank 2 of 3; await 2 0
tells waiting: rank 0, host0 never waiting for rank 0: never seen | wait_cycle
= env: a rank dies in the middle of it
gather 0..3 of 4; pass 2; leave 1
tells lost: rank 1, host1 never 0 of 4
= env: a rank dies, and another that was not there yet comes
gather 0..3 of 4; pass 2; leave 0; rank 3 of 4; await 3 0
tells waiting: rank 0, host0 never never seen
= env: a rank dies, and others have never come
rank 0,1 of 4; reads 0 of 4; leave 1; rank 12:3 of 4 at 10.0.0.12; await 12 1
tells waiting: rank 1, host1, rank 2 never not published either: rank 1
= env: one that met the others before dies while they meet again
gather 0..3 of 3; pass 1; leave 2; rank 12:2 of 3; leave 1; await 12 0
tells waiting: rank 0, host0, rank 1, host1 never never seen
= env: three processes with one rank
for 0,1,2: rank %:0 of 3 at 10.0.0.^; await % 1; pass 0.2
never host2 and rank 0 on host2 | host2 and process | ranks 0
tells duplicate_rank: rank 0, host0, pid 2000, pid 2001, host1, pid 2002
= env: a process connects and ends without publishing
rank 0 of 2; worker 7 at 10.0.0.7; pass 0.2; leave 7; await 0 1
tells waiting: rank 1, pid 2007, 10.0.0.7
= env: of two containers with one address and process id, one tells its rank
rank 0 of 3; come 1 1 at 10.0.0.9; add 1 init/; publish 1 of 3; come 2 1 at 10.0.0.9; add 2 init/
await 0,1 2
tells waiting: rank 2, pid 1, 10.0.0.9
= env: two containers with one address and process id tell no rank
rank 0 of 3; come 1 1 at 10.0.0.9; add 1 init/; come 2 1 at 10.0.0.9; add 2 init/; await 0 1
tells waiting: pid 1, 10.0.0.9
= env: containers with one address and process id, two of which are rank 0
for 0..3: come % 1 at 10.0.0.9; add % init/; publish % of 4
await 0..3 3; pass 5; come 10 1 at 10.0.0.9; add 10 init/; publish 10:0 of 4; await 10 1
tells duplicate_rank: rank 0, pid 1, host0 never waits for `/default_pg
= env: of containers with one address and process id, one tells no rank and ends
for 0,1: come % 1 at 10.0.0.9; add % init/; publish % of 3
come 2 1 at 10.0.0.9; add 2 init/; pass 0.2; leave 2; await 0,1 2
tells waiting: pid 1, 10.0.0.9
= a store made by hand: a process that has used no key of PyTorch's
rank 0 of 2; come 7 77 at 10.0.0.7; await 0 1
tells waiting: pid 77, 10.0.0.7
= a store made by hand with a prefix
for 1,2: come % 2000+% at 10.0.0.%; set % /mine/0//cpu//0/% address; wait % /mine/0//cpu//0/0
tells waiting: key mine never wait_cycle
= env: all end before they publish
for 1,2: worker % at 10.0.0.7
pass 0.5; leave 1,2
tells ranks_ended: pid 2001, 10.0.0.7, pid 2002
= nccl: rank 0 ends before it writes the id
for 0,1,2: worker %
pass 0.5; leave 0; wait 1,2 pg/cuda//0
tells waiting: rank 0, pid 2000, 10.0.0.0
= env: a rank comes to another store
rank 0,1 of 3; elsewhere 2 of 3; reads 0,1 of 3
tells waiting: rank 2, host2
= env: a reset takes the addresses of those who wait
gather 0,1 of 3; pass 1; reset
tells store_reset: rank 0, host0, rank 1, host1 never 0 of 3 | none of 3
= env: two of four have another WORLD_SIZE
rank 0,1 of 4; rank 2,3 of 5
tells world_sizes_differ: rank 0, rank 1, rank 2, rank 3
= env: who waits as another has a smaller WORLD_SIZE has the remedy for that
rank 0,1 of 4; rank 2,3 of 5; await 2,3 4
tells waiting: rank 4
says disagree on the world size | with the same WORLD_SIZE
= env: ranks give up where two have not come
gather 0,3 of 4; pass 2
for 0,3: cancel %; leave %
tells gave_up: rank 0, host0, rank 3, host3, rank 1, rank 2
= env: a key that the job before has deleted is waited for
rank 0,1 of 2; set 0 once; del 0 once; leave 0,1; pass 40; rank 2,3 of 4; wait 2 once
tells waiting_for_key: rank 2, host2, key once never deleted
= env: a key is deleted before all have read it
rank 0,1 of 2; set 0 once; del 0 once; wait 1 once
tells waiting_for_key: rank 1, host1, key once never nobody has written
= env: a reset while training takes a key of the program
rank 0,1 of 2; set 0 once; pass 2; reset; wait 1 once
tells waiting_for_key: key once never nobody has written
= env: a rank dies in training, and another with it
rank 0..3 of 3; pass 20; leave 2; pass 0.5; leave 1
tells ranks_ended: rank 2, host2, rank 1, host1 never GLOO_SOCKET_IFNAME
= env: ranks that had made a sub-group could connect to each other
rank 0,1 of 2; set 0 pg/1//cpu//0/0 gloo; pass 2; leave 1
tells ranks_ended: rank 1, host1 never GLOO_SOCKET_IFNAME
= env: a barrier of torch.distributed is called by its name
rank 0..3 of 3; wait 0,1 pg/store_based_barrier_key:grp:last_worker; pass 10
tells waiting: key grp, rank 2, host2
2x cancel 0,1; pass 0.2; wait 0,1 pg/store_based_barrier_key:grp:last_worker; pass 0.8; holds waiting; pass 9
says and rank 1 on host1 have waited up to 24 s at the barrier `grp`; not there: rank 2 on host2
cancel 0,1; pass 1; holds waiting; pass 5; holds waiting=0
= env: processes count themselves and end beside ranks that have met
rank 0..2 of 2; pass 3; worker 2..4 at 10.0.1.9; pass 1; leave 2..4; pass 6; said ranks_ended=1
= env: ranks wait for a key of the program that nobody writes
rank 0..3 of 3; wait 1,2 data_redy
tells waiting_for_key: rank 1, host1, rank 2, host2, key data_redy, rank 0, host0 never wait_cycle
= env: ranks give up on a key that is one slip from one that is there
rank 0..3 of 3; set 0 /default_pg/data_ready; wait 1,2 /default_pg/data_redy; pass 8; cancel 1..3
leave 1..3
tells gave_up: rank 1, host1, rank 2, host2, rank 0, host0 never must come from
= env: ranks give up on a sub-group that one does not make, as another has ended
rank 0..4 of 4; pass 6; leave 3; wait 0,1 pg/1//cpu//0/2; pass 8; cancel 0..2
tells gave_up: rank 0, host0, rank 1, host1, rank 3, host3, rank 2, host2 never missing:
= env: a rank does not make a sub-group with the others
rank 0..3 of 3; wait 0,1 pg/1//cpu//0/2
tells waiting: rank 2, host2 never connection closed | wait_cycle
= env: a rank does not make the sub-groups of a device mesh, and many wait in each
rank 0..7 of 7; wait 6 pg/2//cpu//0/1; wait 0 pg/1//cpu//0/1; wait 1 pg/3//cpu//0/2; wait 2 pg/1//cpu//0/1
wait 3 pg/3//cpu//0/2; wait 5 pg/3//cpu//0/1
tells waiting: rank 4, host4 never connection closed | wait_cycle | waits for ` | the address of rank
= env: a rank has ended before the sub-groups of a device mesh are made
rank 0..4 of 4; leave 2; wait 0 pg/1//cpu//0/1; wait 1 pg/3//cpu//0/1; wait 3 pg/2//cpu//0/0
tells waiting: rank 2, host2 never not there | wait_cycle
= env: ranks make sub-groups in another order, and one that waits for nothing is first
rank 0..4 of 4; wait 0 pg/1//cpu//0/1; wait 1 /default_pg/own
tells waiting: rank 2, host2, rank 3, host3, rank 1, host1 never connection closed | wait_cycle
= env: a rank has ended when the others make a sub-group
rank 0..3 of 3; leave 2; wait 0,1 pg/1//cpu//0/2
tells waiting: rank 2, host2 never not there | wait_cycle
= env: a key that nobody writes is one slip from a key that is there
rank 0..3 of 3; set 0 data_ready; wait 1,2 data_redy
tells waiting_for_key: key data_redy, key data_ready never connection closed
= env: a key of the next step is no slip
rank 0,1 of 2; set 0 step/10; wait 1 step/11
tells waiting_for_key: host0, host1, rank 0, rank 1 never exists | slip
= env: the rank that would write a key of the program dies
rank 0..3 of 3; pass 40; wait 0 checkpoint/written; leave 2
tells waiting_for_key: rank 0, host0, rank 2, host2 never exists | wait_cycle
= env: a barrier of the program that a rank does not reach
rank 0..3 of 3; pass 10
for 0,2: add % ckpt/num_members; wait % ckpt/last_member
tells waiting_at_barrier: rank 0, host0, rank 2, host2, key ckpt, rank 1, host1 never connection closed
= env: a BARRIER of which one rank is on another connection, and one has died
rank 0..4 of 4; pass 40; as 10 1; barrier 0 ckpt 4; barrier 10 ckpt 4; leave 3
tells waiting_at_barrier: key ckpt, rank 3, host3, rank 2, host2 never not there: rank 1
= env: at a BARRIER waits a process that is not known
rank 0,1 of 2; pass 40; conn 10 9999 at 10.0.0.1; barrier 0 ckpt 2; barrier 10 ckpt 3
tells waiting_at_barrier: rank 0, host0, key ckpt never not there
= env: a rank is frozen in its wait, and what it waits for comes
rank 0,1 of 3; await 0,1 2; freeze 1; pass 4; rank 2 of 3
tells node_silent within 11: rank 1, host1 never rank 0 on host0 waited
wait 0,2 pg/1//cpu//0/1
tells waiting: rank 1, host1 never waits for nothing
= env: a client that gives up and tries again
rank 0 of 2
20x await 0 1; pass 1.2; cancel 0; pass 0.1
await 0 1
tells gave_up within 0: host0, rank 0, rank 1
",
    );
}

#[test]
fn faults_at_the_end_of_ranks() {
    faults(
        "
= env: all ranks are killed at once
rank 0..3 of 3; pass 20; leave 0..3
tells run_ended never finished | SOCKET_IFNAME
= env: a rank ends in a collective, and with it all others
rank 0..3 of 3; pass 10; leave 1; pass 0.5; leave 0; pass 1; leave 2
tells run_ended: rank 1, host1 never SOCKET_IFNAME
= env: all ranks end soon after they have met
rank 0,1 of 2; pass 4; leave 0..2
tells run_ended never all 2
= env: rank 0 and another one have not come
gather 2,3 of 4
tells waiting: rank 0, rank 1 never rank 0's process:
= env: rank 0 has ended, and another one has not come
rank 0,2,3 of 4; leave 0; reads 2,3 of 4
tells waiting: rank 0, host0, rank 1
= env: NCCL ranks, of which only rank 0 writes anything, are killed
worker 0..3 at 10.0.0.1; set 0 pg/cuda//0 nccl; get 1..3 pg/cuda//0; pass 8; leave 0..3
tells run_ended never finished |  0 processes
= env: a rank comes again alone, and the others go on
gather 0..3 of 3; pass 20; leave 2; pass 1; rank 12:2 of 3; await 12 0
tells waiting: rank 0, host0 never never seen | none of 3
= env: ranks that had met make their group again, and have read the address of one that does not
gather 0..3 of 3; pass 5; publish 0,2 of 3
tells waiting: rank 1, host1 never never seen
= env: a process that tells no process id does not publish, on the host of a rank that has
rank 0,1 of 3; conn 7 4242 at 10.0.0.1; add 7 init/; await 0 2
tells waiting: rank 2, 10.0.0.1
= env: a process connects and does not publish its address
rank 0,1 of 3; worker 2 at 10.0.0.2; reads 0,1 of 3
tells waiting: rank 2, pid 2002, 10.0.0.2 never missing
= env: a rank cannot connect to another and ends
rank 0..3 of 3; pass 1; leave 2
tells ranks_ended: rank 2, host2 never have met
",
    );
}

#[test]
fn who_comes_again_or_beside_ranks_is_told_as_what_it_is() {
    faults(
        "
= a process that never was a rank leaves without a word
worker 0; pass 10; leave 0; pass 5; see state=gone; silent
= who takes the place of a rank that ended is not said to have ended
rank 0,1 of 3; pass 1; leave 1; pass 0.5; rank 10:1 of 3 at 10.0.0.1; pass 3; said lost=1
says rank 1 on host1: connection closed | 2 of 3 ranks were left; place taken by: rank 1 on host10 (pid 2010)
= ranks that come again join since then
rank 0..3 of 3; pass 20; leave 1; pass 5; rank 11:1 of 3 at 10.0.0.1; pass 2; see state=joining
recent started_at
= a rank is the first ones again when the second that claimed it has ended
rank 0,1 of 3; await 1 2; pass 2; rank 2:1 of 3 at 10.0.0.2; pass 5; leave 2; pass 3; await 0 1; pass 6
said lost=0 waiting
= a rank of the job before that ended well is not the one that is missing
rank 0..3 of 3; pass 3; leave 0..3; pass 0.2
for 0,2: come 10+% 2010+% at 10.0.0.1; add 10+% init/; publish 10+%:% of 3; await 10+% 1
pass 6; said waiting
= a rank of the job before that ended well is not the one that is missing (2)
rank 0..3 of 3; pass 3; leave 0..3; pass 0.2
for 0,2: come 10+% 2000+% at 10.0.0.%; add 10+% init/; publish 10+%:% of 3; await 10+% 1
pass 6; said waiting
= two jobs that meet with each others ranks are two jobs
rank 0 of 2 at 10.0.0.^; pass 2; rank 1:0 of 2 at 10.0.0.^; pass 2; rank 2:1 of 2 at 10.0.0.^; pass 2
rank 3:1 of 2 at 10.0.0.^; pass 6
= ranks in a store that was opened for announced pods are a run without agents
own; gate a:0/2 b:1/2; pass 1; rank 0,1 of 2; pass 2; see run_id=job kind=env state=running; leave 0,1
pass 3; see state=ended
= processes with one address and process id are not taken for one
come 0..3 7 at 10.0.0.1; add 0..3 init/; publish 0,1 of 3; reads 0,1 of 3; pass 20; said waiting
= processes with one address and process id are not taken for one (2)
come 0,1 7 at 10.0.0.1; set 0,1 static/role_info/# {}; wait 1 static/assigned_ranks/1; pass 20
said wait_cycle=0 waiting
= who was there when all met is no rank that is missing
worker 9; pass 1; gather 0,1 of 2; pass 10; leave 0,1; pass 3; rank 2:0 of 2 at 10.0.0.1; await 2 1; pass 20
worker 3 at 10.0.0.2; pass 30; said waiting
= a node whose wait was answered just now is not called busy
static 0,1 of 3; pass 20; said waiting=0 nodes_missing; static 2 of 3; pass 4; said waiting=0; pass 6
said waiting
= a rank that is gone has not joined
gather 0..3 of 3; pass 3; leave 1; pass 3; see ranks.joined=2 ranks.gone=1 ranks.expected=3
= a rank beyond the smaller world size may not exist
rank 0,1 of 3; rank 3 of 5; reads 0,1 of 3; await 3 4; pass 6; said waiting; leave 3; rank 2 of 3; pass 3
holds waiting=0
= ranks that can meet are counted whatever another is prepared for
rank 3 of 4; pass 3; gather 0..3 of 3; pass 3; see ranks.joined=3 ranks.expected=3 ranks.connected=4
said world_sizes_differ=1
= ranks that can meet are counted whatever another is prepared for (2)
gather 0..3 of 3; pass 3; rank 3 of 4; pass 3; see ranks.joined=3 ranks.expected=3 ranks.connected=4
said world_sizes_differ=1
= who meets again with another world size is told
gather 0..3 of 3; pass 3; publish 0,1 of 2; publish 2 of 3; pass 4; said world_sizes_differ=1
",
    );
}

/// Whether a rank that ends failed cannot be seen: only who waits for it shows that it is needed.
#[test]
fn ranks_that_end_give_up_or_disagree_on_a_group() {
    stories_with(
        "faults",
        "soon free",
        "
= env: ranks end one after the other soon after they have met
rank 0..4 of 4; reads 0..4 4; pass 2.5; leave 0; pass 2.5; leave 1; pass 2.5; leave 2; pass 15; silent
says rank 0 on host0, rank 1 on host1 and rank 2 on host2 closed their connections
= env: a rank ends soon, and another waits for it in a sub-group
rank 0,1 of 2; reads 0,1 2; pass 2; leave 1; wait 0 pg/1//cpu//0/1; pass 9; complains; pass 6
says rank 1 of the sub-group 1 | rank 1 on host1
= env: a process gives up on a key on two connections
rank 0,1 of 2; pass 20; as 10 0; wait 0,10 /default_pg/data; pass 2; cancel 0,10; pass 6
says rank 0 on host0 gave up on
nowhere and process 2000 | rank 0 on host0 and
= env: all ranks are killed at one moment while they wait for one that never came
gather 0..3 of 4; pass 2; leave 0..3; pass 6
says the connections of all 3 processes closed within 1 ms while they waited; never published: rank 3
nowhere within 0 s
= env: ranks 0 and 1 make one group first, and ranks 2 and 3 another
rank 0..4 of 4; set 0,1 pg/1//cpu//0/# gloo3; get 0 pg/1//cpu//0/1; get 1 pg/1//cpu//0/0
set 2:1,3:2 pg/1//cpu//0/# gloo3; wait 2,3 pg/1//cpu//0/0; pass 6
says two processes have claimed rank 1 of the sub-group 1: rank 1 on host1 (pid 2001) and rank 2 on host2
says (pid 2002) | make the same groups, as many
says have published there: rank 0 on host0 and rank 1 on host1
nowhere not there
= env: a rank does not come to a group that others make
pass 1; rank 0..3 of 3; set 0,1 pg/1//cpu//0/# gloo3; wait 0,1 pg/1//cpu//0/2; pass 6
says not there: rank 2 on host2 (connected, asked last | look for ranks that have not started
nowhere published there | claimed | disagree
= env: who is awaited in a group does not answer any more, and is given up
rank 0..3 of 3; wait 0,1 pg/1//cpu//0/2; pass 1; cut 2; pass 6
says gone: rank 2 on host2 (given up
nowhere not there
= env: who gave up on another and ends is no cause
rank 0,1 of 3; await 0,1 2; pass 6; cancel 1; leave 1; pass 4
says rank 1 on host1: connection closed | gave up on others before
= env: a stranger beside those who have met ends before it has met anybody
rank 0,1 of 2; pass 3; rank 5:0,6:1 of 3 at 10.0.0.^; pass 1; leave 5; pass 4; said lost=0
",
    );
}
