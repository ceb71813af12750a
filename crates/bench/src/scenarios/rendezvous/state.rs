//! A rendezvous state as torchrun stores it: base64 of a pickle of `_RendezvousState`, which Python can read.
//!
//! The layout allows adding a node without decoding. Each node has an entry in `participants` and one in
//! `last_heartbeats`. The length of each entry is the same for every node and a multiple of 3 bytes, and so
//! are the lengths of the parts before, between and after the entries. So the borders survive base64, and a
//! join inserts text at two places. A node takes 128 bytes of base64, about as much as a real one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use rallypoint_protocol::ids::count;

/// Base64 length of a node's entry in `participants`.
const PARTICIPANT: usize = 96;
/// Base64 length of a node's entry in `last_heartbeats`.
const HEARTBEAT: usize = 32;
/// Base64 length of the part before the second node.
const HEAD: usize = HEAD_BYTES / 3 * 4;
/// Base64 length of the part between the entries.
const MIDDLE: usize = MIDDLE_BYTES / 3 * 4;
/// Base64 length of the part after the heartbeats.
const TAIL: usize = TAIL_BYTES / 3 * 4;

const HEAD_BYTES: usize = 363;
const MIDDLE_BYTES: usize = 69;
const TAIL_BYTES: usize = 3;

/// The number of memo entries before the second node's ones, and so the number of its entry.
const MEMO_OF_SECOND: u32 = 32;
/// The memo entry of the first node.
const MEMO_OF_FIRST: u8 = 26;
/// Length of a node's name; it makes the length of an entry a multiple of 3.
const NAME: usize = 45;

/// A moment as `datetime` pickles it: 2026-01-02 03:04:05.
const MOMENT: [u8; 10] = [0x07, 0xea, 1, 2, 3, 4, 5, 0, 0, 0];

/// A joining node.
#[derive(Debug)]
pub(crate) struct Node {
    number: usize,
    /// Its entry in `participants`, in base64.
    pub(super) participant: [u8; PARTICIPANT],
}

/// The positions in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The number of nodes in it.
    pub(super) participants: usize,
    pub(super) participants_end: usize,
    pub(super) heartbeats_end: usize,
}

/// The positions, from the length of a state alone; `None` if the state was not made here.
pub(crate) fn parts(state: &[u8]) -> Option<Parts> {
    let entries = state.len().checked_sub(HEAD + MIDDLE + TAIL)?;
    if !entries.is_multiple_of(PARTICIPANT + HEARTBEAT) {
        return None;
    }
    let others = entries / (PARTICIPANT + HEARTBEAT);
    Some(Parts {
        participants: others.checked_add(1)?,
        participants_end: others.checked_mul(PARTICIPANT)?.checked_add(HEAD)?,
        heartbeats_end: state.len().checked_sub(TAIL)?,
    })
}

/// The number of nodes in a state; `None` if the state was not made here.
pub(crate) fn participants(state: &[u8]) -> Option<usize> {
    parts(state).map(|parts| parts.participants)
}

/// A state with this node alone.
pub(crate) fn first(node: &Node) -> Vec<u8> {
    let mut pickle = Vec::with_capacity(HEAD_BYTES + MIDDLE_BYTES + TAIL_BYTES);
    head(&mut pickle, node.number);
    middle(&mut pickle);
    // SETITEMS, BUILD and STOP of the state.
    pickle.extend_from_slice(b"ub.");
    STANDARD.encode(&pickle).into_bytes()
}

impl Node {
    pub(crate) fn new(number: usize) -> Self {
        let mut entry = Vec::with_capacity(PARTICIPANT / 4 * 3);
        // The class from the memo; NEWOBJ without arguments; MEMOIZE; its fields, with names from the memo;
        // BUILD.
        entry.extend_from_slice(b"h\x19)\x81\x94}(h\x1c");
        text(&mut entry, &name(number, NAME));
        entry.extend_from_slice(b"h\x1eJ");
        entry.extend_from_slice(&pid(number));
        entry.extend_from_slice(b"h\x1fK\x00ub");
        // Rank 0, as before a rendezvous is complete; SETITEM.
        entry.extend_from_slice(b"K\x00s");
        let mut participant = [0; PARTICIPANT];
        fill(&entry, &mut participant);
        Self { number, participant }
    }
}

/// The entry in `last_heartbeats`, in base64, of a node that joins a state with `others` other nodes.
pub(crate) fn heartbeat(others: usize) -> [u8; HEARTBEAT] {
    let mut entry = Vec::with_capacity(HEARTBEAT / 4 * 3);
    // The node from the memo; the time; SETITEM.
    entry.push(b'j');
    entry.extend_from_slice(&MEMO_OF_SECOND.wrapping_add(count(others)).wrapping_sub(1).to_le_bytes());
    moment(&mut entry);
    entry.push(b's');
    let mut heartbeat = [0; HEARTBEAT];
    fill(&entry, &mut heartbeat);
    heartbeat
}

fn fill(entry: &[u8], base64: &mut [u8]) {
    let written = STANDARD.encode_slice(entry, base64);
    debug_assert_eq!(written.ok(), Some(base64.len()), "an entry has exactly its length");
}

fn name(number: usize, len: usize) -> String {
    format!("{:-<len$}", format!("node{number:06}.bench"))
}

fn pid(number: usize) -> [u8; 4] {
    count(number).saturating_add(1000).to_le_bytes()
}

/// Everything up to the first participant, with the numbers of the memo entries in brackets.
fn head(pickle: &mut Vec<u8>, number: usize) {
    // PROTO 4; the class [0, 1, 2]; an object [3] with fields [4].
    pickle.extend_from_slice(b"\x80\x04");
    memoized(pickle, "torch.distributed.elastic.rendezvous.dynamic_rendezvous");
    memoized(pickle, "_RendezvousState");
    pickle.extend_from_slice(b"\x93\x94)\x81\x94}\x94(");
    memoized(pickle, "round"); // [5]
    pickle.extend_from_slice(b"K\x00");
    memoized(pickle, "complete"); // [6]
    pickle.push(0x89);
    // A deadline, as after the minimum has joined: datetime [8, 9] of 10 bytes [10] in UTC [18].
    memoized(pickle, "deadline"); // [7]
    memoized(pickle, "datetime");
    pickle.extend_from_slice(b"h\x08\x93\x94C\x0a");
    pickle.extend_from_slice(&MOMENT);
    pickle.extend_from_slice(b"\x94h\x08");
    memoized(pickle, "timezone"); // [11]
    pickle.extend_from_slice(b"\x93\x94h\x08");
    memoized(pickle, "timedelta"); // [13]
    pickle.extend_from_slice(b"\x93\x94K\x00K\x00K\x00\x87\x94R\x94\x85\x94R\x94\x86\x94R\x94");
    memoized(pickle, "closed"); // [21]
    pickle.push(0x89);
    memoized(pickle, "participants"); // [22]
    // A dict [23] with the first node: its class [24, 25], itself [26], its fields [27] by their names [28 to
    // 31].
    pickle.extend_from_slice(b"}\x94h\x00");
    memoized(pickle, "_NodeDesc");
    pickle.extend_from_slice(b"\x93\x94)\x81\x94}\x94(");
    memoized(pickle, "addr");
    // The name fills the rest of the head; 38 bytes follow it.
    let len = HEAD_BYTES.saturating_sub(pickle.len()).saturating_sub(2 + BEHIND_NAME);
    memoized(pickle, &name(number, len));
    memoized(pickle, "pid");
    pickle.push(b'J');
    pickle.extend_from_slice(&pid(number));
    memoized(pickle, "local_id");
    pickle.extend_from_slice(b"K\x00ubK\x00s");
}

/// The part of the head after the name: MEMOIZE, `pid`, `local_id`, and the ends of node and item.
const BEHIND_NAME: usize = 1 + (2 + 3 + 1) + 5 + (2 + 8 + 1) + 7;

/// The empty lists, and the first node's heartbeat.
fn middle(pickle: &mut Vec<u8>) {
    text(pickle, "wait_list");
    pickle.push(0x8f);
    text(pickle, "redundancy_list");
    pickle.push(0x8f);
    text(pickle, "last_heartbeats");
    pickle.extend_from_slice(&[b'}', b'h', MEMO_OF_FIRST]);
    moment(pickle);
    pickle.push(b's');
}

/// A time in UTC, with the class and the zone from the memo.
fn moment(pickle: &mut Vec<u8>) {
    pickle.extend_from_slice(b"h\x09C\x0a");
    pickle.extend_from_slice(&MOMENT);
    pickle.extend_from_slice(b"h\x12\x86R");
}

fn memoized(pickle: &mut Vec<u8>, words: &str) {
    text(pickle, words);
    pickle.push(0x94);
}

fn text(pickle: &mut Vec<u8>, words: &str) {
    pickle.push(0x8c);
    pickle.push(u8::try_from(words.len()).unwrap_or(u8::MAX));
    pickle.extend_from_slice(words.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rallypoint_protocol::rendezvous_state;

    fn joined(state: &[u8], node: &Node) -> Vec<u8> {
        let at = parts(state).expect("a state of ours");
        let heartbeat = heartbeat(at.participants);
        [
            &state[..at.participants_end],
            &node.participant,
            &state[at.participants_end..at.heartbeats_end],
            &heartbeat,
            &state[at.heartbeats_end..],
        ]
        .concat()
    }

    #[test]
    fn a_state_of_many_nodes_is_read_as_one() {
        let mut state = first(&Node::new(7));
        for number in 100..1300 {
            assert_eq!(participants(&state), Some(number - 99));
            state = joined(&state, &Node::new(number));
        }
        assert_eq!(state.len(), HEAD + MIDDLE + TAIL + 1200 * 128);
        let read = rendezvous_state::read(&state).expect("readable").expect("a state");
        assert_eq!(read.last_heartbeats.len(), 1201);
        assert_eq!(read.participants.len(), 1201);
        assert!(!read.complete && !read.closed);
    }

    #[test]
    fn other_values_are_no_state_of_ours() {
        assert_eq!(participants(b"Y2FuaW1hZGFt"), None);
        assert_eq!(participants(&[b'A'; 700]), None);
    }
}
