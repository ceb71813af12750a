//! With c10d the order of the nodes is not their index, whatever the flags say.

use super::prelude::*;

const ID: &str = "flags-of-other-backend";

pub(super) const RULE: Rule = Rule {
    id: ID,
    chapter: Chapter::Rest,
    sees: "WARN: `--node-rank` with c10d, which ignores it",
    fails: "flags-of-other-backend.yaml",
    passes: "good-job-c10d.yaml",
    find: Find::Launch(&[Tool::Torchrun], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    call.in_command(ID).filter(|_| call.are_to_meet())
}
