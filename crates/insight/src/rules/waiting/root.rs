//! Where a chain of waits ends: with a process that does not write what it should, or in a circle.

use crate::facts::{RunKey, TrackedNode, TrackedRun};
use crate::identity::processes::Graph;
use crate::identity::sighting::Found;
use crate::reason::{But, Names, Presence, Sighting};
use crate::rules::ends::at_exit;
use rallypoint_protocol::ids::ConnId;
use rallypoint_protocol::keys::{BARRIER, ExpectedWriter, ID_OF_PAIR, Wanted, lower_of_pair, wanted};
use rallypoint_store::Counted;

/// One wait, for people: who waits for whom, and why it lasts.
pub(crate) struct Traced {
    pub(crate) run: Option<RunKey>,
    pub(crate) who: String,
    pub(crate) writer: Option<String>,
    pub(crate) reason: Option<String>,
}

/// Where a chain of waits ends.
#[derive(Debug, Clone)]
pub(crate) enum Root {
    /// With someone who does not wait here.
    At { asked: Wanted, seen: Box<Sighting> },
    /// With a process that goes on when all others have come.
    Counting { host: ConnId, counted: Counted },
    /// Nowhere. `is_elastic`: rank 0 waits for a newcomer, and that for the workers' address.
    Cycle { members: Vec<ConnId>, is_elastic: bool },
}

impl Root {
    /// The rank that it ends with.
    pub(crate) const fn rank(&self) -> Option<u32> {
        match self {
            Self::At { asked, .. } => asked.writer.rank(),
            _ => None,
        }
    }

    /// The member of a sub-group that it ends with.
    pub(crate) fn of_sub_group(&self) -> Option<&str> {
        match self {
            Self::At { asked: Wanted { writer: ExpectedWriter::Group(name), .. }, .. } => Some(name.as_str()),
            _ => None,
        }
    }

    /// The round of a node that it ends with, where it is known who that was.
    pub(crate) fn round(&self) -> Option<u64> {
        match self {
            Self::At { seen, .. } if matches!(seen.but, Some(But::RoundOver { .. })) => None,
            Self::Counting { .. } | Self::Cycle { .. } => None,
            Self::At { asked, .. } => asked.round,
        }
    }
}

impl Graph<'_> {
    pub(crate) fn writer(&self, run: Option<&TrackedRun>, conn: ConnId, wanted: &Wanted) -> Option<String> {
        match &wanted.writer {
            ExpectedWriter::Node(rank) => {
                let node = run.and_then(|run| run.node_to_write(wanted));
                Some(node.map_or_else(|| format!("node rank {rank}"), TrackedNode::label))
            }
            ExpectedWriter::Rank(rank) => {
                let Some(run) = run else { return Some(format!("rank {rank}")) };
                let (world, meeting) = (&run.world, self.meeting(conn, run));
                let elsewhere = world.met_elsewhere(meeting, *rank);
                let elsewhere = elsewhere.filter(|_| world.holder(meeting, *rank).is_none());
                Some(elsewhere.map_or_else(|| run.rank_label_in(meeting, *rank), |info| info.label(*rank)))
            }
            ExpectedWriter::NcclRankZero => {
                let Some(run) = run else { return Some("rank 0".into()) };
                let label = run.rank_label_in(self.meeting(conn, run), 0);
                let root = run.world.nccl_root.as_ref().filter(|_| label == "rank 0");
                Some(root.map_or(label, |root| run.process_label(&root.wrote)))
            }
            ExpectedWriter::Group(name) => Some(name.clone()),
            ExpectedWriter::LastAtExit => Some("the last node to finish".into()),
            ExpectedWriter::Unknown => None,
        }
    }

    /// A process that hosts a store for its job: rank 0, or the agent of node rank 0.
    pub(crate) fn host_label(&self, conn: ConnId, run: Option<&TrackedRun>) -> String {
        let who = self.who(conn);
        if run.is_some_and(|run| run.world.host == Some(conn)) { format!("rank 0 ({who})") } else { who }
    }

    /// Follows the wait of `conn` to its root.
    pub(crate) fn trace(&self, conn: ConnId) -> Option<Traced> {
        let first = wanted(self.wait_of(conn, None)?.view.missing.first()?);
        let run_key = self.run_of(self.store.clients.get(&conn), &first);
        let run = run_key.as_ref().and_then(|key| self.jobs.runs.get(key));
        let (writer, reason) = (self.writer(run, conn, &first), self.because(conn, run));
        Some(Traced { who: self.waiter(conn), writer, reason, run: run_key })
    }

    pub(crate) fn root(&self, start: ConnId, run: Option<&TrackedRun>) -> Root {
        let mut path: Vec<ConnId> = Vec::new();
        let mut at = start;
        // What the one before in the chain waits for, once that is a known process.
        let mut asked: Option<Wanted> = None;
        loop {
            let wait = self.wait_of(at, run);
            if let Some(counted) = wait.and_then(|wait| wait.view.counted) {
                return Root::Counting { host: at, counted };
            }
            let missing = wait.and_then(|wait| wait.view.missing.first());
            let root = |asked, seen: Sighting| Root::At { asked, seen: Box::new(seen) };
            // A process for which others wait: it waits for nothing, for what any may write, or at a barrier.
            let has_writer = |it: &Wanted| it.writer != ExpectedWriter::Unknown && it.what != BARRIER;
            let next = missing.map(|key| (key, wanted(key)));
            let Some((key, mut next)) = next.filter(|(_, it)| asked.is_none() || has_writer(it)) else {
                let seen = if asked.is_some() { self.doing(at, run) } else { Presence::Unknown.into() };
                return root(asked.unwrap_or_else(|| wanted(b"")), seen);
            };
            let is_known =
                |run: &TrackedRun, rank| run.world.holder(self.meeting(start, run), rank).is_some();
            let low = lower_of_pair(key).filter(|low| run.is_some_and(|run| is_known(run, *low)));
            if let Some(low) = low {
                (next.writer, next.what) = (ExpectedWriter::Rank(low), ID_OF_PAIR);
            }
            if let Some(from) = path.iter().position(|&member| member == at) {
                return self.cycle(&path[from..], run);
            }
            path.push(at);
            // The ranks of a round that the run has left are not those of its nodes now.
            let is_past = next.round.zip(run).is_some_and(|(round, run)| round != run.round.number);
            if let Some(but) = run.filter(|_| !is_past).and_then(|run| Self::without_ranks(run, key)) {
                return root(next, Sighting::idle(None).but(but));
            }
            let host = run.and_then(|run| run.world.host).filter(|host| !path.contains(host));
            match self.find(run, start, &next) {
                None if is_past => {
                    let over = run.and_then(|run| run.life.over.as_ref());
                    let it = over.filter(|over| next.round == Some(over.round));
                    let how = it.map(|over| over.how.clone());
                    return root(next, Sighting::from(Presence::Unknown).but(But::RoundOver { how }));
                }
                found @ (None | Some(Found::Gone(_)))
                    if next.writer == ExpectedWriter::NcclRankZero && host.is_none() =>
                {
                    let gone = if let Some(Found::Gone(gone)) = found { Some(gone) } else { None };
                    let seen = run.map(|run| self.missed_nccl_root(run, gone));
                    return root(next, seen.unwrap_or_else(|| Presence::Unknown.into()));
                }
                Some(Found::Gone(gone)) if !matches!(next.writer, ExpectedWriter::Rank(_)) => {
                    let cut_off = run.and_then(|it| it.node_to_write(&next)).is_some_and(|it| it.is_cut_off);
                    return root(next, Sighting::at(Presence::gone(cut_off), gone));
                }
                Some(Found::There(conn))
                    if run.is_some_and(|run| {
                        !is_past && self.was_dropped(run, start, &next, key)
                            || next.is_role && run.is_heir(conn)
                    }) =>
                {
                    return root(next, self.idle(conn).but(But::Dropped { replaced: Names::default() }));
                }
                Some(Found::There(conn)) => {
                    if let Some(but) = run.and_then(|run| self.made_otherwise(run, start, key)) {
                        return root(next, self.idle(conn).but(but));
                    }
                    at = conn;
                    asked = Some(next);
                }
                None | Some(Found::Gone(_)) => {
                    if let (ExpectedWriter::Rank(0) | ExpectedWriter::NcclRankZero, Some(host)) =
                        (&next.writer, host)
                    {
                        (at, asked) = (host, Some(next));
                        continue;
                    }
                    let seen = match (&next.writer, run) {
                        (ExpectedWriter::Rank(rank), Some(run)) => {
                            self.missed(run, self.meeting(start, run), *rank)
                        }
                        (ExpectedWriter::Node(rank), Some(run)) => self.missed_node(run, *rank),
                        (ExpectedWriter::Rank(_) | ExpectedWriter::Node(_), None) => {
                            Presence::NeverSeen.into()
                        }
                        _ => Presence::Unknown.into(),
                    };
                    return root(next, seen);
                }
            }
        }
    }

    fn cycle(&self, members: &[ConnId], run: Option<&TrackedRun>) -> Root {
        let wants = |conn: &ConnId| Some(wanted(self.wait_of(*conn, run)?.view.missing.first()?));
        let wanted: Vec<Wanted> = members.iter().filter_map(wants).collect();
        let is_elastic = wanted.iter().any(|it| it.is_master) && wanted.iter().any(|it| it.is_role);
        // Wherever it was entered, it is told from the same member on.
        let first = (0..members.len()).min_by_key(|&at| members[at]).unwrap_or_default();
        Root::Cycle { members: [&members[first..], &members[..first]].concat(), is_elastic }
    }

    /// Why one wait lasts, in a sentence.
    fn because(&self, conn: ConnId, run: Option<&TrackedRun>) -> Option<String> {
        Some(match &self.root(conn, run) {
            Root::At { asked: Wanted { writer: ExpectedWriter::LastAtExit, .. }, .. } => {
                at_exit(run?, &self.jobs.links, self.now)?.reason.text
            }
            Root::Counting { host, counted: Counted { clients, .. } } => {
                let (host, have) = (self.host_label(*host, run), if *clients == 1 { "has" } else { "have" });
                format!("{host} goes on when all processes of the job have connected, and {clients} {have}")
            }
            Root::At { asked, seen } => {
                let (what, writer) = (asked.what, self.writer(run, conn, asked)?);
                format!("{what} must come from {writer}: {}", seen.says(self.now))
            }
            Root::Cycle { members, .. } => {
                let members = Names::of(members.iter().map(|&member| self.who(member)));
                format!("a deadlock, each waits for the next: {members}")
            }
        })
    }
}
