//! Kubernetes rejects some names. A host name ends after 63 characters, and with it the pod's number.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "object-name",
    sees: "FAIL: capital letters or `_` in a name; a pod's host name of more than 63 characters; an image \
           with an empty part or a blank in its name",
    examples: ["object-name.yaml", "good-job-static.yaml"],
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let named = manifests.objects.iter().filter(|object| {
        object.kind == "Service" || manifests.of_object(object.number).any(|it| !it.are_tasks())
    });
    let of_object = |object: &Object| {
        let name = Some(object.name.as_str()).filter(|name| is_filled_in(name))?;
        let why = mistake(name, object.kind == "Service")?;
        Some(Check::fail(format!("`{name}` {why}"), REMEDY).at(object.place("metadata.name")))
    };
    let of_pods = |pods: &Pods| {
        let host = pods.hosts.iter().map(|hosts| match hosts.count {
            Some(0) => hosts.begin.clone(),
            count => format!("{}{}", hosts.begin, count.unwrap_or(1).saturating_sub(1)),
        });
        let host = host.filter(|host| is_filled_in(host)).find(|host| host.len() > 63)?;
        let evidence = format!(
            "the host name `{host}` has {} characters: after 63 it is cut off, and the pod's number with it",
            host.len()
        );
        Some(Check::fail(evidence, REMEDY).at(pods.at("")))
    };
    let of_container = |(pods, container): (&Pods, &Container)| {
        let name = container.value.get("name").and_then(Value::as_str).filter(|name| is_filled_in(name))?;
        let why = mistake(name, false)?;
        Some(Check::fail(format!("`{name}` {why}"), REMEDY).at(pods.at(&container.at("name"))))
    };
    let of_image = |(pods, container): (&Pods, &Container)| {
        let image = container.value.get("image").and_then(Value::as_str).filter(|name| is_filled_in(name))?;
        let is_wrong = image.contains("//") || image.contains(char::is_whitespace) || image.starts_with('/');
        let evidence = format!("`{image}` is no name of an image: the pod stays in InvalidImageName");
        let remedy = "HOST/PATH:TAG, each part once";
        is_wrong.then(|| Check::fail(evidence, remedy).at(pods.at(&container.at("image"))))
    };
    let found = named.filter_map(of_object).chain(manifests.pods.iter().filter_map(of_pods));
    let containers = || manifests.containers().filter(|(pods, _)| !pods.are_tasks());
    found.chain(containers().filter_map(of_container)).chain(containers().filter_map(of_image)).collect()
}

const REMEDY: &str = "a shorter name of small letters, digits and `-`";

fn is_filled_in(name: &str) -> bool {
    !name.is_empty() && !is_placeholder(name)
}

/// Why Kubernetes rejects a name. The name of a Service is a label.
fn mistake(name: &str, is_label: bool) -> Option<&'static str> {
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let allowed = |c: char| ends(c) || c == '-' || c == '.' && !is_label;
    if !name.chars().all(allowed) {
        Some("is no name for Kubernetes, which rejects it: small letters, digits and `-` only")
    } else if !name.starts_with(ends) || !name.ends_with(ends) {
        Some("is no name for Kubernetes, which rejects it: it begins and ends with a letter or a digit")
    } else if is_label && name.len() > 63 {
        Some("is too long for a Service: 63 characters")
    } else {
        None
    }
}
