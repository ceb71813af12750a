//! With c10d the order of the nodes is not their index, whatever the flags say.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "flags-of-other-backend",
    sees: "WARN: `--node-rank` with c10d, which ignores it",
    examples: ["flags-of-other-backend.yaml", "good-job-c10d.yaml"],
    find: Find::Torchrun(|call| call.in_command(RULE.id).filter(|_| call.are_to_meet())),
};
