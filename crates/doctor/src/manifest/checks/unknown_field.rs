//! A field at a wrong place has no effect, or the API server rejects the object, as `kubectl apply` asks it to.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "unknown-field",
    sees: "FAIL: `backoffLimit` in the spec of a PyTorchJob, `volumeMounts` in a TrainJob's `trainer`, \
           `subdomain` in the spec of a Job, `env` beside `containers`",
    fails: "unknown-field.yaml",
    passes: "good-indexed-job.yaml",
    find: Find::Pods(|_, pods| find(pods)),
};

#[rustfmt::skip]
const CONTAINER: &[&str] = &[
    "name", "image", "command", "args", "workingDir", "ports", "envFrom", "env", "resources", "resizePolicy",
    "restartPolicy", "restartPolicyRules", "volumeMounts", "volumeDevices", "livenessProbe", "readinessProbe",
    "startupProbe", "lifecycle", "terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy",
    "securityContext", "stdin", "stdinOnce", "tty",
];

#[rustfmt::skip]
const POD: &[&str] = &[
    "volumes", "initContainers", "containers", "ephemeralContainers", "restartPolicy", "dnsPolicy",
    "terminationGracePeriodSeconds", "activeDeadlineSeconds", "nodeSelector", "serviceAccountName",
    "serviceAccount", "automountServiceAccountToken", "nodeName", "hostNetwork", "hostPID", "hostIPC",
    "shareProcessNamespace", "securityContext", "imagePullSecrets", "hostname", "subdomain", "affinity",
    "schedulerName", "tolerations", "hostAliases", "priorityClassName", "priority", "dnsConfig", "hostUsers",
    "readinessGates", "runtimeClassName", "enableServiceLinks", "preemptionPolicy", "overhead", "os",
    "topologySpreadConstraints", "setHostnameAsFQDN", "schedulingGates", "resourceClaims", "resources",
    "hostnameOverride", "workloadRef",
];

#[rustfmt::skip]
const JOB: &[&str] = &[
    "parallelism", "completions", "activeDeadlineSeconds", "podFailurePolicy", "successPolicy", "backoffLimit",
    "backoffLimitPerIndex", "maxFailedIndexes", "selector", "manualSelector", "template", "completionMode",
    "ttlSecondsAfterFinished", "suspend", "podReplacementPolicy", "managedBy",
];

#[rustfmt::skip]
const STATEFUL_SET: &[&str] = &[
    "replicas", "selector", "template", "volumeClaimTemplates", "serviceName", "podManagementPolicy",
    "updateStrategy", "revisionHistoryLimit", "minReadySeconds", "persistentVolumeClaimRetentionPolicy",
    "ordinals",
];

const PYTORCH_JOB: &[&str] = &["pytorchReplicaSpecs", "runPolicy", "elasticPolicy", "nprocPerNode"];

const TRAINER: &[&str] =
    &["image", "command", "args", "env", "numNodes", "resourcesPerNode", "numProcPerNode"];

fn find(pods: &Pods) -> Vec<Check> {
    if matches!(pods.maker, Maker::Unknown | Maker::Slurm | Maker::Ray) {
        return Vec::new();
    }
    let of = |value: &Value, known: &[&str], what: &str, at: Location| {
        let name = value.as_object()?.keys().find(|name| !is_known(name, known))?;
        let evidence =
            format!("`{name}` is no field of {what}: kubectl rejects the object, or it has no effect");
        let place = Location { field: format!("{}.{name}", at.field.trim_end_matches('.')), ..at };
        Some(Check::fail(evidence, format!("{name} at the place where it belongs")).at(place))
    };
    let owner = match pods.maker {
        Maker::Job | Maker::IndexedJob => of(&pods.owner, JOB, "a Job's spec", pods.of_owner("")),
        Maker::StatefulSet => of(&pods.owner, STATEFUL_SET, "a StatefulSet's spec", pods.of_owner("")),
        Maker::PyTorchJob => of(&pods.owner, PYTORCH_JOB, "a PyTorchJob's spec", pods.of_owner("")),
        Maker::TrainJob => pods
            .owner
            .pointer("/spec/trainer")
            .and_then(|trainer| of(trainer, TRAINER, "a TrainJob's trainer", pods.at(""))),
        _ => None,
    };
    let mut found: Vec<Check> = owner.into_iter().collect();
    if !pods.is_container {
        found.extend(of(&pods.spec, POD, "a pod's spec", pods.at("")));
        let containers = pods.init_containers.iter().chain(&pods.containers);
        found.extend(
            containers.filter_map(|own| of(&own.value, CONTAINER, "a container", pods.at(&own.at("")))),
        );
    }
    found
}

/// Other names may come from a merge of YAML or a tool that fills the file in.
fn is_known(name: &str, known: &[&str]) -> bool {
    known.contains(&name) || !name.bytes().all(|b| b.is_ascii_alphanumeric())
}
