//! The table of rules: one row for each kind of explanation, in the order of `docs/explanations.md`.

use std::time::Duration;

use crate::reason::presence::{AWAY, GONE, MISSING_NODE, MISSING_POD, SAME_WORLD_SIZE};
use rallypoint_api::Severity;

/// One kind of explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Its name for programs.
    pub code: &'static str,
    /// How much it usually matters.
    pub severity: Severity,
    /// When it is usually told.
    pub(crate) hold: Hold,
    /// What to look at, unless what was seen tells better.
    pub(crate) look_at: &'static str,
}

/// How long something has to last before it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It has happened: told once.
    AtOnce,
    /// As [`Hold::AtOnce`]; it may happen again and again, and is told with growing pauses then.
    Again,
    /// Told after `--explain-after`, and again with growing pauses.
    Lasting,
    /// As [`Hold::Lasting`], after 5 s at the latest: it is no guess.
    Soon,
    /// As [`Hold::Lasting`]; it has lasted for long enough when it is found.
    Lasted,
}

impl Hold {
    pub(crate) fn lasts(self, explain_after: Duration) -> Duration {
        const SOON: Duration = Duration::from_secs(5);
        match self {
            Self::AtOnce | Self::Again | Self::Lasted => Duration::ZERO,
            Self::Lasting => explain_after,
            Self::Soon => explain_after.min(SOON),
        }
    }
}

/// A row: the code in Rust and in documents, how much it usually matters, when it is told, what to look at.
macro_rules! rules {
    ($($code:ident $name:literal $severity:ident $hold:ident $look_at:expr;)*) => {
        /// A kind of explanation: its place in [`RULES`].
        #[expect(missing_docs, reason = "docs/explanations.md says what each of them means")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code { $($code),* }

        /// All rules, in the order of the page.
        pub const RULES: &[Rule] = &[$(Rule {
            code: $name,
            severity: Severity::$severity,
            hold: Hold::$hold,
            look_at: $look_at,
        }),*];
    };
}

impl Code {
    /// Its row.
    pub const fn rule(self) -> &'static Rule {
        &RULES[self as usize]
    }

    /// Its name for programs.
    pub const fn name(self) -> &'static str {
        self.rule().code
    }
}

rules! {
    RunStarted "run_started" Info AtOnce "";
    RoundComplete "round_complete" Info AtOnce "";
    RunFinished "run_finished" Info AtOnce "";
    RunEnded "run_ended" Info AtOnce
        "success cannot be seen here: the exit codes tell, that of what ended first before all";
    NodeBack "node_back" Info AtOnce "";
    RoundOver "round_over" Warning AtOnce
        "look for the first error in the logs of all, and first at what is named: its workers failed or \
         were restarted, or it is not heard from";
    WorkersElsewhere "workers_elsewhere" Info AtOnce
        "to see their ranks, and to be free of rank 0's host, let the workers meet here: \
         docs/launch-modes.md";
    Lost "lost" Error AtOnce GONE;
    NodeSilent "node_silent" Warning Lasted GONE;
    NotBack "not_back" Warning AtOnce
        "without a relay (rallypoint run) no process connects again, and each fails at its next request: \
         look at its log, and start all processes of the job again, unless they go on";
    LinkAway "link_away" Warning AtOnce AWAY;
    RanksEnded "ranks_ended" Info Soon
        "if they were not meant to end before the others, look at their logs: a crash, a rank that they \
         could not connect to? The store cannot tell success from a crash";
    AddressUnreachable "address_unreachable" Warning Soon
        "give the interface that the hosts share: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME; a host's name \
         that leads to 127.0.1.1 has that from /etc/hosts";
    PodsMissing "pods_missing" Warning Lasting MISSING_POD;
    PodsIdle "pods_idle" Info Lasting
        "look at the pods' logs: are they still importing, loading or downloading? The store is needed \
         after that only. A relay leaves when its command has ended";
    NodesMissing "nodes_missing" Warning Lasting MISSING_NODE;
    RoundDeadline "round_deadline" Warning AtOnce
        "start the missing nodes, and all others again if the round was given up; more time: `rallypoint \
         ctl extend`, --join-timeout from the start, and the nodes' own (join --timeout)";
    Waiting "waiting" Warning Lasting
        "look for the nodes or ranks that have not connected: have they started, do they reach this server, \
         has each its own --node-rank or RANK, and have all the same --nnodes or WORLD_SIZE?";
    WaitingForKey "waiting_for_key" Info Lasting
        "look which part of the program writes that key, whether its name is the same there, and what the \
         processes do that are not there or have ended";
    WaitingAtBarrier "waiting_at_barrier" Info Lasting
        "look at the processes that have not arrived: are they busy, have they ended or gone another way, \
         or does the barrier count on more than there are?";
    ExitBarrier "exit_barrier" Warning Lasting
        "look at the logs of the nodes that have not finished: what do their workers still do? Agents wait \
         for them up to 300 s, and end then";
    StandsBy "stands_by" Info Lasting
        "spares get the places of nodes that leave (c10d notices that 15 s after the last heartbeat); if \
         these are to join, raise the maximum (--nnodes, or what rallypoint ctl expect has set); if they are \
         of another job, that needs another --rdzv-id (--run-id)";
    GaveUp "gave_up" Error Again
        "most programs end after that; look at the process that should have written the key, and at the \
         processes that were not there. For longer waits set --rdzv-conf read_timeout (agents) or \
         init_process_group's timeout (workers)";
    NnodesDiffer "nnodes_differ" Error AtOnce
        "start every node again with the same --nnodes, or stop what came last; a second job needs another \
         --rdzv-id";
    WorldSizesDiffer "world_sizes_differ" Error AtOnce SAME_WORLD_SIZE;
    DuplicateRank "duplicate_rank" Error AtOnce
        "give each process its own RANK and each node its own --node-rank (from 0 on), stop the process \
         that should not be there, and restart the others unless all had met; a second job needs its own \
         store (--listen twice, or POST /api/v1/stores)";
    TwoJobs "two_jobs" Error AtOnce
        "give each job its own store (--listen twice, or POST /api/v1/stores), and start again what has not \
         met or fails; what are parts of one job need the same --rdzv-id, or MASTER_PORT and WORLD_SIZE";
    TwoBackends "two_backends" Error AtOnce
        "start every node with the same --rdzv-backend; a second job needs another --rdzv-id";
    TorchVersionsDiffer "torch_versions_differ" Warning AtOnce
        "use one image on every node; different releases of PyTorch may not understand each other";
    JoinRefused "join_refused" Warning Again
        "start that node with what the others have, and with an id and a rank of its own; if it is \
         of another job, it needs another --rdzv-id (--run-id)";
    RunClosed "run_closed" Warning AtOnce
        "look at that node's log for the first error; workers of other nodes that are not stopped as well \
         wait for its ranks until their own time-outs";
    WaitCycle "wait_cycle" Error AtOnce "none of them can go on: restart them together";
    StoreReset "store_reset" Error AtOnce RESET;
    WrongPort "wrong_port" Warning AtOnce
        "give each client its port: health checks, scrapers and --rdzv-backend=rallypoint (HTTP) the admin \
         port, jobs (--rdzv-endpoint, MASTER_PORT) that of a store; TLS another server";
    UnreadableState "unreadable_state" Warning AtOnce
        "the job is not harmed; who has joined cannot be shown. Does another program use this key?";
}

pub(crate) const RESET: &str = "restart all processes of the job together: what was written before the reset \
                                is not written again by itself";
