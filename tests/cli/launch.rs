//! `env`, `run` and `wait --nodes` from outside: real processes against a real server.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::peer::Peer;
use crate::common::relay::TestRelay;
use crate::common::{TestServer, eventually, http, terminate, wait_for_end};
use rallypoint_protocol::{Dialect, KeyList, Payload, Request, encode_request};

fn rallypoint(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.args(args).env_clear().env("PATH", path).envs(env.iter().copied());
    command
}

fn output(args: &[&str], env: &[(&str, &str)]) -> Output {
    rallypoint(args, env).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A pod of a run: its name, its node rank, and the flags for the server.
struct Pod<'a> {
    server: &'a TestServer,
    name: &'a str,
    rank: &'a str,
    uid: &'a str,
}

impl Pod<'_> {
    fn env(&self) -> Vec<(String, String)> {
        [
            ("POD_NAME", self.name.to_owned()),
            ("POD_UID", self.uid.to_owned()),
            ("PET_NODE_RANK", self.rank.to_owned()),
            ("RALLYPOINT_ENDPOINT", self.server.store.to_string()),
            ("RALLYPOINT_ADMIN", self.server.admin.to_string()),
            ("RALLYPOINT_RUN_ID", "run".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn start(&self, args: &[&str]) -> Child {
        let env = self.env();
        let env: Vec<(&str, &str)> =
            env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        rallypoint(args, &env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts")
    }
}

/// Waits for the end of a process. Returns its exit code, stdout and stderr.
fn ended(mut process: Child) -> (Option<i32>, String, String) {
    let code = wait_for_end(&mut process);
    let (mut out, mut err) = (String::new(), String::new());
    process.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
    process.stderr.take().expect("piped").read_to_string(&mut err).expect("text");
    (code, out, err)
}

fn announced(admin: SocketAddr) -> serde_json::Value {
    let answer = http(admin, "GET /api/v1/runs/run/announce", "", "");
    if answer.status == 200 { answer.json() } else { serde_json::json!({"pods": []}) }
}

fn pods(admin: SocketAddr) -> usize {
    announced(admin)["pods"].as_array().map_or(0, Vec::len)
}

const INDEXED: [(&str, &str); 5] = [
    ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ("JOB_COMPLETION_INDEX", "2"),
    ("MASTER_ADDR", "train-0.train"),
    ("NNODES", "4"),
    ("JOB_UID", "it's-1"),
];

#[test]
fn env_prints_what_a_shell_a_script_and_a_container_can_read() {
    let shell = text(&output(&["env"], &INDEXED).stdout);
    assert!(shell.contains("export PET_NODE_RANK='2'\n") && shell.contains("export RANK='2'\n"), "{shell}");
    let evaluated = Command::new("sh")
        .args(["-c", &format!("{shell}\necho $PET_RDZV_ID $PET_RDZV_ENDPOINT $WORLD_SIZE")])
        .output()
        .expect("a shell");
    assert_eq!(text(&evaluated.stdout), "it's-1 train-0.train:29500 4\n");
    let json: serde_json::Value =
        serde_json::from_slice(&output(&["env", "--format", "json"], &INDEXED).stdout).expect("JSON");
    assert_eq!((&json["PET_NNODES"], &json["MASTER_PORT"]), (&"4".into(), &"29500".into()));
    let docker = text(&output(&["env", "--format=docker"], &INDEXED).stdout);
    assert!(docker.lines().any(|line| line == "PET_RDZV_ID=it's-1"), "{docker}");
}

#[test]
fn env_explains_and_refuses() {
    let explained = output(&["env", "--explain"], &INDEXED);
    let why = text(&explained.stderr);
    assert!(why.contains("# platform: Indexed Job"), "{why}");
    assert!(why.contains("# PET_NODE_RANK=2  <- JOB_COMPLETION_INDEX: set by the Job controller"), "{why}");
    let hostile = [&INDEXED[..], &[("PET_RDZV_ID", "train\n# PET_NODE_RANK=7\x1b[2J")]].concat();
    let shown =
        text(&output(&["env", "--explain"], &hostile).stderr).lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(
        shown.iter().any(|line| line.starts_with("# PET_RDZV_ID=train\\n# PET_NODE_RANK=7\\u{1b}[2J")),
        "{shown:?}"
    );
    let json = output(&["env", "--explain", "--format=json"], &INDEXED);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["variables"]["PET_NNODES"]["from"], "NNODES: number of nodes");
    assert_eq!(json["launch"]["platform"], "indexed-job");

    let said = [("RALLYPOINT_NODES", "4"), ("RALLYPOINT_NODE_RANK", "1")];
    let why = text(&output(&["env", "--explain", "--node-rank=2"], &said).stderr);
    assert!(why.contains("# PET_NNODES=4  <- RALLYPOINT_NODES: said to rallypoint"), "{why}");
    assert!(why.contains("# PET_NODE_RANK=2  <- --node-rank: said to rallypoint"), "{why}");
    let why = text(&output(&["env", "--node-rank=2"], &[("RALLYPOINT_NODES", "many")]).stderr);
    assert!(why.contains("RALLYPOINT_NODES is `many`; write N or MIN:MAX"), "{why}");

    let contradiction = [("PET_NODE_RANK", "1"), ("JOB_COMPLETION_INDEX", "2")];
    let refused = output(&["env"], &contradiction);
    assert_eq!((refused.status.code(), &refused.stdout[..]), (Some(2), &b""[..]));
    assert!(text(&refused.stderr).contains("PET_NODE_RANK and JOB_COMPLETION_INDEX differ"));
    let decided = output(&["env", "--node-rank=3"], &contradiction);
    assert!(text(&decided.stdout).contains("PET_NODE_RANK='3'"));
    assert_eq!(output(&["env"], &[]).status.code(), Some(1), "nothing follows from nothing");
}

#[test]
fn env_names_what_it_sees_and_does_not_use() {
    let acme = [("ACME_NODE_RANK", "3"), ("MASTER_ADDR", "head"), ("PET_NNODES", "4")];
    let said = output(&["env"], &acme);
    assert_eq!(said.status.code(), Some(0));
    assert!(!text(&said.stdout).contains("PET_NODE_RANK"), "{}", text(&said.stdout));
    let line = "ACME_NODE_RANK=3 is not used; if it says this, set RALLYPOINT_NODE_RANK=\"$ACME_NODE_RANK\"";
    assert!(text(&said.stderr).contains(line), "{}", text(&said.stderr));
    // The suggested line works.
    let decided = output(&["env"], &[&acme[..], &[("RALLYPOINT_NODE_RANK", "3")]].concat());
    assert!(text(&decided.stdout).contains("PET_NODE_RANK='3'") && decided.stderr.is_empty());
    let (checks, code) = {
        let doctor = output(&["doctor", "--json", "--step-timeout=100ms"], &[("ACME_NODE_RANK", "3")]);
        let json: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
        (json["checks"].to_string(), doctor.status.code())
    };
    assert!(
        checks.contains("environment-understood") && checks.contains("ACME_NODE_RANK=3"),
        "{code:?} {checks}"
    );
}

#[test]
fn four_processes_are_held_until_the_last_is_there() {
    let server = TestServer::start(&[]);
    let names = ["t-0", "t-1", "t-2", "t-3"];
    let start = |rank: usize| {
        let rank_text = rank.to_string();
        let pod = Pod { server: &server, name: names[rank], rank: &rank_text, uid: "a" };
        pod.start(&["run", "--nodes=4", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE at $MASTER_PORT"])
    };
    let mut first: Vec<Child> = (0..3).map(start).collect();
    eventually("three pods are announced", || pods(server.admin) == 3);
    assert!(first.iter_mut().all(|pod| pod.try_wait().expect("its child").is_none()), "nobody starts early");
    first.push(start(3));
    let mut ports = Vec::new();
    for (rank, pod) in first.into_iter().enumerate() {
        let (code, out, err) = ended(pod);
        assert_eq!(code, Some(0), "{err}");
        let (who, port) = out.trim().rsplit_once(' ').expect("words");
        assert_eq!(who, format!("{rank} of 4 at"));
        ports.push(port.to_owned());
        assert!(err.contains("all 4 pods are there"), "{err}");
    }
    // All pods were given one store, which is not the main one.
    assert!(
        ports.iter().all(|port| *port == ports[0] && *port != server.store.port().to_string()),
        "{ports:?}"
    );
    eventually("the log says it", || server.log().contains("run run: all pods are there after"));
}

#[test]
fn progress_names_who_is_missing_and_a_late_pod_passes_at_once() {
    let server = TestServer::start(&[]);
    let pod = |name, rank, uid| Pod { server: &server, name, rank, uid };
    let waiting = pod("t-0", "0", "a").start(&["wait", "--nodes=2", "--timeout=20s"]);
    eventually("announced", || pods(server.admin) == 1);
    let late = pod("t-0", "0", "a").start(&["wait", "--nodes=2", "--timeout=2s", "--json"]);
    let (code, out, err) = ended(late);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("1 of 2 pods are there; missing: t-1 (node rank 1)"), "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&json["ready"], &json["step"]), (&false.into(), &"gather".into()));
    assert_eq!(ended(pod("t-1", "1", "b").start(&["wait", "--nodes=2"])).0, Some(0));
    assert_eq!(ended(waiting).0, Some(0));
    // A successor under the same name, with a new UID: it needs no second gathering.
    let (code, _, err) = ended(pod("t-1", "1", "b2").start(&["run", "--nodes=2", "--", "true"]));
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn a_second_pod_with_a_rank_that_lives_is_parked_until_the_first_is_gone() {
    let server = TestServer::start(&["--test-settings", "pod-timeout=5s"]);
    let pod = |name, rank, uid| Pod { server: &server, name, rank, uid };
    let other = pod("job-0-aaaaa", "0", "a").start(&["wait", "--nodes=2"]);
    let holder = pod("job-1-bbbbb", "1", "b").start(&["wait", "--nodes=2"]);
    assert_eq!((ended(other).0, ended(holder).0), (Some(0), Some(0)));
    let (code, _, err) = ended(pod("job-1-ccccc", "1", "c").start(&["wait", "--nodes=2", "--timeout=1s"]));
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("node rank 1 is held by pod `job-1-bbbbb` at 127.0.0.1"), "{err}");
    // The first two pods are gone, so this is the first pod of a new gathering.
    let successor = pod("job-1-ccccc", "1", "c").start(&["wait", "--nodes=2"]);
    eventually("the rank is free", || {
        let said = announced(server.admin);
        said["pods"].as_array().is_some_and(|pods| pods.iter().any(|pod| pod["pod"] == "job-1-ccccc"))
    });
    assert_eq!(ended(pod("job-0-ddddd", "0", "d").start(&["wait", "--nodes=2"])).0, Some(0));
    assert_eq!(ended(successor).0, Some(0));
}

#[test]
fn the_gate_does_not_count_a_pod_whose_relay_is_away() {
    let server = TestServer::start(&["--link-grace=60s"]);
    let announce = |admin, rank: u32| {
        let said = serde_json::json!({"pod": format!("t-{rank}"), "uid": "a", "node_rank": rank, "nodes": "2",
            "wait_seconds": 0});
        let route = "POST /api/v1/runs/run/announce";
        http(admin, route, "Content-Type: application/json\r\n", &said.to_string())
    };
    let first = || announced(server.admin)["pods"][0].clone();
    let mut relay = TestRelay::start(server.admin, "t-0", &[]);
    let linked = || {
        http(server.admin, "GET /metrics", "", "").body.contains("rallypoint_links{state=\"connected\"} 1")
    };
    eventually("the relay is linked", linked);
    assert_eq!(announce(relay.admin, 0).status, 202);
    std::thread::sleep(Duration::from_secs(2));
    eventually("the gate has seen the link", || {
        first()["silent_seconds"].as_f64().is_some_and(|it| it < 1.5)
    });
    // The host is lost; the sessions of its relay stay for --link-grace.
    relay.process.kill().expect("its child");
    relay.process.wait().expect("its child");
    eventually("the pod is not there", || first()["live"] == false);
    let waits = announce(server.admin, 1);
    assert_eq!(waits.status, 202, "{}", waits.body);
    let missing = "1 of 2 pods are there; missing: t-0 (node rank 0, was there, and its link is away)";
    assert!(waits.body.contains(missing), "{}", waits.body);
    let _relay = TestRelay::start(server.admin, "t-0", &[]);
    eventually("the pod is there again", || first()["live"] == true);
    let goes = announce(server.admin, 1);
    assert!(goes.status == 200 && goes.body.contains("all 2 pods are there"), "{}", goes.body);
}

/// One rank fails at an import, beside others that hang in it.
#[test]
fn pods_that_use_no_store_count_as_long_as_their_relays_are_linked() {
    let server = TestServer::start(&["--test-settings", "pod-timeout=2s"]);
    let start = |rank, command: &[&str]| {
        let name = format!("t-{rank}");
        let pod = Pod { server: &server, name: &name, rank, uid: "a" };
        pod.start(
            &[&["run", "--nodes=3", "--relay=on", "--mode=env", "--own-store=off", "--"], command].concat(),
        )
    };
    let mut hang = [start("0", &["sleep", "600"]), start("1", &["sleep", "600"])];
    let (code, _, err) = ended(start("2", &["false"]));
    assert_eq!(code, Some(1), "{err}");
    let run = || http(server.admin, "GET /api/v1/runs/run", "", "").json();
    let shown = |there: u32| {
        let run = run();
        let nodes = &run["nodes"];
        // Nobody misses them when all have left.
        let (gone, missing) = (3 - there, if there == 0 { 0 } else { 3 - there });
        nodes["joined"] == there && nodes["gone"] == gone && nodes["missing"] == missing
    };
    eventually("its relay is gone", || shown(2));
    // The end of one pod makes no other one silent.
    std::thread::sleep(Duration::from_secs(4));
    assert!(shown(2), "{}", run());
    assert_eq!(run()["missing"][0]["name"], "t-2");
    assert_eq!(pods(server.admin), 3, "who has one address keeps all of it");
    for pod in &mut hang {
        terminate(pod);
    }
    eventually("all are gone", || shown(0));
    for pod in hang {
        ended(pod);
    }
}

#[test]
fn a_killed_pod_comes_again_with_another_rank_and_the_one_that_was_held_back_goes_on() {
    let server = TestServer::start(&["--test-settings", "pod-timeout=10min"]);
    let pod = |name, rank, uid| {
        let pod = Pod { server: &server, name, rank, uid };
        pod.start(&["wait", "--nodes=2", "--timeout=60s"])
    };
    let mut first = pod("w-a", "1", "a");
    eventually("announced", || pods(server.admin) == 1);
    let seen = Instant::now();
    let held_back = pod("w-b", "1", "b");
    eventually("both claim it", || server.log().contains("have claimed node rank 1"));
    // The first request is held for a second, and the next one for half a minute. Between the two, no
    // connection would break.
    std::thread::sleep(Duration::from_secs(3).saturating_sub(seen.elapsed()));
    first.kill().expect("it is there");
    first.wait().expect("it ends");
    eventually("its rank is free", || {
        announced(server.admin)["pods"][0]["pod"] == "w-b" && pods(server.admin) == 1
    });
    let (code, _, err) = ended(pod("w-a", "0", "a2"));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(ended(held_back).0, Some(0));
}

#[test]
fn two_live_commands_that_claim_one_place_are_told_so() {
    let server = TestServer::start(&[]);
    let command = |rank: &str, timeout: &str| {
        let args = ["run", "--nodes=2", "--node-rank", rank, "--gather-timeout", timeout, "--", "true"];
        let (endpoint, admin) = (server.store.to_string(), server.admin.to_string());
        let env = [
            ("RALLYPOINT_ENDPOINT", &endpoint[..]),
            ("RALLYPOINT_ADMIN", &admin),
            ("RALLYPOINT_RUN_ID", "run"),
        ];
        rallypoint(&args, &env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts")
    };
    let first = command("0", "10s");
    eventually("announced", || pods(server.admin) == 1);
    let uid = |admin| announced(admin)["pods"][0]["uid"].clone();
    let before = uid(server.admin);
    let second = command("0", "30s");
    eventually("the second one came", || uid(server.admin) != before);
    let (code, _, err) = ended(first);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("claim node rank 0") && err.contains("--node-rank"), "{err}");
    eventually("the server says it, too", || server.log().contains("two processes have claimed node rank 0"));
    let other = command("1", "30s");
    assert_eq!((ended(other).0, ended(second).0), (Some(0), Some(0)));
}

/// A path to the admin port on which each process loses its first `lost` answers.
fn lossy(admin: SocketAddr, lost: usize) -> SocketAddr {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let here = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for (n, client) in listener.incoming().enumerate() {
            let Ok(mut client) = client else { return };
            std::thread::spawn(move || {
                let mut server = std::net::TcpStream::connect(admin).expect("the admin port listens");
                let (mut up, mut from_client) =
                    (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
                std::thread::spawn(move || std::io::copy(&mut from_client, &mut up));
                if n < lost {
                    // The request arrives, but its answer does not.
                    let _ = server.read(&mut [0; 4096]);
                    let _ = client.shutdown(std::net::Shutdown::Both);
                } else {
                    let _ = std::io::copy(&mut server, &mut client);
                    let _ = client.flush();
                }
            });
        }
    });
    here
}

#[test]
fn pods_that_lose_an_answer_meet_on_the_same_store_as_the_others() {
    for gather in ["on", "off"] {
        let server = TestServer::start(&[]);
        let start = |rank: &str, admin: SocketAddr| {
            let (endpoint, admin) = (server.store.to_string(), admin.to_string());
            let env = [
                ("POD_NAME", &*format!("t-{rank}")),
                ("PET_NODE_RANK", rank),
                ("RALLYPOINT_ENDPOINT", &endpoint),
                ("RALLYPOINT_ADMIN", &admin),
                ("RALLYPOINT_RUN_ID", "run"),
            ];
            rallypoint(&["run", "--nodes=2", "--gather", gather, "--", "sh", "-c", "echo $MASTER_PORT"], &env)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the binary starts")
        };
        let unlucky = start("0", lossy(server.admin, 2));
        let lucky = start("1", server.admin);
        let (code, unlucky, err) = ended(unlucky);
        assert_eq!(code, Some(0), "{err}");
        let (code, lucky, err) = ended(lucky);
        assert_eq!(code, Some(0), "{err}");
        assert_eq!(unlucky, lucky, "gather {gather}");
        assert_ne!(lucky.trim(), server.store.port().to_string());
    }
}

#[test]
fn without_a_store_of_its_own_a_run_is_not_started_on_another() {
    let server = TestServer::with_store_ports(1, &[]);
    http(server.admin, "POST /api/v1/stores", "Content-Type: application/json\r\n", r#"{"run_id": "other"}"#);
    for gather in ["on", "off"] {
        let pod = Pod { server: &server, name: "t-0", rank: "0", uid: "a" };
        let gather = format!("--gather={gather}");
        let (code, out, err) =
            ended(pod.start(&["run", "--nodes=1", &gather, "--gather-timeout=2s", "--", "echo", "started"]));
        assert_eq!((code, &*out), (Some(1), ""), "{err}");
        assert!(err.contains("--store-ports"), "{err}");
    }
}

#[test]
fn the_lines_of_the_readme_meet_on_one_machine() {
    let readme = include_str!("../../README.md");
    let (_, block) = readme.split_once("<!-- two runs on one machine -->\n\n```sh\n").expect("the block");
    let (lines, _) = block.split_once("```").expect("its end");
    let runs: Vec<&str> = lines.lines().filter(|line| line.contains(" run ")).collect();
    assert_eq!(runs.len(), 2, "{lines}");
    let server = TestServer::start(&[]);
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_rallypoint"), dir.path().join("rallypoint"))
        .expect("a link");
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap_or_default());
    let shell = Command::new("sh")
        .args(["-c", &format!("{}\nwait", runs.join("\n"))])
        .env_clear()
        .env("PATH", path)
        .env("RALLYPOINT_ENDPOINT", server.store.to_string())
        .env("RALLYPOINT_ADMIN", server.admin.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell");
    let (code, out, err) = ended(shell);
    assert_eq!(code, Some(0), "{err}");
    let mut said: Vec<&str> = out.lines().collect();
    said.sort_unstable();
    let store = said[0].rsplit_once(' ').expect("words").1.to_owned();
    assert_eq!(said, [format!("rank 0 of 2 meets at {store}"), format!("rank 1 of 2 meets at {store}")]);
}

fn run_list(server: &TestServer) -> Vec<serde_json::Value> {
    let list = http(server.admin, "GET /api/v1/runs", "", "").json();
    list["runs"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_run_that_gathers_is_shown_explained_and_counted() {
    let server = TestServer::start(&["--explain-after=1s"]);
    let start = |name: &'static str, rank: &'static str| {
        Pod { server: &server, name, rank, uid: "a" }.start(&["wait", "--nodes=3", "--timeout=60s"])
    };
    let mut pods = vec![start("t-0", "0"), start("t-1", "1")];
    eventually("the explanation", || {
        run_list(&server)
            .first()
            .and_then(|run| run["explanation"]["text"].as_str().map(|said| said.contains("t-2")))
            .unwrap_or_default()
    });
    let runs = run_list(&server);
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!((&runs[0]["kind"], &runs[0]["state"]), (&"gathering".into(), &"joining".into()));
    let run = http(server.admin, "GET /api/v1/runs/run", "", "").json();
    assert_eq!(
        (&run["participants"][1]["name"], &run["participants"][1]["state"]),
        (&"t-1".into(), &"announced".into())
    );
    assert_eq!((&run["missing"][0]["name"], &run["missing"][0]["rank"]), (&"t-2".into(), &2.into()));
    let metrics = http(server.admin, "GET /metrics", "", "").body;
    for line in [
        "rallypoint_rendezvous_expected_nodes{run_id=\"run\"} 3",
        "rallypoint_rendezvous_joined_nodes{run_id=\"run\"} 2",
        "rallypoint_rendezvous_missing_nodes{run_id=\"run\"} 1",
        "rallypoint_rendezvous_kind{kind=\"gathering\",run_id=\"run\"} 1",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
    }
    let status = output(&["status", &server.admin.to_string()], &[]);
    let status = text(&status.stdout);
    assert!(status.contains("t-2") && status.contains("2/3"), "{status}");
    eventually("the log says it too", || server.log().contains("t-2"));
    // A surplus pod is reported even though nobody waits for it.
    let mut twin = start("u-1", "1");
    eventually("the log names both", || {
        let log = server.log();
        log.contains(
            "run: two processes have claimed node rank 1: pod t-1 at 127.0.0.1 and pod u-1 at 127.0.0.1",
        )
    });
    pods.push(start("t-2", "2"));
    for pod in pods {
        let (code, _, err) = ended(pod);
        assert_eq!(code, Some(0), "{err}");
    }
    eventually("nobody is missing", || {
        let metrics = http(server.admin, "GET /metrics", "", "").body;
        metrics.contains("rallypoint_rendezvous_missing_nodes{run_id=\"run\"} 0")
    });
    twin.kill().expect("its child");
    twin.wait().expect("its child");
}

#[test]
fn pods_with_several_versions_of_torch_are_told_once() {
    let server = TestServer::start(&[]);
    for (pod, torch) in [("t-0", "2.15.0"), ("t-1", "2.14.0")] {
        let body = serde_json::json!({"pod": pod, "nodes": "2", "torch": torch}).to_string();
        let json = "Content-Type: application/json\r\n";
        let answer = http(server.admin, "POST /api/v1/runs/run/announce", json, &body);
        assert!(matches!(answer.status, 200 | 202), "{answer:?}");
    }
    let text = "run: the pods have different versions of PyTorch: 2.14.0 (t-1), 2.15.0 (t-0)";
    eventually("the log says so", || server.log().contains(text));
    assert_eq!(server.log().matches("versions of PyTorch").count(), 1, "{}", server.log());
}

/// The keys that the agents of a c10d run of one node leave behind after it has finished.
fn finish(server: &TestServer) {
    let state = include_str!("../data/samples/rdzv_states.json");
    let samples: Vec<serde_json::Value> = serde_json::from_str(state).expect("JSON");
    let complete = samples
        .iter()
        .find(|sample| sample["torch"] == "2.15.0" && sample["stage"] == "round complete, ranks assigned");
    let state = complete.and_then(|sample| sample["value_base64"].as_str()).expect("a stage");
    let mut agent = Peer::greet(server.store);
    let mut say = |request: &Request<'_>| {
        let mut wire = Vec::new();
        assert!(encode_request(request, Dialect::C, &mut wire));
        agent.send(&wire);
    };
    let exit = "/torch.rendezvous.run.0/torchelastic/agent/terminal_state";
    let (members, last) = (format!("{exit}/num_members"), format!("{exit}/last_member"));
    say(&Request::Set { key: b"/torch.rendezvous.run", value: Payload::borrowed(state.as_bytes()) });
    say(&Request::Add { key: members.as_bytes(), delta: 4 });
    say(&Request::Set { key: last.as_bytes(), value: Payload::borrowed(b"x") });
    eventually("the run has finished", || {
        run_list(server).first().is_some_and(|run| run["state"] == "finished")
    });
}

#[test]
fn a_finished_run_is_not_started_again_by_a_straggler() {
    let server = TestServer::start(&[]);
    assert_eq!(ended(run_alone(&server, &["--", "true"])).0, Some(0));
    finish(&server);
    let (code, out, err) = ended(run_alone(&server, &["--", "echo", "started"]));
    assert_eq!((code, &out[..]), (Some(1), ""), "{err}");
    assert!(err.contains("run `run` finished ") && err.contains("--restart-finished on"), "{err}");
    assert!(!err.contains("--gather off"), "the admin port is not the trouble: {err}");
    let (code, out, err) = ended(run_alone(&server, &["--restart-finished=on", "--", "echo", "started"]));
    assert_eq!((code, out.trim()), (Some(0), "started"), "{err}");
    // An operator may make the server forget that it finished.
    assert_eq!(http(server.admin, "DELETE /api/v1/runs/run", "", "").status, 200);
    assert_eq!(ended(run_alone(&server, &["--", "true"])).0, Some(0));
}

#[test]
fn pods_that_disagree_on_their_number_are_refused() {
    let server = TestServer::start(&[]);
    let mut first = Pod { server: &server, name: "t-0", rank: "0", uid: "a" }.start(&["wait", "--nodes=4"]);
    eventually("announced", || pods(server.admin) == 1);
    let second =
        Pod { server: &server, name: "t-1", rank: "1", uid: "b" }.start(&["run", "--nodes=8", "--", "true"]);
    let (code, _, err) = ended(second);
    assert_eq!(code, Some(1));
    assert!(err.contains("expects 8 nodes, but pod `t-0` expects 4"), "{err}");
    first.kill().expect("its child");
    first.wait().expect("its child");
}

#[test]
fn announcements_that_make_no_sense_are_refused_in_words() {
    let server = TestServer::start(&[]);
    let post = |body: &str| {
        let json = "Content-Type: application/json\r\n";
        let answer = http(server.admin, "POST /api/v1/runs/a%2Fb/announce", json, body);
        (answer.status, answer.body)
    };
    let (status, body) = post(r#"{"pod": "p", "nodes": "2", "node_rank": 2}"#);
    assert!(status == 400 && body.contains("ranks are 0 to 1"), "{status} {body}");
    let (status, body) = post(r#"{"pod": "p", "nodes": "none"}"#);
    assert!(status == 400 && body.contains("N or MIN:MAX"), "{status} {body}");
    let (status, body) = post(r#"{"pod": "p"}"#);
    assert!(status == 422 && body.contains("nodes"), "{status} {body}");
    let (status, body) = post(r#"{"pod": "p", "nodes": "2", "wait_seconds": -1e300}"#);
    assert!(status == 422 && body.contains("number of seconds from 0"), "{status} {body}");
    let (status, body) = post(r#"{"pod": "p", "nodes": "2"}"#);
    assert!(
        status == 202 && body.contains("1 of 2 pods are there") && body.contains("a/b"),
        "{status} {body}"
    );
    assert_eq!(http(server.admin, "GET /api/v1/runs/nobody/announce", "", "").status, 404);
}

#[test]
fn a_flag_that_run_does_not_have_is_not_taken_for_the_command() {
    for command in [&["run", "--nods=4", "--", "true"][..], &["run", "--nods=4", "true"]] {
        assert_eq!(output(command, &[]).status.code(), Some(2));
    }
}

#[test]
fn the_command_needs_no_dashes_before_it() {
    let server = TestServer::start(&[]);
    let (code, out, err) =
        ended(run_alone(&server, &["sh", "-c", "echo \"$0 $*\"", "--nodes=7", "--", "-x"]));
    assert_eq!((code, out.as_str()), (Some(0), "--nodes=7 -- -x\n"), "{err}");
}

fn run_alone(server: &TestServer, args: &[&str]) -> Child {
    let all = [&["run", "--nodes=1"], args].concat();
    Pod { server, name: "t-0", rank: "0", uid: "a" }.start(&all)
}

#[test]
fn the_commands_exit_code_and_signals_are_passed_through() {
    let server = TestServer::start(&[]);
    assert_eq!(ended(run_alone(&server, &["--", "sh", "-c", "exit 7"])).0, Some(7));
    let (code, _, err) = ended(run_alone(&server, &["--", "no-such-program"]));
    assert!(code == Some(127) && err.contains("cannot start `no-such-program`"), "{code:?} {err}");
    let mut trapping =
        run_alone(&server, &["--", "sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done"]);
    let mut up = [0; 3];
    trapping.stdout.as_mut().expect("piped").read_exact(&mut up).expect("it runs");
    terminate(&trapping);
    assert_eq!(ended(trapping).0, Some(9), "the command itself got the signal");
}

#[test]
fn run_can_be_stopped_while_it_waits() {
    let server = TestServer::start(&[]);
    let waiting =
        Pod { server: &server, name: "t-0", rank: "0", uid: "a" }.start(&["run", "--nodes=2", "--", "true"]);
    eventually("announced", || pods(server.admin) == 1);
    terminate(&waiting);
    let (code, _, err) = ended(waiting);
    assert!(code == Some(143) && err.contains("stopped by signal 15 while waiting"), "{code:?} {err}");
}

/// Runs as process 1 of a pid namespace. Needs the right to make one.
#[test]
fn as_the_first_process_of_a_container_run_reaps_and_hands_on_signals() {
    let server = TestServer::start(&[]);
    // Process 1 adopts the orphan. While the orphan is a zombie, it can be sent signals.
    let script = "orphan=$(sh -c 'sleep 0.2 >/dev/null & echo $!'); trap 'exit 5' TERM; i=0
        while kill -0 $orphan; do sleep 0.05; i=$((i+1)); [ $i -lt 300 ] || exit 3; done 2>/dev/null
        echo reaped; while :; do sleep 0.05; done";
    let admin = server.admin.to_string();
    let mut inside = rallypoint(&[], &[]);
    inside = {
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg(inside.get_program())
            .args(["run", "--nodes=1", "--node-rank=0", "--run-id=run", "--admin", &admin, "--endpoint"])
            .arg(server.store.to_string())
            .args(["--", "sh", "-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        unshare
    };
    let mut process = inside.spawn().expect("unshare is installed");
    let mut lines = String::new();
    let mut byte = [0];
    while !lines.ends_with("reaped\n") {
        let read = process.stdout.as_mut().expect("piped").read(&mut byte).expect("readable");
        if read == 0 {
            let (code, _, err) = ended(process);
            panic!("it ended with {code:?}, the orphan is a zombie if that is 3: {err}");
        }
        lines.push(char::from(byte[0]));
    }
    let children =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", process.id())).expect("children");
    let inner: i32 = children.split_whitespace().next().expect("one child").parse().expect("a pid");
    let inner = rustix::process::Pid::from_raw(inner).expect("a pid");
    rustix::process::kill_process(inner, rustix::process::Signal::TERM).expect("it runs");
    let (code, _, err) = ended(process);
    assert_eq!(code, Some(5), "{err}");
}

#[test]
fn run_meets_behind_a_relay_of_its_own() {
    let server = TestServer::with_store_ports(4, &[]);
    let started = ["0", "1"].map(|rank| {
        let name = format!("t-{rank}");
        // It uses the store, which answers once the relay is linked.
        let bin = env!("CARGO_BIN_EXE_rallypoint");
        let script = format!(
            "{bin} store num-keys --store $MASTER_ADDR:$MASTER_PORT >&2 && echo $RANK at $MASTER_ADDR; exit 3"
        );
        Pod { server: &server, name: &name, rank, uid: rank }.start(&[
            "run",
            "--nodes=2",
            "--relay=on",
            "--",
            "sh",
            "-c",
            &script,
        ])
    });
    for (rank, child) in started.into_iter().enumerate() {
        let (code, out, err) = ended(child);
        assert_eq!((code, out.as_str()), (Some(3), format!("{rank} at 127.0.0.1\n").as_str()), "{err}");
    }
    for name in ["t-0@0", "t-1@1"] {
        eventually("its relay came and said goodbye", || {
            let log = server.log();
            log.contains(&format!("relay {name} has connected"))
                && log.contains(&format!("relay {name} has gone"))
        });
    }
    assert!(!server.log().contains("is away"), "{}", server.log());
}

#[test]
fn a_node_that_does_not_come_is_linked_to_its_pod_whose_relay_has_left() {
    let server = TestServer::with_store_ports(4, &["--explain-after=1s"]);
    let pods = [("0", "true"), ("1", "sleep 600")].map(|(rank, script)| {
        let name = format!("t-{rank}");
        let args = ["run", "--nodes=2", "--relay=on", "--", "sh", "-c", script];
        Pod { server: &server, name: &name, rank, uid: rank }.start(&args)
    });
    eventually("the first is over", || server.log().contains("relay t-0@0 has gone"));
    let stores = http(server.admin, "GET /api/v1/stores", "", "").json();
    let own = stores["stores"].as_array().and_then(|all| all.iter().find(|store| store["run_id"] == "run"));
    let port = own.and_then(|own| own["port"].as_u64()).expect("the run has a store");
    let mut agent = Peer::greet((server.store.ip(), port as u16).into());
    let mut say = |request: &Request<'_>| {
        let mut wire = Vec::new();
        assert!(encode_request(request, Dialect::C, &mut wire));
        agent.send(&wire);
    };
    say(&Request::Ping { nonce: 7 });
    let role = b"/run/torchelastic/role_info/1";
    say(&Request::Set { key: role, value: Payload::borrowed(b"{}") });
    let ranks = ["/run/torchelastic/assigned_ranks/1"].iter().collect::<KeyList>();
    say(&Request::Wait(ranks.as_list()));
    eventually("it is told", || server.log().contains("nodes_missing") && server.log().contains("t-0"));
    for mut pod in pods {
        terminate(&pod);
        let _ = wait_for_end(&mut pod);
    }
}

#[test]
fn run_says_why_there_is_no_relay() {
    let server = TestServer::start(&[]);
    // The port of a store is no admin port.
    let (store, admin) = (server.store.to_string(), server.store.to_string());
    let args = [
        "run",
        "--nodes=1",
        "--node-rank=0",
        "--run-id=run",
        "--gather=off",
        "--own-store=off",
        "--relay=on",
    ];
    let all = [&args[..], &["--endpoint", &store, "--admin", &admin, "--", "true"]].concat();
    let refused = output(&all, &[]);
    assert_eq!(refused.status.code(), Some(1));
    let err = text(&refused.stderr);
    assert!(
        err.contains("no relay, which --relay on asks for") && err.contains("is it the admin port"),
        "{err}"
    );
}

#[test]
fn run_refuses_what_would_surely_fail() {
    let server = TestServer::start(&[]);
    let refused = |args: &[&str], words: &str| {
        let (code, _, err) = ended(run_alone(&server, args));
        assert!(code == Some(2) && err.contains(words), "{code:?} {err}");
    };
    refused(&["--", "torchrun", "--rdzv-id=", "t.py"], "--rdzv-id is empty");
    refused(&["--mode=c10d", "--", "true"], "the command is not torchrun");
    refused(&["--mode=static", "--", "torchrun", "--rdzv-backend=c10d", "t.py"], "contradicts");
    let nobody = output(&["run", "--nodes=1", "--run-id=x", "--", "true"], &[]);
    assert!(nobody.status.code() == Some(2) && text(&nobody.stderr).contains("no endpoint"));
}

#[test]
fn without_an_admin_port_run_says_what_to_do() {
    let server = TestServer::start(&[]);
    let closed = "127.0.0.1:1";
    let (code, _, err) =
        ended(run_alone(&server, &["--admin", closed, "--gather-timeout=100ms", "--", "true"]));
    assert!(code == Some(1) && err.contains("--gather off"), "{code:?} {err}");
    let alone = ["--admin", closed, "--gather=off", "--gather-timeout=100ms"];
    let (code, out, err) = ended(run_alone(&server, &[&alone[..], &["--", "echo", "started"]].concat()));
    assert!(code == Some(1) && out.is_empty() && err.contains("--own-store off"), "{code:?} {out} {err}");
    let main = ["--own-store=off", "--", "sh", "-c", "echo $MASTER_PORT"];
    let (code, out, err) = ended(run_alone(&server, &[&alone[..], &main[..]].concat()));
    assert_eq!((code, out.trim()), (Some(0), &server.store.port().to_string()[..]), "{err}");
}

/// Behind a headless Service over all pods, each pod's store answers. A pod that sees two stores is refused,
/// and so is the first pod, which saw only its own.
#[test]
fn several_stores_behind_a_name_are_refused_as_soon_as_the_second_answers() {
    let (server, hosts) = (TestServer::start(&[]), crate::common::hosts::train_is_two_pods());
    let (endpoint, admin) = (format!("train:{}", server.store.port()), server.admin.to_string());
    let start = |args: &[&str]| {
        let mut command = crate::common::hosts::rallypoint(hosts.path(), args);
        command.env("RALLYPOINT_ENDPOINT", &endpoint).env("RALLYPOINT_ADMIN", &admin);
        command.env("RALLYPOINT_RUN_ID", "run").env("POD_NAME", "t-0").env("PET_NODE_RANK", "0");
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().expect("unshare is installed")
    };
    let refused = |process: Child| {
        let (code, out, err) = ended(process);
        assert_eq!((code, &out[..]), (Some(1), ""), "{err}");
        assert!(err.contains("warning: `train` has 2 addresses (127.0.0.1, 127.0.0.2)"), "{err}");
        assert!(err.contains("and a store answers on 2 of them"), "{err}");
        assert!(err.contains("name one pod"), "{err}");
    };
    let (code, out, err) = ended(start(&["run", "--run-id=alone", "--nodes=1", "--", "echo", "started"]));
    assert_eq!((code, out.trim()), (Some(0), "started"), "one store of two addresses will do: {err}");
    let early = start(&["run", "--nodes=2", "--", "echo", "started"]);
    eventually("announced", || pods(server.admin) == 1);
    let _second = crate::common::hosts::second_store(&server);
    refused(early);
    refused(start(&["run", "--nodes=2", "--", "echo", "started"]));
    refused(start(&["run", "--nodes=2", "--gather=off", "--", "echo", "started"]));
    refused(start(&["wait", "--nodes=2"]));
    let (code, _, err) = ended(start(&["wait"]));
    assert_eq!(code, Some(0), "a store answers, which is all that was asked: {err}");
}

/// A folder with a program `torchrun` that only prints that it was started.
fn fake_torchrun() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let program = dir.path().join("torchrun");
    std::fs::write(&program, "#!/bin/sh\necho started\n").expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("executable");
    dir
}

#[test]
fn warnings_of_run_are_one_line_each_and_true_of_what_is_started() {
    let (server, dir) = (TestServer::start(&[]), fake_torchrun());
    let torchrun = dir.path().join("torchrun").display().to_string();
    let conf = "--rdzv-conf=timeot=3";
    let (code, out, err) = ended(run_alone(&server, &["--", &torchrun, "--rdzv-backend=c10d", conf, "t.py"]));
    assert_eq!((code, out.as_str()), (Some(0), "started\n"), "{err}");
    assert!(!err.contains("\\n"), "{err}");
    let warning =
        "warning: WARN rdzv-conf-keys: the c10d backend ignores timeot in rdzv_conf, without a word -> ";
    assert!(err.contains(warning), "{err}");
    assert!(!err.contains("calls the run"), "--run-id names it: {err}");
    let without = ["run", "--nodes=1", "--node-rank=0", "--", &torchrun, "--rdzv-backend=c10d", "t.py"];
    let (endpoint, admin) = (server.store.to_string(), server.admin.to_string());
    let said = output(&without, &[("RALLYPOINT_ENDPOINT", &endpoint), ("RALLYPOINT_ADMIN", &admin)]);
    assert!(text(&said.stderr).contains("torchrun calls the run `none`"), "{}", text(&said.stderr));
}

#[test]
fn the_plugins_endpoint_is_the_admin_port() {
    let server = TestServer::start(&[]);
    let admin = server.admin.to_string();
    let env = [
        ("PET_RDZV_BACKEND", "rallypoint"),
        ("PET_RDZV_ENDPOINT", &*admin),
        ("PET_RDZV_ID", "run"),
        ("PET_NNODES", "1"),
        ("PET_NODE_RANK", "0"),
    ];
    let printed = text(&output(&["env"], &env).stdout);
    assert!(printed.contains(&format!("PET_RDZV_ENDPOINT='{admin}'")), "{printed}");
    assert!(!printed.contains("MASTER_"), "it is no store: {printed}");
    let waited = output(&["wait"], &env);
    assert_eq!(waited.status.code(), Some(0), "{}", text(&waited.stderr));
    let waited = output(&["wait", "--nodes=1"], &env);
    assert_eq!(waited.status.code(), Some(0), "{}", text(&waited.stderr));
    let started = output(&["run", "--", "sh", "-c", "echo $MASTER_PORT"], &env);
    assert_eq!(started.status.code(), Some(0), "{}", text(&started.stderr));
    let ports = http(server.admin, "GET /api/v1/stores", "", "").json();
    let own = ports["stores"].as_array().and_then(|all| all.iter().find(|store| store["run_id"] == "run"));
    assert_eq!(text(&started.stdout).trim(), own.expect("the run's own")["port"].to_string());
    let by_command = [
        "doctor",
        "--json",
        "--",
        "torchrun",
        "--rdzv-backend=rallypoint",
        "--rdzv-endpoint",
        &admin,
        "t.py",
    ];
    for (args, env) in [(&["doctor", "--json"][..], &env[..]), (&by_command, &[])] {
        let checks: serde_json::Value = serde_json::from_slice(&output(args, env).stdout).expect("JSON");
        let of = |id: &str| checks["checks"].as_array()?.iter().find(|check| check["id"] == id).cloned();
        assert_eq!(of("admin-port").expect("it is looked at")["verdict"], "PASS", "{checks}");
        assert!(of("store-answers").is_none() && of("port-open").is_none(), "{checks}");
    }
    // With another backend it is a store.
    let c10d = [&env[2..], &[("PET_RDZV_BACKEND", "c10d"), ("PET_RDZV_ENDPOINT", "rally:29500")]].concat();
    assert!(text(&output(&["env"], &c10d).stdout).contains("MASTER_ADDR='rally'"));
}

/// None of these commands waits: the default time-outs are minutes.
#[test]
fn a_port_in_the_place_of_another_is_named_at_once() {
    let server = TestServer::start(&[]);
    let (store, admin) = (server.store.to_string(), server.admin.to_string());
    let no_store =
        format!("{admin} is the admin port of a rallypoint server, and no store; its store is {store}");
    let no_admin = format!("{store} is the port of a store, and not the server's admin port");
    let run = ["run", "--nodes=1", "--node-rank=0", "--run-id=run"];
    let told = |args: &[&str], words: &str| {
        let said = output(args, &[]);
        assert_eq!(said.status.code(), Some(1), "{}", text(&said.stderr));
        assert!(text(&said.stderr).contains(words), "`{words}` is not in: {}", text(&said.stderr));
    };
    told(&["wait", &admin], &no_store);
    told(&[&run[..], &["--endpoint", &admin, "--", "true"]].concat(), &no_store);
    for gather in ["--gather=on", "--gather=off"] {
        let args = ["--endpoint", &store, "--admin", &store, gather, "--", "true"];
        told(&[&run[..], &args].concat(), &no_admin);
    }
    told(&["join", "--run-id=r", "--nodes=2", "--timeout=10m", "--admin", &store], &no_admin);
    told(&["barrier", "b", "--nodes=2", "--timeout=10m", "--admin", &store], &no_admin);
    told(&["relay", "--server", &store, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"], &no_admin);
}

#[test]
fn an_admin_port_that_never_answers_has_the_time_for_the_server() {
    let server = TestServer::start(&[]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let admin = silent.local_addr().expect("bound").to_string();
    for more in [&["--gather=on"][..], &["--gather=off"]] {
        let args =
            [&["--admin", &admin, "--timeout=2s", "--gather-timeout=30m"], more, &["--", "true"]].concat();
        let (code, _, err) = ended(run_alone(&server, &args));
        assert!(code == Some(1) && err.contains("no answer within"), "{code:?} {err}");
        assert!(!err.contains(" min "), "{err}");
    }
}

#[test]
fn the_store_of_the_workers_is_tried_before_the_command_starts() {
    let server = TestServer::start(&["--advertise-host=127.0.0.2"]);
    let (code, out, err) = ended(run_alone(&server, &["--timeout=2s", "--", "echo", "started"]));
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("not started: the run's own store 127.0.0.2:"), "{err}");
    assert!(err.contains("refused") && err.contains("--store-ports (29510-29599)"), "{err}");
    // A relay reaches it, and without a relay the main store is reachable.
    for more in ["--relay=on", "--own-store=off"] {
        let (code, out, err) = ended(run_alone(&server, &[more, "--", "echo", "started"]));
        assert_eq!((code, out.as_str()), (Some(0), "started\n"), "{more}: {err}");
    }
}

#[test]
fn what_would_train_alone_on_each_node_is_not_started() {
    let server = TestServer::start(&[]);
    for (command, words) in [
        (&["python3", "t.py"][..], "nothing gives it a rank"),
        (&["deepspeed", "t.py"], "start torchrun in its place"),
        (&["accelerate", "launch", "t.py"], "--multi_gpu"),
    ] {
        let pod = Pod { server: &server, name: "t-0", rank: "0", uid: "a" };
        let args = [&["run", "--nodes=2", "--nproc-per-node=8", "--"], command].concat();
        let (code, _, err) = ended(pod.start(&args));
        assert!(code == Some(2) && err.contains(words), "{command:?}: {code:?} {err}");
    }
    assert_eq!(pods(server.admin), 0, "nobody was announced");
}
