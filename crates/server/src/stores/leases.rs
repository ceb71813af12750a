//! The leases of stores for single runs and rounds: who has which port, and which ports are free. Nothing
//! here logs, because the caller may hold locks.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU64;
use std::sync::Mutex;
use std::time::Duration;

use crate::config::ServerConfig;
use rallypoint_protocol::ids::{RunId, Timestamp};

/// A closed port is not given out again for this long, if there are others: late clients of the old store
/// should not reach a new one.
const REST: Duration = Duration::from_mins(10);
/// At most this many ports of one run rest, and at most half of all ports. Beyond that the run gets its own
/// ports again, so that it cannot use up the rested ports of other runs.
const SHARE: usize = 8;

/// A run's own store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunStore {
    /// Its port.
    pub port: u16,
    /// Whether it was opened by this call.
    pub is_new: bool,
}

/// A round's store. Its holder may give it up, as long as the port has no other store by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundStore {
    port: u16,
    run_id: RunId,
    round: u64,
}

impl RoundStore {
    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Describes how many of the ports for run stores are in use.
fn in_use_of(in_use: usize, ports: usize) -> String {
    if in_use < ports {
        return format!("runs use {in_use} of {ports}, and other programs hold the rest");
    }
    format!("runs use all of --store-ports, which are {ports}")
}

/// Why a run got no store.
#[derive(Debug, thiserror::Error)]
pub enum NoStore {
    /// Every port is in use.
    #[error(
        "no port left for the run's store: {}; give more with --store-ports, or close stores that are over \
         (rallypoint ctl reset)",
        in_use_of(*.in_use, *.ports)
    )]
    NoPortLeft {
        /// How many ports have a store.
        in_use: usize,
        /// How many ports `--store-ports` has.
        ports: usize,
    },
    /// The server is about to end.
    #[error("the server is stopping and opens no store; try again in a moment")]
    Stopping,
}

/// The owner of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// An unmodified job, by its run id.
    Run(String),
    /// One round of a native run.
    Round(RunId, u64),
}

impl Owner {
    /// The owner in the journal's form. A store of `--listen` has no owner.
    pub(super) fn to_bytes(owner: Option<&Self>) -> Vec<u8> {
        match owner {
            None => Vec::new(),
            Some(Self::Run(run_id)) => format!("run:{run_id}").into(),
            Some(Self::Round(run_id, round)) => {
                [format!("round:{round}:").as_bytes(), run_id.as_bytes()].concat()
            }
        }
    }

    /// Reads the journal's form.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if let Some(run_id) = bytes.strip_prefix(b"run:") {
            return Some(Self::Run(String::from_utf8(run_id.into()).ok()?));
        }
        let rest = bytes.strip_prefix(b"round:")?;
        let end = rest.iter().position(|byte| *byte == b':')?;
        let (number, run_id) = (rest.get(..end)?, rest.get(end..)?.strip_prefix(b":")?);
        Some(Self::Round(RunId::new(run_id), std::str::from_utf8(number).ok()?.parse().ok()?))
    }

    fn run_id(&self) -> String {
        match self {
            Self::Run(run_id) => run_id.clone(),
            Self::Round(run_id, _) => run_id.to_string(),
        }
    }
}

/// How long a store stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lease {
    /// Until it has had no client for the linger time.
    WhileUsed,
    /// As long as its round lives.
    Held,
    /// Until its last client has left, but at most for the linger time.
    Released(Timestamp),
}

#[derive(Debug)]
struct Open {
    owner: Owner,
    lease: Lease,
    /// When it last had a client, or when it was opened.
    last_used: Timestamp,
    /// Whether it has ever had a client.
    was_used: bool,
}

/// A port that had a store.
#[derive(Debug)]
struct Closed {
    run_id: String,
    at: Timestamp,
}

impl Open {
    fn is(&self, store: &RoundStore) -> bool {
        matches!(&self.owner, Owner::Round(run, round) if *run == store.run_id && *round == store.round)
    }
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<u16, Open>,
    closed: HashMap<u16, Closed>,
}

impl State {
    /// Gives up a store. `false` if `port` has none of them.
    fn close(&mut self, port: u16, now: Timestamp) -> bool {
        let Some(store) = self.open.remove(&port) else { return false };
        self.closed.insert(port, Closed { run_id: store.owner.run_id(), at: now });
        true
    }
}

#[derive(Debug)]
pub(crate) struct Leases {
    ports: std::ops::RangeInclusive<u16>,
    linger: Duration,
    /// A store without any client yet stays as long as a join may wait.
    unused_linger: Duration,
    state: Mutex<State>,
}

impl Leases {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        Self {
            ports: config.store_ports.clone(),
            linger: config.store_linger,
            unused_linger: config.store_linger.max(config.rendezvous.join_timeout),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The run's store. If it is absent, `open` makes it; ports that `open` cannot use are skipped.
    pub(crate) fn get_or_open(
        &self,
        run_id: &str,
        now: Timestamp,
        open: impl FnMut(u16) -> bool,
    ) -> Result<RunStore, NoStore> {
        let owner = Owner::Run(run_id.to_owned());
        let mut state = self.state();
        if let Some((&port, _)) = state.open.iter().find(|(_, store)| store.owner == owner) {
            return Ok(RunStore { port, is_new: false });
        }
        let port = self.open(&mut state, owner, Lease::WhileUsed, now, open)?;
        Ok(RunStore { port, is_new: true })
    }

    /// Opens a store again on its former port, if that is one of ours.
    pub(super) fn reopen(
        &self,
        owner: Owner,
        port: u16,
        now: Timestamp,
        open: impl FnOnce(u16, &Owner) -> bool,
    ) {
        let mut state = self.state();
        if self.ports.contains(&port) && !state.open.contains_key(&port) && open(port, &owner) {
            state.open.insert(port, Open { owner, lease: Lease::WhileUsed, last_used: now, was_used: true });
        }
    }

    /// Opens a fresh store for a round. If `held`, it stays until [`Self::release`]; otherwise it stays while
    /// it is used.
    pub(crate) fn open_for_round(
        &self,
        run_id: &RunId,
        round: u64,
        held: bool,
        now: Timestamp,
        open: impl FnMut(u16) -> bool,
    ) -> Result<RoundStore, NoStore> {
        let lease = if held { Lease::Held } else { Lease::WhileUsed };
        let port = self.open(&mut self.state(), Owner::Round(run_id.clone(), round), lease, now, open)?;
        Ok(RoundStore { port, run_id: run_id.clone(), round })
    }

    /// The store of a round that goes on after a restart. It is open again, and `held` as before.
    pub(crate) fn claim(&self, run_id: &RunId, round: u64, held: bool) -> Option<RoundStore> {
        let owner = Owner::Round(run_id.clone(), round);
        let mut state = self.state();
        let (&port, open) = state.open.iter_mut().find(|(_, open)| open.owner == owner)?;
        if held {
            open.lease = Lease::Held;
        }
        Some(RoundStore { port, run_id: run_id.clone(), round })
    }

    /// Gives up the stores of a run's rounds before `round`, and returns their ports.
    pub(super) fn take_rounds_before(&self, run_id: &RunId, round: u64, now: Timestamp) -> Vec<u16> {
        let mut state = self.state();
        let is_before =
            |owner: &Owner| matches!(owner, Owner::Round(run, number) if run == run_id && *number < round);
        let ports: Vec<u16> =
            state.open.iter().filter(|(_, open)| is_before(&open.owner)).map(|(&port, _)| port).collect();
        for port in &ports {
            state.close(*port, now);
        }
        ports
    }

    /// The round is over: its store ends with its last client.
    pub(crate) fn release(&self, store: &RoundStore, now: Timestamp) {
        if let Some(open) = self.state().open.get_mut(&store.port).filter(|open| open.is(store)) {
            open.lease = Lease::Released(now);
        }
    }

    /// Gives up a round's store. `false` if its port has another store by now.
    pub(crate) fn give_up(&self, store: &RoundStore, now: Timestamp) -> bool {
        let is_its = self.state().open.get(&store.port).is_some_and(|open| open.is(store));
        is_its && self.remove(store.port, now)
    }

    fn open(
        &self,
        state: &mut State,
        owner: Owner,
        lease: Lease,
        now: Timestamp,
        mut open: impl FnMut(u16) -> bool,
    ) -> Result<u16, NoStore> {
        for port in self.free_ports(state, &owner.run_id(), now) {
            if open(port) {
                state.closed.remove(&port);
                state.open.insert(port, Open { owner, lease, last_used: now, was_used: false });
                return Ok(port);
            }
        }
        Err(NoStore::NoPortLeft { in_use: state.open.len(), ports: self.ports.len() })
    }

    /// The ports without a store, best first. Rested ports come first, in the order in which they were
    /// closed. If there is none, or if the run's whole share rests, one of the run's own ports comes first.
    /// Among equals each run begins at a place of its own: a server that was restarted without a journal
    /// rarely gives one run's port to another, whose late processes would meet strangers there.
    fn free_ports(&self, state: &State, run_id: &str, now: Timestamp) -> Vec<u16> {
        let rests = |closed: &&Closed| now.since(closed.at) < REST;
        let share = SHARE.min(self.ports.len().div_ceil(2));
        let own = state.closed.values().filter(rests).filter(|closed| closed.run_id == run_id).count();
        let mut place = DefaultHasher::new();
        run_id.hash(&mut place);
        let (place, count) =
            (place.finish(), NonZeroU64::new(self.ports.len() as u64).unwrap_or(NonZeroU64::MIN));
        let rank = |port: u16| {
            let closed = state.closed.get(&port);
            let order = match closed.filter(rests) {
                Some(closed) if closed.run_id == run_id => {
                    if own >= share {
                        0
                    } else {
                        2
                    }
                }
                Some(_) => 3,
                None => 1,
            };
            let behind = u64::from(port).wrapping_add(place % count) % count;
            (order, closed.map(|closed| closed.at), behind)
        };
        let mut free: Vec<u16> = self.ports.clone().filter(|port| !state.open.contains_key(port)).collect();
        free.sort_by_cached_key(|port| rank(*port));
        free
    }

    pub(crate) fn run_of(&self, port: u16) -> Option<String> {
        self.state().open.get(&port).map(|store| store.owner.run_id())
    }

    /// The owner of the store on `port`.
    pub(crate) fn owner(&self, port: u16) -> Option<Owner> {
        self.state().open.get(&port).map(|store| store.owner.clone())
    }

    /// Gives up a store. `false` if `port` has none of them.
    pub(crate) fn remove(&self, port: u16, now: Timestamp) -> bool {
        self.state().close(port, now)
    }

    /// Gives up the store that has waited longest for its first client, because another run needs a port. It
    /// must have waited longer than an unused store is kept after its last client.
    pub(crate) fn take_never_used(&self, now: Timestamp, connections: impl Fn(u16) -> usize) -> Option<u16> {
        let mut state = self.state();
        let waits = |store: &Open| store.lease == Lease::WhileUsed && !store.was_used;
        let (port, since) = state
            .open
            .iter()
            .filter(|(port, store)| waits(store) && connections(**port) == 0)
            .map(|(&port, store)| (port, store.last_used))
            .min_by_key(|&(_, since)| since)?;
        (now.since(since) >= self.linger && state.close(port, now)).then_some(port)
    }

    /// Gives up the stores whose time is over. Returns their ports.
    pub(crate) fn take_unused(&self, now: Timestamp, connections: impl Fn(u16) -> usize) -> Vec<u16> {
        let mut state = self.state();
        let mut unused = Vec::new();
        for (&port, store) in &mut state.open {
            let is_used = connections(port) > 0;
            if is_used {
                (store.last_used, store.was_used) = (now, true);
            }
            let linger = if store.was_used { self.linger } else { self.unused_linger };
            let is_over = match store.lease {
                Lease::WhileUsed => now.since(store.last_used) >= linger,
                Lease::Held => false,
                Lease::Released(at) => !is_used || now.since(at) >= self.linger,
            };
            if is_over {
                unused.push(port);
            }
        }
        for port in &unused {
            state.close(*port, now);
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stores(ports: std::ops::RangeInclusive<u16>) -> Leases {
        Leases::new(&ServerConfig { store_ports: ports, ..ServerConfig::default() })
    }

    fn at(secs: u64) -> Timestamp {
        Timestamp(Duration::from_secs(secs))
    }

    #[test]
    fn a_run_keeps_its_store_and_others_get_their_own() {
        let stores = stores(10..=11);
        let a = stores.get_or_open("a", at(0), |_| true).expect("a port");
        assert!(a.is_new);
        let again = stores.get_or_open("a", at(1), |_| true).expect("a port");
        assert_eq!(again, RunStore { is_new: false, ..a });
        let b = stores.get_or_open("b", at(1), |_| true).expect("a port");
        assert_eq!((a.port + b.port, stores.run_of(b.port).as_deref()), (21, Some("b")));
        let none = stores.get_or_open("c", at(1), |_| true).expect_err("no port");
        assert!(none.to_string().contains("--store-ports"), "{none}");
    }

    #[test]
    fn each_run_begins_at_a_place_of_its_own_also_after_a_restart() {
        let of =
            |run: u32| stores(1..=50).get_or_open(&run.to_string(), at(0), |_| true).expect("a port").port;
        let ports: std::collections::BTreeSet<u16> = (0..50).map(of).collect();
        assert!(ports.len() > 20, "{ports:?}");
        assert!((0..50).all(|run| of(run) == of(run)));
    }

    #[test]
    fn a_closed_port_rests_and_the_longest_unused_comes_first() {
        let stores = stores(10..=11);
        for (run, secs) in [("a", 0), ("b", 0)] {
            stores.get_or_open(run, at(secs), |_| true).expect("a port");
        }
        assert!(stores.remove(11, at(5)) && stores.remove(10, at(9)) && !stores.remove(10, at(9)));
        assert_eq!(stores.get_or_open("c", at(100), |_| true).expect("a port").port, 11, "none has rested");
        assert_eq!(stores.get_or_open("d", at(101), |_| true).expect("a port").port, 10);
        let none = stores.get_or_open("e", at(102), |_| true).expect_err("all are in use");
        assert!(matches!(none, NoStore::NoPortLeft { in_use: 2, ports: 2 }), "{none}");
    }

    #[test]
    fn a_run_that_starts_again_and_again_gets_its_own_ports_back() {
        let stores = stores(1..=90);
        let run = RunId::new(b"crashes");
        let mut used = std::collections::BTreeSet::new();
        for round in 1..1000 {
            let store = stores.open_for_round(&run, round, true, at(0), |_| true).expect("a port");
            used.insert(store.port());
            assert!(stores.give_up(&store, at(0)));
        }
        assert_eq!(used.len(), SHARE);
        for n in 0..90 - SHARE {
            let port = stores.get_or_open(&n.to_string(), at(0), |_| true).expect("a port").port;
            assert!(!used.contains(&port), "all the others have rested");
        }
        assert!(used.contains(&stores.get_or_open("late", at(0), |_| true).expect("a port").port));
    }

    #[test]
    fn a_store_without_clients_is_given_up_after_the_linger_time() {
        let stores = stores(10..=11);
        let open = |run| stores.get_or_open(run, at(0), |_| true).expect("a port").port;
        let [used, unused] = ["used", "unused"].map(open);
        assert_eq!(stores.take_unused(at(599), |port| usize::from(port == used)), [0_u16; 0]);
        assert_eq!(stores.take_unused(at(1198), |_| 0), [0_u16; 0]);
        assert_eq!(stores.take_unused(at(1199), |_| 0), [used]);
        assert_eq!(
            stores.take_unused(at(1799), |_| 0),
            [0_u16; 0],
            "its run may yet come, as a join may wait"
        );
        assert_eq!(stores.take_unused(at(1800), |_| 0), [unused]);
    }

    #[test]
    fn a_store_that_nobody_used_makes_room_after_the_linger_time() {
        let stores = stores(10..=12);
        let open = |(run, secs)| stores.get_or_open(run, at(secs), |_| true).expect("a port").port;
        let [used, unused, _] = [("used", 0), ("unused", 1), ("new", 2)].map(open);
        stores.take_unused(at(3), |port| usize::from(port == used));
        assert_eq!(stores.take_never_used(at(600), |_| 0), None);
        let has_come = |port| usize::from(port == unused);
        assert_eq!(stores.take_never_used(at(601), has_come), None, "it has just come");
        assert_eq!(stores.take_never_used(at(601), |_| 0), Some(unused));
        assert_eq!(stores.take_never_used(at(601), |_| 0), None);
        assert_eq!(open(("d", 601)), unused);
    }

    /// An event of a run and its stores.
    #[derive(Debug, Clone)]
    enum Step {
        Open(u8),
        /// The next round of the run begins, and the store of its predecessor is closed.
        Round(u8),
        /// The run's clients come (true) or go (false).
        Use(u8, bool),
        Wait(u64),
    }

    fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
        use proptest::prelude::*;
        let run = 0..6_u8;
        let step = prop_oneof![
            3 => run.clone().prop_map(Step::Open),
            8 => prop_oneof![Just(0), run.clone()].prop_map(Step::Round),
            4 => (run, any::<bool>()).prop_map(|(run, used)| Step::Use(run, used)),
            3 => prop_oneof![0..5_u64, 0..900_u64].prop_map(Step::Wait),
        ];
        proptest::collection::vec(step, 1..200)
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

        /// Six runs with their shares, and 80 ports. Whatever a run does, each run gets a store, and only on
        /// a rested port, unless the port is the last one of the run's own share.
        #[test]
        fn whatever_a_run_does_the_others_get_ports_that_have_rested(steps in steps()) {
            const PORTS: u16 = 80;
            let stores = stores(1..=PORTS);
            let (mut now, mut used) = (at(0), std::collections::HashMap::<String, bool>::new());
            let mut closed = HashMap::<u16, (Timestamp, String)>::new();
            let mut rounds = HashMap::<u8, RoundStore>::new();
            for step in steps {
                let name = |run: u8| format!("run {run}");
                let mut opened = None;
                match step {
                    Step::Open(run) => {
                        let store = stores.get_or_open(&name(run), now, |_| true).expect("a port");
                        opened = store.is_new.then(|| (store.port, name(run)));
                    }
                    Step::Round(run) => {
                        let id = RunId::new(name(run).as_bytes());
                        let number = rounds.get(&run).map_or(1, |last| last.round + 1);
                        let store = stores.open_for_round(&id, number, true, now, |_| true).expect("a port");
                        opened = Some((store.port(), name(run)));
                        if let Some(last) = rounds.insert(run, store) {
                            proptest::prop_assert!(stores.give_up(&last, now));
                            closed.insert(last.port(), (now, name(run)));
                        }
                    }
                    Step::Use(run, is) => { used.insert(name(run), is); }
                    Step::Wait(secs) => now = now + Duration::from_secs(secs),
                }
                if let Some((port, run)) = opened {
                    let rests = |port: &u16| closed.get(port).filter(|(at, _)| now.since(*at) < REST);
                    if let Some((_, last)) = rests(&port) {
                        let own = closed.values().filter(|(at, last)| *last == run && now.since(*at) < REST);
                        let own = own.count();
                        proptest::prop_assert!(
                            *last == run && own >= SHARE,
                            "{port} of {last} for {run}, {own}"
                        );
                    }
                    closed.remove(&port);
                }
                let owners: HashMap<u16, String> =
                    (1..=PORTS).filter_map(|port| Some((port, stores.run_of(port)?))).collect();
                let is_used = |port: u16| owners.get(&port).is_some_and(|run| used.get(run) == Some(&true));
                for port in stores.take_unused(now, |port| usize::from(is_used(port))) {
                    proptest::prop_assert!(!is_used(port));
                    closed.insert(port, (now, owners[&port].clone()));
                }
            }
        }
    }

    #[test]
    fn a_rounds_store_stays_while_the_round_lives_and_then_until_its_last_client_left() {
        let run = RunId::new(b"a");
        let stores = stores(10..=12);
        let first = stores.open_for_round(&run, 1, true, at(0), |_| true).expect("a port");
        let second = stores.open_for_round(&run, 2, true, at(0), |_| true).expect("a port");
        assert_ne!(first.port(), second.port(), "a fresh one");
        assert_eq!(stores.take_unused(at(5000), |_| 0), [0_u16; 0]);
        stores.release(&RoundStore { round: 2, ..first.clone() }, at(5000));
        assert_eq!(stores.take_unused(at(5000), |_| 0), [0_u16; 0], "it is another round's");
        stores.release(&first, at(5000));
        assert_eq!(stores.take_unused(at(5001), |_| 1), [0_u16; 0]);
        assert_eq!(stores.take_unused(at(5002), |_| 0), [first.port()]);
        stores.release(&second, at(6000));
        assert_eq!(
            stores.take_unused(at(6600), |_| 1),
            [second.port()],
            "clients that never leave do not keep it for ever"
        );
        assert!(!stores.give_up(&first, at(7000)));
    }

    #[test]
    fn a_port_that_another_program_holds_is_passed_over() {
        let stores = stores(10..=11);
        let open = |port| port != 10;
        assert_eq!(stores.get_or_open("a", at(0), open).expect("a port").port, 11);
    }
}
