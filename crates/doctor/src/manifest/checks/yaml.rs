//! What cannot be read was not checked.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "yaml",
    sees: "FAIL: a document that cannot be read. WARN: a key that is twice in a map; no Kubernetes object, \
           and none beside it",
    examples: ["yaml.yaml", "good-job-static.yaml"],
    find: Find::Files(|manifests| {
        let mut found = manifests.while_reading(RULE.id);
        // Beside manifests such a document is a configuration of something else.
        if manifests.objects.is_empty() {
            found.extend(manifests.while_reading("skipped"));
        }
        found
    }),
};
