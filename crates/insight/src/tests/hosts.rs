//! Jobs that were not told to be clients: rank 0, or the agent of node rank 0, hosts a store of its own on
//! another host than the server's. It reads `init/` every 10 ms until all have counted themselves, and
//! publishes nothing before. It is client 0 here.

use super::lab::Lab;
use super::stories::{Stage as _, stories_with};

#[test]
fn ranks_and_nodes_of_a_job_that_hosts_its_store() {
    stories_with(
        "hosts",
        "soon",
        "
= a rank that rank 0 counts on is named and rank 0 is not
worker 0 at 10.0.0.10; rank 1,3 of 4 at 10.0.0.1#; await 1,3 0; counts 30
said waiting=2; explained; rank 2 of 4 at 10.0.0.12; get 0 init/; publish 0 of 4; pass 2.1; see state=running
said waiting=2 lost=0 nodes_missing=0
= who gives up on rank 0 while that counts names who is missing
worker 0 at 10.0.0.10; rank 1,3 of 4 at 10.0.0.1#; await 1,3 0; counts 25; cancel 1,3; counts 15
= a rank 0 with a larger world size is told
worker 0 at 10.0.0.10; rank 1,2 of 3 at 10.0.0.1#; await 1,2 0; counts 30
says as many as the others count on
= nodes that node rank 0 counts on are named
worker 0 at 10.0.0.10; worker 2 at 10.0.0.12; set 2 static/role_info/2 {}; wait 2 static/assigned_ranks/2
counts 30
see nodes.joined=2 nodes.missing=1 missing.rank=1; worker 1 at 10.0.0.11; set 1,0 static/role_info/# {}
wait 0 static/role_info/0 static/role_info/1 static/role_info/2; assign 0 3x1; pass 3
said waiting=2 lost=0 nodes_missing=0
= a node that dies while node rank 0 counts does not end the job
worker 0 at 10.0.0.10; worker 1 at 10.0.0.11; set 1 static/role_info/1 {}; wait 1 static/assigned_ranks/1
counts 10; leave 1; counts 30; said run_ended=0 lost=1
= a rank that ended while rank 0 counts is told as such
worker 0 at 10.0.0.10; rank 1,3 of 4 at 10.0.0.1#; await 1,3 0; counts 10; leave 1; counts 30; leave 3
counts 30; said run_ended=0; see state=joining
= rank 0 is not shown as missing while it counts
worker 0 at 10.0.0.10; rank 1 of 3 at 10.0.0.11; await 1 0; counts 30; see rank_grid.states=oj.
= a reset while rank 0 counts is named
worker 0 at 10.0.0.10; rank 1,2 of 4 at 10.0.0.1#; await 1,2 0; counts 5
reset; wait 0 init/; pass 5; said waiting
= who came and went while rank 0 counts is named
worker 0 at 10.0.0.10; rank 1 of 5 at 10.0.0.11; await 1 0; counts 5; worker 5,6 at 10.0.0.1#; leave 6
counts 30
= a node rank 0 that comes again and counts is known
worker 0 at 10.0.0.10; worker 1 at 10.0.0.11; set 1 static/role_info/1 {}; wait 1 static/assigned_ranks/1
counts 10; leave 0; pass 0.5; worker 0 at 10.0.0.10; counts 30
= an agent that told no role is not said not to have come
worker 0 at 10.0.0.10; worker 1 at 10.0.0.11; set 1 static/role_info/1 {}; wait 1 static/assigned_ranks/1
pass 8
= an agent that told no role is not said not to have come (2)
worker 0 at 10.0.0.10; counts 5
leave 0; worker 1 at 10.0.0.11; set 1 static/role_info/1 {}; wait 1 static/assigned_ranks/1; pass 8
= who looks at the count once waits for nothing
worker 0 at 10.0.0.10; rank 1 of 2 at 10.0.0.11; await 1 0; get 0 init/; pass 8
never waiting for rank 1
= a node that is cut off while node rank 0 counts is told as that
worker 0 at 10.0.0.10; worker 1 at 10.0.0.11; set 1 static/role_info/1 {}; wait 1 static/assigned_ranks/1
counts 10; cut 1; counts 30
= who may come in the place of a static node that ended is named
worker 0 at 10.0.0.10; set 0 static/role_info/0 {}; leave 0; pass 1; worker 9 at 10.0.0.10; pass 1
worker 1 at 10.0.0.11; set 1 static/role_info/1 {}; wait 1 static/assigned_ranks/1; pass 5
",
    );
}

#[test]
fn rank_0_is_known_as_soon_as_it_counts() {
    for comes_at in [2.3, 2.6, 2.9, 3.2] {
        let mut lab = Lab::soon();
        lab.play(&format!(
            "rank 1 of 3 at 10.0.0.11; await 1 0; pass {comes_at}; worker 0 at 10.0.0.10; get 0 init/
            pass 0.01; counts 30; said waiting"
        ));
    }
}

#[test]
fn a_host_alone_is_told_and_is_no_run() {
    let mut lab = Lab::soon();
    lab.play("worker 0 at 10.0.0.10; counts 100");
    let is_run = |lab: &Lab| lab.insight.documents(lab.now).run("store:29500", None, None).is_some();
    assert!(!is_run(&lab));
    // The agent of another node shows which job it is.
    lab.play(
        "worker 1 at 10.0.0.11; set 1 static/role_info/1 {}; wait 1 static/assigned_ranks/1
        counts 10; see nodes.joined=2",
    );
    assert!(!is_run(&lab));
}
