//! Everything there is to say about a job, each thing in one place: its facts as fields, its sentence, its remedy.
//!
//! The same value goes to the log, the API, `status`, the page and the metrics. `docs/explanations.md` lists every code
//! with its meaning.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::view::{ExpectedFrom, Severity};

/// A duration in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Secs(pub Duration);

impl Serialize for Secs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64((self.0.as_secs_f64() * 1000.0).round() / 1000.0)
    }
}

impl Display for Secs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match f.precision() {
            Some(digits) => write!(f, "{:.digits$} s", self.0.as_secs_f64()),
            None => write!(f, "{} s", self.0.as_secs()),
        }
    }
}

/// Some names, and how many more there are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Names {
    /// The first of them.
    pub shown: Vec<String>,
    /// How many are not shown.
    pub more: usize,
}

impl Names {
    /// Names in a sentence.
    const SHOWN: usize = 8;

    /// Takes the first names and counts the rest.
    pub fn of(names: impl IntoIterator<Item = String>) -> Self {
        let mut names = names.into_iter();
        let shown = names.by_ref().take(Self::SHOWN).collect();
        Self { shown, more: names.count() }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shown.len() + self.more
    }
}

impl Display for Names {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.shown.split_last(), self.more) {
            (None, more) => write!(f, "{more}"),
            (Some(_), more @ 1..) => write!(f, "{} and {more} more", self.shown.join(", ")),
            (Some((last, [])), 0) => write!(f, "{last}"),
            (Some((last, rest)), 0) => write!(f, "{} and {last}", rest.join(", ")),
        }
    }
}

/// What somebody who is waited for does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is", content = "for_seconds")]
pub enum Whereabouts {
    /// It has never been seen.
    NeverCame,
    /// It is connected and waits for nothing here: it is busy with something else.
    Busy,
    /// Its connection closed this long ago.
    Gone(Secs),
    /// The key belongs to a round that the run has left.
    WentOn,
    /// The key does not tell who it is.
    Unknown,
}

impl Display for Whereabouts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverCame => f.write_str("it has not come"),
            Self::Busy => {
                f.write_str("it is connected, but waits for nothing here: it is busy or stuck elsewhere")
            }
            Self::Gone(ago) => write!(f, "its connection closed {ago} ago"),
            Self::WentOn => f.write_str("that was in another round, and the run has gone on without it"),
            Self::Unknown => f.write_str("the keys do not tell which process that is"),
        }
    }
}

/// Something in the words of the native rendezvous.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Said {
    pub(super) code: &'static str,
    #[serde(skip)]
    pub(super) severity: Severity,
    /// Whether it is something that is waited for.
    #[serde(skip)]
    pub(super) waiting: bool,
    /// What follows the run's name.
    #[serde(skip)]
    pub(super) text: String,
    #[serde(skip)]
    pub(super) remedy: &'static str,
}

/// Why something is as it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are what the sentence says; docs/explanations.md has the codes")]
pub enum Reason {
    /// The first sign of a run or of its next round.
    RunStarted { who: String, expected: Option<u32>, from: Option<ExpectedFrom> },
    /// Every node of a round is there.
    RoundComplete { nodes: u32, took: Secs, last: String, last_after: Secs },
    /// Every rank has published its address.
    RanksComplete { ranks: u32, took: Secs, last: String, last_after: Secs },
    /// Every node arrived at the exit barrier, or every process of a run without agents has ended.
    RunFinished { members: u32, unit: Unit, ran: Secs },
    /// Pods have not announced themselves, and those that have are held back.
    PodsMissing { announced: u32, expected: u32, missing: Names, waited: Secs },
    /// Pods have different versions of PyTorch.
    TorchVersionsDiffer { versions: String },
    /// Nodes have not joined.
    NodesMissing {
        joined: u32,
        expected: Option<u32>,
        from: Option<ExpectedFrom>,
        missing: Names,
        present: Names,
        waited: Secs,
    },
    /// As many as are expected have joined, and the round is not complete.
    RoundNotComplete { joined: u32, expected: u32, from: ExpectedFrom, waited: Secs },
    /// A node that was missed has come.
    NodeCameLate { node: String, after: Secs, joined: u32, expected: Option<u32> },
    /// Nodes died before the round was complete.
    NodeDiedJoining { nodes: Names, joined: u32, expected: Option<u32> },
    /// Nodes died after the round was complete.
    NodeDied { nodes: Names, left: u32 },
    /// Worker processes ended before all ranks had met.
    RankLost { ranks: Names, joined: u32, world_size: Option<u32> },
    /// Worker processes ended while others go on.
    RanksEnded { ranks: Names, left: u32, since: Secs },
    /// All connections of the run closed, and it had not finished.
    AllLeft { members: u32, unit: Unit },
    /// Waits whose root is node rank or group rank 0.
    RankZeroSlow { what: String, who: String, whereabouts: Whereabouts, waiters: usize, waited: Secs },
    /// Waits whose root is another node.
    WaitingForNode { node: String, what: String, whereabouts: Whereabouts, waiters: usize, waited: Secs },
    /// Waits whose root is a rank.
    WaitingForRank {
        rank: String,
        whereabouts: Whereabouts,
        waiters: usize,
        joined: u32,
        connected: u32,
        world_size: Option<u32>,
        waited: Secs,
    },
    /// Waits at a store-based barrier, or in a sub-group.
    WaitingForGroup { what: String, waiters: usize, waited: Secs },
    /// Two live processes wrote one rank's address.
    DuplicateRank { what: String, first: String, second: String },
    /// Two jobs write the same keys.
    TwoJobs { first: String, second: String, evidence: String },
    /// The round is complete with fewer nodes than somebody expects.
    FewerThanExpected { formed: u32, expected: u32, from: ExpectedFrom, left_over: Names },
    /// Nodes stay outside a complete round.
    LeftOver { group: u32, left_over: Names, redundant: bool, waited: Secs },
    /// Ranks are prepared for different world sizes.
    WorldSizesDiffer { rank: u32, says: u32, other_rank: u32, other_says: u32 },
    /// A node rank that rank 0 does not count on.
    NodeRankBeyond { node: String, rank: u32, nodes: u32 },
    /// Pods announced different numbers of nodes.
    AnnouncementsDiffer { pod: String, says: String, other_pod: String, other_says: String },
    /// A node came to a run that is closed.
    RunIsClosed { newcomer: String, closed_for: Secs, finished: bool },
    /// The run was closed before the round was complete.
    ClosedIncomplete { joined: u32, expected: Option<u32>, present: Names },
    /// The run was closed although not all nodes had finished.
    ClosedUnfinished { finished: u32, nodes: u32 },
    /// A run that had finished is started again.
    RunRestarted {},
    /// An address was read whose writer is gone.
    StaleAddress { reader: String, key: String, gone_for: Secs },
    /// The deadlock of torch 2.15 when a node joins a running job.
    ElasticDeadlock { newcomer: String, rank_zero: String, waited: Secs },
    /// Processes wait for each other in a circle.
    WaitCycle { members: Names, waited: Secs },
    /// Clients cancelled their waits.
    GaveUp { who: Names, key: String, waited: Secs, writer: String },
    /// Another protocol on the store's port.
    ForeignClient { peer: String, protocol: String, port: u16, times: u64 },
    /// The workers use a store of their own.
    WorkersElsewhere { address: String },
    /// Some have finished and wait for those who train.
    ExitBarrier { arrived: u32, nodes: Option<u32>, running: Names, waited: Secs },
    /// A rank's watchdog reported a time-out.
    WatchdogFired { who: String },
    /// The rendezvous state cannot be read.
    UnreadableState { detail: String },
    /// Nodes of a native run wait beside a round that is full.
    StandsBy { spares: Names, max_nodes: u32, waited: Secs },
    /// A node of a native run waits for the rank of another.
    WaitsForRank { node: String, holder: String, waited: Secs },
    /// What the native rendezvous tells.
    #[serde(untagged)]
    Rendezvous(Said),
}

/// What a run is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Agents, one a node.
    Node,
    /// Worker processes without agents.
    Process,
}

impl Unit {
    pub(super) fn count(self, n: u32) -> String {
        let (one, many) = match self {
            Self::Node => ("node", "nodes"),
            Self::Process => ("process", "processes"),
        };
        format!("{n} {}", if n == 1 { one } else { many })
    }
}

/// `1 node has`, `3 nodes have`.
fn have(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one} has") } else { format!("{n} {many} have") }
}

fn clients(n: usize) -> String {
    format!("{} waited", have(n, "process", "processes"))
}

fn of_expected(joined: u32, expected: Option<u32>) -> String {
    match expected {
        Some(expected) => format!("{joined} of {expected} nodes"),
        None => Unit::Node.count(joined),
    }
}

/// The words for who says so.
pub(super) const fn says_who(from: ExpectedFrom) -> &'static str {
    match from {
        ExpectedFrom::Api => "PUT …/expect",
        ExpectedFrom::Announced => "the pods' announcements",
        ExpectedFrom::Flag => "serve --nodes",
        ExpectedFrom::Join => "the first join",
        ExpectedFrom::RoleExchange => "rank 0's role exchange",
        ExpectedFrom::RoundComplete => "the rendezvous state",
        ExpectedFrom::GlooAddress => "the ranks' addresses",
        ExpectedFrom::EarlierRound => "an earlier round",
    }
}

impl Reason {
    /// Every code.
    pub const CODES: [&'static str; 50] = [
        "run_started",
        "round_complete",
        "ranks_complete",
        "run_finished",
        "pods_missing",
        "torch_versions_differ",
        "nodes_missing",
        "round_not_complete",
        "node_came_late",
        "node_died_joining",
        "node_died",
        "rank_lost",
        "ranks_ended",
        "all_left",
        "rank_zero_slow",
        "waiting_for_node",
        "waiting_for_rank",
        "waiting_for_group",
        "duplicate_rank",
        "two_jobs",
        "fewer_than_expected",
        "left_over",
        "world_sizes_differ",
        "node_rank_beyond",
        "announcements_differ",
        "run_is_closed",
        "closed_incomplete",
        "closed_unfinished",
        "run_restarted",
        "stale_address",
        "elastic_deadlock",
        "wait_cycle",
        "gave_up",
        "foreign_client",
        "workers_elsewhere",
        "exit_barrier",
        "watchdog_fired",
        "unreadable_state",
        "stands_by",
        "waits_for_rank",
        "node_left",
        "node_rejoined",
        "nodes_unreported",
        "round_expiring",
        "round_timed_out",
        "round_extended",
        "run_closed",
        "round_adopted",
        "mixed_releases",
        "no_store",
    ];

    /// The name of this kind of explanation.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "run_started",
            Self::RoundComplete { .. } => "round_complete",
            Self::RanksComplete { .. } => "ranks_complete",
            Self::RunFinished { .. } => "run_finished",
            Self::PodsMissing { .. } => "pods_missing",
            Self::TorchVersionsDiffer { .. } => "torch_versions_differ",
            Self::NodesMissing { .. } => "nodes_missing",
            Self::RoundNotComplete { .. } => "round_not_complete",
            Self::NodeCameLate { .. } => "node_came_late",
            Self::NodeDiedJoining { .. } => "node_died_joining",
            Self::NodeDied { .. } => "node_died",
            Self::RankLost { .. } => "rank_lost",
            Self::RanksEnded { .. } => "ranks_ended",
            Self::AllLeft { .. } => "all_left",
            Self::RankZeroSlow { .. } => "rank_zero_slow",
            Self::WaitingForNode { .. } => "waiting_for_node",
            Self::WaitingForRank { .. } => "waiting_for_rank",
            Self::WaitingForGroup { .. } => "waiting_for_group",
            Self::DuplicateRank { .. } => "duplicate_rank",
            Self::TwoJobs { .. } => "two_jobs",
            Self::FewerThanExpected { .. } => "fewer_than_expected",
            Self::LeftOver { .. } => "left_over",
            Self::WorldSizesDiffer { .. } => "world_sizes_differ",
            Self::NodeRankBeyond { .. } => "node_rank_beyond",
            Self::AnnouncementsDiffer { .. } => "announcements_differ",
            Self::RunIsClosed { .. } => "run_is_closed",
            Self::ClosedIncomplete { .. } => "closed_incomplete",
            Self::ClosedUnfinished { .. } => "closed_unfinished",
            Self::RunRestarted {} => "run_restarted",
            Self::StaleAddress { .. } => "stale_address",
            Self::ElasticDeadlock { .. } => "elastic_deadlock",
            Self::WaitCycle { .. } => "wait_cycle",
            Self::GaveUp { .. } => "gave_up",
            Self::ForeignClient { .. } => "foreign_client",
            Self::WorkersElsewhere { .. } => "workers_elsewhere",
            Self::ExitBarrier { .. } => "exit_barrier",
            Self::WatchdogFired { .. } => "watchdog_fired",
            Self::UnreadableState { .. } => "unreadable_state",
            Self::StandsBy { .. } => "stands_by",
            Self::WaitsForRank { .. } => "waits_for_rank",
            Self::Rendezvous(said) => said.code,
        }
    }

    /// How much it matters.
    pub const fn severity(&self) -> Severity {
        match self {
            Self::RunStarted { .. }
            | Self::RoundComplete { .. }
            | Self::RanksComplete { .. }
            | Self::RunFinished { .. }
            | Self::NodeCameLate { .. }
            | Self::RanksEnded { .. }
            | Self::StandsBy { .. }
            | Self::WorkersElsewhere { .. } => Severity::Info,
            Self::PodsMissing { .. }
            | Self::TorchVersionsDiffer { .. }
            | Self::NodesMissing { .. }
            | Self::RoundNotComplete { .. }
            | Self::AllLeft { .. }
            | Self::RankZeroSlow { .. }
            | Self::WaitingForNode { .. }
            | Self::WaitingForRank { .. }
            | Self::WaitingForGroup { .. }
            | Self::LeftOver { .. }
            | Self::WaitsForRank { .. }
            | Self::ClosedUnfinished { .. }
            | Self::RunRestarted {}
            | Self::ForeignClient { .. }
            | Self::ExitBarrier { .. }
            | Self::UnreadableState { .. } => Severity::Warning,
            Self::Rendezvous(said) => said.severity,
            _ => Severity::Error,
        }
    }

    /// Whether it is something that is waited for: said only when it has lasted, and again with growing pauses.
    pub const fn is_waiting(&self) -> bool {
        matches!(
            self,
            Self::PodsMissing { .. }
                | Self::NodesMissing { .. }
                | Self::RoundNotComplete { .. }
                | Self::RankZeroSlow { .. }
                | Self::WaitingForNode { .. }
                | Self::WaitingForRank { .. }
                | Self::WaitingForGroup { .. }
                | Self::LeftOver { .. }
                | Self::ExitBarrier { .. }
                | Self::RanksEnded { .. }
                | Self::StandsBy { .. }
                | Self::WaitsForRank { .. }
                | Self::Rendezvous(Said { waiting: true, .. })
        )
    }

    /// Whether it is said of a run's ordinary course, as the end of a sentence that begins with the run.
    const fn is_predicate(&self) -> bool {
        matches!(
            self,
            Self::RunStarted { .. }
                | Self::RoundComplete { .. }
                | Self::RunFinished { .. }
                | Self::RunRestarted {}
                | Self::Rendezvous(_)
        )
    }

    /// The sentence, about `subject` (`train-llm round 0`).
    pub fn sentence(&self, subject: Option<&str>) -> String {
        match subject {
            Some(subject) if self.is_predicate() => format!("{subject} {self}"),
            Some(subject) => format!("{subject}: {self}"),
            None => self.to_string(),
        }
    }

    /// What to do about it; empty if there is nothing to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NodesMissing { expected: None, .. } => {
                "tell the server how many are expected (serve --nodes, or PUT /api/v1/runs/RUN/expect), and look which \
                 pods have not started or do not reach this server"
            }
            Self::PodsMissing { .. } => {
                "look at the missing pod: is it scheduled, has its image come, does it reach this server's admin port?"
            }
            Self::TorchVersionsDiffer { .. } => {
                "use one image on every node; different releases of PyTorch may not understand each other"
            }
            Self::NodesMissing { .. } | Self::WaitingForNode { whereabouts: Whereabouts::NeverCame, .. } => {
                "look at the missing node's pod: is it scheduled, has its image come, does it reach this server?"
            }
            Self::WaitingForNode { whereabouts: Whereabouts::Gone(_), .. }
            | Self::RankZeroSlow { whereabouts: Whereabouts::Gone(_), .. }
            | Self::WaitingForRank { whereabouts: Whereabouts::Gone(_), .. } => {
                "look why that process ended; the others go on only when it comes back or they are restarted"
            }
            Self::WaitingForNode { .. } => "look at that node's agent log",
            Self::RankZeroSlow { .. } => {
                "look at rank 0's process: has it started, is it still importing or loading, did it fail to bind its \
                 port (EADDRINUSE)?"
            }
            Self::WaitingForRank { .. } => {
                "look at the process with that rank: has it started, does it reach this server?"
            }
            Self::WaitingForGroup { .. } => "look for ranks that have not reached this call, or have left",
            Self::NodeDiedJoining { .. } => {
                "look at that pod's log and events; the round needs it or a replacement"
            }
            Self::NodeDied { .. } => {
                "look at that pod's log and events; torchrun notices when its heartbeats expire, 15 s by default"
            }
            Self::RankLost { .. } => {
                "look at the log of that process; the others wait for it until their time-out"
            }
            Self::RanksEnded { .. } => {
                "if they were not meant to end before the others, look at their logs; the store cannot tell success from \
                 a crash"
            }
            Self::AllLeft { .. } => {
                "if the job was not stopped on purpose, look at the pods' logs and events"
            }
            Self::DuplicateRank { .. } => {
                "give each node its own rank, stop the process that should not be there; a second job needs its own store \
                 (--listen twice, or POST /api/v1/stores)"
            }
            Self::TwoJobs { .. } => {
                "give each job its own store: --listen twice, or POST /api/v1/stores; then start both again"
            }
            Self::RoundNotComplete { .. }
            | Self::FewerThanExpected { .. }
            | Self::LeftOver { redundant: false, .. } => "start every node with the same --nnodes",
            Self::LeftOver { .. } => "stop them, or raise the maximum in --nnodes on every node",
            Self::WorldSizesDiffer { .. } => {
                "start every process with the same WORLD_SIZE (--nnodes, --nproc-per-node)"
            }
            Self::NodeRankBeyond { .. } => {
                "start every node with the same --nnodes and a --node-rank below it"
            }
            Self::AnnouncementsDiffer { .. } => "give every pod the same number of nodes",
            Self::RunIsClosed { finished: true, .. } => {
                "nothing, if the job is done; else start it with another --rdzv-id, or after --forget-finished-after"
            }
            Self::RunIsClosed { .. } => {
                "start all nodes again when the old ones have left and the run is forgotten (10 s later), or with another \
                 --rdzv-id"
            }
            Self::ClosedIncomplete { .. } => {
                "the first node to give up closed the run for all; give them more time with --rdzv-conf join_timeout=1800 \
                 and look for the nodes that did not come"
            }
            Self::ClosedUnfinished { .. } => "look at the nodes' logs for the first error",
            Self::RunRestarted {} => {
                "a late node would train alone over the checkpoints: stop it if this is not a new run"
            }
            Self::StaleAddress { .. } => "restart all ranks, or run the server with --drop-spent on",
            Self::ElasticDeadlock { .. } => {
                "a known fault of torch 2.15: restart all agents, and set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every \
                 node before nodes join a running job"
            }
            Self::WaitCycle { .. } => "none of them can go on: restart them together",
            Self::GaveUp { .. } => {
                "its process will fail now; look at the one that should have written the key. For longer waits set \
                 --rdzv-conf read_timeout (agents) or init_process_group's timeout (workers)"
            }
            Self::ForeignClient { .. } => {
                "point it at the admin port if it is a health check or a scraper (HTTP), and at another server if it is TLS"
            }
            Self::WorkersElsewhere { .. } => {
                "to see their ranks, and to be free of rank 0's host, let the workers meet here: docs/launch-modes.md"
            }
            Self::ExitBarrier { .. } => {
                "look at the nodes that still train; agents wait for them up to 300 s"
            }
            Self::WatchdogFired { .. } => "look at that rank's log for the collective that timed out",
            Self::UnreadableState { .. } => {
                "the job is not harmed; who has joined cannot be shown. Does another program use this key?"
            }
            Self::WaitsForRank { .. } => {
                "if it replaces that node, it gets the rank when that one leaves or its keep-alive runs out; else give each node \
                 its own rank (PET_NODE_RANK, node_rank, the pod's index)"
            }
            Self::Rendezvous(said) => said.remedy,
            Self::StandsBy { .. }
            | Self::RunStarted { .. }
            | Self::RoundComplete { .. }
            | Self::RanksComplete { .. }
            | Self::RunFinished { .. }
            | Self::NodeCameLate { .. } => "",
        }
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunStarted { who, expected: Some(n), from: Some(from) } => {
                write!(f, "started: {who} is the first; {n} nodes are expected ({})", says_who(*from))
            }
            Self::RunStarted { who, .. } => write!(f, "started: {who} is the first"),
            Self::RoundComplete { nodes, took, last, last_after } => {
                let nodes = Unit::Node.count(*nodes);
                write!(f, "complete: {nodes} in {took:.1}; last: {last} (+{last_after:.1})")
            }
            Self::RanksComplete { ranks, took, last, last_after } => {
                write!(f, "all {ranks} ranks have met in {took:.1}; last: {last} (+{last_after:.1})")
            }
            Self::RunFinished { members, unit, ran } => {
                write!(f, "finished: {} after {ran}", unit.count(*members))
            }
            Self::PodsMissing { announced, expected, missing, waited } => {
                let n = expected.saturating_sub(*announced) as usize;
                let are = if n == 1 { "is" } else { "are" };
                write!(f, "{announced} of {expected} pods have announced themselves; ")?;
                if missing.count() == n {
                    write!(f, "{missing} {are} missing for {waited}")
                } else {
                    write!(f, "{n} {are} missing for {waited}")
                }
            }
            Self::TorchVersionsDiffer { versions } => {
                write!(f, "the pods have different versions of PyTorch: {versions}")
            }
            Self::NodesMissing { joined, expected: Some(expected), from, missing, present, waited } => {
                let (joined, expected) = (*joined, *expected);
                write!(f, "{joined} of {expected} nodes have joined; ")?;
                let n = expected.saturating_sub(joined);
                if missing.is_empty() {
                    write!(
                        f,
                        "{} missing for {waited}",
                        if n == 1 { "1 is".into() } else { format!("{n} are") }
                    )?;
                } else if missing.count() < n as usize {
                    write!(f, "{n} are missing for {waited}, {missing} among them")?;
                } else {
                    write!(
                        f,
                        "{missing} {} missing for {waited}",
                        if missing.count() == 1 { "is" } else { "are" }
                    )?;
                }
                if missing.is_empty() {
                    write!(f, "; there {} {present}", if present.count() == 1 { "is" } else { "are" })?;
                }
                from.map_or(Ok(()), |from| write!(f, " ({expected} by {})", says_who(from)))
            }
            Self::NodesMissing { joined, present, waited, .. } => write!(
                f,
                "{} joined ({present}) and waited {waited} for more; nobody has said how many there should be",
                have(*joined as usize, "node", "nodes"),
            ),
            Self::RoundNotComplete { joined, expected, from, waited } => write!(
                f,
                "{} joined and the round is not complete after {waited}, although {expected} by {} are enough: some nodes \
                 ask for another number",
                have(*joined as usize, "node", "nodes"),
                says_who(*from),
            ),
            Self::NodeCameLate { node, after, joined, expected } => {
                write!(f, "{node} has come after {after}: {} have joined", of_expected(*joined, *expected))
            }
            Self::NodeDiedJoining { nodes, joined, expected } => write!(
                f,
                "{nodes} died or failed: the connection closed while joining; {} left",
                of_expected(*joined, *expected)
            ),
            Self::NodeDied { nodes, left } => {
                write!(
                    f,
                    "{nodes} died or failed: the connection closed while training; {} left",
                    Unit::Node.count(*left)
                )
            }
            Self::RankLost { ranks, joined, world_size } => {
                write!(f, "{ranks} ended before all ranks had met; {joined}")?;
                world_size.map_or(Ok(()), |n| write!(f, " of {n}"))?;
                f.write_str(" are there")
            }
            Self::RanksEnded { ranks, left, since } => {
                write!(f, "{ranks} ended {since} ago while {} still run", Unit::Process.count(*left))
            }
            Self::AllLeft { members: 1, unit } => {
                write!(f, "its only {} left without finishing", unit.count(1).trim_start_matches("1 "))
            }
            Self::AllLeft { members, unit } => {
                write!(f, "all {} left without finishing", unit.count(*members))
            }
            Self::RankZeroSlow { what, who, whereabouts, waiters, waited } => {
                write!(f, "{} {waited} for {what} from {who}: {whereabouts}", clients(*waiters))
            }
            Self::WaitingForNode { node, what, whereabouts, waiters, waited } => {
                write!(f, "{} {waited} for {what} of {node}: {whereabouts}", clients(*waiters))
            }
            Self::WaitingForRank { rank, whereabouts, waiters, joined, connected, world_size, waited } => {
                write!(
                    f,
                    "{} {waited} for the address of {rank}: {whereabouts}; {joined}",
                    clients(*waiters)
                )?;
                world_size.map_or(Ok(()), |n| write!(f, " of {n}"))?;
                write!(
                    f,
                    " ranks have published theirs, {} connected",
                    have(*connected as usize, "process", "processes")
                )
            }
            Self::WaitingForGroup { what, waiters, waited } => {
                write!(f, "{} {waited} for {what}", clients(*waiters))
            }
            Self::DuplicateRank { what, first, second } => write!(
                f,
                "two live processes claim {what}: {first} and {second}; two jobs on one store, or two nodes with one rank"
            ),
            Self::TwoJobs { first, second, evidence } => {
                write!(f, "two jobs on one store: {first} and {second} ({evidence})")
            }
            Self::FewerThanExpected { formed, expected, from, left_over } => {
                write!(
                    f,
                    "the round is complete with {}, but {expected} are expected by {}",
                    Unit::Node.count(*formed),
                    says_who(*from)
                )?;
                if left_over.is_empty() { Ok(()) } else { write!(f, "; left over: {left_over}") }
            }
            Self::LeftOver { group, left_over, redundant, waited } => {
                let group = Unit::Node.count(*group);
                let has = if left_over.count() == 1 { "has" } else { "have" };
                write!(f, "{left_over} {has} waited {waited} beside a complete round of {group}")?;
                f.write_str(if *redundant { ", which is the maximum" } else { " that does not take them in" })
            }
            Self::WorldSizesDiffer { rank, says, other_rank, other_says } => write!(
                f,
                "the ranks disagree on the world size: rank {rank} is prepared for {says} ranks, rank {other_rank} for \
                 {other_says}"
            ),
            Self::NodeRankBeyond { node, rank, nodes } => {
                write!(
                    f,
                    "{node} came as node rank {rank}, but rank 0 counts on {}",
                    Unit::Node.count(*nodes)
                )
            }
            Self::AnnouncementsDiffer { pod, says, other_pod, other_says } => write!(
                f,
                "the pods disagree on the number of nodes: {pod} expects {says}, {other_pod} expects {other_says}"
            ),
            Self::RunIsClosed { newcomer, closed_for, finished } => write!(
                f,
                "{newcomer} cannot join: the run {} {closed_for} ago and is closed",
                if *finished { "finished" } else { "was closed" }
            ),
            Self::ClosedIncomplete { joined, expected, present } => {
                write!(f, "closed at {} and never complete", of_expected(*joined, *expected))?;
                if present.is_empty() { Ok(()) } else { write!(f, "; there were {present}") }
            }
            Self::ClosedUnfinished { finished, nodes } => {
                write!(
                    f,
                    "closed although only {finished} of {nodes} nodes had finished: it failed or was stopped"
                )
            }
            Self::RunRestarted {} => f.write_str("had finished and is started again"),
            Self::StaleAddress { reader, key, gone_for } => write!(
                f,
                "{reader} read `{key}`, written by a process that ended {gone_for} ago; it will fail to connect"
            ),
            Self::ElasticDeadlock { newcomer, rank_zero, waited } => write!(
                f,
                "deadlock for {waited}: {newcomer} joined a running job and waits for MASTER_ADDR, which {rank_zero} \
                 does not publish again while it waits for the newcomer's role"
            ),
            Self::WaitCycle { members, waited } => {
                write!(f, "deadlock for {waited}: each waits for the next: {members}")
            }
            Self::GaveUp { who, key, waited, writer } => {
                write!(f, "{who} gave up on `{key}` after {waited}")?;
                if writer.is_empty() { Ok(()) } else { write!(f, "; {writer} should have written it") }
            }
            Self::ForeignClient { peer, protocol, port, times } => {
                write!(f, "a foreign {protocol} client at {peer} talks to the store port {port}")?;
                if *times > 1 { write!(f, " ({times} times)") } else { Ok(()) }
            }
            Self::WorkersElsewhere { address } => write!(
                f,
                "the workers meet at {address}, a store that rank 0 hosts itself; their ranks cannot be seen here"
            ),
            Self::ExitBarrier { arrived, nodes, running, waited } => {
                match nodes {
                    Some(nodes) => write!(f, "{arrived} of {nodes} nodes have finished")?,
                    None => write!(f, "{} finished", have(*arrived as usize, "node", "nodes"))?,
                }
                write!(f, " and waited {waited} at the exit barrier")?;
                if running.is_empty() { Ok(()) } else { write!(f, "; still running: {running}") }
            }
            Self::WatchdogFired { who } => write!(f, "{who} reported that a collective timed out or failed"),
            Self::UnreadableState { detail } => write!(f, "the rendezvous state cannot be read: {detail}"),
            Self::StandsBy { spares, max_nodes, waited } => {
                let (stands, takes) =
                    if spares.count() == 1 { ("stands", "its") } else { ("stand", "their") };
                let nodes = Unit::Node.count(*max_nodes);
                write!(
                    f,
                    "{spares} {stands} by for {waited}: the round has {nodes}, as many as it may; when one of them leaves, \
                     {takes} turn comes by itself"
                )
            }
            Self::WaitsForRank { node, holder, waited } => {
                write!(f, "{node} waits {waited} for the rank of {holder}, which is still in the round")
            }
            Self::Rendezvous(said) => f.write_str(&said.text),
        }
    }
}
