//! This server's role among the servers at an etcd: leader, standby, or former leader.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::super::lock;
use super::{EtcdError, MARGIN, TERM};
use rallypoint_process::since_boot;
use rallypoint_protocol::ids::{Elapsed, Shown};

/// Errors are logged when they have lasted this long, and then again after each [`SAY_AGAIN`].
const SAY: Duration = Duration::from_secs(1);
const SAY_AGAIN: Duration = Duration::from_secs(5);

/// Upper bounds of the histogram of commits, in seconds.
pub const COMMIT_BUCKETS: [f64; 12] =
    [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 1.0, 4.0];

/// The role of a server at an etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Waits for its turn. Has the leader's name, if etcd has told it.
    Standby(Option<String>),
    /// Leads, and serves.
    Leader,
    /// Leads no more.
    Lost(Lost),
}

/// Why a former leader leads no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Another server has taken over.
    #[error(
        "this server has lost the leadership: etcd has not heard of it for 5 s, and another one has taken \
         over. It has answered nothing since, and ends; started again it is a standby"
    )]
    TakenOver,
    /// The server resigned, because it is ending.
    #[error("this server has given up the leadership")]
    Resigned,
}

/// Transactions by how long they took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Commits {
    /// Counts by [`COMMIT_BUCKETS`], not cumulative. The last one counts transactions above every bound.
    pub counts: [u64; COMMIT_BUCKETS.len() + 1],
    /// Sum of all durations in seconds.
    pub sum: f64,
}

#[derive(Debug)]
struct Trouble {
    since: Instant,
    said_at: Option<Instant>,
}

/// This server's standing, and its metrics.
#[derive(Debug)]
pub struct Standing {
    name: String,
    role: watch::Sender<Role>,
    /// When this leader sent the latest request that etcd accepted, in nanoseconds since the machine started.
    renewed: AtomicU64,
    changes: AtomicU64,
    errors: AtomicU64,
    commits: Mutex<Commits>,
    trouble: Mutex<Option<Trouble>>,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Standing {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            role: watch::Sender::new(Role::Standby(None)),
            renewed: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            commits: Mutex::default(),
            trouble: Mutex::default(),
        }
    }

    /// The role of this server at present.
    pub fn role(&self) -> Role {
        self.role.borrow().clone()
    }

    /// Waits until this server leads.
    pub async fn elected(&self) {
        let mut role = self.role.subscribe();
        let _it_is = role.wait_for(|role| *role == Role::Leader).await;
    }

    /// Waits until this server leads no more.
    pub async fn over(&self) -> Lost {
        let mut role = self.role.subscribe();
        let over = role.wait_for(|role| matches!(role, Role::Lost(_))).await;
        match over.as_deref() {
            Ok(Role::Lost(lost)) => *lost,
            _ => Lost::Resigned,
        }
    }

    /// Whether answers may leave: no other server can lead yet.
    #[inline]
    pub fn may_answer(&self) -> bool {
        self.since_renewal() < TERM.saturating_sub(MARGIN)
    }

    /// How long ago this leader sent the latest request that etcd accepted.
    #[inline]
    pub fn since_renewal(&self) -> Duration {
        since_boot().saturating_sub(Duration::from_nanos(self.renewed.load(Ordering::Acquire)))
    }

    /// Why this server leads no more; `None` if it may still lead.
    pub(super) fn lost(&self) -> Option<Lost> {
        match &*self.role.borrow() {
            Role::Lost(lost) => Some(*lost),
            _ => None,
        }
    }

    /// How often the leader changed, as far as this server has seen.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Requests to etcd that failed.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// How long transactions took.
    pub fn commits(&self) -> Commits {
        *lock(&self.commits)
    }

    pub(super) fn sees(&self, leader: Option<&str>) {
        self.answered();
        let seen = Role::Standby(leader.map(|name| Shown(name).to_string()));
        self.role.send_if_modified(|role| {
            if *role == seen {
                return false;
            }
            if let Some(leader) = leader {
                self.changes.fetch_add(1, Ordering::Relaxed);
                tracing::info!("standby: {} leads; this server waits for its turn", Shown(leader));
            }
            *role = seen;
            true
        });
    }

    pub(super) fn leads(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        tracing::info!("{} leads now", Shown(&self.name));
        self.role.send_replace(Role::Leader);
    }

    pub(super) fn lose(&self) -> Lost {
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.renewed.store(0, Ordering::Release);
        tracing::error!("{}", Lost::TakenOver);
        self.role.send_replace(Role::Lost(Lost::TakenOver));
        Lost::TakenOver
    }

    pub(super) fn resigned(&self) {
        self.renewed.store(0, Ordering::Release);
        self.role.send_replace(Role::Lost(Lost::Resigned));
    }

    /// etcd accepted a request that was sent at `sent`.
    pub(super) fn renewed(&self, sent: Duration) {
        self.renewed.fetch_max(nanos(sent), Ordering::AcqRel);
        self.answered();
    }

    pub(super) fn committed(&self, took: Duration) {
        let took = took.as_secs_f64();
        let mut commits = lock(&self.commits);
        let bucket = COMMIT_BUCKETS.iter().position(|bound| took <= *bound).unwrap_or(COMMIT_BUCKETS.len());
        if let Some(count) = commits.counts.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        commits.sum += took;
    }

    /// A request failed. A single failure is not logged: the next request goes to another member.
    pub(super) fn failed(&self, error: &EtcdError) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let mut trouble = lock(&self.trouble);
        let trouble = trouble.get_or_insert(Trouble { since: now, said_at: None });
        let lasts = now.saturating_duration_since(trouble.since);
        let is_due = |said| now.saturating_duration_since(said) >= SAY_AGAIN;
        if lasts < SAY || !trouble.said_at.is_none_or(is_due) {
            return;
        }
        trouble.said_at = Some(now);
        let held = if self.role() == Role::Leader { "answers are held" } else { "nobody here can lead" };
        tracing::warn!("etcd has not answered for {} ({error}); {held} until it does", Elapsed(lasts));
    }

    fn answered(&self) {
        let trouble = lock(&self.trouble).take();
        if let Some(Trouble { since, said_at: Some(_) }) = trouble {
            tracing::info!("etcd answers again after {}", Elapsed(since.elapsed()));
        }
    }
}
