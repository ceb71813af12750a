//! torchrun reads only its own flags in front of the script, and refuses any other: the node never joins.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "unknown-flag",
    sees: "FAIL: `torchrun --nproc-per-gpu=4 train.py`, `torchrun --config=c.yaml train.py`",
    examples: ["unknown-flag.yaml", "good-job-static.yaml"],
    find: Find::Torchrun(|call| call.in_command(RULE.id)),
};
