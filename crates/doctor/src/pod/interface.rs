//! gloo and NCCL end with an error, or wait for ever, where the interface that they are told is not there, or
//! no other node reaches it.

use super::prelude::*;
use crate::is_near;

pub(super) const RULE: Rule = Rule {
    id: "interface",
    sees: "FAIL: `GLOO_SOCKET_IFNAME`, `TP_SOCKET_IFNAME` or `NCCL_SOCKET_IFNAME` names no interface of this \
           pod, or the loopback on several nodes",
    remedy: "an interface of `ip -br link`",
    find: Find::Machine(|facts, env, _| find(facts, env)),
};

/// The variables that name an interface.
pub(crate) const VARIABLES: [&str; 3] = ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"];
pub(crate) const ONLY_NCCL: &str =
    "only NCCL reads `^` and `=`; gloo looks for an interface of this very name";

/// The variables that are set most often.
#[rustfmt::skip]
const KNOWN: [&str; 17] = [
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX",
    "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_DEBUG_SUBSYS", "NCCL_NET_GDR_LEVEL", "NCCL_IB_TIMEOUT",
    "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_CROSS_NIC", "NCCL_DEBUG_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_DISTRIBUTED_DEBUG",
];

/// Names that are none of NCCL's, each with the one that is meant.
const OTHERS: [(&str, &str); 2] =
    [("NCCL_IP_VERSION", "NCCL_SOCKET_FAMILY"), ("NCCL_IFNAME", "NCCL_SOCKET_IFNAME")];

/// The variable that is meant by one that is none of NCCL's, gloo's or PyTorch's.
pub(crate) fn misspelled(name: &str) -> Option<&'static str> {
    // RCCL and others have variables of their own.
    let is_meant = |known: &&str| is_near(known, name) && known.get(..1) == name.get(..1);
    let other = OTHERS.iter().find(|(other, _)| *other == name).map(|(_, right)| *right);
    other.or_else(|| KNOWN.into_iter().find(is_meant).filter(|_| !KNOWN.contains(&name)))
}

pub(crate) fn nobody_reads(name: &str) -> String {
    format!("{name} is no variable of NCCL, gloo or PyTorch: nothing reads it")
}

/// Whether a value that only NCCL understands is given to gloo.
pub(crate) fn is_only_for_nccl(variable: &str, value: &str) -> bool {
    value.starts_with(['^', '=', '!']) && !variable.starts_with("NCCL")
}

/// Only NCCL reads a name as the beginning of others, `=` as the whole, and `^` as all others.
fn names(variable: &str, value: &str, interface: &str) -> bool {
    let mut names = value.trim_start_matches(['^', '=']).split(',').map(str::trim);
    match value.chars().next().filter(|_| variable.starts_with("NCCL")) {
        Some('^') => !names.any(|name| interface.starts_with(name)),
        Some('=') => names.any(|name| interface == name),
        Some(_) => names.any(|name| interface.starts_with(name)),
        None => value.split(',').any(|name| interface == name.trim()),
    }
}

fn find(facts: &MachineFacts, env: &Environment) -> Option<Check> {
    let all = &facts.interfaces;
    let of = |variable: &'static str| Some((variable, env.get(variable).filter(|it| !it.is_empty())?));
    let set = VARIABLES.into_iter().filter_map(of);
    let set: Vec<_> = set.filter(|_| !all.is_empty()).collect();
    let others: Vec<&str> = all.iter().map(String::as_str).filter(|name| *name != "lo").collect();
    let remedy =
        |variable| format!("{variable} with an interface that all nodes share: {}", others.join(", "));
    let wrong = set.iter().find_map(|&(variable, value)| {
        let found: Vec<_> = all.iter().filter(|interface| names(variable, value, interface)).collect();
        let why = match found.as_slice() {
            _ if is_only_for_nccl(variable, value) => ONLY_NCCL,
            [] => "this pod has no such interface",
            [only] if *only == "lo" && facts.several => "the other nodes are not on this pod's loopback",
            _ => return None,
        };
        Some(Check::fail(format!("{variable}={value}: {why}"), remedy(variable)))
    });
    let shown = || set.iter().map(|(variable, value)| format!("{variable}={value}")).collect::<Vec<_>>();
    wrong.or_else(|| (!set.is_empty()).then(|| Check::pass(shown().join(", "))))
}
