//! Kinds without pods or names have nothing that could make a job hang.

use super::prelude::*;

const ID: &str = "skipped";

pub(super) const RULE: Rule = Rule {
    id: ID,
    chapter: Chapter::Rest,
    sees: "PASS: a kind without pods or names",
    fails: "nothing-to-look-at.yaml",
    passes: "good-job-static.yaml",
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let check = |(number, object): (usize, &Object)| {
        let of_names = matches!(object.kind.as_str(), "Service" | "NetworkPolicy");
        let none = manifests.of_object(number).next().is_none() && object.has_no_pods() && !of_names;
        none.then(|| {
            Check::pass(ID, "a kind without pods or names; nothing to check").at(object.place("kind"))
        })
    };
    manifests.objects.iter().enumerate().filter_map(check).collect()
}
