//! What an unknown maker gives to its pods (variables, names, an index) is not known either.

use super::super::schemas;
use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "unknown-kind",
    sees: "WARN: a kind or version of which at most the pod templates were looked at",
    examples: ["unknown-kind.yaml", "good-job-static.yaml"],
    find: Find::After(find),
};

fn find(manifests: &Manifests, found: &[Check]) -> Vec<Check> {
    let check = |object: &Object| {
        let (kind, api) = (&object.kind, &object.api);
        let maker = Maker::of_kind(api, kind);
        let group = api.split_once('/').map_or("", |(group, _)| group);
        let known = maker != Maker::Unknown;
        let of_other = maker.group().filter(|own| !group.is_empty() && *own != group);
        let is_defined = manifests.definition(object).is_some();
        let what = match of_other {
            Some(own) if is_defined => format!("{kind} is known of {own}, not of {group}"),
            Some(own) => format!(
                "{kind} is known of {own}: the API server refuses one of {group}, unless a \
                 CustomResourceDefinition of that group is installed"
            ),
            None if known => format!("{kind} is not known of {api}"),
            None => format!("the kind {kind} is not known"),
        };
        let evidence = match manifests.of_object(object.number).next() {
            Some(_) if of_other.is_some() => format!("{what}; it was looked at as if it were that"),
            Some(pods) if pods.maker == Maker::Unknown => {
                format!("{what}; only its pod templates were looked at")
            }
            None if of_other.is_some() || !known && !object.has_no_pods() => {
                let how = if is_defined {
                    "only held against its CustomResourceDefinition"
                } else {
                    "not looked at"
                };
                format!("{what}; it was {how}")
            }
            _ => return None,
        };
        let is_refused = known && !group.is_empty() && !is_defined;
        let right = schemas::versions(kind).next().filter(|_| is_refused);
        let remedy = match right {
            Some(right) => {
                format!("apiVersion: {right}, if that is meant; or see that its operator is installed")
            }
            None => "check by hand which variables, names and index it gives to its pods".into(),
        };
        Some(Check::warn(evidence, remedy).at(object.place("kind")))
    };
    // `api-rejects` names the version that is known.
    let is_said = |object: &&Object| found.iter().any(|it| it.place == Some(object.place("apiVersion")));
    manifests.objects.iter().filter(|object| !is_said(object)).filter_map(check).collect()
}
