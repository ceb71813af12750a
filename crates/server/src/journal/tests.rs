//! Stopped at any step, the journal has the state of a whole commit, no older than the last acknowledged one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::backend::file;
use super::faults::{Disk, Refused};
use super::open::Failed;
use super::{CommitNumber, Folder, Journal, Look, NoFolder, Segments, read};
use crate::config::{Durability, JournalConfig, OnJournalError};
use rallypoint_journal::{Image, KeyRow, LinkRow, Reached, Row, SessionId, SessionRow, StoreId};

/// Short, so that a few commits fill a segment.
pub(super) const SEGMENT: u32 = 400;

fn config(durability: Durability, on_error: OnJournalError) -> JournalConfig {
    JournalConfig { path: "journal".into(), durability, on_error }
}

pub(super) type Opened = Result<(Arc<Journal>, Image), Failed>;

fn open(disk: &Disk, config: &JournalConfig) -> Opened {
    let (journal, restored) = Journal::with(Box::new(disk.clone()), config, SEGMENT, 1)?;
    Ok((journal, restored.image))
}

/// The state of a test server: numbered keys, and one session of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    keys: BTreeMap<u8, u64>,
    /// How far the session has come, and the replies that its relay still needs.
    session: Option<(Reached, Vec<u8>)>,
}

/// A server with one store, and its state after each commit.
pub(super) struct Server {
    pub(super) journal: Arc<Journal>,
    store: StoreId,
    state: State,
    pub(super) states: Vec<State>,
    /// How many of the states were acknowledged.
    pub(super) acknowledged: usize,
    pending: Vec<(usize, CommitNumber)>,
    /// The copy in progress, and the next key to copy.
    next: Option<(super::Tidy, u8)>,
}

fn row(out: &mut Vec<u8>, store: StoreId, key: u8, value: Option<u64>) {
    let bytes = value.unwrap_or(0).to_le_bytes();
    let row = value.is_some().then_some(KeyRow { value: &bytes, life: 0, writer: None });
    Row::Key(store, &[key], row).encode(out);
}

const SESSION: SessionId = SessionId { link: 1, no: 2 };

/// The rows that introduce the session.
fn session_rows(out: &mut Vec<u8>, store: StoreId) {
    Row::Link(SESSION.link, Some(LinkRow { name: b"relay", life: 5, addr: b"10.0.0.1", runs: None }))
        .encode(out);
    Row::Session(SESSION, Some(SessionRow::Open { store, conn: 3, client: b"127.0.0.1:4000" })).encode(out);
}

fn state_of(image: &Image) -> State {
    let keys = image.stores.values().flat_map(|store| store.keys.entries());
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

    /// Makes one commit of two keys that always have equal values. A session asked for it: its progress and
    /// its reply are in the same commit.
    pub(super) fn change(&mut self, n: u64) {
        self.queue(n);
        self.acknowledge();
    }

    /// Like [`Self::change`], without a write.
    fn queue(&mut self, n: u64) {
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
            // The relay needs most replies no more, nor a part of one.
            let done = replies.len().saturating_sub(20);
            replies.drain(..done);
            reached.acknowledged += done as u64;
            Row::Reached(SESSION, *reached).encode(out);
        });
        self.states.push(self.state.clone());
        self.pending.push((self.states.len() - 1, commit));
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

    /// Makes a small step of tidying.
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

    /// A restart finds one of the states since the last acknowledged one.
    pub(super) fn check(&self, open: impl Fn() -> Opened) {
        let (_, image) = open().expect("no damage");
        let state = state_of(&image);
        let found = self.states[self.acknowledged..].contains(&state);
        assert!(found, "{state:?} is none of {:?}", &self.states[self.acknowledged..]);
        // Open it again: the part that the last start cut must not count as damage.
        let (_, again) = open().expect("no damage");
        assert_eq!(state_of(&again), state);
    }
}

/// Pseudo-random numbers, equal for equal seeds.
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

/// At least as long as the pause before the next attempt.
const LONG: Duration = Duration::from_mins(1);

impl Server {
    /// Makes steps until the journal is whole.
    fn recover(&mut self, mut now: Instant) {
        for n in 1000.. {
            now += LONG;
            self.journal.tick(now);
            self.tidy();
            self.change(n);
            if self.journal.trouble().is_none() {
                break;
            }
            assert!(n < 1100, "{:?}", self.journal.trouble());
        }
    }
}

#[test]
fn on_a_full_disk_it_goes_on_in_memory_and_is_whole_again_later() {
    for room in 0..200 {
        let config = config(Durability::Process, OnJournalError::Continue);
        let disk = Disk::default();
        let mut server = Server::start(open(&disk, &config)).expect("a server");
        (1..6).for_each(|n| server.change(n));
        disk.limit(Some(room));
        (6..30).for_each(|n| server.change(n));
        assert!(server.pending.is_empty(), "clients go on");
        assert!(server.journal.trouble().is_some());
        // A restart after a kill finds the state when the disk became full: not before the last commit that
        // fitted.
        let (_, image) = open(&disk.after_kill(), &config).expect("no damage");
        let found = server.states.iter().position(|state| *state == state_of(&image));
        assert!(found.is_some_and(|state| state >= 5), "{found:?}");
        let before = found.map(|state| server.states[state].keys.clone());
        let is_as_before = |disk: &Disk| {
            let (_, image) = open(&disk.after_kill(), &config).expect("no damage");
            assert_eq!(Some(state_of(&image).keys), before);
            state_of(&image)
        };
        let later = Instant::now() + LONG;
        server.journal.tick(later);
        let _state = is_as_before(&disk);
        disk.limit(None);
        server.journal.tick(later + LONG);
        // A kill before the copy is complete leaves the old state, never a mixture.
        server.change(31);
        server.tidy();
        assert!(server.journal.trouble().is_some(), "what was acknowledged is not all there yet");
        // The replies of the sessions since then are unknown, so the sessions are over.
        assert_eq!(is_as_before(&disk).session, None);
        server.recover(later + LONG);
        let (_, image) = open(&disk.after_kill(), &config).expect("no damage");
        assert_eq!(state_of(&image), server.state);
    }
}

#[test]
fn attempts_leave_nothing_on_a_disk_that_is_freed_in_steps() {
    for durability in [Durability::Process, Durability::Disk] {
        let config = config(durability, OnJournalError::Continue);
        let disk = Disk::default();
        let mut server = Server::start(open(&disk, &config)).expect("a server");
        (1..10).for_each(|n| server.change(n));
        disk.limit(Some(0));
        server.change(10);
        server.journal.sync();
        assert!(server.journal.trouble().is_some());
        let left = disk.used();
        let (mut now, mut attempts) = (Instant::now(), 0);
        for n in 11.. {
            // A little more room each time; each attempt must have all of it.
            let room = n as usize * 10 - 100;
            disk.limit(Some((left + room).saturating_sub(disk.used())));
            now += LONG;
            let before = server.journal.stats().errors;
            server.journal.tick(now);
            for _ in 0..12 {
                server.tidy();
                server.journal.write_queued();
                server.journal.sync();
            }
            if server.journal.trouble().is_none() {
                break;
            }
            attempts += server.journal.stats().errors - before;
            assert_eq!(disk.used(), left, "what an attempt has written is removed");
            assert!(room < 2000);
            server.change(n);
        }
        assert!(attempts > 3, "{attempts} attempts");
        let (_, image) = open(&disk.after_kill(), &config).expect("no damage");
        assert_eq!(state_of(&image), server.state);
    }
}

/// The system reports once that it cannot sync, and drops the bytes: the next sync reports nothing.
#[test]
fn what_could_not_be_synced_is_not_trusted() {
    for on_error in [OnJournalError::Continue, OnJournalError::Stop] {
        let config = config(Durability::Disk, on_error);
        let disk = Disk::default();
        let mut server = Server::start(open(&disk, &config)).expect("a server");
        (1..4).for_each(|n| server.change(n));
        assert!(server.journal.sync());
        server.acknowledge();
        let before = server.states.len() - 1;
        assert_eq!(server.acknowledged, before);
        disk.refuse(Some(Refused::Sync));
        server.change(4);
        assert!(!server.journal.sync());
        disk.refuse(None);
        server.acknowledge();
        assert_eq!(server.acknowledged > before, on_error == OnJournalError::Continue);
        // State that a start has read must not be lost later.
        let left = disk.after_kill();
        let (journal, image) = open(&left, &config).expect("it opens");
        assert_eq!(state_of(&image), server.states[before]);
        journal.commit(|out| row(out, server.store, 99, Some(1)));
        assert!(journal.sync());
        let (_, again) = open(&left.after_power_cut(|| false), &config).expect("no damage");
        assert_eq!(state_of(&again).keys.len(), server.states[before].keys.len() + 1);
        if on_error == OnJournalError::Continue {
            server.recover(Instant::now());
            assert!(server.journal.sync());
            let (_, image) = open(&disk.after_power_cut(|| false), &config).expect("no damage");
            assert_eq!(state_of(&image), server.state);
        }
    }
}

#[test]
fn a_segment_that_cannot_be_removed_is_removed_later() {
    let config = config(Durability::Process, OnJournalError::Continue);
    let disk = Disk::default();
    let mut server = Server::start(open(&disk, &config)).expect("a server");
    disk.refuse(Some(Refused::Remove));
    (1..60).for_each(|n| {
        server.tidy();
        server.change(n);
    });
    assert!(server.journal.stats().tidied > 1);
    let many = disk.list().expect("a list").len();
    assert_eq!(many as u64, server.journal.stats().segments);
    disk.refuse(None);
    (60..100).for_each(|n| {
        server.tidy();
        server.change(n);
    });
    assert!(disk.list().expect("a list").len() < many.min(5));
    server.check(|| open(&disk.after_kill(), &config));
}

/// A disk that refuses operations at random, and a death at some moment. The next server finds a state that
/// once was, no older than the last one acknowledged while all was well. Or the journal reports a missing
/// part, if it did not promise to survive a loss of power.
#[test]
fn whatever_the_disk_refuses_no_state_is_left_that_never_was() {
    let (mut damaged, mut troubles) = (0, 0);
    for seed in 0..3000 {
        let random = &mut random(seed);
        let durability = if seed % 2 == 0 { Durability::Process } else { Durability::Disk };
        let config = config(durability, OnJournalError::Continue);
        let disk = Disk::default();
        let mut server = Server::start(open(&disk, &config)).expect("a server");
        let (mut now, mut floor) = (Instant::now(), 0);
        for n in 1..random() % 80 + 5 {
            let before = server.acknowledged;
            let was_well = server.journal.trouble().is_none();
            match random() % 16 {
                0 => disk.limit(Some((random() % 300) as usize)),
                1..=2 => disk.limit(None),
                3 => disk.refuse(Some(Refused::Sync)),
                4 => disk.refuse(Some(Refused::Create)),
                5 => disk.refuse(Some(Refused::Remove)),
                6..=7 => disk.refuse(None),
                8 => {
                    now += LONG;
                    server.journal.tick(now);
                }
                9..=11 => server.tidy(),
                12 => drop(server.journal.sync()),
                13 => {
                    server.queue(n);
                    server.tidy();
                }
                _ => server.change(n),
            }
            server.acknowledge();
            match server.journal.trouble() {
                None => floor = server.acknowledged,
                Some(_) if was_well => (floor, troubles) = (before, troubles + 1),
                Some(_) => {}
            }
        }
        let is_power_cut = seed % 4 >= 2;
        let left = if is_power_cut {
            disk.after_power_cut(|| !random().is_multiple_of(4))
        } else {
            disk.after_kill()
        };
        match open(&left, &config) {
            Ok((_, image)) => {
                let floor = if is_power_cut && durability == Durability::Process { 0 } else { floor };
                let found = state_of(&image);
                // The replies of the sessions may be unknown.
                let fits =
                    |state: &State| state.keys == found.keys && (found.session.is_none() || *state == found);
                assert!(server.states[floor..].iter().any(fits), "seed {seed}: {found:?} from {floor} on");
            }
            Err(error) => {
                assert!(is_power_cut && durability == Durability::Process, "seed {seed}: {error:?}");
                damaged += 1;
            }
        }
    }
    assert!(damaged > 10 && troubles > 100, "{damaged} damaged, {troubles} troubles");
}

fn real(path: &std::path::Path) -> JournalConfig {
    JournalConfig { path: path.into(), ..config(Durability::Process, OnJournalError::Continue) }
}

/// The state that the next server finds in this folder.
fn left_in(path: &std::path::Path) -> State {
    let look = Look::at(path).expect("it can be read");
    state_of(&read(&look, |_, _| ()).expect("it can be read").expect("no damage").image)
}

fn in_folder(path: &std::path::Path) -> Opened {
    let folder = Folder::take(path).expect("a folder");
    let (journal, restored) = Journal::with(Box::new(folder), &real(path), SEGMENT, 1)?;
    Ok((journal, restored.image))
}

#[test]
fn a_folder_that_is_removed_is_noticed_and_made_again() {
    let outside = tempfile::tempdir().expect("a folder");
    let path = outside.path().join("journal");
    let moved = outside.path().join("moved");
    let mut server = Server::start(in_folder(&path)).expect("a server");
    (1..20).for_each(|n| {
        server.change(n);
        server.tidy();
    });
    let now = Instant::now();
    server.journal.tick(now);
    assert_eq!(server.journal.trouble(), None);
    // Remove the whole folder, or rename it.
    for removed in [true, false] {
        if removed {
            std::fs::remove_dir_all(&path).expect("removed");
        } else {
            std::fs::rename(&path, &moved).expect("moved");
        }
        server.journal.tick(now);
        let said = server.journal.trouble().expect("it is noticed");
        assert!(said.contains(&*path.to_string_lossy()) && said.contains("removed"), "{said}");
        server.recover(now);
        assert_eq!(left_in(&path), server.state);
        assert!(Folder::take(&path).is_err(), "it is locked again");
    }
    // Remove one segment.
    std::fs::remove_file(file(
        &path,
        *Look::at(&path).and_then(|it| it.list()).expect("some").last().expect("one"),
    ))
    .expect("removed");
    server.journal.tick(now);
    assert!(server.journal.trouble().is_some_and(|said| said.contains(".rows was removed")));
    server.recover(now);
    assert_eq!(left_in(&path), server.state);
    // Another journal takes the folder's place.
    std::fs::remove_dir_all(&path).expect("removed");
    std::fs::rename(&moved, &path).expect("moved");
    let other = left_in(&path);
    server.journal.tick(now);
    server.journal.tick(now + LONG);
    assert!(server.journal.trouble().is_some_and(|said| said.contains("another journal")));
    assert_eq!(left_in(&path), other, "it is left alone");
}

#[test]
fn a_look_into_a_folder_sees_one_moment_of_it() {
    let outside = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(in_folder(outside.path())).expect("a server");
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1.. {
                server.change(n);
                server.tidy();
                if ends.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut last = 0;
        let mut moved_on = 0;
        for _ in 0..100 {
            let look = Look::at(outside.path()).expect("it can be read");
            let first = look.list().expect("a list")[0];
            // Some segments are removed during the reading.
            std::thread::sleep(Duration::from_millis(1));
            let read = read(&look, |_, _| ()).expect("it can be read").expect("no damage");
            let _state = state_of(&read.image);
            moved_on += u32::from(first > last);
            last = first;
        }
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(moved_on > 10, "it was tidied {moved_on} times meanwhile");
    });
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
    let file = file(folder.path(), 1);
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

/// The first server is killed and leaves bytes that it did not sync. The second server reads them and builds
/// on them; then the power fails.
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

#[test]
fn a_segment_that_is_written_again_has_the_same_bytes() {
    use super::Backend as _;
    let path = tempfile::tempdir().expect("a folder");
    let folder = Folder::take(path.path()).expect("a folder");
    for bytes in [Vec::new(), vec![7; 3], (0..3_000_000_u32).map(|n| (n / 1000) as u8).collect()] {
        let segment = file(path.path(), 1);
        std::fs::write(&segment, &bytes).expect("written");
        let open = std::fs::OpenOptions::new().write(true).open(&segment).expect("a file");
        open.set_modified(std::time::UNIX_EPOCH).expect("an old file");
        folder.write_again(1).expect("written again");
        let written =
            segment.metadata().and_then(|it| it.modified()).expect("a time") > std::time::UNIX_EPOCH;
        assert_eq!(written, !bytes.is_empty(), "{} bytes", bytes.len());
        assert!(std::fs::read(&segment).expect("read") == bytes, "{} bytes", bytes.len());
    }
}
