//! Recorded programs: every call of PyTorch's store API, on 14 releases and both server backends.

use std::collections::BTreeMap;

use rallypoint_protocol::Op;
use serde_json::{Value as Json, json};

use super::differences::{CALLS, CallDifference};
use super::{Replayed, Way, array, assert_none, files, same_reply, text, transcripts};
use crate::common::peer::{HELLO, Peer, hex, unhex, wire};

/// The actions of others during a call. The recordings have only the connections of the client under test.
const OTHERS: [(&str, &[Act]); 8] = [
    ("wait(['w1'],", &[Act::Set("/w1", "1")]),
    ("wait(['k', 'w2', 'w3'],", &[Act::Set("/w2", "1"), Act::Set("/w3", "1")]),
    ("wait(['w4'],", &[Act::Add("/w4")]),
    ("wait(['w5'],", &[Act::Create("/w5", "1")]),
    ("get('g1')", &[Act::Set("/g1", "late")]),
    ("(peer set never3)", &[Act::Set("/never3", "1")]),
    ("barrier('b2', 2, {'td': 2000})", &[Act::Arrive("/b2", 2)]),
    ("queue_pop('q5', block=True)", &[Act::Push("/q5", "later")]),
];

enum Act {
    Set(&'static str, &'static str),
    Add(&'static str),
    /// COMPARE_SET of an absent key.
    Create(&'static str, &'static str),
    Arrive(&'static str, u64),
    Push(&'static str, &'static str),
}

impl Act {
    /// The request and its reply.
    fn bytes(&self) -> (Vec<u8>, Vec<u8>) {
        let request = |op: Op, rest: &[&[u8]]| [&[op as u8][..], &rest.concat()].concat();
        let one = &1_u64.to_le_bytes()[..];
        let wire = |string: &str| wire(string.as_bytes());
        match *self {
            Self::Set(key, value) => (request(Op::Set, &[&wire(key), &wire(value)]), Vec::new()),
            Self::Add(key) => (request(Op::Add, &[&wire(key), one]), one.to_vec()),
            Self::Create(key, value) => {
                (request(Op::CompareSet, &[&wire(key), &wire(""), &wire(value)]), wire(value))
            }
            Self::Arrive(key, world_size) => {
                (request(Op::Barrier, &[&wire(key), &world_size.to_le_bytes()]), vec![0])
            }
            Self::Push(key, item) => (request(Op::QueuePush, &[&wire(key), &wire(item)]), Vec::new()),
        }
    }
}

struct Replay {
    replayed: Replayed,
    other: Peer,
    connections: BTreeMap<u64, Peer>,
    recording: String,
    mismatches: Vec<String>,
    bytes_compared: usize,
}

impl Replay {
    fn new(recording: &str, way: Way) -> Self {
        let replayed = Replayed::start(recording, way);
        let other = Peer::greet(replayed.store);
        let (connections, recording) = (BTreeMap::new(), recording.to_owned());
        Self { replayed, other, connections, recording, mismatches: Vec::new(), bytes_compared: 0 }
    }

    fn connection(&mut self, number: u64) -> &mut Peer {
        self.connections.entry(number).or_insert_with(|| self.replayed.connect())
    }

    fn expect(&mut self, call: &str, number: u64, expected: &[u8]) {
        let answer = self.connection(number).read(expected.len());
        let with_names = self.connection(number).last_op() == Some(Op::ListKeys);
        self.bytes_compared += expected.len();
        if !answer.open || !same_reply(expected, &answer.bytes, with_names) {
            let (found, expected) = (hex(&answer.bytes), hex(expected));
            self.mismatches.push(format!("{}: {call}: {expected} expected, {found} found", self.recording));
        }
    }

    fn act(&mut self, call: &str, acts: &[Act]) {
        for act in acts {
            let (request, reply) = act.bytes();
            self.other.send(&request);
            let answer = self.other.answer(reply.len(), true);
            if answer.bytes != reply {
                self.mismatches.push(format!(
                    "{}: {call}: the peer got {}",
                    self.recording,
                    hex(&answer.bytes)
                ));
            }
        }
    }

    /// Replays `[direction, connection, hex]` in time order: `c` sent, `s` answered, `open`, `c_eof`,
    /// `s_eof`.
    fn call(&mut self, call: &str, chunks: &[Json]) {
        let mut acts = OTHERS.iter().find(|(during, _)| call.starts_with(during)).map(|(_, acts)| *acts);
        let difference = CallDifference::find(&self.recording, call);
        if chunks.is_empty() {
            self.act(call, acts.take().unwrap_or_default());
        }
        let chunks = join_replies(chunks);
        for (at, chunk) in chunks.iter().enumerate() {
            let number = chunk[1].as_u64().expect("a connection");
            let bytes = unhex(text(&chunk[2]));
            // The next packet on this connection.
            let goes_on = chunks[at + 1..].iter().find(|next| next[1] == chunk[1]);
            let is_answered = goes_on.is_some_and(|next| next[0] == "s");
            let is_cut = chunks.get(at + 1).is_some_and(|next| next[0] == "c" && next[1] == chunk[1]);
            match text(&chunk[0]) {
                "open" => {
                    self.connection(number);
                }
                "c" => {
                    let connection = self.connection(number);
                    connection.send(&bytes);
                    let waits = connection.waits();
                    if !is_cut && (!is_answered || waits && acts.is_some()) {
                        connection.settle();
                    }
                    if waits && let Some(acts) = acts.take() {
                        self.act(call, acts);
                        if let Some(difference) = difference {
                            self.expect(call, number, &unhex(difference.also));
                        }
                    }
                }
                "s" if acts.is_some() => {
                    // The recorder noted the wake-up after the call that it interrupted.
                    self.act(call, acts.take().unwrap_or_default());
                    self.expect(call, number, &bytes);
                }
                "s" => match difference.and_then(|difference| difference.instead_of(&bytes)) {
                    Some(ours) => self.expect(call, number, &ours),
                    None => self.expect(call, number, &bytes),
                },
                "c_eof" => {
                    let stray = self.connections.remove(&number).map(Peer::leave);
                    if stray.as_ref().is_none_or(|stray| !stray.is_empty()) {
                        self.mismatches.push(format!("{}: {call}: at the end {stray:?}", self.recording));
                    }
                }
                "s_eof" => assert!(!self.connections.contains_key(&number), "seen with c_eof"),
                other => panic!("a chunk of kind {other}"),
            }
        }
        assert!(acts.is_none(), "{}: {call}: the others' part was not played", self.recording);
    }
}

/// The legacy backend sends a reply to LIST_KEYS in many pieces.
fn join_replies(chunks: &[Json]) -> Vec<Json> {
    let mut joined: Vec<Json> = Vec::new();
    for chunk in chunks {
        match joined.last_mut() {
            Some(last) if chunk[0] == "s" && last[0] == "s" && chunk[1] == last[1] => {
                last[2] = format!("{}{}", text(&last[2]), text(&chunk[2])).into();
            }
            _ => joined.push(chunk.clone()),
        }
    }
    joined
}

#[test]
fn every_recorded_program_gets_the_same_bytes() {
    replay_programs("", 29, Way::Direct);
}

#[test]
fn every_recorded_program_gets_the_same_bytes_through_a_relay() {
    replay_programs("", 29, Way::Relay);
}

/// The number of jobs in `transcripts/gpu`.
const GPU_JOBS: usize = 7;

/// Whole jobs on a GPU (`scripts/try-gpu`): agents, ranks, and NCCL's threads that watch them.
#[test]
fn every_recorded_gpu_job_gets_the_same_bytes() {
    replay_programs("gpu", GPU_JOBS, Way::Direct);
}

#[test]
fn every_recorded_gpu_job_gets_the_same_bytes_through_a_relay() {
    replay_programs("gpu", GPU_JOBS, Way::Relay);
}

fn replay_programs(folder: &str, count: usize, way: Way) {
    let (mut mismatches, mut calls, mut bytes) = (Vec::new(), 0, 0);
    let recordings = files(&transcripts().join(folder));
    assert_eq!(recordings.len(), count);
    for (name, recording) in &recordings {
        let mut replay = Replay::new(name, way);
        for call in array(&recording["calls"]) {
            replay.call(text(&call["api_call"]), array(&call["chunks"]));
            calls += 1;
        }
        assert!(replay.connections.is_empty(), "{name}: every program ends");
        bytes += replay.bytes_compared;
        mismatches.append(&mut replay.mismatches);
    }
    println!("{} recordings, {calls} calls, {bytes} reply bytes compared", recordings.len());
    assert_none(&mismatches);
}

/// A client that waits for others polls every 10 ms. The recordings leave most polls out, as a packet `["..",
/// 0, "110 more, the same GET poll"]`.
#[test]
fn every_recorded_master_that_waits_for_its_workers_gets_the_same_bytes() {
    replay_masters(Way::Direct);
}

#[test]
fn every_recorded_master_that_waits_gets_the_same_bytes_through_a_relay() {
    replay_masters(Way::Relay);
}

fn replay_masters(way: Way) {
    let recordings: Vec<_> = files(&transcripts().join("raw"))
        .into_iter()
        .filter(|(name, _)| name.starts_with("master-"))
        .collect();
    assert_eq!(recordings.len(), 9);
    let (mut mismatches, mut bytes) = (Vec::new(), 0);
    for (name, recording) in &recordings {
        let calls = array(recording);
        let opens = calls.iter().map(|call| array(&call["packets"])).find(|packets| counted(packets) > 0);
        let opening = opens.map_or(&[][..], |packets| &packets[..counted(packets)]);
        for call in calls {
            let mut packets = complete(array(&call["packets"]), opening);
            if call["outcome"]["ok"] == false {
                // In one call the port under recording was in use, as the client's end of a connection to
                // another store.
                for packet in &mut packets {
                    packet[0] = if packet[0] == "c" { "s" } else { "c" }.into();
                }
            }
            // Each of these calls hosted its own store.
            let mut replay = Replay::new(name, way);
            replay.call(text(&call["api_call"]), &packets);
            bytes += replay.bytes_compared;
            mismatches.append(&mut replay.mismatches);
        }
    }
    println!("{} recordings, {bytes} reply bytes compared", recordings.len());
    assert_none(&mismatches);
}

/// Restores the packets that a recording lacks: polls of the master that were left out, and a few packets
/// that the recorder missed at the start of a connection. `opening` is the opening of another master of this
/// release.
fn complete(packets: &[Json], opening: &[Json]) -> Vec<Json> {
    let mut all = Vec::new();
    if packets.first().is_some_and(|first| !opening.is_empty() && first[2] != opening[0][2]) {
        all.extend_from_slice(opening);
    }
    let Some(gap) = packets.iter().position(|packet| packet[0] == "..") else {
        all.extend_from_slice(packets);
        return all;
    };
    all.extend_from_slice(&packets[..gap]);
    let of_master =
        |packets: &[Json]| -> Vec<Json> { packets.iter().filter(|packet| packet[1] == 1).cloned().collect() };
    // A poll ends with the reply to GET, the text of the counter.
    let (before, after) = (of_master(&all), of_master(&packets[gap + 1..]));
    let polls = counted(&before);
    let end = before[polls..].iter().position(|packet| packet[2] == "010000000000000031");
    let poll = &before[polls..=polls + end.expect("GET is answered")];
    let mut at = (before.len() - polls) % poll.len();
    let resumed = poll.iter().position(|packet| *packet == after[0]).expect("it goes on in a poll");
    let left_out = text(&packets[gap][2]).split(' ').next().and_then(|count| count.parse().ok());
    let mut left_out: usize = left_out.expect("a number");
    while left_out >= poll.len() || at != resumed {
        all.push(poll[at].clone());
        at = (at + 1) % poll.len();
        left_out -= 1;
    }
    let worker = packets[gap + 1..].iter().find(|packet| packet[1] == 2).expect("a worker joins");
    match text(&worker[2]) {
        // PING follows a hello, and the arguments of ADD follow its number.
        first if first.starts_with("0d") => all.push(json!(["c", 2, hex(&HELLO)])),
        first if first.starts_with("05") => all.push(json!(["c", 2, "03"])),
        _ => {}
    }
    all.extend_from_slice(&packets[gap + 1..]);
    all
}

/// How many packets it takes until ADD is answered.
fn counted(packets: &[Json]) -> usize {
    let answered = |packet: &Json| packet[0] == "s" && packet[2] == "0100000000000000";
    packets.iter().position(answered).map_or(0, |at| at + 1)
}

#[test]
fn every_difference_in_a_call_is_one() {
    for difference in &CALLS {
        let meant = files(&transcripts()).iter().any(|(name, recording)| {
            array(&recording["calls"])
                .iter()
                .any(|call| CallDifference::find(name, text(&call["api_call"])) == Some(difference))
        });
        assert!(meant, "{} is in no recording", difference.call);
        assert!(!difference.why.is_empty());
    }
}
