//! A server with a journal is killed and started again: everything acknowledged is still there.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rallypoint_protocol::{Dialect, Op};

use super::common::peer::{HELLO, Peer, wire};
use super::common::{TestServer, eventually, free_ports, http};

/// A server whose second store always has one port.
fn server(port: u16, journal: &Path, args: &[&str]) -> (TestServer, SocketAddr) {
    let listen = format!("127.0.0.1:{port}");
    let journal = journal.to_str().expect("a path");
    let server = TestServer::start(&[&["--listen", &listen, "--journal", journal], args].concat());
    let store = server.stores[1];
    (server, store)
}

struct Client(Peer);

impl Client {
    fn connect(store: SocketAddr) -> Self {
        let mut peer = Peer::connect(store, Dialect::C);
        peer.send(&HELLO);
        Self(peer)
    }

    /// ADD; `None` if the server is gone.
    fn add(&mut self, key: &str, delta: i64) -> Option<i64> {
        let code = self.0.code(Op::Add);
        self.0.send(&[&[code][..], &wire(key.as_bytes()), &delta.to_le_bytes()].concat());
        let answer = self.0.read(8);
        Some(i64::from_le_bytes(answer.bytes.get(..8)?.try_into().ok()?))
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        let code = self.0.code(Op::Set);
        self.0.send(&[&[code][..], &wire(key.as_bytes()), &wire(value)].concat());
    }

    fn get(&mut self, key: &str) -> Vec<u8> {
        let code = self.0.code(Op::Get);
        self.0.send(&[&[code][..], &wire(key.as_bytes())].concat());
        let head = self.0.read(8);
        let len = u64::from_le_bytes(head.bytes.try_into().expect("a length"));
        self.0.read(usize::try_from(len).expect("short")).bytes
    }
}

/// Kills the server at arbitrary moments, while clients count.
fn nothing_acknowledged_is_lost(args: &[&str]) {
    const CLIENTS: usize = 4;
    let folder = tempfile::tempdir().expect("a folder");
    let port = *free_ports(1).start();
    let counted: [AtomicU64; CLIENTS] = Default::default();
    for round in 0..6_u64 {
        let (running, store) = server(port, folder.path(), args);
        let mut looker = Client::connect(store);
        for (n, counted) in counted.iter().enumerate() {
            let there = looker.add(&format!("client-{n}"), 0).expect("an answer") as u64;
            let acknowledged = counted.load(SeqCst);
            // One unacknowledged request of each client may be there, too.
            assert!(
                (acknowledged..=acknowledged + 1).contains(&there),
                "{there}, {acknowledged} acknowledged"
            );
            counted.store(there, SeqCst);
            if there > 0 {
                assert_eq!(looker.get(&format!("value-{n}-{there}")), there.to_string().into_bytes());
            }
        }
        let begin = counted[0].load(SeqCst);
        std::thread::scope(|scope| {
            for (n, counted) in counted.iter().enumerate() {
                scope.spawn(move || {
                    let mut client = Client::connect(store);
                    for next in counted.load(SeqCst) + 1.. {
                        // A request without a reply, before one with a reply.
                        client.set(&format!("value-{n}-{next}"), next.to_string().as_bytes());
                        match client.add(&format!("client-{n}"), 1) {
                            Some(count) => counted.store(count as u64, SeqCst),
                            None => break,
                        }
                    }
                });
            }
            eventually("some requests", || counted[0].load(SeqCst) > begin + 20);
            std::thread::sleep(Duration::from_micros(round * 1373 % 5000));
            drop(running);
        });
    }
}

#[test]
fn killed_at_any_moment_nothing_acknowledged_is_lost() {
    nothing_acknowledged_is_lost(&[]);
}

#[test]
fn the_same_with_replies_that_wait_for_the_disk() {
    nothing_acknowledged_is_lost(&["--durability", "disk"]);
}

#[test]
fn a_runs_own_store_has_its_port_and_its_keys_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let ports = free_ports(4);
    let ports = format!("{}-{}", ports.start(), ports.end());
    let journal = folder.path().to_str().expect("a path");
    let args = ["--journal", journal, "--store-ports", &ports];
    let open = |server: &TestServer| {
        let headers = "Content-Type: application/json\r\n";
        let answer = http(server.admin, "POST /api/v1/stores", headers, r#"{"run_id":"job"}"#);
        let port = answer.json()["port"].as_u64().expect("a port");
        SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).expect("a port")))
    };
    let running = TestServer::start(&args);
    let store = open(&running);
    assert_eq!(Client::connect(store).add("count", 5), Some(5));
    drop(running);
    let running = TestServer::start(&args);
    assert_eq!(Client::connect(store).add("count", 1), Some(6), "at once, without asking for it");
    assert_eq!(open(&running), store);
    eventually("it says that it was restarted", || running.log().contains("restarted in"));
}

#[test]
fn a_folder_is_for_one_server_and_can_be_looked_at() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = *free_ports(1).start();
    let (running, store) = server(port, folder.path(), &[]);
    Client::connect(store).add("looked at", 1);
    let command = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.args(args).arg(folder.path()).env_clear().output().expect("it runs")
    };
    let other = command(&["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--journal"]);
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && said.contains(&running.pid().to_string()), "{said}");
    let dump = command(&["journal", "dump"]);
    assert!(String::from_utf8_lossy(&dump.stdout).contains("key `looked at` = `1`"), "{dump:?}");
    assert!(command(&["journal", "check"]).status.success());
    let metrics = http(running.admin, "GET /metrics", "", "").body;
    assert!(metrics.contains("rallypoint_journal_commits_total"), "{metrics}");
    drop(running);

    // A flipped bit in an acknowledged commit.
    let segment =
        std::fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("an entry").path());
    let segment =
        segment.filter(|path| path.extension().is_some_and(|it| it == "rows")).min().expect("a segment");
    let mut bytes = std::fs::read(&segment).expect("bytes");
    bytes[60] ^= 1;
    std::fs::write(&segment, bytes).expect("written");
    let check = command(&["journal", "check"]);
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(check.status.code() == Some(1) && said.contains("damaged: "), "{said}");
    let refused = command(&["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--journal"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("move the folder away"), "{said}");
}

fn check(folder: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    let checked = command.args(["journal", "check"]).arg(folder).env_clear().output().expect("it runs");
    let said = [checked.stdout, checked.stderr].concat();
    (checked.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("copied");
    }
}

#[test]
fn a_part_that_is_missing_is_named_and_nothing_is_served_without_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = *free_ports(1).start();
    for start in 1..=3 {
        let (running, store) = server(port, folder.path(), &[]);
        assert_eq!(Client::connect(store).add("count", 1), Some(start));
        drop(running);
    }
    let segment = |number| format!("{number:012}.rows");
    let (is_whole, said) = check(folder.path());
    assert!(is_whole && said.starts_with("whole: "), "{said}");
    let without = |what: &str, spoil: &dyn Fn(&Path)| {
        let spoiled = tempfile::tempdir().expect("a folder");
        copy(folder.path(), spoiled.path());
        spoil(spoiled.path());
        let (is_whole, said) = check(spoiled.path());
        assert!(!is_whole && said.contains(what), "{said}");
        let mut serve = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        serve.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--journal"]);
        let refused = serve.arg(spoiled.path()).env_clear().output().expect("it ends");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(what), "{said}");
    };
    for number in [1, 2] {
        without("missing", &|path| std::fs::remove_file(path.join(segment(number))).expect("removed"));
    }
    // The whole last commit of the first segment.
    let bytes = std::fs::read(folder.path().join(segment(1))).expect("bytes");
    let last = bytes.windows(4).rposition(|four| four == b"RJc1").expect("a commit");
    without("another end", &|path| std::fs::write(path.join(segment(1)), &bytes[..last]).expect("written"));
}

/// A journal from a release that knew only this format.
#[test]
fn a_journal_of_the_first_format_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/journal/format-1");
    copy(&fixture, folder.path());
    // Its first segment belongs to another journal.
    std::fs::remove_file(folder.path().join("000000000001.rows")).expect("removed");
    let (is_whole, said) = check(folder.path());
    assert!(is_whole && said.contains("store 1 on port 39500 : 6 keys"), "{said}");
    for starts in 2..=3 {
        let journal = folder.path().to_str().expect("a path");
        let running = TestServer::start(&["--journal", journal]);
        let said = format!("read the journal of {starts} earlier starts");
        // It reads the journal behind its first line.
        eventually(&said, || running.log().contains(&said));
        Client::connect(running.stores[0]).add("count", 1).expect("an answer");
        drop(running);
        let (is_whole, said) = check(folder.path());
        assert!(is_whole, "{said}");
    }
}

#[test]
fn a_folder_that_is_removed_under_a_server_is_noticed_and_made_again() {
    let outside = tempfile::tempdir().expect("a folder");
    let folder = outside.path().join("journal");
    let port = *free_ports(1).start();
    let (running, store) = server(port, &folder, &[]);
    assert_eq!(Client::connect(store).add("count", 5), Some(5));
    std::fs::remove_dir_all(&folder).expect("removed");
    eventually("it is noticed", || running.log().contains("journal was removed"));
    assert_eq!(Client::connect(store).add("count", 1), Some(6));
    eventually("it is whole again", || running.log().contains("the journal is whole again"));
    drop(running);
    let (_running, store) = server(port, &folder, &[]);
    assert_eq!(Client::connect(store).add("count", 1), Some(7));
}

#[test]
fn a_pod_that_does_not_serve_leaves_the_journal_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let path = path.to_str().expect("a path");
    let mut idle = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    let ports = folder.path().join("ports");
    idle.args(["serve", "--only-on-index", "0", "--admin", "127.0.0.1:0", "--journal", path, "--ports-file"]);
    let mut idle = idle.arg(&ports).env_clear().env("RALLYPOINT_POD_INDEX", "1").spawn().expect("it runs");
    eventually("it is up", || ports.exists());
    let is_there = Path::new(path).exists();
    idle.kill().and_then(|()| idle.wait()).expect("it ends");
    assert!(!is_there, "the folder is for the pod that serves");
}
