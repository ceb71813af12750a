//! The values of a pod's variables and fields, from the table of makers.

use super::pods::{LabelIs, Pods};
use rallypoint_node::makers::{Holds, Maker};
use rallypoint_shell::{Part, Source, Text};

/// The variables that the maker injects.
pub(crate) fn given(pods: &Pods) -> Vec<(String, Vec<Text>)> {
    let mut made = Vec::new();
    for variable in pods.facts().variables.iter().filter(|variable| pods.has(variable.when)) {
        let names: Vec<String> = if variable.name.contains("{role}") {
            let role =
                |role: &String| variable.name.replace("{role}", &role.to_uppercase().replace('-', "_"));
            pods.roles.iter().map(role).collect()
        } else {
            vec![variable.name.to_owned()]
        };
        for name in names {
            made.push((name.clone(), vec![held(pods, variable.holds, &name)]));
        }
    }
    made
}

fn held(pods: &Pods, holds: Holds, name: &str) -> Text {
    let unknown = || Text::unknown(format!("${name}"), false);
    let number = |number: Option<u64>| number.map_or_else(unknown, |number| Text::known(number.to_string()));
    let elastic =
        |key: &str| pods.owner.pointer(&format!("/elasticPolicy/{key}")).and_then(super::objects::scalar);
    match holds {
        Holds::Index => Text::of(Part::Of(Source::Index)),
        Holds::IndexInRole => Text::of(Part::Of(index_in_role(pods))),
        Holds::Nodes
            if name == "PET_NNODES"
                && (elastic("minReplicas").is_some() || elastic("maxReplicas").is_some()) =>
        {
            let (min, max) = (elastic("minReplicas"), elastic("maxReplicas"));
            let min = min.clone().or_else(|| max.clone()).unwrap_or_default();
            Text::known(format!("{min}:{}", max.unwrap_or_else(|| min.clone())))
        }
        Holds::Nodes => number(pods.nodes),
        Holds::World => {
            let each =
                pods.processes.as_deref().map_or(Some(1), |each| Some(each.parse::<u64>().unwrap_or(1)));
            number(pods.nodes.zip(each).map(|(nodes, each)| nodes.saturating_mul(each)))
        }
        Holds::Processes => pods.processes.clone().map_or_else(unknown, Text::known),
        Holds::Master if pods.name.is_empty() || pods.facts().master.is_empty() => unknown(),
        Holds::Master => Text::known(pods.facts().master.replace("{name}", &pods.name)),
        Holds::Endpoint => {
            let host = elastic("rdzvHost").unwrap_or_else(|| format!("{}-worker-0", pods.name));
            Text::known(format!("{host}:{}", elastic("rdzvPort").unwrap_or_else(|| "23456".into())))
        }
        Holds::Port(port) => Text::known(port.to_string()),
        Holds::Backend(usual) => Text::known(elastic("rdzvBackend").unwrap_or_else(|| usual.into())),
        Holds::Hosts | Holds::Other => unknown(),
    }
}

/// An index in a role is the index of the node only if there is no other role.
fn index_in_role(pods: &Pods) -> Source {
    if pods.is_alone { Source::Index } else { Source::IndexInRole }
}

/// The value of `valueFrom.fieldRef`.
pub(crate) fn field(pods: &Pods, path: &str) -> Text {
    let of = |source| Text::of(Part::Of(source));
    match path {
        "metadata.name" => of(Source::PodName),
        "metadata.uid" => of(Source::PodUid),
        "metadata.namespace" => pods.namespace.as_ref().map_or_else(|| of(Source::Namespace), Text::known),
        "status.podIP" | "status.podIPs" => of(Source::PodIp),
        "spec.nodeName" | "spec.serviceAccountName" | "status.hostIP" | "status.hostIPs" => {
            Text::unknown(format!("$({path})"), false)
        }
        _ => match quoted(path) {
            Some((what, key)) => labelled(pods, what, key),
            // The API server rejects the object.
            None => Text::unknown(format!("$({path})"), false),
        },
    }
}

fn labelled(pods: &Pods, what: &str, key: &str) -> Text {
    const UIDS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
    let of = |source| Text::of(Part::Of(source));
    let in_child_job = matches!(pods.maker, Maker::JobSet | Maker::TrainJob);
    match pods.label(key) {
        // The only Job of its role has number 0, in each of its pods.
        Some(LabelIs::Later) if key == "jobset.sigs.k8s.io/job-index" && pods.in_unit == pods.count => {
            Text::known("0")
        }
        Some(LabelIs::Text(text)) => Text::known(text),
        Some(LabelIs::Index)
            if matches!(pods.maker, Maker::IndexedJob | Maker::StatefulSet | Maker::LeaderWorkerSet) =>
        {
            of(Source::Index)
        }
        Some(LabelIs::Index) => of(index_in_role(pods)),
        Some(LabelIs::PodName) => of(Source::PodName),
        Some(LabelIs::Later) if UIDS.contains(&key) && in_child_job && !pods.is_alone => {
            of(Source::ChildJobUid)
        }
        Some(LabelIs::Later) if UIDS.contains(&key) || key.ends_with("-uid") => of(Source::RunUid),
        None if !may_come_later(pods, key) => Text::of(Part::Unset(format!("{what} {key}"))),
        Some(LabelIs::Later) | None => Text::unknown(format!("$({key})"), false),
    }
}

/// Whether something else than the template and the maker may set this label. Nothing else sets one of
/// Kubernetes itself, or one without a domain.
fn may_come_later(pods: &Pods, key: &str) -> bool {
    const KUBERNETES: [&str; 3] =
        ["batch.kubernetes.io/", "apps.kubernetes.io/", "statefulset.kubernetes.io/"];
    pods.is_open || key.contains('.') && !KUBERNETES.iter().any(|domain| key.starts_with(domain))
}

/// What `metadata.labels['KEY']` reads, and the key.
fn quoted(path: &str) -> Option<(&'static str, &str)> {
    let label = path.strip_prefix("metadata.labels[").map(|rest| ("label", rest));
    let (what, rest) = label.or_else(|| Some(("annotation", path.strip_prefix("metadata.annotations[")?)))?;
    Some((what, rest.strip_suffix(']')?.trim_matches(['\'', '"'])))
}
