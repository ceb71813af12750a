//! NIXL's metadata store: a client with the bytes of NIXL's own (`nixl_tcpstore_client.cpp`), which is not
//! PyTorch's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::common::peer::wire;
use crate::common::{PATIENCE, TestServer, eventually, free_ports, http};

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const CHECK: u8 = 5;
const DELETE_KEY: u8 = 8;
const PING: u8 = 13;

/// One agent. It connects when it first needs the store, and again after an error.
struct Agent {
    store: SocketAddr,
    pid: u32,
    stream: Option<TcpStream>,
}

impl Agent {
    fn new(store: SocketAddr, pid: u32) -> Self {
        Self { store, pid, stream: None }
    }

    fn key(name: &str) -> Vec<u8> {
        wire(format!("/nixl/agents/metadata/{name}/NULL_AGENT").as_bytes())
    }

    /// VALIDATE, and a PING whose nonce is the process id, in two writes.
    fn stream(&mut self) -> &mut TcpStream {
        let (store, pid) = (self.store, self.pid);
        self.stream.get_or_insert_with(|| {
            let mut stream = TcpStream::connect(store).expect("the store listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
            stream.write_all(&[VALIDATE, 0xce, 0xf7, 0x85, 0x3c]).expect("sent");
            stream.write_all(&[&[PING][..], &pid.to_le_bytes()].concat()).expect("sent");
            let mut nonce = [0; 4];
            stream.read_exact(&mut nonce).expect("the nonce");
            assert_eq!(u32::from_le_bytes(nonce), pid);
            stream
        })
    }

    fn send(&mut self, op: u8, parts: &[&[u8]]) {
        let request = [&[op][..], &parts.concat()].concat();
        self.stream().write_all(&request).expect("sent");
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream().read_exact(&mut bytes).expect("an answer");
        bytes
    }

    fn publish(&mut self, value: &[u8]) {
        self.set(&self.pid.to_string(), value);
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        self.send(SET, &[&Self::key(name), &wire(value)]);
    }

    /// CHECK, and GET only of a key that is there.
    fn fetch(&mut self, name: &str) -> Option<Vec<u8>> {
        self.send(CHECK, &[&1_u64.to_le_bytes(), &Self::key(name)]);
        match self.read() {
            [0] => Some(self.get(name)),
            [answer] => {
                assert_eq!(answer, 1, "not ready");
                None
            }
        }
    }

    /// GET alone. Empty means that the key was deleted since the CHECK.
    fn get(&mut self, name: &str) -> Vec<u8> {
        self.send(GET, &[&Self::key(name)]);
        let len = u64::from_le_bytes(self.read());
        let mut value = vec![0; usize::try_from(len).expect("short")];
        self.stream().read_exact(&mut value).expect("the value");
        value
    }

    fn delete(&mut self, name: &str) -> i64 {
        self.send(DELETE_KEY, &[&Self::key(name)]);
        i64::from_le_bytes(self.read())
    }
}

#[test]
fn a_client_written_from_its_source_publishes_fetches_and_deletes() {
    let server = TestServer::start(&[]);
    let (mut a, mut b) = (Agent::new(server.store, 1), Agent::new(server.store, 2));
    assert_eq!(b.fetch("1"), None, "not published yet");
    assert_eq!(b.get("1"), b"", "a GET that the deletion overtook");
    let blob: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    a.publish(&blob);
    eventually("b has fetched it", || b.fetch("1").is_some());
    assert_eq!(b.fetch("1"), Some(blob));
    a.publish(b"of one registration more");
    eventually("the later one", || b.get("1") == b"of one registration more");
    assert_eq!(a.delete("1"), 1);
    assert_eq!(a.delete("1"), 0);
    assert_eq!((b.fetch("1"), b.get("1")), (None, Vec::new()));
}

#[test]
fn the_metadata_of_an_agent_goes_with_its_process_and_not_with_its_connection() {
    let server = TestServer::start(&["--forget-run-after", "500ms"]);
    let mut reader = Agent::new(server.store, 9);
    let (mut comes_back, mut dies) = (Agent::new(server.store, 1), Agent::new(server.store, 2));
    comes_back.publish(b"blob");
    dies.publish(b"blob");
    // Each has been served when it has an answer.
    assert!(comes_back.fetch("1").is_some() && dies.fetch("2").is_some());
    let mut again = Agent::new(server.store, 1);
    again.fetch("2");
    drop((comes_back, dies));
    eventually("the dead agent's goes", || reader.fetch("2").is_none());
    assert_eq!(reader.fetch("1").as_deref(), Some(&b"blob"[..]), "its process has another connection");
    let metrics = http(server.admin, "GET /metrics", "", "").body;
    assert!(metrics.contains("rallypoint_keys_dropped_total{cause=\"writer_gone\"} 1"), "{metrics}");
    drop(again);
    eventually("the other's goes too", || reader.fetch("1").is_none());
}

#[test]
fn with_a_journal_an_agent_that_says_nothing_is_found_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let listen = format!("127.0.0.1:{}", free_ports(1).start());
    let journal = folder.path().to_str().expect("a path");
    let start =
        || TestServer::start(&["--listen", &listen, "--journal", journal, "--forget-run-after", "100ms"]);
    let running = start();
    let mut silent = Agent::new(running.stores[1], 1);
    silent.publish(b"blob");
    assert_eq!(silent.fetch("1").as_deref(), Some(&b"blob"[..]));
    drop(running);
    let running = start();
    let (mut reader, mut dies) = (Agent::new(running.stores[1], 2), Agent::new(running.stores[1], 3));
    dies.publish(b"blob");
    assert!(dies.fetch("3").is_some());
    drop(dies);
    // Far longer than the grace has passed then.
    eventually("one that died since is forgotten", || reader.fetch("3").is_none());
    assert_eq!(reader.fetch("1").as_deref(), Some(&b"blob"[..]));
}
