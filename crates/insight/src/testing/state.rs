//! A model of how agents change torchrun's rendezvous state.

use rallypoint_protocol::ids::Timestamp;
use rallypoint_protocol::rendezvous_state::testing::{at, encode};
use rallypoint_protocol::rendezvous_state::{NO_STATE, Node, RendezvousState};

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
