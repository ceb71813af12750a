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

fn differing(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a join or another request is refused.
#[expect(missing_docs, reason = "the message of each says what it means, with all its fields")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunRefusal {
    #[error(
        "run {run} was closed by {by}; start a new run with another run id, or wait until its last node is \
         gone for 10 s"
    )]
    Closed { run: RunId, by: String },
    #[error("run {run} was closed by {by} while this node was redundant: it is not needed any more")]
    GracefulExit { run: RunId, by: String },
    #[error(
        "run {run} round {round}: {joined} of at least {min_nodes} nodes joined within {}; {missing}. Start \
         the missing nodes, or give more time (--join-timeout, join_timeout; `rallypoint ctl extend` while \
         nodes wait)",
        Elapsed(*.after)
    )]
    JoinTimeout { run: RunId, round: u64, joined: u32, min_nodes: u32, after: Duration, missing: String },
    #[error("run {run} round {round} has no store for its workers: {why}")]
    NoStore { run: RunId, round: u64, why: String },
    #[error(
        "node rank {rank} is asked for by {newcomer}, but {holder} has it and is alive; give each node its \
         own rank (PET_NODE_RANK, node_rank, the pod's index)"
    )]
    DuplicateRank { rank: u32, holder: Who, newcomer: Who },
    #[error(
        "run {run} was started with other parameters by {settled_by}: {}; start every node with the same",
        differing(.differences)
    )]
    Mismatch { run: RunId, settled_by: Who, differences: Vec<Difference> },
    #[error(
        "node rank {rank} cannot be: a round has at most {}, so ranks are below {max_nodes}",
        counted(*.max_nodes, "node", "nodes")
    )]
    BadRank { rank: u32, max_nodes: u32 },
    #[error("{0}")]
    BadTerms(String),
    #[error("the server has {limit} runs with live nodes, as many as it may (--max-runs)")]
    TooManyRuns { limit: usize },
    #[error(
        "the server has no memory left for another node; stop runs that are over, or give it more with \
         --max-memory"
    )]
    NoMemory,
    #[error("run {run} has {limit} nodes, far more than a round may have; stop those that are too many")]
    TooManyNodes { run: RunId, limit: usize },
    #[error("this node left the run while it waited; join again if that was not meant")]
    Left,
    #[error("there is no such run; `GET /api/v1/runs` lists them")]
    UnknownRun,
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
        use RunRefusal::{BadTerms, NoMemory, NotForming, TooManyRuns, UnknownRun};
        !matches!(self, BadTerms(_) | TooManyRuns { .. } | NoMemory | UnknownRun | NotForming(_))
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
    /// It joined again, as the first node of its round.
    Rejoined,
    /// It left.
    Left,
    /// It left, and said that it had failed.
    Failed,
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
    /// What it said about the reason.
    pub why: Option<Label>,
}

impl Sign {
    /// A node did this just now.
    pub(super) fn now(did: Did, node: &impl ToString) -> Self {
        Self { did, node: node.to_string(), ago: Duration::ZERO, why: None }
    }
}

/// The first few of these nodes.
fn names(signs: &[Sign]) -> String {
    some_of(&signs.iter().map(|sign| sign.node.clone()).collect::<Vec<_>>())
}

/// Who was seen to do what. Of several that did the same, the time is that of the last one. Without the
/// times, where they are told later than they were true.
fn seen(signs: &[Sign], is_now: bool) -> String {
    let say = |those: &[Sign]| {
        let Sign { did, why, .. } = those.first()?;
        let ago = Elapsed(those.iter().map(|sign| sign.ago).min()?);
        let s = if those.len() == 1 { "" } else { "s" };
        let how = match did {
            Did::Joined => "joined".to_owned(),
            Did::Rejoined => "joined again".to_owned(),
            Did::Left => "left".to_owned(),
            Did::Failed => "failed".to_owned(),
            Did::Closed if is_now => format!("the connection{s} closed, and nothing came for {ago}"),
            Did::Closed => format!("the connection{s} closed"),
            Did::Silent if is_now => format!("not heard from for {ago}"),
            Did::Silent => "not heard from".to_owned(),
            Did::NotBack if is_now => format!("not heard from for {ago}, since the server was restarted"),
            Did::NotBack => "not heard from since the server was restarted".to_owned(),
        };
        let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        Some(format!("{}: {how}{why}", names(those)))
    };
    let alike = signs.chunk_by(|one, other| (one.did, &one.why) == (other.did, &other.why));
    alike.filter_map(say).collect::<Vec<_>>().join("; ")
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
    /// Nodes left within moments.
    Left,
    /// A node joined again. It is the first node of the round to do so, but need not be the cause: the others
    /// that are named were gone before.
    Rejoined,
    /// The nodes join again so that new nodes can join them.
    Newcomers,
    /// An operator expects another number of nodes than the round has.
    #[expect(missing_docs, reason = "its sentence says it")]
    Resized { nodes: u32, expected: u32 },
    /// After a restart of the server, some nodes of the round did not report.
    #[expect(missing_docs, reason = "its sentence says it")]
    Unreported { missing: u32, nodes: u32 },
    /// The round was to be given up before the server was restarted.
    BeforeRestart(String),
}

impl Why {
    /// The reason in words, with the nodes that it is for. Of a round that was over some time ago without the
    /// times, which were true then.
    pub fn says(&self, signs: &[Sign], is_now: bool) -> String {
        match self {
            Self::Lost | Self::Left | Self::Rejoined | Self::Newcomers => seen(signs, is_now),
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
    /// A node joined again, and these were gone before: they may be why.
    pub(super) fn rejoined(who: &Who, rank: u32, gone: Vec<Sign>) -> Self {
        let first = Sign::now(Did::Rejoined, &format!("{who}, rank {rank}"));
        Self { why: Why::Rejoined, signs: [gone, vec![first]].concat() }
    }
}

impl From<Why> for Break {
    fn from(why: Why) -> Self {
        Self { why, signs: Vec::new() }
    }
}

impl std::fmt::Display for Break {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why.says(&self.signs, true))
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
#[expect(missing_docs, reason = "the sentence of each says what its fields are")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The first node of a round has come.
    Forms { needed: String },
    /// A round is complete, so long after its first join. The node came last.
    Complete { nodes: u32, took: Duration },
    /// A complete round is to be given up. So many nodes are still in it, and so long before the server was
    /// restarted, if the restart may be the cause.
    Broken { why: Why, left: u32, restarted: Option<Duration> },
    /// Nothing has come from nodes, though it was due. Others came `again` in the place of some.
    Silent { again: Vec<String>, patience: Duration },
    /// Nodes that nobody joins again for: they wait, their round is over, or their run is closed.
    Gone { others: Vec<String> },
    /// A waiting node was displaced by another node with its id.
    Displaced { who: Who },
    /// A round was given up before it was complete: at its deadline, or as its last node left.
    GivenUp { after: Duration, missing: String },
    /// The deadline was moved.
    Extended { by: Duration, left: Duration },
    /// A node was refused.
    Refused { who: Who, why: RunRefusal },
    /// The run was closed, by a node or a person.
    Closed(String),
    /// All nodes of the last round have done their work, so long after it was complete.
    Finished { nodes: u32, ran: Duration },
    /// A closed run was started again.
    Restarted { had_finished: bool },
    /// The server was restarted, and learned the run's round from its nodes.
    Adopted { nodes: u32, first: Who },
    /// The nodes have different releases of PyTorch.
    MixedReleases(String),
    /// A complete round has no store.
    NoStore(String),
}

impl std::fmt::Display for Fact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { round, what, signs } = self;
        let (who, seen) = (names(signs), seen(signs, true));
        match what {
            What::Forms { needed } => write!(f, "round {round} gathers: {who} is there, {needed} needed"),
            What::Complete { nodes, took } => {
                let nodes = counted(*nodes, "node", "nodes");
                write!(f, "round {round} complete: {nodes} in {}; last: {who}", Elapsed(*took))
            }
            What::Broken { why, left, restarted } => {
                write!(f, "round {round} is over: {}", why.says(signs, true))?;
                if let Some(ago) = restarted {
                    write!(f, "; the server was restarted {} before", Elapsed(*ago))?;
                }
                let none = *left == 0;
                f.write_str(if none { "; no node of it is left" } else { "; its nodes are to join again" })
            }
            What::Silent { again, patience } => {
                write!(f, "{seen}; given up after {} of silence", Elapsed(*patience))?;
                f.write_str(&if_any("came anew, and get a place then", again))
            }
            What::Gone { others } => {
                write!(f, "round {round}: {seen}{}", if_any("still in the round", others))
            }
            What::Displaced { who: old } => {
                write!(f, "{old} has lost its place: {who} joined with the same node id")
            }
            What::GivenUp { after, missing } => {
                let last = if signs.is_empty() { seen } else { format!("; {seen}") };
                write!(f, "round {round} was given up after {}: {missing}{last}", Elapsed(*after))
            }
            What::Extended { by, left } => {
                write!(f, "round {round} has {} more time: {} left", Elapsed(*by), Elapsed(*left))
            }
            What::Refused { who, why } => write!(f, "{who} was refused: {why}"),
            What::Closed(by) => write!(f, "closed by {by}"),
            What::Finished { nodes, ran } => {
                let round = if *round > 1 { format!("round {round} ") } else { String::new() };
                let nodes = counted(*nodes, "node", "nodes");
                write!(f, "{round}finished: {nodes} after {}", Elapsed(*ran))
            }
            What::Restarted { had_finished } => {
                let had = if *had_finished { "finished" } else { "been closed" };
                write!(f, "had {had} and is started again by {who}")
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
