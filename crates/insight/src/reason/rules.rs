//! The table of rules: everything about a kind of explanation that does not depend on what was found. The codes, the page
//! `docs/explanations.md` and the tests are made from it.

use std::time::Duration;

use super::Reason;
use super::awaited::{ENDED, OTHER_PORT};
use super::values::{Absence, ONE_JOB};
use crate::presence::{
    AGENT, ANNOUNCED, AWAY, CUT_OFF, FROZEN, GONE, MISSING_NODE, MISSING_POD, NOT_BACK, Place,
};
use rallypoint_api::Severity;

/// One kind of explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Its name for programs.
    pub code: &'static str,
    /// How much it usually matters. For what the native rendezvous tells, that says.
    pub severity: Severity,
    /// When it is told.
    pub(crate) hold: Hold,
    /// What to look at, for one and for several.
    pub(crate) look_at: &'static str,
    /// What it means, for the page.
    pub means: &'static str,
}

/// How long something has to last before it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It has happened: told once.
    AtOnce,
    /// Told after `--explain-after`, and again with growing pauses.
    Lasting,
    /// As [`Hold::Lasting`], after 5 s at the latest: it is no guess.
    Soon,
}

impl Hold {
    pub(super) fn lasts(self, explain_after: Duration) -> Duration {
        const SOON: Duration = Duration::from_secs(5);
        match self {
            Self::AtOnce => Duration::ZERO,
            Self::Lasting => explain_after,
            Self::Soon => explain_after.min(SOON),
        }
    }
}

/// Each rule is one row: its code, how much it usually matters, when it is told, the reasons that it has (what only the native
/// rendezvous tells has none), what to look at, what it means. What means the same and is told otherwise has another row, without
/// the meaning.
macro_rules! rules {
    ($($code:literal $severity:ident $hold:ident [$($reason:ident)*] $look_at:tt $means:literal;)*) => {
        /// All rules, in the order of the page.
        pub const RULES: &[Rule] = &[$(Rule {
            code: $code,
            severity: Severity::$severity,
            hold: Hold::$hold,
            look_at: $look_at,
            means: $means,
        },)*];

        impl Reason {
            /// The rule that it was found by.
            pub fn rule(&self) -> &'static Rule {
                match self {
                    $($(Self::$reason { .. } => const { &Rule {
                        code: $code,
                        severity: Severity::$severity,
                        hold: Hold::$hold,
                        look_at: $look_at,
                        means: $means,
                    } },)*)*
                    Self::Told { fact, .. } => {
                        RULES.iter().find(|rule| rule.code == fact.code()).unwrap_or(&RULES[0])
                    }
                }
            }
        }
    };
}

const GAVE_UP_ON: &str =
    "look at what they gave up on, and why that was not there; their own logs say no more than that";
const RESET: &str = "restart all processes of the job together: what was written before the reset is not written again by itself";
const SAME_WORLD_SIZE: &str = "restart all processes of the job together with the same WORLD_SIZE (--nnodes, --nproc-per-node); a second job needs \
                               its own store (--listen twice, or POST /api/v1/stores)";
const SLIP: &str =
    "one of the two names may be a slip: compare the parts of the program that write and read it";
const SPARES: &str = "nothing, if they are spares, or torch has not noticed yet that others have gone (15 s after the last heartbeat): they get \
                      the places of nodes that leave; else raise the maximum in --nnodes; a second job needs another --rdzv-id";

impl Reason {
    /// What to do about it: as its rule says, or as was seen of whom it misses. Empty if there is nothing to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Waiting { awaited, place, .. } => awaited.remedy(*place),
            Self::NodesMissing { apart, .. }
            | Self::PodsMissing { apart, .. }
            | Self::RoundIncomplete { apart, .. }
                if !apart.is_empty() =>
            {
                ONE_JOB
            }
            Self::RoundIncomplete { is_enough: true, .. } => {
                "nothing, if it does not last: the round goes on when all that are alive have joined, and what is silent is given up"
            }
            Self::RoundIncomplete { lacks, .. } => lacks.look_at(Place::Node),
            Self::Told { reset: None, .. } | Self::RoundComplete { .. } | Self::RanksComplete { .. }
                if self.severity() == Severity::Info =>
            {
                ""
            }
            Self::NodesMissing { expected: None, gone, .. } if gone.is_empty() => {
                "tell the server how many are expected (rallypoint ctl expect RUN N, or serve --nodes), and look which pods have \
                 not started, do not reach this server, or have another --nnodes or --rdzv-id"
            }
            Self::NodesMissing { joined, expected, missing, announced, gone, connected, .. } => {
                let lacks = expected.unwrap_or(0).saturating_sub(*joined) as usize;
                match (gone.is_empty(), lacks > connected.count()) {
                    (false, _) => GONE,
                    (true, false) => AGENT,
                    (true, true) if announced.count() >= missing.count().max(1) => ANNOUNCED,
                    (true, true) => MISSING_NODE,
                }
            }
            Self::PodsMissing { refused, .. } if !refused.is_empty() => {
                "start the pods that were turned away with the number of nodes that the others have, each with its own rank: one \
                 of them may be missing as another"
            }
            Self::PodsMissing { announced, expected, gone, .. }
                if gone.count() >= expected.saturating_sub(*announced) as usize =>
            {
                GONE
            }
            Self::Lost { gave_up: true, .. } | Self::RankLost { gave_up: true, .. } => GAVE_UP_ON,
            Self::Lost { cut_off: true, .. } => CUT_OFF,
            Self::NodeRemoved { not_back: true, .. } => NOT_BACK,
            Self::Told { reset: Some(_), .. }
            | Self::WaitingForProcesses { reset: Some(_), .. }
            | Self::GaveUp { reset: Some(_), .. }
            | Self::WaitingForKey { absence: Absence::Reset { .. }, similar: None, .. } => RESET,
            Self::WaitingForProcesses { connected, expected: Some(expected), .. }
                if connected >= expected =>
            {
                SAME_WORLD_SIZE
            }
            Self::WaitingForProcesses { elsewhere, .. } if !elsewhere.is_empty() => OTHER_PORT,
            Self::WaitingForProcesses { gone, passed, .. } if !gone.is_empty() || !passed.is_empty() => ENDED,
            Self::WaitingForKey { absence: Absence::WriterGone { .. }, .. } => {
                "look at the log of the process that publishes it; a process publishes once, and again only when it is started anew"
            }
            Self::WaitingForGroup { disagree: true, .. } => {
                "let all ranks make the same groups in the same order (new_group, also those that are no members)"
            }
            Self::WaitingForKey { similar: Some(_), .. } | Self::GaveUp { similar: Some(_), .. } => SLIP,
            Self::GaveUp { again: true, .. } => {
                "nothing, if the program means to poll; else look at the process that should write the key"
            }
            Self::WaitCycle { is_elastic: true, .. } => {
                "a known fault of torch 2.15: restart all agents, and set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every node before nodes \
                 join a running job"
            }
            Self::RanksEnded { soon: Some(_), .. } => {
                "look at their logs, that of the first before all: did it fail, was it killed, or could they not connect to each \
                 other at the addresses that they published? GLOO_SOCKET_IFNAME chooses the network interface"
            }
            // Who cannot reach the others tries for longer than a second.
            Self::RunEnded { first: None, ran, .. } if (1..5).contains(&ran.0.as_secs()) => {
                "whether they succeeded cannot be seen here: their exit codes and logs tell; where they could not connect to each other, \
                 GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME chooses the network interface"
            }
            Self::RunEnded { first: None, .. } => "whether they succeeded cannot be seen here",
            Self::LeftOver { .. } if self.severity() == Severity::Info => SPARES,
            _ => self.rule().look_at,
        }
    }
}

rules! {
    "run_started" Info AtOnce [RunStarted]
        ""
        "The first node of a round has joined, or the first rank of a run without agents has come. Native runs: also that a closed run starts again, or that a round goes on after a restart of the server. A warning if a run had finished and has a client again under its id.";
    "run_started" Warning AtOnce [RunRestarted]
        "a late node would train alone over the checkpoints: stop it if this is not a new run"
        "";
    "round_complete" Info AtOnce [RoundComplete RanksComplete]
        "look at the log and events of each pod whose connection had closed; what comes in its place cannot join this round, and the others wait until their time-outs: restart all agents of the job together"
        "All nodes of a round are there, or all ranks have published their addresses here (gloo). After a loss in a run of `rallypoint.elastic` it says who was lost and how many go on in the same processes (`survivors`). An error if the c10d backend counts nodes that died while joining (`dead`): torch notices that when their heartbeats expire.";
    "run_finished" Info AtOnce [RunFinished]
        ""
        "All agents have arrived at the exit barrier. A native run has finished when all nodes of the round have left and said that they succeeded, as the torchrun plugin does.";
    "run_ended" Info AtOnce [RunEnded]
        "whether they succeeded cannot be seen here: their exit codes tell, that of the first one before all"
        "Ranks without agents: the connections of all have closed, after all had published their addresses (or an NCCL id was). Success and failure look the same here. A warning if they had not, or if agents had not finished. What ended first is named (`first`) where that is known.";
    "run_ended" Warning AtOnce [AllLeft]
        "if the job was not stopped on purpose, look at the pods' logs and events, at the log of what ended first before all"
        "";
    "node_came_late" Info AtOnce [NodeCameLate]
        ""
        "A node that was reported missing has joined. If it had been in the round before (`arrival`: `again`), the time is since it was gone. If others had taken it out of a complete round and it is heard from again, it goes on with its ranks (`back`).";
    "round_over" Warning AtOnce []
        "look for the first error in the logs of all, and first at what is named: its workers failed or were restarted, or it is not heard from"
        "Native runs: the nodes of a round are told to join again: one joined again as its workers failed, new ones are taken in, an operator expects fewer, or some did not report after a restart of the server. Static: an agent starts all of its workers again (`--max-restarts`).";
    "round_over" Warning AtOnce [WorkersRestarted]
        "look at the log of the rank that ended first: one of the workers failed, and torchrun starts all of the node again, up to --max-restarts times"
        "";
    "workers_elsewhere" Info AtOnce [WorkersElsewhere]
        "to see their ranks, and to be free of rank 0's host, let the workers meet here: docs/launch-modes.md"
        "The ordinary case of the c10d backend: rank 0's agent hosts a store for the workers. Reported once for each run.";
    "lost" Error AtOnce [Lost]
        GONE
        "A node or a rank is gone that others count on: its connection closed, or it was given up (`cut_off`): its link was away for longer than `serve --link-grace`, or without a relay its host answered nothing for 20 s; others took it out of the round, as no heartbeat came for 15 s (`keep_alive_interval` and its maximum); native runs: it left, or nothing came from it. It may be alive then. Ranks that ended after others of their node (`then`), and ranks of the node that had not come (`unseen`), are named. A warning if it had given up on others just before (`gave_up`).";
    "lost" Error AtOnce [RankLost]
        "look at the log of what ended first: torchrun ends the other ranks of its node then; the ranks of other nodes wait for them until their time-outs"
        "";
    "lost" Error AtOnce [NodeRemoved]
        FROZEN
        "";
    "node_silent" Warning Lasting [NoHeartbeat]
        FROZEN
        "A node is late. A torchrun agent is connected, waits for nothing here, and has missed two heartbeats (of 5 s each, unless the run shows another `keep_alive_interval`). Native runs: nothing has come for one and a half keep-alive times, or the connection closed while its request waited here, and it has not come again, as one that is alive does at once.";
    "not_back" Warning AtOnce [NotBack]
        "without a relay (rallypoint run) no process connects again, and each fails at its next request: look at its log, and start all processes of the job again, unless they go on"
        "Those who were connected to the last server have not come back to this one. Without a relay no process connects again, so each fails at its next request. Information only if all had met and use the store no more until they end (`env://` and static agents).";
    "link_away" Warning AtOnce [LinkAway]
        AWAY
        "The connection between a relay and the server is broken for longer than 2 s. The relay holds its clients, and they notice a pause. An error when it was away for longer than `serve --link-grace`: the sessions of its clients are over.";
    "link_away" Error AtOnce [LinkLost]
        "look at those nodes: are they gone, or their network? A longer --link-grace rides out longer breaks"
        "";
    "ranks_ended" Info Soon [RanksEnded]
        "if they were not meant to end before the others, look at their logs; the store cannot tell success from a crash"
        "Some processes have ended, or left their process group, and others have gone on for longer than --explain-after; with torchrun's agents, while these have done nothing about it. NCCL ranks tell no rank, so processes are named, with their nodes; rank 0 is who published the NCCL id. A warning if a rank ended within 10 s after all had published their addresses. Also processes that counted themselves in a store, as `env://` and `tcp://` do, and ended without more where nobody waits for them.";
    "ranks_ended" Info AtOnce [EndedUnpublished]
        "if they were to be ranks, look at their logs: a failed import, too little memory, a wrong interface (GLOO_SOCKET_IFNAME)?"
        "";
    "address_unreachable" Warning Soon [AddressUnreachable]
        "give the interface that the hosts share: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME; a host's name that leads to 127.0.1.1 has that from /etc/hosts"
        "The address that a rank published with gloo, or rank 0 in its NCCL id, is loopback, link-local or Docker's bridge, or of another network than its process connects from while those of all others are not (a note, `may`), and ranks on other hosts are there. Not once a key shows that they have met.";
    "pods_missing" Warning Lasting [PodsMissing]
        MISSING_POD
        "Pods are held back before PyTorch starts in them (`rallypoint run`, `wait --nodes`), because others have not announced themselves, or were turned away.";
    "pods_idle" Info Lasting [PodsIdle]
        "look at the pods' logs: are they still importing, loading or downloading? The store is needed after that only. A relay leaves when its command has ended"
        "All pods have passed the start gate, and no process of them has connected: they import, load or hang, or have ended. A note, and a warning if a relay has left or its link is away. Pods without relays are not heard of (`unheard`), and forgotten after 10 minutes.";
    "nodes_missing" Warning Lasting [NodesMissing RoundIncomplete]
        MISSING_NODE
        "A round is not complete. Missing nodes are named if they announced themselves, were in an earlier round, or have a known rank; else the nodes that are there are named. Nodes that died or are not heard from are told apart (`gone`), and so are those that are still busy with the round before (`connected`). Another run that is not complete either is named if both together have as many nodes as each expects: it may be one job, with a slip in an id. A static run without node rank 0 is told as `waiting`. A note for a native run that has enough nodes.";
    "round_deadline" Warning AtOnce []
        "start the missing nodes, and all others again if the round was given up; `rallypoint ctl extend` gives more time, and --join-timeout from the start"
        "Native runs: the time in which the round must be complete ends soon, is over, or was made longer, or all nodes that waited for it have left.";
    "waiting" Warning Lasting [Waiting WaitingForProcesses]
        "look for the nodes or ranks that have not connected: have they started, do they reach this server, has each its own --node-rank or RANK, and have all the same --nnodes or WORLD_SIZE?"
        "Waits that all lead to one rank, or to the agent of one node: to its gloo address, its NCCL id, its role, the addresses or the ranks that it is to hand out. `presence` is what was seen of it last, `behind` what was seen of its node or pod, `but` why it does not write it although it is there, `candidates` are processes that have told no rank. Rank 0, or the agent of node rank 0, may itself wait until all processes have connected, as it hosts a store of its own (`host`). Waits at a store-based barrier, in a sub-group or in a group with a prefix of the program's own name all processes of the run that do not wait there (`others`). NCCL ranks may wait for others inside NCCL (`came`).";
    "waiting" Warning Lasting [WaitingForGroup]
        "look for ranks that have not reached this call, or have ended"
        "";
    "waiting" Warning Lasting [RanksMissing]
        "look at the processes of the missing ranks: are they still importing or loading, have they ended, or gone another way than the others? Those wait for them inside NCCL, which tells the store nothing"
        "";
    "waiting_for_key" Info Lasting [WaitingForKey]
        "look which part of the program writes that key, whether its name is the same there, and what the processes do that are not there or have ended"
        "Ranks or agents wait for a key of the program's own; where no keys show a job, any process that waits for one. An agent of NIXL asks again and again for the metadata of another that has not published, or whose connection closed. Some programs do so for long, so it is a note. Named are a key that differs by one slip, who deleted the key, and the processes of the run that do not wait there or have ended.";
    "waiting_at_barrier" Info Lasting [WaitingAtBarrier BarrierWaits]
        "look at the processes that have not arrived: are they busy, have they ended or gone another way, or does the barrier count on more than there are?"
        "Processes wait at a barrier of the program: a BARRIER, one of `torch.distributed.elastic.utils.store`, or one of the native rendezvous (`rallypoint barrier`). Named are those that have not arrived, as far as the members are known; it may be for some of them only.";
    "exit_barrier" Warning Lasting [ExitBarrier]
        "look at the nodes that have not finished, and at their logs: are they frozen, overloaded, or cut off from this server? Agents wait for them up to 300 s, and end then"
        "Some agents have finished and wait for the others. A note for the first two minutes, if nobody is dead, silent or taken out of the round.";
    "stands_by" Info Lasting [StandsBy]
        SPARES
        "Nodes wait beside a complete round: spares beyond the maximum, which is a note; a warning if they ask for another number of nodes, if torch has not taken them in, or if they ask for the rank of a node that has not left.";
    "stands_by" Warning Lasting [LeftOver]
        "look at the agents that are in the round still: torch stops its workers to begin a round with all, which may take half a minute. Start every node with the same --nnodes; a second job needs another --rdzv-id"
        "";
    "stands_by" Warning Lasting [WaitsForRank]
        "if it replaces that node, it gets the rank when that one leaves or its keep-alive runs out; else give each node its own rank (PET_NODE_RANK, node_rank, the pod's index)"
        "";
    "gave_up" Error AtOnce [GaveUp]
        "most programs end after that; look at the process that should have written the key, and at the processes that were not there. For longer waits set --rdzv-conf read_timeout (agents) or init_process_group's timeout (workers)"
        "A client cancelled its wait, which it does when its time-out has passed. All that gave up on one key are reported together, with what was said of the wait. Also a rank that wrote `exception_dump` or `remote_error`: NCCL's watchdog does so when a collective times out.";
    "gave_up" Error AtOnce [WatchdogFired]
        "look at that rank's log for the collective that timed out"
        "";
    "nnodes_differ" Error AtOnce [FewerThanExpected NnodesDiffer AnnouncementsDiffer]
        "start every node again with the same --nnodes, or stop what came last; a second job needs another --rdzv-id"
        "Nodes disagree on how many there are: pods announced different numbers, a round is complete with fewer than expected, a node waits beside a complete round of as many as the last agent asks for, or as many as expected have joined and nobody completes the round (a warning). torch counts the nodes only when one joins.";
    "nnodes_differ" Warning Lasting [RoundNotComplete]
        "stop all agents of the job, and start them with the same --nnodes, which is the number to expect (rallypoint ctl expect RUN N, or serve --nodes); a second job needs another --rdzv-id"
        "";
    "world_sizes_differ" Error AtOnce [WorldSizesDiffer]
        SAME_WORLD_SIZE
        "The gloo addresses of some ranks have sizes that belong to different world sizes.";
    "duplicate_rank" Error AtOnce [DuplicateRank]
        "give each process its own RANK and each node its own --node-rank (from 0 on), stop the process that should not be there; a second job needs its own store (--listen twice, or POST /api/v1/stores)"
        "Two live processes or more wrote the same rank's key. `others` has more such ranks.";
    "two_jobs" Error AtOnce [TwoJobs]
        "give each job its own store (--listen twice, or POST /api/v1/stores), and start again what has not met or fails; what are parts of one job need the same --rdzv-id, or MASTER_PORT and WORLD_SIZE"
        "Two static runs have agents in one store, or every rank's address was written by two live processes.";
    "two_backends" Error AtOnce [TwoBackends]
        "start every node with the same --rdzv-backend; a second job needs another --rdzv-id"
        "Nodes with the same run id use different backends: some torchrun's c10d, others static or the plugin.";
    "torch_versions_differ" Warning AtOnce [TorchVersionsDiffer]
        "use one image on every node; different releases of PyTorch may not understand each other"
        "Pods or nodes have different versions of PyTorch.";
    "join_refused" Warning AtOnce []
        "start that node with what the others have, and with an id (--node) and a rank of its own; if it is of another job, it needs another --rdzv-id (--run-id)"
        "Who comes has no place: the run is closed, the rank is not below the number of nodes, is taken or cannot be, the parameters differ, there are too many nodes, or another has its node id or its relay's name. Of one address it is said again after a while.";
    "join_refused" Error AtOnce [RunIsClosed]
        "nothing, if the job is done; else start all nodes again with another --rdzv-id, or 10 s after the last connection of the old ones"
        "";
    "join_refused" Error AtOnce [NodeRankBeyond]
        "start every node with the same --nnodes and a --node-rank below it: they begin at 0"
        "";
    "join_refused" Warning AtOnce [RelayRefused]
        "stop the pod that should not be there, or give each relay a name of its own: --name (rallypoint relay), else POD_NAME and POD_UID. It tries again, and its command waits meanwhile"
        "";
    "run_closed" Warning AtOnce [ClosedUnfinished]
        "look at that node's log for the first error; workers of other nodes that are not stopped as well wait for its ranks until their own time-outs"
        "A node or an operator closed the run. A warning if an agent did so after a failure, or because it was stopped; an error if the round was never complete: the first node whose join time-out ends closes the run for all. Native runs: the first failure of a round is told, with those that followed within 2 s, and the nodes that are still in it.";
    "run_closed" Error AtOnce [ClosedIncomplete]
        "the first node that is stopped or gives up closes the run for all; give them more time with --rdzv-conf join_timeout=1800 and look for the nodes that did not come"
        "";
    "wait_cycle" Error AtOnce [WaitCycle]
        "none of them can go on: restart them together"
        "Processes wait for each other in a circle. torch 2.15 has such a deadlock when a fresh node joins a running c10d job whose rank 0 stays: that does not publish the workers' address again.";
    "store_reset" Error AtOnce [AddressesDropped]
        RESET
        "An operator reset the store (`rallypoint ctl reset`, `ctl forget`) while ranks waited there for others (an error), or c10d agents for the state that they share (a warning). A note where a native round goes on whose ranks had met, or do not tell (NCCL).";
    "store_reset" Warning Lasting [StateDropped]
        "a node that joins writes it again, and the others join it; if none is to come, restart all agents of the job together"
        "";
    "store_reset" Info Soon [StoreClosed]
        "nothing, if the ranks go on and need no store any more; else start all agents of the job again, together: the next round has a store of its own"
        "";
    "wrong_port" Warning AtOnce [WrongPort]
        "give each client its port: health checks, scrapers and --rdzv-backend=rallypoint (HTTP) the admin port, jobs (--rdzv-endpoint, MASTER_PORT) that of a store; TLS another server"
        "A client's first bytes on a store's port are HTTP or TLS, or on the admin port those of a PyTorch store (2.2 or later).";
    "unreadable_state" Warning AtOnce [UnreadableState]
        "the job is not harmed; who has joined cannot be shown. Does another program use this key?"
        "The value under `/torch.rendezvous.RUN` is not what torchrun writes.";
    "no_store" Warning AtOnce []
        ""
        "Native runs: there is no store for the workers of a round.";
}
