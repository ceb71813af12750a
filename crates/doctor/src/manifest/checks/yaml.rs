//! What cannot be read was not checked.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "yaml",
    sees: "FAIL: a document that cannot be read. WARN: no Kubernetes object",
    fails: "yaml.yaml",
    passes: "good-job-static.yaml",
    find: Find::Files(|manifests| manifests.while_reading(RULE.id)),
};
