//! A key that the backend ignores: the time limit stays at its default, and slow nodes come too late.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "rdzv-conf-keys",
    sees: "WARN: `--rdzv-conf=timeout=1800` with c10d, which ignores it",
    examples: ["rdzv-conf-timeout.yaml", "good-job-c10d.yaml"],
    find: Find::Torchrun(|call| call.in_command(RULE.id)),
};
