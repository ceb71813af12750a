//! The closed table of key patterns: the keys that PyTorch keeps in a store, and those of NIXL and NVRx. The
//! key alone decides.
//!
//! `store::stale` acts on these keys and on no others. The table with sources and tests is in
//! `proto-notes/key-patterns.md`. A key is given as on the wire: with the leading `/` that every PyTorch
//! client adds (only `init/` has none).

mod process_groups;
mod writer;

pub use self::writer::{
    BARRIER, ExpectedWriter, ID_OF_PAIR, Wanted, address_of, lower_of_pair, own_member, store_barrier,
    sub_group_of, wanted,
};

/// The purpose of a key of PyTorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPattern<'k> {
    /// `init/`: how many clients announced themselves (`TCPStore(world_size=…)`).
    WorkerCount,
    /// An address or id that is worthless once the process that wrote it is gone.
    Address(Address<'k>),
    /// An address of the processes that write checkpoints beside the ranks (`DCP_USE_PREFIX_STORE=1`).
    CheckpointAddress(Address<'k>),
    /// A left-over of one attempt of the workers, wrong for the next: barrier counters and failure reports.
    AttemptLeftover(Leftover),
    /// A key below a process group's prefix that matches no row: from a newer PyTorch, or from a program.
    Unknown,
    /// A message between the processes of a job, which may outlive its sender.
    Message,
    /// What a process has published about itself, once, for as long as it lives: `nixl/agents/LABEL/AGENT/…`,
    /// the metadata of an agent of NIXL, which need not belong to a job, and `debug_server/rankN`, where the
    /// debug server of a rank listens.
    Published,
    /// A key of a torchrun rendezvous.
    Rendezvous {
        /// The run id (`--rdzv-id`; `none` if none was given).
        run_id: &'k [u8],
        /// The round of the c10d backend. `None` for the state, and in a static run, which has no rounds.
        round: Option<u32>,
        /// Which key of the run it is.
        part: RendezvousPart,
    },
}

/// The role of a process in a job, as far as its keys show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// It has only counted itself in `init/`, or writes checkpoints for a worker.
    #[default]
    Unknown,
    /// One of the job's own processes.
    Worker,
    /// torchrun's agent: it used a key of the rendezvous.
    Agent,
}

impl Role {
    /// The role after the process has used a key of `user`. An agent stays an agent, because it uses keys of
    /// workers too.
    #[must_use]
    pub fn with(self, user: Self) -> Self {
        match (self, user) {
            (Self::Agent, _) | (_, Self::Unknown) => self,
            _ => user,
        }
    }
}

impl KeyPattern<'_> {
    /// The role of the processes that use this key.
    pub fn user(&self) -> Role {
        match self {
            Self::WorkerCount | Self::CheckpointAddress(_) | Self::Published => Role::Unknown,
            Self::Rendezvous { .. } | Self::Address(Address { run_id: Some(_), .. }) => Role::Agent,
            _ => Role::Worker,
        }
    }
}

impl<'k> KeyPattern<'k> {
    /// The run, the round and the part of a key of a rendezvous. A static run has no rounds.
    pub fn of_rendezvous(&self) -> Option<(&'k [u8], Option<u32>, RendezvousPart)> {
        match *self {
            Self::Rendezvous { run_id, round, part } => Some((run_id, round, part)),
            Self::Address(address) if address.kind == AddressKind::AssignedRanks => {
                Some((address.run_id?, None, RendezvousPart::AssignedRanks(address.node_rank())))
            }
            Self::Address(address) => {
                Some((address.run_id?, None, RendezvousPart::RoleInfo(address.node_rank())))
            }
            _ => None,
        }
    }
}

/// A key that holds an address, or something like one: its writer, and the writer's group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address<'k> {
    /// The beginning of the key that all members of the group share.
    pub group: &'k [u8],
    /// The member: its rank in the group, or for agents a number made from the node rank.
    pub member: u32,
    /// The kind of address.
    pub kind: AddressKind,
    /// The run id, for keys of agents.
    pub run_id: Option<&'k [u8]>,
    /// The name of the process group. `None` for the group of all ranks.
    pub sub_group: Option<&'k [u8]>,
}

impl Address<'_> {
    /// The node rank in a key of the agents' role exchange.
    pub fn node_rank(&self) -> u32 {
        self.member & !ASSIGNED
    }

    /// The rank of the process that writes the key. A node writes its own role, and node 0 writes the ranks
    /// of all nodes.
    pub fn writer(&self) -> u32 {
        if self.kind == AddressKind::AssignedRanks { 0 } else { self.member }
    }

    /// Whether a process writes this key before any other key of the group, and before it reads keys of
    /// others. Then another writer of the key is another process with that rank.
    pub fn is_first(&self) -> bool {
        self.kind != AddressKind::AssignedRanks
    }

    /// How often the process had made its groups before: the N of `default_pg/N/…`. A process that tries
    /// again after it gave up counts further (seen with 2.15.0).
    #[expect(clippy::arithmetic_side_effects, reason = "offsets into one key, found in it")]
    pub fn made_before(&self) -> Option<u32> {
        let rest = &self.group[find(self.group, b"default_pg/")? + b"default_pg/".len()..];
        number(rest.split(|&b| b == b'/').next()?)
    }

    /// The attempt of the workers, which PyTorch 2.5 and older put before their keys.
    #[expect(clippy::arithmetic_side_effects, reason = "offsets into one key, found in it")]
    pub fn attempt(&self) -> Option<u32> {
        let rest = &self.group[find(self.group, b"attempt_")? + b"attempt_".len()..];
        number(rest.split(|&b| b == b'/').next()?)
    }
}

/// The purpose of a key that an attempt leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// `store_based_barrier_key:G`: how many ranks have arrived.
    Barrier,
    /// `…:last_worker`: all ranks have arrived.
    BarrierDone,
    /// `exception_dump`, `remote_error`: a rank's watchdog fired.
    FailureReport,
    /// `NCCL_r_trace_start`, `NCCL_r_trace_end`: the collective in which a rank is, for the watchdogs of
    /// other ranks.
    Trace,
    /// `rpc_prefix_N/…`: the counters of `torch.distributed.rpc`.
    RpcCounter,
}

/// The kind of address in a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressKind {
    /// A gloo endpoint: `…//cpu//G/r`, in a group of `split_group` `…//NAME//G/r`.
    Gloo,
    /// The host of a gloo endpoint, before PyTorch 2.4: `…//cpu//G/rank_r`.
    GlooHost,
    /// An NCCL unique id: `…//cuda//K`, and with ProcessGroupNCCL2 `…//cuda//NAME/nccl_storekey_K`, followed
    /// by `_i` if several ranks make one together.
    NcclId,
    /// The address of a worker of `torch.distributed.rpc`, or its name: `rpc_prefix_N/addrs/NAME`,
    /// `…/names/r`.
    RpcWorker,
    /// torchrun's role exchange in a run without rounds: `/RUN/torchelastic/role_info/i`.
    RoleInfo,
    /// The ranks assigned in a role exchange: `/RUN/torchelastic/assigned_ranks/i`.
    AssignedRanks,
}

/// Which key of a torchrun rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RendezvousPart {
    /// `/torch.rendezvous.RUN`: the c10d backend's state.
    State,
    /// `…/MASTER_ADDR`: the host of the workers' store.
    MasterAddr,
    /// `…/MASTER_PORT`: its port.
    MasterPort,
    /// `…/torchelastic/role_info/i` of a round: written by node `i`.
    RoleInfo(u32),
    /// `…/torchelastic/assigned_ranks/i` of a round: written by node 0 for node `i`.
    AssignedRanks(u32),
    /// `…/terminal_state/last_member`, before PyTorch 2.4 `…/terminal_state0.FIN`: all agents have arrived at
    /// the exit barrier.
    ExitBarrierDone {
        /// Whether the key belongs to a round of the c10d backend. Otherwise it belongs to a static run,
        /// which has no rounds.
        in_round: bool,
    },
    /// `…/terminal_state/…`: the count of agents at the exit barrier; before 2.4 `…/terminal_state0`: one
    /// agent there.
    ExitBarrier {
        /// As in `ExitBarrierDone`.
        in_round: bool,
    },
    /// Any other key of the run.
    Other,
}

/// The first member number that stands for assigned ranks in the group of a role exchange.
const ASSIGNED: u32 = 1 << 31;

/// The rendezvous of NVRx's `ft_launcher` 0.7: `ft_rendezvous_barrier:RUN:…`.
const HOSTED: &[u8] = b"ft_rendezvous_barrier:";

/// Whether `key` is of a rendezvous that is led by one of its agents, the host of the store where no server
/// is. What its agents wrote is worthless, and wrong for the next ones, when all of them are gone.
pub fn ends_with_its_agents(key: &[u8]) -> bool {
    key.strip_prefix(b"/").is_some_and(|key| key.starts_with(HOSTED)) && classify(key).is_some()
}

/// The agents of NIXL.
const NIXL: &[u8] = b"nixl/agents/";

/// The process that publishes `key` about itself, as the key names it: an agent of NIXL.
pub fn published_by(key: &[u8]) -> Option<&[u8]> {
    publisher(key.strip_prefix(b"/")?.strip_prefix(NIXL)?)
}

/// What another process is to publish about itself, or the leader of others is to write.
pub fn is_promised(key: &[u8]) -> bool {
    published_by(key).is_some() || ends_with_its_agents(key)
}

/// The debug servers of ranks (`torch.distributed.debug`). Its writer closes the connection at once.
const DEBUG: &[u8] = b"debug_server/rank";

/// The rank whose debug server `key` tells.
pub fn debug_server_of(key: &[u8]) -> Option<u32> {
    number(key.strip_prefix(b"/")?.strip_prefix(DEBUG)?)
}

/// Whether a key is a program's own, and none of PyTorch's or of a framework that is known.
pub fn is_of_program(key: &[u8]) -> bool {
    matches!(classify(key), None | Some(KeyPattern::Unknown))
}

/// Whether a client that asks for `key` again and again waits for another process: for a key of a program,
/// for arrivals at a barrier, or for what the leader of `HOSTED` writes first. PyTorch asks for others beside
/// its work, such as those of NCCL's watchdog.
pub fn is_asked_for(key: &[u8]) -> bool {
    use KeyPattern::{AttemptLeftover, Published, Unknown};
    match classify(key) {
        None | Some(Unknown | Published | AttemptLeftover(Leftover::Barrier)) => true,
        Some(_) => ends_with_its_agents(key) && key.ends_with(b":shutdown"),
    }
}

/// A label, an agent, and for whom it is. Each name is what its program chose.
fn publisher(names: &[u8]) -> Option<&[u8]> {
    let mut names = names.split(|&b| b == b'/');
    let (_label, agent, _reader) = (names.next()?, names.next()?, names.next()?);
    Some(agent)
}

/// What PyTorch uses `key` for. `None` for every key that is not PyTorch's.
pub fn classify(key: &[u8]) -> Option<KeyPattern<'_>> {
    if key == b"init/" {
        return Some(KeyPattern::WorkerCount);
    }
    let key = key.strip_prefix(b"/")?;
    if let Some(rest) = key.strip_prefix(b"torch.rendezvous.") {
        return Some(classify_dynamic(rest));
    }
    if let Some(rest) = key.strip_prefix(HOSTED) {
        // The run id may contain colons, the rest does not.
        let run_id = rest.rsplitn(2, |&b| b == b':').nth(1)?;
        // Nothing tells the round of each key. As of the c10d backend, a run has rounds.
        return Some(KeyPattern::Rendezvous { run_id, round: Some(0), part: RendezvousPart::Other });
    }
    if let Some(names) = key.strip_prefix(NIXL) {
        return publisher(names).map(|_| KeyPattern::Published);
    }
    if let Some(rank) = key.strip_prefix(DEBUG) {
        return number(rank).map(|_| KeyPattern::Published);
    }
    if let Some(at) = find(key, b"/torchelastic/") {
        return Some(classify_static(key, at));
    }
    process_groups::classify(key)
}

/// The address in a key below a prefix of the program's own, and that prefix. Such keys match no row, except
/// those of checkpoints: what else a program does below its prefix is not known.
pub fn below_own_prefix(key: &[u8]) -> Option<(&[u8], Address<'_>)> {
    let is_below = matches!(classify(key), None | Some(KeyPattern::CheckpointAddress(_)));
    let path = key.strip_prefix(b"/").filter(|_| is_below)?;
    let (prefix, group) = path.split_at_checked(find(path, b"/0//")?)?;
    match classify(group)? {
        KeyPattern::Address(address) => Some((prefix, address)),
        _ => None,
    }
}

/// Keys of torchrun's c10d backend. `rest` is `RUN`, or `RUN.ROUND/…`. A run id may have dots and slashes.
#[expect(clippy::arithmetic_side_effects, reason = "offsets into one key, found in it")]
fn classify_dynamic(rest: &[u8]) -> KeyPattern<'_> {
    let of_round = |dot: usize| {
        let behind = &rest[dot + 1..];
        let digits = behind.iter().take_while(|b| b.is_ascii_digit()).count();
        let tail = behind[digits..].strip_prefix(b"/")?;
        Some((&rest[..dot], number(&behind[..digits])?, tail))
    };
    let mut dots = (0..rest.len()).rev().filter(|&at| rest[at] == b'.');
    let Some((run_id, round, tail)) = dots.find_map(of_round) else {
        return KeyPattern::Rendezvous { run_id: rest, round: None, part: RendezvousPart::State };
    };
    let role = |name: &[u8]| tail.strip_prefix(b"torchelastic/")?.strip_prefix(name);
    // Before PyTorch 2.4 the role keys had no slash: `role_info0`.
    let role_info = role(b"role_info").and_then(|i| number(i.strip_prefix(b"/").unwrap_or(i)));
    let part = match (tail, role_info, role(b"assigned_ranks/").and_then(number)) {
        (b"MASTER_ADDR", ..) => RendezvousPart::MasterAddr,
        (b"MASTER_PORT", ..) => RendezvousPart::MasterPort,
        (_, Some(node), _) => RendezvousPart::RoleInfo(node),
        (_, _, Some(node)) => RendezvousPart::AssignedRanks(node),
        _ => exit_barrier_part(tail, true),
    };
    KeyPattern::Rendezvous { run_id, round: Some(round), part }
}

/// Keys of torchrun's static backend: `RUN/torchelastic/…`. The run id ends at `at`.
#[expect(clippy::arithmetic_side_effects, reason = "offsets into one key, found in it")]
fn classify_static(key: &[u8], at: usize) -> KeyPattern<'_> {
    const MARK: &[u8] = b"/torchelastic/";
    let (run_id, tail) = (&key[..at], &key[at + MARK.len()..]);
    // Both kinds of key are in one group, with the members 0, 1, … and ASSIGNED, ASSIGNED + 1, …
    let address = |kind, first, index: &[u8]| {
        let member = number(index).filter(|&i| i < ASSIGNED)?.checked_add(first)?;
        let group = &key[..at + MARK.len()];
        Some(Address { group, member, kind, run_id: Some(run_id), sub_group: None })
    };
    // Before PyTorch 2.4 the role keys had no slash: `role_info0`.
    let found = tail
        .strip_prefix(b"role_info")
        .and_then(|i| address(AddressKind::RoleInfo, 0, i.strip_prefix(b"/").unwrap_or(i)))
        .or_else(|| {
            tail.strip_prefix(b"assigned_ranks/")
                .and_then(|i| address(AddressKind::AssignedRanks, ASSIGNED, i))
        });
    match found {
        Some(address) => KeyPattern::Address(address),
        None => KeyPattern::Rendezvous { run_id, round: None, part: exit_barrier_part(tail, false) },
    }
}

fn exit_barrier_part(tail: &[u8], in_round: bool) -> RendezvousPart {
    const MARK: &[u8] = b"terminal_state";
    let Some(at) = find(tail, MARK) else { return RendezvousPart::Other };
    let rest = &tail[at..][MARK.len()..];
    // Before PyTorch 2.4 an arriving agent writes `terminal_state0`. When it has read the keys of all agents,
    // it writes `terminal_state0.FIN`.
    let (is_known, is_done) = match (rest.strip_prefix(b"/"), rest.strip_suffix(b".FIN")) {
        (Some(name), _) => (true, name == b"last_member"),
        (None, Some(agent)) => (number(agent).is_some(), true),
        (None, None) => (number(rest).is_some(), false),
    };
    match (is_known, is_done) {
        (false, _) => RendezvousPart::Other,
        (true, true) => RendezvousPart::ExitBarrierDone { in_round },
        (true, false) => RendezvousPart::ExitBarrier { in_round },
    }
}

/// A decimal number without sign or blanks, as PyTorch writes ranks.
fn number(text: &[u8]) -> Option<u32> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn rfind(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).rposition(|window| window == needle)
}

#[cfg(test)]
mod tests;
