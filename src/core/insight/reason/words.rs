//! The words: each reason's sentence, and what to do about it.

use std::fmt::{self, Display, Formatter};

use super::{Reason, Unit, Whereabouts};
use crate::api::ExpectedFrom;

impl Unit {
    pub(in crate::core::insight) fn count(self, n: u32) -> String {
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
const fn says_who(from: ExpectedFrom) -> &'static str {
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
