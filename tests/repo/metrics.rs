//! Checks that `docs/metrics.md` lists every exported family, with its type, its labels and its help.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Command;

use rallypoint_protocol::{Dialect, Op};
use serde_json::json;

use crate::common::peer::{HELLO, Peer, wire};
use crate::common::{TestServer, eventually, free_ports, http};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
const BEGIN: &str = "<!-- begin: written by the test -->\n";
const END: &str = "<!-- end: written by the test -->\n";

#[derive(Debug, Default)]
struct Family<'t> {
    kind: &'t str,
    help: &'t str,
    labels: BTreeSet<String>,
}

fn families(text: &str) -> BTreeMap<&str, Family<'_>> {
    let mut found: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    let mut current = "";
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            current = name;
            found.entry(current).or_default().help = help;
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            found.entry(name).or_default().kind = kind;
        } else if let Some((_, rest)) = line.split_once('{') {
            let labels = rest.split_once('}').map_or("", |(labels, _)| labels).split(',');
            let names = labels.filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned());
            found.entry(current).or_default().labels.extend(names.filter(|name| name != "le"));
        }
    }
    found
}

/// A server with everything that has metrics of its own: a run with ranks and a refused node, a barrier, a
/// journal.
fn busy_server() -> (TestServer, tempfile::TempDir) {
    let journal = tempfile::tempdir().expect("a folder");
    let path = journal.path().join("journal");
    let server = TestServer::with_store_ports(20, &["--journal", path.to_str().expect("a path")]);
    let join = |node: &str, nodes: u32| {
        let body = json!({
            "node": node, "join_id": node, "min_nodes": nodes, "max_nodes": nodes, "local_world_size": 1,
                "store": true,
            "wait_seconds": 15,
        });
        http(
            server.admin,
            "POST /api/v1/runs/train/join",
            "Content-Type: application/json\r\n",
            &body.to_string(),
        )
    };
    let port: u16 = std::thread::scope(|scope| {
        let other = scope.spawn(|| join("b", 2));
        let port = join("a", 2).json()["store"]["port"].as_u64().and_then(|port| port.try_into().ok());
        other.join().expect("an answer");
        port.expect("a port")
    });
    join("c", 3);
    // The command `store` would be a probe of our own, and no rank.
    let mut rank = Peer::connect(([127, 0, 0, 1], port).into(), Dialect::C);
    rank.send(&HELLO);
    rank.send(&[&[rank.code(Op::Set)][..], &wire(b"/default_pg/0//cpu//0/0"), &wire(b"x")].concat());
    let arrive = json!({
        "participant": "a", "arrival_id": "a", "world_size": 2, "timeout_seconds": 60, "wait_seconds": 0,
    });
    let headers = "Content-Type: application/json\r\n";
    http(server.admin, "POST /api/v1/barriers/epoch/arrive", headers, &arrive.to_string());
    (server, journal)
}

/// The metrics of a server that stands by because its etcd does not answer.
fn metrics_of_a_standby() -> String {
    let admin = std::net::SocketAddr::from(([127, 0, 0, 1], *free_ports(1).start()));
    let mut server = Command::new(env!("CARGO_BIN_EXE_rallypoint"))
        .args(["serve", "--journal", "etcd://127.0.0.1:1/none", "--admin", &admin.to_string()])
        .env_clear()
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary starts");
    eventually("it listens", || std::net::TcpStream::connect(admin).is_ok());
    let text = http(admin, "GET /metrics", "", "").body;
    server.kill().and_then(|()| server.wait()).expect("it ends");
    text
}

#[test]
fn the_page_of_metrics_is_what_the_program_exports() {
    let (server, _journal) = busy_server();
    let scrape = || http(server.admin, "GET /metrics", "", "").body;
    eventually("every family is there", || {
        let text = scrape();
        let found = families(&text);
        let of_runs = ["ranks_expected", "barrier_expected", "rendezvous_expected_nodes", "run_explanations"];
        of_runs.iter().all(|name| found.contains_key(format!("rallypoint_{name}").as_str()))
    });
    let mut table = "| metric | type | labels | what it says |\n|---|---|---|---|\n".to_owned();
    let text = scrape() + &metrics_of_a_standby();
    for (name, family) in families(&text) {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(table, "| `{name}` | {} | {} | {} |", family.kind, labels.join(", "), family.help);
    }
    let page = std::fs::read_to_string(PAGE).expect("docs/metrics.md");
    let (before, rest) = page.split_once(BEGIN).expect("a mark");
    let (copy, after) = rest.split_once(END).expect("a mark");
    if std::env::var_os("RALLYPOINT_UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{table}{END}{after}"))
            .expect("a file that can be written");
        return;
    }
    assert!(
        copy == table,
        "docs/metrics.md is not what the program exports; RALLYPOINT_UPDATE_DOCS=1 cargo nextest run --test \
         repo metrics writes it anew:\n{table}"
    );
}
