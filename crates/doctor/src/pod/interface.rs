//! gloo and NCCL end with an error, or wait for ever, where the interface that they are told is not there, or
//! no other node reaches it.

use super::prelude::*;

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
