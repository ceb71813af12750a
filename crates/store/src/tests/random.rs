//! Random operations of many clients, compared with the model and checked for invariants.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngAlgorithm;

use super::model::{Act, Key, Model, Outcome};
use super::{Client, Effect, World};
use crate::testing::request;
use crate::{Progress, StaleKeyConfig};
use rallypoint_protocol::ids::ConnId;

pub(super) const CLIENTS: usize = 5;

/// Keys that match no pattern.
const PROGRAM_KEYS: [Key; 4] = ["", "a", "b", "/done_3"];

/// Keys of rule 1, and two that match no pattern.
pub(super) const ADDRESS_KEYS: [Key; 7] = [
    "a",
    "b",
    "/default_pg/0//cpu//0/0",
    "/default_pg/0//cpu//0/1",
    "/default_pg/0//cpu//0/2",
    "/default_pg/0//9f//cpu//0/0",
    "/default_pg/0//cuda//0",
];

/// Keys of every rule.
const JOB_KEYS: [Key; 17] = [
    "a",
    "init/",
    "/default_pg/0//cpu//0/0",
    "/default_pg/0//cpu//0/1",
    "/default_pg/0//cuda//0",
    "/default_pg/0//store_based_barrier_key:0",
    "/default_pg/0//exception_dump",
    "/default_pg/0//x",
    "/default_pg/0//cuda//0/nccl_storekey_0",
    "/rpc_prefix_0/shutdown/READY_ID_1",
    "/broadcast_from/0/0",
    "/none/torchelastic/role_info/0",
    "/none/torchelastic/assigned_ranks/0",
    "/none/torchelastic/agent/terminal_state/last_member",
    "/torch.rendezvous.job",
    "/torch.rendezvous.job.0/torchelastic/agent/terminal_state/last_member",
    "/torch.rendezvous.other",
];

fn value() -> impl Strategy<Value = String> {
    select(vec!["", "1", "2", "7x", "x"]).prop_map(str::to_owned)
}

fn act(keys: &'static [Key]) -> impl Strategy<Value = Act> {
    let key = select(keys);
    let several = vec(select(keys), 0..4);
    let times = select(vec![1, 8]);
    let arms = prop_oneof![
        4 => (key.clone(), value()).prop_map(|(key, value)| Act::Set(key, value)),
        2 => (key.clone(), value(), value()).prop_map(|(key, old, new)| Act::CompareSet(key, old, new)),
        5 => key.clone().prop_map(Act::Get),
        2 => (key.clone(), -2_i64..4).prop_map(|(key, delta)| Act::Add(key, delta)),
        1 => several.clone().prop_map(Act::Check),
        // A long list repeats a short one: the store keeps its answer, and shares the wait for it.
        7 => (several.clone(), times.clone()).prop_map(|(keys, times)| Act::Wait(keys.repeat(times))),
        1 => Just(Act::NumKeys),
        3 => key.clone().prop_map(Act::Delete),
        1 => (key.clone(), value()).prop_map(|(key, value)| Act::Append(key, value)),
        1 => (several, times).prop_map(|(keys, times)| Act::MultiGet(keys.repeat(times))),
        2 => vec((select(keys), value()), 0..4).prop_map(Act::MultiSet),
        2 => Just(Act::Cancel),
        1 => any::<u32>().prop_map(Act::Ping),
        4 => (key.clone(), value()).prop_map(|(key, value)| Act::Push(key, value)),
        4 => key.clone().prop_map(Act::Pop),
        1 => key.clone().prop_map(Act::Len),
        1 => Just(Act::List),
        4 => (key, -1_i64..4).prop_map(|(key, size)| Act::Barrier(key, size)),
    ];
    prop_oneof![40 => arms, 1 => Just(Act::Abandon), 3 => Just(Act::Leave)]
}

/// The clients of a random run, by number.
pub(super) struct Table {
    pub(super) world: World,
    pub(super) clients: Vec<Client>,
}

impl Table {
    pub(super) fn new(world: World) -> Self {
        let clients = (0..CLIENTS).map(|_| world.client()).collect();
        Self { world, clients }
    }

    /// Does the act with the real store.
    pub(super) fn act(&mut self, client: usize, act: &Act) -> Vec<Outcome> {
        loop {
            if let Some(outcomes) = self.try_act(client, act) {
                return outcomes;
            }
        }
    }

    /// One critical section of the act. `None` if the request must be given again.
    pub(super) fn try_act(&mut self, client: usize, act: &Act) -> Option<Vec<Outcome>> {
        let conns: Vec<ConnId> = self.clients.iter().map(|client| client.conn).collect();
        let mut outcomes = Vec::new();
        let mut is_done = true;
        if let Some(request) = request(act) {
            let conn = self.clients[client].conn;
            let mut inner = self.world.inner();
            let super::world::Inner { store, recorder, now, .. } = &mut *inner;
            store.begin(recorder);
            let result = request.with(|request| store.apply(conn, request, *now, recorder));
            is_done = result != Ok(Progress::Begun);
            outcomes.extend(result.err().map(|_| Outcome::Refused));
        } else if matches!(act, Act::Leave) {
            self.clients.swap_remove(client).leave_recorded();
            self.clients.push(self.world.client());
            self.clients.swap(client, CLIENTS - 1);
        } else {
            self.world.inner().store.abandon_wait(self.clients[client].conn);
        }
        let mut inner = self.world.inner();
        if is_done || !matches!(act, Act::MultiSet(_)) {
            inner.check();
        }
        if !is_done {
            return None;
        }
        let mut effects = inner.take_effects();
        if matches!(act, Act::List) {
            // Keys are listed in no order.
            let count = effects.iter().position(|effect| matches!(effect, Effect::Reply(_))).unwrap_or(0);
            effects[count + 1..].sort_by_key(|effect| match effect {
                Effect::Reply(said) => Some(said.clone()),
                Effect::Wake(_) => None,
            });
        }
        outcomes.extend(effects.into_iter().map(|effect| match effect {
            Effect::Reply(said) => Outcome::Reply(said),
            Effect::Wake(conn) => {
                Outcome::Wake(conns.iter().position(|other| *other == conn).expect("a client"))
            }
        }));
        Some(outcomes)
    }

    /// Does one step. `closed` is the state of a run that is over.
    pub(super) fn step(&mut self, step: &Step, closed: &str) {
        match step {
            Step::Client(client, act) => drop(self.act(*client, act)),
            Step::Close(client, key) => drop(self.act(*client, &Act::Set(key, closed.to_owned()))),
            Step::Pass(seconds) => self.world.pass(*seconds),
            Step::Reset => self.world.reset(),
        }
    }

    fn check_against(&self, model: &Model) {
        let inner = self.world.inner();
        for (n, client) in self.clients.iter().enumerate() {
            assert_eq!(
                inner.store.waiting_since(client.conn).is_some(),
                model.is_waiting(n),
                "client {n} waits?"
            );
        }
        let mut plain = model.plain.clone();
        let mut queues = model.queues.clone();
        for (_, slot) in inner.store.keys.iter() {
            let key = super::client::lossy(slot.key());
            let value = slot.value().map(|value| super::client::lossy(value));
            assert_eq!(value, plain.remove(key.as_str()), "value of {key}");
            let items = slot.queue.iter().flat_map(|queue| &queue.items);
            let items: Vec<String> = items.map(|item| super::client::lossy(item)).collect();
            assert_eq!(items, queues.remove(key.as_str()).unwrap_or_default(), "queue {key}");
        }
        assert!(plain.is_empty() && queues.values().all(Vec::is_empty), "{plain:?} {queues:?}");
    }

    /// All clients leave, and one more deletes the keys that are left: then the store is empty.
    pub(super) fn clear_up(self, keys: &[Key]) {
        self.clients.into_iter().for_each(Client::leave);
        let last = self.world.client();
        for key in keys {
            last.delete(key);
            while last.pop(key).is_some() {}
        }
        last.leave();
        self.world.assert_empty();
        self.world.pass(1_000_000);
        self.world.assert_empty();
        assert_eq!(self.world.inner().store.next_deadline(), None);
    }
}

/// Compares the store with the model. A search for spent addresses takes `search_at_once` steps in one
/// critical section.
fn compare(acts: &[(usize, Act)], keys: &[Key], search_at_once: usize) {
    let mut table = Table::new(World::new());
    table.world.inner().store.search_at_once = search_at_once;
    let mut model = Model::default();
    for (step, (client, act)) in acts.iter().enumerate() {
        let expected = model.act(*client, act);
        let mut real = table.act(*client, act);
        // A refusal has no position among the effects.
        let refused = Outcome::Refused;
        if expected.contains(&refused) && real.first() == Some(&refused) {
            real.rotate_left(1);
        }
        assert_eq!(real, expected, "step {step}: client {client} does {act:?}");
        table.check_against(&model);
    }
    table.clear_up(keys);
}

/// The reads of client 0 in the group still count: the barrier names the group before the only wait in it
/// ends.
#[test]
fn a_barrier_that_ends_the_last_wait_in_its_group_is_as_the_model_says() {
    let [first, second] = ["/default_pg/0//cpu//0/0", "/default_pg/0//cpu//0/1"];
    let acts = [
        (2, Act::Wait(vec![first])),
        (3, Act::Append(second, String::new())),
        (0, Act::MultiGet(vec![second])),
        (3, Act::Leave),
        (2, Act::Barrier(second, 0)),
        (0, Act::Barrier(first, 0)),
        (0, Act::MultiSet(vec![(second, String::new())])),
    ];
    for search_at_once in [1, usize::MAX] {
        compare(&acts, &ADDRESS_KEYS, search_at_once);
    }
}

#[test]
fn those_that_wait_for_the_same_list_are_woken_together() {
    let list = ["a", "b"].repeat(8);
    let acts = [
        (1, Act::Wait(list.clone())),
        (2, Act::Wait(vec!["b"])),
        (3, Act::Wait(list)),
        (0, Act::Set("a", String::new())),
        (0, Act::Set("b", String::new())),
    ];
    compare(&acts, &["a", "b"], usize::MAX);
}

#[test]
fn who_stands_for_others_that_wait_for_the_same_list_hands_its_place_over() {
    let list = ["a", "b"].repeat(8);
    let acts = [
        (0, Act::Wait(list.clone())),
        (1, Act::Wait(vec!["a"])),
        (2, Act::Wait(list)),
        (0, Act::Leave),
        (3, Act::Set("b", String::new())),
        (3, Act::Push("a", "1".into())),
        (2, Act::Cancel),
    ];
    compare(&acts, &PROGRAM_KEYS, usize::MAX);
}

/// What happens to a whole store.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Client(usize, Act),
    /// Writes the state of a run that is over.
    Close(usize, Key),
    Pass(u64),
    Reset,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..CLIENTS, act(&JOB_KEYS)).prop_map(|(client, act)| Step::Client(client, act)),
        4 => (0..CLIENTS).prop_map(|client| Step::Client(client, Act::Leave)),
        1 => (0..CLIENTS, select(&["/torch.rendezvous.job", "/torch.rendezvous.other"][..]))
            .prop_map(|(client, key)| Step::Close(client, key)),
        2 => (0_u64..40).prop_map(Step::Pass),
        1 => Just(Step::Reset),
    ]
}

pub(super) fn config() -> impl Strategy<Value = StaleKeyConfig> {
    let times = [None, Some(Duration::from_secs(5)), Some(Duration::from_mins(1))];
    let time = || select(times.to_vec());
    let closed = select(times.into_iter().flatten().collect::<Vec<_>>());
    let one_job = prop::bool::weighted(0.1);
    (one_job, time(), closed, time()).prop_map(|(one_job, run, closed, idle)| StaleKeyConfig {
        forget_run_after: run,
        forget_closed_after: closed,
        reset_when_idle: idle,
        one_job,
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        // 3,000 cases took almost a minute on two busy cores.
        cases: 1000,
        // The default generator took most of the time.
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    })]

    #[test]
    fn programs_get_what_the_model_says(acts in vec((0..CLIENTS, act(&PROGRAM_KEYS)), 1..60)) {
        compare(&acts, &PROGRAM_KEYS, usize::MAX);
    }

    #[test]
    fn process_groups_get_what_the_model_says(
        acts in vec((0..CLIENTS, act(&ADDRESS_KEYS)), 1..60),
        search_at_once in select(vec![1, 5, usize::MAX]),
    ) {
        compare(&acts, &ADDRESS_KEYS, search_at_once);
    }

    #[test]
    fn whatever_jobs_do_the_books_are_right(config in config(), steps in vec(step(), 1..60)) {
        let closed = super::stale_idle::state("closed after success");
        let mut table = Table::new(World::with(World::CAPACITY, config));
        for step in &steps {
            table.step(step, &closed);
        }
        table.clear_up(&JOB_KEYS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    })]

    #[test]
    fn being_observed_changes_no_reply(config in config(), steps in vec(step(), 1..60)) {
        let closed = super::stale_idle::state("closed after success");
        let mut tables = [false, true].map(|observing| {
            let world = World::with(World::CAPACITY, config.clone());
            world.inner().recorder.observing = observing;
            Table::new(world)
        });
        for step in &steps {
            let [plain, observed] = tables.each_mut().map(|table| match step {
                Step::Client(client, act) => table.act(*client, act),
                Step::Close(client, key) => table.act(*client, &Act::Set(key, closed.clone())),
                Step::Pass(seconds) => {
                    table.world.pass(*seconds);
                    Vec::new()
                }
                Step::Reset => {
                    table.world.reset();
                    Vec::new()
                }
            });
            prop_assert_eq!(plain, observed, "{:?}", step);
        }
        let [plain, observed] = tables;
        prop_assert_eq!(plain.world.keys(), observed.world.keys());
        prop_assert!(plain.world.inner().recorder.observed.is_empty());
        let is_known = |observed: &crate::Observed| match observed {
            crate::Observed::Wrote { key, .. } => rallypoint_protocol::keys::classify(key).is_some(),
            _ => true,
        };
        prop_assert!(observed.world.inner().recorder.observed.iter().all(is_known), "a program's own key");
    }
}
