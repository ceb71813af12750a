//! What is known of a run: of its round, and over all its rounds.
//!
//! A new round or life is assigned as a whole, so that no field is forgotten. The fields change in this
//! folder; others read them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::epoch::Epoch;
use crate::facts::missing::Absent;
use crate::facts::run::node::TrackedNode;
use crate::reason::{Evidence, Names, Presence};
use rallypoint_api::{ExitCounts, Expected, RunState, TimelineEvent};
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp};

/// Something that happened in a run.
#[derive(Debug, Clone)]
pub(crate) struct TimelineEntry {
    pub(crate) at: Timestamp,
    pub(crate) code: String,
    pub(crate) text: String,
}

impl TimelineEntry {
    pub(crate) fn shown(&self, run_id: &str, epoch: Epoch) -> TimelineEvent {
        let Self { at, code, text } = self.clone();
        TimelineEvent { at: epoch.unix(at), run_id: Some(run_id.to_owned()), code, text }
    }
}

/// The ranks that a node's workers were given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AssignedRanks {
    /// The first of them.
    pub(crate) base: u32,
    pub(crate) world_size: u32,
}

/// What is known of one round.
#[derive(Debug, Default)]
pub(crate) struct RoundFacts {
    pub(crate) number: u64,
    /// It had begun before the server was restarted. Of what its nodes did then only that is known which
    /// their keys still say: not who had arrived at the exit barrier.
    pub(crate) is_of_before: bool,
    /// The first sign of it.
    pub(crate) started: Option<Timestamp>,
    /// Native: its first join that this server knows of.
    pub(crate) began: Option<Timestamp>,
    pub(crate) completed: Option<Timestamp>,
    /// Somebody waits for what one of its nodes is to write.
    pub(crate) is_awaited: bool,
    /// Unix time in seconds, by the clock of the nodes.
    pub(crate) deadline: Option<f64>,
    /// Nodes that made room when memory was short: only their number is known.
    pub(crate) let_go: u32,
    /// Nodes in it when it was complete.
    pub(crate) group: Option<u32>,
    pub(crate) most_joined: u32,
    /// The node that was it.
    pub(crate) most_present: Names,
    /// Nodes that rank 0's agent waits for.
    pub(crate) role_nodes: Option<u32>,
    /// Static: ranks of nodes that node rank 0 does not count on, since when, until that is reported.
    pub(crate) beyond: BTreeMap<u32, Timestamp>,
    /// Node ranks that have written their role.
    pub(crate) roles: BTreeSet<u32>,
    pub(crate) assigned: BTreeMap<u32, AssignedRanks>,
    pub(crate) assigned_at: Option<Timestamp>,
    /// Static: the attempt before, with which some may go on, had begun before the server was restarted.
    pub(crate) follows_one_of_before: bool,
    /// Native: its store was on this port, and was closed.
    pub(crate) closed_store: Option<u16>,
    /// Agents at the exit barrier.
    pub(crate) exit: BTreeSet<ConnId>,
    pub(crate) exit_since: Option<Timestamp>,
    pub(crate) exit_done: Option<Timestamp>,
    /// How many have arrived at the exit barrier, as its own counter says.
    pub(crate) exit_counted: Option<u32>,
    pub(crate) closed: Option<Timestamp>,
    /// The agent that closed it.
    pub(crate) closed_by: Option<String>,
    /// Agents that came to it since then, and are not told of yet.
    pub(crate) newcomers: Vec<Evidence>,
    /// The agent whose arrival made it complete: it asks for no more nodes than there are.
    pub(crate) filled_by: Option<String>,
    pub(crate) over_at: Option<Timestamp>,
    /// c10d: when nodes that others had taken out were heard from again.
    pub(crate) back: Option<Timestamp>,
    /// All that had been written for it was dropped then; c10d: and nobody has written its state again.
    pub(crate) reset: Option<Timestamp>,
}

/// What is known of one life of a run, over all its rounds, until it is started again.
#[derive(Debug, Default)]
pub(crate) struct LifeFacts {
    /// All of whom something is known, whatever they are to the round.
    pub(crate) nodes: Vec<TrackedNode>,
    pub(crate) earlier_size: Option<u32>,
    /// Since when nodes had waited to be taken in when the round before ended.
    pub(crate) awaited_since: Option<Timestamp>,
    /// Native: the last complete round that was over.
    pub(crate) over: Option<Over>,
    /// When the last complete round before this one was complete.
    pub(crate) earlier_completed: Option<Timestamp>,
    /// When the last connection closed.
    pub(crate) all_gone: Option<Timestamp>,
    /// Its connections were to the last server, and nobody has come since.
    pub(crate) ended_with_server: bool,
    /// Its processes had met before the server was restarted at this time, of which it knows nothing else.
    pub(crate) had_met_before: Option<Timestamp>,
    /// With some of its processes contact was lost.
    pub(crate) was_cut_off: bool,
    /// Processes that gave up on others, and when: that they end then is no other's fault.
    pub(crate) gave_up: BTreeMap<ConnId, Timestamp>,
    /// Nodes whose connections closed, and processes whose hosts did not answer, not yet reported.
    pub(crate) dying: Vec<Dying>,
    /// Static: nodes that start their workers again, not yet reported.
    pub(crate) restarting: Option<Restarting>,
    /// It was reported that the workers meet in another store.
    pub(crate) told_elsewhere: bool,
    /// Where its workers are to meet, as rank 0's agent published it: from torch 2.15 on in the first round
    /// only.
    pub(crate) master_addr: Option<String>,
    pub(crate) master_port: Option<String>,
    /// Its workers use a store of this server.
    pub(crate) has_workers_here: bool,
    /// c10d: the longest time between two heartbeats of a node.
    pub(crate) beat: Option<Duration>,
    /// Native: nodes that have finished in a round that was given up then, and wait at its exit barrier.
    pub(crate) at_earlier_exit: BTreeMap<ConnId, TrackedNode>,
    /// A node that came to a round that was full for others, and asks for more nodes than they do.
    pub(crate) asks_for_more: Option<Names>,
}

/// A node, or a process without an agent, whose connection closed, not yet reported.
#[derive(Debug, Clone)]
pub(crate) struct Dying {
    pub(crate) closed: Evidence,
    /// The round then, and whether the node was in it: it was complete.
    pub(crate) round: u64,
    pub(crate) in_round: bool,
    /// Contact with it was lost.
    pub(crate) is_cut_off: bool,
    /// It had given up on another node just before.
    pub(crate) gave_up: bool,
}

/// Nodes that start their workers again.
#[derive(Debug)]
pub(crate) struct Restarting {
    /// The rank that had ended first then, and how long before.
    pub(crate) first_ended: Option<(String, Elapsed)>,
    pub(crate) nodes: Vec<Evidence>,
}

/// How a complete native round was over.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) round: u64,
    pub(crate) at: Timestamp,
    pub(crate) how: String,
    /// How many nodes were lost then, and how many are left.
    pub(crate) lost: u32,
    pub(crate) left: u32,
}

/// What only a native run has.
#[derive(Debug)]
pub(crate) struct Native {
    /// Its processes meet again without being started again.
    pub(crate) is_elastic: bool,
    pub(crate) state: RunState,
    pub(crate) expected: Expected,
    /// The store that its workers use.
    pub(crate) store: Option<u16>,
    /// The store in which those met that are known. While the next round forms it is still the last one's.
    pub(crate) met_at: Option<u16>,
    /// The round that forms is to be given up soon.
    pub(crate) is_expiring: bool,
    /// When the round that forms closes: with the nodes that are there, or for want of nodes. `None` while
    /// that depends on nodes of the last one.
    pub(crate) closes_at: Option<Timestamp>,
    /// What the round that forms waits for.
    pub(crate) waits: Option<String>,
    /// Whether enough are there.
    pub(crate) is_enough: bool,
    /// What was seen last of those that the round which forms lacks. `None`: they were refused.
    pub(crate) lacks: Option<Presence>,
    /// Some node has not been heard from when it should have been: the rendezvous tells which.
    pub(crate) is_unheard: bool,
    pub(crate) missing: Vec<Absent>,
    /// Nodes of the last round that were told to join again, and have not yet; and those that came anew, and
    /// get a place when the process of before is given up.
    pub(crate) on_their_way: u32,
    /// Others of its nodes have finished, and have left or wait at its exit barrier: they do not join again.
    pub(crate) finished: u32,
    /// Nodes that have done their work, once there is one.
    pub(crate) exit: Option<ExitCounts>,
    /// Nodes without a place.
    pub(crate) spares: Vec<Spare>,
    /// Nodes of the round that have not reported since the server was restarted.
    pub(crate) unreported: u32,
}

/// A node without a place in the round.
#[derive(Debug)]
pub(crate) struct Spare {
    /// The rank that it asked for, which another node has.
    pub(crate) of_rank: Option<u32>,
    /// It came, under its name.
    pub(crate) joined: Evidence,
}
