//! torchrun's rendezvous state as agents write it: a model of its changes, and the bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::core::ids::Timestamp;
use crate::core::protocol::rendezvous_state::NO_STATE;

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
pub(super) struct StateModel {
    round: u32,
    complete: bool,
    closed: bool,
    deadline: bool,
    participants: Vec<Member>,
    wait_list: Vec<Member>,
    redundant: Vec<Member>,
    exists: bool,
    first_rank: u32,
}

impl StateModel {
    /// What a node changes; a heartbeat of its own always comes with it. Words: `join`, `wait`, `redundant`, `leave`,
    /// `drop:N` (the node of connection N), `deadline`, `patient` (no deadline), `complete`, `next` (round), `close`,
    /// `rank:N` (the first rank, so that the others follow it).
    pub(super) fn change(&mut self, conn: u32, host: &str, pid: u32, words: &str, now: Timestamp) {
        self.exists = true;
        let stamp = now.0.as_micros() as u32;
        let me = Member { conn, host: host.to_owned(), pid, stamp, rank: 0 };
        for list in [&mut self.participants, &mut self.wait_list, &mut self.redundant] {
            list.iter_mut().filter(|member| member.conn == conn).for_each(|member| member.stamp = stamp);
        }
        for word in words.split_whitespace() {
            match word {
                "join" => {
                    self.remove(conn);
                    self.participants.push(me.clone());
                }
                "wait" => {
                    self.remove(conn);
                    self.wait_list.push(me.clone());
                }
                "redundant" => {
                    self.remove(conn);
                    self.redundant.push(me.clone());
                }
                "leave" => self.remove(conn),
                "deadline" => self.deadline = true,
                "complete" => {
                    (self.complete, self.deadline) = (true, false);
                    self.participants.sort_by(|a, b| (&a.host, a.pid).cmp(&(&b.host, b.pid)));
                    (0..).zip(&mut self.participants).for_each(|(rank, member)| member.rank = rank);
                }
                "patient" => self.deadline = false,
                "next" => {
                    self.round += 1;
                    (self.complete, self.deadline) = (false, false);
                    self.participants.clear();
                }
                "close" => self.closed = true,
                rank if rank.starts_with("rank:") => {
                    self.first_rank = rank[5..].parse().expect("a rank");
                }
                drop => {
                    let conn = drop.strip_prefix("drop:").and_then(|n| n.parse().ok()).expect("a word");
                    self.remove(conn);
                }
            }
        }
    }

    fn remove(&mut self, conn: u32) {
        for list in [&mut self.participants, &mut self.wait_list, &mut self.redundant] {
            list.retain(|member| member.conn != conn);
        }
    }

    /// The value in the store.
    pub(super) fn value(&self) -> Vec<u8> {
        if !self.exists {
            return NO_STATE.to_vec();
        }
        let everyone: Vec<&Member> =
            self.participants.iter().chain(&self.wait_list).chain(&self.redundant).collect();
        let set = |members: &[Member]| {
            [b"\x8f(", &members.iter().flat_map(node).collect::<Vec<u8>>()[..], b"\x90"].concat()
        };
        let participants: Vec<_> = self
            .participants
            .iter()
            .map(|member| (node(member), int(if self.complete { self.first_rank + member.rank } else { 0 })))
            .collect();
        let heartbeats: Vec<_> = everyone.iter().map(|member| (node(member), moment(member.stamp))).collect();
        let fields = [
            ("round", int(self.round)),
            ("complete", boolean(self.complete)),
            ("deadline", if self.deadline { moment(0) } else { b"N".to_vec() }),
            ("closed", boolean(self.closed)),
            ("participants", dict(&participants)),
            ("wait_list", set(&self.wait_list)),
            ("redundancy_list", set(&self.redundant)),
            ("last_heartbeats", dict(&heartbeats)),
        ];
        let pickle = [b"\x80\x04", &object("_RendezvousState", &fields)[..], b"."].concat();
        STANDARD.encode(pickle).into_bytes()
    }
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

fn node(member: &Member) -> Vec<u8> {
    object("_NodeDesc", &[("addr", text(&member.host)), ("pid", int(member.pid)), ("local_id", int(0))])
}

/// A naive UTC time: 2026-11-21 and `stamp` microseconds.
fn moment(stamp: u32) -> Vec<u8> {
    let (secs, micros) = (stamp / 1_000_000, stamp % 1_000_000);
    let micros = micros.to_be_bytes();
    let bytes = [
        0x07,
        0xea,
        11,
        21,
        (secs / 3600 % 24) as u8,
        (secs / 60 % 60) as u8,
        (secs % 60) as u8,
        micros[1],
        micros[2],
        micros[3],
    ];
    [name("datetime", "datetime"), b"C\x0a".to_vec(), bytes.to_vec(), b"\x85R".to_vec()].concat()
}
