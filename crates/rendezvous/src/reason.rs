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

/// Where other processes came in the place of those that are gone.
fn successors_text(again: &[String]) -> String {
    let wait = if again.len() == 1 { "waits" } else { "wait" };
    match again {
        [] => String::new(),
        _ => format!("; {} came anew, and {wait} until the process of before is given up", some_of(again)),
    }
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

/// What was seen of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Did {
    /// It joined.
    Joined,
    /// It left.
    Left,
    /// Its connection closed, and nothing has come since.
    Closed,
    /// Its last request was answered then, and no other came, though it was due.
    Silent,
    /// Nothing has come since the server was restarted.
    NotBack,
}

/// A node that was seen to do something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sign {
    /// What it did.
    pub did: Did,
    /// The node, with its rank if it has one.
    pub node: String,
    /// How long ago, or for how long nothing has come.
    pub ago: Duration,
}

impl Sign {
    /// A node did this just now.
    pub(super) fn now(did: Did, node: &impl ToString) -> Self {
        Self { did, node: node.to_string(), ago: Duration::ZERO }
    }
}

/// The first few of these nodes.
fn names<'s>(signs: impl IntoIterator<Item = &'s Sign>) -> String {
    some_of(&signs.into_iter().map(|sign| sign.node.clone()).collect::<Vec<_>>())
}

/// Who is gone, and how that was seen. The time is that of the last one.
fn gone(signs: &[Sign]) -> String {
    let of = |did: Did| {
        let those: Vec<&Sign> = signs.iter().filter(|sign| sign.did == did).collect();
        let ago = Elapsed(those.iter().map(|sign| sign.ago).min()?);
        let s = if those.len() == 1 { "" } else { "s" };
        let how = match did {
            Did::Closed => format!("the connection{s} closed, and nothing came for {ago}"),
            Did::NotBack => format!("not heard from since the server was restarted {ago} ago"),
            _ => format!("not heard from since the last answer {ago} ago"),
        };
        Some(format!("{}: {how}", names(those)))
    };
    let all = [Did::Closed, Did::Silent, Did::NotBack].into_iter().filter_map(of);
    all.collect::<Vec<_>>().join("; ")
}

/// Who left or failed first, why, and who did so within moments of it.
fn departed(how: &str, why: Option<&Label>, signs: &[Sign]) -> String {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let then: Vec<String> = signs.iter().skip(1).map(|sign| sign.node.clone()).collect();
    let then = if_any(&format!("then also {how}"), &then);
    format!("{}, {how}{why}{then}", names(signs.first()))
}

/// Why the nodes of a complete round have to join again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Break {
    pub(super) why: Why,
    /// The nodes that it is for.
    pub(super) signs: Vec<Sign>,
}

/// The kind of reason for a round to be given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Nodes were silent for too long.
    Lost,
    /// Nodes left within moments, the first of them for this reason.
    Left(Option<Label>),
    /// A node joined again. It is the first node of the round to do so, but need not be the cause: the others
    /// that are named were gone before.
    Rejoined,
    /// The nodes join again so that new nodes can join them.
    Newcomers,
    /// An operator expects fewer nodes than the round has.
    Resized {
        /// How many nodes it has.
        nodes: u32,
        /// How many nodes are expected.
        expected: u32,
    },
    /// After a restart of the server, some nodes of the round did not report.
    Unreported {
        /// How many nodes did not.
        missing: u32,
        /// How many nodes the round has.
        nodes: u32,
    },
    /// The round was to be given up before the server was restarted.
    BeforeRestart(String),
}

impl Why {
    /// The reason in words, with the nodes that it is for.
    pub fn says(&self, signs: &[Sign]) -> String {
        match self {
            Self::Lost => gone(signs),
            Self::Left(why) => departed("left", why.as_ref(), signs),
            Self::Rejoined => {
                let (first, gone) = (names(signs.first()), gone(signs));
                let before = if gone.is_empty() { String::new() } else { format!("; before that {gone}") };
                format!("{first}, was the first to join again{before}")
            }
            Self::Newcomers => {
                let are = if signs.len() == 1 { "is" } else { "are" };
                format!("{} joined and {are} to be taken in", names(signs))
            }
            Self::Resized { nodes, expected } => {
                format!("it has {}, and an operator expects {expected}", counted(*nodes, "node", "nodes"))
            }
            Self::Unreported { missing, nodes } => {
                let nodes = counted(*nodes, "node", "nodes");
                format!("{missing} of {nodes} did not report after the server was restarted")
            }
            Self::BeforeRestart(why) => format!("{why} (before the server was restarted)"),
        }
    }
}

impl Break {
    /// A node joined again, and these were gone before.
    pub(super) fn rejoined(who: &Who, rank: u32, gone: Vec<Sign>) -> Self {
        let first = Sign::now(Did::Joined, &format!("{who}, rank {rank}"));
        Self { why: Why::Rejoined, signs: std::iter::once(first).chain(gone).collect() }
    }

    /// Whether nodes that are gone are a part of it.
    pub(super) fn names_the_gone(&self) -> bool {
        self.signs.iter().any(|sign| sign.did != Did::Joined)
    }
}

impl From<Why> for Break {
    fn from(why: Why) -> Self {
        Self { why, signs: Vec::new() }
    }
}

impl std::fmt::Display for Break {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why.says(&self.signs))
    }
}

/// What happened to a run, for the log. Each fact is logged once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The round that forms, or the last one.
    pub round: u64,
    /// What happened.
    pub what: What,
    /// Who was seen to do something, so that this is told.
    pub signs: Vec<Sign>,
}

/// The kind of fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The first node of a round has come.
    Forms {
        /// How many nodes it needs, in words.
        needed: String,
    },
    /// A round is complete. The node came last.
    Complete {
        /// Its nodes.
        nodes: u32,
        /// From the first join to completion.
        took: Duration,
    },
    /// A complete round is to be given up.
    Broken {
        /// Why.
        why: Why,
        /// Nodes that are still in it.
        left: u32,
        /// How long before that the server was restarted, if the restart may be the cause.
        restarted: Option<Duration>,
    },
    /// Nothing has come from nodes, though it was due.
    Silent {
        /// The successors of these nodes.
        again: Vec<String>,
        /// How long they may be silent before they are given up.
        patience: Duration,
    },
    /// Nodes that wait, or of a round that is over, or whose run is closed, were silent for too long.
    Lost {
        /// The nodes that are still there.
        others: Vec<String>,
    },
    /// Nodes of a round that is over have been silent since the server was restarted, and are given up.
    NotBack,
    /// A waiting node was displaced by another node with its id, which joined from another address.
    Displaced {
        /// The node that waited.
        who: Who,
    },
    /// The last waiting node left before the round was complete.
    Abandoned {
        /// Why.
        why: Option<Label>,
        /// What was missing before it left, in words.
        missing: String,
    },
    /// The deadline has passed.
    TimedOut {
        /// How long the round had been forming.
        after: Duration,
        /// What is missing, in words.
        missing: String,
    },
    /// The deadline was moved.
    Extended {
        /// How much more.
        by: Duration,
        /// Time left now.
        left: Duration,
    },
    /// A node was refused.
    Refused {
        /// The node.
        who: Who,
        /// Why.
        why: RunRefusal,
    },
    /// Nodes of the round have failed within moments, and other nodes may still be in it.
    Failed {
        /// What the first one said about the reason.
        why: Option<Label>,
        /// The nodes that are still there.
        others: Vec<String>,
    },
    /// The run was closed, by a node or a person.
    Closed(String),
    /// All nodes of the last round have done their work.
    Finished {
        /// How many nodes.
        nodes: u32,
        /// From the completion of the round.
        ran: Duration,
    },
    /// A closed run was started again.
    Restarted {
        /// Whether all nodes of its last round had done their work.
        had_finished: bool,
    },
    /// The server was restarted, and learned the run's round from its nodes.
    Adopted {
        /// How many nodes it has.
        nodes: u32,
        /// The node that reported it.
        first: Who,
    },
    /// The nodes have different releases of PyTorch.
    MixedReleases(String),
    /// A complete round has no store.
    NoStore(String),
}

impl std::fmt::Display for Fact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { round, what, signs } = self;
        let who = || names(signs);
        match what {
            What::Forms { needed } => {
                write!(f, "round {round} gathers: {} is there, {needed} needed", who())
            }
            What::Complete { nodes, took } => {
                let nodes = counted(*nodes, "node", "nodes");
                write!(f, "round {round} complete: {nodes} in {}; last: {}", Elapsed(*took), who())
            }
            What::Broken { why: why @ (Why::Lost | Why::Left(_)), left: 0, .. } => {
                write!(f, "round {round} is over: {}; none of its nodes is left", why.says(signs))
            }
            What::Broken { why, restarted, .. } => {
                let why = why.says(signs);
                let restarted =
                    restarted.map(|ago| format!("; the server was restarted {} before", Elapsed(ago)));
                let restarted = restarted.unwrap_or_default();
                write!(
                    f,
                    "round {round} is over for its nodes: {why}{restarted}; they are told to join again"
                )
            }
            What::Silent { again, patience } => {
                let (gone, again) = (gone(signs), successors_text(again));
                write!(f, "{gone}; given up after {} of silence{again}", Elapsed(*patience))
            }
            What::Lost { others } => {
                write!(f, "round {round}: {}{}", gone(signs), if_any("still in the round", others))
            }
            What::NotBack => write!(f, "round {round}: {}", gone(signs)),
            What::Displaced { who: old } => write!(
                f,
                "{old} waited here, and {} joined with the same node id, so {old} has lost its place",
                who()
            ),
            What::Abandoned { why, missing } => {
                let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                let who = who();
                write!(
                    f,
                    "round {round} was given up by all: {who} left as the last{why}, at this: {missing}"
                )
            }
            What::TimedOut { after, missing } => {
                write!(f, "round {round} was given up after {}: {missing}", Elapsed(*after))
            }
            What::Extended { by, left } => {
                write!(f, "round {round} has {} more time: {} left", Elapsed(*by), Elapsed(*left))
            }
            What::Refused { who, why } => write!(f, "{who} was refused: {why}"),
            What::Failed { why, others } => {
                let failed = departed("failed", why.as_ref(), signs);
                write!(f, "round {round}: {failed}{}", if_any("still in the round", others))
            }
            What::Closed(by) => write!(f, "closed by {by}"),
            What::Finished { nodes, ran } => {
                let round = if *round > 1 { format!("round {round} ") } else { String::new() };
                let nodes = counted(*nodes, "node", "nodes");
                write!(f, "{round}finished: {nodes} after {}", Elapsed(*ran))
            }
            What::Restarted { had_finished } => {
                let had = if *had_finished { "finished" } else { "been closed" };
                write!(f, "had {had} and is started again by {}", who())
            }
            What::Adopted { nodes, first } => write!(
                f,
                "round {round} of {} goes on after a restart of the server, as {first} reported; the store \
                 of its workers is lost: new process groups in it will fail",
                counted(*nodes, "node", "nodes")
            ),
            What::MixedReleases(releases) => {
                write!(f, "has nodes with different releases of PyTorch: {releases}")
            }
            What::NoStore(why) => write!(f, "round {round} failed: {why}"),
        }
    }
}
