//! The server dies and the next one goes on with its journal: insight shows the same, also since when, and
//! says nothing of it.

use super::lab::Lab;
use super::replay::replay;
use super::stories::{Stage as _, stories};
use rallypoint_api::{Run, RunState};
use serde_json::Value;

/// Takes these fields out, wherever they are, and puts what is left in order.
fn take_out(shown: &mut Value, fields: &str) {
    if let Value::Object(all) = shown {
        all.retain(|field, _| !fields.split(' ').any(|it| it == field));
        all.values_mut().for_each(|value| take_out(value, fields));
    } else if let Value::Array(all) = shown {
        for value in &mut *all {
            take_out(value, fields);
        }
        all.sort_by_key(ToString::to_string);
    }
}

/// What people see of a run, apart from the times of its nodes and waits, and what was said before.
fn seen(run: &Run) -> Value {
    const TIMES: &str = "now version after_seconds gone_at joined_at last_heartbeat waited_seconds";
    let mut shown = serde_json::to_value(run).expect("JSON");
    // Who is at the exit barrier is seen by its waits, after a second.
    let since = if run.summary.state == RunState::Exiting { "state_since" } else { "" };
    take_out(&mut shown, &format!("{TIMES} explanation explanations notes reason {since}"));
    shown
}

/// Kills the server, and compares what it shows then with what it showed before.
#[track_caller]
fn assert_same_after(lab: &mut Lab, run: &str, away: f64) {
    // Waits are shown after a second.
    lab.pass(2.5);
    let before = seen(&lab.run(run));
    let complaints = lab.complaints().len();
    lab.restart(away, &[]);
    lab.pass(2.5);
    assert_eq!(seen(&lab.run(run)), before);
    assert_eq!(lab.complaints()[complaints..], [""; 0]);
}

/// Plays these lines one after the other, and kills the server after each.
#[track_caller]
fn assert_same_after_each(run: &str, away: f64, lines: &[&str]) {
    let mut lab = Lab::new();
    lab.scene.is_free();
    for line in lines {
        lab.play(line);
        assert_same_after(&mut lab, run, away);
    }
    lab.pass(5.0);
    assert_eq!(lab.complaints(), [""; 0]);
}

#[test]
fn a_run_is_the_same_after_a_restart_in_each_phase() {
    for away in [0.01, 60.0, 3600.0] {
        let c10d = [
            "agent 0; pass 0.2; cas 0 join; agent 1; pass 0.2; cas 1 join",
            "joins 2 join complete",
            "exchange 0 3 1; pass 0.3",
            "see state=running; cas 0..3",
            "exit 1",
            "see state=exiting; exit 2; exit 0 last",
            "see state=finished",
        ];
        assert_same_after_each("job", away, &c10d);
    }
    let fixed = [
        "static 0,2 of 3",
        "static 1 of 3; assign 0 3x2",
        "sexit 1",
        "sexit 2; sexit 0 last",
        "see state=finished",
    ];
    assert_same_after_each("job", 60.0, &fixed);
    let ranks =
        ["for 0..12: worker % at 10.0.0.1^\nfor 0..11: publish % of 12; await % 11", "publish 11 of 12"];
    assert_same_after_each("store:29500", 60.0, &ranks);
    let workers =
        ["run 2; rank 10..12:0 of 2 at 10.77.0.^; wait 11 pg/store_based_barrier_key:1:last_worker"];
    assert_same_after_each("job", 60.0, &workers);
}

#[test]
fn ranks_beside_agents_are_a_job_of_their_own_after_a_restart_too() {
    // Whether a static run gathers there as well, and whether the ranks come before the c10d run is complete:
    // at an agent's address they can be told from its workers by the time only.
    let early = "rank 10:0 of 3 at 10.77.0.10; rank 11:1 of 3 at 10.0.0.2; await 10,11 2";
    let late = "rank 10:0 of 3 at 10.0.0.1; rank 11:1 of 3 at 10.0.0.2; await 10,11 2";
    for (play, ranks) in [("join 0; static@fixed 5:0 of 3", early), ("join 0", early), ("run 2", late)] {
        let mut lab = Lab::new();
        lab.scene.is_free();
        lab.play(play);
        lab.play(ranks);
        for run in ["job", "store:29500", "fixed"] {
            if run != "fixed" || play.contains("fixed") {
                assert_same_after(&mut lab, run, 60.0);
            }
        }
        lab.play("see@store:29500 ranks.joined=2");
    }
}

#[test]
fn who_stays_or_goes_with_the_server_is_told_as_that() {
    stories(
        "restarts",
        "
= a node that went with the server is missing by its name
run 3; pass 5; restart 1 2; pass 2; see nodes.joined=2 nodes.missing=1 missing.name=node2 missing.rank=2
see missing.presence=not_back missing.last_seen=6.9; silent; pass 13; cas 1; cas 0 drop:2; pass 2
see nodes.joined=2 nodes.missing=1 missing.name=node2 missing.rank=2 missing.presence=not_back
see missing.last_seen=6.9; exit 0; pass 40
= ranks of a static run that ended with the server are not said to have never come
static 0..3 of 3; assign 0 3x1; pass 5; restart 1 0..3; pass 1; rank 10..12:0 of 3 at 10.0.0.1; await 10,11 2
pass 32; static 20:0 of 3; pass 40; see missing.presence=not_back,not_back
= who was in the run before this one is not said to have never come
static 0..2 of 2; assign 0 2x1; pass 5; sexit 0; sexit 1 last; pass 0.5; leave 0,1; pass 10; static 20:0 of 2
pass 40; see missing.presence=not_again
= how long ranks have waited is known since the restart, and since when they gather from before [soon free]
rank 0,1 of 3 at 10.77.0.#; await 0,1 2; pass 12; restart 1; pass 8; says (or longer: the server was restarted
cancel 1; pass 5; says after 8 s or longer
pass 25; rank 5:2 of 3 at 10.77.0.2; pass 1; says addresses in 51 s
= since when nodes gather is known from before a restart [soon free]
join 0,1; expect 3..3; pass 12; restart 1; expect 3..3; pass 6; says the first 16 s ago
= who dies after a restart is named as ever
run 3; restart 60; pass 5; cas 0..3; leave 1; pass 5; said lost=1
= nobody is said to have died whose connection ended with the server
run 3; restart 60 0..3; pass 29; see state=gone; said run_ended=0 lost=0; pass 60; said lost=0; agent 3,4
pass 1; see state=joining
= nobody is said to have filled a round of before
joins 0 join deadline; pass 2; cas 0 complete; pass 1; restart 1; joins 1 wait; pass 2; said nnodes_differ=0
= nobody is said to run still who went with the server
run 3; exit 0; pass 2; restart 1 2; pass 60; said exit_barrier
= who finished before a restart does not die in the next job
static 0..3 of 3; assign 0 3x1; pass 5; sexit 0; pass 2; sexit 1; sexit 2 last; pass 0.2; static 11:1 of 3
pass 0.2; leave 0..3; pass 5; said lost=0; static 12:2 of 3; leave 11; pass 5; said lost=1
= who finished before a restart does not die in the next job (2)
static 0..3 of 3; assign 0 3x1; pass 5; sexit 0; pass 2; restart 1; sexit 1; sexit 2 last; pass 0.2
static 11:1 of 3; pass 0.2; leave 0..3; pass 5; said lost=0; static 12:2 of 3; leave 11; pass 5; said lost=1
= who finished before a restart does not die in the next attempt
static 0..3 of 3; assign 0 3x1; pass 5; sexit 0; pass 2; leave 1; static 11:1 of 3; pass 3; leave 0; pass 5
said lost=1
= who finished before a restart does not die in the next attempt (2)
static 0..3 of 3; assign 0 3x1; pass 5; sexit 0; pass 2; restart 1; leave 1; static 11:1 of 3; pass 3; leave 0
pass 5; said lost=1
= heartbeats of before a restart tell nothing of clocks
join 0,1; pass 6; restart 1 0,1; pass 12; agent 7 at 10.77.0.17; cas 7 drop:0 drop:1 join; pass 2; said lost=1
nowhere clocks differ
= who went with the server before all had joined is gone
join 0,1; expect 3..3; restart 1 1; expect 3..3; pass 40; agent 4; pass 1
see missing.presence=not_back missing.name=node1
= who is in the state again is not missing by what was known of it before
run 3; agent 7 at 10.77.0.11; cas 7 wait; come 8 1007 at 10.77.0.18; first 8; cas 8 wait; pass 2; leave 1
cas 7 drop:1 leave; cas 7 wait; pass 2; cas 7 next join; pass 60; see missing.name=node1,node2
= who is in the state again is not missing by what was known of it before (2)
run 3; agent 7 at 10.77.0.11; cas 7 wait; come 8 1007 at 10.77.0.18; first 8; cas 8 wait; pass 2; restart 1 1
cas 7 drop:1 leave; cas 7 wait; pass 2; cas 7 next join; pass 60; see missing.name=node1,node0,node2
= a node that has left is not taken for one that stays
join 0,1; pass 2; cas 0 leave; restart 1; pass 2; leave 0; pass 5; said lost=0
= how many nodes a round of before had is not known
run 3; cas 0 leave; restart 1; cas 1 next join; cas 2 join; pass 60; said nnodes_differ=0 nodes_missing
= who gathered with the last server is not said to have never come
rank 0 of 3 at 10.77.0.0; await 0 1; pass 5; restart 1 0; pass 1; rank 1 of 3 at 10.77.0.1; await 1 0; pass 40
see explanation.facts.missing.presence.is=not_back,not_back
= ranks whose addresses went with the last server are not back until they come
rank 0,1 of 3 at 10.77.0.#; await 0,1 2; pass 3; leave 1; pass 2; restart 1 0; pass 29; said not_back=0
runs 0; pass 3; holds not_back=1; rank 5:0 of 3 at 10.77.0.0; pass 3; holds not_back=0
= who has not come since the restart may go on from before
rank 0,1 of 2 at 10.77.0.#; pass 5; restart 1 0,1; pass 60; rank 5:1 of 2 at 10.77.0.1; await 5 0; pass 40
said waiting
",
    );
}

#[test]
fn a_recorded_job_has_the_same_story_wherever_the_server_is_killed() {
    for name in
        ["run1_c10d_4x2", "run4_plugin_workers_external", "run4_static_standalone_4x", "run4_env_standalone"]
    {
        let whole = replay(name, Lab::new(), 5.0);
        for kill in 1..40 {
            let mut lab = Lab::new();
            lab.restarts = vec![f64::from(kill)];
            lab.scene.is_free();
            let lab = replay(name, lab, 5.0);
            assert_eq!(lab.complaints(), whole.complaints(), "{name}, killed at {kill} s");
            // Nothing is said twice, and nothing else. What was not said when the server died may stay
            // unsaid.
            let story = |lab: &Lab| lab.said.iter().map(|(_, said)| said.code.clone()).collect::<Vec<_>>();
            let mut left = story(&whole).into_iter();
            let is_part = story(&lab).iter().all(|code| left.any(|other| other == *code));
            assert!(is_part, "{name}, killed at {kill} s: {:?}, not {:?}", story(&lab), story(&whole));
        }
    }
}
