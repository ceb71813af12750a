//! Both ends of a link, over a connection that may break at any byte.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use rallypoint_protocol::Piece;
use rallypoint_protocol::ids::Timestamp;

/// A connection: the bytes in flight in each direction.
#[derive(Default)]
struct Wire {
    up: BytesMut,
    down: BytesMut,
    /// Bytes that have reached the server. The last frame may not be whole.
    at_server: BytesMut,
    at_relay: BytesMut,
}

/// The server's side of a session: it answers each byte with the inverted byte.
#[derive(Default)]
struct Echo {
    /// Requests that have arrived and are not applied yet.
    requests: Vec<u8>,
    heard: Vec<u8>,
}

#[derive(Default)]
struct Client {
    sent: Vec<u8>,
    got: Vec<u8>,
    is_gone: bool,
    lost: Option<SessionLost>,
}

/// Why the server ends a session.
const ENDED: &str = "an operator closed the store";

/// A relay, a server, and the connection between them.
struct World {
    relay: RelayEnd,
    server: Option<ServerEnd>,
    life: ServerLife,
    wire: Option<Wire>,
    clients: BTreeMap<SessionNo, Client>,
    echoes: BTreeMap<SessionNo, Echo>,
    /// The sessions that the server has ended.
    ended: BTreeSet<SessionNo>,
    /// Requests that the server has received in sessions that have ended.
    over: BTreeMap<SessionNo, Vec<u8>>,
    now: Timestamp,
    next_byte: u8,
}

impl World {
    fn new() -> Self {
        let identity = Identity { name: "train-0".into(), life: RelayLife(7) };
        Self {
            relay: RelayEnd::new(identity),
            server: None,
            life: ServerLife(1),
            wire: None,
            clients: BTreeMap::new(),
            echoes: BTreeMap::new(),
            ended: BTreeSet::new(),
            over: BTreeMap::new(),
            now: Timestamp::default(),
            next_byte: 0,
        }
    }

    /// A link with the sessions of eight clients. Neither end has anything left to send.
    fn of_8() -> (Self, [SessionNo; 8]) {
        let mut world = Self::new();
        let nos = [(); 8].map(|()| world.client());
        world.connect();
        (0..3).for_each(|_| world.flow(1 << 20));
        for &no in &nos {
            world.server.as_mut().expect("a server").give_room(no, WINDOW);
        }
        world.flow(1 << 20);
        world.relay.put_frames(&mut BytesMut::new(), 1 << 20, world.now);
        (world, nos)
    }

    fn client(&mut self) -> SessionNo {
        let no = self.relay.open(29500, "127.0.0.1:40000".parse().expect("an address")).expect("room");
        self.clients.insert(no, Client::default());
        no
    }

    /// A client sends `len` bytes, if the relay reads them.
    fn send(&mut self, no: SessionNo, len: usize) {
        let len = len.min(self.relay.room(no));
        // Without a hello, so the relay answers nothing itself.
        let bytes: Vec<u8> = (0..len).map(|n| self.next_byte.wrapping_add(n as u8) | 1).collect();
        self.next_byte = self.next_byte.wrapping_add(17);
        let Some(client) =
            self.clients.get_mut(&no).filter(|client| !client.is_gone && client.lost.is_none())
        else {
            return;
        };
        client.sent.extend(&bytes);
        self.relay.from_client(no, Bytes::from(bytes));
    }

    fn close(&mut self, no: SessionNo) {
        if let Some(client) =
            self.clients.get_mut(&no).filter(|client| !client.is_gone && client.lost.is_none())
        {
            client.is_gone = true;
            self.relay.close(no);
        }
    }

    /// The server ends a session.
    fn end(&mut self, no: SessionNo) {
        if let (Some(server), Some(echo)) = (&mut self.server, self.echoes.remove(&no)) {
            self.over.insert(no, echo.heard);
            server.end(no, ENDED.into());
            self.ended.insert(no);
        }
    }

    fn connect(&mut self) {
        if self.wire.is_none() {
            self.relay.connected(self.now);
            self.wire = Some(Wire::default());
        }
    }

    fn cut(&mut self) {
        if self.wire.take().is_some() {
            self.relay.lost();
            if let Some(server) = &mut self.server {
                server.lost(self.now);
            }
        }
    }

    /// Moves up to `most` bytes in each direction.
    fn flow(&mut self, most: usize) {
        let Some(wire) = &mut self.wire else { return };
        self.relay.put_frames(&mut wire.up, most, self.now);
        if let Some(server) = &mut self.server {
            server.put_frames(&mut wire.down, most, self.now);
        }
        let up = wire.up.split_to(wire.up.len().min(most));
        wire.at_server.extend_from_slice(&up);
        let down = wire.down.split_to(wire.down.len().min(most));
        wire.at_relay.extend_from_slice(&down);
        self.server_reads();
        if let Some(wire) = &mut self.wire {
            self.relay.receive(&mut wire.at_relay, self.now).expect("a server that keeps to the protocol");
        }
        while let Some(event) = self.relay.next_event() {
            match event {
                RelayEvent::Reply(no, bytes) => {
                    let client = self.clients.get_mut(&no).expect("a client");
                    client.got.extend_from_slice(&bytes);
                    self.relay.delivered(no, bytes.len());
                }
                RelayEvent::Lost(no, why) => self.clients.get_mut(&no).expect("a client").lost = Some(why),
                RelayEvent::Up => {}
                RelayEvent::Unheard(addr) => panic!("{addr}"),
                RelayEvent::Refused(why) => panic!("{why:?}"),
            }
        }
    }

    fn server_reads(&mut self) {
        let Some(wire) = &mut self.wire else { return };
        if !self.server.as_ref().is_some_and(ServerEnd::is_connected) {
            let Some(frame) = Frame::take(&mut wire.at_server).expect("frames") else { return };
            let Frame::Hello(hello) = frame else { panic!("{frame:?} before a hello") };
            let known = self.server.is_some();
            let life = self.life;
            let server = self.server.get_or_insert_with(|| ServerEnd::new(hello.identity.clone(), life));
            server.connected(&hello, known, self.now).expect("a relay that keeps to the protocol");
        }
        let server = self.server.as_mut().expect("a server");
        loop {
            while let Some(event) = server.next_event() {
                match event {
                    ServerEvent::Open(open) => {
                        let before = self.echoes.insert(open.no, Echo::default());
                        assert!(before.is_none() && !self.over.contains_key(&open.no), "opened twice");
                    }
                    ServerEvent::Request(no, bytes) => {
                        self.echoes.get_mut(&no).expect("an open session").requests.extend_from_slice(&bytes);
                    }
                    ServerEvent::Close(no) => {
                        let mut echo = self.echoes.remove(&no).expect("an open session");
                        echo.heard.append(&mut echo.requests);
                        self.over.insert(no, echo.heard);
                        server.end(no, "its client has gone".into());
                    }
                    ServerEvent::Forgotten(_) => {}
                    ServerEvent::Bye => panic!("nobody said bye"),
                }
            }
            if !server.receive(&mut wire.at_server, self.now).expect("a relay that keeps to the protocol") {
                break;
            }
        }
    }

    /// The server applies up to `most` bytes of each session, unless the client reads nothing.
    fn apply(&mut self, most: usize) {
        let Some(server) = &mut self.server else { return };
        for (&no, echo) in &mut self.echoes {
            if server.unread(no) > WINDOW {
                continue;
            }
            let some: Vec<u8> = echo.requests.drain(..echo.requests.len().min(most)).collect();
            server.give_room(no, WINDOW);
            server.applied(no, some.len());
            server.reply(no, some.iter().map(|byte| !byte).collect::<Bytes>());
            echo.heard.extend(some);
        }
    }

    /// Without further faults, everything comes to its end.
    fn settle(&mut self) {
        self.connect();
        for _ in 0..1000 {
            self.flow(1 << 20);
            self.apply(1 << 20);
            let servers = self.server.as_ref().is_some_and(ServerEnd::has_frames);
            if self.relay.is_up() && !self.relay.has_frames() && !servers && self.relay.memory() == 0 {
                break;
            }
            // What is not sent at once is sent with the next sign of life.
            self.now = self.now + PING_EVERY;
            self.relay.tick(self.now).expect("the server was heard");
            if let Some(server) = &mut self.server {
                server.tick(self.now).expect("the relay was heard");
            }
        }
        let wire = self.wire.as_ref().expect("a connection");
        assert!(!wire.up.has_remaining() && !wire.down.has_remaining());
    }

    fn heard(&self, no: SessionNo) -> &[u8] {
        self.over.get(&no).or_else(|| self.echoes.get(&no).map(|echo| &echo.heard)).map_or(&[], Vec::as_slice)
    }
}

#[derive(Debug, Clone)]
enum Act {
    Open,
    Send(prop::sample::Index, usize),
    Close(prop::sample::Index),
    End(prop::sample::Index),
    Connect,
    Cut,
    Flow(usize),
    Apply(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        2 => Just(Act::Open),
        8 => (index(), prop_oneof![5 => 1..40_usize, 1 => 60_000..300_000_usize])
            .prop_map(|(who, len)| Act::Send(who, len)),
        1 => index().prop_map(Act::Close),
        1 => index().prop_map(Act::End),
        3 => Just(Act::Connect),
        2 => Just(Act::Cut),
        8 => prop_oneof![1..60_usize, 1..400_000_usize].prop_map(Act::Flow),
        4 => prop_oneof![1..50_usize, 1..400_000_usize].prop_map(Act::Apply),
    ]
}

fn play(world: &mut World, acts: Vec<Act>) {
    for act in acts {
        let nos: Vec<_> = world.clients.keys().copied().collect();
        match act {
            Act::Open => drop(world.client()),
            Act::Send(who, len) if !nos.is_empty() => world.send(*who.get(&nos), len),
            Act::Close(who) if !nos.is_empty() => world.close(*who.get(&nos)),
            Act::End(who) if !nos.is_empty() => world.end(*who.get(&nos)),
            Act::Connect => world.connect(),
            Act::Cut => world.cut(),
            Act::Flow(most) => world.flow(most),
            Act::Apply(most) => world.apply(most),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever breaks and whenever, each byte arrives once and in order, in both directions, or the session
    /// was ended, and its client knows.
    #[test]
    fn a_link_that_breaks_loses_nothing_and_doubles_nothing(acts in vec(act(), 1..80)) {
        let mut world = World::new();
        play(&mut world, acts);
        world.settle();
        for (no, client) in &world.clients {
            let replies: Vec<u8> = client.sent.iter().map(|byte| !byte).collect();
            if world.ended.contains(no) {
                let lost = Some(SessionLost::Ended(ENDED.into()));
                prop_assert!(client.lost == lost || client.is_gone, "{:?}", client.lost);
                prop_assert!(client.sent.starts_with(world.heard(*no)) && replies.starts_with(&client.got));
                continue;
            }
            prop_assert_eq!(&client.lost, &None);
            prop_assert_eq!(world.heard(*no), &client.sent[..], "what {:?} sent", no);
            if client.is_gone {
                prop_assert!(replies.starts_with(&client.got));
            } else {
                prop_assert_eq!(&client.got, &replies, "what {:?} got", no);
            }
        }
        prop_assert_eq!(world.relay.memory(), 0, "everything is done");
        let server = world.server.as_ref().map_or(0, ServerEnd::sessions);
        prop_assert_eq!(server, world.relay.clients());
        prop_assert_eq!(server, world.echoes.len());
    }

    /// A server that has forgotten everything says so: no client waits for ever, and nothing is applied
    /// twice.
    #[test]
    fn what_a_new_server_never_heard_of_is_ended(before in vec(act(), 1..40), after in vec(act(), 1..40)) {
        let mut world = World::new();
        play(&mut world, before);
        world.cut();
        world.server = None;
        world.life = ServerLife(2);
        let heard: BTreeMap<_, _> = world.clients.keys().map(|&no| (no, world.heard(no).len())).collect();
        world.echoes.clear();
        world.over.clear();
        play(&mut world, after);
        world.settle();
        for (no, client) in &world.clients {
            let before = heard.get(no).copied().unwrap_or_default();
            prop_assert!(before == 0 || world.heard(*no).is_empty(), "applied by both servers");
            match &client.lost {
                Some(SessionLost::Ended(_)) => prop_assert!(world.ended.contains(no)),
                Some(why) => prop_assert_eq!(why, &SessionLost::Forgotten),
                None if client.is_gone => {}
                None => prop_assert_eq!(world.heard(*no), &client.sent[..]),
            }
        }
    }

    /// Whatever a peer sends, the ends return an error or go on.
    #[test]
    fn garbage_harms_neither_end(
        bytes in vec(any::<u8>(), 0..300),
        kind in prop::sample::select(b"HWXODKRCEFBP".to_vec()),
    ) {
        let mut frame = BytesMut::from(&[kind, bytes.len().min(255) as u8, 0, 0, 0][..]);
        frame.extend_from_slice(&bytes[..bytes.len().min(255)]);
        let hello = Hello {
            identity: Identity { name: "x".into(), life: RelayLife(1) },
            connection: 1,
            small_first: true,
            sessions: vec![],
        };
        let mut server = ServerEnd::new(hello.identity.clone(), ServerLife(1));
        let open = Open { no: SessionNo(3), port: 1, client: "1.2.3.4:5".parse().expect("an address") };
        server.connected(&hello, false, Timestamp::default()).expect("a hello");
        let mut input = BytesMut::new();
        Frame::Open(open).put(&mut input);
        input.extend_from_slice(&frame);
        let _ = server.receive(&mut input, Timestamp::default());
        let mut relay = RelayEnd::new(hello.identity);
        relay.connected(Timestamp::default());
        let mut input = BytesMut::new();
        let welcome = Welcome { life: ServerLife(1), resumed: false, first: WINDOW, sessions: vec![] };
        Frame::Welcome(welcome).put(&mut input);
        input.extend_from_slice(&frame);
        let _ = relay.receive(&mut input, Timestamp::default());
    }
}

#[test]
fn a_late_hello_of_an_earlier_connection_is_known() {
    let identity = Identity { name: "x".into(), life: RelayLife(1) };
    let hello =
        |connection| Hello { identity: identity.clone(), connection, small_first: false, sessions: vec![] };
    let mut server = ServerEnd::new(identity.clone(), ServerLife(1));
    server.connected(&hello(2), false, Timestamp::default()).expect("a hello");
    assert_eq!([1, 2, 3].map(|connection| server.is_overtaken(&hello(connection))), [true, false, false]);
    assert!(!server.is_overtaken(&hello(0)), "a relay that does not count");
    // The hello of a release that does not count its connections.
    let old = r#"{"name": "x", "life": 1, "sessions": []}"#;
    assert_eq!(serde_json::from_str::<Hello>(old).expect("a hello"), hello(0));
}

#[test]
fn what_several_sessions_send_at_once_is_sent_once() {
    let (mut world, nos) = World::of_8();
    for no in nos {
        world.relay.from_client(no, Bytes::from_static(&[1; 1000]));
    }
    let mut out = BytesMut::new();
    world.relay.put_frames(&mut out, 1 << 20, world.now);
    assert!(out.len() < 1100, "{}", out.len());
    let frame = Frame::take(&mut out).expect("a frame");
    assert!(
        matches!(frame, Some(Frame::Data { sessions, bytes }) if sessions.len() == 8 && bytes.len() == 1000)
    );
}

#[test]
fn long_answers_that_are_alike_are_sent_once_too() {
    const LONG: usize = 200_000;
    let (mut world, nos) = World::of_8();
    // The bytes differ, so a piece in the wrong place would be noticed.
    let answer: Bytes = (0..LONG).map(|at| (at / 1000) as u8).collect();
    for no in nos {
        world.relay.from_client(no, answer.clone());
    }
    let mut out = BytesMut::new();
    world.relay.put_frames(&mut out, 1 << 20, world.now);
    assert!(out.len() < LONG + 1000, "{}", out.len());
    let mut came = nos.map(|no| (no, Vec::new()));
    while let Some(frame) = Frame::take(&mut out).expect("frames") {
        let Frame::Data { sessions, bytes } = frame else { continue };
        for (_, came) in came.iter_mut().filter(|(no, _)| sessions.contains(no)) {
            came.extend_from_slice(&bytes);
        }
    }
    assert!(came.iter().all(|(_, came)| *came == answer));
}

#[test]
fn many_short_answers_count_as_the_memory_that_they_take() {
    let mut world = World::new();
    let no = world.client();
    world.connect();
    world.send(no, 1);
    for _ in 0..3 {
        world.flow(1 << 20);
    }
    let server = world.server.as_mut().expect("a server");
    for answers in 1..=1000 {
        server.reply(no, Bytes::copy_from_slice(&[answers as u8]));
        assert!(server.memory() >= answers * (size_of::<Bytes>() + 1), "the list alone takes more");
    }
    server.put_frames(&mut BytesMut::new(), 1 << 20, world.now);
    let mut done = BytesMut::new();
    Frame::Done(vec![(no, 400)]).put(&mut done);
    let before = server.memory();
    server.receive(&mut done, world.now).expect("frames");
    assert_eq!(server.memory(), before / 1000 * 600);
}

#[test]
fn a_client_that_reads_nothing_is_slowed_and_holds_up_nobody() {
    let mut world = World::new();
    let [slow, quick] = [(); 2].map(|()| world.client());
    world.connect();
    for _ in 0..20 {
        // The server takes no bytes of the slow client.
        world.send(slow, WINDOW);
        world.flow(1 << 20);
    }
    let sent = world.clients[&slow].sent.len();
    assert!(sent <= 2 * WINDOW, "{sent}");
    world.send(quick, 10);
    for _ in 0..5 {
        world.flow(1 << 20);
        world.apply(100);
    }
    assert_eq!(world.clients[&quick].got.len(), 10);
}

#[test]
fn a_silent_end_is_noticed_and_a_quiet_one_says_that_it_is_there() {
    let mut world = World::new();
    world.connect();
    world.flow(1 << 20);
    for _ in 0..10 {
        world.now = world.now + PING_EVERY;
        world.relay.tick(world.now).expect("the server was heard");
        world.server.as_mut().expect("a server").tick(world.now).expect("the relay was heard");
        world.flow(1 << 20);
        world.flow(1 << 20);
    }
    world.now = world.now + BROKEN_AFTER;
    assert_eq!(world.relay.tick(world.now), Err(LinkError::Silent));
    assert_eq!(world.server.as_mut().expect("a server").tick(world.now), Err(LinkError::Silent));
}

#[test]
fn a_server_that_is_behind_does_not_take_its_relay_for_silent() {
    let mut world = World::new();
    let no = world.client();
    world.connect();
    world.send(no, 5);
    (0..3).for_each(|_| world.flow(1 << 20));
    let server = world.server.as_mut().expect("a server");
    let mut input = BytesMut::new();
    Frame::Data { sessions: [no].into_iter().collect(), bytes: Bytes::from_static(b"x") }.put(&mut input);
    assert!(server.receive(&mut input, world.now).expect("frames"));
    world.now = world.now + BROKEN_AFTER;
    server.tick(world.now).expect("it has something to do first");
    assert!(server.next_event().is_some());
    world.now = world.now + BROKEN_AFTER;
    assert_eq!(server.tick(world.now), Err(LinkError::Silent));
}

#[test]
fn a_server_that_ends_a_session_is_heard_behind_its_last_reply() {
    let mut world = World::new();
    let no = world.client();
    world.connect();
    world.send(no, 5);
    (0..3).for_each(|_| world.flow(1 << 20));
    world.apply(5);
    let server = world.server.as_mut().expect("a server");
    server.end(no, ENDED.into());
    // The connection breaks before the relay knows of the end.
    server.put_frames(&mut BytesMut::new(), 1 << 20, Timestamp(Duration::ZERO));
    world.cut();
    world.echoes.clear();
    world.settle();
    let client = &world.clients[&no];
    assert_eq!(client.got.len(), 5);
    assert_eq!(client.lost, Some(SessionLost::Ended(ENDED.into())));
}

#[test]
fn why_a_client_is_lost_is_told_by_the_last_server_that_knew_it() {
    for (is_resumed, why) in [(false, SessionLost::AwayTooLong), (true, SessionLost::Forgotten)] {
        client_is_lost(is_resumed, why);
    }
}

/// A server continues the session of a client of the previous server, and later does not have it any more.
fn client_is_lost(is_resumed: bool, why: SessionLost) {
    let now = Timestamp::default();
    let mut relay = RelayEnd::new(Identity { name: "node".into(), life: RelayLife(1) });
    let no = relay.open(FIRST_STORE, "127.0.0.1:5".parse().expect("an address")).expect("room");
    relay.from_client(no, Bytes::from_static(b"hello"));
    let mut welcome = |life, resumed, sessions| {
        let mut input = BytesMut::new();
        Frame::Welcome(Welcome { life: ServerLife(life), resumed, first: FIRST_WINDOW, sessions })
            .put(&mut input);
        relay.lost();
        relay.connected(now);
        relay.receive(&mut input, now).expect("a welcome");
        relay.put_frames(&mut BytesMut::new(), 1 << 20, now);
        std::iter::from_fn(|| relay.next_event()).collect::<Vec<_>>()
    };
    welcome(1, false, vec![]);
    let known = welcome(2, true, vec![Point { no, received: 5, done: 5, limit: 1 << 20 }]);
    assert_eq!(known, [RelayEvent::Up]);
    assert_eq!(welcome(2, is_resumed, vec![]), [RelayEvent::Lost(no, why), RelayEvent::Up]);
}

#[test]
fn a_hello_that_names_a_session_twice_changes_nothing() {
    let mut world = World::new();
    let no = world.client();
    world.connect();
    world.send(no, 5);
    (0..3).for_each(|_| world.flow(1 << 20));
    let server = world.server.as_mut().expect("a server");
    let identity = server.identity().clone();
    let point = Point { no, received: 0, done: 0, limit: 10 };
    let hello = |sessions| Hello { identity: identity.clone(), connection: 2, small_first: true, sessions };
    for is_away in [false, true] {
        if is_away {
            server.lost(world.now);
        }
        let since = server.away_since();
        server.connected(&hello(vec![point, point]), true, world.now).expect_err("twice");
        assert_eq!((server.is_connected(), server.away_since()), (!is_away, since));
        assert_eq!(server.sessions(), 1);
    }
    server.connected(&hello(vec![point]), true, world.now).expect("once");
    assert!(server.is_connected());
}

#[test]
fn a_session_that_is_opened_twice_keeps_what_it_has() {
    let mut world = World::new();
    let no = world.client();
    world.connect();
    world.send(no, 5);
    (0..3).for_each(|_| world.flow(1 << 20));
    let server = world.server.as_mut().expect("a server");
    server.reply(no, Bytes::from_static(b"an answer"));
    let has = |server: &ServerEnd| (server.memory(), server.held(), server.unread(no));
    let before = has(server);
    assert_eq!((before.0, before.2), (before.1, b"an answer".len()));
    let open =
        |no| Frame::Open(Open { no, port: 29500, client: "127.0.0.1:40000".parse().expect("an address") });
    let mut frames = BytesMut::new();
    open(no).put(&mut frames);
    server.receive(&mut frames, world.now).expect_err("twice");
    assert_eq!(has(server), before);
    open(SessionNo(77)).put(&mut frames);
    assert!(server.receive(&mut frames, world.now).expect("another one"));
    assert_eq!((has(server), server.sessions()), (before, 2));
}

#[test]
fn who_is_cut_off_holds_nothing_and_hears_why() {
    let mut world = World::new();
    let no = world.client();
    world.connect();
    world.send(no, 5);
    (0..3).for_each(|_| world.flow(1 << 20));
    let server = world.server.as_mut().expect("a server");
    server.reply(no, Bytes::from(vec![7; 3 * WINDOW]));
    // A part has been sent, and the client reads none of it.
    server.put_frames(&mut BytesMut::new(), WINDOW / 2, world.now);
    server.cut(no, "it reads nothing".into());
    assert_eq!((server.memory(), server.unread(no)), (0, 0));
    let mut done = BytesMut::new();
    Frame::Done(vec![(no, 1000)]).put(&mut done);
    server.receive(&mut done, world.now).expect("the relay cannot know it yet");
    world.cut();
    world.echoes.clear();
    world.settle();
    assert_eq!(world.clients[&no].lost, Some(SessionLost::Ended("it reads nothing".into())));
    assert_eq!(world.server.as_ref().expect("a server").all().count(), 0, "the relay knows it");
}

#[test]
fn lent_pieces_count_elsewhere_until_the_last_of_their_bytes() {
    let mut world = World::new();
    let no = world.client();
    world.connect();
    world.send(no, 5);
    (0..3).for_each(|_| world.flow(1 << 20));
    let server = world.server.as_mut().expect("a server");
    let piece = Piece { bytes: Bytes::from(vec![7; WINDOW / 2]), is_lent: true };
    let lent = || piece.clone();
    server.reply(no, Bytes::from_static(&[1; 10]));
    let before = server.memory();
    (0..3).for_each(|_| server.reply(no, lent()));
    let each = (server.memory() - before) / 3;
    assert!(each < 1000, "{each}");
    server.put_frames(&mut BytesMut::new(), 1 << 20, world.now);
    for (done, left) in [(10, 3), (WINDOW / 4, 3), (WINDOW / 4 - 1, 3), (1, 2)] {
        let mut frame = BytesMut::new();
        Frame::Done(vec![(no, done as u32)]).put(&mut frame);
        server.receive(&mut frame, world.now).expect("frames");
        let memory = server.memory();
        assert!((left * each - 200..=left * each).contains(&memory), "{memory} of {left} times {each}");
    }
}

#[test]
fn a_client_begins_with_little_room_and_is_given_more() {
    let mut world = World::new();
    let no = world.client();
    world.connect();
    world.send(no, WINDOW);
    (0..5).for_each(|_| world.flow(1 << 20));
    let came = |world: &World| world.echoes[&no].requests.len();
    assert_eq!(came(&world), FIRST_WINDOW);
    world.server.as_mut().expect("a server").give_room(no, WINDOW);
    (0..5).for_each(|_| world.flow(1 << 20));
    assert_eq!(came(&world), WINDOW);
    // A release that does not know the field begins with the whole window. Either end may have such a
    // release.
    let old = r#"{"name": "x", "life": 1, "sessions": []}"#;
    assert!(!serde_json::from_str::<Hello>(old).expect("a hello").small_first);
    let old = r#"{"life": 1, "resumed": false, "sessions": []}"#;
    assert_eq!(serde_json::from_str::<Welcome>(old).expect("a welcome").first, WINDOW);
    let mut server = ServerEnd::new(Identity { name: "x".into(), life: RelayLife(1) }, ServerLife(1));
    let hello =
        Hello { identity: server.identity().clone(), connection: 1, small_first: false, sessions: vec![] };
    server.connected(&hello, false, world.now).expect("a hello");
    assert_eq!(server.first_window(), WINDOW);
    let mut input = BytesMut::new();
    Frame::Open(Open { no, port: 1, client: "1.2.3.4:5".parse().expect("an address") }).put(&mut input);
    for part in [WINDOW / 4; 4] {
        Frame::Data { sessions: [no].into_iter().collect(), bytes: vec![0; part].into() }.put(&mut input);
    }
    let mut came = 0;
    while server.receive(&mut input, world.now).expect("within the window") {
        came += std::iter::from_fn(|| server.next_event()).count();
    }
    assert_eq!(came, 5);
}

/// A hello and a SET with a value of this length.
fn set_of(len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    rallypoint_protocol::encode_hello(&mut bytes);
    let value = vec![7; len];
    let value = rallypoint_protocol::Payload::borrowed(&value);
    let set = rallypoint_protocol::Request::Set { key: b"k", value };
    assert!(rallypoint_protocol::encode_request(&set, rallypoint_protocol::Dialect::C, &mut bytes));
    bytes
}

/// The most bytes that a relay keeps for this many clients, each of which sets a large value. The server
/// acknowledges a request when it is whole.
fn most_kept(clients: usize, len: usize, within: usize) -> usize {
    let mut world = World::new();
    world.relay = RelayEnd::new(Identity { name: "train-0".into(), life: RelayLife(7) }).within(within);
    let request = set_of(len);
    let mut left: Vec<_> = (0..clients).map(|_| (world.client(), Bytes::from(request.clone()))).collect();
    let small = world.client();
    world.connect();
    let mut most = 0;
    for round in 0..100_000 {
        for (no, bytes) in &mut left {
            let room = world.relay.room(*no).min(bytes.len()).min(64 * 1024);
            if room > 0 {
                world.relay.from_client(*no, bytes.split_to(room));
            }
        }
        most = most.max(world.relay.memory());
        if round == 20 {
            // A client with small requests is never held up.
            assert!(world.relay.room(small) >= 1000);
            world.relay.from_client(small, Bytes::from_static(&[0; 1000]));
        }
        world.flow(1 << 20);
        let server = world.server.as_mut().expect("a server");
        for (&no, echo) in &mut world.echoes {
            server.give_room(no, WINDOW);
            if echo.requests.len() == request.len() || no == small {
                server.applied(no, std::mem::take(&mut echo.requests).len());
            }
        }
        if left.iter().all(|(_, bytes)| bytes.is_empty()) && round > 30 && world.relay.memory() == 0 {
            return most;
        }
        // What is only sent with the next sign of life.
        world.now = world.now + PING_EVERY;
        world.relay.tick(world.now).expect("the server was heard");
        world.server.as_mut().expect("a server").tick(world.now).expect("the relay was heard");
    }
    panic!("they do not come to their end: {} bytes are kept", world.relay.memory());
}

#[test]
fn large_requests_come_to_their_end_one_after_the_other_where_a_relay_has_little_memory() {
    const LEN: usize = 1 << 20;
    let free = most_kept(16, LEN, usize::MAX);
    assert!(free > 12 * LEN, "without a limit they come beside each other: {free}");
    let most = most_kept(16, LEN, LEN);
    assert!(most <= 2 * LEN + 17 * (64 * 1024 + 4096), "{most}");
}

#[test]
fn clients_that_left_while_the_server_was_away_take_no_place() {
    const LEFT: usize = MAX_SESSIONS + 100;
    let mut world = World::new();
    for n in 0..LEFT {
        let no = world.client();
        world.send(no, 3);
        // A relay cannot distinguish a client that only sends nothing more from one that has left.
        if n % 2 == 0 { world.close(no) } else { world.relay.finish(no) }
    }
    for _ in 0..MAX_SESSIONS - LEFT / 2 {
        world.client();
    }
    let no = world.client();
    world.send(no, 5);
    assert_eq!(world.relay.clients(), MAX_SESSIONS - LEFT / 2 + 1, "with those that sent nothing");
    world.connect();
    for _ in 0..3 * LEFT / 64 {
        world.flow(1 << 20);
        world.apply(100);
    }
    assert_eq!(world.heard(no).len(), 5);
    let heard = world.over.values().filter(|heard| heard.len() == 3).count();
    assert_eq!(heard, LEFT, "what they said last has come, too");
    assert_eq!(world.relay.memory(), 0);
}

#[test]
fn what_clients_said_that_left_is_bounded_and_what_is_lost_is_told() {
    let mut relay = RelayEnd::new(Identity { name: "x".into(), life: RelayLife(1) }).within(10_000);
    let addr = |n: usize| SocketAddr::from(([127, 0, 0, 1], n as u16));
    for n in 0..100 {
        let no = relay.open(FIRST_STORE, addr(n)).expect("a place");
        relay.from_client(no, Bytes::from_static(&[1; 1000]));
        relay.close(no);
        assert!(relay.memory() <= 10_000, "{}", relay.memory());
    }
    let lost: Vec<_> = std::iter::from_fn(|| relay.next_event()).collect();
    assert!(lost.len() > 85, "{}", lost.len());
    assert!(lost.iter().enumerate().all(|(n, event)| *event == RelayEvent::Unheard(addr(n))));
}
