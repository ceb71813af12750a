//! What is filled in later was not checked.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "template",
    sees: "WARN: a Helm template, or placeholders such as `${NAME}`: not checked, or only in part",
    examples: ["blanks.yaml", "good-job-static.yaml"],
    find: Find::Files(|manifests| manifests.while_reading(RULE.id)),
};
