//! torchrun's rendezvous state as agents write it: a model of its changes, and the bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use rallypoint_protocol::ids::Timestamp;
use rallypoint_protocol::rendezvous_state::{NO_STATE, Node, RendezvousState, UtcMicros};

/// The beginning of 2026-11-21, UTC.
const MIDNIGHT: i64 = 1_795_219_200_000_000;

#[derive(Debug, Clone, PartialEq)]
struct Member {
    conn: u32,
    host: String,
    pid: u32,
    stamp: u32,
    /// Given when the round was complete; it stays when others leave.
    rank: u32,
}

/// The state of one run.
#[derive(Debug, Default)]
pub struct StateModel {
    round: u32,
    complete: bool,
    closed: bool,
    deadline: bool,
    /// The participants, the wait list, and who is redundant.
    lists: [Vec<Member>; 3],
    exists: bool,
    first_rank: u32,
}

impl StateModel {
    /// What a node changes; a heartbeat of its own always comes with it. Words: `join`, `wait`, `redundant`,
    /// `leave`, `drop:N` (the node of connection N), `deadline`, `patient` (no deadline), `complete`, `next`
    /// (round), `close`, `rank:N` (the first rank, so that the others follow it).
    pub fn change(&mut self, conn: u32, host: &str, pid: u32, words: &str, now: Timestamp) {
        self.exists = true;
        let stamp = now.0.as_micros() as u32;
        let me = Member { conn, host: host.to_owned(), pid, stamp, rank: 0 };
        let its_own = self.lists.iter_mut().flatten().filter(|it| it.node() == me.node());
        its_own.for_each(|member| member.stamp = stamp);
        for word in words.split_whitespace() {
            if let Some(list) = ["join", "wait", "redundant", "leave"].iter().position(|it| *it == word) {
                self.retain(|member| member.node() != me.node());
                self.lists.get_mut(list).into_iter().for_each(|list| list.push(me.clone()));
                continue;
            }
            match word {
                "deadline" => self.deadline = true,
                "complete" => {
                    (self.complete, self.deadline) = (true, false);
                    self.lists[0].sort_by(|a, b| (&a.host, a.pid).cmp(&(&b.host, b.pid)));
                    (0..).zip(&mut self.lists[0]).for_each(|(rank, member)| member.rank = rank);
                }
                "patient" => self.deadline = false,
                "next" => {
                    self.round += 1;
                    (self.complete, self.deadline) = (false, false);
                    self.lists[0].clear();
                }
                "close" => self.closed = true,
                rank if rank.starts_with("rank:") => {
                    self.first_rank = rank[5..].parse().expect("a rank");
                }
                drop => {
                    let conn: u32 = drop.strip_prefix("drop:").and_then(|n| n.parse().ok()).expect("a word");
                    self.retain(|member| member.conn != conn);
                }
            }
        }
    }

    fn retain(&mut self, stays: impl Fn(&Member) -> bool) {
        self.lists.iter_mut().for_each(|list| list.retain(&stays));
    }

    /// The value in the store.
    pub fn value(&self) -> Vec<u8> {
        if !self.exists {
            return NO_STATE.to_vec();
        }
        let all = |members: &[Member]| members.iter().map(Member::node).collect();
        let rank = |member: &Member| if self.complete { self.first_rank + member.rank } else { 0 };
        let state = RendezvousState {
            round: self.round.into(),
            complete: self.complete,
            closed: self.closed,
            deadline: self.deadline.then(|| at(0)),
            participants: self.lists[0].iter().map(|it| (it.node(), rank(it))).collect(),
            wait_list: all(&self.lists[1]),
            redundancy_list: all(&self.lists[2]),
            last_heartbeats: self.lists.iter().flatten().map(|it| (it.node(), at(it.stamp))).collect(),
        };
        encode(&state).into_bytes()
    }
}

impl Member {
    fn node(&self) -> Node {
        Node { addr: self.host.as_str().into(), pid: self.pid, local_id: 0 }
    }
}

/// 2026-11-21 and so many microseconds.
pub fn at(micros: u32) -> UtcMicros {
    UtcMicros(MIDNIGHT + i64::from(micros))
}

/// A state as an agent writes it.
pub fn encode(state: &RendezvousState) -> String {
    let set =
        |nodes: &[Node]| [b"\x8f(", &nodes.iter().flat_map(node).collect::<Vec<u8>>()[..], b"\x90"].concat();
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
        ("wait_list", set(&state.wait_list)),
        ("redundancy_list", set(&state.redundancy_list)),
        ("last_heartbeats", dict(&heartbeats)),
    ];
    let pickle = [b"\x80\x04", &object("_RendezvousState", &fields)[..], b"."].concat();
    STANDARD.encode(pickle)
}

fn text(text: &str) -> Vec<u8> {
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

fn dict(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let pairs: Vec<u8> = pairs.iter().flat_map(|(key, value)| [&key[..], value].concat()).collect();
    [b"}(", &pairs[..], b"u"].concat()
}

fn name(module: &str, name: &str) -> Vec<u8> {
    [text(module), text(name), vec![0x93]].concat()
}

fn object(class: &str, fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    const MODULE: &str = "torch.distributed.elastic.rendezvous.dynamic_rendezvous";
    let fields: Vec<_> = fields.iter().map(|(field, value)| (text(field), value.clone())).collect();
    [name(MODULE, class), b")\x81".to_vec(), dict(&fields), b"b".to_vec()].concat()
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
