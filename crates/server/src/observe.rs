//! Feeds insight with the observations of the stores, logs its findings, and sends them to subscribers.
//!
//! This runs beside the serving threads. It holds an engine's lock only to swap a list, and once a second to
//! walk the waits.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;

use super::gate::PodGates;
use super::limits::RUNS_SHARE;
use super::link::LinkHost;
use super::rendezvous::{RoundNews, Rounds};
use super::stores::{Owner, StoreHost};
use super::tcp::{Foreign, StoreListener, Throttle};
use crate::clock::{Clock, now};
use crate::engine::{LongWaits, Reservation, Seen};
use rallypoint_api::{Explanation, Run, RunKind, RunList, Severity, Snapshot};
use rallypoint_insight::{Change, Expectation, Insight, PastRow, RULES, Settings, StoreOwner};
use rallypoint_journal::{Image, Row, Table};
use rallypoint_protocol::ids::{Nodes, RunId, Timestamp};
use rallypoint_rendezvous::Unfit;
use rallypoint_rendezvous::gate::Announcement;
use rallypoint_store::{DropCause, Observed};

/// How often observations are collected.
const EVERY: Duration = Duration::from_millis(100);
/// The pause after a look is at least this many times longer than the look. A look at a run that 50,000 nodes
/// join takes tens of milliseconds, and these nodes wait meanwhile.
const PAUSE: u32 = 9;
/// How often the server walks the waits.
const WAITS_EVERY: Duration = Duration::from_secs(1);
/// Which waits of one store matter. Shorter ones do not: even a read of a present key sends a WAIT.
const WAITS: LongWaits = LongWaits { at_least: Duration::from_secs(1), most: 4096, keys_each: 4 };
/// Most subscribers at the same time.
pub const MAX_SUBSCRIBERS: usize = 64;
/// Most events that a subscriber may lag behind.
const BACKLOG: usize = 4096;

/// One event for subscribers.
#[derive(Debug, Clone)]
pub struct Event {
    /// Rises by one with every event.
    pub id: u64,
    /// The event's name.
    pub name: &'static str,
    /// Its data as JSON.
    pub data: Arc<str>,
    /// Decides who may see it.
    pub of: EventOf,
}

/// The subject of an event.
#[derive(Debug, Clone)]
pub enum EventOf {
    /// Numbers of the whole server.
    Server,
    /// A run. Without a run id, the event names addresses of all runs.
    Run(Option<Arc<str>>),
}

/// Insight and its sources.
#[derive(Debug)]
pub struct Watch {
    clock: Clock,
    stores: Arc<StoreHost>,
    rounds: Arc<Rounds>,
    gates: Arc<PodGates>,
    links: Arc<LinkHost>,
    enabled: bool,
    settings: Settings,
    state: Mutex<State>,
    /// The memory that insight uses, and the most that it may use.
    memory: Mutex<Reservation>,
    most_memory: usize,
    events: broadcast::Sender<Event>,
    throttle: Throttle,
    /// The log has said that memory is short.
    said_short: AtomicBool,
}

#[derive(Debug)]
struct State {
    insight: Insight,
    last_id: u64,
    /// When the waits were last walked.
    waits_at: Timestamp,
    named: BTreeSet<u16>,
    gates: KnownGates,
}

/// The versions of the gates that insight has seen: the common one, and one for each gate.
#[derive(Debug, Default)]
struct KnownGates {
    version: u64,
    of_run: HashMap<String, u64>,
}

impl Watch {
    /// Watches these parts; `before` is what the last server left.
    pub fn new(
        stores: Arc<StoreHost>,
        rounds: Arc<Rounds>,
        gates: Arc<PodGates>,
        links: Arc<LinkHost>,
        clock: Clock,
        before: &Image,
    ) -> Self {
        let (server, now) = (stores.config(), clock.now());
        let config = &server.insight;
        let settings = Settings {
            explain_after: config.explain_after,
            max_runs: server.max_runs,
            nodes: config.nodes,
            most_memory: server.max_memory / RUNS_SHARE,
            link_grace: server.link_grace,
            epoch: clock.epoch(),
        };
        let mut state = State::new(settings, 0, now);
        let pasts = before.entries.get(&Table::Past).into_iter().flatten();
        state.insight.remember(pasts.map(|(id, body)| (id.to_vec(), serde_json::from_slice(body).ok())));
        for (run_id, expectation) in expectations(before) {
            state.insight.expect(&run_id, expectation);
        }
        Self {
            enabled: config.enabled,
            state: Mutex::new(state),
            memory: Mutex::new(stores.budget().reservation()),
            most_memory: server.max_memory / RUNS_SHARE,
            settings,
            events: broadcast::Sender::new(BACKLOG),
            throttle: Throttle::new(RULES.len().saturating_add(1)),
            said_short: AtomicBool::new(false),
            clock,
            stores,
            rounds,
            gates,
            links,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|broken| {
            tracing::error!(
                "looking at the runs was broken by a panic, which is a bug: please report it with the lines \
                 before; what was known of unmodified jobs is forgotten, the jobs themselves go on"
            );
            let mut state = broken.into_inner();
            *state = State::new(self.settings, state.last_id, self.clock.now());
            self.state.clear_poison();
            state
        })
    }

    /// Logs the changes and sends them to the subscribers.
    fn publish(&self, state: &mut State) {
        for news in state.insight.take_changes() {
            match &news {
                Change::Explanation { explanation, aloud: true, is_detail: false } => self.log(explanation),
                Change::Explanation { explanation, aloud: true, is_detail: true } => {
                    let Explanation { store, run_id, code, text, .. } = explanation;
                    tracing::debug!(store, run.id = run_id.as_deref(), code, "{text}");
                }
                _ => {}
            }
            let of = |run_id: Option<&str>| EventOf::Run(run_id.map(Arc::from));
            let (name, data, of) = match &news {
                Change::Explanation { explanation, .. } => {
                    ("explanation", serde_json::to_string(explanation), of(explanation.run_id.as_deref()))
                }
                Change::Links(counts) => ("links", serde_json::to_string(counts), EventOf::Server),
                Change::Run(summary) => ("run", serde_json::to_string(summary), of(Some(&summary.run_id))),
                Change::RunGone(gone) => ("run_gone", serde_json::to_string(gone), of(Some(&gone.run_id))),
                Change::TimelineEvent(moment) => {
                    let run = moment.run_id.as_deref().unwrap_or_default();
                    tracing::debug!(run.id = run, code = moment.code, "{run}: {}", moment.text);
                    ("moment", serde_json::to_string(moment), of(moment.run_id.as_deref()))
                }
            };
            state.last_id = state.last_id.saturating_add(1);
            if let Ok(data) = data {
                // An error only means that nobody subscribes.
                let _ = self.events.send(Event { id: state.last_id, name, data: data.into(), of });
            }
        }
    }

    fn log(&self, said: &Explanation) {
        let kind = RULES.iter().position(|rule| rule.code == said.code).unwrap_or(RULES.len());
        let Some(held_back) = self.throttle.pass(kind) else { return };
        let held_back = (held_back > 0).then_some(held_back);
        let (store, code, run) = (said.store, said.code.as_str(), said.run_id.as_deref());
        let pause = if said.remedy.is_empty() { "" } else { "; " };
        let (text, remedy) = (&said.text, &said.remedy);
        match said.severity {
            Severity::Info => {
                tracing::info!(store, run.id = run, code, held_back, "{text}{pause}{remedy}");
            }
            Severity::Warning => {
                tracing::warn!(store, run.id = run, code, held_back, "{text}{pause}{remedy}");
            }
            Severity::Error => {
                tracing::error!(store, run.id = run, code, held_back, "{text}{pause}{remedy}");
            }
        }
    }
}

impl State {
    fn new(settings: Settings, last_id: u64, now: Timestamp) -> Self {
        let insight = Insight::new(settings);
        Self { insight, last_id, waits_at: now, named: BTreeSet::new(), gates: KnownGates::default() }
    }

    /// Whether it is time to walk the waits.
    fn is_time_for_waits(&mut self, now: Timestamp) -> bool {
        let is_time = now.since(self.waits_at) >= WAITS_EVERY;
        if is_time {
            self.waits_at = now;
        }
        is_time
    }

    /// Takes in the news of the native rendezvous.
    fn hear(&mut self, news: &RoundNews) {
        if news.lost > 0 {
            self.insight.lost(news.lost);
        }
        for (snapshot, store) in &news.changed {
            self.insight.observe_native(snapshot, *store);
        }
        for (run, fact, at) in &news.told {
            self.insight.tell_native(run, fact, *at);
        }
        for run in &news.forgotten {
            self.insight.forget_native(run);
        }
    }

    /// Takes in the observations of one store.
    fn take_in(&mut self, port: u16, seen: Seen, now: Timestamp) {
        if seen.lost > 0 {
            self.insight.lost(seen.lost);
        }
        for (at, observed) in seen.items {
            self.insight.observe(port, at, observed);
        }
        if let Some(waits) = seen.waits {
            self.insight.waits(port, waits, &seen.heard, now);
        }
    }

    /// Tells insight who owns each store, before the observations in it.
    fn name_stores(&mut self, listeners: &[Arc<StoreListener>], owner: impl Fn(u16) -> Option<Owner>) {
        let ports: BTreeSet<u16> = listeners.iter().map(|listener| listener.engine().port()).collect();
        for &port in self.named.difference(&ports) {
            self.insight.forget_store(port);
        }
        for &port in ports.difference(&self.named) {
            if let Some(owner) = owner(port) {
                self.insight.own_store(port, in_insight(owner));
            }
        }
        self.named = ports;
    }
}

/// The owner of a store as insight knows it.
fn in_insight(owner: Owner) -> StoreOwner {
    match owner {
        Owner::Run(run_id) => StoreOwner::Run(run_id),
        Owner::Round(run_id, _) => StoreOwner::Round(run_id),
    }
}

impl Watch {
    /// All runs.
    pub fn list(&self) -> RunList {
        self.with_insight(|insight, now| self.listed(insight, now))
    }

    fn listed(&self, insight: &Insight, now: Timestamp) -> RunList {
        let list = insight.documents(now).list(self.stores.connections());
        // Timestamps count from long before the start.
        let started = || list.now - self.clock.up().as_secs_f64();
        RunList { knows_since: self.stores.journal().is_none().then(started), ..list }
    }

    /// One run with all its details.
    pub fn run(&self, run_id: &str, store: Option<u16>, kind: Option<RunKind>) -> Option<Run> {
        // Read each node's last sign of life now: it is not a change, so no news reported it.
        let native = self.rounds.snapshot(&RunId::new(run_id.as_bytes()));
        let (mut state, now) = self.informed();
        if let Some((snapshot, _)) = native {
            state.insight.refresh_native(&snapshot);
        }
        state.insight.documents(now).run(run_id, store, kind)
    }

    /// An operator says how many nodes to expect of a run. Returns the effect, in words, if the run is a
    /// native one.
    pub fn expect(&self, run_id: &str, expectation: Expectation) -> Result<Option<String>, NotExpected> {
        let (mut state, now) = self.informed();
        if !state.insight.has_room_to_expect(run_id) {
            return Err(NotExpected::TooMany);
        }
        let nodes = Nodes { min: expectation.min, max: expectation.max };
        let comes = self.rounds.expect(&RunId::new(run_id.as_bytes()), nodes)?;
        if let Some(journal) = self.stores.journal() {
            journal.commit(|out| put_expectation(run_id, Some(&expectation), out));
        }
        state.insight.expect(run_id, expectation);
        state.insight.tick(now);
        self.publish(&mut state);
        Ok(comes)
    }

    /// A pod came to the gate of a run that has finished, and was turned away.
    pub(super) fn came_late(&self, run_id: &str, pod: &Announcement) {
        let (mut state, now) = self.informed();
        state.insight.came_late(run_id, pod, now);
    }

    /// Forgets a run. `false` if it is not known.
    pub(super) fn forget(&self, run_id: &str) -> bool {
        let (mut state, _) = self.informed();
        let was_known = state.insight.forget(run_id);
        if let Some(journal) = self.stores.journal() {
            journal.commit(|out| put_expectation(run_id, None, out));
        }
        self.keep(&mut state);
        was_known
    }

    /// Looks at the jobs, for ever. Without insight it looks only at native runs, which report their changes
    /// themselves.
    pub(super) async fn keep_looking(&self) {
        loop {
            let began = now();
            self.look();
            let pause = began.elapsed().saturating_mul(PAUSE).clamp(EVERY, WAITS_EVERY);
            tokio::time::sleep(pause).await;
        }
    }

    /// Collects all news.
    pub fn look(&self) {
        let with_waits = self.state().is_time_for_waits(self.clock.now());
        let listeners = self.stores.listeners();
        let waits = (with_waits && self.enabled).then_some(WAITS);
        let seen: Vec<(u16, Seen)> = listeners
            .iter()
            .map(|listener| {
                let port = listener.engine().port();
                let heard = waits.map(|_| self.state().insight.asks_for(port)).unwrap_or_default();
                (port, listener.engine().take_seen(waits, &heard))
            })
            .collect();
        // Only after the stores: a round must be known before the actions of its workers.
        let (mut state, now) = self.informed();
        state.name_stores(&listeners, |port| self.stores.owner(port));
        for (port, seen) in seen {
            state.take_in(port, seen, now);
        }
        for foreign in self.stores.take_foreign() {
            match foreign {
                Foreign::AtStore { port, peer, protocol } => {
                    state.insight.foreign(port, None, peer, protocol, now);
                }
                Foreign::AtAdmin { port, peer } => {
                    let ports = listeners.iter().map(|listener| listener.engine().port());
                    let stores = ports.filter(|port| self.stores.owner(*port).is_none()).collect();
                    state.insight.foreign(port, Some(stores), peer, "TCPStore", now);
                }
            }
        }
        if with_waits {
            let mut share = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            let memory = state.insight.make_room(self.most_memory.min(share.most()));
            share.set(memory);
        }
        if state.insight.was_short_of_room() && !self.said_short.swap(true, Relaxed) {
            tracing::warn!(
                "the jobs have more nodes or ranks than may be remembered ({} bytes, an eighth of \
                 --max-memory): of the others only the number is shown. The jobs themselves are not \
                 affected; raise --max-memory to see all",
                self.most_memory
            );
        }
        if with_waits && self.enabled {
            self.look_at_gates(&mut state, now);
        }
        if with_waits {
            let (counts, away) = self.links.look();
            state.insight.links(counts, away, self.links.take_news(), self.clock.now());
            state.insight.barriers(self.rounds.open_barriers());
        }
        state.insight.tick(now);
        self.publish(&mut state);
        if with_waits {
            self.keep(&mut state);
        }
    }

    /// Appends the changes to the journal.
    fn keep(&self, state: &mut State) {
        let pasts = state.insight.take_pasts();
        if let Some(journal) = self.stores.journal().filter(|_| !pasts.is_empty()) {
            journal.commit(|out| pasts.iter().for_each(|row| put(row, out)));
        }
    }

    /// Copies the runs into the journal again, some at a time.
    pub async fn copy(&self) {
        const AT_ONCE: usize = 64;
        let Some(journal) = self.stores.journal() else { return };
        let mut last: Option<String> = None;
        loop {
            {
                let state = self.state();
                let Some((run_id, expectation)) = state.insight.next_expectation(last.as_deref()) else {
                    break;
                };
                journal.commit(|out| put_expectation(run_id, Some(expectation), out));
                last = Some(run_id.to_owned());
            }
            tokio::task::yield_now().await;
        }
        let mut last = None;
        loop {
            {
                // Under the lock: a stale copy must not follow a newer change in the journal.
                let state = self.state();
                let pasts = state.insight.pasts(last.as_deref(), AT_ONCE);
                let Some((id, _)) = pasts.last() else { return };
                last = Some(id.clone());
                journal.commit(|out| pasts.iter().for_each(|row| put(row, out)));
            }
            journal.write_queued();
            tokio::task::yield_now().await;
        }
    }

    /// Passes the changed gates to insight.
    fn look_at_gates(&self, state: &mut State, now: Timestamp) {
        let State { insight, gates: known, .. } = state;
        let gates = self.gates.look();
        if known.version == gates.version() {
            return;
        }
        known.version = gates.version();
        let heard = Timestamp(now.0.saturating_sub(gates.pod_timeout()));
        known.of_run.retain(|run_id, _| {
            let stays = gates.of(run_id).is_some();
            if !stays {
                insight.gate(run_id, None, heard);
            }
            stays
        });
        for (run_id, gate) in gates.all() {
            if known.of_run.get(run_id) != Some(&gate.version()) {
                known.of_run.insert(run_id.to_owned(), gate.version());
                insight.gate(run_id, gate.snapshot(now, gates.pod_timeout()), heard);
            }
        }
    }

    /// Insight, up to date with the native rendezvous. One lock covers both steps: otherwise an older state
    /// of a run could follow a newer one.
    fn informed(&self) -> (MutexGuard<'_, State>, Timestamp) {
        let mut state = self.state();
        // First: a later event may be a consequence of this.
        for port in self.stores.take_closed_by_operator() {
            let reset = Observed::StoreReset { cause: DropCause::Operator };
            state.insight.observe(port, self.clock.now(), reset);
        }
        state.hear(&self.rounds.take_news());
        (state, self.clock.now())
    }

    /// The memory that insight uses.
    #[cfg(any(test, feature = "sim"))]
    pub fn memory(&self) -> usize {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }

    /// Shows insight, up to date.
    pub fn with_insight<T>(&self, ask: impl FnOnce(&Insight, Timestamp) -> T) -> T {
        let (state, now) = self.informed();
        ask(&state.insight, now)
    }

    /// Lets a test change insight.
    #[cfg(any(test, feature = "sim"))]
    pub fn change_insight(&self, change: impl FnOnce(&mut Insight, Timestamp)) {
        let (mut state, now) = self.informed();
        change(&mut state.insight, now);
    }

    /// The runs at this moment, filtered by `seen`, and every change from then on. `None` if there are
    /// [`MAX_SUBSCRIBERS`] already.
    pub fn subscribe(
        &self,
        seen: impl FnOnce(RunList) -> RunList,
    ) -> Option<(Event, broadcast::Receiver<Event>)> {
        let (state, now) = self.informed();
        if self.events.receiver_count() >= MAX_SUBSCRIBERS {
            return None;
        }
        let events = self.events.subscribe();
        let list = seen(self.listed(&state.insight, now));
        let snapshot = Snapshot { list, version: env!("CARGO_PKG_VERSION").to_owned() };
        let data = serde_json::to_string(&snapshot).unwrap_or_default().into();
        Some((Event { id: state.last_id, name: "snapshot", data, of: EventOf::Server }, events))
    }
}

/// Why an expectation was refused.
#[derive(Debug, thiserror::Error)]
pub enum NotExpected {
    /// There is no room for another one.
    #[error("too many runs are expected already; DELETE /api/v1/runs/{{run_id}} forgets one")]
    TooMany,
    /// It contradicts the nodes of the run.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

/// The operators' expectations when the last server ended.
pub(super) fn expectations(before: &Image) -> impl Iterator<Item = (String, Expectation)> {
    let rows = before.entries.get(&Table::Expectation).into_iter().flatten();
    rows.filter_map(|(id, body)| {
        Some((String::from_utf8(id.to_vec()).ok()?, serde_json::from_slice(body).ok()?))
    })
}

/// Appends the row of an expectation.
fn put_expectation(run_id: &str, expectation: Option<&Expectation>, out: &mut Vec<u8>) {
    // The expectation consists of numbers and texts; it always has a JSON form.
    if let Ok(body) = expectation.map(serde_json::to_vec).transpose() {
        Row::Entry(Table::Expectation, run_id.as_bytes(), body.as_deref()).encode(out);
    }
}

/// Appends the row of a run's past.
fn put((id, past): &PastRow, out: &mut Vec<u8>) {
    // The past consists of numbers and texts; it always has a JSON form.
    if let Ok(body) = past.as_ref().map(serde_json::to_vec).transpose() {
        Row::Entry(Table::Past, id, body.as_deref()).encode(out);
    }
}
