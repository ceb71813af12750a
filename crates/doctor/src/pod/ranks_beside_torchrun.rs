//! torchrun sets these variables for its workers; who reads them before is misled.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "ranks-beside-torchrun",
    sees: "WARN: `RANK`, `LOCAL_RANK` or `WORLD_SIZE`, which torchrun sets itself",
    remedy: "leave them out",
    find: Find::Launch(|at| find(at.env, at.torchrun).into_iter().collect()),
};

fn find(env: &Environment, torchrun: Option<&Torchrun>) -> Option<Check> {
    torchrun?;
    let set: Vec<&str> =
        ["RANK", "LOCAL_RANK", "WORLD_SIZE"].into_iter().filter(|name| env.get(name).is_some()).collect();
    if set.is_empty() {
        return Some(Check::pass("RANK, LOCAL_RANK and WORLD_SIZE are left to torchrun"));
    }
    let evidence = format!("{} set beside torchrun, which sets them for each worker itself", set.join(", "));
    Some(Check::warn(evidence, "leave them out; for the node's place set PET_NODE_RANK"))
}
