//! Rule 2: what an attempt leaves behind goes with its last worker, and so do keys that match no pattern.

use super::{Client, World};
use crate::DropCause;

const LEFTOVERS: [&str; 6] = [
    "/default_pg/store_based_barrier_key:1",
    "/default_pg/0//store_based_barrier_key:2:last_worker",
    "/default_pg/0//exception_dump",
    "/default_pg/0//cuda//remote_error/3",
    "/default_pg/0//cuda//remote_error:0",
    "/default_pg/0//cuda//NCCL_0_trace_start",
];

fn agent(world: &World) -> Client {
    let agent = world.client();
    agent.add("init/", 1);
    agent.get("/none/torchelastic/agent/x");
    agent.set("/none/torchelastic/other", "1");
    agent
}

fn worker(world: &World) -> Client {
    let worker = world.client();
    worker.add("init/", 1);
    worker.set("/default_pg/0//worker", "1");
    worker
}

#[test]
fn the_next_attempt_finds_the_counter_and_the_leftovers_as_the_first_did() {
    let world = World::new();
    let agents = [agent(&world), agent(&world)];
    for _ in 0..3 {
        assert_eq!(world.value("init/").as_deref(), Some("2"), "the agents");
        let workers = [worker(&world), worker(&world)];
        assert_eq!(world.value("init/").as_deref(), Some("4"));
        for key in LEFTOVERS {
            workers[0].set(key, "1");
        }
        let [a, b] = workers;
        a.leave();
        assert_eq!(world.value("init/").as_deref(), Some("4"), "one worker is still there");
        assert!(LEFTOVERS.iter().all(|key| world.has(key)));
        b.leave();
        assert!(!LEFTOVERS.iter().any(|key| world.has(key)));
        assert_eq!(world.dropped(), [(DropCause::AttemptOver, LEFTOVERS.len()), (DropCause::UnknownKey, 1)]);
    }
    assert_eq!(world.keys(), ["/none/torchelastic/other", "init/"]);
    agents.into_iter().for_each(Client::leave);
}

#[test]
fn without_agents_leftovers_go_with_the_last_of_the_job() {
    let world = World::new();
    let [first, last] = [worker(&world), worker(&world)];
    let announced = world.client();
    announced.add("init/", 1);
    first.set(LEFTOVERS[0], "1");
    first.set("/done_3", "1");
    first.leave();
    last.leave();
    assert!(world.has(LEFTOVERS[0]), "who has only announced itself may need it");
    announced.leave();
    assert_eq!(world.keys(), ["/done_3"], "a program's own key");
}

/// A PyTorch that is newer than the table of patterns: its keys must not reach the next attempt or the next
/// job.
#[test]
fn keys_that_no_row_knows_go_with_the_last_worker() {
    for with_agent in [true, false] {
        let world = World::new();
        let agent = with_agent.then(|| agent(&world));
        let [early, late] = world.clients();
        early.set("/default_pg/0//xpu//0", "id");
        early.set("/default_pg/0//news/1", "x");
        late.add("init/", 1);
        early.leave();
        assert_eq!(
            late.wait_and_get("/default_pg/0//xpu//0"),
            "id",
            "it has come, and may need what others wrote"
        );
        late.leave();
        assert!(!world.has("/default_pg/0//xpu//0") && !world.has("/default_pg/0//news/1"));
        assert_eq!(world.dropped(), [(DropCause::UnknownKey, 2)]);
        drop(agent);
    }
}

#[test]
fn agents_that_leave_take_nothing_out_of_the_counter() {
    let world = World::new();
    let [first, second] = [agent(&world), agent(&world)];
    first.leave();
    assert_eq!(world.value("init/").as_deref(), Some("2"));
    let worker = worker(&world);
    worker.leave();
    assert_eq!(world.value("init/").as_deref(), Some("2"), "the worker's own share goes");
    second.leave();
}

#[test]
fn workers_of_the_next_attempt_that_are_there_already_stay_counted() {
    let world = World::new();
    let _agent = agent(&world);
    let old = worker(&world);
    let early = world.client();
    early.add("init/", 1);
    old.leave();
    assert_eq!(world.value("init/").as_deref(), Some("2"), "the agent and the early worker");
    early.set("/default_pg/0//worker", "1");
    early.leave();
    assert_eq!(world.value("init/").as_deref(), Some("1"));
}

#[test]
fn the_share_of_workers_that_left_before_an_agent_came_is_gone() {
    let world = World::new();
    worker(&world).leave();
    let agent = agent(&world);
    assert_eq!(world.value("init/").as_deref(), Some("1"), "the worker's has gone with it");
    worker(&world).leave();
    assert_eq!(world.value("init/").as_deref(), Some("1"));
    agent.leave();
}

#[test]
fn an_agent_that_uses_a_process_group_is_still_an_agent() {
    let world = World::new();
    let agent = agent(&world);
    let probe = agent.world.client();
    probe.set(LEFTOVERS[0], "1");
    probe.get("/none/torchelastic/other");
    probe.leave();
    assert!(world.has(LEFTOVERS[0]), "it was no worker that left");
    agent.set("/default_pg/0//worker", "1");
    let worker = worker(&world);
    worker.leave();
    assert!(!world.has(LEFTOVERS[0]));
}

#[test]
fn a_leftover_that_somebody_waits_for_goes_after_each_attempt() {
    let world = World::new();
    let agent = agent(&world);
    agent.wait(&[LEFTOVERS[0], "/never"]);
    for attempt in 0..3 {
        let worker = worker(&world);
        worker.set(LEFTOVERS[0], "1");
        worker.leave();
        assert!(!world.has(LEFTOVERS[0]), "attempt {attempt}");
    }
    assert!(agent.is_waiting());
}

#[test]
fn a_counter_that_becomes_zero_is_gone() {
    let world = World::new();
    let agent = world.client();
    agent.set("/none/torchelastic/other", "1");
    worker(&world).leave();
    assert!(!world.has("init/"));
    assert!(!agent.wait(&["init/"]));
    let next = worker(&world);
    assert!(agent.is_woken());
    next.leave();
}

#[test]
fn a_counter_that_is_no_counter_is_left_alone() {
    let world = World::new();
    let _agent = agent(&world);
    let worker = worker(&world);
    worker.set("init/", "abc");
    worker.leave();
    assert_eq!(world.value("init/").as_deref(), Some("abc"));
}
