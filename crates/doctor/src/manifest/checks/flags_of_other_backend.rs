//! With c10d the order of the nodes is not their index, whatever the flags say.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "flags-of-other-backend",
    sees: "WARN: `--master-addr` with c10d, which ignores it",
    examples: ["flags-of-other-backend.yaml", "good-job-c10d.yaml"],
    find: Find::Torchrun(|call| call.in_command(RULE.id).filter(|_| call.are_to_meet() && matters(call))),
};

/// A rank alone, beside the endpoint that c10d reads, does no harm.
fn matters(call: &Call<'_>) -> bool {
    let has = |flag| call.launch.called.as_ref().is_some_and(|called| called.has(flag));
    has("master-addr") || has("master-port") || !has("rdzv-endpoint")
}
