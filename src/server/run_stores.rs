//! Stores of single runs: which run has which port, and which ports are free.

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use crate::config::ServerConfig;
use crate::ids::{RunId, Uptime};
use crate::insight::StoreOwner;

/// A port that was closed is not used again for this long: late clients of the old store must not meet a new one.
const QUARANTINE: Duration = Duration::from_mins(10);

/// A run's own store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunStore {
    /// Its port.
    pub port: u16,
    /// Whether it was opened just now.
    pub is_new: bool,
}

/// Why a run got no store.
#[derive(Debug, thiserror::Error)]
pub enum NoStore {
    /// Every port is in use or in quarantine.
    #[error(
        "no port left for the run's store: {in_use} of {ports} are in use and the others were closed less than 10 \
         minutes ago; give more with --store-ports, or close stores that are over (rallypoint ctl reset)"
    )]
    NoPortLeft {
        /// Ports that have a store.
        in_use: usize,
        /// All ports of `--store-ports`.
        ports: usize,
    },
    /// The server is about to end.
    #[error("the server is stopping and opens no store; try again in a moment")]
    Stopping,
    /// The run id cannot be used.
    #[error("a run id has 1 to 256 bytes; this one has {0}")]
    BadRunId(usize),
}

/// Whose store it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Owner {
    /// An unmodified job's.
    Run(String),
    /// One round's of a run.
    Round(RunId, u64),
}

impl Owner {
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
    /// Until it had no client for the linger time.
    WhileUsed,
    /// As long as its round lives.
    Held,
    /// Until its last client has left, and for the linger time at the most.
    Released(Uptime),
}

#[derive(Debug)]
struct Open {
    owner: Owner,
    lease: Lease,
    /// When it was last seen with a client, or opened.
    last_used: Uptime,
}

impl Open {
    fn is_of(&self, run_id: &RunId, round: u64) -> bool {
        matches!(&self.owner, Owner::Round(run, number) if run == run_id && *number == round)
    }
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<u16, Open>,
    closed_at: HashMap<u16, Uptime>,
}

#[derive(Debug)]
pub(super) struct RunStores {
    ports: std::ops::RangeInclusive<u16>,
    linger: Duration,
    state: Mutex<State>,
}

impl RunStores {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self { ports: config.store_ports.clone(), linger: config.store_linger, state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The run's store, made with `open` on the port that has been unused the longest. Ports that another program
    /// holds are passed over.
    pub(super) fn get_or_open(
        &self,
        run_id: &str,
        now: Uptime,
        open: impl Fn(u16) -> io::Result<()>,
    ) -> Result<RunStore, NoStore> {
        if run_id.is_empty() || run_id.len() > 256 {
            return Err(NoStore::BadRunId(run_id.len()));
        }
        let owner = Owner::Run(run_id.to_owned());
        let mut state = self.state();
        if let Some((&port, _)) = state.open.iter().find(|(_, store)| store.owner == owner) {
            return Ok(RunStore { port, is_new: false });
        }
        let port = self.open(&mut state, owner, Lease::WhileUsed, now, open)?;
        tracing::info!(store = port, run.id = run_id, "opened a store for run {run_id}");
        Ok(RunStore { port, is_new: true })
    }

    /// A fresh store for a round. It is `held` until [`Self::release`], or else stays while it is used.
    pub(super) fn open_for_round(
        &self,
        run_id: &RunId,
        round: u64,
        held: bool,
        now: Uptime,
        open: impl Fn(u16) -> io::Result<()>,
    ) -> Result<u16, NoStore> {
        let lease = if held { Lease::Held } else { Lease::WhileUsed };
        self.open(&mut self.state(), Owner::Round(run_id.clone(), round), lease, now, open)
    }

    /// The round is over: its store ends with its last client.
    pub(super) fn release(&self, port: u16, run_id: &RunId, round: u64, now: Uptime) {
        if let Some(store) = self.state().open.get_mut(&port).filter(|store| store.is_of(run_id, round)) {
            store.lease = Lease::Released(now);
        }
    }

    /// Gives up a round's store. `false` if the port has another one by now.
    pub(super) fn remove_of_round(&self, port: u16, run_id: &RunId, round: u64, now: Uptime) -> bool {
        let is_its = self.state().open.get(&port).is_some_and(|store| store.is_of(run_id, round));
        is_its && self.remove(port, now)
    }

    fn open(
        &self,
        state: &mut State,
        owner: Owner,
        lease: Lease,
        now: Uptime,
        open: impl Fn(u16) -> io::Result<()>,
    ) -> Result<u16, NoStore> {
        let closed_at = |port: &u16| state.closed_at.get(port).copied();
        let mut free: Vec<u16> = self
            .ports
            .clone()
            .filter(|port| !state.open.contains_key(port))
            .filter(|port| closed_at(port).is_none_or(|at| now.since(at) >= QUARANTINE))
            .collect();
        free.sort_by_key(|port| (closed_at(port), *port));
        for port in free {
            match open(port) {
                Ok(()) => {
                    state.open.insert(port, Open { owner, lease, last_used: now });
                    return Ok(port);
                }
                Err(error) => tracing::warn!(port, %error, "cannot use this port of --store-ports"),
            }
        }
        Err(NoStore::NoPortLeft { in_use: state.open.len(), ports: self.ports.len() })
    }

    pub(super) fn run_of(&self, port: u16) -> Option<String> {
        self.state().open.get(&port).map(|store| store.owner.run_id())
    }

    /// What the store on `port` was opened for, as insight is told it.
    pub(super) fn owner(&self, port: u16) -> Option<StoreOwner> {
        self.state().open.get(&port).map(|store| match &store.owner {
            Owner::Run(run_id) => StoreOwner::Run(run_id.clone()),
            Owner::Round(run_id, _) => StoreOwner::Round(run_id.clone()),
        })
    }

    /// Gives up a store. `false` if `port` is none of them.
    pub(super) fn remove(&self, port: u16, now: Uptime) -> bool {
        let mut state = self.state();
        let was_open = state.open.remove(&port).is_some();
        if was_open {
            state.closed_at.insert(port, now);
        }
        was_open
    }

    /// Gives up the stores whose time is over and returns their ports.
    pub(super) fn take_unused(&self, now: Uptime, connections: impl Fn(u16) -> usize) -> Vec<u16> {
        let mut state = self.state();
        let mut unused = Vec::new();
        for (&port, store) in &mut state.open {
            let is_used = connections(port) > 0;
            if is_used {
                store.last_used = now;
            }
            let is_over = match store.lease {
                Lease::WhileUsed => now.since(store.last_used) >= self.linger,
                Lease::Held => false,
                Lease::Released(at) => !is_used || now.since(at) >= self.linger,
            };
            if is_over {
                unused.push(port);
            }
        }
        for port in &unused {
            state.open.remove(port);
            state.closed_at.insert(*port, now);
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stores(ports: std::ops::RangeInclusive<u16>) -> RunStores {
        RunStores::new(&ServerConfig { store_ports: ports, ..ServerConfig::default() })
    }

    fn at(secs: u64) -> Uptime {
        Uptime(Duration::from_secs(secs))
    }

    #[test]
    fn a_run_keeps_its_store_and_others_get_their_own() {
        let stores = stores(10..=11);
        let a = stores.get_or_open("a", at(0), |_| Ok(())).expect("a port");
        assert_eq!(a, RunStore { port: 10, is_new: true });
        let again = stores.get_or_open("a", at(1), |_| Ok(())).expect("a port");
        assert_eq!(again, RunStore { port: 10, is_new: false });
        let b = stores.get_or_open("b", at(1), |_| Ok(())).expect("a port");
        assert_eq!((b.port, stores.run_of(11).as_deref()), (11, Some("b")));
        let none = stores.get_or_open("c", at(1), |_| Ok(())).expect_err("no port");
        assert!(none.to_string().contains("--store-ports"), "{none}");
    }

    #[test]
    fn a_closed_port_rests_and_the_longest_unused_comes_first() {
        let stores = stores(10..=11);
        for (run, secs) in [("a", 0), ("b", 0)] {
            stores.get_or_open(run, at(secs), |_| Ok(())).expect("a port");
        }
        assert!(stores.remove(11, at(5)) && stores.remove(10, at(9)) && !stores.remove(10, at(9)));
        assert!(stores.get_or_open("c", at(100), |_| Ok(())).is_err());
        assert_eq!(stores.get_or_open("c", at(700), |_| Ok(())).expect("a port").port, 11);
    }

    #[test]
    fn a_store_without_clients_is_given_up_after_the_linger_time() {
        let stores = stores(10..=11);
        stores.get_or_open("used", at(0), |_| Ok(())).expect("a port");
        stores.get_or_open("unused", at(0), |_| Ok(())).expect("a port");
        let connections = |port| usize::from(port == 10);
        assert_eq!(stores.take_unused(at(599), connections), [0_u16; 0]);
        assert_eq!(stores.take_unused(at(600), connections), [11]);
        assert_eq!(stores.take_unused(at(1199), |_| 0), [0_u16; 0]);
        assert_eq!(stores.take_unused(at(1200), |_| 0), [10]);
    }

    #[test]
    fn a_rounds_store_stays_while_the_round_lives_and_then_until_its_last_client_left() {
        let run = RunId::new(b"a");
        let stores = stores(10..=12);
        let port = stores.open_for_round(&run, 1, true, at(0), |_| Ok(())).expect("a port");
        assert_eq!(
            stores.open_for_round(&run, 2, true, at(0), |_| Ok(())).expect("a port"),
            11,
            "a fresh one"
        );
        assert_eq!(stores.take_unused(at(5000), |_| 0), [0_u16; 0]);
        stores.release(port, &run, 2, at(5000));
        assert_eq!(stores.take_unused(at(5000), |_| 0), [0_u16; 0], "it is another round's");
        stores.release(port, &run, 1, at(5000));
        assert_eq!(stores.take_unused(at(5001), |_| 1), [0_u16; 0]);
        assert_eq!(stores.take_unused(at(5002), |_| 0), [10]);
        stores.release(11, &run, 2, at(6000));
        assert_eq!(
            stores.take_unused(at(6600), |_| 1),
            [11],
            "clients that never leave do not keep it for ever"
        );
        assert!(!stores.remove_of_round(10, &run, 1, at(7000)));
    }

    #[test]
    fn a_port_that_another_program_holds_is_passed_over() {
        let stores = stores(10..=11);
        let open = |port| if port == 10 { Err(io::ErrorKind::AddrInUse.into()) } else { Ok(()) };
        assert_eq!(stores.get_or_open("a", at(0), open).expect("a port").port, 11);
    }
}
