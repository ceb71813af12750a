//! The commands that meet: `join`, `barrier`, `leave`, `ctl close` and `ctl extend`, and the examples with
//! them.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{TestServer, eventually, http};

/// The result of a command.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn of(child: Child) -> Self {
        let output = child.wait_with_output().expect("it ends");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    #[track_caller]
    fn failed(&self, code: i32, words: &str) {
        assert_eq!((self.code, self.out.as_str()), (Some(code), ""), "{self:?}");
        assert!(self.err.contains(words), "`{words}` is not in: {}", self.err);
    }
}

fn spawn(mut command: Command, admin: impl std::fmt::Display) -> Child {
    command.env_clear().env("RALLYPOINT_ADMIN", format!("http://{admin}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

fn start(server: &TestServer, args: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.args(args.split(' '));
    spawn(command, server.admin)
}

fn run(server: &TestServer, args: &str) -> Ran {
    Ran::of(start(server, args))
}

fn server() -> TestServer {
    TestServer::with_store_ports(20, &[])
}

#[test]
fn nodes_meet_and_print_their_peers() {
    let server = server();
    let join = "join --run-id ray --nodes 3";
    let hosts = start(&server, &format!("{join} --node c --addr 10.0.0.3 --role worker --format hosts"));
    let env =
        start(&server, &format!("{join} --node b --addr 10.0.0.2 --role worker --node-rank 1 --format env"));
    let json = run(
        &server,
        &format!("{join} --node a --addr 10.0.0.1 --role head --node-rank 0 --payload ssh-ed25519"),
    );
    let (hosts, env) = (Ran::of(hosts), Ran::of(env));
    assert_eq!((hosts.code, hosts.out.as_str()), (Some(0), "10.0.0.1\n10.0.0.2\n10.0.0.3\n"), "{hosts:?}");
    let wanted = "ROUND='1'\nNODE_RANK='1'\nNNODES='3'\nPEERS='10.0.0.1 10.0.0.2 10.0.0.3'\n\
                  PEERS_HEAD='10.0.0.1'\nPEERS_WORKER='10.0.0.2 10.0.0.3'\n";
    assert_eq!(env.out, wanted, "{env:?}");
    let answer: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!((&answer["group_rank"], &answer["participants"][2]["role"]), (&0.into(), &"worker".into()));
    assert_eq!(answer["participants"][0]["payload"], "ssh-ed25519");
    assert_eq!(answer["store"], serde_json::Value::Null);
}

#[test]
fn two_processes_of_one_host_are_two_nodes() {
    let server = server();
    for rank in [[" --node-rank 0", " --node-rank 1"], ["", ""]] {
        let joined =
            rank.map(|rank| start(&server, &format!("join --run-id two --nodes 2 --timeout 20s{rank}")));
        for ran in joined.map(Ran::of) {
            assert_eq!(ran.code, Some(0), "{ran:?}");
        }
    }
    let arrived = [(); 2].map(|()| start(&server, "barrier two --nodes 2 --timeout 20s"));
    for ran in arrived.map(Ran::of) {
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let first = start(&server, "join --run-id r --nodes 2 --node a --timeout 20s");
    eventually("it is there", || server.log().contains("r round 1 gathers"));
    let second = start(&server, "join --run-id r --nodes 2 --node a --timeout 20s");
    Ran::of(first).failed(1, "another process joins as a: give each its own --node");
    assert_eq!(run(&server, "join --run-id r --nodes 2 --node b --timeout 20s").code, Some(0));
    assert_eq!(Ran::of(second).code, Some(0));
}

#[test]
fn a_round_can_bring_a_store_for_its_workers() {
    let server = server();
    let alone = run(&server, "join --run-id one --nodes 1 --store --format env");
    assert!(alone.out.contains("MASTER_ADDR='127.0.0.1'\nMASTER_PORT='"), "{alone:?}");
}

#[test]
fn who_comes_in_vain_says_who_is_missing_and_leaves() {
    let server = server();
    let late = run(&server, "join --run-id ray --nodes 3 --node a --node-rank 0 --timeout 300ms");
    late.failed(1, "gave up after");
    assert!(
        late.err.contains("1 of 3 nodes joined; 2 more nodes are needed; node ranks not there: 1, 2"),
        "{late:?}"
    );
    run(&server, "leave --run-id ray --node a").failed(1, "a was not in run ray");
}

#[test]
fn a_node_leaves_by_its_name_if_no_other_has_it() {
    let server = server();
    let join = |node: &str, name: &str| {
        let body = serde_json::json!({
            "node": node, "join_id": node, "name": name, "address": "10.0.0.1", "min_nodes": 4,
                "wait_seconds": 0,
        });
        let json = "Content-Type: application/json\r\n";
        assert_eq!(http(server.admin, "POST /api/v1/runs/r/join", json, &body.to_string()).status, 202);
    };
    join("id-1", "pod-1");
    join("id-2", "vm");
    join("id-3", "vm");
    eventually("they are shown", || {
        let shown = http(server.admin, "GET /api/v1/runs/r", "", "").json();
        shown["participants"].as_array().is_some_and(|nodes| nodes.len() == 3)
    });
    run(&server, "leave --run-id r --node vm").failed(1, "2 nodes of run r have the name vm");
    assert_eq!(run(&server, "leave --run-id r --node pod-1").code, Some(0));
    run(&server, "leave --run-id r --node pod-1").failed(1, "pod-1 was not in run r");
}

#[test]
fn wrong_words_are_errors_of_usage_and_refusals_are_not() {
    let server = server();
    run(&server, "join --run-id r --nodes 4:2").failed(2, "4:8");
    run(&server, "join --run-id r --nodes 2 --node-rank 2").failed(2, "ranks are below 2");
    run(&server, "barrier x").failed(2, "--nodes");
    let first = start(&server, "join --run-id r --nodes 2 --node a --timeout 20s");
    eventually("a is there", || server.log().contains("r round 1 gathers"));
    run(&server, "join --run-id r --nodes 3 --node b").failed(1, "min_nodes is 2 there and 3 here");
    assert_eq!(run(&server, "join --run-id r --nodes 2 --node b --format hosts").code, Some(0));
    assert_eq!(Ran::of(first).code, Some(0));
    assert_eq!(run(&server, "leave --run-id r --node b --reason done --outcome succeeded").code, Some(0));
    assert_eq!(run(&server, "leave --run-id r --node a --outcome succeeded").code, Some(0));
    eventually("the run has finished", || server.log().contains("r finished: 2 nodes after"));
}

#[test]
fn a_barrier_holds_until_all_are_there_and_names_who_is_not() {
    let server = server();
    let first = start(&server, "barrier job/start --nodes 2 --node a --json");
    assert_eq!(run(&server, "barrier job/start --nodes 2 --node b").code, Some(0));
    let first = Ran::of(first);
    assert!(first.out.contains("\"generation\":1"), "{first:?}");
    let late = run(&server, "barrier job/end --members a,b,c --node a --timeout 300ms");
    late.failed(1, "barrier job/end: 1 of 3 arrived within 0.3 s; missing: b, c");
}

#[test]
fn operators_close_runs_and_give_more_time() {
    let server = server();
    let waits = start(&server, "join --run-id train --nodes 2 --node a --timeout 20s");
    eventually("a is there", || server.log().contains("train round 1 gathers"));
    let more = run(&server, "ctl extend --run-id train --by 10m --json");
    assert!(more.out.contains("\"round\":1"), "{more:?}");
    run(&server, "ctl close --run-id train")
        .failed(2, "for all its nodes? There is no terminal to answer on; add --yes");
    let closed = run(&server, "ctl close --yes --run-id train --reason maintenance");
    assert!(closed.code == Some(0) && closed.err.contains("run train is closed"), "{closed:?}");
    Ran::of(waits).failed(1, "run train was closed by an operator: maintenance");
    run(&server, "ctl extend --run-id train --by 10m").failed(1, "no round of run train gathers");
    run(&server, "ctl close --yes --run-id none").failed(1, "no such run");
}

#[test]
fn a_join_waits_for_a_server_that_is_away_and_survives_its_restart() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("a port").port();
    let admin = format!("127.0.0.1:{port}");
    let join = |node: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.args(["join", "--run-id", "r", "--nodes", "2", "--timeout", "20s", "--node", node]);
        spawn(command, &admin)
    };
    let first = join("a");
    let server = || TestServer::start_with_admin(&admin, &[]);
    let before = server();
    eventually("a has found it", || before.log().contains("r round 1 gathers"));
    drop(before);
    let after = server();
    eventually("a has found it again", || after.log().contains("r round 1 gathers"));
    let second = Ran::of(join("b"));
    assert_eq!(second.code, Some(0), "{second:?}");
    let first = Ran::of(first);
    assert!(first.code == Some(0) && first.err.contains("trying again"), "{first:?}");
}

/// Runs an example with only the server's own programs and the system's in its PATH.
fn example(server: &TestServer, name: &str, environment: &[(&str, &str)]) -> Child {
    let bin = Path::new(env!("CARGO_BIN_EXE_rallypoint")).parent().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let mut command = Command::new("sh");
    command.arg(script).env_clear();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display());
    command.env("PATH", path).env("RALLYPOINT_ADMIN", format!("http://{}", server.admin));
    command.envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sh starts")
}

#[test]
fn the_ray_example_brings_workers_to_their_head() {
    let server = server();
    let pod = |role: &str, name: &str, ip: &str| {
        let environment = [
            ("ROLE", role),
            ("POD_NAME", name),
            ("POD_IP", ip),
            ("CLUSTER", "ray"),
            ("PODS", "3"),
            ("RAY", "echo ray"),
        ];
        example(&server, "ray-head-and-workers.sh", &environment)
    };
    let workers = [pod("worker", "w-0", "10.0.0.2"), pod("worker", "w-1", "10.0.0.3")];
    let head = Ran::of(pod("head", "head", "10.0.0.1"));
    let wanted = "ray start --head --port=6379 --dashboard-host=0.0.0.0\n\
                  head: all 3 pods are in; the head is 10.0.0.1\n";
    assert_eq!(head.out, wanted, "{head:?}");
    for (worker, name) in workers.map(Ran::of).iter().zip(["w-0", "w-1"]) {
        let wanted =
            format!("ray start --address=10.0.0.1:6379\n{name}: all 3 pods are in; the head is 10.0.0.1\n");
        assert_eq!(worker.out, wanted, "{worker:?}");
    }
}

#[test]
fn the_quorum_example_goes_on_with_enough_and_fails_with_too_few() {
    let server = server();
    let pod = |service: &str, name: &str, ip: &str, patience: &str| {
        let environment = [
            ("SERVICE", service),
            ("POD_NAME", name),
            ("POD_IP", ip),
            ("QUORUM", "2"),
            ("MOST", "8"),
            ("LAST_CALL", "200ms"),
            ("PATIENCE", patience),
        ];
        example(&server, "quorum.sh", &environment)
    };
    let pods = [pod("svc", "p-0", "10.0.0.1", "20s"), pod("svc", "p-1", "10.0.0.2", "20s")];
    for pod in pods.map(Ran::of) {
        let mut hosts: Vec<&str> = pod.out.lines().collect();
        hosts.sort_unstable();
        assert_eq!(hosts, ["10.0.0.1", "10.0.0.2"], "{pod:?}");
    }
    Ran::of(pod("other", "p-0", "10.0.0.1", "300ms"))
        .failed(1, "1 of 2 to 8 nodes joined; 1 more node is needed");
    assert_eq!(http(server.admin, "GET /livez", "", "").status, 200);
}
