//! What a host name means for the pods that use it: themselves, another pod, a Service, or nothing.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Manifests;
use super::objects::{Object, list, texts};
use super::pods::{Hosts, LabelIs, Pods};
use rallypoint_node::makers::Maker;
use rallypoint_shell::{Part, Source, Text};

/// What a host name means.
#[derive(Debug)]
pub(crate) enum Target<'m> {
    /// The pod that uses the name.
    Own,
    /// One pod of these.
    Pod { pods: &'m Pods, is_first: bool, index: u64 },
    /// A Service in the files.
    Service(&'m Object),
    /// The Service that gives the pods their names, and so is over all of them; it is not in the files.
    Governing,
    /// It certainly names nothing; the text is the reason.
    Nothing(String),
    /// The files have nothing with this name; another file may have it.
    Absent,
    /// An address, another namespace, or something unknowable.
    Elsewhere,
}

/// How many of these pods a Service or a policy selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    None,
    /// One of them.
    One,
    All,
}

/// Finds out what a host name means.
pub(crate) fn resolve<'m>(host: &Text, pods: &Pods, manifests: &'m Manifests) -> Target<'m> {
    // The pod's own name with a domain still means the pod itself.
    let labels = host.split('.');
    match labels[0].source() {
        Some(Source::HostName | Source::PodIp | Source::PodName) => return Target::Own,
        Some(_) => return Target::Elsewhere,
        None => {}
    }
    let known: Vec<Option<&str>> = labels.iter().map(Text::literal).collect();
    let (Some(first), rest) = (known[0], &known[1..]) else { return Target::Elsewhere };
    let whole = host.literal().unwrap_or_default();
    if first.eq_ignore_ascii_case("localhost") || whole == "0.0.0.0" || is_loopback(whole) {
        return Target::Own;
    }
    if whole.parse::<std::net::IpAddr>().is_ok() || whole.starts_with('[') || first.is_empty() {
        return Target::Elsewhere;
    }
    let second = match rest.first() {
        None => None,
        Some(Some(second)) => Some(*second),
        // No namespace means the pod's own.
        Some(None) => {
            let of_namespace =
                labels[1].parts().iter().all(|part| matches!(part, Part::Of(Source::Namespace)));
            if of_namespace { None } else { return Target::Elsewhere }
        }
    };
    let Some(second) = second else { return one_label(first, pods, manifests) };
    let of_other = |namespace: &str| pods.namespace.as_deref().is_some_and(|own| own != namespace);
    match rest.get(1) {
        Some(Some(namespace)) if *namespace != "svc" && of_other(namespace) => {
            match two_labels(first, second, pods, manifests) {
                Target::Pod { pods: own, .. } if own.object == pods.object => Target::Nothing(format!(
                    "the pods are in the namespace `{}`",
                    pods.namespace.as_deref().unwrap_or_default()
                )),
                _ => Target::Elsewhere,
            }
        }
        Some(Some("svc")) if pods.namespace.as_deref() == Some(second) => {
            match two_labels(first, second, pods, manifests) {
                Target::Elsewhere => one_label(first, pods, manifests),
                target => target,
            }
        }
        _ => two_labels(first, second, pods, manifests),
    }
}

fn is_loopback(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok_and(|addr| addr.is_loopback())
}

fn near<'m>(pods: &Pods, manifests: &'m Manifests) -> impl Iterator<Item = &'m Pods> {
    let namespace = pods.namespace.clone();
    manifests.pods.iter().filter(move |other| match (&namespace, &other.namespace) {
        (Some(own), Some(other)) => own == other,
        _ => true,
    })
}

/// The pod with a host name, its number, and whether it is the first of all.
fn with_host<'m>(
    host: &str,
    mut all: impl Iterator<Item = &'m Pods>,
) -> Option<Result<(&'m Pods, u64, bool), String>> {
    let mut too_high = None;
    let found = all.find_map(|pods| {
        pods.hosts.iter().find_map(|hosts| {
            if hosts.count == Some(0) {
                return (host == hosts.begin).then_some((pods, 0, hosts.has_first));
            }
            let index: u64 = host.strip_prefix(hosts.begin.as_str())?.parse().ok()?;
            if hosts.count.is_some_and(|count| index >= count) {
                too_high = Some(format!(
                    "{} has {} pods, numbered from 0",
                    pods.place.object,
                    hosts.count.unwrap_or_default()
                ));
                return None;
            }
            Some((pods, index, index == 0 && hosts.has_first))
        })
    });
    match (found, too_high) {
        (Some(found), _) => Some(Ok(found)),
        (None, Some(why)) => Some(Err(why)),
        (None, None) => None,
    }
}

fn one_label<'m>(name: &str, pods: &Pods, manifests: &'m Manifests) -> Target<'m> {
    if let Some(service) = manifests.service(name, pods) {
        return Target::Service(service);
    }
    if pods.subdomain.as_deref() == Some(name) {
        return Target::Governing;
    }
    let per_pod = |other: &&Pods| {
        other.facts().services.iter().any(|service| !service.of_all && service.name.contains("{index}"))
    };
    match with_host(name, near(pods, manifests).filter(per_pod)) {
        Some(Ok((pods, index, is_first))) => return Target::Pod { pods, is_first, index },
        Some(Err(why)) => return Target::Nothing(why),
        None => {}
    }
    let is_made = |other: &Pods| {
        let is_subdomain = other.subdomain.as_deref() == Some(name);
        other.facts().services.iter().any(|service| {
            is_subdomain && service.of_all && other.has(service.when)
                || !other.name.is_empty() && service.name.replace("{name}", &other.name) == name
        })
    };
    if near(pods, manifests).any(is_made) {
        return Target::Elsewhere;
    }
    // A Job and a Deployment give no pod a number.
    let is_numbered = |own: &Pods| {
        let number = name.strip_prefix(own.name.as_str()).and_then(|rest| rest.strip_prefix('-'));
        number.is_some_and(|number| number.parse::<u32>().is_ok()) && !own.is_open && !own.name.is_empty()
    };
    if matches!(pods.maker, Maker::Job | Maker::Deployment) && pods.hosts.is_empty() && is_numbered(pods) {
        return no_pod(name, pods);
    }
    // A pod's own name does not resolve without its domain, unless the resolver has search domains.
    let searches =
        pods.spec.pointer("/dnsConfig/searches").is_some() || pods.spec.get("hostAliases").is_some();
    let numbered = with_host(
        name,
        near(pods, manifests)
            .filter(|other| other.object == pods.object && other.place.object == pods.place.object),
    );
    // The name of a Pod that stands alone is its host name.
    let of_other = || near(pods, manifests).find(|other| other.maker == Maker::Pod && other.name == name);
    let numbered = numbered.or_else(|| of_other().map(|other| Ok((other, 0, true))));
    match numbered {
        Some(Ok((other, ..))) if !searches => {
            let whole = match &other.subdomain {
                Some(subdomain) => format!("its name is `{name}.{subdomain}`"),
                None => "it has no name: spec.subdomain is missing".into(),
            };
            Target::Nothing(format!("a pod's host name alone does not resolve; {whole}"))
        }
        _ if name.contains('$') || searches => Target::Elsewhere,
        _ => Target::Absent,
    }
}

fn no_pod<'m>(host: &str, pods: &Pods) -> Target<'m> {
    let kind = pods.facts().name;
    Target::Nothing(format!("the pods of a {kind} have random names, and none is called `{host}`"))
}

fn two_labels<'m>(host: &str, second: &str, pods: &Pods, manifests: &'m Manifests) -> Target<'m> {
    let behind = || near(pods, manifests).filter(|other| other.subdomain.as_deref() == Some(second));
    match with_host(host, behind()) {
        Some(Ok((pods, index, is_first))) => return Target::Pod { pods, is_first, index },
        Some(Err(why)) => return Target::Nothing(why),
        None => {}
    }
    // A Service with its namespace.
    let of_namespace = manifests.of_kind("Service").find(|service| {
        service.name == host && service.namespace.as_deref().is_some_and(|name| name == second)
    });
    if let Some(service) = of_namespace {
        return Target::Service(service);
    }
    if behind().any(|other| !other.hosts.is_empty() && !other.is_open)
        && behind().all(|other| !other.name.is_empty())
    {
        let begins = behind().flat_map(|other| other.hosts.iter().take(1));
        let names: Vec<String> = begins.map(Hosts::first).collect();
        return Target::Nothing(format!("the pods behind `{second}` are called `{}`, …", names.join("`, `")));
    }
    if behind().any(|other| other.name.is_empty() || other.is_open) {
        return Target::Elsewhere;
    }
    if let Some(service) = manifests.service(second, pods) {
        // Pods without numbers have random names there.
        let mut taken = near(pods, manifests).filter(|other| takes(service, other) != Taken::None).peekable();
        if taken.peek().is_some() && taken.all(|other| other.hosts.is_empty()) {
            return no_pod(host, pods);
        }
        return Target::Nothing(format!(
            "no pod has `{second}` as its subdomain, so none is called `{host}` there"
        ));
    }
    let own = with_host(host, near(pods, manifests).filter(|other| other.object == pods.object));
    if let Some(Ok((other, ..))) = own
        && other.spec.get("hostname").is_none()
        && pods.namespace.as_deref() != Some(second)
    {
        return match &other.subdomain {
            Some(subdomain) => Target::Nothing(format!("the pod's name is `{host}.{subdomain}`")),
            None => Target::Nothing(format!(
                "the pods have no names behind `{second}`: spec.subdomain is missing"
            )),
        };
    }
    // No Service of another namespace has a number. Only Kubernetes' own kinds set no such name themselves.
    let is_numbered = host.rsplit_once('-').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
    if is_numbered && pods.are_of_kubernetes() { Target::Absent } else { Target::Elsewhere }
}

/// The selector of a Service.
pub(crate) fn selector(service: &Object) -> BTreeMap<String, String> {
    texts(service.value.pointer("/spec/selector"))
}

pub(crate) fn is_headless(service: &Object) -> bool {
    service.value.pointer("/spec/clusterIP").and_then(Value::as_str) == Some("None")
}

/// How many of these pods a Service selects.
pub(crate) fn takes(service: &Object, pods: &Pods) -> Taken {
    let selector = selector(service);
    if selector.is_empty() || !service.shares_namespace(pods.namespace.as_deref()) {
        return Taken::None;
    }
    taken_by_labels(&selector, pods)
}

fn taken_by_labels(selector: &BTreeMap<String, String>, pods: &Pods) -> Taken {
    let mut taken = Taken::All;
    for (key, value) in selector {
        match pods.label(key) {
            Some(LabelIs::Text(text)) if text.eq_ignore_ascii_case(value) => {}
            None | Some(LabelIs::Text(_)) => return Taken::None,
            Some(LabelIs::Index | LabelIs::PodName) => taken = Taken::One,
            Some(LabelIs::Later) => {}
        }
    }
    taken
}

/// Whether a selector with `matchLabels` and `matchExpressions` selects these pods. An empty selector selects
/// all.
pub(crate) fn is_selected(selector: Option<&Value>, pods: &Pods) -> bool {
    let Some(selector) = selector else { return true };
    let labels = texts(selector.pointer("/matchLabels"));
    let expressions = list(selector, "/matchExpressions");
    let holds = |expression: &Value| {
        let text = |field: &str| expression.get(field).and_then(Value::as_str).unwrap_or_default();
        let values = list(expression, "/values");
        let label = pods.label(text("key"));
        let among = match label {
            Some(LabelIs::Text(text)) => values.iter().any(|value| value.as_str() == Some(text)),
            Some(_) => true,
            None => false,
        };
        match text("operator") {
            "In" => among,
            "NotIn" => !among,
            "Exists" => label.is_some(),
            "DoesNotExist" => label.is_none(),
            _ => false,
        }
    };
    taken_by_labels(&labels, pods) != Taken::None && expressions.iter().all(holds)
}
