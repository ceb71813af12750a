//! What an unknown maker gives to its pods (variables, names, an index) is not known either.

use super::prelude::*;

const ID: &str = "unknown-kind";

pub(super) const RULE: Rule = Rule {
    id: ID,
    chapter: Chapter::Rest,
    sees: "WARN: only the pod templates of this kind were looked at",
    remedy: "check the rest by hand",
    fails: "unknown-kind.yaml",
    passes: "good-job-static.yaml",
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let check = |(number, object): (usize, &Object)| {
        let is_unknown = manifests.of_object(number).next()?.maker == Maker::Unknown;
        is_unknown.then(|| {
            let evidence =
                format!("the kind {} is not known; only its pod templates were looked at", object.kind);
            let remedy = "check by hand which variables, names and index it gives to its pods";
            Check::warn(ID, evidence, remedy).at(object.place("kind"))
        })
    };
    manifests.objects.iter().enumerate().filter_map(check).collect()
}
