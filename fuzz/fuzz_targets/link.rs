//! Arbitrary bytes over a link: both ends return an error or go on.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use rallypoint_link::{
    Frame, Hello, Identity, RelayEnd, RelayLife, ServerEnd, ServerEvent, ServerLife, Welcome,
};
use rallypoint_protocol::ids::Timestamp;

fuzz_target!(|bytes: &[u8]| {
    let now = Timestamp::default();
    let identity = Identity { name: "x".into(), life: RelayLife(1) };

    let mut server = ServerEnd::new(identity.clone(), ServerLife(1));
    let hello = Hello { identity: identity.clone(), connection: 1, small_first: true, sessions: Vec::new() };
    server.connected(&hello, false, now).expect("an empty hello");
    let _ = server.receive(&mut BytesMut::from(bytes), now);
    while let Some(event) = server.next_event() {
        if let ServerEvent::Request(no, bytes) = event {
            server.give_room(no, bytes.len());
            server.applied(no, bytes.len());
            server.reply(no, bytes);
        }
    }
    server.put_frames(&mut BytesMut::new(), 1 << 20, now);
    // The bytes as the greeting of a relay that comes again.
    if let Ok(Some(Frame::Hello(hello))) = Frame::take(&mut BytesMut::from(bytes)) {
        let _ = server.connected(&hello, true, now);
        server.put_frames(&mut BytesMut::new(), 1 << 20, now);
    }

    let mut relay = RelayEnd::new(identity);
    let client = relay.open(1, "127.0.0.1:1".parse().expect("an address")).expect("room");
    relay.from_client(client, bytes::Bytes::copy_from_slice(&bytes[..bytes.len().min(100)]));
    relay.connected(now);
    let mut input = BytesMut::new();
    Frame::Welcome(Welcome { life: ServerLife(1), resumed: false, first: 1000, sessions: Vec::new() })
        .put(&mut input);
    input.extend_from_slice(bytes);
    let _ = relay.receive(&mut input, now);
    while relay.next_event().is_some() {}
    relay.put_frames(&mut BytesMut::new(), 1 << 20, now);
});
