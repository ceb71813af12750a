//! The keys of workers: keys of process groups, and of what is built on them.
//!
//! The keys of a process group begin with `default_pg/`, before which 2.5 and older put `/worker/attempt_A/`.
//! Keys of a group that a program made on a store of its own do not begin so, and neither do those of
//! programs that make groups without `init_process_group` (vLLM, torchft, `torch.distributed.rpc`). Such a
//! key must have the whole form of a row. Below `default_pg/`, every other key is [`KeyPattern::Unknown`].
#![expect(clippy::arithmetic_side_effects, reason = "all of it is offsets into one key, found in it")]

use super::{Address, AddressKind, KeyPattern, Leftover, find, number, rfind};

/// The prefix of the processes that save checkpoints for the ranks (`dcp.async_save` in processes, with
/// `DCP_USE_PREFIX_STORE=1`).
const CHECKPOINTS: &[u8] = b"AsyncCheckpointProcess//";

/// What NCCL's watchdog puts before the keys of its group, as the group puts it before the id.
const WATCHDOG: &[u8] = b"//cuda//";

/// Classifies a key of workers, given without its first `/`.
pub(super) fn classify(key: &[u8]) -> Option<KeyPattern<'_>> {
    let in_default_group = at_segment(key, b"default_pg/").is_some();
    if let Some(leftover) = leftover(key, in_default_group) {
        return Some(KeyPattern::AttemptLeftover(leftover));
    }
    if let Some(rest) = key.strip_prefix(b"rpc_prefix_") {
        return rpc(key, rest);
    }
    if is_message(key) {
        return Some(KeyPattern::Message);
    }
    if let Some(group) = key.strip_prefix(CHECKPOINTS) {
        let address = group.starts_with(b"0//").then(|| backend(key, CHECKPOINTS.len()))?;
        return address.map(KeyPattern::CheckpointAddress);
    }
    let address = if let Some(at) = at_segment(key, b"default_pg/") {
        backend(key, at + b"default_pg/".len())
    } else if key.starts_with(b"0//") {
        backend(key, 0)
    } else {
        stateless(key)
    };
    match address {
        Some(address) => Some(KeyPattern::Address(address)),
        None => in_default_group.then_some(KeyPattern::Unknown),
    }
}

/// The start of `name`, if it begins the key or one of its segments.
fn at_segment(key: &[u8], name: &[u8]) -> Option<usize> {
    let at = find(key, name)?;
    (at == 0 || key[at - 1] == b'/').then_some(at)
}

/// Barrier counters, and the keys of NCCL's watchdog: at the root, or beside the id of its group.
fn leftover(key: &[u8], in_default_group: bool) -> Option<Leftover> {
    if key.starts_with(b"store_based_barrier_key:")
        || in_default_group && find(key, b"store_based_barrier_key").is_some()
    {
        return Some(if key.ends_with(b":last_worker") { Leftover::BarrierDone } else { Leftover::Barrier });
    }
    let reports = [b"exception_dump".as_slice(), b"remote_error"];
    let is_report = |name: &[u8]| {
        let at_root = || worker_key(key).strip_prefix(name);
        in_default_group && find(key, name).is_some()
            || at_root().is_some_and(|rest| matches!(rest, [] | [b'/' | b':', ..]))
    };
    if reports.into_iter().any(is_report) {
        return Some(Leftover::FailureReport);
    }
    let of_watchdog = &key[rfind(key, WATCHDOG)? + WATCHDOG.len()..];
    if of_watchdog.starts_with(b"remote_error:") {
        return Some(Leftover::FailureReport);
    }
    let rank = of_watchdog.strip_prefix(b"NCCL_")?;
    let rank = rank.strip_suffix(b"_trace_start").or_else(|| rank.strip_suffix(b"_trace_end"))?;
    number(rank).map(|_| Leftover::Trace)
}

/// The key without the prefix `/worker/attempt_A/` of 2.5 and older.
fn worker_key(key: &[u8]) -> &[u8] {
    let after_attempt = || {
        let rest = key.strip_prefix(b"/worker/attempt_")?;
        let slash = rest.iter().position(|&b| b == b'/')?;
        number(&rest[..slash]).map(|_| &rest[slash + 1..])
    };
    after_attempt().unwrap_or(key)
}

/// `[NAME//]cpu//…` and `[NAME//]cuda//…` of the group that begins at `root` (`0//…`), and `NAME//G/r` of one
/// that `split_group` made of it, whose gloo has no prefix of its own.
fn backend(key: &[u8], root: usize) -> Option<Address<'_>> {
    if let Some(at) = rfind(key, b"//cpu//").filter(|&at| at >= root) {
        let from = at + b"//cpu//".len();
        let rest = &key[from..];
        // A second gloo group beside the backend's own one, made by TORCH_DISTRIBUTED_DEBUG=DETAIL or by
        // `_reconfigure`.
        let inner = match (segments(rest, 1), segments(rest, 2)) {
            (Some((wrapper, _)), _) if wrapper.starts_with(b"pg_wrapper:") => wrapper.len() + 1,
            (_, Some((again, _))) if again.starts_with(b"reconfigure/") => again.len() + 1,
            _ => 0,
        };
        let wrapper = rest.starts_with(b"pg_wrapper:").then(|| &rest[..inner - 1]);
        let sub_group = wrapper.or_else(|| sub_group(key, root, at));
        return gloo(key, from + inner, sub_group);
    }
    if let Some(at) = rfind(key, b"//cuda//").filter(|&at| at >= root) {
        return nccl(key, at + b"//cuda//".len(), sub_group(key, root, at));
    }
    let at = rfind(key, b"//").filter(|&at| at >= root)?;
    sub_group(key, root, at).and_then(|name| gloo(key, at + b"//".len(), Some(name)))
}

/// The part between a group's `0//` and the `//` before its backend.
fn sub_group(key: &[u8], root: usize, end: usize) -> Option<&[u8]> {
    let mut path = key[root..end].split(|&b| b == b'/').filter(|part| !part.is_empty());
    path.next_back().filter(|_| key[root..end].windows(2).any(|pair| pair == b"//"))
}

/// `G/r` or `G/rank_r` at the end of a key, from `at` on.
fn gloo<'k>(key: &'k [u8], at: usize, sub_group: Option<&'k [u8]>) -> Option<Address<'k>> {
    const HOST: &[u8] = b"rank_";
    let (generation, rank) = segments(&key[at..], 1)?;
    number(generation)?;
    // Before PyTorch 2.4 the host name of a rank has a key of its own.
    let (kind, before, rank) = match rank.strip_prefix(HOST) {
        Some(rank) => (AddressKind::GlooHost, HOST.len(), rank),
        None => (AddressKind::Gloo, 0, rank),
    };
    let group = &key[..=at + generation.len() + before];
    Some(Address { group, member: number(rank)?, kind, run_id: None, sub_group })
}

/// An NCCL id, from `at` on. Each key has one writer and is a group of its own, but the ids that several
/// roots make for one communicator are one group.
fn nccl<'k>(key: &'k [u8], at: usize, sub_group: Option<&'k [u8]>) -> Option<Address<'k>> {
    const OF_2: &[u8] = b"nccl_storekey_";
    let id = |group, member| Address { group, member, kind: AddressKind::NcclId, run_id: None, sub_group };
    let rest = &key[at..];
    if rest.starts_with(b"nccl2_reconfigure/") {
        let (again, _) = segments(rest, 2)?;
        return Some(id(&key[..=at + again.len()], 0));
    }
    let last = rest.iter().rposition(|&b| b == b'/').map_or(at, |slash| at + slash + 1);
    let Some(counter) = key[last..].strip_prefix(OF_2) else {
        // Two ranks that send and receive have a communicator of their own, `1:3`. The lower rank makes its
        // id.
        let pair = rest.iter().position(|&b| b == b':').map(|colon| (&rest[..colon], &rest[colon + 1..]));
        let is_pair = pair.is_some_and(|(low, high)| number(low).is_some() && number(high).is_some());
        let sub_group = sub_group.or(is_pair.then_some(rest));
        return (last == at && !rest.is_empty()).then(|| Address { sub_group, ..id(key, 0) });
    };
    let digits = counter.iter().position(|&b| b == b'_').unwrap_or(counter.len());
    number(&counter[..digits])?;
    let member = match &counter[digits..] {
        [] => 0,
        [_, root @ ..] => number(root)?,
    };
    Some(id(&key[..last + OF_2.len() + digits], member))
}

/// Process groups that programs make without `init_process_group`: those of vLLM below `tcp://HOST:PORT/`,
/// and those of torchft below `torchft/QUORUM/RANK/`.
fn stateless(key: &[u8]) -> Option<Address<'_>> {
    if let Some(rest) = key.strip_prefix(b"tcp://") {
        let (host, _) = segments(rest, 1)?;
        let prefix = b"tcp://".len() + host.len();
        return gloo(key, prefix + 1, Some(&key[..prefix]));
    }
    if key.starts_with(b"torchft/") {
        let (prefix, rest) = segments(key, 3)?;
        let is_of_quorum = prefix.split(|&b| b == b'/').skip(1).all(|part| number(part).is_some());
        let at = prefix.len() + 1;
        let gloo = || gloo(key, at, Some(prefix));
        let nccl = || number(rest).and_then(|_| nccl(key, at, Some(prefix)));
        return is_of_quorum.then(|| gloo().or_else(nccl))?;
    }
    None
}

/// A key of `torch.distributed.rpc`. `rest` is its part after `rpc_prefix_`.
fn rpc<'k>(key: &'k [u8], rest: &'k [u8]) -> Option<KeyPattern<'k>> {
    let (instance, rest) = segments(rest, 1)?;
    number(instance)?;
    let prefix = &key[..key.len() - rest.len()];
    if rest.starts_with(b"addrs/") || rest.starts_with(b"names/") {
        let kind = AddressKind::RpcWorker;
        return Some(KeyPattern::Address(Address {
            group: key,
            member: 0,
            kind,
            run_id: None,
            sub_group: Some(prefix),
        }));
    }
    if let Some(address) = gloo(key, prefix.len(), Some(prefix)) {
        return Some(KeyPattern::Address(address));
    }
    let is_counter = rest == b"rpcIsStaticGroup" || rest.starts_with(b"shutdown/");
    is_counter.then_some(KeyPattern::AttemptLeftover(Leftover::RpcCounter))
}

/// Keys of vLLM's `StatelessProcessGroup`: `broadcast_from/RANK/N`, `send_to/RANK/N`.
fn is_message(key: &[u8]) -> bool {
    let rest = key.strip_prefix(b"broadcast_from/").or_else(|| key.strip_prefix(b"send_to/"));
    let numbers = rest.and_then(|rest| segments(rest, 1));
    numbers.is_some_and(|(rank, count)| number(rank).is_some() && number(count).is_some())
}

/// The first `count` segments of a path, and what follows them.
fn segments(path: &[u8], count: usize) -> Option<(&[u8], &[u8])> {
    let mut slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
    let slash = slashes.nth(count - 1)?;
    Some((&path[..slash], &path[slash + 1..]))
}
