//! Ranks that meet without telling a rank: by an NCCL id that rank 0 publishes, or by the names of RPC.

use super::stories::stories_with;

/// The id of all ranks has two forms in PyTorch's process groups: `ID` is the newer one. `BOTH` is a static
/// run of two nodes with two workers each.
fn unnamed(table: &str) {
    const ID: &str = "pg/cuda//0/nccl_storekey_0";
    const BOTH: &str = "static 0,1 of 2; assign 0 2x2; get 0,1 static/assigned_ranks/#; pass 0.5; \
                        worker 10..12 at 10.77.0.10; worker 20..22 at 10.77.0.11";
    stories_with("unnamed", "soon", &table.replace(" ID", &format!(" {ID}")).replace("BOTH", BOTH));
}

#[test]
fn processes_that_told_no_rank() {
    unnamed(
        "
= the end of a process that told no rank is said
worker 0..4; pass 1; set 0 pg/cuda//0 nccl; get 1..4 pg/cuda//0; pass 60; leave 2; pass 4; said ranks_ended=1
leave 0; pass 4; silent; leave 1,3; pass 5
= a process that told no rank and does not answer is cut off
worker 0..4; pass 1; set 0 pg/cuda//0 nccl; get 1..4 pg/cuda//0; pass 60; cut 2; pass 4; said lost=1
= rank 0 that published the id and does not answer is not said to have ended
worker 0..3; pass 1; set 0 ID nccl; get 1,2 ID; pass 2; cut 0; pass 1; del 1 ID; wait 1,2 ID; pass 5
said waiting
= workers are not taken for the agent of a node that ended
static 0..3 of 3; assign 0 3x1; pass 0.5; worker 10..13 at 10.77.0.^; set 10 ID nccl; get 11,12 ID; pass 2
leave 0,10,1,11; pass 1; static 3:1 of 3; pass 5; explained
= who makes its group again has not ended
worker 0..3; pass 1; set 0 ID nccl; get 1,2 ID; pass 60
for 0..3: as 10+% %; add 10+% init/; leave %
set 10 /default_pg/1//cuda//0/nccl_storekey_0 nccl; get 11,12 /default_pg/1//cuda//0/nccl_storekey_0; pass 40
for 0..3: as 20+% 10+%; add 20+% init/; leave 10+%
set 20 /default_pg/2//cuda//0/nccl_storekey_0 nccl; get 21,22 /default_pg/2//cuda//0/nccl_storekey_0; pass 40
silent; said ranks_ended=0; leave 21; pass 2; conn 38 2001 at 10.0.0.1; pass 20; said run_ended=0
= a client that only counts itself is no rank
worker 0..3; pass 1; set 0 ID nccl; get 1,2 ID; worker 7; pass 20; leave 7; pass 20; said ranks_ended=0
silent
= who counted itself and does not ask for the id is named, though nobody told how many there are
worker 0..3; pass 1; set 0 ID nccl; get 1 ID; pass 20
says 2 ranks have come for the NCCL id | connected, and not asking for it: process 2002 at 10.0.0.2
get 2 ID; pass 2; holds waiting=0
= a job that is started again does not miss the processes of before
worker 0..3; pass 1; set 0 ID nccl; get 1,2 ID; pass 20; leave 1; pass 8; said ranks_ended=1
for 0..3: worker 10+% at 10.0.1.#; leave %
set 10 ID nccl; get 11,12 ID; pass 60; holds ranks_ended=0; silent
= who is absent from a sub group or a barrier is said without ranks
worker 0..4; pass 1; set 0 ID nccl; get 1..4 ID; pass 10; wait 2,3 pg/7//cuda//7/nccl_storekey_0; leave 1
pass 6; said waiting
= who is absent from a sub group or a barrier is said without ranks (2)
worker 0..3; pass 1; set 0 ID nccl; get 1,2 ID; pass 10; wait 1 /ckpt/last_member; wait 2 /data_redy; pass 6
said waiting_at_barrier waiting_for_key; silent; come 9 909; wait 9 Token; pass 25; says 909 at | Token
= the id of two ranks is not that of rank 0
worker 0..4; pass 1; set 0 ID nccl; get 1..4 ID; pass 10
wait 3 pg/cuda//1:3; wait 2 pg/cuda//0:2; pass 6
says waiting for rank 0 (process 2000 at 10.0.0.0): connected | for the NCCL id to send and receive
= the id of two ranks that are known is that of the lower one
rank 0..4 of 4; met 0..4 4; pass 5; wait 1 pg/cuda//0:1; wait 2 pg/cuda//1:2; wait 3 pg/cuda//2:3; pass 6
said waiting; says waiting for rank 0 on host0: connected | 3 processes wait
",
    );
}

/// A static run: node 0 is at 10.77.0.10 with workers 10 and up, node 1 at 10.77.0.11 with 20 and up.
#[test]
fn workers_of_nodes_that_told_no_rank() {
    unnamed(
        "
= an ended process is named with its node and its ranks
static 0,1 of 2; assign 0 2x1; get 0,1 static/assigned_ranks/#; pass 0.5; worker 10 at 10.77.0.10
worker 20 at 10.77.0.11; pass 0.5; set 10 ID nccl; get 20 ID; pass 30; silent; leave 20; pass 4
said ranks_ended=1; leave 1; pass 4; said lost=1
= an ended process is named with its node and its ranks (3)
static 0,1 of 2; assign 0 2x3; get 0,1 static/assigned_ranks/#; pass 0.5; worker 10..13 at 10.77.0.10
worker 20..23 at 10.77.0.11; pass 0.5; set 10 ID nccl; get 20..23,11,12 ID; pass 30; silent; leave 20; pass 4
said ranks_ended=1; leave 1; pass 4; said lost=1
= a rank that does not come for the id is said
BOTH; pass 0.5; set 10 ID nccl; get 11,21 ID; pass 6; said waiting; get 20 ID; pass 2
holds waiting=0
= a rank that does not come for the id is said (2)
BOTH; pass 0.5; leave 20,21; set 10 ID nccl; get 11 ID; pass 6; said waiting
= a rank that does not come for the id is said (3)
BOTH; pass 0.5; set 10 ID nccl; get 11,20,21 ID; pass 10; conn 22 2021 at 10.77.0.11
leave 21,20; ping 22; add 22 init/; pass 10; silent
= a rank that does not come for the id is said (4)
static 0,1 of 2; assign 0 2x1; get 0,1 static/assigned_ranks/#; pass 0.5; worker 10 at 10.77.0.10
worker 20 at 10.77.0.11; pass 0.5; set 10 ID nccl; pass 10; said waiting
= a rank that does not come for the id is said (5)
BOTH; pass 10.5; set 10 ID nccl; get 11,20,21 ID; pass 60; silent
= where rank 0 is that has not published its id
worker 0..3; wait 1,2 ID; pass 6; said waiting
= where rank 0 is that has not published its id (2)
worker 0..3; wait 1 ID; pass 6; said waiting
= where rank 0 is that has not published its id (3)
worker 1,2; wait 1,2 ID; pass 6; said waiting
= where rank 0 is that has not published its id (4)
come 0..3 1 at 10.0.0.9; wait 1,2 ID; pass 6; said waiting
= where rank 0 is that has not published its id (5)
for 1,2: worker %; as 10+% %
wait 1,2 ID; pass 6; said waiting
= where rank 0 is that has not published its id (6)
worker 0..3; set 0 ID nccl; get 1 ID; leave 0; pass 1; wait 2 ID; pass 6; said waiting
= where rank 0 is that has not published its id (7)
worker 0..3; pass 1; set 0 ID nccl; get 1,2 ID; pass 10; wait 1,2 /default_pg/1//cuda//0/nccl_storekey_0
pass 6; said waiting
= where rank 0 is that has not published its id (8)
worker 0..3; pass 1; set 0 ID nccl; get 1,2 ID; worker 3; pass 1; reset; wait 3 ID; pass 6; said waiting
= where rank 0 is that has not published its id (9)
BOTH; pass 0.5; leave 10,11,0; wait 20,21 ID; pass 6; said waiting
= where rank 0 is that has not published its id (10)
BOTH; pass 0.5; wait 11,20 ID; pass 6; said waiting
",
    );
}
