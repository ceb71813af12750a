//! Kinds without pods or names have nothing that could make a job hang.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "skipped",
    sees: "PASS: a kind without pods or names",
    fails: "nothing-to-look-at.yaml",
    passes: "good-job-static.yaml",
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let check = |object: &Object| {
        let of_names = matches!(object.kind.as_str(), "Service" | "NetworkPolicy");
        let none = manifests.of_object(object.number).next().is_none() && object.has_no_pods() && !of_names;
        none.then(|| Check::pass("a kind without pods or names; nothing to check").at(object.place("kind")))
    };
    manifests.objects.iter().filter_map(check).collect()
}
