//! Journals that are cut or damaged anywhere: recovery gives the state of the last whole commit, or an error
//! that names the place.

use proptest::collection::vec;
use proptest::prelude::*;

use super::segment::{COMMIT, End, Header, Position, seal};
use super::*;

/// A row without borrowed parts, for random tests.
#[derive(Debug, Clone)]
enum Said {
    Epoch(u64),
    Link(LinkId, Option<u64>),
    Session(SessionId, Option<(StoreId, u32)>),
    Over(SessionId),
    Reached(SessionId, u64, u64),
    Reply(SessionId, u64, Vec<u8>),
    Store(StoreId, Option<u16>),
    Key(StoreId, u8, Option<(Vec<u8>, u32, Option<u32>)>),
    Part(StoreId, u8, u64, Vec<u8>),
    Item(StoreId, u8, u64),
    Queue(StoreId, u8, u64, u64),
    Client(StoreId, u32, Option<(u8, i64, Vec<u8>)>),
    GoneShare(StoreId, i64),
    Read(StoreId, u32, u8, Option<(u32, u32)>),
    Unread(StoreId, Option<u8>),
    Entry(usize, u8, Option<Vec<u8>>),
}

fn said() -> impl Strategy<Value = Said> {
    let bytes = || vec(any::<u8>(), 0..200);
    let store = 1..4_u32;
    let key = 0..4_u8;
    let session = || (0..3_u32, 0..3_u32).prop_map(|(link, no)| SessionId { link, no });
    prop_oneof![
        any::<u64>().prop_map(Said::Epoch),
        (store.clone(), any::<Option<u16>>()).prop_map(|(store, port)| Said::Store(store, port)),
        (store.clone(), key.clone(), proptest::option::of((bytes(), any::<u32>(), any::<Option<u32>>())))
            .prop_map(|(store, key, row)| Said::Key(store, key, row)),
        (store.clone(), key.clone(), 0..200_u64, bytes())
            .prop_map(|(s, key, at, more)| Said::Part(s, key, at, more)),
        (store.clone(), key.clone(), 0..6_u64).prop_map(|(store, key, n)| Said::Item(store, key, n)),
        (store.clone(), key.clone(), 0..6_u64, 0..6_u64).prop_map(|(s, k, a, b)| Said::Queue(s, k, a, b)),
        (store.clone(), 0..3_u32, any::<Option<(u8, i64, Vec<u8>)>>())
            .prop_map(|(store, client, row)| Said::Client(store, client, row)),
        (store.clone(), any::<i64>()).prop_map(|(store, share)| Said::GoneShare(store, share)),
        (store.clone(), 0..3_u32, key.clone(), any::<Option<(u32, u32)>>())
            .prop_map(|(store, client, key, ranks)| Said::Read(store, client, key, ranks)),
        (store.clone(), proptest::option::of(key.clone())).prop_map(|(store, key)| Said::Unread(store, key)),
        (0..3_u32, any::<Option<u64>>()).prop_map(|(link, life)| Said::Link(link, life)),
        (session(), any::<Option<(StoreId, u32)>>()).prop_map(|(id, row)| Said::Session(id, row)),
        session().prop_map(Said::Over),
        (session(), any::<u64>(), 0..500_u64).prop_map(|(id, at, done)| Said::Reached(id, at, done)),
        (session(), 0..500_u64, bytes()).prop_map(|(id, at, bytes)| Said::Reply(id, at, bytes)),
        (0..Table::ALL.len(), key, proptest::option::of(bytes()))
            .prop_map(|(table, id, body)| Said::Entry(table, id, body)),
    ]
}

fn epoch(number: u64) -> Epoch {
    Epoch { number, life: number.wrapping_mul(7) }
}

impl Said {
    fn with<T>(&self, give: impl FnOnce(Row<'_>) -> T) -> T {
        let row = match self {
            Self::Epoch(number) => Row::Epoch(epoch(*number)),
            Self::Link(link, life) => Row::Link(
                *link,
                life.map(|life| LinkRow {
                    name: b"relay",
                    life,
                    addr: b"10.0.0.1",
                    runs: life.is_multiple_of(2).then_some(&b"a-*"[..]),
                }),
            ),
            Self::Session(id, row) => {
                let client = b"127.0.0.1:4000";
                let row = row.map(|(store, conn)| SessionRow::Open { store, conn, client });
                Row::Session(*id, row)
            }
            Self::Over(id) => Row::Session(*id, Some(SessionRow::Over)),
            Self::Reached(id, at, acknowledged) => {
                let reached =
                    Reached { applied: *at, replied: *at, acknowledged: *acknowledged, ..Reached::default() };
                Row::Reached(*id, reached)
            }
            Self::Reply(id, at, bytes) => Row::Reply(*id, *at, bytes),
            Self::Store(store, port) => {
                Row::Store(*store, port.map(|port| OpenStore { port, owner: b"run" }))
            }
            Self::Key(store, key, row) => {
                let row = row.as_ref();
                let row = row.map(|(value, life, writer)| KeyRow { value, life: *life, writer: *writer });
                return give(Row::Key(*store, &[*key], row));
            }
            Self::Part(store, key, at, more) => return give(Row::Part(*store, &[*key], *at, more)),
            Self::Item(store, key, number) => {
                return give(Row::Item(*store, &[*key], *number, &number.to_le_bytes()));
            }
            Self::Queue(store, key, first, next) => {
                return give(Row::Queue(*store, &[*key], *first, *next));
            }
            Self::Client(store, client, row) => {
                let row = row.as_ref().map(|(role, worker_share, run)| ClientRow {
                    role: *role,
                    worker_share: *worker_share,
                    runs: vec![run],
                    barrier: (!run.is_empty()).then_some(BarrierPlace { key: run, arrivals: 1, life: 7 }),
                    pid: (*role != 1).then_some(4711),
                });
                Row::Client(*store, *client, row)
            }
            Self::GoneShare(store, share) => {
                Row::Job(*store, JobRow { gone_share: *share, idle: 1, runs: vec![(b"job", 5)] })
            }
            Self::Read(store, client, group, ranks) => {
                return give(Row::Read(*store, *client, &[*group], *ranks));
            }
            Self::Unread(store, None) => Row::Unread(*store, None),
            Self::Unread(store, Some(group)) => return give(Row::Unread(*store, Some(&[*group]))),
            Self::Entry(table, id, body) => {
                return give(Row::Entry(Table::ALL[*table], &[*id], body.as_deref()));
            }
        };
        give(row)
    }
}

/// A segment with these commits, and the end of each. Each commit says that everything before it is safe.
fn segment(number: u64, anew: bool, commits: &[Vec<Said>]) -> (Vec<u8>, Vec<usize>) {
    behind(Some(End::default()), number, anew, commits)
}

/// The end of a segment.
fn end_of(number: u64, bytes: &[u8]) -> Option<End> {
    End { segment: number, ..End::default() }.with(bytes)
}

/// A segment that follows this one.
fn behind(follows: Option<End>, number: u64, anew: bool, commits: &[Vec<Said>]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Header { number, anew, follows }.encode();
    let mut ends = vec![bytes.len()];
    for commit in commits {
        let mut sealed = vec![0; COMMIT];
        for said in commit {
            said.with(|row| row.encode(&mut sealed));
        }
        let at = u32::try_from(bytes.len()).expect("short");
        seal(&mut sealed, Position { segment: number, at }, at).expect("short");
        bytes.extend(sealed);
        ends.push(bytes.len());
    }
    (bytes, ends)
}

fn image_of(commits: &[Vec<Said>]) -> Image {
    let mut image = Image::default();
    for said in commits.iter().flatten() {
        said.with(|row| image.apply(row));
    }
    image.drop_remains();
    image
}

fn recover(segments: &[(u64, &[u8])]) -> Result<Recovered, Damage> {
    let up_to = |end| {
        let mut recovery = Recovery::default();
        for (n, (number, bytes)) in segments.iter().enumerate().filter(|(_, (number, _))| *number < end) {
            let next = segments.get(n + 1).map(|(_, next)| Header::decode(next));
            recovery.read(*number, &mut { *bytes }, next)?;
        }
        recovery.finish()
    };
    let all = up_to(u64::MAX)?;
    match all.unfinished {
        Some(first) => Ok(Recovered { image: up_to(first)?.image, ..all }),
        None => Ok(all),
    }
}

fn some_commits() -> impl Strategy<Value = Vec<Vec<Said>>> {
    vec(vec(said(), 0..4), 1..8)
}

fn key(store: StoreId, key: u8, value: &[u8]) -> Said {
    Said::Key(store, key, Some((value.to_vec(), 0, None)))
}

proptest! {
    #[test]
    fn rows_come_back(said in said()) {
        said.with(|row| {
            let mut out = Vec::new();
            row.encode(&mut out);
            let read: Vec<_> = rows(&out).collect();
            assert_eq!(read, [Ok(Some(row))]);
        });
    }

    #[test]
    fn cut_anywhere_it_is_the_state_of_the_last_whole_commit(
        first in some_commits(), last in some_commits(), cut in any::<prop::sample::Index>(),
    ) {
        let (whole, _) = segment(7, false, &first);
        let (bytes, ends) = behind(end_of(7, &whole), 8, false, &last);
        let cut = cut.index(bytes.len() + 1);
        let read = recover(&[(7, &whole), (8, &bytes[..cut])]).expect("no damage");
        let commits = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1);
        let all = [first, last[..commits].to_vec()].concat();
        prop_assert_eq!(&read.image, &image_of(&all));
        prop_assert_eq!(read.commits, all.len() as u64);
        let end = ends.iter().rev().find(|end| **end <= cut).copied();
        // Without a whole header everything is cut off, even if that is nothing.
        let at = end.unwrap_or(0);
        let torn = || Torn { segment: 8, at: at as u32, len: (cut - at) as u64 };
        let torn = end.is_none_or(|end| end < cut).then(torn);
        prop_assert_eq!(read.torn, Vec::from_iter(torn));
    }

    #[test]
    fn a_flipped_bit_is_named_or_at_the_end(
        commits in some_commits(), at in any::<prop::sample::Index>(), bit in 0..8_u32,
    ) {
        let (mut bytes, ends) = segment(3, false, &commits);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // The damaged commit, by its start. Damage in the header is reported at byte 0.
        let hit = ends.iter().rposition(|end| *end <= at);
        let read = recover(&[(3, &bytes)]);
        match hit {
            Some(n) if n + 2 == ends.len() => {
                // The last commit: nothing says that it was ever acknowledged.
                let read = read.expect("cut");
                prop_assert_eq!(&read.image, &image_of(&commits[..n]));
                let len = (bytes.len() - ends[n]) as u64;
                prop_assert_eq!(read.torn, [Torn { segment: 3, at: ends[n] as u32, len }]);
            }
            _ => {
                let damage = read.expect_err("damage");
                let start = hit.map_or(0, |n| ends[n]);
                prop_assert_eq!((damage.segment, damage.at as usize), (3, start));
            }
        }
        // In a segment that has a successor, no commit may be missing.
        let (next, _) = behind(end_of(3, &bytes), 4, false, &commits);
        prop_assert!(recover(&[(3, &bytes), (4, &next)]).is_err());
    }

    #[test]
    fn rows_that_are_copied_again_change_nothing(
        commits in some_commits(),
        again in any::<prop::sample::Index>(),
    ) {
        let image = image_of(&commits);
        let mut copied = image.clone();
        let from = again.index(commits.len());
        for said in commits[from..].iter().flatten() {
            said.with(|row| copied.apply(row));
        }
        copied.drop_remains();
        // The copy begins at any commit and repeats all later ones. If some rows remove others, their order
        // counts.
        let takes_away = |said: &Said| {
            use Said::{Unread, Item, Link, Part, Over, Queue, Reached, Read, Session, Store};
            matches!(said, Store(..) | Queue(..) | Item(..) | Part(..) | Read(..) | Unread(..))
                || matches!(said, Link(..) | Session(..) | Over(..) | Reached(..))
        };
        prop_assert!(commits[from..].iter().flatten().any(takes_away) || copied == image);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        let mut all = Header { number: 1, anew: false, follows: Some(End::default()) }.encode();
        all.extend(&bytes);
        let _ = recover(&[(1, &all)]);
        let _ = recover(&[(1, &bytes)]);
        rows(&bytes).for_each(drop);
    }
}

#[test]
fn a_row_of_a_newer_release_is_refused_or_passed_over_by_its_kind() {
    let read: Vec<_> = rows(&[100, 2, 1, 2]).collect();
    assert_eq!(read, [Err(BadRow::Newer(100))]);
    let mut passed_over = vec![200, 2, 1, 2];
    Row::Epoch(epoch(4)).encode(&mut passed_over);
    assert_eq!(rows(&passed_over).collect::<Vec<_>>(), [Ok(None), Ok(Some(Row::Epoch(epoch(4))))]);
    // Fields that a newer release has added, and a field that an older release does not write.
    let read = |bytes| rows(bytes).collect::<Vec<_>>();
    assert_eq!(read(&[1, 4, 9, 8, 7, 6]), [Ok(Some(Row::Epoch(Epoch { number: 9, life: 8 })))]);
    assert_eq!(read(&[1, 1, 9]), [Ok(Some(Row::Epoch(Epoch { number: 9, life: 0 })))]);
    assert_eq!(rows(&[1, 0]).collect::<Vec<_>>(), [Err(BadRow::Malformed(1))]);
    assert_eq!(rows(&[1, 9, 1]).collect::<Vec<_>>(), [Err(BadRow::Malformed(1))]);
}

#[test]
fn a_segment_of_a_newer_format_is_refused() {
    let mut header = Header { number: 1, anew: false, follows: Some(End::default()) }.encode();
    let format = segment::FORMAT + 1;
    header[8..10].copy_from_slice(&format.to_le_bytes());
    // All releases look for the checksum here.
    let crc = crc32c::crc32c(&header[..20]);
    header[20..24].copy_from_slice(&crc.to_le_bytes());
    let refused = recover(&[(1, &header)]).expect_err("newer");
    assert_eq!(refused.what, WhatIsWrong::NewerFormat(format));
    assert!(refused.to_string().contains("newer release"), "{refused}");
}

#[test]
fn a_missing_segment_is_named() {
    let (one, _) = segment(1, false, &[vec![]]);
    let (two, _) = behind(end_of(1, &one), 2, false, &[vec![]]);
    let (three, _) = behind(end_of(2, &two), 3, false, &[vec![]]);
    assert!(recover(&[(1, &one), (2, &two), (3, &three)]).is_ok());
    let missing = |segment| Damage { segment, at: 0, what: WhatIsWrong::Missing };
    assert_eq!(recover(&[(1, &one), (3, &three)]), Err(missing(2)));
    // Nothing says that the rest is all that counts.
    assert_eq!(recover(&[(2, &two), (3, &three)]), Err(missing(1)));
    assert_eq!(recover(&[(3, &three)]), Err(missing(2)));
    // In the first format, only the number of the segment says it.
    let (old, _) = behind(None, 2, false, &[vec![]]);
    assert_eq!(recover(&[(2, &old)]), Err(missing(1)));
}

#[test]
fn what_was_before_a_whole_copy_may_be_gone() {
    let whole = |number| {
        let (mut bytes, ends) =
            behind(Some(End { segment: number - 1, at: 99, sum: 7 }), number, false, &[vec![]]);
        let mut commit = vec![0; COMMIT];
        Row::Whole(number).encode(&mut commit);
        let at = *ends.last().expect("an end") as u32;
        seal(&mut commit, Position { segment: number, at }, at).expect("short");
        bytes.extend(commit);
        bytes
    };
    let three = whole(3);
    assert!(recover(&[(3, &three)]).is_ok());
    // The journal was tidied, and the removal of earlier segments had come as far as this one.
    let (two, _) = behind(Some(End { segment: 1, at: 99, sum: 7 }), 2, false, &[vec![]]);
    let mut three = three;
    let header = Header { number: 3, anew: false, follows: end_of(2, &two) }.encode();
    three[..header.len()].copy_from_slice(&header);
    assert!(recover(&[(2, &two), (3, &three)]).is_ok());
    let (four, _) = behind(end_of(3, &three), 4, false, &[vec![]]);
    assert_eq!(
        recover(&[(4, &four)]),
        Err(Damage { segment: 3, at: 0, what: WhatIsWrong::Missing }),
        "the copy itself"
    );
}

#[test]
fn a_segment_that_ends_early_is_named_wherever_it_ends() {
    let commits: Vec<_> = (1..8).map(|n| vec![Said::Epoch(n)]).collect();
    let (one, ends) = segment(1, false, &commits);
    let (two, _) = behind(end_of(1, &one), 2, false, &commits);
    let follows = end_of(1, &one).expect("short");
    for cut in 0..one.len() {
        let damage = recover(&[(1, &one[..cut]), (2, &two)]).expect_err("damage");
        assert_eq!(damage.segment, 1);
        if ends.contains(&cut) {
            assert_eq!((damage.at, damage.what), (cut as u32, WhatIsWrong::End(follows.at)));
        }
        // The last segment may end anywhere.
        assert!(recover(&[(1, &one[..cut])]).is_ok());
    }
    // If the next segment begins anew, the bytes behind the end that it followed were never acknowledged.
    let (anew, _) = behind(end_of(1, &one[..ends[3]]), 2, true, &[]);
    let read = recover(&[(1, &one), (2, &anew)]).expect("cut");
    assert_eq!(read.torn, [Torn { segment: 1, at: ends[3] as u32, len: (one.len() - ends[3]) as u64 }]);
    assert_eq!((read.image.epoch, read.end), (epoch(3), end_of(1, &one[..ends[3]]).expect("short")));
    let early = recover(&[(1, &one[..ends[2]]), (2, &anew)]).expect_err("damage");
    assert_eq!(early.what, WhatIsWrong::End(ends[3] as u32));
}

#[test]
fn a_segment_of_another_journal_is_named() {
    let (one, _) = segment(1, false, &[vec![Said::Epoch(1)]]);
    let (other, _) = segment(1, false, &[vec![Said::Epoch(2)]]);
    let (two, _) = behind(end_of(1, &one), 2, false, &[vec![]]);
    assert_eq!(one.len(), other.len());
    let damage = recover(&[(1, &other), (2, &two)]).expect_err("damage");
    assert_eq!(damage, Damage { segment: 1, at: 0, what: WhatIsWrong::Other });
}

#[test]
fn a_commit_in_the_wrong_place_is_none() {
    let (one, _) = segment(1, false, &[vec![Said::Epoch(1)]]);
    let mut two = Header { number: 2, anew: false, follows: Some(End::default()) }.encode();
    two.extend(&one[segment::FIRST as usize..]);
    let read = recover(&[(2, &two)]).expect("cut");
    assert_eq!((read.commits, read.torn.len()), (0, 1));
}

#[test]
fn a_hole_that_nobody_promised_is_cut_with_what_is_behind_it() {
    // After a loss of power: the second commit never reached the disk and the third one did. Neither was
    // acknowledged.
    let mut bytes = Header { number: 1, anew: false, follows: Some(End::default()) }.encode();
    let mut starts = Vec::new();
    for number in 1..=3 {
        let mut commit = vec![0; COMMIT];
        Row::Epoch(epoch(number)).encode(&mut commit);
        let at = bytes.len() as u32;
        seal(&mut commit, Position { segment: 1, at }, segment::FIRST).expect("short");
        starts.push(bytes.len());
        bytes.extend(commit);
    }
    bytes[starts[1]..starts[2]].fill(0);
    let read = recover(&[(1, &bytes)]).expect("cut");
    assert_eq!(
        (read.image.epoch, read.torn),
        (epoch(1), vec![Torn { segment: 1, at: starts[1] as u32, len: (bytes.len() - starts[1]) as u64 }])
    );
}

#[test]
fn what_begins_anew_counts_from_its_end_on() {
    let open = Said::Store(1, Some(29500));
    let (before, _) = segment(1, false, &[vec![open.clone(), key(1, 1, b"old"), key(1, 2, b"old")]]);
    let again = [vec![open], vec![key(1, 1, b"new")]];
    let (mut after, ends) = behind(end_of(1, &before), 2, true, &again);
    let read = recover(&[(1, &before), (2, &after)]).expect("no damage");
    assert_eq!((read.image.stores[&1].keys.len(), read.unfinished), (2, Some(2)));
    let mut whole = vec![0; COMMIT];
    Row::Whole(2).encode(&mut whole);
    let at = *ends.last().expect("an end") as u32;
    seal(&mut whole, Position { segment: 2, at }, at).expect("short");
    after.extend(whole);
    let read = recover(&[(1, &before), (2, &after)]).expect("no damage");
    assert_eq!((read.image, read.unfinished), (image_of(&again), None));
}

#[test]
fn nothing_counts_from_the_first_of_several_segments_that_began_anew() {
    let open = Said::Store(1, Some(29500));
    let (before, _) = segment(1, false, &[vec![open.clone(), key(1, 1, b"old")]]);
    let (two, _) = behind(end_of(1, &before), 2, true, &[vec![open.clone()]]);
    let (three, _) = behind(end_of(2, &two), 3, true, &[vec![open]]);
    let read = recover(&[(1, &before), (2, &two), (3, &three)]).expect("no damage");
    assert_eq!((read.image.stores[&1].keys.len(), read.unfinished), (1, Some(2)));
    assert_eq!(Some(read.end), end_of(1, &before));
}

#[test]
fn links_end_with_the_server_that_their_relays_knew() {
    let mut image = Image::default();
    let mut starts = |number, life| {
        image.apply(Row::Epoch(Epoch { number, life }));
        let links = image.links.len();
        image.apply(Row::Reached(SessionId { link: 1, no: 0 }, Reached::default()));
        links
    };
    assert_eq!([starts(1, 7), starts(2, 7), starts(3, 8)], [0, 1, 0]);
}

/// A journal of the first format, as every later release may find it.
fn first_format() -> Vec<Vec<Said>> {
    let id = SessionId { link: 1, no: 3 };
    vec![
        vec![Said::Epoch(1), Said::Store(1, Some(29500)), Said::Store(2, Some(29510))],
        vec![key(1, 1, b"a value"), Said::Key(1, 2, Some((b"3".to_vec(), 2, Some(17))))],
        vec![Said::Item(1, 3, 0), Said::Item(1, 3, 1), Said::Item(1, 3, 2), Said::Queue(1, 3, 1, 3)],
        vec![Said::Client(1, 17, Some((1, -2, b"job".to_vec()))), Said::GoneShare(1, 3)],
        vec![
            Said::Read(1, 17, 5, Some((0, 6))),
            Said::Read(1, 17, 6, Some((2, 2))),
            Said::Unread(1, Some(6)),
        ],
        vec![
            Said::Link(1, Some(9)),
            Said::Session(id, Some((1, 17))),
            Said::Reached(id, 13, 4),
            Said::Reply(id, 2, b"replies".to_vec()),
            Said::Reply(id, 9, b"more".to_vec()),
            Said::Session(SessionId { link: 1, no: 4 }, Some((1, 18))),
            Said::Over(SessionId { link: 1, no: 4 }),
        ],
        // The tables of the first format.
        (0..4).map(|table| Said::Entry(table, 1, Some(b"body".to_vec()))).collect(),
        vec![key(2, 1, b"gone with its store"), Said::Store(2, None), Said::Key(1, 1, None), key(1, 4, b"")],
    ]
}

/// A segment that was written by a release which knew only the first format.
fn fixture(number: u64) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/journal/format-1");
    std::fs::read(format!("{folder}/{number:012}.rows")).expect("the fixture")
}

/// Segment 2 was begun anew after the disk was full, and segment 3 by a server that was started later.
#[test]
fn segments_of_the_first_format_are_read_and_followed() {
    let (two, three) = (fixture(2), fixture(3));
    let read = recover(&[(2, &two), (3, &three)]).expect("no damage");
    assert_eq!((read.image.epoch.number, read.unfinished), (2, None));
    let value =
        |read: &Recovered, key: &[u8]| read.image.stores[&1].keys.get(key).expect("a value").value.clone();
    assert_eq!(&*value(&read, b"while full"), b"in memory");
    assert_eq!(&*value(&read, b"count"), b"16");
    assert_eq!(Some(read.end), end_of(3, &three));
    let (four, _) = behind(Some(read.end), 4, false, &[vec![Said::Epoch(3)]]);
    let again = recover(&[(2, &two), (3, &three), (4, &four)]).expect("no damage");
    assert_eq!(again.image.epoch.number, 3);
    assert_eq!(value(&again, b"before"), value(&read, b"before"));
    // The next segment knows where segment 3 ends, in either format. And the copy in segment 2 is needed.
    let short = recover(&[(2, &two), (3, &three[..92]), (4, &four)]).expect_err("damage");
    assert_eq!(short, Damage { segment: 3, at: 92, what: WhatIsWrong::End(three.len() as u32) });
    assert_eq!(recover(&[(3, &three)]).expect_err("damage").what, WhatIsWrong::Missing);
}

#[test]
fn the_first_format_is_read() {
    let stored = &fixture(1)[..];
    assert_eq!(Header::decode(stored).map(|header| header.follows), Ok(None));
    let read = recover(&[(1, stored)]).expect("no damage");
    assert_eq!(read.image, image_of(&first_format()));
    assert_eq!(read.image.stores[&1].queues[&[3][..]].items.len(), 2);
    let (from, replies) = read.image.links[&1].sessions[&3].unacknowledged();
    assert_eq!((from, replies.concat()), (4, b"pliesmore".to_vec()));
}

#[test]
fn parts_make_a_value_however_often_and_late_they_are_told() {
    let part = |at, more: &[u8]| Said::Part(1, 1, at, more.to_vec());
    let open = Said::Store(1, Some(29500));
    let value = |rows: &[Said]| {
        let image = image_of(&[[std::slice::from_ref(&open), rows].concat()]);
        image.stores[&1].keys.get(&[1]).map(|it| it.value.to_vec())
    };
    let whole = || key(1, 1, b"abcd");
    assert_eq!(value(&[whole(), part(4, b"ef"), part(6, b"g")]), Some(b"abcdefg".to_vec()));
    assert_eq!(
        value(&[whole(), part(4, b"ef"), part(6, b"g"), part(4, b"ef"), part(6, b"g")]),
        Some(b"abcdefg".to_vec())
    );
    // The journal is tidied: the value itself was in an older segment, and comes again behind its part.
    assert_eq!(value(&[part(4, b"ef")]), None);
    assert_eq!(value(&[part(4, b"ef"), key(1, 1, b"abcdef"), part(6, b"g")]), Some(b"abcdefg".to_vec()));
    assert_eq!(value(&[key(1, 1, b"ab"), part(4, b"ef")]), Some(b"ab".to_vec()));
}

#[test]
fn how_far_a_request_has_come_is_kept_and_an_older_release_reads_over_it() {
    let id = SessionId { link: 1, no: 0 };
    let reached = Reached { applied: 9, is_ahead: true, begun: 4096, ..Reached::default() };
    let mut out = Vec::new();
    Row::Reached(id, reached).encode(&mut out);
    assert_eq!(rows(&out).collect::<Vec<_>>(), [Ok(Some(Row::Reached(id, reached)))]);
    // A row that an older release wrote.
    let (kind, fields) = (out[0], &out[2..out.len() - 2]);
    let old = [&[kind, fields.len() as u8], fields].concat();
    let before = Reached { begun: 0, ..reached };
    assert_eq!(rows(&old).collect::<Vec<_>>(), [Ok(Some(Row::Reached(id, before)))]);
    assert!(reached.can_go_on() && !before.can_go_on());
}

#[test]
fn replies_that_a_tidied_log_says_twice_or_not_at_all_are_each_there_once() {
    let id = SessionId { link: 1, no: 0 };
    let session = |acknowledged, replied, replies: &[(u64, &[u8])]| {
        let mut image = Image::default();
        for (at, bytes) in replies {
            image.apply(Row::Reply(id, *at, bytes));
        }
        image.apply(Row::Reached(id, Reached { replied, acknowledged, ..Reached::default() }));
        let (from, pieces) = image.links[&1].sessions[&0].unacknowledged();
        (from, pieces.concat())
    };
    // The relay had acknowledged everything, but the journal was tidied before the store knew that.
    assert_eq!(session(1000, 1100, &[]), (1100, Vec::new()));
    assert_eq!(session(0, 8, &[(0, b"01234567"), (2, b"234"), (5, b"567")]), (0, b"01234567".to_vec()));
    assert_eq!(session(3, 8, &[(0, b"01234567"), (6, b"67")]), (3, b"34567".to_vec()));
    assert_eq!(session(0, 8, &[(0, b"01"), (6, b"67")]), (6, b"67".to_vec()), "a gap was acknowledged");
}

#[test]
fn numbers_of_connections_that_any_row_names_are_not_given_again() {
    let last = |rows: &[Row<'_>]| {
        let mut image = Image::default();
        let open = OpenStore { port: 29500, owner: b"" };
        image.apply(Row::Store(1, Some(open)));
        rows.iter().cloned().for_each(|row| image.apply(row));
        image.stores[&1].last_conn()
    };
    let client = || Row::Client(1, 7, Some(ClientRow::default()));
    let gone = || Row::Client(1, 7, None);
    assert_eq!(last(&[]), 0);
    assert_eq!(last(&[client()]), 7);
    assert_eq!(last(&[client(), gone()]), 0, "nothing names it any more");
    assert_eq!(last(&[client(), Row::Read(1, 7, b"group", Some((0, 3))), gone()]), 7);
    let value = KeyRow { value: b"address", life: 0, writer: Some(7) };
    assert_eq!(last(&[client(), Row::Key(1, b"key", Some(value)), gone()]), 7);
}
