//! Foreign peers, and frames of a connection that has ended.

use std::net::SocketAddr;

use bytes::BytesMut;

use super::super::rough::{Rough, to_links, to_store};
use super::super::server::PORT;
use super::{Checked, Event, FIRST_PORT, World};
use rallypoint_link::Frame;
use rallypoint_server::link::{Bearer, Line, LinkHost, Turn};

/// The most memory that one of them may take. They send far less.
const MOST: usize = 1 << 20;

impl World {
    pub(super) fn begin_rough(&mut self) {
        for (n, (at, _)) in self.plan.rough.clone().into_iter().enumerate() {
            self.at(at, Event::Rough(n));
        }
    }

    pub(super) fn rough(&mut self, n: usize) -> Checked {
        let (_, rough) = self.plan.rough[n];
        trace!(self, "ROUGH {rough:?}");
        if let Rough::Late { relay, by } = rough {
            return self.frames_come_late(relay, by);
        }
        let Some(server) = &self.server else { return Ok(()) };
        let before = server.stores.budget().used();
        let peer = SocketAddr::from(([10, 0, 9, 9], FIRST_PORT - 1 - n as u16));
        match rough {
            Rough::AtStore { seed } => {
                let Some(mut direct) = server.connect(PORT, peer) else { return Ok(()) };
                direct.input.extend_from_slice(&to_store(seed));
                while direct.turn() && direct.conversation.more_to_apply {}
            }
            Rough::AtLinks { seed } => knock(&server.links, peer, to_links(seed)),
            Rough::Late { .. } => {}
        }
        let taken = server.stores.budget().used().saturating_sub(before);
        if taken > MOST {
            return Err(format!("a stranger takes {taken} bytes"));
        }
        self.look_at_disk()
    }

    /// A relay's connection breaks, as the relay sees it. The bytes that it has sent arrive later, and then
    /// the end.
    fn frames_come_late(&mut self, relay: usize, by: u64) -> Checked {
        let Some(conn) = self.relays[relay].conn else { return Ok(()) };
        self.tally.breaks += 1;
        let until = self.now + by;
        if let Some(it) = self.conns.get_mut(&conn) {
            it.up_comes_at = until;
        }
        self.relay_loses(conn, "broken")
    }
}

/// A foreign peer behaves like a relay, as far as the server lets it.
fn knock(links: &LinkHost, peer: SocketAddr, mut input: BytesMut) {
    let Ok(Some(Frame::Hello(hello))) = Frame::take(&mut input) else { return };
    let Ok(line) = links.take_in(&hello, &Bearer { peer, grant: None }) else { return };
    talk(links, &line, &mut input);
    links.lost(&line, "the stranger is gone");
}

fn talk(links: &LinkHost, line: &Line, input: &mut BytesMut) {
    /// More turns than there are frames.
    const TURNS: usize = 100;
    for _ in 0..TURNS {
        let mut out = BytesMut::new();
        match links.turn(line, input, &mut out) {
            Ok(Turn::On { has_more, has_new }) if has_more || has_new => {}
            _ => return,
        }
    }
}
