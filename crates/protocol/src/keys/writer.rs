//! Keys that are waited for: what they hold, and who must write them.

use super::{Address, AddressKind, KeyPattern, Leftover, RendezvousPart, below_own_prefix, classify};
use crate::ids::{RunId, ShownKey};

/// What a key of a barrier of `torch.distributed` holds, for people.
pub const BARRIER: &str = "a barrier";

/// What the key of two ranks that send and receive holds, for people.
pub const ID_OF_PAIR: &str = "the NCCL id to send and receive";

/// Who must write a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExpectedWriter {
    /// The agent with this node rank.
    Node(u32),
    /// The worker with this rank.
    Rank(u32),
    /// Rank 0 of the group with all ranks, which has told no rank (NCCL).
    NcclRankZero,
    /// A member of a sub-group, or the last to arrive at a barrier.
    Group(String),
    /// The node that arrives last at the exit barrier.
    LastAtExit,
    /// The key does not tell.
    Unknown,
}

impl ExpectedWriter {
    /// The rank, if the key is for a worker with a rank.
    pub const fn rank(&self) -> Option<u32> {
        if let Self::Rank(rank) = self { Some(*rank) } else { None }
    }
}

/// A missing key, understood.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The run it belongs to, where the key tells.
    pub run: Option<RunId>,
    /// The round it belongs to, where the key tells.
    pub round: Option<u64>,
    /// Who must write it.
    pub writer: ExpectedWriter,
    /// What the key holds, for people.
    pub what: &'static str,
    /// The address of the workers' store, which rank 0's agent writes.
    pub is_master: bool,
    /// The role of a node, which all nodes exchange.
    pub is_role: bool,
}

/// What a key holds, and who must write it.
pub fn wanted(key: &[u8]) -> Wanted {
    let none = Wanted {
        run: None,
        round: None,
        writer: ExpectedWriter::Unknown,
        what: "a key",
        is_master: false,
        is_role: false,
    };
    let pattern = classify(key);
    if let Some((run_id, round, part)) = pattern.and_then(|pattern| pattern.of_rendezvous()) {
        let (writer, what) = match part {
            RendezvousPart::State => (ExpectedWriter::Unknown, "the rendezvous state"),
            RendezvousPart::MasterAddr | RendezvousPart::MasterPort => {
                (ExpectedWriter::Node(0), "the address of the workers' store")
            }
            RendezvousPart::RoleInfo(node) => (ExpectedWriter::Node(node), "the role"),
            RendezvousPart::AssignedRanks(_) => (ExpectedWriter::Node(0), "the assigned ranks"),
            RendezvousPart::ExitBarrierDone { .. } | RendezvousPart::ExitBarrier { .. } => {
                (ExpectedWriter::LastAtExit, "the exit barrier")
            }
            RendezvousPart::Other => (ExpectedWriter::Unknown, "a key of the rendezvous"),
        };
        return Wanted {
            run: Some(RunId::new(run_id)),
            round: round.map(u64::from),
            writer,
            what,
            is_master: matches!(part, RendezvousPart::MasterAddr | RendezvousPart::MasterPort),
            is_role: matches!(part, RendezvousPart::RoleInfo(_)),
        };
    }
    match pattern {
        Some(KeyPattern::Address(address)) => match address.kind {
            AddressKind::NcclId if address.sub_group.is_none() && address.member == 0 => {
                Wanted { writer: ExpectedWriter::NcclRankZero, what: "the NCCL id", ..none }
            }
            AddressKind::NcclId => {
                let of = match (address.sub_group, address.member) {
                    (None, root) => format!("root {root} of all ranks"),
                    (Some(name), 0) => match pair(name) {
                        Some((0, _)) => {
                            let writer = ExpectedWriter::NcclRankZero;
                            return Wanted { writer, what: ID_OF_PAIR, ..none };
                        }
                        Some((low, high)) => format!("rank {low}, to send and receive with rank {high}"),
                        None => format!("the first rank of {}", group_name(name)),
                    },
                    (Some(name), root) => format!("root {root} of {}", group_name(name)),
                };
                Wanted { writer: ExpectedWriter::Group(of), what: "the NCCL id", ..none }
            }
            AddressKind::RpcWorker => {
                let name = address.group.rsplit(|&b| b == b'/').next().unwrap_or_default();
                let writer = ExpectedWriter::Group(format!("the rpc worker {}", ShownKey(name)));
                Wanted { writer, what: "the address", ..none }
            }
            _ => match address.sub_group {
                None => Wanted { writer: ExpectedWriter::Rank(address.member), what: "the address", ..none },
                Some(name) => {
                    let writer =
                        ExpectedWriter::Group(format!("rank {} of {}", address.member, group_name(name)));
                    Wanted { writer, what: "the address", ..none }
                }
            },
        },
        Some(KeyPattern::AttemptLeftover(Leftover::BarrierDone | Leftover::Barrier)) => {
            let last = format!("the last rank to arrive at {}", store_barrier(key));
            Wanted { writer: ExpectedWriter::Group(last), what: BARRIER, ..none }
        }
        Some(KeyPattern::WorkerCount) => Wanted { what: "the first worker", ..none },
        _ => none,
    }
}

/// The sub-group whose member writes this key.
pub fn sub_group_of(key: &[u8]) -> Option<String> {
    address_of(key)?.sub_group.map(group_name)
}

/// What this key tells, if it is the address of a member of a group.
pub fn address_of(key: &[u8]) -> Option<Address<'_>> {
    let Some(KeyPattern::Address(address)) = classify(key) else { return None };
    Some(address)
}

/// The group of the key, its prefix and the rank, if it may be the address of a member of a group that a
/// program makes below a prefix of its own. Only what is written there tells whether it is one.
pub fn own_member(key: &[u8]) -> Option<(&[u8], &[u8], u32)> {
    let (group, rank) = key.split_at_checked(key.iter().rposition(|&byte| byte == b'/')?)?;
    let rank = std::str::from_utf8(rank.get(1..)?).ok()?.parse().ok()?;
    if let Some((prefix, _)) = below_own_prefix(key) {
        return Some((group, prefix, rank));
    }
    let end = group.windows(2).position(|two| two == b"//").and_then(|end| group.get(..end));
    let prefix = end.or(group.strip_suffix(b"/0")).unwrap_or(group);
    Some((group, prefix.strip_prefix(b"/").unwrap_or(prefix), rank))
}

/// A group beside that of all ranks: `torch.distributed.rpc` makes one of its own.
fn group_name(name: &[u8]) -> String {
    match name.strip_suffix(b"/") {
        Some(rpc) if rpc.starts_with(b"rpc_prefix_") => format!("the group of rpc `{}`", ShownKey(rpc)),
        _ => format!("the sub-group {}", ShownKey(name)),
    }
}

/// Two ranks that send and receive have a group of their own with NCCL, whose id the lower one makes.
fn pair(name: &[u8]) -> Option<(u32, u32)> {
    let (low, high) = std::str::from_utf8(name).ok()?.split_once(':')?;
    Some((low.parse().ok()?, high.parse().ok()?))
}

/// The rank that makes this id, if it is that of two ranks that send and receive.
pub fn lower_of_pair(key: &[u8]) -> Option<u32> {
    let id = address_of(key).filter(|it| it.kind == AddressKind::NcclId && it.member == 0)?;
    pair(id.sub_group?).map(|(low, _)| low)
}

/// The barrier of `torch.distributed` that this key belongs to: `store_based_barrier_key:NAME`, and more.
pub fn store_barrier(key: &[u8]) -> String {
    const MARK: &[u8] = b"store_based_barrier_key:";
    let at = key.windows(MARK.len()).position(|part| part == MARK);
    let name = at.and_then(|at| key.get(at.saturating_add(MARK.len())..)).unwrap_or_default();
    match name.strip_suffix(b":last_worker").unwrap_or(name) {
        [] => BARRIER.to_owned(),
        name => format!("the barrier `{}`", ShownKey(name)),
    }
}
