//! Hand-made cases: bytes that programs never or rarely send, and the reaction of PyTorch's servers.

use std::collections::BTreeMap;

use rallypoint_protocol::{Dialect, Op};
use serde_json::Value as Json;

use super::differences::{CASES, Difference, Ours, Then};
use super::{Replayed, Way, array, assert_none, files, same_reply, text, transcripts};
use crate::common::peer::{Answer, HELLO, Peer, hex, unhex, wire};

/// One step: the connection, the sent bytes, and the recorded answer.
struct Step<'a> {
    connection: &'a str,
    sent: &'a str,
    reply: &'a str,
    open: bool,
}

impl<'a> Step<'a> {
    fn read(step: &'a Json) -> Self {
        let [connection, sent, reply, state] = [0, 1, 2, 3].map(|column| text(&step[column]));
        let open = match state.split(' ').next() {
            Some("open" | "peer") => true,
            Some("closed" | "gone") => false,
            other => panic!("a connection is {other:?}"),
        };
        Self { connection, sent, reply, open }
    }

    /// Whether our answer differs from the recorded one.
    fn is_not(&self, ours: Ours) -> bool {
        match ours {
            Ours::Says(reply) => !self.open || self.reply != reply,
            Ours::CountsKeys => !self.open || self.reply.len() != 16,
            Ours::Closes => self.open,
        }
    }
}

/// The expected answer to one step.
#[derive(Debug)]
enum Expected {
    Bytes(Vec<u8>),
    /// `head..(len bytes)..tail`
    Abridged {
        head: Vec<u8>,
        len: usize,
        tail: Vec<u8>,
    },
}

impl Expected {
    fn read(reply: &str) -> Self {
        let mut parts = reply.split("..");
        match (parts.next(), parts.next(), parts.next()) {
            (Some(head), Some(len), Some(tail)) => Self::Abridged {
                head: unhex(head),
                len: len.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number of bytes"),
                tail: unhex(tail),
            },
            _ => Self::Bytes(unhex(reply)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Abridged { len, .. } => *len,
        }
    }

    fn is(&self, found: &[u8], with_names: bool) -> bool {
        match self {
            Self::Bytes(bytes) => same_reply(bytes, found, with_names),
            Self::Abridged { head, len, tail } => {
                found.len() == *len && found.starts_with(head) && found.ends_with(tail)
            }
        }
    }
}

struct Replay {
    file: String,
    replayed: Replayed,
    /// A connection that is not part of the case.
    other: Peer,
    peers: BTreeMap<String, Peer>,
    mismatches: Vec<String>,
    steps: usize,
    differing: usize,
}

impl Replay {
    fn new(file: &str, way: Way) -> Self {
        let replayed = Replayed::start(file, way);
        let other = Peer::greet(replayed.store);
        let (peers, mismatches) = (BTreeMap::new(), Vec::new());
        Self { file: file.to_owned(), replayed, other, peers, mismatches, steps: 0, differing: 0 }
    }

    /// Opens the connection of a step, with the hello that the recording leaves out.
    fn open(&mut self, case: &str, name: &str) {
        const BEFORE_THE_HELLO: [&str; 5] =
            ["wrong magic", "no VALIDATE", "VALIDATE split", "only connects", "VALIDATE + NUM"];
        if self.peers.contains_key(name) {
            return;
        }
        let mut peer = self.replayed.connect();
        if self.replayed.dialect == Dialect::C
            && !BEFORE_THE_HELLO.iter().any(|start| case.starts_with(start))
        {
            peer.send(&HELLO);
        }
        self.peers.insert(name.to_owned(), peer);
    }

    fn case(&mut self, case: &str, steps: &[Json]) {
        let difference = Difference::find(&self.file, case);
        for (at, step) in steps.iter().map(Step::read).enumerate() {
            self.steps += 1;
            self.before(case, at, &step);
            if step.sent == "(closes)" {
                let stray = self.peers.remove(step.connection).map(Peer::leave);
                if stray.as_ref().is_none_or(|stray| !stray.is_empty()) {
                    self.mismatches.push(format!("{case}, step {at}: closed, and read {stray:?}"));
                }
                continue;
            }
            self.open(case, step.connection);
            let (expected, open) = match difference.and_then(|difference| difference.step(at)) {
                None => (Expected::read(step.reply), step.open),
                Some(ours) => {
                    self.differing += usize::from(step.is_not(ours));
                    match ours {
                        Ours::Says(reply) => (Expected::read(reply), true),
                        // The number is known only after the step, which may store a key.
                        Ours::CountsKeys => (Expected::Bytes(vec![0; 8]), true),
                        Ours::Closes => (Expected::Bytes(Vec::new()), false),
                    }
                }
            };
            let peer = self.peers.get_mut(step.connection).expect("just opened");
            send(peer, case, step.sent);
            let answer = match step.sent {
                // Bytes that another connection caused. A later step, or the end, finds surplus bytes.
                "(nothing)" if open && expected.len() > 0 => peer.read(expected.len()),
                _ => peer.answer(expected.len(), open),
            };
            let with_names = peer.last_op() == Some(Op::ListKeys);
            let counted = matches!(difference.and_then(|d| d.step(at)), Some(Ours::CountsKeys));
            let expected = if counted { Expected::Bytes(self.keys()) } else { expected };
            self.compare(case, at, &expected, open, &answer, with_names);
        }
        self.end(case, difference);
    }

    fn compare(
        &mut self,
        case: &str,
        at: usize,
        expected: &Expected,
        open: bool,
        answer: &Answer,
        with_names: bool,
    ) {
        let state = |open| if open { "open" } else { "closed" };
        if !expected.is(&answer.bytes, with_names) || answer.open != open {
            let wanted = match expected {
                Expected::Bytes(bytes) => hex(bytes),
                Expected::Abridged { head, len, tail } => {
                    format!("{}..({len} bytes)..{}", hex(head), hex(tail))
                }
            };
            self.mismatches.push(format!(
                "{case}, step {at}: `{wanted}` and {} expected, `{}` and {} found",
                state(open),
                hex(&answer.bytes),
                state(answer.open),
            ));
        }
    }

    /// Actions between the recorded steps; the recordings do not have them as bytes.
    fn before(&mut self, case: &str, at: usize, step: &Step<'_>) {
        match (case, at) {
            ("waiter half-closes (FIN), then key SET", 1) => {
                self.peers.get_mut(step.connection).expect("it waits").finish();
            }
            ("RST instead of FIN while waiting", 1) => self.peers.remove("A").expect("it waits").reset(),
            ("client never reads 64 MiB of replies: do others get service?", 1) => {
                self.open(case, "A");
                let greedy = self.peers.get_mut("A").expect("just opened");
                let get = greedy.code(Op::Get);
                for _ in 0..8 {
                    greedy.send(&[&[get][..], &wire(b"/slow")].concat());
                }
            }
            _ => {}
        }
    }

    /// The number of plain keys, in its form on the wire.
    fn keys(&mut self) -> Vec<u8> {
        self.other.send(&[Op::NumKeys as u8]);
        self.other.answer(8, true).bytes
    }

    fn end(&mut self, case: &str, difference: Option<&Difference>) {
        for (name, peer) in std::mem::take(&mut self.peers) {
            if case.starts_with("client never reads") && name == "A" {
                peer.reset();
                continue;
            }
            let stray = peer.leave();
            if !stray.is_empty() {
                self.mismatches.push(format!("{case}: in the end {name} also got {}", hex(&stray)));
            }
        }
        match difference.map_or(Then::Nothing, |difference| difference.then) {
            Then::Nothing => {}
            Then::Set(key) => {
                self.other.send(&[&[Op::Set as u8][..], &wire(key.as_bytes()), &wire(b"1")].concat());
            }
            Then::Delete(key) => {
                self.other.send(&[&[Op::Delete as u8][..], &wire(key.as_bytes())].concat());
                assert_eq!(self.other.answer(8, true).bytes, 1_u64.to_le_bytes(), "{key} was there");
            }
        }
        // The recorder also did this after each case, to see whether the server was alive.
        self.other.send(&[&[Op::Set as u8][..], &wire(b"/alive"), &wire(b"1")].concat());
        self.other.settle();
    }
}

/// Sends a step: hexadecimal digits, or words for something long.
fn send(peer: &mut Peer, case: &str, sent: &str) {
    let bytes = match (case, sent) {
        ("client half-closes right after a pipelined request", "(nothing)") => {
            let count = peer.code(Op::NumKeys);
            peer.send(&[count, count]);
            return peer.finish();
        }
        ("the same byte by byte, 2 ms apart", "(nothing)") => {
            for byte in seven_requests(peer) {
                peer.send(&[byte]);
            }
            return;
        }
        ("7 requests in one segment", abridged) => {
            let bytes = seven_requests(peer);
            assert!(Expected::read(abridged).is(&bytes, false), "rebuilt as recorded");
            bytes
        }
        ("LIST_KEYS order after setting a..f", abridged) if abridged.contains("..") => {
            let sets = (b'a'..=b'f').map(|name| [&[1][..], &wire(&[b'/', name]), &wire(b"1")].concat());
            let bytes = [&sets.collect::<Vec<_>>().concat()[..], &[Op::ListKeys as u8]].concat();
            assert!(Expected::read(abridged).is(&bytes, false), "rebuilt as recorded");
            bytes
        }
        (_, "(nothing)") => Vec::new(),
        (_, words) => match in_words(peer, case, words) {
            Some(bytes) => bytes,
            None => unhex(words),
        },
    };
    if !bytes.is_empty() {
        peer.send(&bytes);
    }
}

fn seven_requests(peer: &Peer) -> Vec<u8> {
    let op = |op| vec![peer.code(op)];
    let (one, two) = (1_u64.to_le_bytes().to_vec(), 2_u64.to_le_bytes().to_vec());
    let (key, counter) = (wire(b"/fr"), wire(b"/fn"));
    [
        [op(Op::Set), key.clone(), wire(b"v")].concat(),
        [op(Op::Wait), one, key.clone()].concat(),
        [op(Op::Get), key.clone()].concat(),
        [op(Op::Add), counter.clone(), two.clone()].concat(),
        [op(Op::Check), two, key, wire(b"/f?")].concat(),
        op(Op::NumKeys),
        [op(Op::Delete), counter].concat(),
    ]
    .concat()
}

/// The bytes of a step in words; `None` if the step is in hexadecimal digits.
fn in_words(peer: &Peer, case: &str, words: &str) -> Option<Vec<u8>> {
    const MIB: usize = 1024 * 1024;
    let set =
        |key: &[u8], len: usize| [&[peer.code(Op::Set)][..], &wire(key), &wire(&vec![b'v'; len])].concat();
    let list = |op: Op, count: u64, each: &[u8]| {
        [&[peer.code(op)][..], &count.to_le_bytes(), &each.repeat(count as usize)].concat()
    };
    let number = || words.split([' ', '=']).next_back().and_then(|word| word.parse::<usize>().ok());
    let count = || number().map(|number| number as u64);
    Some(match words {
        "3 zero bytes" => vec![0; 3],
        "SET len 8192" => set(&[b'k'; 8192], 1),
        "SET len 8193" => set(&[b'k'; 8193], 1),
        "CHECK same" => {
            let len = if case.contains("8193") { 8193 } else { 8192 };
            list(Op::Check, 1, &wire(&vec![b'k'; len]))
        }
        "SET payload 8388608" | "SET payload 8388609" => set(b"/p", number()?),
        "SET 8 MiB" if case.contains("APPEND") => set(b"/pa", 8 * MIB),
        "SET 8 MiB" => set(b"/slow", 8 * MIB),
        "PUSH 8 MiB" => [&[Op::QueuePush as u8][..], &wire(b"/qb"), &wire(&vec![b'v'; 8 * MIB])].concat(),
        "PUSH 8 MiB+1" => {
            [&[Op::QueuePush as u8][..], &wire(b"/qb"), &wire(&vec![b'v'; 8 * MIB + 1])].concat()
        }
        "CHECK n=131072" | "CHECK n=131073" => list(Op::Check, count()?, &wire(b"/alive")),
        "WAIT n=131072" | "WAIT n=131073" => list(Op::Wait, count()?, &wire(b"/alive")),
        "MGET n=131072" | "MGET n=131073" => list(Op::MultiGet, count()?, &wire(b"/alive")),
        "MSET n=131072" | "MSET n=131073" => {
            list(Op::MultiSet, count()?, &[wire(b"/ms"), wire(b"1")].concat())
        }
        "2000 x (SET+GET)" => {
            let get = [&[peer.code(Op::Get)][..], &wire(b"/many")].concat();
            [set(b"/many", 10), get].concat().repeat(2000)
        }
        _ => return None,
    })
}

fn replay(file: &str, way: Way) {
    let recording = std::fs::read(transcripts().join("raw").join(format!("{file}.json"))).expect("readable");
    let recording: Json = serde_json::from_slice(&recording).expect("a recording is JSON");
    let mut replay = Replay::new(file, way);
    let cases = array(&recording["cases"]);
    let mut was_alive = true;
    for case in cases {
        let name = text(&case["case"]);
        // The recorder started a fresh server when the old one no longer answered, and always for one case.
        if !was_alive || name == "LIST_KEYS order after setting a..f" {
            let Replay { mismatches, steps, differing, .. } = replay;
            replay = Replay { mismatches, steps, differing, ..Replay::new(file, way) };
        }
        replay.case(name, array(&case["steps"]));
        was_alive = case["server_alive"] == true;
    }
    let Replay { steps, differing, .. } = replay;
    println!(
        "{file}: {} cases, {steps} steps, all replayed; {differing} of them differ on purpose",
        cases.len()
    );
    assert_none(&replay.mismatches);
}

macro_rules! hand_made {
    ($($test:ident: $file:literal),* $(,)?) => {
        const FILES: &[&str] = &[$($file),*];
        $(#[test]
        fn $test() {
            replay($file, Way::Direct);
        })*

        mod through_a_relay {
            use super::{Way, replay};

            $(#[test]
            fn $test() {
                replay($file, Way::Relay);
            })*
        }
    };
}

hand_made! {
    hand_made_cases_of_1_13: "1.13.1-legacy",
    hand_made_cases_of_2_0: "2.0.1-legacy",
    hand_made_cases_of_2_1: "2.1.2-legacy",
    hand_made_cases_of_2_4: "2.4.1-libuv",
    hand_made_cases_of_2_7: "2.7.1-libuv",
    hand_made_cases_of_2_15: "2.15.0-libuv",
    hand_made_cases_of_2_15_legacy: "2.15.0-legacy",
}

fn recordings() -> Vec<(String, Json)> {
    files(&transcripts().join("raw")).into_iter().filter(|(name, _)| !name.starts_with("master-")).collect()
}

#[test]
fn every_hand_made_recording_is_replayed() {
    let found: Vec<String> = recordings().into_iter().map(|(name, _)| name).collect();
    let mut listed = FILES.to_vec();
    listed.sort_unstable();
    assert_eq!(found, listed);
}

/// A listed difference that does not exist would hide a mistake.
#[test]
fn every_difference_in_a_case_is_one() {
    let (recordings, mut mismatches) = (recordings(), Vec::new());
    for difference in CASES {
        assert!(!difference.why.is_empty());
        for &(at, ours) in difference.steps {
            let differs = recordings.iter().any(|(file, recording)| {
                array(&recording["cases"])
                    .iter()
                    .filter(|case| case["case"] == difference.case)
                    .filter(|_| difference.files.iter().any(|part| file.contains(part)))
                    .any(|case| Step::read(&array(&case["steps"])[at]).is_not(ours))
            });
            if !differs {
                mismatches.push(format!("{}, step {at} is as recorded", difference.case));
            }
        }
    }
    assert_none(&mismatches);
}
