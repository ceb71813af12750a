//! Ranks that are started again find the addresses of their predecessors in the store, and wait for them.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "c10d-restarts",
    sees: "WARN: c10d with `--max-restarts`, or `--nnodes=MIN:MAX`, without \
           `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`",
    examples: ["c10d-restarts.yaml", "good-job-c10d.yaml"],
    find: Find::Torchrun(find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    // A variable outside these files may set it.
    let is_visible = !call.launch.command.open && !call.launch.by_rallypoint;
    call.in_command(RULE.id).filter(|_| is_visible)
}
