//! The intended differences between our server's answers and the recorded ones.

use crate::common::peer::unhex;

/// Our answer to one step of a hand-made case.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ours {
    /// These bytes (hexadecimal); the connection stays open.
    Says(&'static str),
    /// The number of plain keys, which another connection asks for.
    CountsKeys,
    /// No reply, and the connection is closed.
    Closes,
}

use Ours::{Closes, CountsKeys, Says};

/// Makes the keys equal to the recorded server's, so that later counts are as recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    Nothing,
    /// It stored a key that our server does not store.
    Set(&'static str),
    /// Our server stored a key that it does not store.
    Delete(&'static str),
}

/// Our answers in one hand-made case. Steps count from 0; every other step is as recorded.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) case: &'static str,
    /// The recordings with this difference, by parts of their names.
    pub(crate) files: &'static [&'static str],
    pub(crate) steps: &'static [(usize, Ours)],
    pub(crate) then: Then,
    pub(crate) why: &'static str,
}

impl Difference {
    pub(crate) fn find(file: &str, case: &str) -> Option<&'static Self> {
        let mut found = CASES.iter().filter(|difference| {
            difference.case == case && difference.files.iter().any(|part| file.contains(part))
        });
        let first = found.next();
        assert!(found.next().is_none(), "{case} of {file} is listed twice");
        first
    }

    pub(crate) fn step(&self, step: usize) -> Option<Ours> {
        self.steps.iter().find(|(at, _)| *at == step).map(|(_, ours)| *ours)
    }
}

const ALL: &[&str] = &[""];
const LIBUV: &[&str] = &["libuv"];
const LEGACY: &[&str] = &["legacy"];
const WITH_HELLO: &[&str] = &["libuv", "2.15.0-legacy"];

const HELLO: &str =
    "the hello is needed only to tell the dialect; without it the peer is a PyTorch 2.0 or 2.1";
const SPLIT_HELLO: &str = "a hello may come in pieces, which libuv takes for an end";
const NEWER: &str =
    "one server has the operations of every release; the recorded one was too old for this one";
const LIMITS: &str = "the limits of the libuv backend hold for every client; the legacy backend has none";
const FAST: &str = "the recorded server was not done after 1.5 s, it walks the request again for each 4 KiB";
const MISSING: &str = "the value of a missing key is empty, as libuv has it; legacy closes";
const WHOLE: &str = "a request is applied when it is whole; the pairs of half a MULTI_SET are not";
const PRESENT: &str = "a WAIT ends when all its keys are there; the recorded server counts arrivals";
const COMPARE_SET: &str =
    "COMPARE_SET wakes if and only if the key exists afterwards; libuv always, legacy never";
const ONE_WAIT: &str = "a connection waits for one thing, the last it asked for";
const NOBODY_BLOCKS: &str = "a slow or silent peer holds up nobody else";
const QUEUE: &str = "a waiter is woken once, for what it waits for, and takes no wake-up from others";
const WITHDRAWN: &str = "an arrival that was cancelled or whose connection closed counts no more";
const ARRIVALS: &str = "a barrier ends by arrivals only";
const STALLED: &str = "the recorded server was waiting for its name server and said nothing";

/// Hand-made cases.
pub(crate) const CASES: &[Difference] = &[
    Difference {
        case: "wrong magic",
        files: LIBUV,
        steps: &[(0, Closes), (1, Closes)],
        then: Then::Nothing,
        why: "a wrong hello is told apart at once; libuv looks at it when more comes",
    },
    Difference {
        case: "no VALIDATE: first request NUM",
        files: WITH_HELLO,
        steps: &[(0, Says("")), (1, Says(""))],
        then: Then::Nothing,
        // In 2.1, 7 is DELETE, and the connection goes on.
        why: HELLO,
    },
    Difference {
        case: "no VALIDATE: old-dialect GETNUMKEYS 0x06",
        files: WITH_HELLO,
        steps: &[(0, CountsKeys)],
        then: Then::Nothing,
        why: HELLO,
    },
    Difference {
        case: "no VALIDATE: old-dialect SET",
        files: WITH_HELLO,
        steps: &[(0, Says("")), (1, CountsKeys)],
        then: Then::Delete("/o"),
        why: HELLO,
    },
    Difference {
        case: "VALIDATE split 1+4",
        files: LIBUV,
        steps: &[(1, Says("")), (2, CountsKeys)],
        then: Then::Nothing,
        why: SPLIT_HELLO,
    },
    Difference {
        case: "VALIDATE split 3+2",
        files: LIBUV,
        steps: &[(1, Says("")), (2, CountsKeys)],
        then: Then::Nothing,
        why: SPLIT_HELLO,
    },
    Difference {
        case: "first byte 0x00 then magic (a 2.2+ hello) on an old server",
        files: &["1.13.1", "2.1.2"],
        steps: &[(1, Closes)],
        then: Then::Nothing,
        why: "to us the hello is one, and 0 is no operation after it",
    },
    Difference {
        case: "first byte 0x00 then magic (a 2.1+ hello) on an old server",
        files: &["2.0.1"],
        steps: &[(1, Closes)],
        then: Then::Nothing,
        why: "to us the hello is one, and 0 is no operation after it",
    },
    Difference {
        case: "opcode 9 alone",
        files: &["1.13.1", "2.0.1"],
        steps: &[(0, Says("")), (1, Says(""))],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "opcode 10 alone",
        files: &["1.13.1", "2.0.1"],
        steps: &[(0, Says("")), (1, Says(""))],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "opcode 11 alone",
        files: &["1.13.1", "2.0.1"],
        steps: &[(0, Says("01")), (1, CountsKeys)],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "opcode 13 alone",
        files: &["2.4.1"],
        steps: &[(0, Says("")), (1, Says(""))],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "opcode 14 alone",
        files: &["2.4.1", "2.7.1", "2.15.0-legacy"],
        steps: &[(0, Says("")), (1, Says(""))],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "opcode 15 alone",
        files: &["2.4.1", "2.7.1", "2.15.0-legacy"],
        steps: &[(0, Says("")), (1, Says(""))],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "opcode 16 alone",
        files: &["2.4.1", "2.7.1", "2.15.0-legacy"],
        steps: &[(0, Says("")), (1, Says(""))],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "opcode 17 alone",
        files: &["2.4.1", "2.7.1"],
        steps: &[(0, Says("010000000000000006000000000000002f616c697665")), (1, Says("0100000000000000"))],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "opcode 18 alone",
        files: &["2.4.1", "2.7.1"],
        steps: &[(0, Says("")), (1, Says(""))],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "WATCH_KEY, then the key is created, updated, compare_set, added, deleted by a peer",
        files: &["1.13.1"],
        steps: &[
            (0, Says("0000000000000000")),
            (2, Says("")),
            (4, Says("")),
            (6, Says("")),
            (8, Says("")),
            (10, Says("")),
        ],
        then: Then::Nothing,
        why: "7 is DELETE of 2.1; no program can send WATCH_KEY",
    },
    Difference {
        case: "SET key of 8193 bytes",
        files: LEGACY,
        steps: &[(0, Closes), (1, Closes)],
        then: Then::Set("/8193"),
        why: LIMITS,
    },
    Difference {
        case: "SET payload of 8388609 bytes",
        files: LEGACY,
        steps: &[(0, Closes), (1, Closes)],
        then: Then::Nothing,
        why: LIMITS,
    },
    Difference {
        case: "SET payload 8 MiB then APPEND 1 byte then GET",
        files: &["2.15.0-libuv"],
        steps: &[(2, Says("0100800000000000..(8388617 bytes)..76767a"))],
        then: Then::Nothing,
        why: STALLED,
    },
    Difference {
        case: "CHECK with 131072 keys (same short key)",
        files: LIBUV,
        steps: &[(0, Says("00"))],
        then: Then::Nothing,
        why: FAST,
    },
    Difference {
        case: "WAIT with 131072 present keys",
        files: LIBUV,
        steps: &[(0, Says("00"))],
        then: Then::Nothing,
        why: FAST,
    },
    Difference {
        case: "MULTI_GET with 131072 keys",
        files: LIBUV,
        steps: &[(0, Says("010000000000000031..(1179648 bytes)..010000000000000031"))],
        then: Then::Nothing,
        why: FAST,
    },
    Difference {
        case: "MULTI_SET with 131072 keys",
        files: LIBUV,
        steps: &[(1, Says("00"))],
        then: Then::Nothing,
        why: FAST,
    },
    Difference {
        case: "CHECK with 131073 keys (same short key)",
        files: LEGACY,
        steps: &[(0, Closes)],
        then: Then::Nothing,
        why: LIMITS,
    },
    Difference {
        case: "WAIT with 131073 present keys",
        files: LEGACY,
        steps: &[(0, Closes)],
        then: Then::Nothing,
        why: LIMITS,
    },
    Difference {
        case: "MULTI_GET with 131073 keys",
        files: LEGACY,
        steps: &[(0, Closes)],
        then: Then::Nothing,
        why: LIMITS,
    },
    Difference {
        case: "MULTI_SET with 131073 keys",
        files: LEGACY,
        steps: &[(0, Closes), (1, Closes)],
        then: Then::Nothing,
        why: LIMITS,
    },
    Difference {
        case: "CHECK key count 2^63",
        files: &["2.7.1"],
        steps: &[(0, Closes)],
        then: Then::Nothing,
        why: STALLED,
    },
    Difference {
        case: "MULTI_SET key count 2^64-1",
        files: LEGACY,
        steps: &[(0, Closes)],
        then: Then::Nothing,
        why: LIMITS,
    },
    Difference {
        case: "GET missing",
        files: LEGACY,
        steps: &[(0, Says("0000000000000000")), (1, CountsKeys)],
        then: Then::Nothing,
        why: MISSING,
    },
    Difference {
        case: "MULTI_GET one missing of two",
        files: LEGACY,
        steps: &[(0, Says("0100000000000000310000000000000000")), (1, CountsKeys)],
        then: Then::Nothing,
        why: MISSING,
    },
    Difference {
        case: "MULTI_GET missing first",
        files: LEGACY,
        steps: &[(0, Says("0000000000000000010000000000000031")), (1, CountsKeys)],
        then: Then::Nothing,
        why: MISSING,
    },
    Difference {
        case: "MULTI_SET cut off after the first pair, then close",
        files: ALL,
        steps: &[(2, Says("01"))],
        then: Then::Set("/cut1"),
        why: WHOLE,
    },
    Difference {
        case: "MULTI_SET unfinished: is the first pair visible to others?",
        files: ALL,
        steps: &[(1, Says("01"))],
        then: Then::Set("/cut2"),
        why: WHOLE,
    },
    Difference {
        case: "WAIT two absent; first SET then DELETEd; then second SET",
        files: ALL,
        steps: &[(3, Says(""))],
        then: Then::Nothing,
        why: PRESENT,
    },
    Difference {
        case: "WAIT present+absent; present DELETEd; then absent SET",
        files: ALL,
        steps: &[(4, Says(""))],
        then: Then::Nothing,
        why: PRESENT,
    },
    Difference {
        case: "WAIT woken by COMPARE_SET that creates the key?",
        files: LEGACY,
        steps: &[(2, Says("00"))],
        then: Then::Nothing,
        why: COMPARE_SET,
    },
    Difference {
        case: "WAIT woken by failing COMPARE_SET on the missing key?",
        files: LIBUV,
        steps: &[(2, Says(""))],
        then: Then::Nothing,
        why: COMPARE_SET,
    },
    Difference {
        case: "two WAITs outstanding on one connection (different keys)",
        files: ALL,
        steps: &[(3, Says("")), (5, Says("00"))],
        then: Then::Nothing,
        why: ONE_WAIT,
    },
    Difference {
        case: "other request while a WAIT is outstanding on the same connection",
        files: &["1.13.1", "2.0.1", "2.1.2"],
        steps: &[(2, Says(""))],
        then: Then::Nothing,
        why: "2.0 cannot cancel, so that a further request means that it gave up its WAIT; 2.1 can, but \
              nothing it sent here tells it from 2.0",
    },
    Difference {
        case: "partial request held open: do others still get service?",
        files: LEGACY,
        steps: &[(1, CountsKeys)],
        then: Then::Nothing,
        why: NOBODY_BLOCKS,
    },
    Difference {
        case: "partial payload held open: do others still get service?",
        files: LEGACY,
        steps: &[(1, CountsKeys)],
        then: Then::Nothing,
        why: NOBODY_BLOCKS,
    },
    Difference {
        case: "client never reads 64 MiB of replies: do others get service?",
        files: LEGACY,
        steps: &[(1, CountsKeys)],
        then: Then::Nothing,
        why: NOBODY_BLOCKS,
    },
    Difference {
        case: "PING",
        files: &["2.4.1"],
        steps: &[(0, Says("44332211"))],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "PING while WAIT outstanding",
        files: &["2.4.1"],
        steps: &[(1, Says("44332211")), (3, Says("00"))],
        then: Then::Nothing,
        why: NEWER,
    },
    Difference {
        case: "QUEUE_LEN missing",
        files: &["2.15.0-libuv"],
        steps: &[(0, Says("0000000000000000"))],
        then: Then::Nothing,
        why: STALLED,
    },
    Difference {
        case: "STALE WAITER: A woken by PUSH, pops, waits for an unrelated plain key; next PUSH to the old \
               queue",
        files: ALL,
        steps: &[(6, Says(""))],
        then: Then::Nothing,
        why: QUEUE,
    },
    Difference {
        case: "LOST WAKE-UP: as above with C really waiting on the queue",
        files: ALL,
        steps: &[(7, Says("")), (8, Says("00"))],
        then: Then::Nothing,
        why: QUEUE,
    },
    Difference {
        case: "MIXED: WAIT [plain absent, queue non-empty], then SET plain",
        files: ALL,
        steps: &[(3, Says("00")), (6, Says(""))],
        then: Then::Nothing,
        why: PRESENT,
    },
    Difference {
        case: "WAIT [plain absent, queue empty]: two pushes only",
        files: ALL,
        steps: &[(2, Says(""))],
        then: Then::Nothing,
        why: PRESENT,
    },
    Difference {
        case: "BARRIER after a cancelled waiter (world 2)",
        files: ALL,
        steps: &[(2, Says("")), (4, Says("010000000000000031"))],
        then: Then::Nothing,
        why: WITHDRAWN,
    },
    Difference {
        case: "BARRIER same client retries after cancel (world 2)",
        files: ALL,
        steps: &[(2, Says(""))],
        then: Then::Nothing,
        why: WITHDRAWN,
    },
    Difference {
        case: "BARRIER with a dead waiter (world 2)",
        files: ALL,
        steps: &[(2, Says("")), (3, Says("010000000000000031"))],
        then: Then::Nothing,
        why: WITHDRAWN,
    },
    Difference {
        case: "plain SET on a barrier key wakes the waiters?",
        files: ALL,
        steps: &[(2, Says(""))],
        then: Then::Nothing,
        why: ARRIVALS,
    },
    Difference {
        case: "ADD on a barrier key",
        files: ALL,
        steps: &[(2, Says(""))],
        then: Then::Nothing,
        why: ARRIVALS,
    },
    Difference {
        case: "BARRIER first arrival: WAITer on the key",
        files: ALL,
        steps: &[(2, Says("00")), (4, Says(""))],
        then: Then::Nothing,
        why: "the first arrival makes the key, and a WAIT ends when CHECK would say ready",
    },
];

/// Our bytes in one call of a recorded program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallDifference {
    pub(crate) call: &'static str,
    files: &'static str,
    /// An additional answer after the others have done their part, before every recorded byte (hexadecimal).
    pub(crate) also: &'static str,
    /// An answer in place of other bytes: recorded, ours (hexadecimal).
    instead: Option<(&'static str, &'static str)>,
    pub(crate) why: &'static str,
}

impl CallDifference {
    pub(crate) fn find(file: &str, call: &str) -> Option<&'static Self> {
        CALLS.iter().find(|difference| call.starts_with(difference.call) && file.contains(difference.files))
    }

    pub(crate) fn instead_of(&self, recorded: &[u8]) -> Option<Vec<u8>> {
        self.instead.filter(|(theirs, _)| unhex(theirs) == recorded).map(|(_, ours)| unhex(ours))
    }
}

/// Calls of recorded programs.
pub(crate) const CALLS: [CallDifference; 2] = [
    CallDifference {
        call: "wait(['w5'], {'td': 800})  # peer compare_sets later",
        files: "legacy",
        also: "00",
        instead: None,
        why: COMPARE_SET,
    },
    CallDifference {
        call: "get('b3')  # counter after the time-out",
        files: "",
        also: "",
        instead: Some(("010000000000000031", "010000000000000030")),
        why: WITHDRAWN,
    },
];
