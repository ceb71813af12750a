//! `rallypoint bench` against our own server: every scenario does what it promises, and its report is right.
//! The server's metrics confirm it.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::peer::{Peer, wire};
use crate::common::relay::TestRelay;
use crate::common::{TestServer, eventually, http};
use rallypoint_protocol::Op;

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.arg("bench").args(args).env_clear().stdin(Stdio::null());
    command.output().expect("the binary starts")
}

/// Runs a scenario with `args` against `server`, watches the server's process, and returns the report.
#[track_caller]
fn report(server: &TestServer, scenario: &str, args: &[&str]) -> Value {
    let target = if scenario == "join" { server.admin } else { server.store };
    let (target, pid) = (target.to_string(), server.pid().to_string());
    let all = [&[scenario, &target, "--json", "--pid", &pid][..], args].concat();
    let ran = bench(&all);
    let err = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(0), "{err}");
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(report["complete"], true, "{report}");
    assert_eq!(report["plan"]["scenario"], scenario);
    for section in report["sections"].as_array().expect("sections") {
        // The numbers of a section must be consistent.
        assert!(section["seconds"].as_f64().expect("a time") > 0.0, "{section}");
        let server = &section["server"];
        let (cpu, each) = (server["cpu_seconds"].as_f64(), server["cpu_us_per_unit"].as_f64());
        let units = section["units"].as_u64().expect("a count") as f64;
        let (cpu, each) = (cpu.expect("watched"), each.expect("watched"));
        assert!((each * units - cpu * 1e6).abs() < 1.0, "{section}");
        assert!(server["resident_after"].as_u64() > Some(1 << 20), "{section}");
    }
    report
}

fn section<'r>(report: &'r Value, name: &str) -> &'r Value {
    let sections = report["sections"].as_array().expect("sections");
    sections.iter().find(|section| section["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn fact(report: &Value, name: &str) -> u64 {
    report["facts"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// The server's counts by operation, without zeros.
fn counted(server: &TestServer) -> BTreeMap<String, u64> {
    let metrics = http(server.admin, "GET /metrics", "", "").body;
    let counts = metrics.lines().filter_map(|line| {
        let (op, count) = line.strip_prefix("rallypoint_requests_total{op=\"")?.split_once("\"} ")?;
        Some((op.to_owned(), count.parse().expect("a count")))
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Checks that the server has applied exactly the reported requests. The hello does not count as a request.
/// Before the test, the check of the target sends one PING, one NUM_KEYS and, in some scenarios, `looks`
/// CHECKs, which the report leaves out.
#[track_caller]
fn the_server_counted_the_same(server: &TestServer, report: &Value, looks: u64) {
    let mut sent: BTreeMap<String, u64> =
        serde_json::from_value(report["requests"].clone()).expect("counts by operation");
    assert!(sent.remove("validate") > Some(0), "every connection says hello: {report}");
    *sent.entry("ping".into()).or_default() += 1;
    *sent.entry("num_keys".into()).or_default() += 1;
    if looks > 0 {
        *sent.entry("check".into()).or_default() += looks;
    }
    eventually("the server has applied what was sent", || {
        let mut seen = counted(server);
        seen.remove("validate");
        seen == sent
    });
}

#[test]
fn rtt_counts_every_request_and_measures_each() {
    let server = TestServer::start(&[]);
    let report = report(&server, "rtt", &["-c", "5", "-z", "200ms", "--depth", "3"]);
    let requests = section(&report, "requests");
    assert_eq!(requests["units"], requests["requests"]["ping"]);
    assert_eq!(requests["latencies_us"]["ping"]["count"], requests["units"]);
    assert_eq!(section(&report, "connect")["units"], 5);
    the_server_counted_the_same(&server, &report, 0);
}

#[test]
fn mix_sends_equal_parts_and_clears_up() {
    let server = TestServer::start(&[]);
    let report = report(&server, "mix", &["-c", "4", "-z", "200ms", "--keys", "2"]);
    let requests = &section(&report, "requests")["requests"];
    let count = |op: &str| requests[op].as_u64().expect("a count");
    for op in ["set", "wait", "get", "add", "check"] {
        assert!(count(op).abs_diff(count("get")) <= 4, "each connection ends within its cycle: {requests}");
        assert!(count(op) > 0);
    }
    the_server_counted_the_same(&server, &report, 0);
    eventually("its keys are gone", || {
        http(server.admin, "GET /metrics", "", "")
            .body
            .lines()
            .any(|line| line.starts_with("rallypoint_keys{") && line.ends_with(" 0"))
    });
}

#[test]
fn an_open_loop_sends_what_is_due_and_no_more() {
    let server = TestServer::start(&[]);
    let report = report(&server, "rtt", &["-c", "3", "-z", "500ms", "-q", "400"]);
    // Half a second at 400 a second is 200; each thread also starts its share with one request at once.
    let due = fact(&report, "due_sends");
    let threads = report["plan"]["threads"].as_u64().expect("a count");
    assert!((200..=200 + threads).contains(&due), "{report}");
    let sent = section(&report, "requests")["units"].as_u64().expect("a count");
    let never = report["facts"]["never_sent"].as_u64().unwrap_or_default();
    assert_eq!(sent + never, due, "{report}");
    the_server_counted_the_same(&server, &report, 0);
}

#[test]
fn fanout_releases_every_waiter() {
    let server = TestServer::start(&[]);
    let report = report(&server, "fanout", &["-n", "40", "--rounds", "3"]);
    assert_eq!((fact(&report, "waiters"), fact(&report, "released")), (120, 120));
    let release = section(&report, "release");
    assert_eq!((&release["units"], &release["rounds"]), (&120.into(), &3.into()));
    assert_eq!(release["latencies_us"]["release"]["count"], 120);
    assert_eq!(report["requests"]["set"], 3);
    the_server_counted_the_same(&server, &report, 0);
}

#[test]
fn init_counts_every_rank_and_refuses_a_store_in_use() {
    let server = TestServer::start(&[]);
    let first = report(&server, "init", &["-n", "30"]);
    assert_eq!((fact(&first, "init_count"), fact(&first, "released")), (30, 30));
    assert_eq!(section(&first, "init")["latencies_us"]["rank"]["count"], 30);
    the_server_counted_the_same(&server, &first, 3);
    // The scenario has cleaned up, so it can run again.
    assert_eq!(fact(&report(&server, "init", &["-n", "3"]), "init_count"), 3);

    let mut worker = Peer::greet(server.store);
    worker.send(&[&[Op::Add as u8][..], &wire(b"init/"), &1_i64.to_ne_bytes()].concat());
    worker.read(8);
    let refused = bench(&["init", &server.store.to_string(), "-n", "3"]);
    assert_eq!(refused.status.code(), Some(2));
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("holds the key `init/`, so a job uses it"), "{words}");
}

#[test]
fn a_store_with_keys_is_left_alone_unless_it_is_meant() {
    let server = TestServer::start(&[]);
    let mut worker = Peer::greet(server.store);
    worker.send(&[&[Op::Add as u8][..], &wire(b"counter"), &1_i64.to_ne_bytes()].concat());
    worker.read(8);
    let args = ["rtt", &server.store.to_string(), "-c", "1", "-z", "50ms"];
    let refused = bench(&args);
    assert_eq!(refused.status.code(), Some(2));
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("holds 1 keys, so a job uses it") && words.contains("--allow-in-use"), "{words}");
    assert!(bench(&[&args[..], &["--allow-in-use"]].concat()).status.success());
}

#[test]
fn exchange_lets_every_rank_read_every_value() {
    let server = TestServer::start(&[]);
    let report = report(&server, "exchange", &["-n", "12", "--rounds", "2", "--size", "100"]);
    assert_eq!(fact(&report, "bytes_read"), 2 * 12 * 12 * 100);
    assert_eq!(section(&report, "exchange")["units"], 2);
    the_server_counted_the_same(&server, &report, 2);
}

#[test]
fn ncclids_lets_every_rank_read_the_id_of_every_root() {
    let server = TestServer::start(&[]);
    let report = report(&server, "ncclids", &["-n", "300", "--rounds", "2"]);
    assert_eq!(fact(&report, "bytes_read"), 2 * 300 * 3 * 128, "one root for 128 ranks");
    assert_eq!(report["requests"]["set"], 2 * 3);
    the_server_counted_the_same(&server, &report, 2);
}

#[test]
fn cancel_takes_back_its_own_waits_only() {
    let server = TestServer::start(&[]);
    let report = report(&server, "cancel", &["-n", "20", "-c", "2", "-z", "200ms"]);
    assert_eq!(fact(&report, "waiters"), 20);
    let cancelled = fact(&report, "cancelled");
    assert!(cancelled > 0);
    assert_eq!(section(&report, "cancel")["units"], cancelled);
    assert_eq!(report["requests"]["cancel_wait"], cancelled);
    assert_eq!(report["requests"]["wait"], cancelled + 20);
    the_server_counted_the_same(&server, &report, 0);
}

#[test]
fn leave_sees_the_server_let_go_of_everyone() {
    let server = TestServer::start(&[]);
    let report = report(&server, "leave", &["-n", "50"]);
    assert_eq!((fact(&report, "waiters"), fact(&report, "left")), (50, 50));
    let leave = section(&report, "leave");
    assert_eq!(leave["latencies_us"]["leave"]["count"], 50);
    assert!(leave["latencies_us"]["bystander"]["count"].as_u64() > Some(0));
    the_server_counted_the_same(&server, &report, 0);
}

#[test]
fn cas_ends_with_every_node_in_the_state() {
    let server = TestServer::start(&[]);
    let report = report(&server, "cas", &["-n", "20"]);
    assert_eq!((fact(&report, "joined"), fact(&report, "participants")), (20, 20));
    let join = section(&report, "join");
    assert_eq!(join["latencies_us"]["node"]["count"], 20);
    // Each node also makes one attempt to create the state.
    assert_eq!(join["requests"]["compare_set"].as_u64(), join["units"].as_u64().map(|tries| tries + 20));
    the_server_counted_the_same(&server, &report, 0);
}

#[test]
fn nodes_of_cas_that_think_lose_to_each_other_and_then_look_until_all_have_joined() {
    let server = TestServer::start(&[]);
    let report = report(&server, "cas", &["-n", "10", "--think", "30ms"]);
    assert_eq!((fact(&report, "joined"), fact(&report, "participants")), (10, 10));
    let join = section(&report, "join");
    assert!(join["units"].as_u64() > Some(10), "all begin within 0.3 s, and need longer: {report}");
    let polls = join["latencies_us"]["poll"]["count"].as_u64();
    assert!(polls >= Some(9), "all but the last wait for the others: {report}");
    the_server_counted_the_same(&server, &report, 0);
}

#[test]
fn join_completes_one_round_with_one_request_of_each_node() {
    let server = TestServer::with_store_ports(20, &[]);
    let report = report(&server, "join", &["-n", "50"]);
    assert_eq!((fact(&report, "joined"), &section(&report, "join")["units"]), (50, &50.into()));
    assert_eq!(section(&report, "join")["latencies_us"]["node"]["count"], 50);
    assert!(fact(&report, "received_bytes") > 50 * 100, "{report}");
    let metrics = http(server.admin, "GET /metrics", "", "").body;
    assert!(metrics.contains("rallypoint_rendezvous_rounds_total{outcome=\"complete\"} 1\n"), "{metrics}");
    let runs = http(server.admin, "GET /api/v1/runs", "", "").json();
    let run = &runs["runs"][0];
    assert_eq!(
        (&run["kind"], &run["state"], &run["nodes"]["joined"]),
        (&"native".into(), &"closed".into(), &50.into())
    );
}

#[test]
fn join_moves_a_small_part_of_what_torchruns_nodes_send() {
    let server = TestServer::with_store_ports(20, &[]);
    let native = fact(&report(&server, "join", &["-n", "200"]), "received_bytes");
    report(&server, "cas", &["-n", "200"]);
    let metrics = http(server.admin, "GET /metrics", "", "").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix("rallypoint_received_bytes_total "));
    let torchrun: u64 = line.expect("counted").parse().expect("a number");
    // This holds however few attempts fail: one server answers n times with a constant size, the other one
    // takes a state of n nodes n times.
    assert!(native * 20 < torchrun, "{native} bytes and {torchrun} bytes");
}

#[test]
fn join_at_a_store_says_what_the_target_should_be() {
    let server = TestServer::start(&[]);
    let ran = bench(&["join", &server.store.to_string(), "-n", "2"]);
    assert_eq!(ran.status.code(), Some(1));
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(said.contains("admin port"), "{said}");
}

#[test]
fn cas_that_is_out_of_time_says_so() {
    let server = TestServer::start(&[]);
    let ran = bench(&["cas", &server.store.to_string(), "-n", "200", "-z", "1ms", "--json"]);
    assert_eq!(ran.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(report["complete"], false);
    let joined = report["facts"]["joined"].as_u64().unwrap_or_default();
    assert_eq!(joined + fact(&report, "gave_up"), 200);
}

#[test]
fn big_moves_large_values_and_many_keys() {
    let server = TestServer::start(&[]);
    let values = report(&server, "big", &["-c", "2", "--size", "1MiB", "--rounds", "3"]);
    assert_eq!(fact(&values, "bytes_read"), (2 * 3) << 20);
    assert_eq!(section(&values, "set")["requests"]["set"], 6);
    the_server_counted_the_same(&server, &values, 0);

    let server = TestServer::start(&[]);
    let keys = report(&server, "big", &["--keys", "2500", "--rounds", "2"]);
    assert_eq!(fact(&keys, "bytes_read"), 2 * 2500 * 8);
    for name in ["multi_set", "check", "multi_get"] {
        assert_eq!(section(&keys, name)["requests"][name], 2);
        assert!(section(&keys, name)["latencies_us"]["bystander"]["count"].as_u64() > Some(0));
    }
    assert_eq!(keys["requests"]["delete"], 2500);
    the_server_counted_the_same(&server, &keys, 0);
}

#[test]
fn barrier_releases_every_rank() {
    let server = TestServer::start(&[]);
    let report = report(&server, "barrier", &["-n", "25", "--rounds", "2"]);
    assert_eq!(fact(&report, "released"), 50);
    assert_eq!(report["requests"]["barrier"], 50);
    the_server_counted_the_same(&server, &report, 0);
}

#[test]
fn several_threads_and_sources_share_the_work() {
    let server = TestServer::start(&["--max-connections-per-address", "6"]);
    let sources = ["--source", "127.0.0.2,127.0.0.3", "--threads", "3"];
    let report = report(&server, "fanout", &[&["-n", "11"][..], &sources].concat());
    assert_eq!(fact(&report, "released"), 11);
    the_server_counted_the_same(&server, &report, 0);
}

#[test]
fn ranks_share_links_that_the_generator_makes() {
    let server = TestServer::start(&[]);
    let admin = server.admin.to_string();
    let report =
        report(&server, "mix", &["-z", "200ms", "--links", "2", "--per-link", "4", "--admin", &admin]);
    assert_eq!(report["plan"]["relayed"]["links"]["admin"], *admin);
    assert!(fact(&report, "link_bytes_received") > 1000);
    the_server_counted_the_same(&server, &report, 0);
}

#[test]
fn the_relays_share_of_the_cpu_time_is_reported() {
    let server = TestServer::start(&[]);
    let relay = TestRelay::start(server.admin, "node-0", &[]);
    let (store, pid) = (relay.store.to_string(), relay.process.id().to_string());
    let args = ["-c", "4", "-z", "200ms", "--relay", &store, "--relay-pid", &pid];
    let requests = report(&server, "mix", &args)["sections"][1].clone();
    let (relays, units) = (&requests["relays"], requests["units"].as_f64().expect("a count"));
    let (cpu, each) = (relays["cpu_seconds"].as_f64(), relays["cpu_us_per_unit"].as_f64());
    assert!(cpu > Some(0.0), "{requests}");
    assert!((each.expect("watched") * units - cpu.expect("watched") * 1e6).abs() < 1.0, "{requests}");
    let direct = report(&server, "mix", &["-c", "4", "-z", "50ms"]);
    assert!(section(&direct, "requests")["relays"].is_null(), "{direct}");
}

#[test]
fn nodes_that_share_a_connection_join_in_turn() {
    let server = TestServer::with_store_ports(20, &[]);
    let admin = server.admin.to_string();
    let report = report(&server, "join", &["--links", "3", "--per-link", "5", "--admin", &admin]);
    assert_eq!((fact(&report, "joined"), &section(&report, "connect")["units"]), (15, &3.into()));
}

#[test]
fn what_makes_no_sense_ends_with_2_and_clear_words() {
    for (args, words) in [
        (&["rtt", "192.0.2.1:29500"][..], "192.0.2.1 is not a loopback address"),
        (&["mix", "-c", "0"], "--connections must be at least 1"),
        (&["mix", "-q", "100"], "--rate needs --duration"),
        (&["rtt", "-n", "5"], "the scenario rtt has no --ranks"),
        (&["init", "-n", "90000000"], "raise `ulimit -Hn`"),
        (&["meet"], "invalid value 'meet'"),
    ] {
        let ran = bench(args);
        let err = String::from_utf8_lossy(&ran.stderr);
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(2), 0), "{args:?}: {err}");
        assert!(err.contains(words), "{args:?}: {err}");
    }
}

#[test]
fn a_target_that_is_no_store_is_named() {
    let server = TestServer::start(&[]);
    let ran = bench(&["rtt", &server.admin.to_string()]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("an HTTP server answers there"));
}

#[test]
fn the_text_report_has_the_figures() {
    let server = TestServer::start(&[]);
    let (target, pid) = (server.store.to_string(), server.pid().to_string());
    let ran = bench(&["fanout", &target, "-n", "10", "--pid", &pid]);
    let text = String::from_utf8(ran.stdout).expect("UTF-8");
    assert_eq!(ran.status.code(), Some(0));
    for words in ["release: 10 x waiter in", "server CPU", "per waiter", "p99.9", "released 10, waiters 10"] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    assert!(ran.stderr.is_empty(), "no display without a terminal");
}
