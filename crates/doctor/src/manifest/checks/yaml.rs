//! What cannot be read was not checked.

use super::prelude::*;

const ID: &str = "yaml";

pub(super) const RULE: Rule = Rule {
    id: ID,
    chapter: Chapter::Rest,
    sees: "FAIL: a document that cannot be read. WARN: no Kubernetes object",
    fails: "yaml.yaml",
    passes: "good-job-static.yaml",
    find: Find::Files(|manifests| manifests.while_reading(ID)),
};
