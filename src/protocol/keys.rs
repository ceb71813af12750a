//! The closed table of key patterns: what PyTorch itself keeps in a store, told by the key alone.
//!
//! `store::stale` acts on these and on no other key; the table with sources and tests is
//! `proto-notes/key-patterns.md`. A key is given as it is on the wire: with the `/` that every PyTorch client puts
//! before it (`init/` alone has none).

/// What a key of PyTorch's own is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPattern<'k> {
    /// `init/`: how many clients announced themselves (`TCPStore(world_size=…)`).
    WorkerCount,
    /// An address or id that is worthless once the process that wrote it is gone.
    Address(Address<'k>),
    /// Left by one attempt of the workers, wrong for the next: barrier counters and failure reports.
    AttemptLeftover,
    /// Any other key of a process group.
    ProcessGroup,
    /// A key of a torchrun rendezvous.
    Rendezvous {
        /// The run id (`--rdzv-id`; `none` if none was given).
        run_id: &'k [u8],
        /// Which of the run's keys.
        part: RendezvousPart,
    },
}

/// An address-like key: who wrote it among whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address<'k> {
    /// The key up to and including what all members of the group share.
    pub group: &'k [u8],
    /// The member: a rank in the group, or for agents a number made of the node rank.
    pub member: u32,
    /// What kind of address.
    pub kind: AddressKind,
    /// The run id, for the agents' keys.
    pub run_id: Option<&'k [u8]>,
}

/// What kind of address a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressKind {
    /// A gloo endpoint: `…//cpu//G/r`.
    Gloo,
    /// An NCCL unique id: `…//cuda//K`.
    NcclId,
    /// torchrun's role exchange in a run without rounds: `/RUN/torchelastic/role_info/i`.
    RoleInfo,
    /// The ranks handed out in it: `/RUN/torchelastic/assigned_ranks/i`.
    AssignedRanks,
}

/// Which key of a torchrun rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RendezvousPart {
    /// `/torch.rendezvous.RUN`: the c10d backend's state.
    State,
    /// `…/terminal_state/last_member`: all agents have arrived at the exit barrier.
    ExitBarrierDone {
        /// Whether the key belongs to a round of the c10d backend (else to a static run, which has no rounds).
        in_round: bool,
    },
    /// `…/terminal_state/…`: the count of agents at the exit barrier.
    ExitBarrier {
        /// As above.
        in_round: bool,
    },
    /// Anything else of the run.
    Other,
}

/// Tells what PyTorch uses `key` for; `None` for every key that is not PyTorch's own.
pub fn classify(key: &[u8]) -> Option<KeyPattern<'_>> {
    if key == b"init/" {
        return Some(KeyPattern::WorkerCount);
    }
    let key = key.strip_prefix(b"/")?;
    if let Some(rest) = key.strip_prefix(b"torch.rendezvous.") {
        return Some(classify_dynamic(rest));
    }
    if let Some(at) = find(key, b"/torchelastic/") {
        return Some(classify_static(key, at));
    }
    let group_at = find(key, b"default_pg/")?;
    if group_at != 0 && key[group_at - 1] != b'/' {
        return None;
    }
    Some(classify_process_group(key))
}

/// Keys of torchrun's c10d backend. `rest` is `RUN`, or `RUN.ROUND/…`.
fn classify_dynamic(rest: &[u8]) -> KeyPattern<'_> {
    let Some(slash) = rest.iter().position(|&b| b == b'/') else {
        return KeyPattern::Rendezvous { run_id: rest, part: RendezvousPart::State };
    };
    let (head, tail) = rest.split_at(slash);
    let run_id = match head.iter().rposition(|&b| b == b'.') {
        Some(dot) if number(&head[dot + 1..]).is_some() => &head[..dot],
        _ => head,
    };
    KeyPattern::Rendezvous { run_id, part: exit_barrier_part(tail, true) }
}

/// Keys of torchrun's static backend: `RUN/torchelastic/…`, with `at` where the run id ends.
fn classify_static(key: &[u8], at: usize) -> KeyPattern<'_> {
    const MARK: &[u8] = b"/torchelastic/";
    const UPPER: u32 = 1 << 31;
    let (run_id, tail) = (&key[..at], &key[at + MARK.len()..]);
    // The two kinds of key are one group of members 0, 1, … and UPPER, UPPER + 1, …
    let address = |kind, first, index: &[u8]| {
        let member = number(index).filter(|&i| i < UPPER)? + first;
        Some(Address { group: &key[..at + MARK.len()], member, kind, run_id: Some(run_id) })
    };
    // Before PyTorch 2.4 the role keys had no slash: `role_info0`.
    let found = tail
        .strip_prefix(b"role_info")
        .and_then(|i| address(AddressKind::RoleInfo, 0, i.strip_prefix(b"/").unwrap_or(i)))
        .or_else(|| {
            tail.strip_prefix(b"assigned_ranks/").and_then(|i| address(AddressKind::AssignedRanks, UPPER, i))
        });
    match found {
        Some(address) => KeyPattern::Address(address),
        None => KeyPattern::Rendezvous { run_id, part: exit_barrier_part(tail, false) },
    }
}

fn exit_barrier_part(tail: &[u8], in_round: bool) -> RendezvousPart {
    if find(tail, b"terminal_state/").is_none() {
        RendezvousPart::Other
    } else if tail.ends_with(b"/last_member") {
        RendezvousPart::ExitBarrierDone { in_round }
    } else {
        RendezvousPart::ExitBarrier { in_round }
    }
}

/// Keys of a process group: `[/worker/attempt_A/]default_pg/…`.
fn classify_process_group(key: &[u8]) -> KeyPattern<'_> {
    const LEFTOVERS: [&[u8]; 3] = [b"store_based_barrier_key", b"exception_dump", b"remote_error"];
    if let Some(at) = rfind(key, b"//cpu//") {
        let (group, rest) = key.split_at(at + b"//cpu//".len());
        if let Some(slash) = rest.iter().position(|&b| b == b'/')
            && number(&rest[..slash]).is_some()
            && let Some(member) = number(&rest[slash + 1..])
        {
            let group = &key[..=group.len() + slash];
            return KeyPattern::Address(Address { group, member, kind: AddressKind::Gloo, run_id: None });
        }
    }
    if let Some(at) = rfind(key, b"//cuda//")
        && !key[at + b"//cuda//".len()..].contains(&b'/')
    {
        // One writer a key: each id is a group of its own.
        return KeyPattern::Address(Address {
            group: key,
            member: 0,
            kind: AddressKind::NcclId,
            run_id: None,
        });
    }
    if LEFTOVERS.iter().any(|name| find(key, name).is_some()) {
        return KeyPattern::AttemptLeftover;
    }
    KeyPattern::ProcessGroup
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
mod tests {
    use super::*;

    fn address(key: &str) -> (Vec<u8>, u32, AddressKind) {
        match classify(key.as_bytes()) {
            Some(KeyPattern::Address(a)) => (a.group.to_vec(), a.member, a.kind),
            other => panic!("{key} is {other:?}"),
        }
    }

    fn rendezvous(key: &str) -> (String, RendezvousPart) {
        match classify(key.as_bytes()) {
            Some(KeyPattern::Rendezvous { run_id, part }) => {
                (String::from_utf8(run_id.to_vec()).expect("utf-8"), part)
            }
            other => panic!("{key} is {other:?}"),
        }
    }

    #[test]
    fn gloo_addresses_of_every_release_are_known() {
        let gloo = AddressKind::Gloo;
        assert_eq!(address("/default_pg/0//cpu//0/3"), (b"default_pg/0//cpu//0/".to_vec(), 3, gloo));
        let sub = "/default_pg/0//9f3c//cpu//0/1";
        assert_eq!(address(sub), (b"default_pg/0//9f3c//cpu//0/".to_vec(), 1, gloo));
        // 2.5.1 and older, in the agent's store.
        let old = "//worker/attempt_1/default_pg/0//cpu//0/2";
        assert_eq!(address(old), (b"/worker/attempt_1/default_pg/0//cpu//0/".to_vec(), 2, gloo));
    }

    #[test]
    fn the_role_exchange_is_an_address_only_in_runs_without_rounds() {
        let group = b"none/torchelastic/".to_vec();
        assert_eq!(address("/none/torchelastic/role_info/1"), (group.clone(), 1, AddressKind::RoleInfo));
        assert_eq!(
            address("/none/torchelastic/role_info1"),
            (group.clone(), 1, AddressKind::RoleInfo),
            "before 2.4"
        );
        assert_eq!(
            address("/none/torchelastic/assigned_ranks/0"),
            (group, 1 << 31, AddressKind::AssignedRanks)
        );
        assert_eq!(
            rendezvous("/torch.rendezvous.job.v2.7/torchelastic/role_info/1"),
            ("job.v2".into(), RendezvousPart::Other)
        );
    }

    #[test]
    fn rendezvous_keys_name_their_run() {
        assert_eq!(rendezvous("/torch.rendezvous.job.0"), ("job.0".into(), RendezvousPart::State));
        assert_eq!(rendezvous("/torch.rendezvous.job.0/MASTER_ADDR"), ("job".into(), RendezvousPart::Other));
        let barrier = "torchelastic/agent/terminal_state";
        assert_eq!(
            rendezvous(&format!("/torch.rendezvous.j.3/{barrier}/last_member")).1,
            RendezvousPart::ExitBarrierDone { in_round: true }
        );
        assert_eq!(
            rendezvous(&format!("/none/{barrier}/num_members")),
            ("none".into(), RendezvousPart::ExitBarrier { in_round: false })
        );
    }

    #[test]
    fn the_rest_of_a_process_group_is_told_apart() {
        assert_eq!(classify(b"init/"), Some(KeyPattern::WorkerCount));
        assert_eq!(address("/default_pg/0//cuda//0").2, AddressKind::NcclId);
        for leftover in [
            "/default_pg/store_based_barrier_key:0",
            "/default_pg/0//store_based_barrier_key:1:last_worker",
            "/default_pg/0//exception_dump",
            "/default_pg/0//cuda//remote_error/3",
        ] {
            assert_eq!(classify(leftover.as_bytes()), Some(KeyPattern::AttemptLeftover), "{leftover}");
        }
        assert_eq!(classify(b"/default_pg/0//anything"), Some(KeyPattern::ProcessGroup));
    }

    #[test]
    fn other_keys_are_nobodys() {
        for key in [
            "",
            "/",
            "/init/",
            "/done_3",
            "/my_default_pg/0",
            "/torchelastic",
            "/a//cpu//0/1",
            "default_pg/0",
        ] {
            assert_eq!(classify(key.as_bytes()), None, "{key}");
        }
    }
}
