//! Who is of no job: waits of programs that are no process group, and our own probes (`wait`, `doctor`,
//! `status`, `run`), which are nobody: no sentence names their process id, 9001. Agents of NIXL publish their
//! metadata; those of NVRx's `ft_launcher` count themselves, and their leader writes `shutdown` first.

use super::stories::stories_with;

#[test]
fn who_is_of_no_job_is_told_or_left_alone() {
    stories_with(
        "outside",
        "soon free",
        "
= a process that published on one of its connections is named once
come 1; conn 4 801 at 10.0.0.1; set 1 /w/0/0 gloo; come 2; wait 2 /go; pass 6; nowhere 801 at
says not there: process 801 on host1, rank 0 of `/w/0` (connected
= processes of a program have one address and process id, and one of them does not wait
come 0..3 1 at 10.0.0.9; wait 0,1 /go; pass 6; nowhere process 1 at 10.0.0.9 has | that are connected wait
says process 1 at 10.0.0.9 and process 1 at 10.0.0.9 have | not there: process 1 at 10.0.0.9 (connected
= a process does not come to a barrier of programs, and one ended long before
come 1..5; leave 4; pass 90; add 1,2 /ckpt/num_members; wait 1,2 /ckpt/last_member; pass 6
says 801 at 10.0.0.1 and process 802 | the barrier `/ckpt`, which 2 | not there: process 803 at 10.0.0.3 (
nowhere gone:
= programs use different prefixes
come 1..4; wait 1,2 /run_a/0//cpu//0/2; wait 3 /run_b/0//cpu//0/0; pass 6
says 801 at 10.0.0.1 and process 802 | rank 2 of the group below the prefix `run_a` | the same prefix
says not there: process 803 at 10.0.0.3 (connected, waits for `/run_b/
= programs with one prefix lack one of them
come 1; wait 1 /run/0//cpu//0/1; pass 6; nowhere same prefix | not there:; says `run` | not reached
= members of a group that a program makes with gloo have one rank, or are prepared for other numbers
come 1..4; set 1 /update/0/0 gloo3; set 2,3 /update/0/1 gloo3; wait 1..4 /update/0/2; pass 6
says two processes have claimed rank 1 of the group below `update`: process 802 on host2
says 802 | the address of rank 2 of the group of 3 below the prefix `update` | one world size
set 3 /weights/0/1 gloo; set 1 /weights/0/0 gloo3; wait 3 /weights/0/5; pass 6
says prepared for different sizes: process 803 on host3 for 2 and process 801 on host1 for 3
cancel 3; pass 6; says process 803 on host3 gave up on `/weights/0/5`
= of a group of a program all have ended and all but one were started again
come 0..3; set 0..3 /tcp://h:1/0/# gloo3; pass 2; leave 0..3; pass 1; come 10,11
set 10 /tcp://h:1/0/0 gloo3; set 11 /tcp://h:1/0/1 gloo3; wait 10,11 /tcp://h:1/0/2; pass 6
says the address of rank 2 of the sub-group | gone: process 802 on host2
nowhere process 800 | process 801
= processes make a group below a prefix of their own and a rank waits in that of its job
rank 0 of 3; come 1,2; set 1,2 /up/0/# gloo3; wait 0 pg//cpu//0/1; wait 1,2 /up/0/0; pass 6
says the prefix `up`; not there: rank 0 on host0 (connected | the same prefix
says told no rank here: process 801 on host1, rank 1 of `/up/0` (waits for
= who replaces a process of torchft has the group of before
come 1..4; leave 3; wait 1 /torchft/2/0/0/1; wait 2 /torchft/1/0/0/0; pass 6
says different groups: process 802 at 10.0.0.2 below the sub-group torchft/1/0
= ranks wait again and again for a key of the program
rank 0..3 of 3; pass 40
6x wait 0 shard; wait 1 /default_pg/shard; pass 0.8; cancel 0,1; pass 0.2
says rank 0 on host0 has waited | for `shard`, which nobody has written; not there: rank 2 on host2
says rank 1 on host1 has waited | for `/default_pg/shard`
nowhere gave up
= a group of vLLM waits for a message
come 1..4; wait 1,2 /broadcast_from/0/3; pass 6
says not there: process 803 at 10.0.0.3 (connected | /broadcast_from/0/3 | 801
says 802
= who polls is told what stands beside it and that two have written that
come 1..4; set 1,2 /send/0/0
12x ask 3 /send/0/1; pass 0.5
says for `/send/0/1` again | beside it there is `/send/0/0` written by process 801 at 10.0.0.1 and process 802
= ranks that have closed their group go on with a store of their own, and one of them waits
rank 0..3 of 3; met 0..3 3; as 10 0; as 12 2; pass 3; leave 0..3; come 11 2001 at 10.0.0.1; pass 4
wait 10 /sync/1; wait 11 /sync/1 /sync/2; pass 6; said run_ended=0
says rank 0 on host0 and rank 1 on host1 | not there: rank 2 on host2 | waited for with it: `/sync/2`
= of two that give up on a key of the program one ends and the other goes on
come 1,2; wait 1,2 go; pass 4; cancel 1,2; leave 1; pass 5
says process 801 at 10.0.0.1 gave up on `go` after 4 s
nowhere 802 gave up | 802 at 10.0.0.2 gave up
= who had locks has ended and others try to take them
come 1..6; lock 1 download; add 1 counter; leave 1; pass 1
12x lock 2,3 download; add 5 counter; take 5 counter; pass 0.5
says 802 at 10.0.0.2 and process 803 | `download` again and again for | written by: process 801 at 10.0.0.1
says 805 at 10.0.0.5 has asked for `counter` again and again | they take back; gone: process 801
= who looks at a flag beside its work or reads what is there waits for nothing
come 1..4; set 1 held; set 1 state writing
12x ask 2 /stop; add 2 step; ask 3 held; get 3 state; pass 0.5
quiet
= a thread of each looks at a flag and one does not come to a barrier
come 1..5; as 11 1; as 12 2; as 13 3; as 14 4; add 1..4 /ckpt/num_members; wait 1..4 /ckpt/last_member
20x ask 11..15 /preempt; set 4 /alive; pass 0.5
never preempt
says barrier `/ckpt`, which 3 have reached | not there: process 804 at 10.0.0.4 (connected, asked last
leave 4,14; pass 6; says gone: process 804 at 10.0.0.4 | all 3 processes that are connected wait
= of a lock that was taken away and is had by another that one alone is named
come 1..5; lock 1 ckpt; leave 1; pass 1; del 4 ckpt; lock 2 ckpt; leave 4; pass 1
12x lock 3 ckpt; pass 0.5
says 803 at 10.0.0.3 has asked for `ckpt` | written by: process 802 at 10.0.0.2 (connected
nowhere process 801 | process 804
= who waited once and gave up does not ask again and again with another
come 1,2; wait 1 go; pass 0.7; cancel 1
30x ask 2 go; pass 0.2
says process 802 at 10.0.0.2 has asked | not there: process 801
= what is waited for in slices is there and nobody waits any more
come 1,2
3x wait 1 go; pass 0.7; cancel 1
wait 1 go; pass 0.2; set 2 go; pass 4; quiet
= a program waits for what was there before the store was reset
come 1; set 1 go; pass 1; reset; wait 1 go; pass 6
says `go`, which does not exist; an operator reset
= who waits for the id of a rank that is at a barrier has not arrived there
rank 0..3 of 3; met 0..3 3; wait 0 pg/store_based_barrier_key:1:last_worker; wait 1,2 pg/cuda//0; pass 6
says waiting for rank 0 on host0: connected, waits for | 2 processes wait
says rank 0 on host0 has waited 6 s at the barrier `1`
nowhere and rank 2 on host2 have
= a rank whose other connection closed last is named once
rank 0..3 of 3; met 0..3 3; as 12 2; add 12 x; wait 0 /go; pass 1; leave 2; pass 1; leave 12; pass 6
says gone: rank 2 on host2
nowhere no rank here
= a program that comes after the store was reset
come 1; set 1 go; reset; pass 1; come 2; wait 2 go; pass 6; says `go`, which does not exist
= members of a group below a prefix of their own are prepared for different sizes and nobody waits
come 1..5; set 1 /dp/0/0 gloo; set 2 /dp/0/1 gloo; set 3 /dp/0/2 gloo3; pass 6
says below `/dp/0` are prepared for different sizes: process 801 on host1 and process 802 on
says 802 on host2 for 2 and process 803 on host3 for 3
set 1 /dp/0/0 gloo3; set 2 /dp/0/1 gloo3; pass 2; holds world_sizes_differ=0
set 1 /dp/0/0 gloo; set 2 /dp/0/1 gloo; pass 6; holds world_sizes_differ=0
= ranks of an old torch count who has come to their barrier
rank 0,1 of 4; add 0,1 /default_pg/store_based_barrier_key:1
30x count 0,1 /default_pg/store_based_barrier_key:1; pass 0.2
says at the barrier `1`, which 2 have reached | new_group on all ranks
= who has not come to torch's barrier is named without a rank
come 0..3
for 0..3: add % init/; pass 6; wait 0 /default_pg/store_based_barrier_key:1:last_worker; pass 6
says not there: process 801 at 10.0.0.1 (connected, asked last
= a wait that has just begun is not said to be none
come 1..4; wait 1 /go; pass 1.9; add 2 x; pass 0.4
nowhere process 802 at 10.0.0.2 (connected, asked last 0.4 s ago, waits
= an agent of NIXL asks for one that has not published
come 1; set 1 /nixl/agents/metadata/decode-0/NULL_AGENT
6x ask 1 /nixl/agents/metadata/prefill-0/NULL_AGENT; pass 1
pass 6
says agent decode-0 | prefill-0 | nobody has written
= an agent of NIXL asks for one that has ended
come 1; set 1 /nixl/agents/metadata/decode-0/NULL_AGENT
come 2; set 2 /nixl/agents/metadata/prefill-0/NULL_AGENT; leave 2; pass 70
6x ask 1 /nixl/agents/metadata/prefill-0/NULL_AGENT; pass 1
pass 6
says agent decode-0 | prefill-0 | closed
= an agent of NIXL asks for one that comes
come 1; set 1 /nixl/agents/metadata/decode-0/NULL_AGENT
2x ask 1 /nixl/agents/metadata/prefill-0/NULL_AGENT; pass 1
come 2; set 2 /nixl/agents/metadata/prefill-0/NULL_AGENT
6x ask 1 /nixl/agents/metadata/prefill-0/NULL_AGENT; pass 1
pass 6; quiet
= no agent leads the rendezvous of ft_launcher
come 1,2; add 1,2 /ft_rendezvous_barrier:job:join_count_0
6x ask 1 /ft_rendezvous_barrier:job:shutdown; pass 1
pass 6
says job | 801 | /ft_rendezvous_barrier:job:shutdown
= an agent that comes later leads it
come 1; add 1 /ft_rendezvous_barrier:job:join_count_0
2x ask 1 /ft_rendezvous_barrier:job:shutdown; pass 1
come 2; add 2 /ft_rendezvous_barrier:job:join_count_0; set 2 /ft_rendezvous_barrier:job:shutdown
6x ask 1 /ft_rendezvous_barrier:job:shutdown; pass 1
pass 6; quiet
= a probe waits for the rank that is missing
rank 0 of 2; await 0 1; probe 90; await 90 1; pass 4; leave 90; pass 6
says rank 1
nowhere 9001
= a probe came and went before the rank is missed
rank 0 of 2; await 0 1; probe 90; pass 0.2; leave 90; pass 6
says rank 1
nowhere 9001
= ranks that have met and another process ask and wait for keys of the program
rank 0,1 of 2 at 10.0.0.1; met 0,1 2; come 5; wait 5 /quorum
30x ask 0 /joined; pass 0.2
says process 805 at 10.0.0.5 has waited | for `/quorum`, which nobody has written
says rank 0 on host0 has asked for `/joined` | rank 1 on host1 | connected, and told no rank here: process 805
leave 5; wait 1 /quorum; pass 6; says rank 1 on host1 has waited | gone, and told no rank here: process 805
= a probe looks at a job that trains
rank 0,1 of 2 at 10.0.0.1; met 0,1 2; pass 5; probe 90; pass 1; leave 90; pass 6; quiet
nowhere 9001
",
    );
}
