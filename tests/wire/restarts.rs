//! A server with a journal dies and starts again: its clients behind relays notice only a pause.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::disk::SmallDisk;
use crate::common::relay::TestRelay;
use crate::common::{TestServer, eventually, free_ports, http};
use crate::links::{Client, count_together, metric, string, wait};

/// A server that can be started again on its ports, with its journal.
pub(super) struct Mortal {
    ports: [String; 2],
    args: Vec<String>,
    running: Mutex<Option<TestServer>>,
    journal: tempfile::TempDir,
    /// The journal's own disk, if it has one.
    disk: Option<SmallDisk>,
}

impl Mortal {
    fn start(args: &[&str]) -> Self {
        Self::begin(args, None)
    }

    /// Starts a server whose journal has a disk of this size.
    pub(super) fn start_on_disk(size: &str, args: &[&str]) -> Self {
        Self::begin(args, Some(size))
    }

    fn begin(args: &[&str], size: Option<&str>) -> Self {
        let journal = tempfile::tempdir().expect("a folder");
        let free = free_ports(2);
        let ports = [*free.start(), *free.end()].map(|port| format!("127.0.0.1:{port}"));
        let path = Path::to_str(journal.path()).expect("a path");
        let args = [&["--journal", path], args].concat().into_iter().map(String::from).collect();
        let disk = size.map(|size| SmallDisk::over(journal.path(), size));
        let mortal = Self { ports, args, running: Mutex::new(None), journal, disk };
        mortal.live();
        mortal
    }

    /// Starts the server.
    pub(super) fn live(&self) {
        let args: Vec<_> = self.args.iter().map(String::as_str).collect();
        let mut program = self
            .disk
            .as_ref()
            .map_or_else(|| Command::new(env!("CARGO_BIN_EXE_rallypoint")), SmallDisk::rallypoint);
        let server = TestServer::start_as(&mut program, &self.ports[0], &self.ports[1], &args);
        *self.running.lock().expect("no panic") = Some(server);
    }

    /// Kills the server.
    pub(super) fn die(&self) {
        *self.running.lock().expect("no panic") = None;
    }

    /// A relay whose link is up.
    pub(super) fn relay(&self, name: &str) -> TestRelay {
        let relay = TestRelay::start(self.admin(), name, &[]);
        eventually("the relay has its link", || http(relay.admin, "GET /readyz", "", "").status == 200);
        relay
    }

    pub(super) fn store(&self) -> SocketAddr {
        self.ports[0].parse().expect("an address")
    }

    pub(super) fn admin(&self) -> SocketAddr {
        self.ports[1].parse().expect("an address")
    }

    /// The journal's own disk.
    pub(super) fn disk(&self) -> &SmallDisk {
        self.disk.as_ref().expect("it was started on one")
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&TestServer) -> T) -> T {
        look(self.running.lock().expect("no panic").as_ref().expect("it lives"))
    }

    pub(super) fn metric(&self, name: &str) -> u64 {
        self.with(|server| metric(server, name))
    }
}

/// Kills the server again and again while clients count, and wait for each other.
fn nobody_notices(args: &[&str]) {
    let server = Mortal::start(args);
    let relays = ["train-0", "train-1"].map(|name| server.relay(name));
    let stores = relays.each_ref().map(|relay| relay.store);
    let mut deaths = 0;
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| count_together(&stores, 8, 150).expect("no client notices"));
        while !counting.is_finished() {
            std::thread::sleep(Duration::from_micros(20_000 + deaths * 7919 % 30_000));
            server.die();
            server.live();
            deaths += 1;
        }
    });
    assert!(deaths > 2, "it was killed {deaths} times");
}

#[test]
fn killed_at_any_moment_no_client_behind_a_relay_notices() {
    nobody_notices(&[]);
}

#[test]
fn the_same_with_a_journal_that_waits_for_the_disk() {
    nobody_notices(&["--durability", "disk"]);
}

#[test]
fn a_relay_with_a_token_for_some_runs_comes_back_at_once_with_a_server_that_died_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let tokens = write("tokens", "a-token member a-*\nb-token member b-*\n");
    let [a, b] = ["a-token", "b-token"].map(|token| write(token, token));
    let free = free_ports(4);
    let ports = format!("{}-{}", free.start(), free.end());
    let args = ["--token-file", &tokens, "--store-ports", &ports, "--link-grace", "1h"];
    let server = Mortal::start(&args);
    let relay = |token: &str| TestRelay::start(server.admin(), "train-0", &["--token-file", token]);
    let first = relay(&a);
    eventually("it has its link", || first.log().contains("linked to"));
    // When a client is answered, the journal certainly has the link's row.
    assert_eq!(Client::connect(first.store).add(b"n").expect("an answer"), 1);
    server.die();
    drop(first);
    server.live();
    let stranger = relay(&b);
    eventually("another is told", || stranger.log().contains("whose token is for other runs"));
    let second = relay(&a);
    eventually("it has its link", || second.log().contains("linked to"));
    assert!(!second.log().contains("other runs"), "{}", second.log());
    assert_eq!(Client::connect(second.store).add(b"n").expect("an answer"), 2);
}

#[test]
fn waits_and_barriers_go_on_after_a_restart() {
    let server = Mortal::start(&[]);
    let relays = ["train-0", "train-1"].map(|name| server.relay(name));
    let barrier = [&[18][..], &string(b"b"), &2_i64.to_le_bytes()].concat();
    let mut clients = [0, 1, 1].map(|n: usize| Client::connect(relays[n].store));
    clients[0].0.write_all(&barrier).expect("it reads");
    clients[1].0.write_all(&wait(b"k")).expect("it reads");
    eventually("they wait", || server.metric("rallypoint_waiters") == 2);
    for _ in 0..2 {
        server.die();
        server.live();
        let log = || server.with(TestServer::log);
        eventually("it says who is back", || log().contains("2 relays are back"));
        // It was away for longer than this server knows.
        assert!(log().contains("the link of train-0 is back, with"), "{}", log());
        assert!(log().contains("; the journal was written last "), "{}", log());
        let counts = || http(server.admin(), "GET /api/v1/runs", "", "").json()["links"]["connected"].clone();
        eventually("they are counted", || counts() == 2);
        eventually("they wait again", || server.metric("rallypoint_waiters") == 2);
    }
    // A client that had already arrived counts once.
    assert_eq!(clients[2].ask(&barrier, 1).expect("an answer"), [0]);
    clients[2].set(b"k", b"v");
    for client in &mut clients[..2] {
        let mut byte = [0xff];
        client.0.read_exact(&mut byte).expect("an answer");
        assert_eq!(byte, [0]);
    }
    // The barrier can be used again.
    clients[0].0.write_all(&barrier).expect("it reads");
    assert_eq!(clients[1].ask(&barrier, 1).expect("an answer"), [0]);
}

#[test]
fn a_client_that_sends_more_while_it_waits_is_told_that_it_cannot_go_on() {
    let server = Mortal::start(&[]);
    let relay = server.relay("train-0");
    let mut client = Client::connect(relay.store);
    client.0.write_all(&wait(b"never")).expect("it reads");
    // PyTorch's client would wait; the server answers this one.
    assert_eq!(client.add(b"n").expect("an answer"), 1);
    server.die();
    server.live();
    let mut rest = Vec::new();
    assert_eq!(client.0.read_to_end(&mut rest).expect("closed"), 0, "{rest:?}");
    eventually("the relay says why", || relay.log().contains("had sent more while it waited"));
    assert_eq!(Client::connect(relay.store).add(b"n").expect("an answer"), 2, "once");
}

#[test]
fn an_idle_client_outlives_a_tidied_journal_and_then_the_server() {
    let server = Mortal::start(&[]);
    let relay = server.relay("train-0");
    let mut idle = Client::connect(relay.store);
    assert_eq!(idle.add(b"n").expect("an answer"), 1);
    let oldest = || {
        let files = std::fs::read_dir(server.journal.path()).expect("a folder");
        let paths = files.map(|file| file.expect("a file").path());
        paths.filter(|path| path.extension().is_some_and(|it| it == "rows")).min().expect("a segment")
    };
    let first = oldest();
    // The journal is tidied when it has grown by 64 MiB.
    let mut busy = Client::connect(relay.store);
    let large = vec![b'x'; 4 << 20];
    eventually("the journal is tidied", || {
        busy.set(b"large", &large);
        busy.add(b"written").expect("an answer");
        oldest() != first
    });
    server.die();
    server.live();
    assert_eq!(idle.add(b"n").expect("an answer"), 2);
    busy.add(b"written").expect("an answer");
}

#[test]
fn who_comes_and_goes_while_the_server_is_dead_is_heard_once() {
    let server = Mortal::start(&[]);
    let relay = server.relay("train-0");
    let mut before = Client::connect(relay.store);
    assert_eq!(before.add(b"n").expect("an answer"), 1);
    server.die();
    // An ADD whose answer nobody reads, and one of a client that was there before.
    let mut fresh = Client::connect(relay.store);
    let add = [&[4][..], &string(b"n"), &1_i64.to_le_bytes()].concat();
    fresh.0.write_all(&add).expect("the relay reads");
    before.0.write_all(&add).expect("the relay reads");
    drop((fresh, before));
    server.live();
    eventually("both are over", || server.metric("rallypoint_link_sessions") == 0);
    server.die();
    server.live();
    assert_eq!(Client::connect(relay.store).add(b"n").expect("an answer"), 4);
}

#[test]
fn a_server_that_is_upgraded_keeps_its_clients_behind_relays() {
    let server = Mortal::start(&["--drain", "1h"]);
    let relay = server.relay("train-0");
    let mut client = Client::connect(relay.store);
    assert_eq!(client.add(b"n").expect("an answer"), 1);
    client.0.write_all(&wait(b"k")).expect("it reads");
    eventually("it waits", || server.metric("rallypoint_waiters") == 1);
    let log = {
        let mut stopped = server.running.lock().expect("no panic").take().expect("it lives");
        stopped.terminate();
        assert_eq!(stopped.exit_code(), Some(0), "at once: nobody is lost");
        stopped.log()
    };
    assert!(!log.contains("still connected"), "{log}");
    server.live();
    Client::connect(relay.store).set(b"k", b"v");
    let mut byte = [0xff];
    client.0.read_exact(&mut byte).expect("an answer");
    assert_eq!(byte, [0]);
    assert_eq!(client.add(b"n").expect("an answer"), 2);
}

#[test]
fn a_client_whose_relay_does_not_come_back_is_gone_after_the_grace() {
    let server = Mortal::start(&["--link-grace", "3s", "--test-settings", "recovery=300ms"]);
    let relay = server.relay("train-0");
    let mut client = Client::connect(relay.store);
    let barrier = [&[18][..], &string(b"b"), &2_i64.to_le_bytes()].concat();
    client.0.write_all(&barrier).expect("it reads");
    eventually("it waits", || server.metric("rallypoint_waiters") == 1);
    // The answer to a later request shows that the journal has its arrival.
    Client::connect(relay.store).add(b"n").expect("an answer");
    server.die();
    drop(relay);
    server.live();
    assert!(server.metric("rallypoint_link_sessions") > 0, "it is waited for");
    eventually("it is named", || server.with(|server| server.log().contains("1 is still away")));
    eventually("its session is over", || server.metric("rallypoint_link_sessions") == 0);
    let log = server.with(TestServer::log);
    assert!(log.contains("the link of train-0 at 127.0.0.1 has been away for "), "{log}");
    let relay = server.relay("train-1");
    let mut other = Client::connect(relay.store);
    // Its arrival is withdrawn: two more are needed.
    other.0.write_all(&barrier).expect("it reads");
    eventually("it waits", || server.metric("rallypoint_waiters") == 1);
    assert_eq!(Client::connect(relay.store).ask(&barrier, 1).expect("an answer"), [0]);
}

#[test]
fn who_has_not_heard_that_a_named_barrier_was_released_hears_it_after_a_restart() {
    let server = Mortal::start(&[]);
    let arrive = |who: &str| {
        let body = format!(r#"{{"participant":"{who}","arrival_id":"1","world_size":2,"wait_seconds":15}}"#);
        let admin = server.admin();
        http(admin, "POST /api/v1/barriers/b/arrive", "Content-Type: application/json\r\n", &body).json()
    };
    let released = std::thread::scope(|scope| {
        let first = scope.spawn(|| arrive("a"));
        let second = arrive("b");
        [first.join().expect("no panic"), second]
    });
    assert_eq!(released[0]["state"], "released", "{released:?}");
    server.die();
    server.live();
    // The answer was lost: the participant asks again, and no other one comes.
    assert_eq!(arrive("a"), released[0]);
}

#[test]
fn a_pod_that_is_replaced_after_a_restart_passes_the_open_gate() {
    let server = Mortal::start(&[]);
    let announce = |pod: &str, uid: &str| {
        let body = format!(r#"{{"pod":"{pod}","uid":"{uid}","nodes":"2","wait_seconds":0}}"#);
        let path = "POST /api/v1/runs/train/announce";
        http(server.admin(), path, "Content-Type: application/json\r\n", &body).json()["state"].clone()
    };
    assert_eq!(announce("train-0", "a"), "gathering");
    assert_eq!(announce("train-1", "b"), "go");
    server.die();
    server.live();
    assert_eq!(announce("train-1", "c"), "go", "pod train-0 trains, and does not ask again");
}

#[test]
fn what_an_operator_was_told_is_so_after_a_kill_at_that_moment() {
    const JSON: &str = "Content-Type: application/json\r\n";
    let server = Mortal::start(&[]);
    let ask = |request: &str, body: &str| http(server.admin(), request, JSON, body);
    let dies = || {
        server.die();
        server.live();
    };
    let join = |node: &str, wait: u32| {
        let body = format!(
            r#"{{"node":"{node}","join_id":"1","min_nodes":2,"max_nodes":4,"store":false,
                "join_timeout_seconds":60,"wait_seconds":{wait}}}"#
        );
        ask("POST /api/v1/runs/train/join", &body).json()
    };
    for n in 0..4 {
        let run = format!("job-{n}");
        let mut client = Client::connect(server.with(|server| server.store));
        client.set(format!("/torch.rendezvous.{run}").as_bytes(), b"state");
        let there =
            [&[5][..], &1_u64.to_le_bytes(), &string(format!("/torch.rendezvous.{run}").as_bytes())].concat();
        assert_eq!(client.ask(&there, 1).expect("an answer"), [0], "ready");
        let forgotten = ask(&format!("DELETE /api/v1/runs/{run}"), "");
        dies();
        assert_eq!(forgotten.json()["dropped_keys"], 1, "{forgotten:?}");
        assert_eq!(ask(&format!("DELETE /api/v1/runs/{run}"), "").status, 404);
    }
    // The deadline of a native round, and how many nodes it waits for.
    assert_eq!(join("a", 0)["state"], "waiting");
    let extended = ask("POST /api/v1/runs/train/extend", r#"{"by_seconds":3600}"#);
    dies();
    assert!(extended.json()["deadline_seconds"].as_f64() > Some(3600.0), "{extended:?}");
    let again = join("a", 0);
    assert!(again["deadline_seconds"].as_f64() > Some(3600.0), "{again}");
    let expected = ask("PUT /api/v1/runs/train/expect", r#"{"nodes":3}"#);
    dies();
    assert_eq!(expected.status, 200, "{expected:?}");
    let joined = std::thread::scope(|scope| {
        let others = ["a", "b"].map(|node| scope.spawn(move || join(node, 15)));
        let last = join("c", 15);
        others
            .map(|other| other.join().expect("no panic")["state"].clone())
            .into_iter()
            .chain([last["state"].clone()])
            .collect::<Vec<_>>()
    });
    assert_eq!(joined, ["complete"; 3], "without the last call of 30 s");
    // And the fact that a run is to be forgotten with its last node.
    let forgotten = ask("DELETE /api/v1/runs/train", "");
    dies();
    assert_eq!(forgotten.status, 200, "{forgotten:?}");
    for node in ["a", "b", "c"] {
        ask("POST /api/v1/runs/train/leave", &format!(r#"{{"node":"{node}"}}"#));
    }
    eventually("the run is forgotten", || ask("GET /api/v1/runs/train", "").status == 404);
}

#[test]
fn a_native_round_and_its_store_go_on_after_a_restart() {
    let free = free_ports(8);
    let server = Mortal::start(&["--store-ports", &format!("{}-{}", free.start(), free.end())]);
    let relay = server.relay("train-0");
    let post = |what: &str, body: &str| {
        let path = format!("POST /api/v1/runs/train/{what}");
        http(relay.admin, &path, "Content-Type: application/json\r\n", body).json()
    };
    let join = |node: &str| {
        let body = format!(
            r#"{{"node":"{node}","join_id":"1","min_nodes":2,"participants":true,"wait_seconds":15}}"#
        );
        post("join", &body)
    };
    let beat = |node: &str, rank: u32| {
        let body = format!(
            r#"{{"node":"{node}","join_id":"1","round":1,"rank":{rank},"world_size":2,
                "min_nodes":2,"wait_seconds":0}}"#
        );
        post("heartbeat", &body)["action"].clone()
    };
    let joined = std::thread::scope(|scope| {
        let first = scope.spawn(|| join("a"));
        let second = join("b");
        [first.join().expect("no panic"), second]
    });
    assert_eq!(joined[0]["round"], 1, "{joined:?}");
    let store = joined[0]["store"]["port"].as_u64().expect("a store") as u16;
    let mut worker = Client::connect(([127, 0, 0, 1], store).into());
    assert_eq!(worker.add(b"n").expect("an answer"), 1);
    for n in 2..4 {
        server.die();
        server.live();
        assert_eq!(worker.add(b"n").expect("an answer"), n);
        // A node that missed its answer asks again, and gets an equal one.
        assert_eq!(join("a"), joined[0]);
        for (rank, node) in [(0, "a"), (1, "b")] {
            let rank = if joined[0]["group_rank"] == 0 { rank } else { 1 - rank };
            assert_eq!(beat(node, rank), "continue");
        }
    }
    // A node that has finished is not missed after the next restart.
    post("leave", r#"{"node":"a","outcome":"succeeded"}"#);
    server.die();
    server.live();
    let rank = joined[1]["group_rank"].as_u64().expect("a rank") as u32;
    assert_eq!(beat("b", rank), "continue");
    post("leave", r#"{"node":"b","outcome":"succeeded"}"#);
    let log = || server.with(TestServer::log);
    eventually("the run has finished", || log().contains("train finished: 2 nodes"));
    assert!(!log().contains("WARN") && !log().contains("ERROR"), "{}", log());
}

/// The API's view of all runs without times, and the explanations.
fn shown(admin: SocketAddr) -> serde_json::Value {
    const PASSING: [&str; 12] = [
        "now",
        "version",
        "started_at",
        "state_since",
        "completed_at",
        "joined_at",
        "after_seconds",
        "last_heartbeat",
        "waited_seconds",
        "timeline",
        "explanation",
        "explanations",
    ];
    fn strip(json: &mut serde_json::Value) {
        match json {
            serde_json::Value::Object(fields) => {
                fields.retain(|name, _| !PASSING.contains(&name.as_str()));
                fields.values_mut().for_each(strip);
            }
            serde_json::Value::Array(items) => {
                items.iter_mut().for_each(strip);
                items.sort_by_key(ToString::to_string);
            }
            _ => {}
        }
    }
    let get = |path: &str| http(admin, &format!("GET {path}"), "", "").json();
    let list = get("/api/v1/runs");
    let runs = list["runs"].as_array().expect("a list").iter();
    let mut runs = runs
        .map(|run| get(&format!("/api/v1/runs/{}", run["run_id"].as_str().expect("an id"))))
        .collect::<serde_json::Value>();
    strip(&mut runs);
    runs
}

/// When the runs of stores entered their states, and their timelines.
fn pasts(admin: SocketAddr) -> Vec<serde_json::Value> {
    let get = |path: &str| http(admin, &format!("GET {path}"), "", "").json();
    let list = get("/api/v1/runs");
    let runs = list["runs"].as_array().expect("a list").iter().filter(|run| run["kind"] != "native");
    let ids = runs.map(|run| run["run_id"].as_str().expect("an id"));
    let runs = ids.map(|id| get(&format!("/api/v1/runs/{id}")));
    runs.map(|run| serde_json::json!([run["started_at"], run["state_since"], run["timeline"]])).collect()
}

#[test]
fn the_same_jobs_are_shown_after_a_restart_and_nobody_has_died() {
    let free = free_ports(8);
    let ports = format!("{}-{}", free.start(), free.end());
    let server = Mortal::start(&["--store-ports", &ports, "--link-grace", "1h"]);
    let relays = ["train-0", "train-1"].map(|name| server.relay(name));
    let client_as = |relay: usize, pid: u32| {
        let mut client = Client::connect(relays[relay].store);
        client.ask(&[&[13][..], &pid.to_le_bytes()].concat(), 4).expect("a pong");
        client
    };
    let mut pid = 100_u32;
    let mut client = |relay: usize| {
        pid += 1;
        client_as(relay, pid)
    };
    // torchrun with c10d: its agents come one after the other.
    let samples: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("../data/samples/rdzv_states.json")).expect("JSON");
    let stage = "three of four joined, still incomplete";
    let sample = samples.iter().find(|sample| sample["torch"] == "2.15.0" && sample["stage"] == stage);
    let state = sample.and_then(|sample| sample["value_base64"].as_str()).expect("a stage");
    // The process ids in the state.
    let mut c10d = [8960, 9069, 9131].map(|pid| client_as(0, pid));
    for agent in &mut c10d {
        agent.set(b"/torch.rendezvous.dynamic", state.as_bytes());
    }
    // The static rendezvous: node rank 0 waits for the roles of all.
    let mut fixed = [client(0), client(1)];
    let role = |node: usize| format!("/fixed/torchelastic/role_info/{node}").into_bytes();
    (0..2).for_each(|node| fixed[node].set(&role(node), b"{}"));
    let roles = [&[6][..], &3_u64.to_le_bytes(), &string(&role(0)), &string(&role(1)), &string(&role(2))];
    fixed[0].0.write_all(&roles.concat()).expect("it reads");
    fixed[1].0.write_all(&wait(b"/fixed/torchelastic/assigned_ranks/1")).expect("it reads");
    // env://: two of three ranks.
    let mut ranks = [client(0), client(1)];
    for (rank, client) in ranks.iter_mut().enumerate() {
        client.add(b"init/").expect("an answer");
        let host = string(format!("host{rank}").as_bytes());
        let address = [host, string(&[0; 136]), vec![0; 24]].concat();
        client.set(format!("/default_pg/0//cpu//0/{rank}").as_bytes(), &address);
        client.0.write_all(&wait(b"/default_pg/0//cpu//0/2")).expect("it reads");
    }
    // A native round, with a worker in its store.
    let join = |node: &str| {
        let body = format!(
            r#"{{"node":"{node}","join_id":"1","min_nodes":2,"participants":true,"wait_seconds":15}}"#
        );
        http(relays[0].admin, "POST /api/v1/runs/native/join", "Content-Type: application/json\r\n", &body)
            .json()
    };
    let store = std::thread::scope(|scope| {
        scope.spawn(|| join("a"));
        join("b")["store"]["port"].as_u64().expect("a store")
    });
    let mut worker = Client::connect(([127, 0, 0, 1], u16::try_from(store).expect("a port")).into());
    worker.set(b"/default_pg/0//cpu//0/0", b"an address");
    let admin = server.admin();
    let is_all = |runs: &serde_json::Value| {
        let runs = runs.as_array().expect("runs");
        let waits = |run: &serde_json::Value| run["waits"].as_array().map_or(0, Vec::len);
        runs.len() == 4 && runs.iter().map(waits).sum::<usize>() == 4
    };
    eventually("all is seen", || is_all(&shown(admin)));
    let (before, since) = (shown(admin), pasts(admin));
    assert!(
        since.iter().all(|past| past[2].as_array().is_some_and(|timeline| !timeline.is_empty())),
        "{since:?}"
    );
    // The journal has it after a second at the latest.
    std::thread::sleep(Duration::from_millis(1500));
    for _ in 0..2 {
        server.die();
        server.live();
        eventually("all wait again", || is_all(&shown(admin)));
        assert_eq!(shown(admin), before);
        assert_eq!(pasts(admin), since);
    }
    let log = server.with(TestServer::log);
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

/// During a large request, another client reads a key that the request has written, and writes it anew with
/// an acknowledgement. A kill does not undo this write, and the request goes on behind its finished part.
#[test]
fn a_kill_in_the_middle_of_a_large_request_undoes_nothing_of_others() {
    const KEYS: usize = 131_072;
    let name = |n: usize| format!("key-{n:06}").into_bytes();
    let strings = |op: u8, with: &[u8]| {
        let mut request = [&[op][..], &(KEYS as u64).to_le_bytes()].concat();
        for n in 0..KEYS {
            request.extend(string(&name(n)));
            request.extend_from_slice(with);
        }
        request
    };
    let server = Mortal::start(&[]);
    let relay = server.relay("train-0");
    let get = |client: &mut Client, key: &[u8]| {
        let len = client.ask(&[&[3][..], &string(key)].concat(), 8).expect("a length");
        let mut value = vec![0; u64::from_le_bytes(len.try_into().expect("eight bytes")) as usize];
        client.0.read_exact(&mut value).expect("a value");
        value
    };
    let is_there = |client: &mut Client, key: &[u8]| {
        let check = [&[5][..], &1_u64.to_le_bytes(), &string(key)].concat();
        client.ask(&check, 1).expect("an answer") == [0]
    };
    // Behind another relay, because requests behind one relay are done in turn.
    let beside = server.relay("train-1");
    let (mut writer, mut other) = (Client::connect(relay.store), Client::connect(beside.store));
    let multi_set = strings(11, &string(b"theirs"));
    let mut in_the_middle = 0;
    for _ in 0..10 {
        std::thread::scope(|scope| {
            let all = scope.spawn(|| {
                writer.0.write_all(&multi_set).expect("it reads");
                get(&mut writer, &name(KEYS - 1))
            });
            eventually("the first keys are written", || is_there(&mut other, &name(0)));
            other.set(&name(0), b"ours");
            assert_eq!(get(&mut other, &name(0)), b"ours");
            let is_begun = !is_there(&mut other, &name(KEYS - 1));
            server.die();
            server.live();
            assert_eq!(all.join().expect("no panic"), b"theirs");
            assert_eq!(get(&mut other, &name(0)), b"ours");
            in_the_middle += usize::from(is_begun);
        });
        if in_the_middle == 2 {
            break;
        }
        let port = server.with(|server| server.store.port());
        assert_eq!(http(server.admin(), &format!("DELETE /api/v1/stores/{port}"), "", "").status, 200);
        eventually("the store is empty", || !is_there(&mut other, &name(0)));
    }
    assert!(in_the_middle > 0, "the request was always over");

    // A partly sent answer also goes on.
    let reader = Client::connect(relay.store);
    let multi_get = strings(10, b"");
    let read = || -> std::io::Result<Vec<u8>> {
        (&reader.0).write_all(&multi_get)?;
        let mut all = vec![0; KEYS * (8 + b"theirs".len()) - b"theirs".len() + b"ours".len()];
        (&reader.0).read_exact(&mut all[..1000])?;
        server.die();
        server.live();
        (&reader.0).read_exact(&mut all[1000..])?;
        Ok(all)
    };
    let values = [string(b"ours"), string(b"theirs").repeat(KEYS - 1)].concat();
    assert!(read().expect("all of it") == values);
}
