//! The other of two equal keys has no effect.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "duplicate-key",
    sees: "WARN: a key is twice in a map",
    fails: "duplicate-key.yaml",
    passes: "good-job-static.yaml",
    find: Find::Files(|manifests| manifests.while_reading(RULE.id)),
};
