//! What foreign peers do to the server, and frames that come when nobody expects them any more.

use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};

use super::plan::{MILLI, Micros, SECOND};
use super::random::Random;
use super::server::PORT;
use rallypoint_link::{Frame, Hello, Identity, Open, Point, RelayLife, SessionNo};
use rallypoint_protocol::encode_hello;

/// The names of links of foreign peers begin so.
pub(super) const STRANGER: &str = "stranger-";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rough {
    /// A peer connects to the store and sends bytes made from this seed.
    AtStore { seed: u64 },
    /// A peer connects as a relay and sends bytes made from this seed.
    AtLinks { seed: u64 },
    /// A relay loses its connection and comes again. What it had sent on the old connection arrives this much
    /// later.
    Late { relay: usize, by: Micros },
}

/// The rough events of a schedule, by time. Every other schedule has some.
pub(super) fn plan(seed: u64, relays: usize) -> Vec<(Micros, Rough)> {
    if !matches!(seed % 16, 0 | 3 | 5 | 6 | 7 | 10 | 12 | 15) {
        return Vec::new();
    }
    let mut random = Random::new(seed ^ 0xbad);
    let mut all: Vec<_> = (0..random.between(1, 4))
        .map(|_| {
            let at = random.below(600 * MILLI);
            let rough = match random.below(3) {
                0 => Rough::AtStore { seed: random.next() },
                1 => Rough::AtLinks { seed: random.next() },
                _ => Rough::Late {
                    relay: random.below(relays as u64) as usize,
                    by: random.between(MILLI, 3 * SECOND),
                },
            };
            (at, rough)
        })
        .collect();
    all.sort_by_key(|(at, _)| *at);
    all
}

fn garbage(random: &mut Random, most: u64) -> Vec<u8> {
    (0..random.below(most)).map(|_| random.next() as u8).collect()
}

/// Numbers that no peer should say.
fn absurd(random: &mut Random) -> u64 {
    *random.pick(&[u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 62, 1 << 48, 1 << 40, u64::from(u32::MAX)])
}

/// Bytes for a store's port: garbage, or a request that begins well and announces more than anybody can send.
pub(super) fn to_store(seed: u64) -> Vec<u8> {
    let random = &mut Random::new(seed);
    let mut bytes = Vec::new();
    if random.one_in(4) {
        return garbage(random, 2000);
    }
    encode_hello(&mut bytes);
    bytes.push(random.below(24) as u8);
    for _ in 0..random.between(1, 8) {
        bytes.put_u64_le(absurd(random));
    }
    bytes
}

/// Bytes for a link: a hello like a relay's, and then frames with numbers that nobody has assigned.
pub(super) fn to_links(seed: u64) -> BytesMut {
    let random = &mut Random::new(seed);
    let mut out = BytesMut::new();
    if random.one_in(6) {
        out.extend_from_slice(&garbage(random, 2000));
        return out;
    }
    let name = match random.below(8) {
        0 => "x".repeat(1000),
        1 => format!("{STRANGER}\0\n"),
        n => format!("{STRANGER}{n}"),
    };
    let number =
        |random: &mut Random| SessionNo(*random.pick(&[0, 1, 2, 3, u32::MAX, u32::MAX - 1, 1 << 31]));
    let point = |random: &mut Random| Point {
        no: number(random),
        received: absurd(random),
        done: absurd(random),
        limit: absurd(random),
    };
    let sessions = (0..random.below(3)).map(|_| point(random)).collect();
    Frame::Hello(Hello {
        small_first: true,
        identity: Identity { name, life: RelayLife(random.next()) },
        connection: 0,
        sessions,
    })
    .put(&mut out);
    for _ in 0..random.below(30) {
        let no = number(random);
        let amount = absurd(random) as u32;
        match random.below(13) {
            0..=4 => {
                let client = SocketAddr::from(([127, 0, 0, 1], random.below(1000) as u16));
                Frame::Open(Open { no, port: *random.pick(&[0, PORT, 1]), client }).put(&mut out);
            }
            5..=6 => {
                let bytes = Bytes::from(to_store(random.next()));
                Frame::Data { sessions: [no, number(random)].into_iter().collect(), bytes }.put(&mut out);
            }
            7 => Frame::Done(vec![(no, amount)]).put(&mut out),
            8 => Frame::Room(vec![(no, amount)]).put(&mut out),
            9 => Frame::Close(no).put(&mut out),
            10 => Frame::Forgotten(no).put(&mut out),
            11 => {
                // More bytes than a frame may have.
                out.put_u8(b'D');
                out.put_u32_le(amount);
            }
            _ => out.extend_from_slice(&garbage(random, 50)),
        }
    }
    out
}
