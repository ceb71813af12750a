//! Rule 4 and resets by hand: the whole store is emptied.

use super::World;
use super::stale_idle::{STATE, agent, finish, state, with, world};
use crate::{Cleanup, DropCause};

/// A key of a job that no rule but the fourth drops within half a minute.
const ROUND: &str = "/torch.rendezvous.job.0/MASTER_ADDR";

#[test]
fn a_store_is_emptied_half_a_minute_after_its_job_has_gone() {
    let world = World::new();
    let [job, other] = world.clients();
    job.set(ROUND, "1");
    other.set("/done_3", "1");
    other.leave();
    world.pass(1000);
    job.leave();
    world.pass(29);
    assert_eq!(world.keys(), ["/done_3", ROUND]);
    world.cleanups();
    world.pass(1);
    assert_eq!(world.keys(), Vec::<String>::new());
    assert_eq!(world.cleanups(), [Cleanup::StoreReset { cause: DropCause::StoreIdle, keys: 2 }]);
    let next = world.client();
    next.set("/done_3", "2");
    next.leave();
    world.pass(1000);
    assert!(world.has("/done_3"), "once a job");
}

#[test]
fn a_plain_client_that_stays_keeps_its_keys_and_its_queue() {
    let world = World::new();
    let [job, plain] = world.clients();
    plain.set("/config", "1");
    plain.push("/queue", "a");
    plain.push("/queue", "b");
    job.set(ROUND, "1");
    job.leave();
    world.pass(1000);
    assert_eq!(world.keys(), ["/config"], "only the job's own are gone");
    assert_eq!(plain.get("/config"), "1");
    assert_eq!(plain.pop("/queue").as_deref(), Some("a"));
    plain.push("/queue", "c");
    plain.leave();
    world.pass(1000);
    assert!(world.has("/config"), "it was used after the job had gone");
}

#[test]
fn what_nobody_uses_any_more_goes_with_the_last_who_was_there() {
    let world = World::new();
    let [job, idle, next] = world.clients();
    job.set(ROUND, "1");
    job.set("/done_3", "1");
    job.leave();
    world.pass(1000);
    idle.leave();
    assert!(world.has("/done_3"));
    next.ping(1);
    next.leave();
    world.assert_empty();
}

#[test]
fn a_store_for_one_job_is_empty_when_the_last_has_left() {
    let world = with(|config| config.one_job = true);
    for _ in 0..2 {
        let [a, b] = world.clients();
        assert!(!world.has("/broadcast_from/0/0"));
        a.set("/broadcast_from/0/0", "x");
        a.push("/queue", "x");
        a.leave();
        world.pass(1000);
        assert_eq!(b.wait_and_get("/broadcast_from/0/0"), "x", "b is still there");
        world.cleanups();
        b.leave();
        assert_eq!(world.cleanups(), [Cleanup::StoreReset { cause: DropCause::OneJob, keys: 2 }]);
        world.assert_empty();
    }
}

#[test]
fn keys_that_stay_when_the_last_has_left_are_told() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set("/job/mine", "x");
    a.leave();
    assert_eq!(world.cleanups(), []);
    b.leave();
    assert_eq!(world.cleanups(), [Cleanup::KeysStay { keys: 1, example: b"/job/mine".as_slice().into() }]);
    world.client().leave();
    assert_eq!(world.cleanups(), [], "told once");
}

#[test]
fn each_sign_of_a_job_counts_as_one() {
    for key in ["init/", STATE, "/none/torchelastic/x", "/default_pg/0//x", "//worker/attempt_0/default_pg/0"]
    {
        let world = World::new();
        let job = world.client();
        job.set(key, "1");
        job.leave();
        assert!(world.inner().store.next_deadline().is_some(), "{key}");
        world.pass(60);
        world.assert_empty();
    }
}

#[test]
fn a_store_that_no_job_used_is_never_emptied() {
    let world = World::new();
    let a = world.client();
    a.set("/done_3", "1");
    a.ping(1);
    a.leave();
    world.client().leave();
    assert_eq!(world.inner().store.next_deadline(), None);
    world.pass(100_000);
    assert!(world.has("/done_3"));
}

#[test]
fn a_probe_neither_starts_nor_stops_the_clock() {
    let world = World::new();
    let job = world.client();
    job.set(ROUND, "1");
    job.leave();
    world.pass(20);
    let probe = world.client();
    probe.ping(1);
    probe.check(&[ROUND]);
    world.pass(5);
    probe.leave();
    world.pass(5);
    assert!(!world.has(ROUND));
}

#[test]
fn a_job_that_comes_back_stops_the_clock() {
    let world = World::new();
    let job = world.client();
    job.set(ROUND, "1");
    job.leave();
    world.pass(29);
    let back = world.client();
    back.get(ROUND);
    world.pass(1000);
    assert!(world.has(ROUND));
    back.leave();
    world.pass(29);
    assert!(world.has(ROUND));
    world.pass(1);
    assert!(!world.has(ROUND));
}

#[test]
fn a_store_is_not_emptied_where_that_is_switched_off() {
    let world = world();
    let job = world.client();
    job.set("/done_3", "1");
    job.add("init/", 1);
    job.leave();
    world.pass(100_000);
    assert!(world.has("/done_3"));
}

#[test]
fn an_operator_empties_a_store_and_leaves_its_connections_waiting() {
    let world = World::new();
    let [a, b, c, d] = world.clients();
    a.set("/k", "1");
    a.push("/q", "1");
    a.set(STATE, state("closed after success"));
    b.wait(&["/k", "/missing"]);
    c.barrier("/b", 2);
    d.wait(&["/q", "/missing"]);
    world.reset();
    assert_eq!(world.cleanups(), [Cleanup::StoreReset { cause: DropCause::Operator, keys: 4 }]);
    assert_eq!(world.keys(), Vec::<String>::new());
    assert!(b.is_waiting() && c.is_waiting() && d.is_waiting());
    a.set("/missing", "1");
    assert!(!b.is_woken() && !d.is_woken());
    a.set("/k", "2");
    a.push("/q", "2");
    assert!(b.is_woken() && d.is_woken());
    assert!(!a.barrier("/b", 2), "the arrival before the reset is not counted");
    assert!(world.client().barrier("/b", 2));
    assert!(c.is_woken() && a.is_woken());
}

#[test]
fn after_a_reset_a_run_that_was_closed_is_like_new() {
    let world = world();
    finish(&world);
    let refused = agent(&world);
    world.pass(2);
    world.reset();
    let job = agent(&world);
    world.pass(1000);
    assert!(world.has(STATE), "the time set for the closed run is off");
    refused.leave();
    job.leave();
    world.pass(59);
    assert!(world.has(STATE));
    world.pass(1);
    world.assert_empty();
}

#[test]
fn after_a_reset_gone_workers_are_not_subtracted_again() {
    let world = World::new();
    let [agent, worker, gone] = world.clients();
    agent.set(STATE, "x");
    gone.add("init/", 1);
    gone.set("/default_pg/0//x", "1");
    worker.add("init/", 1);
    worker.set("/default_pg/0//x", "1");
    gone.leave();
    world.reset();
    agent.add("init/", 5);
    worker.leave();
    assert_eq!(world.value("init/").as_deref(), Some("5"));
}
