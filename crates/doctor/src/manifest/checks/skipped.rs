//! Kinds without pods or names have nothing that could make a job hang, and other documents are no manifests.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "skipped",
    sees: "PASS: a kind without pods or names; documents that are no manifests",
    examples: ["nothing-to-look-at.yaml", "good-job-static.yaml"],
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let check = |object: &Object| {
        let of_names = matches!(object.kind.as_str(), "Service" | "NetworkPolicy");
        let none = manifests.of_object(object.number).next().is_none() && object.has_no_pods() && !of_names;
        none.then(|| Check::pass("a kind without pods or names; nothing to check").at(object.place("kind")))
    };
    let others = manifests.while_reading(RULE.id);
    let first = others.first().filter(|_| !manifests.objects.is_empty()).and_then(|it| it.place.clone());
    let of_others = first.map(|place| {
        let are = counted(others.len() as u64, "document is no object", "documents are no objects");
        let place = Location { object: "-".into(), field: "-".into(), ..place };
        Check::pass(format!("{are} of Kubernetes: not looked at")).at(place)
    });
    manifests.objects.iter().filter_map(check).chain(of_others).collect()
}
