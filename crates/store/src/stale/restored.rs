//! What the stale-key rules write to a journal, and how they go on from it.

use smallvec::SmallVec;

use super::groups::GroupId;
use super::{
    DropCause, Due, Filter, KeySpace, Members, Notes, Read, Reads, SlotId, StaleKeys, notes_of, runs,
};
use crate::rows::role_number;
use rallypoint_journal::{ClientRow, JobImage, JobRow, Row, StoreId};
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::keys::Role;

/// Two different marks say that the row of the job has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JobMark {
    gone_share: i64,
    idle: u8,
    runs: u64,
}

/// Changes of what connections have read that the journal does not know yet.
#[derive(Debug, Default)]
pub(super) struct News {
    /// All reads were forgotten, before the other changes.
    pub(super) forgot_all: bool,
    pub(super) forgot: Vec<(ConnId, GroupId)>,
    /// Each rank is the rank of an address.
    pub(super) read: Vec<(ConnId, GroupId, u32)>,
}

impl StaleKeys {
    /// The notes on a connection.
    fn notes_on(&self, conn: ConnId) -> Option<&Notes> {
        self.notes.get(conn.slot())?.as_deref().filter(|notes| notes.conn == conn)
    }

    /// From now on, reads of connections are kept for [`Self::take_reads`].
    pub(crate) fn keep_reads(&mut self) {
        self.news = Some(News::default());
        self.groups.keep_gone();
    }

    /// Whether [`Self::take_reads`] has any rows.
    pub(crate) fn has_reads(&self) -> bool {
        let is_news = |news: &News| news.forgot_all || !news.forgot.is_empty() || !news.read.is_empty();
        self.groups.has_gone() || self.news.as_ref().is_some_and(is_news)
    }

    /// Appends the rows of what connections have read, and of removed groups, since the last call.
    pub(crate) fn take_reads(&mut self, store: StoreId, out: &mut Vec<u8>) {
        let Some(News { forgot_all, forgot, read }) = self.news.as_mut().map(std::mem::take) else { return };
        if forgot_all {
            Row::Unread(store, None).encode(out);
        }
        for group in self.groups.take_gone() {
            Row::Unread(store, Some(&group)).encode(out);
        }
        for (conn, group) in forgot {
            if let Some(name) = self.groups.name(group) {
                Row::Read(store, conn.serial(), name, None).encode(out);
            }
        }
        let mut last = None;
        for (conn, group, rank) in read {
            let Some(name) = self.groups.name(group) else { continue };
            let read = self.notes_on(conn).and_then(|notes| notes.read.get(&group));
            let range = read.and_then(|read| read.ranks.range_of(rank));
            // A connection that reads many addresses at once has read one range of ranks.
            if range.is_some() && last.replace((conn, group, range)) != Some((conn, group, range)) {
                Row::Read(store, conn.serial(), name, range).encode(out);
            }
        }
    }

    /// Appends rows of everything that `conn` has read.
    pub(crate) fn copy_reads(&self, store: StoreId, conn: ConnId, out: &mut Vec<u8>) {
        for (&group, read) in self.notes_on(conn).iter().flat_map(|notes| &notes.read) {
            let Some(name) = self.groups.name(group) else { continue };
            for at in 0.. {
                let Some(range) = read.ranks.get(at) else { break };
                Row::Read(store, conn.serial(), name, Some(range)).encode(out);
            }
        }
    }

    /// Restores the reads of `conn`: addresses of these ranks of the group called `name`. Call it after all
    /// keys are restored.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(crate) fn restore_reads(
        &mut self,
        conn: ConnId,
        name: &[u8],
        ranks: impl IntoIterator<Item = (u32, u32)>,
    ) {
        let Some(group) = self.groups.find(name) else { return };
        let Some(notes) = notes_of(&mut self.notes, conn) else { return };
        let mut read = Read::default();
        for (first, last) in ranks {
            read.ranks.insert_range((first, last.max(first)));
        }
        read.noted = self.groups.note_reads(group, &read.ranks, 0);
        self.bytes += Notes::READ_BYTES + read.ranks.bytes();
        if let Some(before) = notes.read.insert(group, read) {
            self.bytes -= Notes::READ_BYTES + before.ranks.bytes();
        }
    }

    /// The row of a job: what is known of it beside its keys and connections.
    pub(crate) fn job_row(&self) -> JobRow<'_> {
        let runs = self.runs.ended().map(|(id, is)| (id.as_bytes(), is)).collect();
        JobRow { gone_share: self.gone_worker_share, idle: self.job_mark().idle, runs }
    }

    /// A mark that changes whenever [`Self::job_row`] may have changed.
    pub(crate) fn job_mark(&self) -> JobMark {
        let idle = if self.rest_is_due { 2 } else { u8::from(self.reset_at.is_some()) };
        JobMark { gone_share: self.gone_worker_share, idle, runs: self.runs.changes() }
    }

    /// The connections about which something is known.
    pub(crate) fn known(&self) -> impl Iterator<Item = ConnId> {
        self.notes.iter().flatten().map(|notes| notes.conn)
    }

    /// The row of a connection, without its wait at a barrier.
    pub(crate) fn client_row(&self, conn: ConnId) -> Option<ClientRow<'_>> {
        let notes = self.notes_on(conn)?;
        let runs = notes.runs.iter().filter_map(|&run| Some(self.runs.id_of(run)?.as_bytes()));
        let role = role_number(notes.role);
        Some(ClientRow {
            role,
            worker_share: notes.worker_share,
            runs: runs.collect(),
            barrier: None,
            pid: None,
        })
    }

    /// Restores a job from its row, after its keys. All pauses begin now.
    pub(crate) fn restore_job(&mut self, job: &JobImage, now: Timestamp) {
        self.gone_worker_share = job.gone_share;
        match job.idle {
            0 => {}
            1 => self.reset_at = self.config.reset_when_idle.map(|pause| now + pause),
            _ => self.rest_is_due = true,
        }
        for (id, is) in &job.runs {
            let Some(run) = self.runs.key_of(id) else { continue };
            let (closed, finished) = (is & runs::CLOSED != 0, is & runs::FINISHED != 0);
            let forget_at = self.forget_at(closed, finished, now).filter(|_| is & runs::LEAVING != 0);
            self.runs.set_idle(run, forget_at, finished, closed);
        }
    }

    /// Restores a connection of a job.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(crate) fn restore_client<'r>(
        &mut self,
        conn: ConnId,
        role: Role,
        worker_share: i64,
        runs: impl Iterator<Item = &'r [u8]>,
    ) {
        if self.notes.len() <= conn.slot() {
            self.notes.resize_with(conn.slot().saturating_add(1), || None);
        }
        let runs: SmallVec<_> = runs.filter_map(|run| self.runs.key_of(run)).collect();
        for &run in &runs {
            self.runs.connect(run);
        }
        self.job_connections += 1;
        self.workers += usize::from(role == Role::Worker);
        self.agents += usize::from(role == Role::Agent);
        let (wrote, read) = (Members::default(), Reads::new());
        self.notes[conn.slot()] = Some(Box::new(Notes { conn, role, worker_share, wrote, read, runs }));
    }

    /// Restores a name whose writer was gone already, or is not known.
    pub(crate) fn restore_orphan(&mut self, keys: &mut KeySpace, writer: u32, id: SlotId) {
        let gone = ConnId::new(u32::MAX, writer);
        if Self::restore_published(keys, gone, id) {
            return;
        }
        self.on_write(keys, gone, id);
        let age = keys.new_age();
        self.add_due(Due::new(vec![id], Filter::Writer(gone), DropCause::WriterGone, age));
    }

    /// If no connection of a job is left, what its attempt left behind goes.
    pub(crate) fn restore_leftovers(&mut self, keys: &mut KeySpace) {
        if self.job_connections == 0 {
            let ids = self.leftovers.as_slice().to_vec();
            let (filter, age) = (Filter::Attempt { only_agents: true }, keys.new_age());
            self.add_due(Due::new(ids, filter, DropCause::AttemptOver, age));
        }
    }
}
