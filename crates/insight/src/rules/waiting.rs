//! What the waits of a store show, one explanation for each root.

mod awaited;
mod counting;
pub(crate) mod given_up;
pub(crate) mod keys;
pub(crate) mod root;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::facts::{Meeting, RunKey, TrackedNode, TrackedRun, Waiting};
use crate::identity::processes::{Graph, WAITS_SHOWN};
use crate::reason::{Code, Finding, Names, Place, Presence, Reason, SAME_GROUPS, Waits, clients};
use crate::rules::waiting::root::Root;
use rallypoint_protocol::addresses::MOST_RANKS;
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp};
use rallypoint_protocol::keys::{BARRIER, ExpectedWriter, Wanted, sub_group_of, wanted};

/// Processes that may be those which are missing.
const UNTOLD: &str = "connected and ended without telling who they are";
/// All waits for ranks of which nothing was seen are one explanation.
const NEVER_CAME: &str = "ranks that have not come";

/// The run, the number of the meeting, and what the waits are for.
type GroupKey = (RunKey, u32, String);

pub(crate) const NOT_REACHED: &str = "look for ranks that have not started or not reached this call, have \
                                      ended, or make other groups (new_group on all ranks; \
                                      TORCH_DISTRIBUTED_DEBUG and TORCH_DIST_INIT_BARRIER alike)";
/// The deadlock when a node joins a running job.
const TORCH_2_15: &str = "a known fault of torch 2.15: restart all agents, and set \
                          TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every node before nodes join a running job";
/// A process has left the group in which all had met, and makes it again; others have not.
const AGAIN: &str = "all ranks have to leave their group (destroy_process_group) and make it again, as often \
                     as each other: look what those do that have not published again, or restart all \
                     together";

/// Waits of one meeting with one root.
struct Group {
    since: Timestamp,
    root: Root,
    waits: Vec<ConnId>,
    /// The members that are to write what others in sub-groups wait for.
    members: BTreeSet<String>,
}

impl Graph<'_> {
    /// A cycle is reported when each of its waits has lasted this long.
    const CYCLE_AFTER: Duration = Duration::from_secs(2);

    /// Everything that the waits show, one explanation for each root.
    pub(crate) fn explain(&self) -> Vec<(Option<RunKey>, Finding)> {
        let mut groups: HashMap<GroupKey, Group> = HashMap::new();
        // Waits for the same writer have the same root.
        let mut roots: HashMap<(RunKey, u32, Option<u64>, ExpectedWriter, &str), Root> = HashMap::new();
        for (&conn, wait) in
            self.store.waits.iter().filter(|(_, wait)| !self.jobs.links.is_away(wait.view.peer))
        {
            let Some(key) = wait.view.missing.first() else { continue };
            let first = wanted(key);
            let Some(run) = self.run_of(self.store.clients.get(&conn), &first) else { continue };
            // The explanation of the node itself says this.
            if self.jobs.runs.get(&run).is_some_and(|run| Self::without_ranks(run, key).is_some()) {
                continue;
            }
            let meeting = self.jobs.runs.get(&run).map_or(0, |run| self.meeting(conn, run).number);
            let root = roots
                .entry((run.clone(), meeting, first.round, first.writer, first.what))
                .or_insert_with(|| self.root(conn, self.jobs.runs.get(&run)))
                .clone();
            let about = match &root {
                // These are told by their keys.
                Root::At { asked: Wanted { what: BARRIER, .. }, .. } => continue,
                Root::At { asked: Wanted { writer: ExpectedWriter::Rank(_), .. }, seen }
                    if seen.is_unseen() =>
                {
                    NEVER_CAME.to_owned()
                }
                // In a device mesh one rank keeps many groups waiting: each would name the victims in others.
                root if root.of_sub_group().is_some() => "sub-groups".to_owned(),
                Root::At { asked: Wanted { writer, what, round, .. }, .. } => {
                    format!("{writer:?} {what} {round:?}")
                }
                Root::Counting { host, .. } => format!("those that {host:?} counts"),
                Root::Cycle { members, .. } => format!("cycle {:?}", members.iter().min()),
            };
            let (since, waits, members) = (wait.since, Vec::new(), BTreeSet::new());
            let new = Group { since, root: root.clone(), waits, members };
            let group = groups.entry((run, meeting, about)).or_insert(new);
            group.members.extend(root.of_sub_group().map(str::to_owned));
            if let (Some(of_group), Some(of_this)) = (group.root.rank(), root.rank())
                && of_this < of_group
            {
                group.root = root;
            }
            group.waits.push(conn);
            group.since = group.since.min(wait.since);
        }
        let mut told: Vec<_> = groups
            .into_iter()
            .filter_map(|((key, number, mut about), mut group)| {
                group.waits.sort_unstable();
                let run = self.jobs.runs.get(&key)?;
                let meeting = self.meeting(*group.waits.first()?, run);
                if number > 0 {
                    about = format!("{about} of meeting {number}");
                }
                let reason = self.reason(run, meeting, &group)?;
                let waits = group.waits.iter().filter_map(|conn| self.store.waits.get(conn));
                let waits = waits.take(WAITS_SHOWN).map(|wait| self.evidence(wait.view.conn, wait));
                let finding = Finding::new(reason, about, group.since).in_round(group.root.round());
                Some((Some(key), finding.seen(waits)))
            })
            .chain(self.of_unknown_keys())
            .chain(self.groups_that_differ())
            .chain(self.of_answered())
            .chain(self.hosts_of_no_run())
            .chain(self.ranks_not_again())
            .collect();
        told.sort_by(|(a, one), (b, other)| (a, &one.about).cmp(&(b, &other.about)));
        told
    }

    /// Who waits below which sub-group, if ranks wait below different ones.
    fn apart(&self, waits: &[&Waiting]) -> Option<String> {
        let mut below: BTreeMap<String, BTreeSet<(Option<u32>, String)>> = BTreeMap::new();
        for wait in waits {
            let member = self.member(wait).unwrap_or(wait.view.conn);
            let rank = self.store.clients.get(&member).and_then(|client| client.rank);
            let group = sub_group_of(wait.view.missing.first()?)?;
            below.entry(group).or_default().insert((rank, self.who(member)));
        }
        let ranks = |ranks: &BTreeSet<(_, String)>| Names::of(ranks.iter().map(|(_, who)| who.clone()));
        let told: Vec<String> =
            below.iter().map(|(group, of)| format!("{} below {group}", ranks(of))).collect();
        (told.len() > 1).then(|| format!("members of different groups: {}", told.join("; ")))
    }

    fn reason(&self, run: &TrackedRun, meeting: &Meeting, group: &Group) -> Option<Reason> {
        match &group.root {
            Root::Cycle { members, is_elastic } => {
                let since = |conn: &ConnId| self.wait_of(*conn, Some(run)).map(|wait| wait.since);
                let youngest = members.iter().filter_map(since).max()?;
                if self.now.since(youngest) < Self::CYCLE_AFTER {
                    return None;
                }
                let waited = Elapsed(self.now.since(youngest));
                let members = Names::of(members.iter().map(|&member| self.who(member)));
                let reason = Code::WaitCycle
                    .says(format!("deadlock for {waited}: each waits for the next: {members}"))
                    .held(&members);
                Some(reason.when(*is_elastic, |reason| reason.look_at(TORCH_2_15)))
            }
            Root::Counting { host, counted } => {
                self.counts(Some((run, meeting)), *host, *counted, group.waits.len())
            }
            Root::At { asked, seen } => {
                // Its own wait may be the cause.
                if seen.waits == Some(Waits::NotKnownYet) && seen.but.is_none() {
                    return None;
                }
                match &asked.writer {
                    ExpectedWriter::Group(who) => Some(self.grouped(run, meeting, group, asked.what, who)),
                    ExpectedWriter::LastAtExit | ExpectedWriter::Unknown => None,
                    _ => self.awaited(run, meeting, group, asked, seen),
                }
            }
        }
    }

    /// They wait in sub-groups, for `who`.
    fn grouped(&self, run: &TrackedRun, meeting: &Meeting, group: &Group, what: &str, who: &str) -> Reason {
        let Group { waits, since, members, .. } = group;
        let there: Vec<_> = waits.iter().filter_map(|conn| self.store.waits.get(conn)).collect();
        let published = self.published_for(&there);
        let are_unknown = !run.has_agents() && there.iter().all(|it| self.member(it).is_none());
        let of = Some((run, meeting)).filter(|_| !are_unknown);
        let others = self.not_among(of, &there, &published, |_| true);
        let ended = of.map(|(run, meeting)| self.ended_ranks(run, meeting));
        let ended = ended.unwrap_or_else(|| self.passed_since(*since, |_| true));
        let published = Names::of_some(published, |conn| self.who(conn));
        // Where no ranks are told it is not known whose place the ended had.
        let all_wait = others.is_empty() && (are_unknown || ended.is_empty());
        let apart = if all_wait { self.apart(&there) } else { None };
        let is_known = apart.is_some() || !published.is_empty();
        let look_at =
            if is_known && others.is_empty() && ended.is_empty() { SAME_GROUPS } else { NOT_REACHED };
        let members = Names::of_some(members, Clone::clone);
        let what = match (apart, members.count()) {
            (Some(apart), _) => apart,
            (None, 0) => who.to_owned(),
            (None, 1) => format!("{what} of {members}"),
            (None, _) => members.to_string(),
        };
        let waited = Elapsed(self.now.since(*since));
        let who = Names::of_some(waits, |conn| self.waiter(*conn));
        Code::Waiting
            .says(format!("{} {waited} for {what}", clients(&who)))
            .look_at(look_at)
            .held(&who)
            .ended(Place::Rank, &ended)
            .others(Place::Rank, &others)
            .and("have published there", &published)
    }

    /// The dead among these nodes, and how they have gone.
    fn with_ends<'n>(&self, nodes: impl Iterator<Item = &'n TrackedNode>) -> Names {
        let gone = nodes.filter(|node| node.is_dead()).filter_map(|node| Some((node, node.gone_as()?)));
        self.seen(gone, |(node, gone)| (node.label(), gone))
    }

    /// Ranks that had met make their group again, nobody waits, and some have not come again: who has come
    /// has read their addresses of before.
    fn ranks_not_again(&self) -> Vec<(Option<RunKey>, Finding)> {
        let waiting: BTreeSet<_> =
            self.store.waits.values().filter_map(|wait| self.run_waiting(&wait.view)).collect();
        let is_it = |run: &&TrackedRun| !run.has_agents() && !waiting.contains(&run.key) && run.goes_on();
        let runs = self.jobs.runs.values().filter(|run| run.store() == Some(self.store.port)).filter(is_it);
        let found = runs.filter_map(|run| {
            let meeting = run.world.shown();
            let since = meeting.started.filter(|_| meeting.met.is_none() && meeting.joined() > 0)?;
            let absent = Names::of_some(meeting.not_again(), |rank| run.rank_label_in(meeting, rank));
            let size = meeting.size.filter(|_| meeting.first_met.is_some()).unwrap_or_default();
            let ended = (0..size.min(MOST_RANKS)).filter(|&rank| meeting.rank(rank).is_none());
            let ended = ended.filter_map(|rank| meeting.holder(rank).map(|info| (rank, info)));
            let ended = ended.filter_map(|(rank, info)| Some((rank, info, run.gone_as(info)?)));
            let gone = self.seen(ended, |(rank, info, gone)| (info.label(rank), gone));
            let again = Place::Rank.have(meeting.joined(), meeting.size);
            let reason = Code::Waiting
                .says(format!("{again} published again, the first {} ago", Elapsed(self.now.since(since))))
                .joined(Place::Rank, meeting.joined(), meeting.size)
                .lacks("not published again", Place::Rank, &absent, Presence::Connected)
                .lacks("gone, and not published again", Place::Rank, &gone, Presence::Closed)
                .look_at(AGAIN);
            let wrote = meeting.ranks().map(|(rank, info)| info.wrote(rank));
            let finding = Finding::new(reason, "not again", since).seen(wrote);
            (!absent.is_empty() || !gone.is_empty()).then(|| (Some(run.key.clone()), finding))
        });
        found.collect()
    }
}
