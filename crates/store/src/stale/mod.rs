//! The rules for keys that PyTorch leaves behind (`proto-notes/key-patterns.md`).
//!
//! PyTorch never cleans up. So a second run, or a restart inside one run, would read the dead addresses of
//! the first. The rules act on the keys that [`rallypoint_protocol::keys`] knows and on no other keys. A
//! writer is identified by its connection: process ids repeat and addresses are shared.
//!
//! 1. An address is *spent* when its writer's connection closes, when another connection overwrites it, or
//!    when another process takes a place in the group whose earlier holder its writer was paired with. Spent
//!    addresses are dropped.
//! 2. What an attempt leaves behind is dropped when its last worker is gone. So are keys below a process
//!    group's prefix that match no pattern.
//! 3. The keys of a run are dropped some time after its last connection has gone; at once where one of its
//!    agents leads it.
//! 4. The keys of a job are dropped some time after its last connection has gone, and everything else in its
//!    store with them if nobody at all is connected.
//! 5. What a process has published is dropped some time after its connection has gone.
//!
//! This module decides what to drop; the store drops it.

mod due;
pub(super) mod groups;
#[cfg(test)]
mod invariants;
mod members;
mod pairs;
mod published;
mod ranges;
pub(super) mod record;
mod restored;
mod runs;

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::DropCause;
use super::keyspace::{KeySpace, Slot};
use super::slot::SlotId;
use due::{Due, Filter};
use groups::{GroupId, Groups, WholeGroup};
use members::Members;
use pairs::{Free, Search};
pub(super) use published::Process;
use published::Published;
use rallypoint_protocol::ids::{ConnId, RunId, Timestamp};
use rallypoint_protocol::keys::{KeyPattern, RendezvousPart, Role, classify, ends_with_its_agents};
use ranges::RangeSet;
use record::{Kind, Record};
pub(super) use restored::JobMark;
use restored::News;
use runs::{RunNumber, Runs};

/// When keys are dropped without a client asking for it. `None` switches a rule off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleKeyConfig {
    /// Rule 3, for a run that is neither finished nor closed, and rule 5.
    pub forget_run_after: Option<Duration>,
    /// Rule 3, for a run that is finished or closed.
    pub forget_closed_after: Duration,
    /// Rule 4.
    pub reset_when_idle: Option<Duration>,
    /// Everything is dropped when the last connection of any client has gone.
    pub one_job: bool,
}

impl Default for StaleKeyConfig {
    fn default() -> Self {
        Self {
            forget_run_after: Some(Duration::from_mins(1)),
            forget_closed_after: Duration::from_secs(10),
            reset_when_idle: Some(Duration::from_secs(30)),
            one_job: false,
        }
    }
}

/// The ranks of one group whose addresses a connection has read.
#[derive(Debug, Default)]
struct Read {
    ranks: RangeSet,
    /// The state of what its group knows of reads that has them all.
    noted: u32,
}

/// What a connection has read, by group.
type Reads = HashMap<GroupId, Read>;

/// What a connection has done with PyTorch's own keys.
#[derive(Debug)]
struct Notes {
    conn: ConnId,
    role: Role,
    /// What it added to `init/`.
    worker_share: i64,
    /// Addresses whose present value it wrote.
    wrote: Members,
    /// What it read, in at most [`Self::MOST_READ`] groups.
    read: Reads,
    runs: SmallVec<[RunNumber; 2]>,
}

impl Notes {
    /// Bytes for remembering what was read in one group, beside the set of ranks.
    const READ_BYTES: usize = 64;
    /// Groups whose reads are remembered. A rank reads addresses in every group that it is a member of.
    const MOST_READ: usize = 16 * 1024;

    /// Bytes of the remembered reads.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    fn bytes_of(reads: &Reads) -> usize {
        reads.values().map(|read| Self::READ_BYTES + read.ranks.bytes()).sum()
    }

    /// Forgets reads in groups that are gone, before the map would have to grow. Returns the bytes that this
    /// freed.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    fn prune_read(&mut self, groups: &Groups) -> usize {
        if self.read.len() < self.read.capacity() {
            return 0;
        }
        let before = Self::bytes_of(&self.read);
        self.read.retain(|group, _| groups.exists(*group));
        self.read.reserve(self.read.len());
        before - Self::bytes_of(&self.read)
    }
}

/// What the store must do after a disconnect.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// To be subtracted from `init/`.
    pub(super) worker_share: i64,
    /// Whether the connection belonged to a job.
    pub(super) was_of_job: bool,
}

/// The state behind the rules.
#[derive(Debug)]
pub(super) struct StaleKeys {
    config: StaleKeyConfig,
    notes: Vec<Option<Box<Notes>>>,
    /// Connections with notes: those that belong to a job.
    job_connections: usize,
    workers: usize,
    agents: usize,
    /// What workers that are gone added to `init/`.
    gone_worker_share: i64,
    leftovers: Members,
    groups: Groups,
    runs: Runs,
    published: Published,
    restarted: VecDeque<RunId>,
    reset_at: Option<Timestamp>,
    /// The keys of a job were dropped for idleness while others were connected, and none of the others has
    /// used the store since.
    rest_is_due: bool,
    /// Lists of names that may have to go, oldest first.
    due: VecDeque<Due>,
    /// Searches for addresses that are spent because others were, the next one to go on with first.
    searches: VecDeque<Search>,
    /// Places that are about to be taken.
    free: Vec<Free>,
    /// Notes on what connections had read when the store was emptied. They are freed in steps.
    forgotten: Vec<Reads>,
    /// Bytes of records, of notes on reads, and of the lists of names that may have to go.
    bytes: usize,
    /// Addresses looked at since [`Self::take_looks`].
    looks: usize,
    /// What the journal must be told. `None` where there is no journal.
    news: Option<News>,
}

impl StaleKeys {
    pub(super) fn new(config: StaleKeyConfig) -> Self {
        Self {
            config,
            notes: Vec::new(),
            job_connections: 0,
            workers: 0,
            agents: 0,
            gone_worker_share: 0,
            leftovers: Members::default(),
            groups: Groups::default(),
            runs: Runs::default(),
            published: Published::default(),
            restarted: VecDeque::new(),
            reset_at: None,
            rest_is_due: false,
            due: VecDeque::new(),
            searches: VecDeque::new(),
            free: Vec::new(),
            forgotten: Vec::new(),
            bytes: 0,
            looks: 0,
            news: None,
        }
    }

    /// How many addresses were looked at since the last call, to find those that are spent.
    #[inline]
    pub(super) fn take_looks(&mut self) -> usize {
        std::mem::take(&mut self.looks)
    }

    /// More bytes than one more read can add to the notes on a connection.
    pub(super) const MOST_BYTES_A_READ: usize = 64 * 1024;

    /// Bytes held for names and for notes on reads.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.groups.bytes() + self.published.bytes()
    }

    /// Bytes that the rules need for a new name, beside the name itself.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn bytes_of(key: &[u8]) -> usize {
        match classify(key) {
            None => 0,
            Some(KeyPattern::Address(address) | KeyPattern::CheckpointAddress(address)) => {
                Record::BYTES + Groups::bytes_of(address.group)
            }
            Some(KeyPattern::Published) => Record::BYTES + Published::BYTES,
            Some(_) => Record::BYTES,
        }
    }

    /// An upper bound of [`Self::bytes_of`] for `names` names of `bytes` bytes together.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) const fn most_bytes_of(names: usize, bytes: usize) -> usize {
        names * (Record::BYTES + Groups::bytes_of(&[])) + 2 * bytes
    }

    /// Classifies a new name.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn on_new_slot(&mut self, keys: &mut KeySpace, id: SlotId) {
        let key = keys.slot(id).key();
        let Some(pattern) = classify(key) else { return };
        let user = pattern.user();
        let (kind, run) = match pattern {
            KeyPattern::WorkerCount => (Kind::WorkerCount, None),
            KeyPattern::Address(address) | KeyPattern::CheckpointAddress(address) => {
                let group = self.groups.enter(address.group);
                let run = address.run_id.and_then(|run_id| self.runs.enter(run_id, id));
                let (rank, is_first) = (address.writer(), address.is_first());
                (Kind::Address { group, rank, is_first }, run)
            }
            KeyPattern::AttemptLeftover(_) => (Kind::AttemptLeftover, None),
            KeyPattern::Unknown => (Kind::Unknown, None),
            KeyPattern::Message => (Kind::Message, None),
            KeyPattern::Published => (Kind::Published, None),
            KeyPattern::Rendezvous { run_id, part, .. } => {
                let kind = if ends_with_its_agents(key) { Kind::Hosted } else { Kind::Rendezvous(part) };
                (kind, self.runs.enter(run_id, id))
            }
        };
        let (run, in_run) = run.map_or((None, 0), |(run, at)| (Some(run), at));
        let at = match run {
            Some(run) if kind.is_end() => self.runs.add_end(run, id),
            _ if kind.attempt_over().is_some() => self.leftovers.add(id),
            _ => 0,
        };
        self.bytes += Record::BYTES;
        let record = Record { kind, user, run, writer: None, at, in_run, in_wrote: 0 };
        keys.slot_mut(id).record = Some(Box::new(record));
    }

    /// The name `id`, which had a record, was freed.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn on_slot_freed(&mut self, keys: &mut KeySpace, id: SlotId, record: &Record) {
        self.bytes -= Record::BYTES;
        if let Kind::Address { group, .. } = record.kind {
            self.groups.leave(group);
        }
        if record.kind.attempt_over().is_some() {
            let moved = self.leftovers.remove(record.at, id);
            put(keys, moved, |it| it.at = record.at);
        }
        if let Some(run) = record.run {
            if record.kind.is_end() {
                let moved = self.runs.remove_end(run, record.at, id);
                put(keys, moved, |it| it.at = record.at);
            }
            let moved = self.runs.leave(run, record.in_run, id);
            put(keys, moved, |it| it.in_run = record.in_run);
        }
    }

    /// `conn` uses the name `id`. Returns whether that says something new about `conn`: that it belongs to a
    /// job, to which run, or that it is a worker or an agent. Who uses what was published may belong to none.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn on_touch(&mut self, keys: &KeySpace, conn: ConnId, id: SlotId) -> bool {
        let Some(record) = record_of(keys, id).filter(|record| record.kind != Kind::Published) else {
            return false;
        };
        if self.notes.len() <= conn.slot() {
            self.notes.resize_with(conn.slot().saturating_add(1), || None);
        }
        let notes = &mut self.notes[conn.slot()];
        let mut is_news = notes.is_none();
        let notes = notes.get_or_insert_with(|| {
            self.job_connections += 1;
            self.reset_at = None;
            self.rest_is_due = false;
            Box::new(Notes {
                conn,
                role: Role::Unknown,
                worker_share: 0,
                wrote: Members::default(),
                read: HashMap::new(),
                runs: SmallVec::new(),
            })
        });
        let role = notes.role.with(record.user);
        if role != notes.role {
            self.workers -= usize::from(notes.role == Role::Worker);
            self.workers += usize::from(role == Role::Worker);
            self.agents += usize::from(role == Role::Agent);
            notes.role = role;
            is_news = true;
        }
        if let Some(run) = record.run
            && !notes.runs.contains(&run)
        {
            is_news = true;
            notes.runs.push(run);
            if let Some(restarted) = self.runs.connect(run) {
                self.restarted.push_back(restarted);
            }
        }
        is_news
    }

    /// The id of a finished run that is started again. Each restart is returned once.
    pub(super) fn take_restarted_run(&mut self) -> Option<RunId> {
        self.restarted.pop_front()
    }

    /// `conn` writes the name `id`, which it has touched and may write. Returns the connection that wrote it
    /// before, if that is still there.
    pub(super) fn on_write(&mut self, keys: &mut KeySpace, conn: ConnId, id: SlotId) -> Option<ConnId> {
        let record = keys.slot_mut(id).record.as_mut()?;
        if record.kind == Kind::Published {
            self.publish(keys, conn, id);
            return None;
        }
        let Kind::Address { group, is_first, .. } = record.kind else { return None };
        if record.writer == Some(conn) {
            if is_first {
                self.forget_reads(conn, group);
            }
            return None;
        }
        let before = record.writer.replace(conn);
        if before.is_none() {
            record.at = self.groups.add(group, id);
        }
        let in_wrote = record.in_wrote;
        if let Some(notes) = notes_of(&mut self.notes, conn) {
            record.in_wrote = notes.wrote.add(id);
        }
        if let Some(before) = before {
            self.remove_from_wrote(keys, before, in_wrote, id);
        }
        before
    }

    /// `conn` reads the value of the name `id`, which it has touched.
    pub(super) fn on_read(&mut self, keys: &KeySpace, conn: ConnId, id: SlotId) {
        let Some(&Record { kind: Kind::Address { group, rank, .. }, writer: Some(writer), .. }) =
            record_of(keys, id)
        else {
            return;
        };
        if writer == conn {
            return;
        }
        let is_new = self.note_read(conn, group, |ranks| {
            let is_new = ranks.range_of(rank).is_none();
            ranks.insert(rank);
            is_new
        });
        if is_new && let Some(news) = &mut self.news {
            news.read.push((conn, group, rank));
        }
    }

    /// Remembers the reads that `add` adds to what `conn` has read. Returns what `add` returns, or false if
    /// it is not called.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    fn note_read(&mut self, conn: ConnId, group: GroupId, add: impl Fn(&mut RangeSet) -> bool) -> bool {
        let Some(notes) = notes_of(&mut self.notes, conn) else { return false };
        self.groups.note_read(group, |ranks| _ = add(ranks));
        self.bytes -= notes.prune_read(&self.groups);
        if notes.read.len() >= Notes::MOST_READ && !notes.read.contains_key(&group) {
            return false;
        }
        let read = notes.read.entry(group).or_insert_with(|| {
            self.bytes += Notes::READ_BYTES;
            Read::default()
        });
        self.bytes -= read.ranks.bytes();
        let added = add(&mut read.ranks);
        self.bytes += read.ranks.bytes();
        added
    }

    /// `conn` begins to meet the other members of `group` again, so what it read last time is forgotten.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    fn forget_reads(&mut self, conn: ConnId, group: GroupId) {
        let read = notes_of(&mut self.notes, conn).and_then(|notes| notes.read.remove(&group));
        if let (Some(news), true) = (&mut self.news, read.is_some()) {
            news.forgot.push((conn, group));
        }
        self.bytes -= read.map_or(0, |read| Notes::READ_BYTES + read.ranks.bytes());
    }

    /// The group of the names `slots`, if each is the address of another rank of that group: whoever reads
    /// all slots reads this whole set. `None` also where each read must be noted by itself.
    pub(super) fn whole_group(&self, keys: &KeySpace, slots: &[SlotId]) -> Option<WholeGroup> {
        if self.news.is_some() {
            return None;
        }
        let mut whole: Option<WholeGroup> = None;
        for &id in slots {
            let record = record_of(keys, id)?;
            let Kind::Address { group, rank, .. } = record.kind else { return None };
            record.writer?;
            let whole = whole.get_or_insert_with(|| WholeGroup { group, ranks: RangeSet::default() });
            if whole.group != group || whole.ranks.range_of(rank).is_some() {
                return None;
            }
            whole.ranks.insert(rank);
        }
        whole
    }

    /// As [`Self::on_read`], for all addresses of `whole`. Returns how many steps it took.
    pub(super) fn on_read_of_all(&mut self, keys: &KeySpace, conn: ConnId, whole: &WholeGroup) -> usize {
        let wrote = notes_of(&mut self.notes, conn).map_or(&[][..], |notes| notes.wrote.as_slice());
        // Its own address does not count as read.
        let own = wrote.iter().filter_map(|&id| match record_of(keys, id)? {
            &Record { kind: Kind::Address { group, rank, .. }, writer, .. }
                if writer == Some(conn) && group == whole.group =>
            {
                Some(rank)
            }
            _ => None,
        });
        let mut own: SmallVec<[u32; 4]> = own.collect();
        own.sort_unstable();
        let steps = wrote.len();
        self.note_read(conn, whole.group, |ranks| {
            ranks.extend_without(&whole.ranks, &own);
            true
        });
        steps
    }

    /// Whether the name `id` is `init/`.
    pub(super) fn is_worker_count(keys: &KeySpace, id: SlotId) -> bool {
        record_of(keys, id).is_some_and(|record| record.kind == Kind::WorkerCount)
    }

    /// `conn` adds `delta` to the name `id`.
    pub(super) fn on_count(&mut self, keys: &KeySpace, conn: ConnId, id: SlotId, delta: i64) {
        if Self::is_worker_count(keys, id)
            && let Some(notes) = notes_of(&mut self.notes, conn)
        {
            notes.worker_share = notes.worker_share.saturating_add(delta);
        }
    }

    /// The name `id`, which has a record, has lost its plain value.
    pub(super) fn on_value_gone(&mut self, keys: &mut KeySpace, id: SlotId) {
        let Some(record) = &mut keys.slot_mut(id).record else { return };
        if record.kind == Kind::Rendezvous(RendezvousPart::State)
            && let Some(run) = record.run
        {
            self.runs.reopen(run);
        }
        let Some(writer) = record.writer.take() else { return };
        if record.kind == Kind::Published {
            self.unpublish(keys, writer, id);
        } else if let Kind::Address { group, rank, .. } = record.kind {
            let in_wrote = record.in_wrote;
            self.tell_searches(writer, group, rank, id);
            self.remove_from_group(keys, group, id);
            self.remove_from_wrote(keys, writer, in_wrote, id);
        }
    }

    /// Removes an address from the list of what `writer` wrote, unless that whole list is being dropped.
    fn remove_from_wrote(&mut self, keys: &mut KeySpace, writer: ConnId, at: u32, id: SlotId) {
        let moved = notes_of(&mut self.notes, writer).and_then(|notes| notes.wrote.remove(at, id));
        put(keys, moved, |it| it.in_wrote = at);
    }

    /// Removes an address from the list of its group.
    fn remove_from_group(&mut self, keys: &mut KeySpace, group: GroupId, id: SlotId) {
        let Some(at) = record_of(keys, id).map(|record| record.at) else { return };
        let moved = self.groups.remove(group, at, id);
        put(keys, moved, |it| it.at = at);
    }

    /// `conn`, a connection of `process`, has closed.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn on_disconnect(
        &mut self,
        keys: &mut KeySpace,
        conn: ConnId,
        process: Process,
        now: Timestamp,
    ) -> Left {
        let mut left = Left::default();
        self.publisher_left(conn, process, now);
        let notes =
            self.notes.get_mut(conn.slot()).and_then(|notes| notes.take_if(|notes| notes.conn == conn));
        let Some(mut notes) = notes else { return left };
        self.set_aside(conn, &mut notes.read);
        self.give_up_place(conn);
        self.job_connections -= 1;
        left.was_of_job = true;
        let age = keys.new_age();
        self.bytes -= Notes::bytes_of(&notes.read);
        self.add_due(Due::new(notes.wrote.into_vec(), Filter::Writer(conn), DropCause::WriterGone, age));
        match notes.role {
            Role::Worker => self.workers -= 1,
            Role::Agent => self.agents -= 1,
            Role::Unknown => {}
        }
        if notes.role != Role::Agent {
            self.gone_worker_share = self.gone_worker_share.saturating_add(notes.worker_share);
        }
        if notes.role != Role::Agent || self.job_connections == 0 {
            left.worker_share = self.end_attempt(age);
        }
        let mut readable = Readable { bytes: LONGEST_STATE, ends: MOST_ENDS };
        for &run in &notes.runs {
            if self.runs.disconnect(run) {
                self.on_run_idle(keys, run, now, age, &mut readable);
            }
        }
        if self.job_connections == 0 {
            self.reset_at = self.config.reset_when_idle.map(|pause| now + pause);
        }
        left
    }

    /// Rule 2, after a connection has gone: if no worker is left, what the attempt left behind is due.
    /// Returns what is to be subtracted from `init/`.
    fn end_attempt(&mut self, age: u64) -> i64 {
        // A connection that has only counted itself may be the agent of a static run, or a worker that still
        // needs what others have written. Beside agents it protects only the keys that match no pattern:
        // counters are made for the whole attempt, but other keys may be meant for this connection.
        let no_worker = self.workers == 0 && (self.agents > 0 || self.job_connections == 0);
        let only_agents = self.job_connections == self.agents;
        if !no_worker {
            return 0;
        }
        let ids = self.leftovers.as_slice().to_vec();
        self.add_due_once(Due::new(ids, Filter::Attempt { only_agents }, DropCause::AttemptOver, age));
        std::mem::take(&mut self.gone_worker_share)
    }

    /// The last connection of `run` has gone. Reads no more of the run's keys than `readable` allows.
    fn on_run_idle(
        &mut self,
        keys: &mut KeySpace,
        run: RunNumber,
        now: Timestamp,
        age: u64,
        readable: &mut Readable,
    ) {
        let mut closed = false;
        let mut all_at_exit = false;
        let mut has_rounds = false;
        let mut is_hosted = false;
        let mut over = Vec::new();
        let ends = self.runs.ends(run);
        let looked_at = ends.len().min(readable.ends);
        readable.ends = readable.ends.saturating_sub(looked_at);
        for &id in &ends[..looked_at] {
            let Some(slot) = keys.get(id) else { continue };
            let Some(record) = slot.record.as_ref().filter(|record| record.run == Some(run)) else {
                continue;
            };
            match record.kind {
                Kind::Rendezvous(RendezvousPart::State) => {
                    has_rounds = true;
                    closed |= slot.value().is_some_and(|value| is_closed(value, &mut readable.bytes));
                }
                Kind::Rendezvous(RendezvousPart::ExitBarrierDone { in_round }) => {
                    all_at_exit |= slot.value().is_some();
                    if !in_round {
                        over.push(id);
                    }
                }
                Kind::Hosted => is_hosted = true,
                // A static run has no rounds: its next start would find the exit barrier open.
                Kind::Rendezvous(RendezvousPart::ExitBarrier { in_round: false }) => over.push(id),
                _ => {}
            }
        }
        if is_hosted {
            return self.forget_run(keys, run, DropCause::RunOver);
        }
        self.add_due(Due::new(over, Filter::Run(run), DropCause::RunOver, age));
        let finished = all_at_exit && (closed || !has_rounds);
        self.runs.set_idle(run, self.forget_at(closed, finished, now), finished, closed);
    }

    /// When the keys of a run go, if it is idle from now on.
    fn forget_at(&self, closed: bool, finished: bool, now: Timestamp) -> Option<Timestamp> {
        let over = Some(self.config.forget_closed_after);
        let after = if closed || finished { over } else { self.config.forget_run_after };
        after.map(|pause| now + pause)
    }

    /// The next moment at which a run, the store or a publisher may have been idle for long enough.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        [self.runs.next_deadline(), self.reset_at, self.published.next_deadline()].into_iter().flatten().min()
    }

    /// Rule 3: the keys of runs that have been idle for long enough are due.
    pub(super) fn take_due_runs(&mut self, keys: &mut KeySpace, now: Timestamp) {
        for (run, cause) in self.runs.take_due(now) {
            self.forget_run(keys, run, cause);
        }
    }

    /// All keys of the run `run_id` are due.
    pub(super) fn take_run(&mut self, keys: &mut KeySpace, run_id: &[u8]) {
        if let Some(run) = self.runs.key_of(run_id) {
            self.forget_run(keys, run, DropCause::Operator);
        }
    }

    fn forget_run(&mut self, keys: &mut KeySpace, run: RunNumber, cause: DropCause) {
        let ids = self.runs.slots(run).to_vec();
        self.add_due(Due::new(ids, Filter::Run(run), cause, keys.new_age()));
    }

    /// Rule 4: whether the job has been gone for long enough. `is_used` says whether any client is connected.
    pub(super) fn take_due_reset(&mut self, now: Timestamp, is_used: bool) -> bool {
        let is_due = self.reset_at.take_if(|at| *at <= now).is_some();
        self.rest_is_due |= is_due && is_used;
        is_due
    }

    /// A client uses a key that matches no pattern: the rest of the store is more than a left-over of the
    /// job.
    #[inline]
    pub(super) fn on_plain_use(&mut self) {
        self.rest_is_due = false;
    }

    /// The last client has disconnected. Returns whether everything is dropped, and why.
    pub(super) fn on_last_left(&mut self) -> Option<DropCause> {
        if self.config.one_job {
            Some(DropCause::OneJob)
        } else {
            std::mem::take(&mut self.rest_is_due).then_some(DropCause::StoreIdle)
        }
    }

    /// Whether a name is kept when the store is emptied for idleness: it was published.
    pub(super) fn outlives_idleness(slot: &Slot) -> bool {
        slot.record.as_ref().is_some_and(|record| record.kind == Kind::Published)
    }

    /// The store was emptied.
    pub(super) fn on_clear(&mut self) {
        self.gone_worker_share = 0;
        self.reset_at = None;
        if let Some(news) = &mut self.news {
            news.forgot_all = true;
        }
        let mut all = std::mem::take(&mut self.notes);
        for notes in all.iter_mut().flatten() {
            notes.worker_share = 0;
            self.set_aside(notes.conn, &mut notes.read);
            if !notes.read.is_empty() {
                self.forgotten.push(std::mem::take(&mut notes.read));
            }
        }
        self.notes = all;
    }
}

fn record_of(keys: &KeySpace, id: SlotId) -> Option<&Record> {
    keys.get(id)?.record.as_deref()
}

fn notes_of(all: &mut [Option<Box<Notes>>], conn: ConnId) -> Option<&mut Notes> {
    all.get_mut(conn.slot())?.as_deref_mut().filter(|notes| notes.conn == conn)
}

/// Updates the name that took the position of another one, if there is such a name.
fn put(keys: &mut KeySpace, moved: Option<SlotId>, set: impl FnOnce(&mut Record)) {
    if let Some(record) = moved.and_then(|id| keys.slot_mut(id).record.as_mut()) {
        set(record);
    }
}

/// Bytes of rendezvous states that are read when a connection closes. The state of a run of over 2000 nodes
/// is longer.
const LONGEST_STATE: usize = 256 * 1024;
/// Names that are read when a connection closes: more than any run has nodes.
const MOST_ENDS: usize = 16 * 1024;

/// How much may still be read to learn how runs ended.
struct Readable {
    bytes: usize,
    ends: usize,
}

/// Whether torchrun's c10d state says `closed`. A state that cannot be read, or that is longer than
/// `readable`, counts as open: its keys go later. The limit keeps hostile values from holding up the store
/// (the worst that a peer can do costs some 10 ms).
fn is_closed(value: &[u8], readable: &mut usize) -> bool {
    use rallypoint_protocol::rendezvous_state::read;
    let Some(left) = readable.checked_sub(value.len()) else { return false };
    *readable = left;
    matches!(read(value), Ok(Some(state)) if state.closed)
}
