//! All explanations of a job, each in one place: its facts as fields, its sentence, its remedy.
//!
//! The same value goes to the log, the API, `status`, the page and the metrics. `docs/explanations.md` lists every code
//! with its meaning.

mod awaited;
mod evidence;
mod rules;
mod values;
mod words;

use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

pub use self::awaited::{Awaited, Published};
pub(super) use self::evidence::{Evidence, Finding};
use self::rules::Hold;
pub use self::rules::{RULES, Rule};
pub use self::values::{Absence, Arrival, Moment, TakenOut, Unit};
pub use super::names::{Names, Numbered};
use super::presence::{Place, Presence};
use rallypoint_api::{Certainty, ExpectedFrom, RunKind, Severity};
use rallypoint_protocol::ids::Elapsed;
use rallypoint_rendezvous::Fact;

/// Nodes that evaluate in the end may well let others wait at the exit barrier for less than this.
const LONG_AT_EXIT: Duration = Duration::from_mins(2);

/// The reason for what is seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "the fields are what the sentence says; docs/explanations.md has the codes")]
pub enum Reason {
    /// The first sign of a run or of its next round.
    RunStarted {
        who: String,
        expected: Option<u32>,
        from: Option<ExpectedFrom>,
        /// The rank of the round before whose process ended first, and how long before.
        first_ended: Option<(String, Elapsed)>,
    },
    /// Every node of a round is there.
    RoundComplete {
        nodes: u32,
        took: Elapsed,
        last: String,
        last_after: Elapsed,
        /// Those of them that had died before: torch had not noticed, and counts on them.
        dead: Names,
    },
    /// Every rank has published its address.
    RanksComplete { ranks: u32, took: Elapsed, last: String, last_after: Elapsed },
    /// Every node arrived at the exit barrier.
    RunFinished { nodes: u32, ran: Elapsed },
    /// Every process of a run without agents has ended.
    RunEnded {
        processes: u32,
        ran: Elapsed,
        /// What ended before all others, and how long before the last one.
        first: Option<(String, Elapsed)>,
    },
    /// All pods have announced themselves, and nothing has come from their processes.
    PodsIdle {
        pods: u32,
        /// Those whose relays have left, or whose links are away or lost, with the time.
        gone: Names,
        /// How many of them are not heard of either: they have no relays, and do not count at the gate any more.
        unheard: u32,
        /// Since the last of those was heard of, if that is known.
        silent: Option<Elapsed>,
        waited: Elapsed,
    },
    /// Pods have not announced themselves, and those that have are held back.
    PodsMissing {
        announced: u32,
        expected: u32,
        missing: Names,
        /// Pods that announced themselves and are gone, each with its time.
        gone: Names,
        /// Pods that announced themselves and were turned away.
        refused: Names,
        /// Pods with the names of missing ones, which gather for another run.
        apart: Names,
        waited: Elapsed,
    },
    /// Pods have different versions of PyTorch.
    TorchVersionsDiffer { versions: String },
    /// Nodes have not joined.
    NodesMissing {
        joined: u32,
        expected: Option<u32>,
        from: Option<ExpectedFrom>,
        missing: Names,
        /// The pods of missing ones that announced themselves, each with what was heard of it since.
        announced: Names,
        /// Of those that had joined: who died, or was taken out.
        gone: Names,
        /// Of those that had joined: who is connected, and has not joined this round.
        connected: Names,
        present: Names,
        /// Other runs that are not complete, with their nodes: together they are as many as each of them expects.
        apart: Names,
        /// For how long the first of those waits that have joined.
        first: Elapsed,
        /// For how long nodes have been missing.
        waited: Elapsed,
    },
    /// The expected number of nodes has joined, but the round is not complete.
    RoundNotComplete {
        joined: u32,
        expected: u32,
        from: ExpectedFrom,
        /// Those that are known to ask for another number.
        who: Names,
        is_gone: bool,
        waited: Elapsed,
    },
    /// Nodes that were missing have come.
    NodeCameLate {
        node: String,
        nodes: usize,
        arrival: Arrival,
        /// Since the round began, or since they were gone; of several the longest time.
        after: Elapsed,
        joined: u32,
        expected: Option<u32>,
    },
    /// Nodes, or ranks of a job without agents: their connections closed, or were given up.
    Lost {
        nodes: Names,
        /// Their connections were given up: their links were away for too long, or their hosts did not answer.
        cut_off: bool,
        /// Those links.
        links: Names,
        moment: Option<Moment>,
        left: u32,
        expected: Option<u32>,
        unit: Unit,
        backend: RunKind,
        /// They had given up on others just before.
        gave_up: bool,
    },
    /// The links of relays are away; their clients wait.
    LinkAway {
        links: Names,
        clients: usize,
        /// Where it came from, if it is one.
        addr: Option<String>,
        /// What broke it, if it is one and that was seen.
        why: Option<String>,
        away: Elapsed,
        /// For how long the clients stay.
        grace: Elapsed,
    },
    /// The links of relays were away for too long, and their clients are gone.
    LinkLost { links: Names, clients: usize, grace: Elapsed },
    /// A relay was turned away, as another has its name.
    RelayRefused { relay: String, from: IpAddr, other: IpAddr },
    /// Another node took nodes out of the round of which no heartbeat came, though their connections had not closed.
    NodeRemoved {
        nodes: Names,
        by: String,
        silent: Elapsed,
        /// They had not come back since the server was restarted.
        not_back: bool,
        left: u32,
    },
    /// Nodes whose connections are open have stopped sending heartbeats.
    NoHeartbeat { nodes: Names, silent: Elapsed, taken_out: Option<TakenOut> },
    /// Worker processes ended before all ranks had met.
    RankLost {
        ranks: Names,
        /// Ranks that ended after them on the same nodes, whose agents end them then.
        then: Names,
        /// Ranks of the same nodes that had not come: one of those may have failed first.
        unseen: Names,
        joined: u32,
        world_size: Option<u32>,
        /// They had given up on others just before.
        gave_up: bool,
        /// How often one of them has ended and been started again, at most.
        times: u32,
        /// Those who had met before go on, and nobody waits for it.
        go_on: bool,
    },
    /// Static: nodes have ended their workers, as one of them failed, and start them again.
    WorkersRestarted {
        nodes: Names,
        /// How often one of the nodes has done so, at most.
        times: u32,
        /// The rank of those before whose process ended first, and how long before.
        first_ended: Option<(String, Elapsed)>,
    },
    /// An operator reset the store while ranks waited for others there.
    AddressesDropped { ranks: Names },
    /// Processes counted themselves and ended, where nobody waits for them.
    EndedUnpublished { processes: Names, port: u16 },
    /// Worker processes ended while others go on, in this order.
    RanksEnded {
        ranks: Names,
        left: u32,
        since: Elapsed,
        /// How long after all had published their addresses, if that was soon.
        soon: Option<Elapsed>,
    },
    /// Ranks have published addresses that ranks on other hosts cannot reach.
    AddressUnreachable {
        /// Each with its address, and why.
        ranks: Names,
        /// Only that they are of another network is known.
        may: bool,
    },
    /// Ranks have not come for the NCCL id, which is there.
    RanksMissing {
        came: u32,
        world_size: u32,
        /// Which of them, where nodes can be told apart.
        missing: Names,
        /// Processes that are connected, and have not asked for it.
        beside: Names,
        /// Since it was published.
        waited: Elapsed,
    },
    /// All connections of the run closed, and it had not finished.
    AllLeft {
        members: u32,
        unit: Unit,
        /// Nodes of those that had finished.
        finished: u32,
        /// Where all closed in one moment: how long that was, and how many of them waited.
        at_once: Option<(Elapsed, u32)>,
        /// What ended first, where that is known.
        first: Option<String>,
    },
    /// Nodes, or ranks of a job without agents, were connected to the last server, and to this one nobody has come.
    NotBack {
        who: Names,
        /// They had met, and need the store only when they meet again or end.
        may_go_on: bool,
        restarted: Elapsed,
    },
    /// Waits that all lead to one node or rank.
    Waiting {
        who: String,
        /// What it is to write.
        what: String,
        place: Place,
        #[serde(flatten)]
        published: Option<Published>,
        #[serde(flatten)]
        awaited: Awaited,
    },
    /// The host of a job counts who connects, and goes on when all have.
    WaitingForProcesses {
        host: String,
        /// It is the agent of node rank 0.
        of_agents: bool,
        connected: u32,
        /// So many of these are not there any more.
        ended: u32,
        /// When an operator reset the store, if some had connected before: the host does not count them.
        reset: Option<Elapsed>,
        /// As many as the others are prepared for. If as many are connected, the host waits for more.
        expected: Option<u32>,
        /// Those that had come, and ended.
        gone: Names,
        /// Those that have not come, as far as they are known.
        missing: Names,
        /// Processes that have told no rank: some of those that are missing may be among them.
        silent: Names,
        /// Processes that connected and ended without telling who they are.
        passed: Names,
        /// Ranks of as large a job in other stores.
        elsewhere: Names,
        /// Who waits for the host.
        waiters: usize,
        waited: Elapsed,
    },
    /// Waits at a store-based barrier, or in a sub-group.
    WaitingForGroup {
        what: String,
        waiters: usize,
        /// All ranks wait, and below different groups.
        disagree: bool,
        /// The other processes of the run: those that wait elsewhere or nowhere.
        others: Names,
        /// Those that have ended.
        ended: Names,
        waited: Elapsed,
    },
    /// Waits for a key that is none of PyTorch's.
    WaitingForKey {
        key: String,
        who: Names,
        /// The other keys that the same wait names and that are missing, too.
        besides: Names,
        /// A key that is there and differs from it by a slip.
        similar: Option<String>,
        /// The other processes of the run: those that wait elsewhere or nowhere.
        others: Names,
        /// Processes of the run that have ended: one of them may have been to write it.
        ended: Names,
        /// Why it is not there.
        absence: Absence,
        waited: Elapsed,
    },
    /// Waits at a barrier of the program.
    WaitingAtBarrier {
        barrier: String,
        who: Names,
        /// How many have to arrive, where that is known.
        size: Option<u32>,
        /// All processes of the run wait there, and it counts on more.
        too_large: bool,
        /// The other processes of the run: those that wait elsewhere or nowhere.
        others: Names,
        /// Those that have ended.
        ended: Names,
        waited: Elapsed,
    },
    /// Two live processes wrote one rank's address.
    DuplicateRank {
        what: String,
        first: String,
        second: String,
        /// More processes that claim it.
        more: Names,
        /// Of more than one rank these are the others, each with the processes that claim it.
        others: Names,
    },
    /// Two jobs write the same keys.
    TwoJobs { first: String, second: String, evidence: String },
    /// Nodes of one run use different rendezvous backends: they never meet.
    TwoBackends { first: String, second: String },
    /// The round is complete with fewer nodes than expected.
    FewerThanExpected { formed: u32, expected: u32, from: ExpectedFrom, left_over: Names },
    /// Nodes came to a full round and ask for more nodes than the others do: torch restarts all.
    NnodesDiffer { newcomers: Names, group: u32, other: String },
    /// Nodes stay outside a complete round.
    LeftOver {
        group: u32,
        left_over: Names,
        /// Members that are in the round still, where others of it wait for the next one, too.
        staying: Names,
        /// Members that are dead, and in the round until torch has noticed.
        dead: Names,
        redundant: bool,
        /// They ask for fewer nodes than the round has.
        fewer: bool,
        waited: Elapsed,
    },
    /// Ranks are prepared for different world sizes.
    WorldSizesDiffer {
        /// One of them, and for how many it is prepared.
        rank: u32,
        says: u32,
        /// All that are prepared for so many.
        ranks: Names,
        other_rank: u32,
        other_says: u32,
        others: Names,
        /// The first of them have met, and go on.
        have_met: bool,
    },
    /// A node rank that rank 0 does not expect.
    NodeRankBeyond { node: String, rank: u32, nodes: u32 },
    /// Pods announced different numbers of nodes.
    AnnouncementsDiffer { pod: String, says: String, other_pod: String, other_says: String },
    /// Nodes came to a run that is closed.
    RunIsClosed {
        newcomers: Names,
        closed_for: Elapsed,
        /// The agent that closed it, if it was seen.
        by: Option<String>,
        finished: bool,
    },
    /// The run was closed before the round was complete.
    ClosedIncomplete { joined: u32, expected: Option<u32>, missing: Names, present: Names, by: String },
    /// The run was closed although not all nodes had finished.
    ClosedUnfinished {
        finished: u32,
        nodes: u32,
        by: String,
        /// Those that were in the round still, and go on until they notice.
        running: Names,
    },
    /// A run that had finished is started again.
    RunRestarted {},
    /// Processes wait for each other in a circle.
    WaitCycle {
        members: Names,
        waited: Elapsed,
        /// The deadlock of torch 2.15 when a node joins a running job.
        is_elastic: bool,
    },
    /// Clients cancelled their waits.
    GaveUp {
        who: Names,
        key: String,
        waited: Elapsed,
        writer: String,
        /// All ranks that had not come, if that is why.
        missing: Names,
        /// A key that is there and differs from it by a slip.
        similar: Option<String>,
        /// Where the key does not tell who writes it, the other processes of the run: those that did not wait for it.
        others: Names,
        /// Those that had ended.
        ended: Names,
        /// How long ago an operator's reset of the store dropped it.
        reset: Option<Elapsed>,
        /// They wait for it again.
        again: bool,
    },
    /// A client came to a port that is for others.
    WrongPort {
        peer: String,
        protocol: String,
        port: u16,
        /// The ports of the stores that are open for all.
        stores: Names,
        times: u64,
        ago: Elapsed,
    },
    /// The workers use a store of their own.
    WorkersElsewhere { address: String },
    /// Some nodes have finished and wait for the nodes that still train.
    ExitBarrier {
        arrived: u32,
        nodes: Option<u32>,
        running: Names,
        /// Others took them out of the round, and their agents are connected.
        taken_out: Names,
        dead: Names,
        /// Those that were connected to the last server, and have not come back to this one.
        not_back: Names,
        /// Those of which nothing is heard at the moment, or whose links are away.
        silent: Names,
        waited: Elapsed,
    },
    /// Agents wait for the state of their rendezvous, which was dropped.
    StateDropped { run_id: String, waiters: usize, waited: Elapsed },
    /// An operator's reset closed the store of a native round, which goes on.
    StoreClosed {
        round: u64,
        /// Whether its ranks had met, if they tell.
        met: Option<bool>,
        since: Elapsed,
    },
    /// A rank's watchdog reported a time-out.
    WatchdogFired { who: String },
    /// The rendezvous state cannot be read.
    UnreadableState { detail: String },
    /// Nodes of a native run wait beside a round that is full.
    StandsBy {
        spares: Names,
        max_nodes: u32,
        /// Nodes of the round that have not reported since the server was restarted.
        unreported: u32,
        /// They came anew, and the processes of before are given up in this time.
        given_up: Option<Elapsed>,
        waited: Elapsed,
    },
    /// A node of a native run waits for the rank of another.
    WaitsForRank { node: String, holder: String, waited: Elapsed },
    /// Participants wait at a barrier of the native rendezvous.
    BarrierWaits {
        barrier: String,
        arrived: u32,
        size: u32,
        there: Names,
        missing: Names,
        /// Who has arrived, and is not heard from any more.
        silent: Names,
        /// Whose time was over before all had arrived.
        gave_up: Names,
        waited: Elapsed,
    },
    /// A round of a native run is not complete.
    RoundIncomplete {
        round: u64,
        /// Who is there and who is not, in the words of the rendezvous.
        text: String,
        /// There are enough, and the round waits for more for a while.
        is_enough: bool,
        /// What was seen of those that it lacks.
        lacks: Presence,
        /// In this time what is silent is given up.
        given_up: Option<Elapsed>,
        announced: Names,
        /// They have finished, and wait at the exit barrier of a round before.
        at_exit: Names,
        /// So many others have finished and left.
        done: u32,
        apart: Names,
        waited: Elapsed,
    },
    /// What the native rendezvous reports.
    Told {
        #[serde(skip)]
        fact: Fact,
        /// How long before that an operator's reset had closed the store of its round.
        reset: Option<Elapsed>,
        /// A complete round: those who are left of the one before go on in the same processes.
        survivors: Option<Survivors>,
    },
}

/// Ranks that go on without others, of a program that rebuilds its groups in the same processes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Survivors {
    /// Who was lost, and how that was seen.
    pub lost: String,
    /// How many there were before.
    pub of: u32,
    /// How long after the loss was seen they go on.
    pub after: Elapsed,
}

impl Reason {
    /// The name of this kind of explanation.
    pub fn code(&self) -> &'static str {
        self.rule().code
    }

    /// What it was found from, for programs, with its code.
    pub fn facts(&self) -> serde_json::Value {
        let mut facts = serde_json::to_value(self).unwrap_or_default();
        if let Some(facts) = facts.as_object_mut() {
            facts.insert("code".into(), self.code().into());
        }
        facts
    }

    /// How much it matters: as its rule says, unless what was found makes it more or less.
    pub fn severity(&self) -> Severity {
        match self {
            Self::RoundComplete { dead, .. } if !dead.is_empty() => Severity::Error,
            Self::PodsIdle { gone, .. } if !gone.is_empty() => Severity::Warning,
            Self::LeftOver { dead, .. } if !dead.is_empty() => Severity::Info,
            Self::LeftOver { redundant: true, fewer: false, .. }
            | Self::GaveUp { again: true, .. }
            | Self::AddressUnreachable { may: true, .. }
            | Self::RoundIncomplete { is_enough: true, .. }
            | Self::NotBack { may_go_on: true, .. } => Severity::Info,
            Self::RanksEnded { soon: Some(_), .. }
            | Self::StoreClosed { met: Some(false), .. }
            | Self::Lost { gave_up: true, .. }
            | Self::RankLost { gave_up: true, .. }
            | Self::RankLost { go_on: true, .. } => Severity::Warning,
            Self::ExitBarrier { taken_out, dead, silent, waited, .. } => {
                let all_are_well = taken_out.is_empty() && dead.is_empty() && silent.is_empty();
                if all_are_well && waited.0 < LONG_AT_EXIT { Severity::Info } else { Severity::Warning }
            }
            Self::Told { fact, .. } => match (fact.is_error(), fact.is_warning()) {
                (true, _) => Severity::Error,
                (false, true) => Severity::Warning,
                (false, false) => Severity::Info,
            },
            _ => self.rule().severity,
        }
    }

    /// How sure it is: which process is missing is found by looking at all others.
    pub fn certainty(&self) -> Certainty {
        let is_eliminated = match self {
            Self::PodsMissing { missing, .. }
            | Self::NodesMissing { missing, .. }
            | Self::RanksMissing { missing, .. }
            | Self::WaitingForProcesses { missing, reset: None, .. } => !missing.is_empty(),
            Self::GaveUp { others, .. }
            | Self::WaitingAtBarrier { others, .. }
            | Self::WaitingForKey { others, .. }
            | Self::WaitingForGroup { others, .. } => !others.is_empty(),
            Self::Waiting { awaited, .. } => awaited.seen.is_eliminated(),
            _ => false,
        };
        if is_eliminated { Certainty::Eliminated } else { Certainty::Seen }
    }

    /// How long it has to last before it is said. That ranks ended soon is a warning, which jobs of a few seconds should not get
    /// when their ranks end one by one. A node that has missed heartbeats has been silent for long enough.
    pub fn lasts_for(&self, explain_after: Duration) -> Duration {
        match self {
            Self::RanksEnded { soon: Some(_), .. } => explain_after,
            // That they were silent was said when they were taken out.
            Self::NoHeartbeat { taken_out: None | Some(TakenOut::Before), .. } => Duration::ZERO,
            _ => self.rule().hold.lasts(explain_after),
        }
    }

    /// Who has ended, where that is a part of what is said: when more do, it is said again.
    pub const fn ended(&self) -> Option<&Names> {
        match self {
            Self::WaitingForGroup { ended, .. }
            | Self::WaitingForKey { ended, .. }
            | Self::WaitingAtBarrier { ended, .. }
            | Self::RanksEnded { ranks: ended, .. } => Some(ended),
            _ => None,
        }
    }

    /// Whether it is a wait: reported only when it has lasted, and again with growing pauses.
    pub fn is_waiting(&self) -> bool {
        self.rule().hold != Hold::AtOnce
    }
}
