//! Recorded jobs, replayed through a real store and insight.
//!
//! The recordings hold only the beginnings of the rendezvous states, so their changes are made again: each sample has a
//! list of what each compare-set that changed more than a heartbeat did, as told by who wrote it and how its length
//! changed.

use serde_json::Value as Json;

use super::lab::Lab;

pub(super) type Script = &'static [(f64, u32, &'static str)];

fn file(name: &str) -> Vec<Json> {
    let path = format!("{}/../../tests/data/samples/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// A recorded value: text, or hex after `=`, cut off with `...`; padded to its real length.
fn value(text: &str, len: Option<u64>) -> Vec<u8> {
    let mut bytes = match text.strip_prefix('=') {
        Some(hex) => {
            let hex = hex.trim_end_matches('.');
            (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect()
        }
        None => text.as_bytes().to_vec(),
    };
    bytes.resize(len.map_or(bytes.len(), |len| len as usize), 0);
    bytes
}

/// Replays a sample, and then lets `after` seconds pass.
pub(super) fn replay(name: &str, script: Script, mut lab: Lab, after: f64) -> Lab {
    let rows = file(name);
    let mut script = script.iter().peekable();
    let str_of = |row: &Json, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let list = |row: &Json| -> Vec<String> {
        row["ks"].as_array().into_iter().flatten().filter_map(|key| Some(key.as_str()?.to_owned())).collect()
    };
    for (at, row) in rows.iter().enumerate() {
        let (Some(t), Some(c)) = (row["t"].as_f64(), row["c"].as_u64()) else { continue };
        let c = c as u32;
        lab.until(t);
        match (row["ev"].as_str(), row["op"].as_str()) {
            (Some("open"), _) => {
                let peer = str_of(row, "peer");
                let addr = peer.rsplit_once(':').expect("a port").0.to_owned();
                let pid = rows[at..].iter().find(|r| r["c"] == row["c"] && r["op"] == "PING");
                let pid = pid.and_then(|r| r["nonce"].as_u64()).map_or(3000 + c, |pid| pid as u32);
                lab.connect(c, &addr, pid);
            }
            (Some("close"), _) => lab.leave(c),
            (Some("req"), _) if !lab.is_connected(c) => {}
            (Some("req"), Some("PING")) => lab.ping(c),
            (Some("req"), Some("ADD")) => lab.add(c, &str_of(row, "k"), row["n"].as_i64().unwrap_or(1)),
            (Some("req"), Some("SET")) => {
                let value = value(&str_of(row, "v"), row["vlen"].as_u64());
                lab.set(c, &str_of(row, "k"), &value);
            }
            (Some("req"), Some("GET")) => lab.get(c, &str_of(row, "k")),
            (Some("req"), Some("WAIT")) => {
                let keys = list(row);
                lab.wait(c, &keys.iter().map(String::as_str).collect::<Vec<_>>());
            }
            (Some("req"), Some("MULTI_SET")) => {
                let pairs = row["kv"].as_array().expect("pairs").iter();
                let text = |value: &Json| value.as_str().expect("text").to_owned();
                let pairs: Vec<_> = pairs.map(|pair| (text(&pair[0]), text(&pair[1]))).collect();
                lab.multi_set(c, &pairs);
            }
            (Some("req"), Some("CANCEL_WAIT")) => lab.cancel(c),
            (Some("req"), Some("COMPARE_SET")) => {
                let run = str_of(row, "k").trim_start_matches("/torch.rendezvous.").to_owned();
                let reply = rows[at..].iter().find(|r| r["c"] == row["c"] && r["ev"] == "rsp");
                let begins_alike = |a: &str, b: &str| {
                    let n = a.len().min(b.len()).min(40).saturating_sub(3);
                    a[..n] == b[..n]
                };
                let done = reply.is_some_and(|reply| {
                    reply["vlen"] == row["vlen"] && begins_alike(&str_of(reply, "v"), &str_of(row, "v"))
                });
                if row["explen"] == 0 {
                    lab.first_cas(c, &run);
                } else if done {
                    let next = script.next_if(|(at, conn, _)| t >= at - 0.05 && *conn == c);
                    lab.cas(c, &run, next.map_or("", |(.., words)| words));
                } else {
                    lab.lost_cas(c, &run);
                }
            }
            _ => {}
        }
    }
    assert!(script.peek().is_none(), "{name}: a change was not made: {:?}", script.peek());
    lab.pass(after);
    lab
}

/// Compares what was said aloud with a story: seconds, tolerance 1.6 s (what happens together is gathered), and text.
#[track_caller]
fn assert_story(lab: &Lab, story: &[(f64, &str)]) {
    let said: Vec<(f64, &str)> = lab.said.iter().map(|(at, said)| (*at, said.text.as_str())).collect();
    let matches = said.len() == story.len()
        && said
            .iter()
            .zip(story)
            .all(|((at, text), (when, expected))| text == expected && (at - when).abs() < 1.7);
    let shown: Vec<String> = said.iter().map(|(at, text)| format!("({at:.1}, \"{text}\"),")).collect();
    assert!(matches, "said:\n{}", shown.join("\n"));
}

pub(super) const RUN_7: Script =
    &[(3.21, 1, "join"), (5.65, 2, "join deadline"), (9.68, 2, "complete"), (16.64, 1, "close")];

pub(super) const RUN_4_PLUGIN: Script = &[(3.07, 2, "join"), (3.10, 1, "join complete"), (11.16, 1, "close")];

pub(super) const RUN_1: Script = &[
    (7.21, 1, "join"),
    (13.32, 2, "join"),
    (14.59, 3, "join"),
    (15.30, 4, "join complete"),
    (37.09, 4, "close"),
];

#[test]
fn a_healthy_c10d_run_is_told_in_three_lines() {
    let lab = replay("run1_c10d_4x2", RUN_1, Lab::expecting(4, 4), 60.0);
    assert_story(
        &lab,
        &[
            (7.4, "job1 round 0 started: node0 is the first; 4 nodes are expected (serve --nodes)"),
            (15.4, "job1 round 0 complete: 4 nodes in 8.1 s; last: node3 (+8.1 s)"),
            (37.0, "job1 round 0 finished: 4 nodes after 22 s"),
        ],
    );
}

#[test]
fn a_late_node_is_missed_only_if_it_is_very_late() {
    let script: Script = &[
        (3.17, 2, "join"),
        (3.24, 1, "join"),
        (3.27, 3, "join"),
        (23.38, 4, "join complete"),
        (35.52, 1, "close"),
    ];
    let lab = replay("run2_c10d_one_late", script, Lab::expecting(4, 4), 60.0);
    assert_story(
        &lab,
        &[
            (3.3, "late round 0 started: node0 is the first; 4 nodes are expected (serve --nodes)"),
            (23.4, "late round 0 complete: 4 nodes in 20 s; last: node3 (+20 s)"),
            (35.5, "late round 0 finished: 4 nodes after 12 s"),
        ],
    );
}

#[test]
fn a_node_that_never_comes() {
    let script: Script =
        &[(4.95, 1, "join"), (5.04, 2, "join"), (5.17, 3, "join"), (25.03, 1, "drop:1"), (25.05, 1, "close")];
    let lab = replay("run2_c10d_one_never", script, Lab::expecting(4, 4), 60.0);
    assert_story(
        &lab,
        &[
            (5.1, "never round 0 started: node0 is the first; 4 nodes are expected (serve --nodes)"),
            (
                25.1,
                "never round 0: closed by node0 at 3 of 4 nodes and never complete; there were node0, node2 and node1",
            ),
        ],
    );
}

#[test]
fn an_elastic_run_with_a_death_a_newcomer_and_the_deadlock() {
    let script: Script = &[
        (12.63, 1, "join"),
        (12.69, 2, "join deadline"),
        (12.75, 3, "join"),
        (16.71, 1, "complete"),
        (31.05, 3, "drop:1"),
        (31.09, 3, "wait"),
        (31.37, 2, "next"),
        (31.41, 2, "join"),
        (35.14, 3, "join"),
        (35.47, 2, "deadline"),
        (39.52, 2, "complete"),
        (52.25, 4, "wait"),
        (52.73, 2, "leave"),
        (52.76, 2, "wait"),
        (52.88, 3, "next"),
        (52.90, 3, "join"),
        (53.28, 4, "join"),
        (53.79, 2, "join deadline"),
        (57.33, 4, "complete"),
        (117.43, 4, "drop:4 close"),
    ];
    let lab = replay("run3_elastic_kill_join", script, Lab::expecting(2, 4), 60.0);
    assert_story(
        &lab,
        &[
            (12.8, "elastic1 round 0 started: node1 is the first; 2 nodes are expected (serve --nodes)"),
            (16.8, "elastic1 round 0 complete: 3 nodes in 4.1 s; last: node0 (+0.1 s)"),
            (
                30.8,
                "elastic1 round 0: node1 (node rank 1): connection closed, after the round was complete; 2 of 3 nodes left",
            ),
            (31.6, "elastic1 round 1 started: node2 is the first; 2 nodes are expected (serve --nodes)"),
            (39.6, "elastic1 round 1 complete: 2 nodes in 8.1 s; last: node0 (+3.7 s)"),
            (53.0, "elastic1 round 2 started: node0 is the first; 2 nodes are expected (serve --nodes)"),
            (57.4, "elastic1 round 2 complete: 3 nodes in 4.4 s; last: node2 (+0.9 s)"),
            (
                60.0,
                "elastic1 round 2: deadlock for 2 s: node3 (node rank 2) joined a running job and waits for MASTER_ADDR, which node0 (node rank 0) does not publish again while it waits for the newcomer's role",
            ),
            (
                117.5,
                "elastic1 round 2: closed by node3 (node rank 2) although none of 3 nodes had finished; still in the round: node2 (node rank 1) and node0 (node rank 0)",
            ),
            (
                118.0,
                "elastic1 round 2: for 1 min waiting for node3 (node rank 2): connection closed 0.5 s ago; 1 process waits for the role",
            ),
            (
                119.0,
                "elastic1 round 2: node3 (node rank 2) gave up on `/torch.rendezvous.elastic1.2/MASTER_ADDR` after 1 min; node0 (node rank 0) should have written it",
            ),
            (
                119.5,
                "elastic1 round 2: node2 (node rank 1) gave up on `/torch.rendezvous.elastic1.2/torchelastic/assigned_ranks/1` after 1 min; node0 (node rank 0) should have written it",
            ),
            (
                119.6,
                "elastic1 round 2: node0 (node rank 0) gave up on `/torch.rendezvous.elastic1.2/torchelastic/role_info/2` after 1 min; node3 (node rank 2) should have written it",
            ),
        ],
    );
}

#[test]
fn a_sidecar_on_rank_zero() {
    let script: Script = &[(4.08, 1, "join"), (4.35, 2, "join complete"), (13.84, 2, "close")];
    let lab = replay("run4_c10d_sidecar_heuristic", script, Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (4.2, "4c round 0 started: node0 is the first"),
            (4.4, "4c round 0 complete: 2 nodes in 0.3 s; last: node1 (+0.3 s)"),
            (13.9, "4c round 0 finished: 2 nodes after 9.5 s"),
        ],
    );
}

#[test]
fn workers_of_a_c10d_run_that_use_this_store() {
    let lab = replay("run4_plugin_workers_external", RUN_4_PLUGIN, Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (3.2, "4i round 0 complete: 2 nodes in 30 ms; last: node2 (+30 ms)"),
            (
                6.6,
                "4i round 0: all 4 ranks have published their addresses in 80 ms; last: rank 2 on node3 (+80 ms)",
            ),
            (11.2, "4i round 0 finished: 2 nodes after 8 s"),
        ],
    );
}

#[test]
fn env_runs_without_agents() {
    let lab = replay("run4_env_standalone", &[], Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (
                12.0,
                "store:29500: all 4 ranks have published their addresses in 0.1 s; last: rank 0 on node2 (+0.1 s)",
            ),
            (
                27.7,
                "store:29500 ended: the connections of all 4 processes closed after 14 s; first: rank 2 on node3, 1.1 s before the last",
            ),
        ],
    );
}

#[test]
fn a_rank_zero_that_cannot_bind() {
    let lab = replay("run4_env_sidecar_rank0_cannot_bind", &[], Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (3.7, "store:29500 started: rank 3 on node1 is the first"),
            (
                34.0,
                "store:29500: 3 of 4 ranks have published; for 30 s waiting for rank 0: never seen; 3 processes wait for the address",
            ),
            (
                45.2,
                "store:29500: rank 3 on node1, rank 2 on node1 and rank 1 on node0 gave up on `/default_pg/0//cpu//0/0` after 40 s; rank 0 should have written it",
            ),
            (45.6, "store:29500: the connections of all 3 processes closed"),
        ],
    );
}

#[test]
fn static_runs() {
    let lab = replay("run4_static_sidecar_agentstore", &[], Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (7.3, "run none complete: 2 nodes in 22 ms; last: node 1 at 10.77.0.11 (+17 ms)"),
            (
                13.6,
                "run none: all 4 ranks have published their addresses in 0.1 s; last: rank 0 on node0 (+0.1 s)",
            ),
            (24.4, "run none finished: 2 nodes after 17 s"),
        ],
    );
    let lab = replay("run4_static_standalone_4x", &[], Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (3.6, "run none complete: 2 nodes in 0.1 s; last: node 0 at 10.77.0.12 (+0.1 s)"),
            (
                7.3,
                "run none: all 4 ranks have published their addresses in 0.6 s; last: rank 1 on node2 (+0.6 s)",
            ),
            (13.9, "run none finished: 2 nodes after 10 s"),
        ],
    );
}

#[test]
fn an_env_run_twice_whose_second_part_fails() {
    let lab = replay("run5_env8_twice", &[], Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (6.4, "store:29500 started: rank 2 on node2 is the first"),
            (
                7.7,
                "store:29500: all 8 ranks have published their addresses in 1.3 s; last: rank 7 on node3 (+1.3 s)",
            ),
            (
                18.8,
                "store:29500 ended: the connections of all 8 processes closed after 9.6 s; first: rank 7 on node3, 1.2 s before the last",
            ),
            (21.1, "store:29500 started: rank 4 on node3 is the first"),
            (
                22.8,
                "store:29500: rank 4 on node3: connection closed before all ranks had published; 1 of 8 is still there",
            ),
            (
                24.4,
                "store:29500: rank 2 on node2, rank 3 on node2, rank 7 on node3, rank 0 on node2 and rank 5 on node3: connections closed before all ranks had published; 2 of 8 are still there",
            ),
            (
                26.1,
                "store:29500: rank 6 on node3: connection closed before all ranks had published; 1 of 8 is still there",
            ),
            (68.8, "store:29500: the connections of all 8 processes closed"),
        ],
    );
}

#[test]
fn the_id_of_an_nccl_run_is_not_there_for_the_next() {
    for (name, key) in [
        ("run8_env_nccl2_torch215", "/default_pg/0//cuda//0/nccl_storekey_0"),
        ("run8_env_nccl_torch215", "/default_pg/0//cuda//0"),
    ] {
        let mut lab = replay(name, &[], Lab::new(), 0.0);
        // The second recording ends before its last rank does.
        for c in 1..=2 {
            if lab.is_connected(c) {
                lab.leave(c);
            }
        }
        lab.pass(1.0);
        lab.worker(9, "10.0.0.9");
        lab.wait(9, &[key]);
        lab.pass(2.0);
        assert_eq!(lab.run("store:29500").waits.len(), 1, "{name}: rank 1 waits for the new id");
    }
}

#[test]
fn a_static_run_twice_whose_second_part_fails() {
    let lab = replay("run5_static_twice", &[], Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (3.6, "s1 complete: 2 nodes in 86 ms; last: node 0 at 10.77.0.12 (+86 ms)"),
            (7.3, "s1: all 4 ranks have published their addresses in 0.2 s; last: rank 2 on node3 (+0.2 s)"),
            (13.2, "s1 finished: 2 nodes after 9.6 s"),
            (16.9, "s1 started: node 0 at 10.77.0.12 is the first"),
            (17.0, "s1 complete: 2 nodes in 0.3 s; last: node 1 at 10.77.0.13 (+0.3 s)"),
            (
                22.2,
                "s1: rank 0 on node2 and rank 3 on node3: connections closed before all ranks had published, and then rank 1 on node2 and rank 2 on node3 of the same nodes; none of 4 is still there",
            ),
            (
                23.4,
                "s1: the connections of both nodes closed, and none had finished; first: node 0 at 10.77.0.12",
            ),
        ],
    );
}

#[test]
fn static_restarts() {
    let lab = replay("run5_static_restart_torch24", &[], Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (7.1, "run none complete: 2 nodes in 0.1 s; last: node 0 at 10.77.0.12 (+0.1 s)"),
            (
                10.7,
                "run none: all 4 ranks have published their addresses in 47 ms; last: rank 0 on node2 (+47 ms)",
            ),
            (
                15.0,
                "run none: node 0 at 10.77.0.12 has ended its workers and starts them again; of the ranks before rank 1 on node2 ended first, 0.2 s earlier",
            ),
            (
                16.9,
                "run none: node 1 at 10.77.0.13 has ended its workers and starts them again; of the ranks before rank 1 on node2 ended first, 2.1 s earlier",
            ),
            (
                18.9,
                "run none: all 4 ranks have published their addresses in 1.4 s; last: rank 2 on node3 (+1.4 s)",
            ),
            (25.2, "run none finished: 2 nodes after 18 s"),
        ],
    );
}

#[test]
fn a_static_restart_that_fails() {
    let lab = replay("run5_static_restart_torch215", &[], Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (3.2, "run none started: node 1 at 10.77.0.13 is the first"),
            (3.4, "run none complete: 2 nodes in 0.3 s; last: node 0 at 10.77.0.12 (+0.3 s)"),
            (
                6.6,
                "run none: all 4 ranks have published their addresses in 0.8 s; last: rank 1 on node2 (+0.8 s)",
            ),
            (
                11.1,
                "run none: node 0 at 10.77.0.12 has ended its workers and starts them again; of the ranks before rank 1 on node2 ended first, 0.2 s earlier",
            ),
            (
                13.1,
                "run none: node 1 at 10.77.0.13 has ended its workers and starts them again; of the ranks before rank 1 on node2 ended first, 2.2 s earlier",
            ),
            (
                15.3,
                "run none: rank 1 on node2: connection closed before all ranks had published, and then rank 0 on node2 of the same node; none of 4 is still there",
            ),
            (
                16.8,
                "run none: node 0 at 10.77.0.12: connection closed, before all ranks had published their addresses; 1 of 2 nodes left",
            ),
            (
                17.8,
                "run none: rank 2 on node3: connection closed before all ranks had published, and then rank 3 on node3 of the same node; none of 4 is still there",
            ),
            (
                18.9,
                "run none: the connections of both nodes closed, and none had finished; first: node 0 at 10.77.0.12",
            ),
        ],
    );
}

#[test]
fn a_second_run_with_the_id_of_a_finished_one() {
    let script: Script = &[(6.64, 2, "join"), (6.83, 1, "join complete"), (19.00, 1, "close")];
    let lab = replay("run5_c10d_same_id_twice", script, Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (6.8, "5c10d round 0 started: node3 is the first"),
            (6.9, "5c10d round 0 complete: 2 nodes in 0.2 s; last: node2 (+0.2 s)"),
            (19.0, "5c10d round 0 finished: 2 nodes after 12 s"),
            (
                26.7,
                "5c10d round 0: process 23598 at 10.77.0.13 and process 23600 at 10.77.0.12 cannot join: the run finished and was closed by node2 (node rank 0) 6.1 s ago",
            ),
        ],
    );
}

#[test]
fn a_run_whose_agents_were_terminated_is_started_again() {
    let script: Script = &[
        (8.15, 1, "join"),
        (8.37, 2, "join complete"),
        (20.02, 3, "redundant"),
        (20.16, 4, "redundant"),
        (29.07, 3, "drop:1 drop:2 next"),
        (29.10, 3, "join"),
        (29.22, 4, "join"),
        (30.13, 3, "complete"),
        (34.47, 4, "close"),
    ];
    let lab = replay("run5_c10d_sigterm_then_same_id", script, Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (8.3, "term round 0 started: node2 is the first"),
            (8.4, "term round 0 complete: 2 nodes in 0.2 s; last: node3 (+0.2 s)"),
            (17.2, "term round 0: the connections of both nodes closed, and none had finished"),
            (29.2, "term round 1 started: node2 is the first"),
            (30.2, "term round 1 complete: 2 nodes in 1 s; last: node3 (+0.1 s)"),
            (34.5, "term round 1 finished: 2 nodes after 4.3 s"),
        ],
    );
}

#[test]
fn a_run_of_torch_2_4() {
    let lab = replay("run7_c10d_torch24", RUN_7, Lab::new(), 60.0);
    assert_story(
        &lab,
        &[
            (3.4, "run24 round 0 started: node0 is the first"),
            (9.7, "run24 round 0 complete: 2 nodes in 6.5 s; last: node1 (+2.4 s)"),
            (16.7, "run24 round 0 finished: 2 nodes after 6.9 s"),
        ],
    );
}
