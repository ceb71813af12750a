//! Rule 3: a run is forgotten some time after its last connection has closed.

use super::{Client, World};
use crate::{Cleanup, DropCause, Observed, StaleKeyConfig};
use rallypoint_protocol::ids::RunId;

pub(super) const STATE: &str = "/torch.rendezvous.job";
const EXIT: &str = "/torch.rendezvous.job.0/torchelastic/agent/terminal_state";
const STATIC_EXIT: &str = "/none/torchelastic/agent/terminal_state";

/// A state that PyTorch 2.15 wrote.
pub(super) fn state(stage: &str) -> String {
    let samples = include_str!("../../../../tests/data/samples/rdzv_states.json");
    let samples: Vec<serde_json::Value> = serde_json::from_str(samples).expect("the sample file is JSON");
    let sample = samples.iter().find(|sample| sample["stage"] == stage).expect("the sample is there");
    sample["value_base64"].as_str().expect("it has a value").to_owned()
}

pub(super) fn with(change: impl FnOnce(&mut StaleKeyConfig)) -> World {
    let mut config = StaleKeyConfig { reset_when_idle: None, ..StaleKeyConfig::default() };
    change(&mut config);
    World::with(World::CAPACITY, config)
}

/// A world without rule 4, which would empty the store before most of rule 3's times.
pub(super) fn world() -> World {
    with(|_| ())
}

/// A c10d agent that has joined.
pub(super) fn agent(world: &World) -> Client {
    let agent = world.client();
    agent.compare_set(STATE, "", "Y2FuaW1hZGFt");
    agent.wait_and_get(STATE);
    agent
}

fn pass_exit_barrier(agents: &[&Client], exit: &str) {
    for agent in agents {
        agent.add(format!("{exit}/num_members"), 1);
    }
    agents[0].set(format!("{exit}/last_member"), "1");
}

pub(super) fn finish(world: &World) {
    let [a, b] = [agent(world), agent(world)];
    pass_exit_barrier(&[&a, &b], EXIT);
    a.set(STATE, state("closed after success"));
    a.leave();
    b.leave();
}

fn restarts(world: &World) -> Vec<RunId> {
    let restarted = world.observed().into_iter().filter_map(|observed| match observed {
        Observed::RunRestarted { run_id } => Some(run_id),
        _ => None,
    });
    let restarted: Vec<_> = restarted.collect();
    let counted = world.cleanups().into_iter().filter(|cleanup| *cleanup == Cleanup::RunRestarted).count();
    assert_eq!(restarted.len(), counted, "what is explained is also counted");
    restarted
}

#[test]
fn a_run_is_forgotten_a_minute_after_its_last_connection() {
    let world = world();
    let [a, b] = [agent(&world), agent(&world)];
    a.set("/torch.rendezvous.job.0/MASTER_ADDR", "node0");
    a.set("/done_3", "1");
    world.pass(1000);
    a.leave();
    world.pass(1000);
    assert!(world.has(STATE), "b is still there");
    b.leave();
    world.pass(59);
    assert!(world.has(STATE));
    world.pass(1);
    assert_eq!(world.keys(), ["/done_3"]);
    assert_eq!(world.dropped(), [(DropCause::RunIdle, 2)]);
}

#[test]
fn who_comes_back_in_time_finds_the_run_as_it_was() {
    let world = world();
    agent(&world).leave();
    world.pass(59);
    let back = agent(&world);
    world.pass(1000);
    assert!(world.has(STATE));
    back.leave();
    world.pass(59);
    assert!(world.has(STATE), "the minute begins anew");
    world.pass(1);
    assert!(!world.has(STATE));
    assert_eq!(restarts(&world), [], "it had not finished");
}

#[test]
fn a_run_is_not_forgotten_where_that_is_switched_off() {
    let world = with(|config| config.forget_run_after = None);
    agent(&world).leave();
    assert_eq!(world.inner().store.next_deadline(), None);
    world.pass(100_000);
    assert!(world.has(STATE));
}

#[test]
fn runs_are_forgotten_each_at_its_time() {
    let world = world();
    let [a, b] = world.clients();
    a.set("/torch.rendezvous.a", "x");
    b.set("/torch.rendezvous.b", "x");
    a.leave();
    world.pass(30);
    b.leave();
    world.pass(30);
    assert_eq!(world.keys(), ["/torch.rendezvous.b"]);
    world.pass(30);
    world.assert_empty();
}

#[test]
fn a_closed_run_is_forgotten_after_ten_seconds() {
    let world = world();
    let a = agent(&world);
    a.set(STATE, state("never completed, closed by the node that timed out first"));
    world.pass(1000);
    a.leave();
    world.pass(9);
    assert!(world.has(STATE));
    world.pass(1);
    assert_eq!(world.dropped(), [(DropCause::RunOver, 1)]);
    agent(&world);
    assert_eq!(restarts(&world), [], "closed, but not finished");
}

#[test]
fn an_open_state_or_one_that_cannot_be_read_is_not_closed() {
    for value in [state("round complete, ranks assigned"), "no state".to_owned()] {
        let world = world();
        let a = agent(&world);
        a.set(STATE, value);
        a.leave();
        world.pass(59);
        assert!(world.has(STATE));
        world.pass(1);
        assert!(!world.has(STATE));
    }
}

#[test]
fn newcomers_that_a_closed_run_refuses_do_not_prolong_it() {
    let world = world();
    finish(&world);
    for _ in 0..3 {
        world.pass(3);
        let refused = agent(&world);
        assert_eq!(refused.get(STATE), state("closed after success"));
        refused.leave();
    }
    world.pass(1);
    assert!(!world.has(STATE));
}

#[test]
fn a_newcomer_that_hangs_on_a_closed_run_does_not_keep_it() {
    let world = world();
    finish(&world);
    world.pass(5);
    let refused = agent(&world);
    world.pass(5);
    assert!(!world.has(STATE));
    refused.leave();
    world.assert_empty();
}

#[test]
fn starting_a_finished_run_again_is_told_once() {
    let world = world();
    finish(&world);
    world.pass(10);
    assert_eq!(world.dropped(), [(DropCause::RunOver, 3)]);
    let again = [agent(&world), agent(&world)];
    assert_eq!(restarts(&world), [RunId::new(b"job")]);
    again.into_iter().for_each(Client::leave);
    agent(&world);
    assert_eq!(restarts(&world), [], "it has not finished since");
}

#[test]
fn a_run_that_closed_without_its_exit_barrier_has_not_finished() {
    let world = world();
    let a = agent(&world);
    a.add(format!("{EXIT}/num_members"), 1);
    a.set(STATE, state("closed after success"));
    a.leave();
    world.pass(10);
    world.assert_empty();
    agent(&world);
    assert_eq!(restarts(&world), []);
}

#[test]
fn a_static_run_starts_again_with_a_closed_exit_barrier() {
    let world = world();
    for _ in 0..2 {
        let agents = [world.client(), world.client()];
        assert!(!world.has(format!("{STATIC_EXIT}/num_members")));
        agents[0].set("/none/torchelastic/other", "1");
        pass_exit_barrier(&[&agents[0], &agents[1]], STATIC_EXIT);
        let [a, b] = agents;
        a.leave();
        assert!(world.has(format!("{STATIC_EXIT}/last_member")), "b is about to read it");
        b.leave();
        assert_eq!(world.keys(), ["/none/torchelastic/other"]);
    }
    assert_eq!(restarts(&world), [], "runs of one static id are jobs that follow each other");
}

#[test]
fn a_static_run_of_an_old_release_starts_again_with_a_closed_exit_barrier() {
    let world = world();
    let agents = [world.client(), world.client()];
    for (n, agent) in agents.iter().enumerate() {
        agent.set(format!("{STATIC_EXIT}{n}"), n.to_string());
    }
    for (n, agent) in agents.iter().enumerate() {
        agent.set(format!("{STATIC_EXIT}{n}.FIN"), "FIN");
    }
    agents.into_iter().for_each(Client::leave);
    assert_eq!(world.keys(), Vec::<String>::new());
    world.client().set("/none/torchelastic/other", "1");
    assert_eq!(restarts(&world), [], "runs of one static id are jobs that follow each other");
}

/// The next start would read that the run is shut down, and end without a word.
#[test]
fn a_run_that_an_agent_leads_is_forgotten_with_its_last_connection() {
    for reason in ["", "graceful"] {
        let world = world();
        let agents = [world.client(), world.client()];
        for agent in &agents {
            assert!(!agent.check(&["/ft_rendezvous_barrier:job:round_done_0"]), "as the first time");
        }
        let unrelated = world.client();
        unrelated.set("/ft_rendezvous_barrier:other:round_done_0", "1");
        agents[0].set("/ft_rendezvous_barrier:job:round_done_0", "0");
        agents[0].set("/ft_rendezvous_barrier:job:shutdown", "");
        agents[1].add("/ft_rendezvous_barrier:job:join_count_0", 1);
        agents[1].set("/torch.rendezvous.job.0/MASTER_ADDR", "node0");
        agents[1].set("/torch.rendezvous.job.0/torchelastic/role_info/1", "{}");
        agents[0].compare_set("/ft_rendezvous_barrier:job:shutdown", "", reason);
        let [a, b] = agents;
        a.leave();
        world.pass(100_000);
        assert_eq!(b.get("/ft_rendezvous_barrier:job:shutdown"), reason, "b may still read it");
        b.leave();
        assert_eq!(world.keys(), ["/ft_rendezvous_barrier:other:round_done_0"]);
        assert_eq!(world.dropped(), [(DropCause::RunOver, 5)]);
        world.assert_empty_after(unrelated);
        assert_eq!(restarts(&world), []);
    }
}

#[test]
fn a_half_passed_exit_barrier_of_a_static_run_is_no_end() {
    let world = world();
    let a = world.client();
    a.add(format!("{STATIC_EXIT}/num_members"), 1);
    a.leave();
    assert_eq!(world.keys(), Vec::<String>::new());
    assert_eq!(world.dropped(), [(DropCause::RunOver, 1)]);
    let again = world.client();
    again.add(format!("{STATIC_EXIT}/num_members"), 1);
    assert_eq!(restarts(&world), []);
}

#[test]
fn the_exit_barrier_of_a_round_stays_with_its_run() {
    let world = world();
    let a = agent(&world);
    pass_exit_barrier(&[&a], EXIT);
    a.leave();
    assert!(world.has(format!("{EXIT}/last_member")));
    world.pass(60);
    world.assert_empty();
}
