//! Planted bugs between the real parts, where the world moves bytes and files: the product has no switch for
//! them. The simulator must find each of them.

use std::collections::BTreeMap;

use super::plan::Cast;
use rallypoint_journal::segment::{COMMIT, End, Header, Position, commits, seal};
use rallypoint_journal::{Reached, Row, SessionId, Table, rows};
use rallypoint_server::journal::faults::Disk;
use rallypoint_server::journal::{Backend, Segments};

/// The number of the store that all clients use. It is opened first.
const FIRST_STORE: u32 = 1;

/// One planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    /// Frames leave before the changes that they report are written.
    ReplyBeforeCommit,
    /// Replies to a client with its own connection leave before their changes are written.
    DirectReplyBeforeCommit,
    /// The disk does not sync what it promised to.
    SyncDoesNothing,
    /// The disk says that it could not sync, and the journal ignores it.
    SyncErrorPassedOver,
    /// What a killed server had not synced is not synced by the next one.
    LeftUnsynced,
    /// A partly written commit is not cut off.
    TornEndStays,
    /// The progress of sessions is not stored.
    NumberNotStored,
    /// Replies that the relay does not have yet are not stored.
    ReplyNotStored,
    /// A change is stored without the progress of the session that made it.
    ChangeWithoutItsSession,
    /// Only half of the last commit is read.
    HalfACommit,
    /// The server ends all sessions when it starts again, and withdraws their arrivals.
    SessionsEndOnRestart,
    /// Arrivals at barriers are not stored, so a client that comes again counts twice.
    ArrivalNotStored,
    /// Items that were taken out of a queue come back.
    ItemsComeBack,
    /// An outstanding wait counts as done, and does not begin again.
    WaitNotArmed,
    /// The journal is tidied before everything is copied.
    TidiedTooEarly,
    /// The journal is tidied without a copy of the links.
    TidiedWithoutLinks,
    /// The journal is tidied without a copy of the stores of rounds.
    TidiedWithoutRoundStores,
    /// Keys that ranks set in the stores of rounds are not stored.
    RoundKeysNotStored,
    /// Nobody checks for links that are away for too long.
    GraceNeverEnds,
    /// A wake-up is lost when its client does not read.
    WakeUpLostAtFullBuffer,
    /// A GET gets the answer of an earlier one that was still in flight.
    GetMergedWithOlder,
    /// An answer of the HTTP API leaves before the change that it reports is written.
    AnswerBeforeCommit,
    /// Runs are not stored, so a round is complete twice.
    RoundCompletedTwice,
    /// A node that asks again gets the rank of another node.
    RankHandedOutTwice,
    /// The stores of rounds and runs are never given up.
    LeaseKeptTooLong,
    /// A held request is not woken when the event that it waits for has happened.
    JoinNotWoken,
    /// Deadlines of runs are missed.
    DeadlineMissed,
    /// Releases of barriers are not stored.
    ReleaseNotStored,
    /// Open gates are not stored.
    GateNotStored,
    /// What operators expect is not stored.
    ExpectationNotStored,
    /// The address of a rank is dropped when its link breaks.
    AddressSpentTooEarly,
    /// The role of a static node is dropped when the link of its agent breaks.
    RoleSpentTooEarly,
    /// Insight counts clients as gone when their link breaks.
    AwayCountsAsDeath,
    /// Insight counts agents of torchrun as gone when their link breaks.
    AgentAwayCountsAsDeath,
    /// A client whose request was refused is not told so.
    RefusedUnseen,
    /// Memory that was short for a while is not given back completely.
    MemoryKept,
    /// The progress of a request in slices is not stored.
    ProgressNotStored,
    /// Bytes that were appended to a large value are not stored.
    PartNotStored,
    /// The memory of a link is not given back when its connection breaks.
    LinkMemoryKept,
    /// The number of a process group is that of its round alone.
    GroupNamedByRound,
}

impl Mutant {
    pub(super) const ALL: [Self; 40] = [
        Self::ReplyBeforeCommit,
        Self::DirectReplyBeforeCommit,
        Self::SyncDoesNothing,
        Self::SyncErrorPassedOver,
        Self::LeftUnsynced,
        Self::TornEndStays,
        Self::NumberNotStored,
        Self::ReplyNotStored,
        Self::ChangeWithoutItsSession,
        Self::HalfACommit,
        Self::SessionsEndOnRestart,
        Self::ArrivalNotStored,
        Self::ItemsComeBack,
        Self::WaitNotArmed,
        Self::TidiedTooEarly,
        Self::TidiedWithoutLinks,
        Self::TidiedWithoutRoundStores,
        Self::RoundKeysNotStored,
        Self::GraceNeverEnds,
        Self::WakeUpLostAtFullBuffer,
        Self::GetMergedWithOlder,
        Self::AnswerBeforeCommit,
        Self::RoundCompletedTwice,
        Self::RankHandedOutTwice,
        Self::LeaseKeptTooLong,
        Self::JoinNotWoken,
        Self::DeadlineMissed,
        Self::ReleaseNotStored,
        Self::GateNotStored,
        Self::ExpectationNotStored,
        Self::AddressSpentTooEarly,
        Self::RoleSpentTooEarly,
        Self::AwayCountsAsDeath,
        Self::AgentAwayCountsAsDeath,
        Self::RefusedUnseen,
        Self::MemoryKept,
        Self::ProgressNotStored,
        Self::PartNotStored,
        Self::LinkMemoryKept,
        Self::GroupNamedByRound,
    ];

    /// The first of the seeds that find it.
    pub(super) const fn first_seed(self) -> u64 {
        match self {
            Self::TidiedWithoutRoundStores | Self::RoundKeysNotStored => Cast::RunsWithRanks.first(),
            Self::RoleSpentTooEarly | Self::AgentAwayCountsAsDeath => Cast::StaticAgents.first(),
            Self::RefusedUnseen | Self::MemoryKept | Self::LinkMemoryKept => Cast::ShortOfMemory.first(),
            Self::ProgressNotStored | Self::PartNotStored => Cast::Slices.first(),
            // The first schedules in which the disk refuses something.
            Self::SyncErrorPassedOver => 201,
            _ => Cast::Runs.first(),
        }
    }

    /// Whether a row of a commit is read again. The last commit may be treated differently.
    fn keeps(self, row: &Row<'_>, is_last_commit: bool, is_second_half: bool) -> bool {
        match self {
            Self::NumberNotStored => !matches!(row, Row::Reached(..)),
            Self::ReplyNotStored => !matches!(row, Row::Reply(..)),
            Self::ChangeWithoutItsSession => {
                !(is_last_commit && matches!(row, Row::Reached(..) | Row::Reply(..)))
            }
            Self::HalfACommit => !(is_last_commit && is_second_half),
            Self::SessionsEndOnRestart => !matches!(row, Row::Session(..)),
            Self::ArrivalNotStored => !matches!(row, Row::Client(..)),
            Self::ItemsComeBack => !matches!(row, Row::Queue(_, _, first, next) if first < next),
            Self::RoundCompletedTwice => !matches!(row, Row::Entry(Table::Run | Table::Member, ..)),
            Self::RoundKeysNotStored => !matches!(row, Row::Key(store, ..) if *store != FIRST_STORE),
            Self::ReleaseNotStored => !matches!(row, Row::Entry(Table::Barrier, ..)),
            Self::GateNotStored => !matches!(row, Row::Entry(Table::Announcement, ..)),
            Self::ExpectationNotStored => !matches!(row, Row::Entry(Table::Expectation, ..)),
            Self::PartNotStored => !matches!(row, Row::Part(..)),
            _ => true,
        }
    }

    fn changes_rows(self) -> bool {
        matches!(
            self,
            Self::NumberNotStored
                | Self::ReplyNotStored
                | Self::ChangeWithoutItsSession
                | Self::HalfACommit
                | Self::SessionsEndOnRestart
                | Self::ArrivalNotStored
                | Self::ItemsComeBack
                | Self::WaitNotArmed
                | Self::RoundCompletedTwice
                | Self::RoundKeysNotStored
                | Self::ReleaseNotStored
                | Self::GateNotStored
                | Self::ExpectationNotStored
                | Self::ProgressNotStored
                | Self::PartNotStored
        )
    }
}

/// The disk as a server with a planted bug would find it. `outstanding` are the waits of sessions with their
/// bytes, by the name of the relay and the session's number.
pub(super) fn rewrite(
    disk: &Disk,
    mutant: Option<Mutant>,
    outstanding: &BTreeMap<(String, u32), u64>,
) -> Disk {
    let rewritten = disk.after_kill();
    let Some(mutant) = mutant.filter(|mutant| mutant.changes_rows()) else { return rewritten };
    let numbers = disk.list().expect("a list");
    let mut relays = BTreeMap::new();
    // A rewritten segment has another end.
    let mut before = None;
    for &number in &numbers {
        let segment = disk.read(number).expect("a segment");
        let all: Vec<_> = commits(&segment, number).collect();
        let header = Header::decode(&segment).ok();
        let follows = before.or(header.and_then(|header| header.follows));
        let header = header.map(|header| Header { follows, ..header }.encode());
        let mut out = header.unwrap_or_default();
        let is_last_segment = Some(&number) == numbers.last();
        let mut end = out.len();
        for (n, commit) in all.iter().enumerate() {
            let is_last = is_last_segment && n + 1 == all.len();
            let kept: Vec<Row<'_>> = rows(commit.rows).filter_map(|row| row.expect("a row")).collect();
            let half = kept.len().div_ceil(2);
            let mut bytes = vec![0; COMMIT];
            for (n, row) in kept.iter().enumerate() {
                if let Row::Link(id, Some(link)) = row {
                    relays.insert(*id, String::from_utf8_lossy(link.name).into_owned());
                }
                match *row {
                    Row::Reached(id @ SessionId { link, no }, reached) if mutant == Mutant::WaitNotArmed => {
                        let wait = relays.get(&link).and_then(|name| outstanding.get(&(name.clone(), no)));
                        let applied = reached.applied + wait.copied().unwrap_or(0);
                        Row::Reached(id, Reached { applied, ..reached }).encode(&mut bytes);
                    }
                    Row::Reached(id, reached) if mutant == Mutant::ProgressNotStored => {
                        Row::Reached(id, Reached { begun: 0, is_ahead: false, ..reached }).encode(&mut bytes);
                    }
                    _ if mutant.keeps(row, is_last, n >= half) => row.encode(&mut bytes),
                    _ => {}
                }
            }
            end = commit.at as usize + COMMIT + commit.rows.len();
            if bytes.len() > COMMIT {
                let place = Position { segment: number, at: out.len() as u32 };
                seal(&mut bytes, place, 0).expect("short");
                out.extend_from_slice(&bytes);
            }
        }
        before = End { segment: number, ..End::default() }.with(&out);
        out.extend_from_slice(&segment[end.min(segment.len())..]);
        let file = rewritten.create(number).expect("a file");
        file.append(&out).expect("room");
        file.sync().expect("it lasts");
    }
    rewritten
}
