//! `cas`: torchrun nodes join one rendezvous state, as its c10d backend does it: read the state, write it back with
//! oneself in it, and again with what the store holds if another node was faster.

mod state;

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use super::{Error, Frame, Link, Session, Units};
use crate::protocol::rendezvous_state::NO_STATE;
use crate::protocol::{KeyList, Op, Payload, Request};
use state::Node;

/// `ranks` nodes join at once. Those that have not joined when the plan's time is over give up.
pub(super) fn cas(session: &mut Session<'_>) -> Result<(), Error> {
    let (nodes, limit) = (session.plan.ranks, session.plan.duration);
    session.connect(nodes)?;
    let key: Arc<str> = format!("/torch.rendezvous.{}", session.prefix.trim_start_matches('/')).into();
    let used = Arc::clone(&key);
    session.measure_each("join", "attempt", Units::Latencies("attempt"), 0..nodes, move |mut link| {
        let key = Arc::clone(&used);
        async move {
            let started = Instant::now();
            if join(&mut link, key.as_bytes(), started + limit).await? {
                link.tally.took("node", started.elapsed());
                link.tally.fact("joined", 1);
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

/// Tries until the node is in the state, or `until`. Returns whether it is.
async fn join(link: &mut Link, key: &[u8], until: Instant) -> Result<bool, Error> {
    let node = Node::new(link.number);
    let mut held = Vec::new();
    let begin = Request::CompareSet { key, expected: b"", desired: Payload::borrowed(NO_STATE) };
    link.send(&Frame::of(&begin)).await?;
    link.value(Op::CompareSet, &mut held).await?;
    read(link, key, &mut held).await?;
    let head = compare_set_head(key);
    let mut seen = Vec::new();
    while Instant::now() < until {
        let started = Instant::now();
        let first;
        let heartbeat;
        let desired: [&[u8]; 5] = if held == NO_STATE {
            first = state::first(&node);
            [&first, b"", b"", b"", b""]
        } else {
            let Some(at) = state::parts(&held) else { return Err(Error::Garbage { op: Op::Get }) };
            heartbeat = state::heartbeat(at.participants);
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
        if is_concatenation(&seen, &desired) {
            return Ok(true);
        }
        std::mem::swap(&mut held, &mut seen);
    }
    Ok(false)
}

async fn read(link: &mut Link, key: &[u8], value: &mut Vec<u8>) -> Result<(), Error> {
    let keys: KeyList = [key].into_iter().collect();
    link.send(&Frame::of(&Request::Wait(keys.as_list()))).await?;
    link.release(Op::Wait).await?;
    link.send(&Frame::of(&Request::Get { key })).await?;
    link.value(Op::Get, value).await
}

/// What a COMPARE_SET begins with: all but its two values.
fn compare_set_head(key: &[u8]) -> Vec<u8> {
    let nothing = Request::CompareSet { key, expected: b"", desired: Payload::borrowed(b"") };
    let mut head = Frame::of(&nothing).bytes;
    // The lengths of two empty values.
    head.truncate(head.len() - 16);
    head
}

/// Sends a COMPARE_SET whose values lie in several pieces, without a copy of either.
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
