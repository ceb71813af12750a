//! The healthy twins of the faults, of which nothing may be said above info.

use super::super::lab::Lab;
use super::{ranks, static_run, workers};
use rallypoint_api::{RunKind, Severity};

/// A healthy run with its name.
type Twin = (&'static str, fn(&mut Lab));

/// What may be said of a healthy run.
fn assert_healthy(name: &str, lab: &mut Lab) {
    lab.pass(60.0);
    let alarms: Vec<_> = lab
        .said
        .iter()
        .filter(|(_, said)| said.severity > Severity::Info)
        .map(|(_, said)| &said.text)
        .collect();
    assert!(alarms.is_empty(), "{name}: {alarms:?}");
}

#[test]
fn healthy_twins_are_silent() {
    let twins: &[Twin] = &[
        ("env: all come, train and end one by one", |lab| {
            ranks(lab, &[0, 1, 2, 3], 4);
            lab.pass(60.0);
            for n in 0..4 {
                lab.leave(n);
                lab.pass(0.5);
            }
        }),
        ("env: one run after the other", |lab| {
            for job in 0..3 {
                (0..3).for_each(|rank| lab.rank(10 * job + rank, "10.0.0.1", rank, 3));
                lab.pass(5.0);
                (0..3).for_each(|rank| lab.leave(10 * job + rank));
                lab.pass(0.4);
            }
        }),
        ("static: runs of one id follow each other", |lab| {
            for _ in 0..3 {
                static_run(lab, "none", 2);
                workers(lab, 0..4, 4);
                lab.pass(20.0);
                (100..104).for_each(|n| lab.leave(n));
                lab.exit_static(0, "none", false);
                lab.exit_static(1, "none", true);
                lab.leave_all([0, 1]);
                lab.pass(15.0);
            }
        }),
        ("c10d: a node leaves by itself before the round is complete", |lab| {
            lab.join("job", 0..3);
            lab.cas(2, "job", "leave");
            lab.pass(0.5);
            lab.cas(2, "job", "join complete");
            lab.exchange("job", 0, 3, 1);
        }),
        ("a client that is of no job waits for a key of its own", |lab| {
            lab.come(0, "10.0.0.9", 44);
            lab.wait(0, &["mine"]);
        }),
        ("a static job follows a c10d job with the same id", |lab| {
            lab.complete_run("none", 2);
            lab.pass(10.0);
            lab.reach_exit(0, "none", false);
            lab.reach_exit(1, "none", true);
            (0..2).for_each(|n| lab.leave(n));
            lab.pass(3.0);
            static_run(lab, "none", 2);
            lab.pass(20.0);
            assert_eq!(lab.run("none").summary.kind, RunKind::Static);
            lab.exit_static(0, "none", false);
            lab.exit_static(1, "none", true);
            (0..2).for_each(|n| lab.leave(n));
        }),
        ("env: a program polls for a key of its own", |lab| {
            ranks(lab, &[0, 1], 2);
            for _ in 0..30 {
                lab.wait(0, &["checkpoint/next"]);
                lab.pass(1.5);
                lab.cancel(0);
            }
        }),
    ];
    for (name, play) in twins {
        let mut lab = Lab::soon();
        lab.scene.is_row("twins", name);
        play(&mut lab);
        assert_healthy(name, &mut lab);
    }
}
