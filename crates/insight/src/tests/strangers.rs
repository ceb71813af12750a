//! Processes beside a job: copies, old pods, ranks of another world size, a second job, tools.

use super::lab::Lab;
use super::stories::{Stage as _, stories_with};

/// A job of three has trained for 5 s; 10 comes beside it as this rank of so many, and waits for another.
/// The job is shown as it is, whoever is beside it, and a real death is told as one.
#[test]
fn a_stranger_beside_a_job_is_told_and_the_job_goes_on() {
    const TRAINS: &str = "see state=running ranks.joined=3 ranks.expected=3";
    // Copies of rank 1 and of rank 0, a rank of a larger world, and one of a smaller world.
    for (is, world) in [(1, 3), (0, 3), (3, 4), (0, 2)] {
        for gives_up in [false, true] {
            let mut lab = Lab::soon();
            let awaited = u32::from(is == 0);
            // What a rank of a larger world reads first is still there.
            let waits = world != 4;
            let gives_up = gives_up && waits;
            let cancel = if gives_up { "cancel 10" } else { "" };
            lab.play(&format!(
                "rank 0..3 of 3; met 0..3 3; pass 5
                rank 10:{is} of {world} at 10.0.1.#; await 10 {awaited}; pass 8; {TRAINS}
                holds waiting={}; {cancel}; leave 10; pass 8; {TRAINS}; said lost=0 gave_up={}
                leave 2; pass 8; leave 0,1; pass 5; said run_ended=1",
                u8::from(waits),
                u8::from(gives_up),
            ));
        }
    }
}

#[test]
fn who_comes_beside_a_job_leaves_it_as_it_was() {
    stories_with(
        "strangers",
        "soon",
        "
= a rank that dies beside a stranger is told
rank 0..3 of 3; met 0..3 3; pass 5; rank 10:1 of 4 at 10.0.1.#; await 10 0; pass 5; leave 2; pass 8
see ranks.joined=2 ranks.gone=1 ranks.expected=3
= ranks that come while the last ones leave are the next ones
rank 0..3 of 3; met 0..3 3; pass 5
for 0..3: rank 10+%:% of 3 at 10.0.1.#; leave %
pass 5; see state=running ranks.joined=3 ranks.expected=3; said round_complete=2; silent
= a second job that meets and ends leaves the first as it was
rank 0..3 of 3; met 0..3 3; pass 5; rank 10..12:0 of 2 at 10.0.1.#; pass 4; said round_complete=2; leave 10,11
pass 8; see state=running ranks.joined=3 ranks.expected=3; said ranks_ended=0; leave 0..3; pass 5
said run_ended=2
= a job has ended when its ranks have whoever watches its store
rank 0,1 of 2; met 0,1 2; pass 5; worker 10 at 10.0.9.9; pass 5; leave 0,1; pass 3; see state=ended; pass 9
leave 10; pass 5; said run_ended=1
= after a stranger has gone those who agree can meet
rank 10:0 of 2 at 10.0.1.#; pass 1; rank 1,2 of 3; pass 4; said world_sizes_differ=1; leave 10; pass 4
see ranks.expected=3; rank 0 of 3; pass 3; see state=running ranks.joined=3 ranks.expected=3
= a process that tries again is not lost
rank 0,1 of 3; await 0,1 2; pass 4
for 0,1: conn 20+% 2000+% at 10.0.0.%; cancel %; leave %; ping 20+%; add 20+% init/; publish 20+%:% of 3
pass 3; said lost=0; rank 2 of 3; pass 8; see state=running ranks.joined=3 ranks.expected=3; errors 0
= those who gave up on another are told as its victims
rank 0,1 of 3; await 0,1 2; worker 9; pass 8
for 0,1: cancel %; leave %
pass 5; said lost
= a job that ends beside a stranger is told to have ended
rank 0..3 of 3; met 0..3 3; pass 5; rank 10:1 of 4 at 10.0.1.#; await 10 0; pass 5; leave 0..3; pass 5
said run_ended=1; holds waiting; leave 10; pass 5; said run_ended=2
= ranks that make their group for another time never meet
worker 0..3; set 0,1 /default_pg/2//cpu//0/# gloo3; set 2 pg/cpu//0/2 gloo3
wait 0 /default_pg/2//cpu//0/2; wait 2 pg/cpu//0/0; pass 8; said round_complete=0; see state=joining
holds waiting
= a second job beside one that gathers is another
rank 0..3 of 4; await 0..3 3; pass 2; rank 10..12:0 of 2 at 10.0.1.#; pass 6
see state=running ranks.joined=2 ranks.expected=2; said waiting; leave 10,11; pass 8; said lost=0
rank 3 of 4; await 3 0; pass 8; said round_complete=1
= a job that ends beside a second one is told to have ended
rank 0..3 of 3; met 0..3 3; pass 5; rank 10..12:0 of 2 at 10.0.1.#; pass 5; leave 0..3; pass 8
see state=running ranks.joined=2 ranks.expected=2; said ranks_ended=0 run_ended=1; leave 10,11; pass 5
said run_ended=2
= a death is told of its own job
rank 0,1 of 2; met 0,1 2; pass 10; rank 10..13:0 of 3 at 10.0.1.#; leave 0; pass 8; said ranks_ended
= who comes in the place of one that ended well keeps nobody waiting
rank 0..3 of 3; met 0..3 3; pass 15; leave 2; pass 4; rank 10:2 of 3 at 10.0.1.#; await 10 0; pass 5; leave 10
pass 5; see state=running ranks.joined=2 ranks.expected=3; said lost; leave 0,1; pass 5; said run_ended=1
= a rank that ends again and again is told as such
rank 0 of 3
for 1..4: rank %:1 of 3; pass 1; leave %; pass 4
said lost
= the time until all have come is that of those who met
rank 10:0,11:1 of 3 at 10.0.1.#; pass 9; leave 10,11; rank 0..3 of 3; pass 4; said round_complete
= where two processes claim one rank the missing one may be one of them
for 0..3: rank %:0 of 3 at 10.0.0.^; await % 1
pass 8; holds waiting; said duplicate_rank
= the end of a rank of another world size is told though one before it ended
rank 1,2 of 4; await 1,2 0; pass 5; leave 2; pass 5; rank 5:2 of 3; pass 0.5; leave 5; pass 5; said lost=2
= jobs of one rank on one store claim nothing from each other
for 0..3: rank %:0 of 1; pass 2
pass 8; silent
",
    );
}

#[test]
fn who_comes_beside_agents_is_a_job_of_its_own() {
    stories_with(
        "strangers",
        "soon",
        "
= a copy of a static node leaves the job as it was
static 0,1 of 2; assign 0 2x1; pass 6; static 10:1 of 2; pass 6; said duplicate_rank
see state=running nodes.joined=2 round=0; leave 10; pass 6; said lost=0
see state=running nodes.joined=2 round=0; sexit 1; sexit 0 last; pass 3; said run_finished=1
= a static node that dies beside its copy is told
static 0,1 of 2; assign 0 2x1; pass 6; static 10:1 of 2; pass 6; leave 1; pass 4; leave 10; pass 4
said lost=1
= a copy that waits for a static node that died is told that it ended
static 0,1 of 2; assign 0 2x1; pass 6; static 10:1 of 2; pass 6; del 0 static/role_info/0
wait 10 static/role_info/0; pass 6; holds waiting; leave 0; pass 6; holds waiting
= ranks that come from where no agent is are a job of their own
run 2; rank 10:0 of 2 at 10.0.0.1; rank 11:1 of 2 at 10.0.0.2; met 10,11 2; pass 3
see@store:29500 state=running ranks.joined=2 ranks.gone=0 ranks.expected=2; leave 11; pass 15
said ranks_ended=1; silent
see@job state=running; pass 20; said workers_elsewhere=1; leave 1; pass 5
see@store:29500 state=running ranks.joined=1 ranks.gone=1 ranks.expected=2
= ranks that come before a round is complete are a job of their own
join 0; rank 10:0 of 2 at 10.77.0.10; pass 2; joins 1 join complete; exchange 0 2 1
rank 11:1 of 2 at 10.77.0.11; pass 3; see@store:29500 ranks.joined=2; silent
= ranks beside a static run are a job of their own too
static 0,1 of 3; rank 10:0 of 2 at 10.77.0.10; rank 11:1 of 2 at 10.0.0.2; met 10,11 2; pass 3
see@store:29500 ranks.joined=2; see@job ranks=null; leave 10,11; pass 5; said lost=0
= ranks beside a static run are a job of their own too (2)
static 0..3 of 3; assign 0 3x1; rank 10:0 of 2 at 10.0.0.1; rank 11:1 of 2 at 10.0.0.2; met 10,11 2; pass 3
see@store:29500 ranks.joined=2; see@job ranks=null; leave 10,11; pass 5; silent
= ranks beside an agent are its workers whatever addresses the host has
agent 0 at 127.0.0.1; cas 0 join complete; exchange 0 1 2; rank 10..12:0 of 2 at 10.0.0.1
met 10,11 2; pass 3; see ranks.joined=2; pass 40; said workers_elsewhere=0
= ranks beside an agent are its workers whatever addresses the host has (2)
agent 0 at 10.0.0.1; cas 0 join complete; exchange 0 1 2; rank 10..12:0 of 2 at 127.0.0.1
met 10,11 2; pass 3; see ranks.joined=2; pass 40; said workers_elsewhere=0
= ranks beside an agent are its workers whatever addresses the host has (3)
agent 0 at fd00::1; cas 0 join complete; exchange 0 1 2; rank 10..12:0 of 2 at 10.0.0.1
met 10,11 2; pass 3; see ranks.joined=2; pass 40; said workers_elsewhere=0
",
    );
}

/// Who tells no rank, gives up and leaves, again and again, leaves nothing behind.
#[test]
fn who_gave_up_is_forgotten_when_it_has_left() {
    let mut lab = Lab::soon();
    lab.play("rank 0,1 of 2; met 0,1 2; pass 5");
    lab.play("for 10..20: worker % at 10.0.9.9; await % 7; pass 1.5; cancel %; leave %");
    lab.pass(5.0);
    let runs = &lab.insight.jobs.runs;
    assert!(runs.values().all(|run| run.life.gave_up.is_empty()), "{:?}", lab.said);
}
