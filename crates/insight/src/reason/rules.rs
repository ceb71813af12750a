//! The table of rules: everything about a kind of explanation that does not depend on what was found. The codes, the page
//! `docs/explanations.md` and the tests are made from it.

use std::time::Duration;

use super::Reason;
use super::values::Said;
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

/// Each rule is one row: the reason, its code, how much it usually matters, when it is told, what it means. What only the
/// native rendezvous tells has a code and a meaning.
macro_rules! rules {
    (
        insight { $($reason:ident $code:literal $severity:ident $hold:ident $means:literal;)* }
        native { $($native:literal $meaning:literal;)* }
    ) => {
        /// All rules, in the order of the page.
        pub const RULES: &[Rule] = &[
            $(Rule { code: $code, severity: Severity::$severity, hold: Hold::$hold, means: $means },)*
            $(Rule { code: $native, severity: Severity::Warning, hold: Hold::AtOnce, means: $meaning },)*
        ];

        impl Reason {
            /// The rule that it was found by. What the rendezvous tells may be of a kind that insight finds as well.
            pub fn rule(&self) -> Rule {
                match self {
                    $(Self::$reason { .. } => {
                        Rule { code: $code, severity: Severity::$severity, hold: Hold::$hold, means: $means }
                    })*
                    Self::Rendezvous(said) => rule_of(said),
                }
            }
        }
    };
}

fn rule_of(said: &Said) -> Rule {
    let hold = if said.waiting { Hold::Lasting } else { Hold::AtOnce };
    let means = RULES.iter().find(|rule| rule.code == said.code).map_or("", |rule| rule.means);
    Rule { code: said.code, severity: said.severity, hold, means }
}

rules! {
    insight {
    RunStarted "run_started" Info AtOnce
        "The first node of a round has joined, or the first rank of a run without agents has come.";
    RoundComplete "round_complete" Info AtOnce
        "All nodes of a round are there. An error if the c10d backend counts nodes that died while joining (`dead`): torch notices that when their heartbeats expire.";
    RanksComplete "ranks_complete" Info AtOnce
        "All worker ranks have published their addresses here. Only if the workers use this server, with gloo.";
    RunFinished "run_finished" Info AtOnce
        "All agents have arrived at the exit barrier. A native run has finished when all nodes of the round have left and said that they succeeded, as the torchrun plugin does.";
    RunEnded "run_ended" Info AtOnce
        "Ranks without agents: the connections of all have closed, after all had published their addresses (or an NCCL id was). Success and failure look the same here. A rank that ended 0.2 s or more before all others is named (`first`).";
    PodsMissing "pods_missing" Warning Lasting
        "Pods are held back before PyTorch starts in them (`rallypoint run`, `wait --nodes`), because others have not announced themselves, or were turned away.";
    PodsIdle "pods_idle" Info Lasting
        "All pods have passed the start gate, and no process of them has connected: they import, load or hang, or have ended. A note, and a warning if a relay has left or its link is away. Pods without relays are not heard of (`unheard`), and forgotten after 10 minutes.";
    TorchVersionsDiffer "torch_versions_differ" Warning AtOnce
        "Pods announced different versions of PyTorch.";
    NodesMissing "nodes_missing" Warning Lasting
        "A round is not complete. Missing nodes are named if they announced themselves, were in an earlier round, or have a known rank; else the nodes that are there are named. Nodes that died or are not heard from are told apart (`gone`), and so are those that are still busy with the round before (`connected`). Another run that is not complete either is named if both together have as many nodes as each expects: it may be one job, with a slip in an id. A static run without node rank 0 is told as `waiting`.";
    RoundNotComplete "round_not_complete" Warning Lasting
        "The expected number of nodes has joined, but none of them completes the round. This happens with torch 2.15 when their --nnodes differ.";
    NodeCameLate "node_came_late" Info AtOnce
        "A node that was reported missing has joined. If it had been in the round before (`arrival`: `again`), the time is since it was gone. If others had taken it out of a complete round and it is heard from again, it goes on with its ranks (`back`).";
    Lost "lost" Error AtOnce
        "The connection of an agent that had not finished closed, or it was given up (`cut_off`): its link was away for longer than `serve --link-grace`, or without a relay its host answered nothing for 20 s. The node itself may be alive then. A warning if it had given up on others just before (`gave_up`). In jobs without agents contact with ranks is lost so.";
    NodeRemoved "node_removed" Error AtOnce
        "A torchrun agent is connected, but has sent no heartbeat for 15 s (`keep_alive_interval` and its maximum), and another agent took it out of the round. Nobody is told to restart. If the link of its relay is away, or the server was restarted, that is named as the cause.";
    NoHeartbeat "no_heartbeat" Warning Lasting
        "A torchrun agent is connected and waits for nothing here, but has missed two heartbeats. The time between two is learned from the run: 5 s, unless `keep_alive_interval` says otherwise.";
    LinkAway "link_away" Warning AtOnce
        "The connection between a relay and the server is broken for longer than 2 s. The relay holds its clients, and they notice a pause.";
    LinkLost "link_lost" Error AtOnce
        "A link was away for longer than `serve --link-grace`: the sessions of its clients are over.";
    RelayRefused "relay_refused" Warning AtOnce
        "Two relays have one name: an old pod that has not ended, or pods without names of their own. The later one is turned away, and tries again. Said at most once a minute.";
    RankLost "rank_lost" Error AtOnce
        "A worker's connection closed, before all ranks had published their addresses. torchrun's agents then end the other ranks of the node (`then`). A rank of it that had not come (`unseen`) may have failed first.";
    WorkersRestarted "workers_restarted" Warning AtOnce
        "An agent of the static rendezvous tells its role again while the round is complete: one of its workers failed, and it starts all of them again (`--max-restarts`). The ranks that had met with them have to come again, too.";
    AddressesDropped "addresses_dropped" Error AtOnce
        "An operator reset the store while ranks waited there for others, which will not find the addresses of those.";
    EndedUnpublished "ended_unpublished" Info AtOnce
        "Processes counted themselves in a store, as `env://` and `tcp://` do, and ended without more, and nobody is there who waits for them.";
    RanksEnded "ranks_ended" Info Soon
        "Some processes have ended, or left their process group, and others have gone on for longer than --explain-after; with torchrun's agents, while these have done nothing about it. NCCL ranks tell no rank, so processes are named, with their nodes; rank 0 is who published the NCCL id. A warning if a rank ended within 10 s after all had published their addresses.";
    AddressUnreachable "address_unreachable" Warning Soon
        "The address that a rank published with gloo, or rank 0 in its NCCL id, is loopback, link-local or Docker's bridge, or of another network than its process connects from while those of all others are not (a note, `may`), and ranks on other hosts are there. Not once a key shows that they have met.";
    RanksMissing "ranks_missing" Warning Lasting
        "With agents and NCCL: rank 0 has published the id, and some ranks have not asked for it. Which ones is known where each node has an address of its own.";
    AllLeft "all_left" Warning AtOnce
        "All connections of a run closed within seconds, and it had not finished. `first` is what ended first, a rank or the agent of a static node.";
    NotBack "not_back" Warning AtOnce
        "With a journal: those who were connected to the last server have not come back 30 s after this one was started. Without a relay no process connects again, so each fails at its next request. Information only if all had met and use the store no more until they end (`env://` and static agents).";
    Waiting "waiting" Warning Lasting
        "Waits that all lead to one rank, or to the agent of one node: to its gloo address, its NCCL id, its role, the addresses or the ranks that it is to hand out. `presence` is what was seen of it last, `behind` what was seen of its node or pod, `but` why it does not write it although it is there, `candidates` are processes that have told no rank.";
    WaitingForProcesses "waiting_for_processes" Warning Lasting
        "Rank 0, or the agent of node rank 0, hosts a store of its own, as it was not told to be a client. It publishes nothing before as many processes as it expects have connected here. How many that are is only known if others tell.";
    WaitingForGroup "waiting_for_group" Warning Lasting
        "Waits at a store-based barrier, for a member of a sub-group, or in a group with a prefix of the program's own. Named are all processes of the run that do not wait there; a sub-group may be of some of them only.";
    WaitingForKey "waiting_for_key" Info Lasting
        "Ranks or agents wait for a key of the program's own. Some programs do so for long, so it is a note. Named are a key that differs by one slip, who deleted the key, and the processes of the run that do not wait there or have ended.";
    WaitingAtBarrier "waiting_at_barrier" Info Lasting
        "Ranks or agents wait at a barrier of the program: a BARRIER, or one of `torch.distributed.elastic.utils.store`. Named are all processes of the run that do not wait there; it may be for some of them only.";
    DuplicateRank "duplicate_rank" Error AtOnce
        "Two live processes or more wrote the same rank's key. `others` has more such ranks.";
    TwoJobs "two_jobs" Error AtOnce
        "Two static runs have agents in one store, or every rank's address was written by two live processes.";
    TwoBackends "two_backends" Error AtOnce
        "Nodes with the same run id use different backends: some torchrun's c10d, others static or the plugin.";
    FewerThanExpected "fewer_than_expected" Error AtOnce
        "A c10d round is complete with fewer nodes than an operator, the pods or `serve --nodes` say. A node was started with a smaller --nnodes.";
    NnodesDiffer "nnodes_differ" Error AtOnce
        "A node waits for the next round beside a complete c10d round of as many nodes as the last agent asks for: the newcomer has another `--nnodes`. torch restarts all workers for it, and the next round may never be complete.";
    LeftOver "left_over" Warning Lasting
        "Nodes wait beside a complete round, or ask for fewer nodes than it has. Only a note for spares beyond the maximum, and until torch has noticed that members are dead. If members of the round are among them, those that are still in it are named.";
    WorldSizesDiffer "world_sizes_differ" Error AtOnce
        "The gloo addresses of some ranks have sizes that belong to different world sizes.";
    NodeRankBeyond "node_rank_beyond" Error AtOnce
        "In a static run a node has come whose rank is not below the number of nodes that rank 0 expects.";
    AnnouncementsDiffer "announcements_differ" Error AtOnce
        "Two pods of a run announced different numbers of nodes.";
    RunIsClosed "run_is_closed" Error AtOnce
        "Agents have come to a run whose state says `closed`: torchrun ends them at once. Of one address it is said again after ten minutes.";
    ClosedIncomplete "closed_incomplete" Error AtOnce
        "The first node whose join time-out ended closed the run. torchrun tells the others only that it is closed.";
    ClosedUnfinished "closed_unfinished" Warning AtOnce
        "An agent closed the run after a failure, or because it was stopped.";
    RunRestarted "run_restarted" Warning AtOnce
        "A run that had finished has a client again under the same id.";
    ElasticDeadlock "elastic_deadlock" Error AtOnce
        "A fresh node joined a running c10d job of torch 2.15 whose rank 0 stays: rank 0 does not publish the workers' address again.";
    WaitCycle "wait_cycle" Error AtOnce
        "Any other case in which processes wait for each other in a circle.";
    GaveUp "gave_up" Error AtOnce
        "A client cancelled its wait, which it does when its time-out has passed. All that gave up on one key are reported together, with what was said of the wait.";
    ForeignClient "foreign_client" Warning AtOnce
        "The first bytes of a connection to a store's port are HTTP or TLS.";
    StoreClientAtAdmin "store_client_at_admin" Warning AtOnce
        "The first bytes of a connection to the admin port are those of a PyTorch store (2.2 or later).";
    WorkersElsewhere "workers_elsewhere" Info AtOnce
        "The ordinary case of the c10d backend: rank 0's agent hosts a store for the workers. Reported once for each run.";
    ExitBarrier "exit_barrier" Warning Lasting
        "Some agents have finished and wait for the others. A note for the first two minutes, if nobody is dead, silent or taken out of the round.";
    StateDropped "state_dropped" Warning Lasting
        "c10d agents are connected, and what they share was dropped by `rallypoint ctl reset` or `ctl forget`. They hang.";
    StoreClosed "store_closed" Info Soon
        "`rallypoint ctl reset` closes the store of a native round, and its processes are disconnected. A note where all ranks had met, or do not tell (NCCL).";
    WatchdogFired "watchdog_fired" Error AtOnce
        "A rank wrote `exception_dump` or `remote_error`: NCCL's watchdog does so when a collective times out.";
    UnreadableState "unreadable_state" Warning AtOnce
        "The value under `/torch.rendezvous.RUN` is not what torchrun writes.";
    StandsBy "stands_by" Info Lasting
        "Native runs: nodes beyond the maximum wait beside a complete round. They are spares, and nothing is wrong.";
    WaitsForRank "waits_for_rank" Warning Lasting
        "Native runs: a node asks for the rank of a node that has not left, but may be dead.";
    BarrierWaits "barrier_waits" Info Lasting
        "Participants wait at a barrier of the native rendezvous (`rallypoint barrier`). Who is missing is known if the members were given. Who has arrived and is gone is told apart, and so is who gave up (`gave_up`).";
    }
    native {
    "node_left" "Native runs: a node of the round has left. Others that leave within 2 s are told with it.";
    "node_rejoined" "Native runs: a node of the round joined again, because workers failed or it was started again. A node that is silent is named too.";
    "nodes_taken_in" "Native runs: new nodes have joined, and there is room for them.";
    "round_resized" "Native runs: an operator expects fewer nodes (`rallypoint ctl expect`).";
    "nodes_unreported" "Native runs: after a restart of the server some nodes of the round sent nothing.";
    "node_disconnected" "Native runs: the connection of a node closed while its request waited here, and the node has not come again, as one that is alive does at once.";
    "node_silent" "Native runs: nothing has come from a node for one and a half keep-alive times. With the defaults a node that stops while it trains is named 7.5 to 10 s later, while it joins 15 s later.";
    "round_expiring" "Native runs: the time in which the round must be complete ends soon.";
    "node_displaced" "Native runs: a node joined with the id of another that waited, from another address, and has its place now.";
    "round_abandoned" "Native runs: all nodes that waited for a round have left it, the last of them by itself.";
    "round_timed_out" "Native runs: a round was not complete in time.";
    "round_extended" "Native runs: an operator gave the round more time.";
    "join_refused" "Native runs: a node may not join: the run is closed, its rank is taken or cannot be, its parameters differ, or there are too many nodes.";
    "node_failed" "Native runs: a worker failed, and its agent closed the run and left. The first failure of a round is told, with those that followed within 2 s, the nodes that are still in it, and an operator's reset of its store.";
    "run_closed" "Native runs: a node or an operator closed the run.";
    "round_adopted" "Native runs: the server was restarted, and goes on with the round that the nodes reported.";
    "mixed_releases" "Native runs: the nodes have different releases of PyTorch.";
    "no_store" "Native runs: there is no store for the workers of a round.";
    }
}
