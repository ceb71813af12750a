//! The reasons of decisions, in words that name the node, the time, and what to do. Log, API and commands use
//! these words.

use std::time::Duration;

use super::{Difference, Label};
use rallypoint_protocol::ids::{Elapsed, RunId, counted};

/// A node as people know it: its name and address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Who {
    /// Its name.
    pub name: Label,
    /// Its address.
    pub address: Label,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.name == self.address {
            return write!(f, "{}", self.name);
        }
        write!(f, "{} ({})", self.name, self.address)
    }
}

/// How many names of a long list are written out.
const SHOWN: usize = 8;

/// The first few names of a list.
pub(super) fn some_of(all: &[String]) -> String {
    of_many(&all[..all.len().min(SHOWN)], all.len())
}

/// The first few nodes of a list, by their names. Thousands may wait, and only these few are sorted and
/// written out.
pub(super) fn first_of(mut all: Vec<Who>) -> String {
    let count = all.len();
    if count > SHOWN {
        all.select_nth_unstable(SHOWN);
        all.truncate(SHOWN);
    }
    all.sort_unstable();
    of_many(&all.iter().map(Who::to_string).collect::<Vec<_>>(), count)
}

/// A list of `count` names, of which only the `shown` ones are written out.
fn of_many(shown: &[String], count: usize) -> String {
    let names = shown.join(", ");
    match count.saturating_sub(shown.len()) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

/// A list of names with a title, to be added to a sentence; empty if there are no names.
pub(super) fn if_any(title: &str, names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; {title}: {}", some_of(names)) }
}

/// "From that process", if successors of the `nodes` are named too.
fn from_before(nodes: &[String], again: &[String]) -> &'static str {
    match (again, nodes) {
        ([], _) => "",
        (_, [_]) => "from that process ",
        _ => "from those processes ",
    }
}

fn successors_text(again: &[String]) -> String {
    match again {
        [] => String::new(),
        [one] => format!("; {one} came anew, and waits until then"),
        _ => format!("; {} came anew, and wait until then", some_of(again)),
    }
}

/// "Connection" or "connections", for this many nodes.
const fn connections(nodes: &[String]) -> &'static str {
    if nodes.len() == 1 { "connection" } else { "connections" }
}

/// The connections of these nodes closed, and something else happened later.
fn closed_before(nodes: &[String], since: Duration) -> String {
    format!("the {} of {}, closed, and {} later ", connections(nodes), some_of(nodes), Elapsed(since))
}

/// A round is over, and its other nodes have something to do.
fn broken_text(round: u64, why: &Break, left: u32, restarted: Option<Duration>) -> String {
    let restarted = restarted
        .map(|ago| format!("; the server was restarted {} before", Elapsed(ago)))
        .unwrap_or_default();
    match why {
        Break::Lost(_) | Break::Left { .. } if left == 0 => {
            format!("round {round} is over: {why}; none of its nodes is left")
        }
        _ => format!("round {round} is over for its nodes: {why}{restarted}; they are told to join again"),
    }
}

/// When silent nodes are given up.
fn given_up(patience: Duration) -> String {
    format!("given up after {} of silence", Elapsed(patience))
}

/// The reason that a node gave, to be added to a sentence.
fn said_why(why: Option<&Label>) -> String {
    why.map(|why| format!(": {why}")).unwrap_or_default()
}

/// The number of the round, unless it is the first of its run.
fn later_round(round: u64) -> String {
    if round > 1 { format!("round {round} ") } else { String::new() }
}

fn differing(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a join or another request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunRefusal {
    /// The run is closed.
    #[error(
        "run {run} was closed by {by}; start a new run with another run id, or wait until its last node is \
         gone for 10 s"
    )]
    Closed {
        /// The run.
        run: RunId,
        /// The node or person that closed it.
        by: String,
    },
    /// The run was closed while the node was redundant.
    #[error("run {run} was closed by {by} while this node was redundant: it is not needed any more")]
    GracefulExit {
        /// The run.
        run: RunId,
        /// The node or person that closed it.
        by: String,
    },
    /// The round's deadline has passed.
    #[error(
        "run {run} round {round}: {joined} of at least {min_nodes} nodes joined within {}; {missing}. Start \
         the missing nodes, or give more time (--join-timeout, join_timeout; `rallypoint ctl extend` while \
         nodes wait)",
        Elapsed(*.after)
    )]
    JoinTimeout {
        /// The run.
        run: RunId,
        /// The round.
        round: u64,
        /// How many nodes were there.
        joined: u32,
        /// How many nodes were needed.
        min_nodes: u32,
        /// How long the round had been forming.
        after: Duration,
        /// Which nodes are missing, in words.
        missing: String,
    },
    /// The round was complete, and there was no store for it.
    #[error("run {run} round {round} has no store for its workers: {why}")]
    NoStore {
        /// The run.
        run: RunId,
        /// The round.
        round: u64,
        /// The reason that the server gives.
        why: String,
    },
    /// Another living node has the rank.
    #[error(
        "node rank {rank} is asked for by {newcomer}, but {holder} has it and is alive; give each node its \
         own rank (PET_NODE_RANK, node_rank, the pod's index)"
    )]
    DuplicateRank {
        /// The rank.
        rank: u32,
        /// The node that holds it.
        holder: Who,
        /// The node that wants it.
        newcomer: Who,
    },
    /// The node wants other terms than the run has.
    #[error(
        "run {run} was started with other parameters by {settled_by}: {}; start every node with the same",
        differing(.differences)
    )]
    Mismatch {
        /// The run.
        run: RunId,
        /// The node whose terms hold.
        settled_by: Who,
        /// What differs.
        differences: Vec<Difference>,
    },
    /// No round can have this rank.
    #[error(
        "node rank {rank} cannot be: a round has at most {}, so ranks are below {max_nodes}",
        counted(*.max_nodes, "node", "nodes")
    )]
    BadRank {
        /// The rank.
        rank: u32,
        /// The greatest number of nodes in a round.
        max_nodes: u32,
    },
    /// The terms contradict themselves.
    #[error("{0}")]
    BadTerms(String),
    /// The server already has as many runs as it may.
    #[error("the server has {limit} runs with live nodes, as many as it may (--max-runs)")]
    TooManyRuns {
        /// `--max-runs`.
        limit: usize,
    },
    /// The runs already use all the memory that they may.
    #[error(
        "the server has no memory left for another node; stop runs that are over, or give it more with \
         --max-memory"
    )]
    NoMemory,
    /// More nodes of the run wait than it could ever need.
    #[error("run {run} has {limit} nodes, far more than a round may have; stop those that are too many")]
    TooManyNodes {
        /// The run.
        run: RunId,
        /// The most nodes that a run may have.
        limit: usize,
    },
    /// The node left while its join waited.
    #[error("this node left the run while it waited; join again if that was not meant")]
    Left,
    /// This run is unknown.
    #[error("there is no such run; `GET /api/v1/runs` lists them")]
    UnknownRun,
    /// No round of the run is forming.
    #[error("no round of run {0} gathers now, so there is no deadline to extend")]
    NotForming(RunId),
}

impl RunRefusal {
    /// Whether it concerns a node that comes to a run where it has no place.
    pub const fn is_about_the_node(&self) -> bool {
        matches!(
            self,
            Self::Closed { .. }
                | Self::DuplicateRank { .. }
                | Self::Mismatch { .. }
                | Self::BadRank { .. }
                | Self::TooManyNodes { .. }
        )
    }

    /// Whether it is reported to people with the run, once and not at each retry.
    pub const fn is_told_with_the_run(&self) -> bool {
        self.is_about_the_node()
            || matches!(
                self,
                Self::GracefulExit { .. } | Self::JoinTimeout { .. } | Self::NoStore { .. } | Self::Left
            )
    }

    /// A stable code for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Closed { .. } => "closed",
            Self::GracefulExit { .. } => "graceful_exit",
            Self::JoinTimeout { .. } => "join_timeout",
            Self::NoStore { .. } => "no_store",
            Self::DuplicateRank { .. } => "duplicate_rank",
            Self::Mismatch { .. } => "parameter_mismatch",
            Self::BadRank { .. } | Self::BadTerms(_) => "bad_request",
            Self::TooManyRuns { .. } => "too_many_runs",
            Self::TooManyNodes { .. } => "too_many_nodes",
            Self::NoMemory => "no_memory",
            Self::Left => "left",
            Self::UnknownRun => "unknown_run",
            Self::NotForming(_) => "not_gathering",
        }
    }
}

/// Nodes that are given up, with their ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Nodes whose connections closed.
    pub closed: Vec<String>,
    /// Nodes whose requests were answered, and that sent no others.
    pub silent: Vec<String>,
    /// How long nothing has come from any of them.
    pub since: Duration,
}

impl Lost {
    /// How many nodes.
    pub const fn count(&self) -> usize {
        self.closed.len().saturating_add(self.silent.len())
    }

    /// Whether this node is one of them.
    pub(super) fn has(&self, node: &String) -> bool {
        self.closed.contains(node) || self.silent.contains(node)
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { closed, silent, since } = self;
        let since = Elapsed(*since);
        if !closed.is_empty() {
            let connections = connections(closed);
            write!(f, "{}: the {connections} closed, and nothing came for {since}", some_of(closed))?;
        }
        if !silent.is_empty() {
            let (and, were) =
                (if closed.is_empty() { "" } else { "; " }, if silent.len() == 1 { "was" } else { "were" });
            write!(f, "{and}{}, {were} not heard from for {since}", some_of(silent))?;
        }
        Ok(())
    }
}

/// How the loss of a waiting node was noticed.
fn waited_in_vain(closed: bool, silent: Duration) -> String {
    let silent = Elapsed(silent);
    if closed {
        format!("waited: the connection closed, and nothing came for {silent}")
    } else {
        format!("waited and was not heard from for {silent}")
    }
}

/// Why the nodes of a complete round have to join again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    /// A node was silent for too long. The nodes that fell silent together with it are named too.
    #[error("{0}")]
    Lost(Lost),
    /// The round was to be given up before the server was restarted.
    #[error("{why} (before the server was restarted)")]
    BeforeRestart {
        /// Why.
        why: String,
    },
    /// A node left. The nodes that left within moments of it are named too.
    #[error(
        "{who}, rank {rank}, left{}{}",
        said_why(.why.as_ref()), if_any("then also left", .then)
    )]
    Left {
        /// The node.
        who: Who,
        /// Its rank.
        rank: u32,
        /// Why.
        why: Option<Label>,
        /// How long ago it left.
        since: Duration,
        /// The nodes that left after it, with their ranks.
        then: Vec<String>,
    },
    /// A node joined again. It is the first node of the round to do so, but need not be the cause.
    #[error("{who}, rank {rank}, was the first to join again")]
    Rejoined {
        /// The node.
        who: Who,
        /// Its rank.
        rank: u32,
    },
    /// A node joined again, and other nodes of the round were silent before. They may be the cause.
    #[error(
        "{who}, rank {rank}, was the first to join again, and {}, {} not been heard from for {}",
        some_of(.silent), if .silent.len() == 1 { "has" } else { "have" }, Elapsed(*.silent_for)
    )]
    RejoinedBesideSilent {
        /// The node.
        who: Who,
        /// Its rank.
        rank: u32,
        /// The silent nodes, with their ranks.
        silent: Vec<String>,
        /// How long all of them have been silent.
        silent_for: Duration,
    },
    /// A node joined again, and the connections of other nodes had closed before. They may be the cause.
    #[error("{}{who}, rank {rank}, was the first to join again", closed_before(.closed, *.since))]
    RejoinedAfterClosed {
        /// The node.
        who: Who,
        /// Its rank.
        rank: u32,
        /// The nodes whose connections closed, with their ranks.
        closed: Vec<String>,
        /// How long before that the first of them closed.
        since: Duration,
    },
    /// The nodes join again so that new nodes can join them.
    #[error(
        "{} joined and {} to be taken in",
        some_of(.newcomers), if .newcomers.len() == 1 { "is" } else { "are" }
    )]
    Newcomers {
        /// The new nodes.
        newcomers: Vec<String>,
    },
    /// An operator expects fewer nodes than the round has.
    #[error("it has {}, and an operator expects {expected}", counted(*.nodes, "node", "nodes"))]
    Resized {
        /// How many nodes it has.
        nodes: u32,
        /// How many nodes are expected.
        expected: u32,
    },
    /// After a restart of the server, some nodes of the round did not report.
    #[error(
        "{missing} of {} did not report after the server was restarted",
        counted(*.nodes, "node", "nodes")
    )]
    Unreported {
        /// How many nodes did not.
        missing: u32,
        /// How many nodes the round has.
        nodes: u32,
    },
}

/// What happened to a run, for the log. Each fact is logged once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fact {
    /// The first node of a round has come.
    #[error("round {round} gathers: {first} is there, {needed} needed")]
    Forms {
        /// The round.
        round: u64,
        /// The node that came first.
        first: Who,
        /// How many nodes it needs, in words.
        needed: String,
    },
    /// A round is complete.
    #[error(
        "round {round} complete: {} in {}; last: {last}",
        counted(*.nodes, "node", "nodes"), Elapsed(*.took)
    )]
    Complete {
        /// The round.
        round: u64,
        /// Its nodes.
        nodes: usize,
        /// From the first join to completion.
        took: Duration,
        /// The node that came last.
        last: Who,
    },
    /// A complete round is to be given up.
    #[error("{}", broken_text(*.round, .why, *.left, *.restarted))]
    Broken {
        /// The round.
        round: u64,
        /// Why.
        why: Break,
        /// Nodes that are still in it.
        left: u32,
        /// How long before that the server was restarted, if the restart may be the cause.
        restarted: Option<Duration>,
    },
    /// The connections of nodes closed while their requests waited, and the nodes have not come again.
    #[error(
        "{}: the {} closed {} ago, and nothing has come {}since; {}{}",
        some_of(.nodes), connections(.nodes), Elapsed(*.since), from_before(.nodes, .again),
        given_up(*.patience), successors_text(.again)
    )]
    Disconnected {
        /// The nodes, with their ranks.
        nodes: Vec<String>,
        /// The successors of these nodes.
        again: Vec<String>,
        /// How long ago the first connection closed.
        since: Duration,
        /// How long they may be silent before they are given up.
        patience: Duration,
    },
    /// The requests of nodes were answered, and no other request came, though it was due.
    #[error(
        "{}: nothing has come {}for {}; {}{}",
        some_of(.nodes), from_before(.nodes, .again), Elapsed(*.since), given_up(*.patience),
        successors_text(.again)
    )]
    Silent {
        /// The nodes, with their ranks.
        nodes: Vec<String>,
        /// The successors of these nodes.
        again: Vec<String>,
        /// How long all of them have been silent.
        since: Duration,
        /// How long they may be silent before they are given up.
        patience: Duration,
    },
    /// A waiting node was lost.
    #[error("{who} {}; its place is free", waited_in_vain(*.closed, *.silent))]
    WaiterLost {
        /// The node.
        who: Who,
        /// Whether its connection closed.
        closed: bool,
        /// How long it was silent.
        silent: Duration,
    },
    /// A waiting node was displaced by another node with its id, which joined from another address.
    #[error("{who} waited here, and {by} joined with the same node id, so {who} has lost its place")]
    Displaced {
        /// The node that waited.
        who: Who,
        /// The node that has its place now.
        by: Who,
    },
    /// The last waiting node left before the round was complete.
    #[error(
        "round {round} was given up by all: {who} left as the last{}, at this: {missing}",
        .why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    )]
    Abandoned {
        /// The round.
        round: u64,
        /// The node.
        who: Who,
        /// Why.
        why: Option<Label>,
        /// What was missing before it left, in words.
        missing: String,
    },
    /// The deadline is near.
    #[error("round {round} will be given up in {}: {missing}", Elapsed(*.left))]
    Expiring {
        /// The round.
        round: u64,
        /// Time left.
        left: Duration,
        /// What is missing, in words.
        missing: String,
    },
    /// The deadline has passed.
    #[error("round {round} was given up after {}: {missing}", Elapsed(*.after))]
    TimedOut {
        /// The round.
        round: u64,
        /// How long the round had been forming.
        after: Duration,
        /// What is missing, in words.
        missing: String,
    },
    /// The deadline was moved.
    #[error("round {round} has {} more time: {} left", Elapsed(*.by), Elapsed(*.left))]
    Extended {
        /// The round.
        round: u64,
        /// How much more.
        by: Duration,
        /// Time left now.
        left: Duration,
    },
    /// A node was refused.
    #[error("{who} was refused: {why}")]
    Refused {
        /// The node.
        who: Who,
        /// Why.
        why: RunRefusal,
    },
    /// A node of the round has failed, and other nodes may still be in it. Nodes that failed soon after it
    /// may have failed because of it.
    #[error(
        "round {round}: {who}, rank {rank}, failed{}{}{}",
        said_why(.why.as_ref()), if_any("then also failed", .then), if_any("still in the round", .others)
    )]
    Failed {
        /// The round.
        round: u64,
        /// The node.
        who: Who,
        /// Its rank.
        rank: u32,
        /// What it said about the reason.
        why: Option<Label>,
        /// How long ago it failed.
        since: Duration,
        /// The nodes that failed after it within moments, with their ranks.
        then: Vec<String>,
        /// The nodes that are still there.
        others: Vec<String>,
    },
    /// Nodes of a round that is over, or whose run is closed, were silent for too long.
    #[error("round {round}: {lost}{}", if_any("still in the round", .others))]
    Lost {
        /// The round.
        round: u64,
        /// The lost nodes.
        lost: Lost,
        /// The nodes that are still there.
        others: Vec<String>,
    },
    /// Nodes of a round that is over have been silent since the server was restarted, and are given up.
    #[error(
        "round {round}: {}, {} not been heard from since the server was restarted {} ago",
        some_of(.nodes), if .nodes.len() == 1 { "has" } else { "have" }, Elapsed(*.since)
    )]
    NotBack {
        /// The round.
        round: u64,
        /// The nodes, with their ranks.
        nodes: Vec<String>,
        /// How long ago the restart was.
        since: Duration,
    },
    /// The run was closed.
    #[error("closed by {by}")]
    Closed {
        /// The node or person that closed it.
        by: String,
    },
    /// All nodes of the last round have done their work.
    #[error(
        "{}finished: {} after {}",
        later_round(*.round), counted(*.nodes, "node", "nodes"), Elapsed(*.ran)
    )]
    Finished {
        /// The round.
        round: u64,
        /// How many nodes.
        nodes: u32,
        /// From the completion of the round.
        ran: Duration,
    },
    /// A closed run was started again.
    #[error("had {} and is started again by {by}", if *.had_finished { "finished" } else { "been closed" })]
    Restarted {
        /// Whether all nodes of its last round had done their work.
        had_finished: bool,
        /// The node that started it.
        by: Who,
    },
    /// The server was restarted, and learned the run's round from its nodes.
    #[error(
        "round {round} of {} goes on after a restart of the server, as {first} reported; the store of its \
         workers is lost: new process groups in it will fail",
        counted(*.nodes, "node", "nodes")
    )]
    Adopted {
        /// The round.
        round: u64,
        /// How many nodes it has.
        nodes: u32,
        /// The node that reported it.
        first: Who,
    },
    /// The nodes have different releases of PyTorch.
    #[error("has nodes with different releases of PyTorch: {0}")]
    MixedReleases(String),
    /// A complete round has no store.
    #[error("round {round} failed: {why}")]
    NoStore {
        /// The round.
        round: u64,
        /// Why.
        why: String,
    },
}
