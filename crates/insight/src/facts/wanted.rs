//! Keys that are waited for: what they hold, and who must write them.

use crate::facts::run::{TrackedNode, TrackedRun};
use rallypoint_protocol::ids::{RunId, ShownKey};
use rallypoint_protocol::keys::{Address, AddressKind, KeyPattern, Leftover, RendezvousPart, classify};

/// What a key of a barrier of `torch.distributed` holds, for people.
pub(crate) const BARRIER: &str = "a barrier";

/// Who must write a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ExpectedWriter {
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

/// A missing key, understood.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) run: Option<RunId>,
    /// The round it belongs to, where the key tells.
    pub(crate) round: Option<u64>,
    pub(crate) writer: ExpectedWriter,
    /// What the key holds, for people.
    pub(crate) what: &'static str,
    pub(crate) is_master: bool,
    pub(crate) is_role: bool,
}

pub(crate) fn wanted(key: &[u8]) -> Wanted {
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
                        Some(("0", _)) => {
                            let what = "the NCCL id to send and receive";
                            return Wanted { writer: ExpectedWriter::NcclRankZero, what, ..none };
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

impl Wanted {
    /// The node that is to write it, if it is one that had its rank in that round.
    pub(crate) fn node<'r>(&self, run: &'r TrackedRun) -> Option<&'r TrackedNode> {
        let ExpectedWriter::Node(rank) = self.writer else { return None };
        run.node_at(self.round.unwrap_or(run.round.number), rank)
    }
}

/// The sub-group whose member writes this key.
pub(crate) fn sub_group_of(key: &[u8]) -> Option<String> {
    address_of(key)?.sub_group.map(group_name)
}

/// What this key tells, if it is the address of a member of a group.
pub(crate) fn address_of(key: &[u8]) -> Option<Address<'_>> {
    let Some(KeyPattern::Address(address)) = classify(key) else { return None };
    Some(address)
}

/// A group beside that of all ranks: `torch.distributed.rpc` makes one of its own.
fn group_name(name: &[u8]) -> String {
    match name.strip_suffix(b"/") {
        Some(rpc) if rpc.starts_with(b"rpc_prefix_") => format!("the group of rpc `{}`", ShownKey(rpc)),
        _ => format!("the sub-group {}", ShownKey(name)),
    }
}

/// Two ranks that send and receive have a group of their own with NCCL, whose id the lower one makes.
fn pair(name: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(name).ok()?.split_once(':')
}

/// The barrier of `torch.distributed` that this key belongs to: `store_based_barrier_key:NAME`, and more.
pub(crate) fn store_barrier(key: &[u8]) -> String {
    const MARK: &[u8] = b"store_based_barrier_key:";
    let at = key.windows(MARK.len()).position(|part| part == MARK);
    let name = at.and_then(|at| key.get(at.saturating_add(MARK.len())..)).unwrap_or_default();
    match name.strip_suffix(b":last_worker").unwrap_or(name) {
        [] => BARRIER.to_owned(),
        name => format!("the barrier `{}`", ShownKey(name)),
    }
}
