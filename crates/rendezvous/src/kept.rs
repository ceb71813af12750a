//! What a restarted server must know of the runs: the terms, the complete round, and its nodes.
//!
//! A forming round is not kept: its nodes ask again until they get an answer, so they come back by
//! themselves. A round that was learned from its nodes is not kept either: they report it again.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::run::{Closed, Current, Member, Run, Seat, Work};
use super::{Break, Label, NodeInfo, Participant, Payload, Rendezvous, Round, Terms, Who, Why};
use rallypoint_protocol::ids::{RunId, Timestamp, count};

/// The record of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    terms: Terms,
    settled_by: Option<Who>,
    last_round: u64,
    /// Who closed it.
    closed: Option<String>,
    /// How many of the last round's nodes have done their work, and how many nodes it had.
    succeeded: u32,
    nodes: u32,
    round: Option<RoundRecord>,
    /// An operator has asked to forget the run.
    #[serde(default)]
    is_to_go: bool,
    /// How much more time an operator gave the forming round.
    #[serde(default)]
    more_time: Duration,
}

/// The complete round of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RoundRecord {
    number: u64,
    nodes: u32,
    took: Duration,
    /// Why it is to be given up.
    broken: Option<String>,
}

/// The record of a node of a complete round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    round: u64,
    node: Label,
    info: NodeInfo,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<Payload>,
    watched: bool,
    /// Its join, if it is still in the round.
    join: Option<JoinRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct JoinRecord {
    id: Box<str>,
    /// The rank that it asked for.
    rank: Option<u32>,
}

/// The kept part of a run, in a few values: if they change, the record must be written again.
#[derive(Debug, PartialEq)]
pub(super) struct KeptMark {
    round: Option<u64>,
    is_broken: bool,
    is_closed: bool,
    last_round: u64,
    succeeded: u32,
    is_to_go: bool,
    more_time: Duration,
}

/// A change that the journal must be told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptChange {
    /// The record of a run, and of some of its nodes, by rank.
    Run(RunId, Box<RunRecord>, Vec<(u32, MemberRecord)>),
    /// A run was forgotten. It never had more nodes than this.
    Forgotten(RunId, u32),
}

impl RunRecord {
    /// The number of the round that needs a store, and whether it has nodes that send heartbeats.
    pub fn store(&self, members: &[MemberRecord]) -> Option<(u64, bool)> {
        let round = self.round.as_ref().filter(|_| self.terms.store && self.closed.is_none())?;
        Some((round.number, members.iter().any(|member| member.watched)))
    }
}

impl Current {
    fn is_kept(&self) -> bool {
        self.adoption.is_none()
    }
}

/// A node tries again after this time at the latest, however long the server was away.
const RETRIED: Duration = Duration::from_secs(6);

impl Run {
    pub(super) fn kept_mark(&self) -> KeptMark {
        let current = self.current.as_ref().filter(|current| current.is_kept());
        KeptMark {
            round: current.map(|current| current.round.number),
            is_broken: current.is_some_and(|current| current.broken.is_some()),
            is_closed: self.closed.is_some(),
            last_round: self.last_round,
            succeeded: self.work.succeeded,
            is_to_go: self.forget_soon,
            more_time: self.more_time,
        }
    }

    fn record(&self) -> RunRecord {
        let current = self.current.as_ref().filter(|current| current.is_kept());
        RunRecord {
            terms: self.terms,
            settled_by: self.settled_by.clone(),
            last_round: self.last_round,
            closed: self.closed.as_ref().map(|closed| closed.by.clone()),
            succeeded: self.work.succeeded,
            nodes: self.work.nodes,
            round: current.map(|current| RoundRecord {
                number: current.round.number,
                nodes: count(current.round.participants.len()),
                took: current.round.took,
                broken: current.broken.as_ref().map(Break::to_string),
            }),
            is_to_go: self.forget_soon,
            more_time: self.more_time,
        }
    }

    fn member_record(&self, rank: u32) -> Option<MemberRecord> {
        let current = self.current.as_ref().filter(|current| current.is_kept())?;
        let participant = current.round.participants.get(rank as usize)?;
        let member = self.members.get(&participant.node).filter(|member| member.seat == Seat::InRound(rank));
        Some(MemberRecord {
            round: current.round.number,
            node: participant.node.clone(),
            info: participant.info.clone(),
            payload: participant.payload.clone(),
            watched: participant.watched,
            join: member.map(|member| JoinRecord { id: member.join_id.clone(), rank: member.rank }),
        })
    }

    /// What has changed. Clears the list of `moved` ranks.
    fn change(&mut self) -> KeptChange {
        let mut moved = std::mem::take(&mut self.moved);
        moved.sort_unstable();
        moved.dedup();
        let members: Vec<_> =
            moved.into_iter().filter_map(|rank| Some((rank, self.member_record(rank)?))).collect();
        self.most_kept = members.last().map_or(0, |(rank, _)| rank.saturating_add(1)).max(self.most_kept);
        KeptChange::Run(self.id.clone(), Box::new(self.record()), members)
    }

    /// Fills a new run from its records.
    fn restore(&mut self, record: RunRecord, members: Vec<MemberRecord>, now: Timestamp) {
        let RunRecord {
            terms,
            settled_by,
            last_round,
            closed,
            succeeded,
            nodes,
            round,
            // The rest is what an operator asked for.
            is_to_go,
            more_time,
        } = record;
        (self.forget_soon, self.more_time) = (is_to_go, more_time);
        (self.terms, self.settled_by, self.last_round) = (terms, settled_by, last_round);
        self.restarted = Some(now);
        self.closed = closed.map(|by| Closed { by, at: now });
        let finished = (nodes > 0 && succeeded == nodes).then_some(now);
        self.work = Work { nodes, succeeded, finished, failed: false };
        self.most_kept = count(members.len());
        let Some(round) = round else { return };
        let members: Vec<_> = members.into_iter().filter(|member| member.round == round.number).collect();
        if members.len() != round.nodes as usize {
            // Its nodes will report it. Its number stays taken, so no other round gets that number.
            self.unreported = Some(round.number);
            return;
        }
        let (mut present, mut watched) = (0_u32, 0_u32);
        for (rank, member) in (0..).zip(&members) {
            let Some(join) = &member.join else { continue };
            present = present.saturating_add(1);
            watched = watched.saturating_add(member.watched.into());
            if let Some(asked) = join.rank.filter(|_| member.watched) {
                self.ranks.insert(asked, member.node.clone());
            }
            let (info, id) = (member.info.clone(), join.id.clone());
            let seated = Member::in_round(info, id, member.watched, rank, now);
            let silence_published = self.terms.late_after() < RETRIED;
            self.seat(
                member.node.clone(),
                Member { rank: join.rank, unheard: true, silence_published, ..seated },
            );
        }
        let participants: Vec<_> = members
            .into_iter()
            .map(|it| Participant { node: it.node, info: it.info, payload: it.payload, watched: it.watched })
            .collect();
        self.current = Some(Current {
            memory: participants.iter().map(Participant::memory).sum(),
            present,
            watched,
            broken: round.broken.map(|why| Why::BeforeRestart(why).into()),
            adoption: None,
            round: Arc::new(Round {
                run_id: self.id.clone(),
                number: round.number,
                terms,
                participants,
                completed: now,
                took: round.took,
            }),
        });
        self.holds_store = terms.store;
        self.idle_since = (self.live() == 0).then_some(now);
        self.watch_for(now);
    }
}

impl Rendezvous {
    /// From now on, changes are kept for [`Self::take_kept`].
    pub fn keep_changes(&mut self) {
        self.unkept.get_or_insert_default();
    }

    /// The changes since the last call.
    pub fn take_kept(&mut self) -> Vec<KeptChange> {
        let Some(unkept) = &mut self.unkept else { return Vec::new() };
        let unkept = std::mem::take(unkept);
        let mut changes: Vec<_> = std::mem::take(&mut self.gone)
            .into_iter()
            .map(|(run, most)| KeptChange::Forgotten(run, most))
            .collect();
        changes.extend(unkept.iter().filter_map(|run| Some(self.runs.get_mut(run)?.change())));
        changes
    }

    /// The whole record of a run, once more.
    pub fn kept(&mut self, run: &RunId) -> Option<KeptChange> {
        let run = self.runs.get_mut(run)?;
        run.moved
            .extend(0..run.current.as_ref().map_or(0, |current| count(current.round.participants.len())));
        Some(run.change())
    }

    /// The ids of all runs.
    pub fn run_ids(&self) -> Vec<RunId> {
        self.runs.keys().cloned().collect()
    }

    /// Restores a run and its nodes, by rank, from the records of the previous server. Returns its complete
    /// round. Its nodes count as alive until they are silent for too long.
    pub fn restore(
        &mut self,
        id: &RunId,
        record: RunRecord,
        members: Vec<MemberRecord>,
        now: Timestamp,
    ) -> Option<Arc<Round>> {
        let mut run = Run::new(id.clone(), record.terms, now);
        run.restore(record, members, now);
        let round = run.current.as_ref().map(|current| Arc::clone(&current.round));
        self.timers.extend(run.check_at().map(|at| (at, id.clone())));
        self.changed.insert(id.clone());
        self.begin(run);
        round
    }
}
