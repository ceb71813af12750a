//! `cas`: torchrun nodes join one rendezvous state, as its c10d backend does: read the state, write it back
//! with the own node added, and retry with the store's value if another node was faster.
//!
//! The scenario omits the keep-alives that each node writes after five seconds of waiting, and that make
//! other nodes lose.

mod state;

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Error, Frame, Link, Session, Units};
use rallypoint_protocol::ids::count;
use rallypoint_protocol::rendezvous_state::NO_STATE;
use rallypoint_protocol::{KeyList, Op, Payload, Request};
use state::Node;

/// How often a joined node reads the state (`_DistributedRendezvousOpExecutor.run`: `_delay(seconds=1)`).
const POLL: Duration = Duration::from_secs(1);

/// Nodes begin within this time (`DynamicRendezvousHandler.next_rendezvous`: `_delay(seconds=(0, 0.3))`).
const SKEW: Duration = Duration::from_millis(300);

/// `ranks` nodes join at once. A node gives up if it has not joined within the plan's time.
pub(crate) fn cas(session: &mut Session<'_>) -> Result<(), Error> {
    let (nodes, limit, think) = (session.plan.ranks, session.plan.duration, session.plan.think);
    session.connect(nodes)?;
    let key: Arc<str> = format!("/torch.rendezvous.{}", session.prefix.trim_start_matches('/')).into();
    let used = Arc::clone(&key);
    session.measure_each("join", "attempt", Units::Latencies("attempt"), 0..nodes, move |mut link| {
        let key = Arc::clone(&used);
        async move {
            let started = Instant::now();
            let until = started.checked_add(limit).unwrap_or(started);
            if !think.is_zero() {
                let skew = SKEW.saturating_mul(count(link.number)).checked_div(count(nodes));
                tokio::time::sleep(skew.unwrap_or_default()).await;
            }
            if let Some(participants) = join(&mut link, key.as_bytes(), think, until).await? {
                link.tally.took("node", started.elapsed());
                link.tally.fact("joined", 1);
                if !think.is_zero() && participants < nodes {
                    await_others(&mut link, key.as_bytes(), nodes, until).await?;
                }
            } else {
                link.tally.fact("gave_up", 1);
            }
            Ok(link)
        }
    })?;
    session.prepare_each(0..1, move |mut link| {
        let key = Arc::clone(&key);
        async move {
            let mut value = Vec::new();
            read(&mut link, key.as_bytes(), &mut value).await?;
            link.tally.fact("state_bytes", value.len() as u64);
            link.tally.fact("participants", state::participants(&value).unwrap_or_default() as u64);
            link.ask(&Frame::of(&Request::Delete { key: key.as_bytes() })).await?;
            Ok(link)
        }
    })?;
    if session.fact("joined") < nodes as u64 {
        session.incomplete();
    }
    Ok(())
}

/// Tries until the node is in the state, or until `until`. Returns the number of nodes in it.
async fn join(link: &mut Link, key: &[u8], think: Duration, until: Instant) -> Result<Option<usize>, Error> {
    let node = Node::new(link.number);
    let mut held = Vec::new();
    let begin = Request::CompareSet { key, expected: b"", desired: Payload::borrowed(NO_STATE) };
    let begin = Frame::of(&begin);
    link.send(&begin).await?;
    link.value(Op::CompareSet, &mut held).await?;
    count_bytes(link, begin.bytes.len(), held.len());
    read(link, key, &mut held).await?;
    let head = compare_set_head(key);
    let mut seen = Vec::new();
    while Instant::now() < until {
        let participants = state::participants(&held).unwrap_or_default();
        if !think.is_zero() {
            // `_record` alone takes a node about a millisecond, so the timer's steps are fine enough.
            tokio::time::sleep(think.saturating_mul(count(participants))).await;
        }
        let started = Instant::now();
        let first;
        let heartbeat;
        let desired: [&[u8]; 5] = if held == NO_STATE {
            first = state::first(&node);
            [&first, b"", b"", b"", b""]
        } else {
            let Some(at) = state::parts(&held) else { return Err(Error::Garbage { op: Op::Get }) };
            heartbeat = state::heartbeat(participants);
            [
                &held[..at.participants_end],
                &node.participant,
                &held[at.participants_end..at.heartbeats_end],
                &heartbeat,
                &held[at.heartbeats_end..],
            ]
        };
        compare_set(link, &head, &held, &desired).await?;
        link.value(Op::CompareSet, &mut seen).await?;
        link.tally.took("attempt", started.elapsed());
        let desired_len = desired.iter().map(|piece| piece.len()).sum::<usize>();
        count_bytes(link, [head.len(), 16, held.len(), desired_len].iter().sum(), seen.len());
        if is_concatenation(&seen, &desired) {
            return Ok(participants.checked_add(1));
        }
        std::mem::swap(&mut held, &mut seen);
    }
    Ok(None)
}

/// Reads the state every second until all nodes are in it, or until `until`.
async fn await_others(link: &mut Link, key: &[u8], nodes: usize, until: Instant) -> Result<(), Error> {
    let mut value = Vec::new();
    while Instant::now() < until {
        tokio::time::sleep(POLL).await;
        let started = Instant::now();
        read(link, key, &mut value).await?;
        link.tally.took("poll", started.elapsed());
        if state::participants(&value) == Some(nodes) {
            break;
        }
    }
    Ok(())
}

async fn read(link: &mut Link, key: &[u8], value: &mut Vec<u8>) -> Result<(), Error> {
    let keys: KeyList = [key].into_iter().collect();
    let (wait, get) = (Frame::of(&Request::Wait(keys.as_list())), Frame::of(&Request::Get { key }));
    link.send(&wait).await?;
    link.release(Op::Wait).await?;
    link.send(&get).await?;
    link.value(Op::Get, value).await?;
    count_bytes(link, [wait.bytes.len(), get.bytes.len()].iter().sum(), value.len().saturating_add(1));
    Ok(())
}

/// Counts a request, and its reply of one value.
fn count_bytes(link: &Link, request: usize, value: usize) {
    link.tally.fact("sent_bytes", request as u64);
    link.tally.fact("received_bytes", (value as u64).saturating_add(8));
}

/// The start of a COMPARE_SET: everything before its two values.
fn compare_set_head(key: &[u8]) -> Vec<u8> {
    let nothing = Request::CompareSet { key, expected: b"", desired: Payload::borrowed(b"") };
    let mut head = Frame::of(&nothing).bytes;
    // Removes the lengths of two empty values.
    head.truncate(head.len().saturating_sub(16));
    head
}

/// Sends a COMPARE_SET whose values consist of several pieces, without copying them.
async fn compare_set(
    link: &mut Link,
    head: &[u8],
    expected: &[u8],
    desired: &[&[u8]; 5],
) -> Result<(), Error> {
    let expected_len = (expected.len() as u64).to_le_bytes();
    let desired_len = desired.iter().map(|piece| piece.len() as u64).sum::<u64>().to_le_bytes();
    let before: [&[u8]; 4] = [head, &expected_len, expected, &desired_len];
    let mut pieces = [IoSlice::new(b""); 9];
    for (piece, bytes) in pieces.iter_mut().zip(before.iter().chain(desired)) {
        *piece = IoSlice::new(bytes);
    }
    link.send_pieces(Op::CompareSet, &mut pieces).await
}

fn is_concatenation(whole: &[u8], pieces: &[&[u8]]) -> bool {
    let mut rest = whole;
    for piece in pieces {
        let Some(after) = rest.strip_prefix(*piece) else { return false };
        rest = after;
    }
    rest.is_empty()
}
