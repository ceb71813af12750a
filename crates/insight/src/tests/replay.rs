//! Recorded jobs, replayed through a real store and insight.
//!
//! The recordings hold only the beginnings of the rendezvous states, so their changes are made again: each
//! sample has a list of what each compare-set that changed more than a heartbeat did, as told by who wrote it
//! and how its length changed. What is said is held by the yardstick.

use serde_json::Value as Json;

use super::lab::Lab;

/// Changes: the second, the connection, and what is changed.
fn changes(script: &'static str) -> impl Iterator<Item = (f64, u32, &'static str)> {
    let change = |change: &'static str| {
        let mut parts = change.splitn(3, ' ');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?))
    };
    script.split(", ").filter(|change| !change.is_empty()).map(move |of| change(of).expect("a change"))
}

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

/// Replays a sample with its changes, and then lets `after` seconds pass.
pub(super) fn replay(name: &str, mut lab: Lab, after: f64) -> Lab {
    let rows = file(name);
    let script = RECORDED.iter().find(|(_, of, ..)| *of == name).map_or("", |(.., script)| script);
    let mut script = changes(script).peekable();
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
                    lab.compare_set(c, &run, b"an old state", b"a state that never was");
                }
            }
            _ => {}
        }
    }
    assert!(script.peek().is_none(), "{name}: a change was not made: {:?}", script.peek());
    lab.pass(after);
    lab
}

/// A recorded job: the scene, the recording, how many nodes are expected, and its changes.
type Recorded = (&'static str, &'static str, Option<(u32, u32)>, &'static str);

const RECORDED: &[Recorded] = &[
    (
        "a healthy c10d run is told in three lines",
        "run1_c10d_4x2",
        Some((4, 4)),
        "7.21 1 join, 13.32 2 join, 14.59 3 join, 15.30 4 join complete, 37.09 4 close",
    ),
    (
        "a late node is missed only if it is very late",
        "run2_c10d_one_late",
        Some((4, 4)),
        "3.17 2 join, 3.24 1 join, 3.27 3 join, 23.38 4 join complete, 35.52 1 close",
    ),
    (
        "a node that never comes",
        "run2_c10d_one_never",
        Some((4, 4)),
        "4.95 1 join, 5.04 2 join, 5.17 3 join, 25.03 1 drop:1, 25.05 1 close",
    ),
    (
        "an elastic run with a death a newcomer and the deadlock",
        "run3_elastic_kill_join",
        Some((2, 4)),
        "12.63 1 join, 12.69 2 join deadline, 12.75 3 join, 16.71 1 complete, 31.05 3 drop:1, \
         31.09 3 wait, 31.37 2 next, 31.41 2 join, 35.14 3 join, 35.47 2 deadline, \
         39.52 2 complete, 52.25 4 wait, 52.73 2 leave, 52.76 2 wait, 52.88 3 next, 52.90 3 join, \
         53.28 4 join, 53.79 2 join deadline, 57.33 4 complete, 117.43 4 drop:4 close",
    ),
    (
        "a sidecar on rank zero",
        "run4_c10d_sidecar_heuristic",
        None,
        "4.08 1 join, 4.35 2 join complete, 13.84 2 close",
    ),
    (
        "workers of a c10d run that use this store",
        "run4_plugin_workers_external",
        None,
        "3.07 2 join, 3.10 1 join complete, 11.16 1 close",
    ),
    ("env runs without agents", "run4_env_standalone", None, ""),
    ("a rank zero that cannot bind", "run4_env_sidecar_rank0_cannot_bind", None, ""),
    ("static runs", "run4_static_sidecar_agentstore", None, ""),
    ("static runs (2)", "run4_static_standalone_4x", None, ""),
    ("an env run twice whose second part fails", "run5_env8_twice", None, ""),
    ("a static run twice whose second part fails", "run5_static_twice", None, ""),
    ("static restarts", "run5_static_restart_torch24", None, ""),
    ("a static restart that fails", "run5_static_restart_torch215", None, ""),
    (
        "a second run with the id of a finished one",
        "run5_c10d_same_id_twice",
        None,
        "6.64 2 join, 6.83 1 join complete, 19.00 1 close",
    ),
    (
        "a run whose agents were terminated is started again",
        "run5_c10d_sigterm_then_same_id",
        None,
        "8.15 1 join, 8.37 2 join complete, 20.02 3 redundant, 20.16 4 redundant, \
         29.07 3 drop:1 drop:2 next, 29.10 3 join, 29.22 4 join, 30.13 3 complete, 34.47 4 close",
    ),
    (
        "a run of torch 2 4",
        "run7_c10d_torch24",
        None,
        "3.21 1 join, 5.65 2 join deadline, 9.68 2 complete, 16.64 1 close",
    ),
];

#[test]
fn recorded_jobs_are_told_as_they_were() {
    for (scene, name, nodes, _) in RECORDED {
        let mut lab = nodes.map_or_else(Lab::new, |(min, max)| Lab::expecting(min, max));
        lab.scene.is_row("replay", scene);
        replay(name, lab, 60.0);
    }
}

#[test]
fn the_id_of_an_nccl_run_is_not_there_for_the_next() {
    for (name, key) in [
        ("run8_env_nccl2_torch215", "/default_pg/0//cuda//0/nccl_storekey_0"),
        ("run8_env_nccl_torch215", "/default_pg/0//cuda//0"),
    ] {
        let mut lab = replay(name, Lab::new(), 0.0);
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
