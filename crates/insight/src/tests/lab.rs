//! A store, its clock and insight, with invented clients: the whole pure chain.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use super::state::StateModel;
use super::yardstick::{self, Scene};
use crate::{Change, Insight, Settings};
use rallypoint_api::{self as api, Explanation, Severity};
use rallypoint_journal::{self as journal, Image, OpenStore, Row};
use rallypoint_protocol::ids::{ConnId, Nodes, Timestamp};
use rallypoint_protocol::{KeyList, PROBE, PairList, Payload, Reply, Request};
use rallypoint_rendezvous::gate::{Announcement, GateSnapshot, Gates};
use rallypoint_store::{Capacity, Cleanup, Effects, Observed, StaleKeyConfig, Store, Walk};

pub(super) const PORT: u16 = 29500;
const CAPACITY: Capacity = Capacity { keys: 1 << 20, bytes: 1 << 30 };

#[derive(Debug, Default)]
struct Recorder {
    now: Timestamp,
    seen: Vec<(Timestamp, Observed)>,
    /// What the last CHECK said.
    ready: bool,
    /// What was read last.
    value: Bytes,
    woken: Vec<ConnId>,
}

impl Effects for Recorder {
    fn reply(&mut self, reply: Reply<'_>) {
        match reply {
            Reply::Ready(ready) => self.ready = ready,
            Reply::Value(value) => self.value = value.clone(),
            _ => {}
        }
    }

    fn wake(&mut self, conn: ConnId, _: Timestamp) {
        self.woken.push(conn);
    }

    fn cleanup(&mut self, _: Cleanup) {}

    fn observes(&self) -> bool {
        true
    }

    fn observe(&mut self, observed: Observed) {
        self.seen.push((self.now, observed));
    }
}

/// The laboratory.
pub(super) struct Lab {
    pub(super) store: Store,
    pub(super) insight: Insight,
    settings: Settings,
    stale: StaleKeyConfig,
    /// Places that those have who were there before the last restart.
    taken: u32,
    pub(super) frozen: BTreeSet<u32>,
    /// What each client waited for last.
    waits: BTreeMap<u32, Vec<String>>,
    /// When the server is killed, by the seconds of the story.
    pub(super) restarts: Vec<f64>,
    /// Seconds of the story, and of Unix time, at which the clock of the server began.
    began: f64,
    epoch: f64,
    recorder: Recorder,
    pub(super) now: Timestamp,
    next_tick: Timestamp,
    /// The pauses between two looks in milliseconds, over and over.
    pub(super) pauses: Vec<u64>,
    looks: usize,
    next_waits: Timestamp,
    /// Everything said aloud: seconds, and what.
    pub(super) said: Vec<(f64, Explanation)>,
    pub(super) news: Vec<Change>,
    /// What it is compared with.
    pub(super) scene: Scene,
    pub(super) states: BTreeMap<String, StateModel>,
    pub(super) gates: Gates,
    pub(super) clients: BTreeMap<u32, (ConnId, IpAddr, u32)>,
    pub(super) serial: u32,
}

impl Lab {
    pub(super) fn new() -> Self {
        Self::with(Settings::default(), StaleKeyConfig::default())
    }

    pub(super) fn expecting(min: u32, max: u32) -> Self {
        Self::with(Settings { nodes: Some((min, max)), ..Settings::default() }, StaleKeyConfig::default())
    }

    /// Waits are explained when they have lasted for three seconds.
    pub(super) fn soon() -> Self {
        let explain_after = Duration::from_secs(3);
        Self::with(Settings { explain_after, ..Settings::default() }, StaleKeyConfig::default())
    }

    pub(super) fn with(settings: Settings, stale: StaleKeyConfig) -> Self {
        Self {
            store: Store::new(CAPACITY, stale.clone()),
            insight: Insight::new(settings),
            settings,
            stale,
            taken: 0,
            frozen: BTreeSet::new(),
            waits: BTreeMap::new(),
            restarts: Vec::new(),
            began: 0.0,
            epoch: 0.0,
            recorder: Recorder::default(),
            now: Timestamp::default(),
            next_tick: Timestamp::default(),
            pauses: vec![100],
            looks: 0,
            next_waits: Timestamp::default(),
            said: Vec::new(),
            news: Vec::new(),
            scene: Scene::of_test(),
            states: BTreeMap::new(),
            gates: Gates::new(Duration::from_secs(30), 1000),
            clients: BTreeMap::new(),
            serial: 0,
        }
    }

    /// The server looks at the gate of a run, and hands over what it sees.
    pub(super) fn look_at_gate(&mut self, run: &str) -> Option<GateSnapshot> {
        let gates = &self.gates;
        let snapshot = gates.of(run).and_then(|run| run.snapshot(self.now, gates.pod_timeout()));
        let heard = Timestamp(self.now.0.saturating_sub(gates.pod_timeout()));
        self.insight.gate(run, snapshot.clone(), heard);
        snapshot
    }

    /// Lets time pass until `at` seconds, as the server does: a look ten times a second, if nothing else is
    /// set; the waits once a second.
    pub(super) fn until(&mut self, at: f64) {
        if let Some(&restart) = self.restarts.first().filter(|restart| **restart <= at) {
            self.restarts.remove(0);
            self.until(restart);
            self.restart(60.0, &[]);
        }
        let at = Timestamp(Duration::from_secs_f64((at - self.began).max(0.0)));
        while self.next_tick <= at {
            self.now = self.now.max(self.next_tick);
            self.recorder.now = self.now;
            self.store.tick(self.now, &mut self.recorder);
            self.go_on();
            self.look();
            let pause = self.pauses[self.looks % self.pauses.len()];
            self.looks += 1;
            self.next_tick = self.next_tick + Duration::from_millis(pause);
        }
        self.now = self.now.max(at);
        self.recorder.now = self.now;
    }

    pub(super) fn pass(&mut self, seconds: f64) {
        self.until(self.seconds() + seconds);
    }

    /// Seconds of the story.
    pub(super) fn seconds(&self) -> f64 {
        self.began + self.now.0.as_secs_f64()
    }

    fn go_on(&mut self) {
        let stay: Vec<_> = self.frozen.iter().filter_map(|n| Some(self.clients.get(n)?.0)).collect();
        for conn in self.recorder.woken.extract_if(.., |conn| !stay.contains(conn)).collect::<Vec<_>>() {
            if self.store.peer(conn).is_some() && self.store.waiting_since(conn).is_none() {
                self.store.apply(conn, &Request::NumKeys, self.now, &mut self.recorder).expect("not refused");
            }
        }
    }

    fn look(&mut self) {
        for (at, observed) in std::mem::take(&mut self.recorder.seen) {
            self.insight.observe(PORT, at, observed);
        }
        if self.now >= self.next_waits {
            self.next_waits = self.now + Duration::from_secs(1);
            let (waits, _) = self.store.long_waits(self.now, Duration::from_secs(1), 4096, 4);
            let heard = self.store.heard(&self.insight.asks_for(PORT));
            self.insight.waits(PORT, waits, &heard, self.now);
        }
        self.insight.tick(self.now);
        let at = self.seconds();
        for news in self.insight.take_changes() {
            if let Change::Explanation { explanation, aloud, .. } = &news {
                self.scene.tell(at, self.began - self.epoch, explanation, *aloud);
                if *aloud {
                    assert_eq!(super::grammar::fault(&explanation.text), None, "{}", explanation.text);
                    // What has happened is shown later, too.
                    let is_of_now = !explanation.holds && explanation.text.contains(" ago");
                    assert!(!is_of_now, "{}", explanation.text);
                    self.said.push((at, explanation.clone()));
                }
            }
            self.news.push(news);
        }
    }

    pub(super) fn connect(&mut self, n: u32, addr: &str, pid: u32) {
        self.serial += 1;
        let conn = ConnId::new(self.taken + n, self.serial);
        let addr: IpAddr = addr.parse().expect("an address");
        self.store.connect(conn, SocketAddr::new(addr, 40000 + n as u16));
        self.clients.insert(n, (conn, addr, pid));
    }

    /// An operator resets the store.
    pub(super) fn reset(&mut self) {
        self.store.reset(&mut self.recorder);
    }

    pub(super) fn ping(&mut self, n: u32) {
        let (_, _, pid) = self.clients[&n];
        self.apply(n, &Request::Ping { nonce: pid });
    }

    /// A process connects, and says its id.
    pub(super) fn come(&mut self, n: u32, addr: &str, pid: u32) {
        self.connect(n, addr, pid);
        self.ping(n);
    }

    pub(super) fn is_connected(&self, n: u32) -> bool {
        self.clients.contains_key(&n)
    }

    pub(super) fn leave(&mut self, n: u32) {
        if let Some((conn, ..)) = self.clients.remove(&n) {
            self.store.disconnect(conn, self.now, &mut self.recorder);
        }
    }

    /// The link of a client's relay was away for too long; without one its host has not answered.
    pub(super) fn cut_off(&mut self, n: u32, link: Option<&str>) {
        let (conn, ..) = self.clients[&n];
        self.recorder.observe(Observed::CutOff { conn, link: link.map(Box::from) });
        self.leave(n);
    }

    pub(super) fn apply(&mut self, n: u32, request: &Request<'_>) {
        let (conn, ..) = self.clients[&n];
        if !matches!(request, Request::CancelWait) {
            self.store.abandon_wait(conn);
        }
        self.store.apply(conn, request, self.now, &mut self.recorder).expect("not refused");
    }

    pub(super) fn set(&mut self, n: u32, key: &str, value: &[u8]) {
        self.apply(n, &Request::Set { key: key.as_bytes(), value: Payload::borrowed(value) });
    }

    pub(super) fn add(&mut self, n: u32, key: &str, delta: i64) {
        self.apply(n, &Request::Add { key: key.as_bytes(), delta });
    }

    /// It takes a lock, or tries to.
    pub(super) fn lock(&mut self, n: u32, key: &str) {
        let desired = Payload::borrowed(b"held");
        self.apply(n, &Request::CompareSet { key: key.as_bytes(), expected: b"", desired });
    }

    pub(super) fn get(&mut self, n: u32, key: &str) {
        self.apply(n, &Request::Get { key: key.as_bytes() });
    }

    /// Whether a key is there, as somebody sees who is not of the job.
    pub(super) fn has(&mut self, key: &str) -> bool {
        const LOOKS: u32 = 20_000;
        if !self.is_connected(LOOKS) {
            self.come(LOOKS, "10.9.9.9", PROBE);
        }
        self.asks(LOOKS, key)
    }

    pub(super) fn asks(&mut self, n: u32, key: &str) -> bool {
        let list = [key].iter().collect::<KeyList>();
        self.apply(n, &Request::Check(list.as_list()));
        self.recorder.ready
    }

    pub(super) fn wait(&mut self, n: u32, keys: &[&str]) {
        let list = keys.iter().collect::<KeyList>();
        self.apply(n, &Request::Wait(list.as_list()));
        self.waits.insert(n, keys.iter().map(ToString::to_string).collect());
    }

    pub(super) fn barrier(&mut self, n: u32, key: &str, world_size: i64) {
        self.apply(n, &Request::Barrier { key: key.as_bytes(), world_size });
    }

    pub(super) fn multi_set(&mut self, n: u32, pairs: &[(String, String)]) {
        let list = pairs.iter().map(|(key, value)| (key, value)).collect::<PairList>();
        self.apply(n, &Request::MultiSet(list.as_pairs()));
    }

    pub(super) fn cancel(&mut self, n: u32) {
        self.apply(n, &Request::CancelWait);
    }

    /// The server dies, and the next one goes on with its journal after so many seconds. All clients are
    /// behind relays, but for those that `go`.
    pub(super) fn restart(&mut self, away: f64, go: &[u32]) {
        const ID: u32 = 1;
        self.scene.restarts(self.seconds());
        let mut image = Image::default();
        self.store.keep_rows(ID);
        let mut rows = Vec::new();
        Row::Store(ID, Some(OpenStore { port: PORT, owner: b"" })).encode(&mut rows);
        let mut walk = Walk::default();
        while self.store.copy_rows(&mut walk, 1 << 20, &mut rows) {}
        for row in journal::rows(&rows) {
            image.apply(row.expect("a row").expect("a known one"));
        }
        let waits: Vec<_> = self.store.waits(self.now, usize::MAX, usize::MAX);
        self.clients.retain(|n, _| !go.contains(n));
        let mut stay: Vec<_> = self.clients.values_mut().collect();
        stay.sort_by_key(|(conn, ..)| conn.serial());
        let peer = |conn: ConnId| self.store.peer(conn).expect("a client").0;
        let live: Vec<_> = stay.iter().map(|(conn, ..)| (conn.serial(), peer(*conn))).collect();
        for (place, (conn, ..)) in (0..).zip(&mut stay) {
            *conn = ConnId::new(place, conn.serial());
        }
        self.taken = live.len() as u32;
        // Its clock begins anew, and has times for what was before.
        let (start, until) = (Timestamp(Duration::from_hours(24)), self.now);
        self.began += until.0.as_secs_f64() - start.0.as_secs_f64();
        self.epoch += until.0.as_secs_f64() - start.0.as_secs_f64() + away;
        (self.now, self.next_tick, self.next_waits) = (start, start, start);
        self.recorder = Recorder { now: start, ..Recorder::default() };
        let _ = self.insight.take_pasts();
        let pasts = self.insight.pasts(None, usize::MAX);
        self.insight = Insight::new(Settings { epoch: self.epoch, ..self.settings });
        self.insight.remember(pasts.into_iter());
        self.store = Store::new(CAPACITY, self.stale.clone());
        self.store.restore(ID, image.stores[&ID].clone(), &live, self.now, &mut self.recorder);
        self.look();
        // The relays send again what their clients wait for.
        for wait in waits {
            let is_it =
                |(_, (conn, ..)): &(&u32, &(ConnId, IpAddr, u32))| conn.serial() == wait.conn.serial();
            let Some((n, (conn, ..))) = self.clients.iter().find(is_it) else { continue };
            let keys: KeyList = self.waits.get(n).into_iter().flatten().collect();
            let request = match wait.barrier_size {
                Some(world_size) => Request::Barrier { key: &wait.missing[0], world_size },
                None => Request::Wait(keys.as_list()),
            };
            self.store.apply(*conn, &request, self.now, &mut self.recorder).expect("not refused");
        }
    }

    /// A torchrun agent appears: it connects and makes sure that there is a state.
    pub(super) fn agent(&mut self, n: u32, run: &str) {
        self.come(n, &format!("10.77.0.{}", 10 + n), 1000 + n);
        self.first_cas(n, run);
    }

    /// An agent of c10d comes, and changes the state.
    pub(super) fn joins(&mut self, n: u32, run: &str, change: &str) {
        self.agent(n, run);
        self.cas(n, run, change);
    }

    /// Agents of c10d come and join, one after the other.
    pub(super) fn join(&mut self, run: &str, agents: Range<u32>) {
        agents.for_each(|n| self.joins(n, run, "join"));
    }

    pub(super) fn compare_set(&mut self, n: u32, run: &str, expected: &[u8], desired: &[u8]) {
        let key = format!("/torch.rendezvous.{run}");
        let desired = Payload::borrowed(desired);
        self.apply(n, &Request::CompareSet { key: key.as_bytes(), expected, desired });
    }

    pub(super) fn first_cas(&mut self, n: u32, run: &str) {
        self.compare_set(n, run, b"", b"Y2FuaW1hZGFt");
    }

    /// Agent `n` changes the run's state with a compare-set that succeeds.
    pub(super) fn cas(&mut self, n: u32, run: &str, change: &str) {
        let (_, addr, pid) = self.clients[&n];
        let model = self.states.entry(run.to_owned()).or_default();
        let expected = model.value();
        let host = match addr {
            IpAddr::V4(v4) => format!("node{}", i32::from(v4.octets()[3]) - 10),
            IpAddr::V6(_) => addr.to_string(),
        };
        model.change(n, &host, pid, change, self.now);
        let desired = model.value();
        self.compare_set(n, run, &expected, &desired);
    }

    /// A run of `n` nodes joins and exchanges its roles, without a delay.
    pub(super) fn complete_run(&mut self, run: &str, nodes: u32) {
        for n in 0..nodes {
            self.agent(n, run);
            self.pass(0.2);
            self.cas(n, run, if n + 1 == nodes { "join complete" } else { "join" });
        }
        self.exchange(run, 0, nodes, 1);
        self.pass(0.3);
    }

    /// The role exchange of a round, with `local` workers a node.
    pub(super) fn exchange(&mut self, run: &str, round: u32, nodes: u32, local: u32) {
        let base = format!("/torch.rendezvous.{run}.{round}");
        self.set(0, &format!("{base}/MASTER_ADDR"), b"node0");
        self.set(0, &format!("{base}/MASTER_PORT"), b"41234");
        for n in 0..nodes {
            self.set(n, &format!("{base}/torchelastic/role_info/{n}"), b"{}");
        }
        self.hand_out_ranks(0, &base, nodes, local);
    }

    /// Node rank 0 gives each node so many ranks.
    pub(super) fn hand_out_ranks(&mut self, n: u32, base: &str, nodes: u32, local: u32) {
        let world = nodes * local;
        let ranks = (0..nodes).map(|node| {
            let value = format!("[{0}, {world}, {0}, {world}]", node * local);
            (format!("{base}/torchelastic/assigned_ranks/{node}"), value)
        });
        self.multi_set(n, &ranks.collect::<Vec<_>>());
    }

    /// An agent arrives at the exit barrier of a round (`/torch.rendezvous.job.0`; static: `/job`).
    pub(super) fn reach_exit(&mut self, n: u32, round: &str, is_last: bool) {
        let base = format!("{round}/torchelastic/agent/terminal_state");
        self.add(n, &format!("{base}/num_members"), 1);
        if is_last {
            self.set(n, &format!("{base}/last_member"), b"x");
        }
        self.wait(n, &[&format!("{base}/last_member")]);
    }

    /// The agent of a static run: it tells its role; node rank 0 waits for those of all nodes, the others for
    /// their ranks.
    pub(super) fn static_node(&mut self, n: u32, run: &str, rank: u32, nodes: u32) {
        self.come(n, &format!("10.77.0.{}", 10 + n), 1000 + n);
        let key = |part: &str, node: u32| format!("/{run}/torchelastic/{part}/{node}");
        self.set(n, &key("role_info", rank), b"{}");
        if rank == 0 {
            let roles: Vec<String> = (0..nodes).map(|node| key("role_info", node)).collect();
            self.wait(n, &roles.iter().map(String::as_str).collect::<Vec<_>>());
        } else {
            self.wait(n, &[&key("assigned_ranks", rank)]);
        }
    }

    /// The agent of a static node starts its workers again.
    pub(super) fn restart_workers(&mut self, n: u32, run: &str, rank: u32) {
        self.set(n, &format!("/{run}/torchelastic/role_info/{rank}"), b"{}");
    }

    /// As who hosts a job does again and again: how many have counted themselves.
    pub(super) fn count(&mut self, n: u32) -> u32 {
        self.get(n, "init/");
        std::str::from_utf8(&self.recorder.value).expect("a number").parse().expect("a number")
    }

    /// A worker of `env://` connects.
    pub(super) fn worker(&mut self, n: u32, addr: &str) {
        self.come(n, addr, 2000 + n);
        self.add(n, "init/", 1);
    }

    /// Rank `rank` publishes its gloo address, made for `world` ranks.
    pub(super) fn publish(&mut self, n: u32, rank: u32, world: usize) {
        self.set(n, &format!("/default_pg/0//cpu//0/{rank}"), &gloo(&format!("host{n}"), world));
    }

    pub(super) fn rank(&mut self, n: u32, addr: &str, rank: u32, world: usize) {
        self.worker(n, addr);
        self.publish(n, rank, world);
    }

    pub(super) fn wait_for_rank(&mut self, n: u32, rank: u32) {
        self.wait(n, &[&format!("/default_pg/0//cpu//0/{rank}")]);
    }

    /// What was said of one kind.
    pub(super) fn texts(&self, code: &str) -> Vec<&str> {
        let of_kind = self.said.iter().filter(|(_, said)| said.code == code);
        of_kind.map(|(_, said)| said.text.as_str()).collect()
    }

    /// All that is shown, of runs and of none.
    pub(super) fn shown(&self) -> Vec<Explanation> {
        let list = self.insight.documents(self.now).list(0);
        let runs = list.runs.iter();
        let runs = runs
            .filter_map(|run| self.insight.documents(self.now).run(&run.run_id, run.store, Some(run.kind)));
        runs.flat_map(|run| run.explanations).chain(list.explanations).collect()
    }

    /// How often something of this kind is on the timeline of the run without an id.
    pub(super) fn moments(&self, code: &str) -> usize {
        self.run("store:29500").timeline.iter().filter(|moment| moment.code == code).count()
    }

    /// Warnings and errors that were said.
    pub(super) fn complaints(&self) -> Vec<&str> {
        let is_one = |(_, said): &&(f64, Explanation)| said.severity > Severity::Info;
        self.said.iter().filter(is_one).map(|(_, said)| said.text.as_str()).collect()
    }

    pub(super) fn run(&self, run_id: &str) -> api::Run {
        let run = self.insight.documents(self.now).run(run_id, None, None);
        let run = run.unwrap_or_else(|| panic!("no run {run_id}"));
        // The list of runs and the run's own list begin with the same one.
        if let (Some(headline), Some(first)) = (&run.summary.explanation, run.explanations.first()) {
            assert!([&*headline.code, "two_backends"].contains(&&*first.code), "{:?}", run.explanations);
        }
        run
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.scene.is_held() && !std::thread::panicking() {
            yardstick::hold(&self.scene).unwrap_or_else(|lost| panic!("{lost}"));
        }
    }
}

/// A gloo address as PyTorch writes it.
pub(super) fn gloo(host: &str, world: usize) -> Vec<u8> {
    let mut value = (host.len() as u64).to_le_bytes().to_vec();
    value.extend_from_slice(host.as_bytes());
    value.extend_from_slice(&136_u64.to_le_bytes());
    value.extend(std::iter::repeat_n(0, 136 + 8 * world));
    value
}

/// What a pod says at the gate. Its address has its rank at the end.
pub(super) fn announcement(pod: &str, rank: u32, nodes: u32) -> Announcement {
    Announcement {
        pod: pod.into(),
        uid: String::new(),
        node_rank: Some(rank),
        nodes: Nodes::exactly(nodes),
        address: IpAddr::from([10, 1, 0, rank as u8]),
        torch: None,
        world_size: None,
        ip: None,
        restarts: false,
    }
}
