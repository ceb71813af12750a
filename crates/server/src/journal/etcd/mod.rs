//! A journal in etcd: one of several servers leads and writes it; the others stand by and take over.
//!
//! The key `PREFIX/leader` names the leader. Each transaction of the leader raises the version of this key;
//! when there is nothing to write, a beat raises it. A standby that has seen the same version for [`TERM`]
//! takes the key over, if the key still has that version. So a leader may answer for a little less than
//! [`TERM`] after it *sent* the latest transaction that etcd accepted, measured by a clock that goes on while
//! the machine sleeps. After that its answers wait. Everything rests on etcd's comparisons, which a majority
//! of its members decides. A lease of etcd is no alternative: one member alone renews it, and that member may
//! be cut off from the majority.
//!
//! All requests run on one separate thread. The rest of the server may wait for them, or not.

mod client;
#[cfg(test)]
mod faults;
mod log;
mod standing;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::lock;
use crate::config::EtcdConfig;
use client::Client;
pub use client::EtcdError;
pub use log::Log;
use rallypoint_process::{random_number, since_boot};
pub use standing::{COMMIT_BUCKETS, Commits, Lost, Role, Standing};
use wire::{KeyValue, Range, Txn, base64, number, range};

/// A leader that etcd has not heard of for this long leads no more.
pub const TERM: Duration = Duration::from_secs(5);
/// The leader stops this much earlier, because the clocks of two machines differ a little.
const MARGIN: Duration = Duration::from_millis(500);
/// Time between two beats of a leader that has nothing to write.
const BEAT: Duration = Duration::from_secs(1);
/// Time between two reads of a standby.
const LOOK: Duration = Duration::from_millis(250);
/// A standby that has heard nothing from etcd for this long starts to measure the term again.
const GAP: Duration = Duration::from_secs(2);
/// The longest time of one attempt. A term has time for an attempt at each of three members.
const ATTEMPT: Duration = Duration::from_millis(1500);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a server that is ending waits for etcd.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The value of the leader's key, and its version.
#[derive(Debug, Clone)]
struct Mark {
    value: String,
    version: u64,
}

impl Mark {
    fn of(key: &KeyValue) -> Self {
        Self { value: String::from_utf8_lossy(&key.value()).into_owned(), version: number(&key.version) }
    }

    /// The name of the leader.
    fn name(&self) -> &str {
        self.value.split_once(' ').map_or("another server", |(_, name)| name)
    }
}

/// This server's place at an etcd.
#[derive(Debug)]
pub struct Etcd {
    config: Arc<EtcdConfig>,
    standing: Standing,
    client: Mutex<Client>,
    /// The leader's key as this server last wrote it; `None` unless it leads. Locked during a transaction, so
    /// that transactions run one after the other.
    mark: Mutex<Option<Mark>>,
    /// How long etcd may still be retried, when the server is ending.
    until: std::sync::Mutex<Option<Instant>>,
    runtime: Handle,
}

impl Etcd {
    /// Stands for election, for ever. [`Standing::role`] shows the result.
    pub fn stand(config: EtcdConfig) -> io::Result<Arc<Self>> {
        let etcd = Self::start(config)?;
        let standing = Arc::clone(&etcd);
        etcd.runtime.spawn(async move { standing.take_part().await });
        Ok(etcd)
    }

    /// Only reads the journal, whoever leads.
    pub fn look(config: EtcdConfig) -> io::Result<Arc<Self>> {
        Self::start(config)
    }

    fn start(config: EtcdConfig) -> io::Result<Arc<Self>> {
        let (tell, told) = mpsc::channel();
        // The thread ends with the process; the last writes are waited for elsewhere.
        std::thread::Builder::new().name("etcd".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    let _ = tell.send(Ok(runtime.handle().clone()));
                    runtime.block_on(std::future::pending::<()>());
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        })?;
        let runtime = told.recv().map_err(io::Error::other)??;
        Ok(Arc::new(Self::on(runtime, config)))
    }

    fn on(runtime: Handle, config: EtcdConfig) -> Self {
        let config = Arc::new(config);
        Self {
            standing: Standing::new(&config.name),
            client: Mutex::new(Client::new(Arc::clone(&config))),
            mark: Mutex::new(None),
            until: std::sync::Mutex::default(),
            config,
            runtime,
        }
    }

    /// This server's standing.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// The address of the etcd, as the user gave it.
    pub fn place(&self) -> String {
        self.config.to_string()
    }

    /// Blocks this thread until the etcd thread has done the work. Do not call it on a thread of a runtime.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
        let (tell, told) = mpsc::channel();
        self.runtime.spawn(async move {
            let _ = tell.send(work.await);
        });
        told.recv().map_err(io::Error::other)
    }

    /// Tries to become the leader, and then keeps the leadership.
    async fn take_part(&self) {
        self.win().await;
        while self.standing.lost().is_none() {
            if self.standing.since_renewal() >= BEAT {
                let _said_by_standing = self.transact(&[]).await;
            }
            let rest = BEAT.saturating_sub(self.standing.since_renewal());
            tokio::time::sleep(rest.max(PAUSE)).await;
        }
    }

    /// Waits until this server leads.
    async fn win(&self) {
        let mark = self.campaign().await;
        *self.mark.lock().await = Some(mark);
        self.standing.leads();
    }

    async fn campaign(&self) -> Mark {
        /// What was read, when it was first seen, and when it was last seen.
        struct Seen {
            mark: Mark,
            since: Duration,
            last: Duration,
        }
        let mut seen: Option<Seen> = None;
        loop {
            let looked =
                self.client.lock().await.ask(READ, &range(&self.config.leader(), None), ATTEMPT).await;
            match looked {
                Err(error) => self.standing.failed(&error),
                Ok(Range { kvs, .. }) => {
                    let now = since_boot();
                    let found = kvs.first().map(Mark::of);
                    self.standing.sees(found.as_ref().map(Mark::name));
                    let before = seen.take();
                    let is_silent = match (&found, before) {
                        (None, _) => true,
                        (Some(mark), Some(before))
                            if before.mark.version == mark.version
                                && before.mark.value == mark.value
                                && now.saturating_sub(before.last) < GAP =>
                        {
                            let since = before.since;
                            seen = Some(Seen { last: now, ..before });
                            now.saturating_sub(since) >= TERM
                        }
                        (Some(mark), _) => {
                            seen = Some(Seen { mark: mark.clone(), since: now, last: now });
                            false
                        }
                    };
                    if is_silent && let Some(mark) = self.take(found.as_ref()).await {
                        return mark;
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Takes the key, if it is still as it was seen.
    async fn take(&self, seen: Option<&Mark>) -> Option<Mark> {
        let leader = self.config.leader();
        let value = format!("{:016x} {}", random_number(), self.config.name);
        let compare = match seen {
            None => json!([{ "target": "CREATE", "key": base64(&leader), "create_revision": "0" }]),
            Some(mark) => compare(&leader, mark),
        };
        let body = json!({
            "compare": compare,
            "success": [{ "request_put": { "key": base64(&leader), "value": base64(&value) } }],
            "failure": [{ "request_range": range(&leader, None) }],
        });
        let first = since_boot();
        // Not for ever: another server may be faster.
        while since_boot().saturating_sub(first) < TERM {
            let sent = since_boot();
            match self.client.lock().await.ask::<Txn>(TXN, &body, ATTEMPT).await {
                Err(error) => self.standing.failed(&error),
                Ok(Txn { succeeded: true, .. }) => {
                    self.standing.renewed(sent);
                    return Some(Mark {
                        value,
                        version: seen.map_or(1, |mark| mark.version.saturating_add(1)),
                    });
                }
                Ok(answer) => {
                    let found = answer.found().map(Mark::of).filter(|found| found.value == value);
                    if found.is_some() {
                        self.standing.renewed(first);
                    }
                    return found;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        None
    }

    /// Makes one transaction, exactly once, and only as the leader: retries until there is an answer.
    async fn transact(&self, changes: &[Value]) -> Result<(), EtcdOver> {
        let mut held = self.mark.lock().await;
        let mut mark = held.take().ok_or(EtcdOver::Closed)?;
        let leader = self.config.leader();
        let touch = json!({ "request_put": { "key": base64(&leader), "ignore_value": true } });
        let success: Vec<&Value> = std::iter::once(&touch).chain(changes).collect();
        let body = json!({
            "compare": compare(&leader, &mark),
            "success": success,
            "failure": [{ "request_range": range(&leader, None) }],
        });
        let next = mark.version.saturating_add(1);
        let first = since_boot();
        let mut sent = first;
        loop {
            match self.client.lock().await.ask::<Txn>(TXN, &body, ATTEMPT).await {
                Ok(Txn { succeeded: true, .. }) => break,
                Ok(answer) => {
                    let found = answer.found().map(Mark::of);
                    if found.is_some_and(|found| found.value == mark.value && found.version == next) {
                        // An earlier attempt succeeded, and its answer was lost.
                        sent = first;
                        break;
                    }
                    return Err(EtcdOver::Lost(self.standing.lose()));
                }
                Err(error) => {
                    self.standing.failed(&error);
                    if lock(&self.until).is_some_and(|until| Instant::now() >= until) {
                        *held = Some(mark);
                        return Err(EtcdOver::Error(error));
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
            sent = since_boot();
        }
        mark.version = next;
        *held = Some(mark);
        self.standing.renewed(sent);
        if !changes.is_empty() {
            self.standing.committed(since_boot().saturating_sub(first));
        }
        Ok(())
    }

    /// From now on etcd is retried for a short time only.
    fn hurry(&self) {
        *lock(&self.until) = Instant::now().checked_add(LAST_WORDS);
    }

    /// Gives the leadership up, so that a standby need not wait for the end of the term.
    async fn resign(&self) {
        let leader = self.config.leader();
        let Some(mark) = self.mark.lock().await.take() else { return };
        let body = json!({
            "compare": compare(&leader, &mark),
            "success": [{ "request_delete_range": range(&leader, None) }],
        });
        self.standing.resigned();
        if let Err(error) = self.client.lock().await.ask::<Txn>(TXN, &body, ATTEMPT).await {
            tracing::info!(
                "could not give the leadership up ({error}): a standby takes over in some seconds"
            );
        }
    }
}

const READ: &str = "/v3/kv/range";
const TXN: &str = "/v3/kv/txn";

/// Compares the leader's key with `mark`.
fn compare(leader: &str, mark: &Mark) -> Value {
    let key = base64(leader);
    json!([
        { "target": "VALUE", "key": key, "value": base64(&mark.value) },
        { "target": "VERSION", "key": key, "version": mark.version.to_string() },
    ])
}

/// Why a transaction did not succeed.
#[derive(Debug, thiserror::Error)]
enum EtcdOver {
    #[error("{0}")]
    Lost(Lost),
    #[error("{0}")]
    Error(EtcdError),
    #[error("this server does not lead")]
    Closed,
}
