//! Reads what torchrun's c10d backend keeps under `/torch.rendezvous.RUN`, without executing it: which nodes
//! have joined, which wait, and whether the round is complete.
//!
//! The protocol does not look into this value, and only what is shown to people depends on it. A state that
//! cannot be read is reported as such, and never delays or changes a reply. Decode it once per stored change,
//! because every node reads the key each second.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

mod moment;
mod pickle;
#[cfg(any(test, feature = "sim"))]
pub mod testing;

use crate::ids::is_plain;
pub use moment::UtcMicros;
use pickle::{Class, Pickle, Value};

/// What the c10d backend stores before there is a state. By chance it is valid base64, but not a pickle.
pub const NO_STATE: &[u8] = b"Y2FuaW1hZGFt";

/// The longest value that is read, in bytes: about 16 000 nodes. Reading a hostile value takes up to 50 times
/// as much memory.
pub const MAX_LEN: usize = 2 * 1024 * 1024;

/// Fields of one object. The state of PyTorch 2.15 has 8.
const MAX_FIELDS: usize = 32;

/// The state of one torchrun rendezvous, as the last successful COMPARE_SET left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousState {
    /// Counts from 0. A new round starts when the members have to change.
    pub round: u64,
    /// Whether the round has all its members. Until then every rank is 0.
    pub complete: bool,
    /// Whether the run is over for good.
    pub closed: bool,
    /// When the round closes. Set when the minimum of nodes has joined.
    pub deadline: Option<UtcMicros>,
    /// The nodes of the round with their ranks, in the order of the state.
    pub participants: Vec<(Node, u32)>,
    /// Nodes that wait for the next round.
    pub wait_list: Vec<Node>,
    /// Nodes beyond the maximum. Empty for releases without such a list.
    pub redundancy_list: Vec<Node>,
    /// The last sign of life of each node, by the nodes' own clocks.
    pub last_heartbeats: Vec<(Node, UtcMicros)>,
}

/// One agent process. Displayed as torchrun names it: `addr_pid_localid`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its host name, or the value of `--local-addr`.
    pub addr: Arc<str>,
    /// Process id on that host.
    pub pid: u32,
    /// Distinguishes several agents of one process.
    pub local_id: u32,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.addr, self.pid, self.local_id)
    }
}

/// Why a value could not be read. `at` is an offset in the pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableState {
    /// Longer than [`MAX_LEN`].
    #[error("the state is {len} bytes long; at most {MAX_LEN} are read")]
    TooLong {
        /// Length of the value in bytes.
        len: usize,
    },
    /// The value is not base64.
    #[error("the state is not base64")]
    NotBase64,
    /// The bytes are not a pickle of protocol 4 or 5.
    #[error("the state is not a pickle of protocol 4 or 5")]
    NotAPickle,
    /// An instruction that no state contains. Most such instructions could run code.
    #[error("the pickle has opcode {code:#04x} at byte {at}, which no rendezvous state has")]
    ForbiddenOpcode {
        /// The opcode.
        code: u8,
        /// Its offset.
        at: usize,
    },
    /// A class or function that no state contains.
    #[error("the pickle names a class at byte {at} that no rendezvous state has")]
    ForbiddenName {
        /// Its offset.
        at: usize,
    },
    /// The bytes end before the pickle does.
    #[error("the pickle is cut off after {len} bytes")]
    CutOff {
        /// Length of the pickle in bytes.
        len: usize,
    },
    /// An instruction that does not fit what came before it.
    #[error("the pickle makes no sense at byte {at}")]
    Malformed {
        /// Its offset.
        at: usize,
    },
    /// More values at the same time than any state has.
    #[error("the pickle keeps too much at once at byte {at}")]
    TooDeep {
        /// The offset.
        at: usize,
    },
    /// A valid pickle of something else.
    #[error("the pickle is no rendezvous state: {0}")]
    NotAState(&'static str),
}

/// Reads a stored value. `None` if the run is known, but no node has written a state yet.
///
/// Never panics and never runs anything that the value names. Time and memory are linear in its length.
pub fn read(value: &[u8]) -> Result<Option<RendezvousState>, UnreadableState> {
    if value == NO_STATE {
        return Ok(None);
    }
    if value.len() > MAX_LEN {
        return Err(UnreadableState::TooLong { len: value.len() });
    }
    let bytes = STANDARD.decode(value).map_err(|_| UnreadableState::NotBase64)?;
    let pickle = pickle::load(&bytes)?;
    Objects::new(&pickle, bytes.len()).state().map(Some)
}

/// Reads the objects of a pickle as the parts of a state.
struct Objects<'p, 'a> {
    pickle: &'p Pickle<'a>,
    /// Nodes that were already read, by object: a node is named several times, and its address is kept once.
    nodes: Vec<Option<Node>>,
    /// Bytes of addresses that may still be copied. A pickle can refer to one long string many times.
    addr_budget: usize,
}

type Read<T> = Result<T, UnreadableState>;

impl<'p, 'a> Objects<'p, 'a> {
    fn new(pickle: &'p Pickle<'a>, pickle_len: usize) -> Self {
        Self { pickle, nodes: vec![None; pickle.objects()], addr_budget: pickle_len.saturating_mul(4) }
    }

    fn state(mut self) -> Read<RendezvousState> {
        use UnreadableState::NotAState;

        let [mut round, mut complete, mut closed, mut deadline] = [None; 4];
        let [mut participants, mut wait_list, mut redundancy_list, mut last_heartbeats] = [None; 4];
        for (name, value) in self.fields(self.pickle.root, Class::State)? {
            let field = match name {
                b"round" => &mut round,
                b"complete" => &mut complete,
                b"closed" => &mut closed,
                b"deadline" => &mut deadline,
                b"participants" => &mut participants,
                b"wait_list" => &mut wait_list,
                b"redundancy_list" => &mut redundancy_list,
                b"last_heartbeats" => &mut last_heartbeats,
                _ => continue,
            };
            *field = Some(value);
        }
        Ok(RendezvousState {
            round: round.and_then(integer).ok_or(NotAState("`round` is no number"))?,
            complete: complete.and_then(boolean).ok_or(NotAState("`complete` is neither true nor false"))?,
            closed: closed.and_then(boolean).ok_or(NotAState("`closed` is neither true nor false"))?,
            deadline: match deadline {
                Some(Value::None) => None,
                Some(Value::Moment(moment)) => Some(moment),
                _ => return Err(NotAState("`deadline` is no time")),
            },
            participants: self.table(participants, integer, "`participants` is no table of ranks")?,
            wait_list: self.set(wait_list, "`wait_list` is no set of nodes")?,
            redundancy_list: match redundancy_list {
                None => Vec::new(),
                some => self.set(some, "`redundancy_list` is no set of nodes")?,
            },
            last_heartbeats: self.table(last_heartbeats, moment, "`last_heartbeats` is no table of times")?,
        })
    }

    /// The fields of an object of `class`, in the order in which they were set.
    fn fields(
        &self,
        object: Value<'a>,
        class: Class,
    ) -> Read<impl Iterator<Item = (&'a [u8], Value<'a>)> + use<'p, 'a>> {
        let wrong = UnreadableState::NotAState("an object is missing or has other fields");
        let pairs = self.pickle.fields(object, class).ok_or(wrong)?;
        if pairs.len() > MAX_FIELDS || !pairs.iter().all(|(name, _)| matches!(name, Value::Text(_))) {
            return Err(wrong);
        }
        Ok(pairs.iter().filter_map(|&(name, value)| match name {
            Value::Text(name) => Some((name, value)),
            _ => None,
        }))
    }

    fn node(&mut self, value: Value<'a>) -> Read<Node> {
        use UnreadableState::NotAState;

        let Value::Object(id) = value else { return Err(NotAState("a node is no object")) };
        if let Some(Some(node)) = self.nodes.get(id) {
            return Ok(node.clone());
        }
        let (mut addr, mut pid, mut local_id) = (None, None, None);
        for (name, value) in self.fields(value, Class::Node)? {
            match name {
                b"addr" => addr = text(value),
                b"pid" => pid = integer(value),
                b"local_id" => local_id = integer(value),
                _ => {}
            }
        }
        let addr = addr.ok_or(NotAState("the address of a node is no text"))?;
        self.addr_budget =
            self.addr_budget.checked_sub(addr.len()).ok_or(NotAState("the addresses are too long"))?;
        let node = Node {
            addr: std::str::from_utf8(addr)
                .ok()
                .filter(|addr| addr.chars().all(is_plain))
                .ok_or(NotAState("the address of a node is no plain text"))?
                .into(),
            pid: pid.ok_or(NotAState("the process id of a node is no number"))?,
            local_id: local_id.ok_or(NotAState("the local id of a node is no number"))?,
        };
        self.nodes[id] = Some(node.clone());
        Ok(node)
    }

    fn table<T>(
        &mut self,
        value: Option<Value<'a>>,
        read: impl Fn(Value<'a>) -> Option<T>,
        wrong: &'static str,
    ) -> Read<Vec<(Node, T)>> {
        let wrong = UnreadableState::NotAState(wrong);
        let pairs = value.and_then(|value| self.pickle.pairs(value)).ok_or(wrong)?;
        let table: Vec<(Node, T)> = pairs
            .iter()
            .map(|&(node, value)| Ok((self.node(node)?, read(value).ok_or(wrong)?)))
            .collect::<Read<_>>()?;
        all_different(table.iter().map(|(node, _)| node), table.len())?;
        Ok(table)
    }

    fn set(&mut self, value: Option<Value<'a>>, wrong: &'static str) -> Read<Vec<Node>> {
        let items = value.and_then(|value| self.pickle.items(value));
        let items = items.ok_or(UnreadableState::NotAState(wrong))?;
        let nodes: Vec<Node> = items.iter().map(|&item| self.node(item)).collect::<Read<_>>()?;
        all_different(nodes.iter(), nodes.len())?;
        Ok(nodes)
    }
}

/// A Python dict or set never contains two equal nodes, so no state of torchrun does.
fn all_different<'n>(mut nodes: impl Iterator<Item = &'n Node>, len: usize) -> Read<()> {
    let mut seen = HashSet::with_capacity(len);
    if nodes.all(|node| seen.insert(node)) {
        Ok(())
    } else {
        Err(UnreadableState::NotAState("a node is listed twice"))
    }
}

fn integer<T: TryFrom<i64>>(value: Value<'_>) -> Option<T> {
    match value {
        Value::Integer(number) => number.try_into().ok(),
        _ => None,
    }
}

fn boolean(value: Value<'_>) -> Option<bool> {
    match value {
        Value::Boolean(yes) => Some(yes),
        _ => None,
    }
}

fn moment(value: Value<'_>) -> Option<UtcMicros> {
    match value {
        Value::Moment(moment) => Some(moment),
        _ => None,
    }
}

fn text(value: Value<'_>) -> Option<&[u8]> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
