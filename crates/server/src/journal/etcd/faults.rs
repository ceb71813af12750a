//! A small etcd for tests of the journal. It keeps its contents after each transaction, and another server
//! can take over at any of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle};

use super::super::lock;
use super::wire::base64;
use super::{Etcd, READ, TXN};
use crate::config::{EtcdConfig, EtcdMember};

/// etcd takes no more changes in one transaction.
const MOST_CHANGES: usize = 128;

const LEADER: &[u8] = b"test/leader";

/// The runtime of the servers and etcd members of all tests.
static RUNTIME: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
});

#[derive(Debug, Clone)]
struct Key {
    value: Vec<u8>,
    version: u64,
}

type Keys = BTreeMap<Vec<u8>, Key>;

/// When another server takes over.
#[derive(Debug, Clone, Copy)]
pub(super) enum TakenOver {
    /// Before this transaction of the leader.
    Before(usize),
    /// After this transaction, and before its answer.
    After(usize),
}

#[derive(Debug, Default)]
struct State {
    keys: Keys,
    /// The contents after each transaction of the leader. Their indices serve as revisions, from 1 on.
    images: Vec<Keys>,
    taken_over: Option<TakenOver>,
    /// Whether the answer to each third transaction is lost.
    loses_answers: bool,
    asked: usize,
}

/// One etcd. Clones share its contents.
#[derive(Debug, Clone)]
pub(super) struct FakeEtcd {
    state: Arc<Mutex<State>>,
    port: u16,
}

impl FakeEtcd {
    pub(super) fn start() -> Self {
        Self::with(Keys::new())
    }

    fn with(keys: Keys) -> Self {
        let state = Arc::new(Mutex::new(State { keys, ..State::default() }));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        listener.set_nonblocking(true).expect("a socket option");
        RUNTIME.spawn(serve(listener, Arc::downgrade(&state)));
        Self { state, port }
    }

    /// Lets another server take over.
    pub(super) fn take_over(&self, when: TakenOver) {
        lock(&self.state).taken_over = Some(when);
    }

    /// From now on answers are lost, and the requests are still carried out.
    pub(super) fn lose_answers(&self) {
        lock(&self.state).loses_answers = true;
    }

    /// The number of the leader's transactions.
    pub(super) fn transactions(&self) -> usize {
        lock(&self.state).images.len()
    }

    /// A copy of the etcd as it was after this transaction.
    pub(super) fn after(&self, transaction: usize) -> Self {
        Self::with(lock(&self.state).images[transaction].clone())
    }

    /// A copy of the etcd as it is now, in which nobody takes over.
    pub(super) fn now(&self) -> Self {
        Self::with(lock(&self.state).keys.clone())
    }

    /// A new leader: the term of its predecessor is over. It sends nothing by itself.
    pub(super) fn lead(&self) -> Arc<Etcd> {
        lock(&self.state).keys.remove(LEADER);
        let etcd = self.look();
        let standing = Arc::clone(&etcd);
        etcd.wait(async move { standing.win().await }).expect("it leads");
        etcd
    }

    /// A reader that does not stand for election.
    pub(super) fn look(&self) -> Arc<Etcd> {
        let config = EtcdConfig {
            members: vec![EtcdMember { host: "127.0.0.1".into(), port: self.port }],
            prefix: "test".into(),
            tls: None,
            user: None,
            name: "one".into(),
        };
        Arc::new(Etcd::on(RUNTIME.clone(), config))
    }
}

impl State {
    fn ask(&mut self, path: &str, body: &Value) -> Option<Value> {
        match path {
            READ => Some(self.range(body)),
            TXN => self.transact(body),
            other => panic!("nobody asks for {other}"),
        }
    }

    fn within(keys: &Keys, range: &Value) -> Vec<Vec<u8>> {
        let key = bytes(&range["key"]);
        match range.get("range_end") {
            None => keys.contains_key(&key).then_some(key).into_iter().collect(),
            Some(end) => keys.range(key..bytes(end)).map(|(key, _)| key.clone()).collect(),
        }
    }

    fn range(&self, body: &Value) -> Value {
        let limit = body["limit"].as_str().map_or(usize::MAX, |limit| limit.parse().expect("a number"));
        let at = body["revision"].as_str().map(|revision| revision.parse::<usize>().expect("a number"));
        let keys = at.map_or(&self.keys, |revision| &self.images[revision - 1]);
        let found = Self::within(keys, body).into_iter().take(limit).map(|name| {
            let key = &keys[&name];
            let value = if body["keys_only"] == true { &[][..] } else { &key.value };
            json!({ "key": base64(&name), "value": base64(value), "version": key.version.to_string() })
        });
        // Always the present contents and revision, whichever revision the request names.
        let revision = self.images.len().to_string();
        json!({ "header": { "revision": revision }, "kvs": found.collect::<Vec<_>>() })
    }

    fn holds(&self, compare: &Value) -> bool {
        let key = self.keys.get(&bytes(&compare["key"]));
        match compare["target"].as_str() {
            Some("CREATE") => key.is_none(),
            Some("VALUE") => key.is_some_and(|key| key.value == bytes(&compare["value"])),
            Some("VERSION") => key.is_some_and(|key| compare["version"] == *key.version.to_string()),
            other => panic!("no such comparison: {other:?}"),
        }
    }

    /// `None` if the answer is lost.
    fn transact(&mut self, body: &Value) -> Option<Value> {
        let compare = body["compare"].as_array().expect("comparisons");
        let is_leaders = compare.iter().any(|it| it["target"] == "VERSION");
        let number = self.images.len();
        if is_leaders && matches!(self.taken_over, Some(TakenOver::Before(at)) if at == number) {
            self.lead_elsewhere();
        }
        let mut succeeded = compare.iter().all(|it| self.holds(it));
        if succeeded {
            self.change(body["success"].as_array().expect("changes"));
        }
        if succeeded && is_leaders {
            self.images.push(self.keys.clone());
            if matches!(self.taken_over, Some(TakenOver::After(at)) if at == number) {
                self.lead_elsewhere();
                succeeded = false;
            }
        }
        self.asked += 1;
        if self.loses_answers && self.asked.is_multiple_of(3) {
            return None;
        }
        let responses = if succeeded {
            Vec::new()
        } else {
            body["failure"]
                .as_array()
                .expect("reads")
                .iter()
                .map(|it| json!({ "response_range": self.range(&it["request_range"]) }))
                .collect()
        };
        Some(json!({ "succeeded": succeeded, "responses": responses }))
    }

    fn change(&mut self, changes: &[Value]) {
        assert!(changes.len() <= MOST_CHANGES, "etcd refuses that many");
        let mut put = BTreeSet::new();
        for change in changes {
            if let Some(change) = change.get("request_put") {
                let name = bytes(&change["key"]);
                assert!(put.insert(name.clone()), "etcd refuses the same key twice");
                let key = self.keys.entry(name).or_insert(Key { value: Vec::new(), version: 0 });
                key.version += 1;
                if change["ignore_value"] != true {
                    key.value = bytes(&change["value"]);
                }
            } else {
                for name in Self::within(&self.keys, &change["request_delete_range"]) {
                    self.keys.remove(&name);
                }
            }
        }
    }

    fn lead_elsewhere(&mut self) {
        self.keys.insert(LEADER.to_vec(), Key { value: b"77 another".to_vec(), version: 1 });
    }
}

fn bytes(text: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(text.as_str().expect("text")).expect("base64")
}

/// Answers requests until the last clone of this etcd is dropped.
async fn serve(listener: std::net::TcpListener, state: std::sync::Weak<Mutex<State>>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    while let Ok((stream, _)) = listener.accept().await {
        if state.strong_count() == 0 {
            return;
        }
        let state = state.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let state = state.clone();
            async move {
                let gone = || io::Error::from(io::ErrorKind::ConnectionAborted);
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.map_err(|_| gone())?.to_bytes();
                let body = serde_json::from_slice(&body).expect("JSON");
                let state = state.upgrade().ok_or_else(gone)?;
                let answer = lock(&state).ask(&path, &body).ok_or_else(gone)?;
                Ok::<_, io::Error>(Response::new(answer.to_string()))
            }
        });
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        tokio::spawn(connection);
    }
}
