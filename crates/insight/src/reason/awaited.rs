//! The process that others wait for: where it is, who else is not there, and what to do about it.

use serde::Serialize;

use super::values::{Names, ONE_JOB, PodSince, Whereabouts, for_each};
use super::words::{clients, if_any};
use rallypoint_protocol::ids::Elapsed;

pub(super) const SAME_WORLD_SIZE: &str =
    "start every process with the same WORLD_SIZE (--nnodes, --nproc-per-node)";
/// A pod starts its command when the gate has let it go.
pub(crate) const ANNOUNCED_NODE: &str = "look at the log of that node's pod, which has announced itself: has its command ended, what does it do before it joins?";
pub(crate) const ANNOUNCED_NODES: &str = "look at the logs of those nodes' pods, which have announced themselves: have their commands ended, what do they do before \
     they join?";
pub(crate) const MISSING_NODE: &str =
    "look at the missing node's pod: is it scheduled, has its image come, does it reach this server?";
pub(crate) const MISSING_NODES: &str =
    "look at the missing nodes' pods: are they scheduled, have their images come, do they reach this server?";
/// A node that is missing may have come as another.
pub(super) const NODE_TWICE: &str = "give each agent its own --node-rank; if the missing ones are others, look whether their pods are scheduled, and reach this \
     server";
pub(super) const RANK_TWICE: &str = "give each process its own RANK; if the missing ones are others, look whether they have started, or look \
     why they ended";
pub(super) const OTHER_PORT: &str =
    "if the ranks in the other store are of this job, start all its processes with the same MASTER_PORT";
pub(super) const LINK_AWAY: &str = "look whether that pod still runs, at the network between it and this server, and at the log of its \
                         relay; its clients go on when the link is back";

/// What to do about ranks that have not come.
pub(super) fn missing_ranks(missing: &Names) -> &'static str {
    for_each(
        missing,
        "look at the process with that rank: has it started, does it reach this server?",
        "look at the processes with those ranks: have they started, have they ended, do they reach this server?",
    )
}

/// What is known where a chain of waits ends with a process that does not write what it should.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Awaited {
    /// Where it is.
    pub whereabouts: Whereabouts,
    /// All ranks of which nobody is there, or all nodes that have not come.
    pub missing: Names,
    /// Processes that connected and ended without telling their rank.
    pub ended: Names,
    /// Ranks of as large a job in other stores, where those are missing that are here.
    pub elsewhere: Names,
    /// Other runs that are not complete: with them this one would be.
    pub apart: Names,
    /// Others that go on with the attempt before.
    pub staying: Names,
    /// How many processes wait for it.
    pub waiters: usize,
    /// For how long.
    pub waited: Elapsed,
}

/// Who has to write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// The agent of node rank 0.
    FirstAgent,
    Agent,
    /// The worker with rank 0.
    FirstRank,
    Rank,
}

impl Awaited {
    /// `3 processes have waited 30 s`.
    pub(super) fn waits(&self) -> String {
        format!("{} {}", clients(self.waiters), self.waited)
    }

    /// Where it is, in words.
    pub(super) fn because(&self) -> String {
        let Self { whereabouts, staying, .. } = self;
        let is_one_of_them = *whereabouts == Whereabouts::NotAgain;
        match (staying.count(), is_one_of_them) {
            (0, _) => whereabouts.to_string(),
            (1, true) => format!("{whereabouts}, as {staying} does"),
            (_, true) => format!("{whereabouts}, as {staying} do"),
            (1, false) => format!("{whereabouts}; {staying} goes on with the attempt before"),
            (_, false) => format!("{whereabouts}; {staying} go on with the attempt before"),
        }
    }

    /// Who else is not there, in words.
    pub(super) fn besides(&self, of_agent: bool) -> String {
        let Self { whereabouts, missing, ended, elsewhere, apart, .. } = self;
        let missing = match (whereabouts, missing.count()) {
            (_, 0)
            | (
                Whereabouts::NotTold { .. }
                | Whereabouts::NeverCame
                | Whereabouts::Announced { .. }
                | Whereabouts::NotSinceRestart { .. }
                | Whereabouts::Twin { .. }
                | Whereabouts::NodeFinished
                | Whereabouts::NodeGone { .. },
                1,
            ) => String::new(),
            (
                Whereabouts::NeverCame
                | Whereabouts::Announced { .. }
                | Whereabouts::NotSinceRestart { .. }
                | Whereabouts::Twin { .. },
                _,
            ) => format!("; missing: {missing}"),
            // One of them may be a process that has told no rank.
            _ => format!("; not published: {missing}"),
        };
        let without = if of_agent { "publishing its role" } else { "telling a rank" };
        let ended = if_any(&format!("; connected and ended without {without}: "), ended);
        let elsewhere = if_any("; in another store: ", elsewhere);
        format!("{missing}{ended}{elsewhere}{}", if_any("; not complete either: ", apart))
    }

    /// What to do about it.
    pub(super) fn remedy(&self, writer: Writer) -> &'static str {
        let is_rank = matches!(writer, Writer::FirstRank | Writer::Rank);
        match &self.whereabouts {
            Whereabouts::Gone { .. } | Whereabouts::NodeGone { is_cut_off: false, .. }
                if !self.staying.is_empty() =>
            {
                "look why that process ended; what has come again cannot meet those that go on: restart all agents, or all \
                 ranks, of the job together"
            }
            Whereabouts::Gone { .. } if is_rank && !self.missing.is_empty() => {
                "look why that process ended, and at those whose addresses are not there: have they started, or ended as \
                 well? The others go on only when all are there, or they are restarted"
            }
            Whereabouts::CutOff { .. } => {
                "look at the host of that process: is it gone, or cut off from this server? The others go on only when it is \
                 started again, or they are restarted"
            }
            Whereabouts::Gone { .. } => {
                "look why that process ended, or left the group; the others go on only when it comes back or they are restarted"
            }
            Whereabouts::GoneForRound { is_cut_off: true, .. } => {
                "look at that node: is it gone, or cut off from this server? Those that wait for it end after their time-out \
                 (--rdzv-conf read_timeout), and meet in the next round when all are started again"
            }
            Whereabouts::NodeGone { is_cut_off: true, .. } => {
                "look at that node: is it gone, or cut off from this server? Its ranks do not come to this attempt: restart all \
                 agents of the job together"
            }
            Whereabouts::NodeGone { .. } => {
                "look why that node ended; its ranks do not come to this attempt any more: restart all agents of the job together"
            }
            Whereabouts::GoneForRound { has_heir: true, .. } => {
                "look why that process ended; those that wait for it end after their time-out (--rdzv-conf read_timeout): started \
                 again, they meet the new one in the next round"
            }
            Whereabouts::GoneForRound { has_heir: false, .. } => {
                "look why that process ended; those that wait for it end after their time-out (--rdzv-conf read_timeout), and \
                 meet in the next round when all are started again"
            }
            Whereabouts::NodeFinished => {
                "what has come again meets nobody of those that are done: restart all agents of the job together, if it is to go on"
            }
            Whereabouts::NodeSilent { link: None, .. } => {
                "look at that node: is it frozen, overloaded, or cut off from this server? The others wait for its ranks until \
                 their time-out"
            }
            Whereabouts::Twin { .. } if !is_rank => NODE_TWICE,
            Whereabouts::Twin { .. } => RANK_TWICE,
            Whereabouts::Dropped { .. } => {
                "it does not publish it again by itself: restart all processes of the job together"
            }
            Whereabouts::Away { .. } | Whereabouts::NodeSilent { link: Some(_), .. } => LINK_AWAY,
            Whereabouts::Disputed => SAME_WORLD_SIZE,
            Whereabouts::Waits { .. } => {
                "look which part of the program should write that key, and whether all ranks go the same way there"
            }
            _ if !self.apart.is_empty() => ONE_JOB,
            _ if !self.elsewhere.is_empty() => OTHER_PORT,
            Whereabouts::NeverCame if !self.ended.is_empty() && !is_rank => for_each(
                &self.ended,
                "look at the log of the process that ended: was it the agent of the missing node? Else look whether that node's \
                 pod runs and reaches this server",
                "look at the logs of the processes that ended: was one of them the agent of the missing node? Else look whether \
                 that node's pod runs and reaches this server",
            ),
            Whereabouts::Announced { since: PodSince::LinkAway { .. }, .. } => LINK_AWAY,
            Whereabouts::Announced { since: PodSince::Namesake, .. } => {
                "give each pod a name of its own: that is POD_NAME where it is set, else the host's name"
            }
            Whereabouts::Announced { since: PodSince::RelayLeft { .. }, .. } => {
                "look at the log of that pod: its relay leaves when its command has ended. Did an import fail, was there too \
                 little memory, was it stopped? The others wait until it is started again, or until their time-outs"
            }
            Whereabouts::Announced { since: PodSince::Silent { .. } | PodSince::LinkLost { .. }, .. } => {
                "look whether that pod still runs, and at its log and events; if it does, at the network between it and this \
                 server. The others wait until it is started again, or until their time-outs"
            }
            Whereabouts::Announced { since: PodSince::Nothing, .. } => {
                "look at the log of that pod: does its command run, what does it do before it connects (imports, a name look-up), \
                 and does it reach the store?"
            }
            Whereabouts::NeverCame | Whereabouts::Unknown if !self.ended.is_empty() => for_each(
                &self.ended,
                "look at the log of the process that ended: a failed import, too little memory, a wrong interface, a RANK \
                 that is not below WORLD_SIZE? Where that was another rank, look whether the missing one's process runs \
                 and reaches this server",
                "look at the logs of the processes that ended: a failed import, too little memory, a wrong interface, a \
                 RANK that is not below WORLD_SIZE? Where those were other ranks, look whether the processes of the \
                 missing ones run and reach this server",
            ),
            Whereabouts::NotTold { .. } if !is_rank => {
                "look at the processes that have told no rank: what do they do, is one the agent of the missing node, and is it \
                 stopped or overloaded? Else look whether that node's pod runs and reaches this server"
            }
            Whereabouts::NotTold { candidates, gone_for: Some(_), .. } if !candidates.is_empty() => {
                "look why the process that had this rank ended, and at those that have told no rank: what do they do before \
                 they publish their address (a name look-up, the network interface, the program's own work)?"
            }
            Whereabouts::NotTold { candidates, .. }
                if !candidates.is_empty() && candidates.count() < self.missing.count() =>
            {
                "look at the processes that have told no rank: what do they do before they publish their address (a name \
                 look-up, the network interface, the program's own work), or are they stopped? And the other ranks: have \
                 they started, have they ended, do they reach this server?"
            }
            Whereabouts::NotTold { .. } => {
                "look at the processes that have told no rank: what do they do before they publish their address (a name \
                 look-up, the network interface, the program's own work), or are they stopped?"
            }
            Whereabouts::MayBe { candidates, .. } => for_each(
                candidates,
                "look at that process: is it still importing or loading, has it gone another way than the others, or does it wait \
                 for processes that have not connected, as rank 0 of env:// and tcp:// does where nobody hosts the store for it?",
                "look at those processes: are they still importing or loading, have they gone another way than the others, or does \
                 rank 0 wait for processes that have not connected, as it does with env:// and tcp:// where nobody hosts the \
                 store for it?",
            ),
            Whereabouts::MadeOtherwise { .. } => {
                "torch counts in each process how often it makes its group, and those with other counts never meet: start all \
                 ranks anew instead of trying again in the same process"
            }
            Whereabouts::NotSinceRestart { .. } => {
                "those who had met before the restart and go on do not come again: restart all processes of the job together; else \
                 look whether that one has started, and reaches this server"
            }
            Whereabouts::Met { .. } => {
                "stop what came last, or give it its own store (--listen twice, or POST /api/v1/stores): those who have met do \
                 not wait for it. If it is to take part, restart all processes of the job together"
            }
            Whereabouts::NotAgain => {
                "what has come again cannot meet those that go on: restart all agents, or all ranks, of the job together"
            }
            Whereabouts::RoundOver { .. } => {
                "look why the round was given up; those that wait in it end after their time-out (--rdzv-conf read_timeout): \
                 started again, they meet in the next round"
            }
            Whereabouts::LeftRound => {
                "look why that node left: was it frozen, or cut off? The others give up after their time-out"
            }
            Whereabouts::Busy | Whereabouts::Alike if is_rank => {
                "look at that process: is it loading or computing still, is it cut off from this server, or have the ranks taken \
                 different ways?"
            }
            Whereabouts::Busy | Whereabouts::Alike => {
                "look at that node's agent and its log: is it stopped, overloaded, or cut off from this server?"
            }
            Whereabouts::Joined => {
                "look at that node's agent and its log: is it stopped or overloaded, does it reach the ports of --store-ports?"
            }
            Whereabouts::NeverCame if writer == Writer::Agent => MISSING_NODE,
            Whereabouts::NeverCame if writer == Writer::FirstAgent => {
                "look at the pod of node rank 0: is it scheduled, has its image come, does it reach this server, has it the same \
                 --rdzv-id? --node-rank begins at 0"
            }
            _ => match writer {
                Writer::FirstAgent | Writer::Agent => "look at the log of that node's agent",
                Writer::FirstRank => for_each(
                    &self.missing,
                    "look at rank 0's process: has it started, is it still importing or loading, did it fail to bind its \
                     port (EADDRINUSE)?",
                    "look at the processes of the missing ranks: have they started, are they still importing or loading, did \
                     rank 0's fail to bind its port (EADDRINUSE)?",
                ),
                Writer::Rank => missing_ranks(&self.missing),
            },
        }
    }
}
