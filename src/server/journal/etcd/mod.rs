//! A journal in etcd: one server of several leads and writes it, the others stand by and take over.
//!
//! The leader is who the key `PREFIX/leader` names. Each of its transactions raises the version of this key, and a beat
//! does so when there is nothing to write. Who has seen the same version for [`TERM`] takes the key over, if the version
//! is still that one. So a leader may answer for a little less than [`TERM`] after it *sent* what etcd then took, by a
//! clock that goes on while the machine sleeps; after that its answers wait. All rests on etcd's comparisons, which a
//! majority of its members decides. A lease of etcd would be renewed by one member alone, which may be one of the past.
//!
//! All requests are made on a thread of its own: the rest of the server waits for it or does not.

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
use crate::process::{random_number, since_boot};
use client::Client;
pub use client::EtcdError;
pub use log::Log;
pub use standing::{COMMIT_BUCKETS, Commits, Lost, Role, Standing};
use wire::{KeyValue, Range, Txn, base64, number, range};

/// Who has not been heard of for so long leads no more.
pub const TERM: Duration = Duration::from_secs(5);
/// The leader stops this much earlier: clocks of two machines do not go quite alike.
const MARGIN: Duration = Duration::from_millis(500);
/// Between two beats of a leader that has nothing to write.
const BEAT: Duration = Duration::from_secs(1);
/// Between two looks of a standby.
const LOOK: Duration = Duration::from_millis(250);
/// A standby that has heard nothing from etcd for so long begins to count anew.
const GAP: Duration = Duration::from_secs(2);
/// One attempt may take so long. Within a term there is time for one at each of three members.
const ATTEMPT: Duration = Duration::from_millis(1500);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a server that ends waits for etcd.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What the leader's key holds, and its version.
#[derive(Debug, Clone)]
struct Mark {
    value: String,
    version: u64,
}

impl Mark {
    fn of(key: &KeyValue) -> Self {
        Self { value: String::from_utf8_lossy(&key.value()).into_owned(), version: number(&key.version) }
    }

    /// The name of who leads.
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
    /// What the key holds while this server leads. Held during a transaction: they come one after the other.
    mark: Mutex<Option<Mark>>,
    /// Until when etcd is waited for, where the server ends.
    until: std::sync::Mutex<Option<Instant>>,
    runtime: Handle,
}

impl Etcd {
    /// Stands for election, for ever: [`Standing::role`] says what came of it.
    pub fn stand(config: EtcdConfig) -> io::Result<Arc<Self>> {
        let etcd = Self::start(config)?;
        let standing = Arc::clone(&etcd);
        etcd.runtime.spawn(async move { standing.take_part().await });
        Ok(etcd)
    }

    /// Only to look into the journal, whoever leads.
    pub fn look(config: EtcdConfig) -> io::Result<Arc<Self>> {
        Self::start(config)
    }

    fn start(config: EtcdConfig) -> io::Result<Arc<Self>> {
        let (tell, told) = mpsc::channel();
        // It ends with the process: what is sent at the end is waited for.
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

    /// How this server stands.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Where it is, as it was given.
    pub fn place(&self) -> String {
        self.config.to_string()
    }

    /// Waits on this thread, which is none of a runtime's own, until the etcd thread has done it.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
        let (tell, told) = mpsc::channel();
        self.runtime.spawn(async move {
            let _ = tell.send(work.await);
        });
        told.recv().map_err(io::Error::other)
    }

    /// Looks who leads until this server does, and then keeps its place.
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
        /// What was seen, since when, and when last.
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

    /// Takes the key, if it is still what was seen of it.
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
        // Not for ever: somebody else may be there first.
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

    /// One transaction, as the leader only, and once: it is sent again until there is an answer.
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
                        // An attempt before, whose answer was lost.
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

    /// From now on etcd is waited for only a little.
    fn hurry(&self) {
        *lock(&self.until) = Instant::now().checked_add(LAST_WORDS);
    }

    /// Gives the leadership up, so that a standby need not wait.
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

/// That the leader's key is what it is taken for.
fn compare(leader: &str, mark: &Mark) -> Value {
    let key = base64(leader);
    json!([
        { "target": "VALUE", "key": key, "value": base64(&mark.value) },
        { "target": "VERSION", "key": key, "version": mark.version.to_string() },
    ])
}

/// Why a transaction was not made.
#[derive(Debug, thiserror::Error)]
enum EtcdOver {
    #[error("{0}")]
    Lost(Lost),
    #[error("{0}")]
    Error(EtcdError),
    #[error("this server does not lead")]
    Closed,
}
