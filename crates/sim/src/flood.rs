//! A flood: a relay that sends everything that takes memory and reads nothing, with honest clients beside it,
//! at a server with little memory. It runs the real links, conversations and engine. One seed makes one
//! flood.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::disk::Noted;
use super::plan::{Keeping, MILLI, SECOND};
use super::random::Random;
use super::server::{Direct, PORT, Server, ServerLine};
use rallypoint_link::{
    End, FIRST_STORE, FIRST_WINDOW, FRAMES_AT_ONCE, Frame, Hello, Identity, Open, RelayEnd, RelayEvent,
    RelayLife, SessionNo, WINDOW,
};
use rallypoint_protocol::ids::Timestamp;
use rallypoint_protocol::{Dialect, Op, Payload, Request, encode_hello, encode_request};
use rallypoint_server::clock::invented;
use rallypoint_server::engine::tap;
use rallypoint_server::journal::faults::Disk;
use rallypoint_server::link::{Bearer, Turn};

const LIMIT: usize = 3 << 20;
/// Memory of one batch, one frame and the bytes in flight, beyond the limit.
const SLACK: usize = 1 << 20;
/// Bytes of a value for which there is never room.
const ENDLESS: u64 = 4 << 20;
const SESSIONS: u32 = 60;
const HONEST: usize = 6;
const STEP: u64 = 100 * MILLI;

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// Nobody looks for clients that hold up others.
    NobodyLooks,
    /// The relay does not report that its clients have received their replies.
    NeverDelivered,
    /// The relay does not pass on how much a client may send.
    RoomIsLost,
}

/// An honest client: it sets a value of its own, reads it back, and begins again.
struct Honest {
    no: SessionNo,
    /// The bytes that are still to be sent, and the bytes of the answer that are still to come.
    sends: Bytes,
    waits_for: usize,
    rounds: u32,
}

fn request(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(encode_request(request, Dialect::C, &mut bytes), "a request of this dialect");
    bytes
}

fn set_and_get(key: &[u8], value: &[u8]) -> Vec<u8> {
    let set = request(&Request::Set { key, value: Payload::borrowed(value) });
    [set, request(&Request::Get { key })].concat()
}

fn new_line() -> ServerLine {
    ServerLine { line: None, input: BytesMut::new(), out: BytesMut::new(), held: None, has_turn: false }
}

/// A relay that follows the protocol, but never reports that its clients have received anything.
struct Flooder {
    /// How much each of its clients has sent, and how much it may send.
    sessions: BTreeMap<SessionNo, (usize, usize)>,
    first: usize,
    next_no: u32,
}

impl Flooder {
    fn open(&mut self, out: &mut BytesMut) {
        let no = SessionNo(self.next_no);
        self.next_no += 1;
        Frame::Open(Open { no, port: FIRST_STORE, client: ([127, 0, 0, 1], 1).into() }).put(out);
        let mut hello = Vec::new();
        encode_hello(&mut hello);
        self.sessions.insert(no, (hello.len(), self.first));
        Frame::Data { sessions: [no].into_iter().collect(), bytes: hello.into() }.put(out);
    }

    /// Takes what the server says, and sends what takes memory.
    fn goes_on(&mut self, heard: &mut BytesMut, random: &mut Random) -> BytesMut {
        let mut out = BytesMut::new();
        Frame::Ping.put(&mut out);
        while let Ok(Some(frame)) = Frame::take(heard) {
            match frame {
                Frame::Room(amounts) => {
                    for (no, more) in amounts {
                        self.sessions.entry(no).and_modify(|(_, limit)| *limit += more as usize);
                    }
                }
                Frame::End(End { no, .. }) => {
                    self.sessions.remove(&no);
                    Frame::Close(no).put(&mut out);
                    self.open(&mut out);
                }
                _ => {}
            }
        }
        for _ in 0..random.between(1, 3) {
            let mut bytes = match random.below(4) {
                // The beginning, or a further part, of a value that never ends.
                0 => [&[Op::Set as u8][..], &1_u64.to_le_bytes(), b"k", &ENDLESS.to_le_bytes()].concat(),
                1 => vec![b'x'; random.between(1, 60_000) as usize],
                2 => vec![Op::NumKeys as u8; random.between(1, 8000) as usize],
                _ => vec![Op::ListKeys as u8; random.between(1, 20) as usize],
            };
            let (every, of) = (random.between(1, 4) as u32, random.below(4) as u32);
            let mut chosen: Vec<_> = self.sessions.iter_mut().filter(|(no, _)| no.0 % every <= of).collect();
            chosen.retain(|(_, (sent, limit))| sent < limit);
            let room = chosen.iter().map(|(_, (sent, limit))| *limit - *sent).min().unwrap_or(0);
            bytes.truncate(room);
            for (_, (sent, _)) in &mut chosen {
                *sent += bytes.len();
            }
            let sessions = chosen.iter().map(|(no, _)| **no).collect();
            Frame::Data { sessions, bytes: bytes.into() }.put(&mut out);
        }
        out
    }
}

/// Lets a connection of a relay have its turns. The other end reads everything that it sends.
fn turns(server: &Server, served: &mut ServerLine, reads: &mut BytesMut) -> Result<bool, String> {
    let Some(line) = &served.line else { return Ok(false) };
    for _ in 0..10_000 {
        match server.links.turn(line, &mut served.input, &mut served.out) {
            Err(_) | Ok(Turn::Over) => return Ok(false),
            Ok(Turn::On { has_more, has_new }) => {
                reads.extend_from_slice(&served.out.split());
                if !has_more && !has_new {
                    return Ok(true);
                }
            }
        }
    }
    Err("a line always has more to do".into())
}

fn flood(seed: u64, bug: Option<Bug>) -> Result<u32, String> {
    let mut random = Random::new(seed);
    let start = Instant::now();
    invented::set(start, Duration::ZERO);
    tap::listen(|_, _| ());
    let noted = Noted::new(Disk::default(), None);
    let server = Server::start_within(LIMIT, Keeping::Nothing, &noted, 1)
        .map_err(|_| "it does not start".to_owned())?;
    let bearer = |n: u8| Bearer { peer: ([10, 0, 0, n], 1).into(), grant: None };

    let identity = Identity { name: "hostile".into(), life: RelayLife(1) };
    let small_first = random.one_in(2);
    let hello = Hello { identity, connection: 1, small_first, sessions: vec![] };
    let mut bad = new_line();
    bad.line = Some(server.links.take_in(&hello, &bearer(1)).map_err(|refuse| refuse.reason)?);
    let first = if small_first { FIRST_WINDOW } else { WINDOW };
    let mut flooder = Flooder { sessions: BTreeMap::new(), first, next_no: 0 };
    (0..SESSIONS).for_each(|_| flooder.open(&mut bad.input));
    let mut heard = BytesMut::new();

    let mut relay = RelayEnd::new(Identity { name: "honest".into(), life: RelayLife(2) });
    let mut clients: Vec<_> = (0..HONEST)
        .map(|n| {
            let no = relay.open(FIRST_STORE, ([127, 0, 0, 1], n as u16).into()).expect("a place");
            let mut hello = Vec::new();
            encode_hello(&mut hello);
            Honest { no, sends: hello.into(), waits_for: 0, rounds: 0 }
        })
        .collect();
    let mut good = new_line();
    let (mut to_relay, mut is_up) = (BytesMut::new(), false);
    relay.connected(Timestamp::default());

    let mut direct: Direct = server.connect(PORT, ([10, 0, 1, 1], 1).into()).expect("the store");
    encode_hello(&mut direct.input);

    for step in 1..=150_u64 {
        let now = Timestamp(Duration::from_micros(step * STEP));
        invented::set(start, now.0);
        bad.input.extend_from_slice(&flooder.goes_on(&mut heard, &mut random));
        if !turns(&server, &mut bad, &mut heard)? {
            return Err(format!(
                "step {step}: the hostile relay keeps to the protocol, and its link is over"
            ));
        }

        for client in &mut clients {
            if client.sends.is_empty() && client.waits_for == 0 {
                let value = vec![b'v'; random.between(1, 20_000) as usize];
                client.sends = set_and_get(format!("own{}", client.no.0).as_bytes(), &value).into();
                client.waits_for = 8 + value.len();
            }
            let some = client.sends.len().min(relay.room(client.no));
            if some > 0 {
                relay.from_client(client.no, client.sends.split_to(some));
            }
        }
        for _ in 0..8 {
            relay.put_frames(&mut good.input, FRAMES_AT_ONCE, now);
            if !is_up && let Ok(Some(Frame::Hello(hello))) = Frame::take(&mut good.input) {
                good.line = Some(server.links.take_in(&hello, &bearer(2)).map_err(|refuse| refuse.reason)?);
                is_up = true;
            }
            if !turns(&server, &mut good, &mut to_relay)? {
                return Err("the link of the honest relay is over".into());
            }
            if bug == Some(Bug::RoomIsLost) {
                to_relay = without_room(&mut to_relay);
            }
            relay.receive(&mut to_relay, now).map_err(|error| error.to_string())?;
            while let Some(event) = relay.next_event() {
                match event {
                    RelayEvent::Reply(no, bytes) => {
                        let client = clients.iter_mut().find(|client| client.no == no).expect("a client");
                        client.waits_for -= bytes.len();
                        client.rounds += u32::from(client.waits_for == 0);
                        if bug != Some(Bug::NeverDelivered) {
                            relay.delivered(no, bytes.len());
                        }
                    }
                    RelayEvent::Up => {}
                    other => return Err(format!("step {step}: an honest relay is told {other:?}")),
                }
            }
        }

        // A client with a connection of its own fills the store more and more.
        let value = vec![b'd'; 12_000];
        direct.input.extend_from_slice(&set_and_get(format!("direct{step}").as_bytes(), &value));
        while direct.turn() {
            direct.replies.advance(direct.replies.len());
        }
        if let Some(end) = &direct.conversation.ending {
            return Err(format!("step {step}: a good direct client is cut off: {end}"));
        }

        let tick = step * STEP;
        if tick.is_multiple_of(SECOND) {
            relay.tick(now).map_err(|error| error.to_string())?;
            for served in [&bad, &good] {
                if let Some(line) = &served.line {
                    line.tick().map_err(|error| error.to_string())?;
                }
            }
        }
        if bug != Some(Bug::NobodyLooks) {
            server.links.tick();
        }
        let used = server.stores.budget().used();
        if used > LIMIT + SLACK {
            return Err(format!("step {step}: {used} bytes are used of {LIMIT}"));
        }
        let (counted, held) = server.links.memory();
        if counted < held {
            return Err(format!("step {step}: {counted} bytes are counted for the links, which hold {held}"));
        }
    }
    let fewest = clients.iter().map(|client| client.rounds).min().unwrap_or(0);
    if fewest < 10 {
        return Err(format!("an honest client comes to {fewest} rounds of 150"));
    }
    Ok(fewest)
}

/// The frames, except the ones that say how much may be sent.
fn without_room(frames: &mut BytesMut) -> BytesMut {
    let mut out = BytesMut::new();
    while let Ok(Some(frame)) = Frame::take(frames) {
        if !matches!(frame, Frame::Room(_)) {
            frame.put(&mut out);
        }
    }
    out.extend_from_slice(frames);
    out
}

#[test]
fn a_flood_stays_within_the_memory_and_harms_nobody_else() {
    for seed in 0..12 {
        if let Err(why) = flood(seed, None) {
            panic!("flood {seed}: {why}");
        }
    }
}

#[test]
fn each_bug_in_a_flood_is_found() {
    for bug in [Bug::NobodyLooks, Bug::NeverDelivered, Bug::RoomIsLost] {
        let found = (0..4).find_map(|seed| flood(seed, Some(bug)).err().map(|why| (seed, why)));
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} is not found");
    }
}
