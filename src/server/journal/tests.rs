//! Stopped at every step, the journal gives the state of a commit that is no older than the last acknowledged one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::faults::Disk;
use super::open::Failed;
use super::{CommitNumber, Folder, Journal, NoFolder};
use crate::config::{Durability, JournalConfig, OnJournalError};
use crate::core::journal::{Image, KeyRow, LinkRow, Reached, Row, SessionId, SessionRow, StoreId};

/// Short, so that a few commits fill one.
pub(super) const SEGMENT: u32 = 400;

fn config(durability: Durability, on_error: OnJournalError) -> JournalConfig {
    JournalConfig { path: "journal".into(), durability, on_error }
}

pub(super) type Opened = Result<(Arc<Journal>, Image), Failed>;

fn open(disk: &Disk, config: &JournalConfig) -> Opened {
    let (journal, restored) = Journal::with(Box::new(disk.clone()), config, SEGMENT, 1)?;
    Ok((journal, restored.image))
}

/// What a server holds: numbered keys, and one session of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    keys: BTreeMap<u8, u64>,
    /// How far it has come, and the replies that its relay is not done with.
    session: Option<(Reached, Vec<u8>)>,
}

/// A server with one store, and what it held after each of its commits.
pub(super) struct Server {
    pub(super) journal: Arc<Journal>,
    store: StoreId,
    state: State,
    pub(super) states: Vec<State>,
    /// How many of them were acknowledged.
    pub(super) acknowledged: usize,
    pending: Vec<(usize, CommitNumber)>,
    /// The next key that tidying copies.
    next: Option<(super::Tidy, u8)>,
}

fn row(out: &mut Vec<u8>, store: StoreId, key: u8, value: Option<u64>) {
    let bytes = value.unwrap_or(0).to_le_bytes();
    let row = value.is_some().then_some(KeyRow { value: &bytes, life: 0, writer: None });
    Row::Key(store, &[key], row).encode(out);
}

const SESSION: SessionId = SessionId { link: 1, no: 2 };

/// What says who a session is.
fn session_rows(out: &mut Vec<u8>, store: StoreId) {
    Row::Link(SESSION.link, Some(LinkRow { name: b"relay", life: 5, addr: b"10.0.0.1" })).encode(out);
    Row::Session(SESSION, Some(SessionRow::Open { store, conn: 3, client: b"127.0.0.1:4000" })).encode(out);
}

fn state_of(image: &Image) -> State {
    let keys = image.stores.values().flat_map(|store| &store.keys);
    let session = image.links.get(&SESSION.link).and_then(|link| link.sessions.get(&SESSION.no));
    State {
        keys: keys
            .map(|(key, it)| (key[0], u64::from_le_bytes((*it.value).try_into().expect("8 bytes"))))
            .collect(),
        session: session.map(|session| {
            assert!(session.state.is_some() && image.links[&SESSION.link].relay.is_some());
            let (from, replies) = session.unacknowledged();
            assert_eq!(from, session.reached.acknowledged, "a reply is missing");
            (session.reached, replies.concat())
        }),
    }
}

impl Server {
    pub(super) fn start(opened: Opened) -> Option<Self> {
        let (journal, image) = opened.ok()?;
        let state = state_of(&image);
        let store = match image.stores.keys().next() {
            Some(&store) => store,
            None => journal.open_store(29500, b""),
        };
        let states = vec![state.clone()];
        Some(Self { journal, store, state, states, acknowledged: 0, pending: Vec::new(), next: None })
    }

    /// One commit of two keys that belong together: what one has is what the other has. A session asked for it: how far
    /// it has come and its reply are of the same commit.
    pub(super) fn change(&mut self, n: u64) {
        let key = (n % 5) as u8 * 2;
        let value = (!n.is_multiple_of(4)).then_some(n);
        let (store, state) = (self.store, &mut self.state);
        let commit = self.journal.commit(|out| {
            for key in [key, key + 1] {
                row(out, store, key, value);
                match value {
                    Some(value) => drop(state.keys.insert(key, value)),
                    None => drop(state.keys.remove(&key)),
                }
            }
            let (reached, replies) = state.session.get_or_insert_with(|| {
                session_rows(out, store);
                (Reached::default(), Vec::new())
            });
            let reply = n.to_le_bytes();
            Row::Reply(SESSION, reached.replied, &reply).encode(out);
            replies.extend(reply);
            reached.applied += n;
            reached.replied += reply.len() as u64;
            // Its relay is done with most of them, and with a part of one.
            let done = replies.len().saturating_sub(20);
            replies.drain(..done);
            reached.acknowledged += done as u64;
            Row::Reached(SESSION, *reached).encode(out);
        });
        self.states.push(self.state.clone());
        self.pending.push((self.states.len() - 1, commit));
        self.acknowledge();
    }

    pub(super) fn acknowledge(&mut self) {
        let cx = Context::from_waker(Waker::noop());
        self.pending.retain(|&(state, commit)| {
            let is_safe = self.journal.poll_safe(commit, &cx) == Poll::Ready(());
            if is_safe {
                self.acknowledged = self.acknowledged.max(state);
            }
            !is_safe
        });
    }

    /// A small step of tidying.
    pub(super) fn tidy(&mut self) {
        let begun = self.next.or_else(|| Some((self.journal.begin_tidying()?, 0)));
        let Some((tidy, from)) = begun else { return };
        let store = self.store;
        self.journal.commit(|out| {
            for (&key, &value) in self.state.keys.range(from..from + 3) {
                row(out, store, key, Some(value));
            }
            if let (3, Some((reached, replies))) = (from, &self.state.session) {
                session_rows(out, store);
                Row::Reply(SESSION, reached.acknowledged, replies).encode(out);
                Row::Reached(SESSION, *reached).encode(out);
            }
        });
        self.next = Some((tidy, from + 3));
        if from >= 9 {
            self.journal.is_tidy(tidy);
            self.next = None;
        }
    }

    /// What a restart finds is one of the states from the last acknowledged on.
    pub(super) fn check(&self, open: impl Fn() -> Opened) {
        let (_, image) = open().expect("no damage");
        let state = state_of(&image);
        let found = self.states[self.acknowledged..].contains(&state);
        assert!(found, "{state:?} is none of {:?}", &self.states[self.acknowledged..]);
        // Once more: what the last start has cut is not damage.
        let (_, again) = open().expect("no damage");
        assert_eq!(state_of(&again), state);
    }
}

/// Numbers without a pattern, always the same ones.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

#[test]
fn killed_at_any_step_nothing_acknowledged_is_lost() {
    let config = config(Durability::Process, OnJournalError::Stop);
    let mut tidied = 0;
    for steps in 0.. {
        let disk = Disk::stopping_after(steps);
        let Some(mut server) = Server::start(open(&disk, &config)) else { continue };
        for n in 1..150 {
            server.change(n);
            server.tidy();
        }
        let left = disk.after_kill();
        server.check(|| open(&left, &config));
        assert!(disk.is_stopped() || server.pending.is_empty());
        tidied = tidied.max(server.journal.stats().tidied);
        if !disk.is_stopped() {
            break;
        }
    }
    assert!(tidied > 2, "it was tidied {tidied} times");
}

#[test]
fn without_power_at_any_step_nothing_acknowledged_is_lost() {
    let config = config(Durability::Disk, OnJournalError::Stop);
    for steps in 0.. {
        let disk = Disk::stopping_after(steps);
        let Some(mut server) = Server::start(open(&disk, &config)) else { continue };
        for n in 1..100 {
            server.change(n);
            server.tidy();
            if n % 3 == 0 {
                server.journal.sync();
                server.acknowledge();
            }
        }
        for seed in 0..4 {
            let mut random = random(seed * 1000 + steps as u64);
            let kept = || match seed {
                0 => false,
                1 => true,
                _ => !random().is_multiple_of(3),
            };
            let left = disk.after_power_cut(kept);
            server.check(|| open(&left, &config));
        }
        if !disk.is_stopped() {
            assert!(server.acknowledged > 90, "replies leave after a sync");
            break;
        }
    }
}

#[test]
fn replies_wait_for_the_disk_and_are_woken() {
    let disk = Disk::default();
    let mut server =
        Server::start(open(&disk, &config(Durability::Disk, OnJournalError::Stop))).expect("a server");
    server.change(1);
    assert_eq!((server.acknowledged, server.pending.len()), (0, 1));
    assert!(server.journal.sync());
    server.acknowledge();
    assert_eq!(server.acknowledged, 1);
}

#[test]
fn on_a_full_disk_it_goes_on_in_memory_and_is_whole_again_later() {
    for room in 0..200 {
        let config = config(Durability::Process, OnJournalError::Continue);
        let disk = Disk::default();
        let mut server = Server::start(open(&disk, &config)).expect("a server");
        (1..6).for_each(|n| server.change(n));
        let before = server.state.clone();
        disk.limit(Some(room));
        (6..30).for_each(|n| server.change(n));
        assert!(server.pending.is_empty(), "clients go on");
        assert!(server.journal.trouble().is_some());
        let later = Instant::now() + Duration::from_mins(1);
        server.journal.tick(later);
        // Killed now, it is as it was when the disk became full: no later than the last commit that fitted.
        let (_, image) = open(&disk.after_kill(), &config).expect("no damage");
        let found = server.states.iter().position(|state| *state == state_of(&image));
        assert!(found.is_some_and(|state| server.states[state..].contains(&before) || state >= 5));
        disk.limit(None);
        server.journal.tick(later + Duration::from_mins(1));
        assert_eq!(server.journal.trouble(), None);
        // Killed before all of it is written again: as it was, never a mixture.
        server.change(31);
        server.tidy();
        let (_, image) = open(&disk.after_kill(), &config).expect("no damage");
        // What sessions have heard since is not known, so they are over.
        let before = found.map(|state| State { session: None, ..server.states[state].clone() });
        assert_eq!(Some(state_of(&image)), before);
        (32..40).for_each(|n| {
            server.tidy();
            server.change(n);
        });
        let (_, image) = open(&disk.after_kill(), &config).expect("no damage");
        assert_eq!(state_of(&image), server.state);
    }
}

#[test]
fn a_full_disk_may_end_the_server_instead() {
    let disk = Disk::default();
    let mut server =
        Server::start(open(&disk, &config(Durability::Process, OnJournalError::Stop))).expect("a server");
    disk.limit(Some(3));
    server.change(1);
    assert_eq!((server.acknowledged, server.pending.len()), (0, 1), "no reply leaves");
    let mut broken = std::pin::pin!(server.journal.broken());
    assert!(broken.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn many_commits_are_one_write() {
    let disk = Disk::default();
    let mut server =
        Server::start(open(&disk, &config(Durability::Process, OnJournalError::Stop))).expect("a server");
    let store = server.store;
    let commits: Vec<_> = (0..20).map(|n| server.journal.commit(|out| row(out, store, n, Some(1)))).collect();
    let before = server.journal.stats();
    let last = *commits.last().expect("some");
    assert!(server.journal.poll_safe(last, &Context::from_waker(Waker::noop())).is_ready());
    server.acknowledge();
    let after = server.journal.stats();
    assert_eq!((after.writes - before.writes, after.commits - before.commits), (1, 21));
}

#[test]
fn a_folder_is_for_one_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let config = JournalConfig { path, ..config(Durability::Process, OnJournalError::Stop) };
    let (journal, _) = Journal::open(&config).expect("a journal");
    let store = journal.open_store(29500, b"");
    journal.commit(|out| row(out, store, 1, Some(7)));
    journal.close();
    let refused = Folder::take(&config.path).expect_err("in use");
    let own = std::process::id().to_string();
    assert!(matches!(&refused, NoFolder::InUse { holder, .. } if holder.contains(&own)), "{refused}");
    drop(journal);
    let (_, restored) = Journal::open(&config).expect("free again");
    assert_eq!(state_of(&restored.image).keys, BTreeMap::from([(1, 7)]));
}

#[test]
fn damage_names_file_and_byte_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let config =
        JournalConfig { path: folder.path().into(), ..config(Durability::Process, OnJournalError::Stop) };
    let (journal, _) = Journal::open(&config).expect("a journal");
    let store = journal.open_store(29500, b"");
    for n in 0..3 {
        journal.commit(|out| row(out, store, n, Some(7)));
        journal.close();
    }
    drop(journal);
    let file = Folder::look(folder.path()).file(1);
    let mut bytes = std::fs::read(&file).expect("a segment");
    let hit = bytes.len() / 2;
    bytes[hit] ^= 1;
    std::fs::write(&file, &bytes).expect("written");
    let said = Journal::open(&config).expect_err("damaged").to_string();
    assert!(
        said.contains(&*file.to_string_lossy()) && said.contains("byte") && said.contains("journal dump"),
        "{said}"
    );
    assert_eq!(std::fs::read(&file).expect("a segment"), bytes, "nothing was changed");
}

/// The first server is killed, which leaves what it wrote and did not sync. The second reads it and builds on it; then the
/// power goes.
#[test]
fn what_a_killed_server_did_not_sync_is_synced_by_the_next_one() {
    let disk = Disk::default();
    let config = config(Durability::Disk, OnJournalError::Stop);
    let (journal, _) = open(&disk, &config).expect("it opens");
    let store = journal.open_store(29500, b"");
    journal.commit(|out| row(out, store, 1, Some(1)));
    journal.write_queued();
    let disk = disk.after_kill();
    let (journal, image) = open(&disk, &config).expect("it opens");
    assert_eq!(state_of(&image).keys, BTreeMap::from([(1, 1)]), "it may tell this to clients");
    journal.commit(|out| row(out, store, 2, Some(2)));
    assert!(journal.sync());
    let (_, image) = open(&disk.after_power_cut(|| false), &config).expect("it opens");
    assert_eq!(state_of(&image).keys, BTreeMap::from([(1, 1), (2, 2)]));
}
