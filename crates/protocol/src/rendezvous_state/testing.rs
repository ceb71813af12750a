//! The state as agents write it, for the tests of several crates.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is there for tests only"
)]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Node, RendezvousState, UtcMicros};

pub(super) const TORCH: &str = "torch.distributed.elastic.rendezvous.dynamic_rendezvous";

/// The beginning of 2026-11-21, UTC.
const MIDNIGHT: i64 = 1_795_219_200_000_000;

/// 2026-11-21 and so many microseconds.
pub fn at(micros: u32) -> UtcMicros {
    UtcMicros(MIDNIGHT + i64::from(micros))
}

/// A state as an agent writes it.
pub fn encode(state: &RendezvousState) -> String {
    let all = |nodes: &[Node]| set(&nodes.iter().map(node).collect::<Vec<_>>());
    let participants: Vec<_> =
        state.participants.iter().map(|(member, rank)| (node(member), int(*rank))).collect();
    let heartbeats: Vec<_> =
        state.last_heartbeats.iter().map(|(member, beat)| (node(member), moment(*beat))).collect();
    let fields = [
        ("round", int(state.round as u32)),
        ("complete", boolean(state.complete)),
        ("deadline", state.deadline.map_or_else(|| b"N".to_vec(), moment)),
        ("closed", boolean(state.closed)),
        ("participants", dict(&participants)),
        ("wait_list", all(&state.wait_list)),
        ("redundancy_list", all(&state.redundancy_list)),
        ("last_heartbeats", dict(&heartbeats)),
    ];
    let pickle = [b"\x80\x04", &object("_RendezvousState", &fields)[..], b"."].concat();
    STANDARD.encode(pickle)
}

pub(super) fn text(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

fn int(n: u32) -> Vec<u8> {
    match i32::try_from(n) {
        Ok(n) => [b"J", &n.to_le_bytes()[..]].concat(),
        Err(_) => [b"\x8a\x05", &u64::from(n).to_le_bytes()[..5]].concat(),
    }
}

fn boolean(yes: bool) -> Vec<u8> {
    vec![if yes { 0x88 } else { 0x89 }]
}

pub(super) fn dict(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let pairs: Vec<u8> = pairs.iter().flat_map(|(key, value)| [&key[..], value].concat()).collect();
    [b"}(", &pairs[..], b"u"].concat()
}

pub(super) fn set(items: &[Vec<u8>]) -> Vec<u8> {
    [b"\x8f(", &items.concat()[..], b"\x90"].concat()
}

pub(super) fn name(module: &str, name: &str) -> Vec<u8> {
    [text(module), text(name), vec![0x93]].concat()
}

pub(super) fn object(class: &str, fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let fields: Vec<_> = fields.iter().map(|(field, value)| (text(field), value.clone())).collect();
    [name(TORCH, class), b")\x81".to_vec(), dict(&fields), b"b".to_vec()].concat()
}

fn node(node: &Node) -> Vec<u8> {
    object(
        "_NodeDesc",
        &[("addr", text(&node.addr)), ("pid", int(node.pid)), ("local_id", int(node.local_id))],
    )
}

/// A naive time of the day that begins at [`MIDNIGHT`].
fn moment(UtcMicros(at): UtcMicros) -> Vec<u8> {
    let of_day = at - MIDNIGHT;
    let (secs, micros) = (of_day / 1_000_000, (of_day % 1_000_000) as u32);
    let time = [secs / 3600 % 24, secs / 60 % 60, secs % 60].map(|it| it as u8);
    let bytes = [&[0x07, 0xea, 11, 21], &time[..], &micros.to_be_bytes()[1..]].concat();
    [name("datetime", "datetime"), b"C\x0a".to_vec(), bytes, b"\x85R".to_vec()].concat()
}
