//! A field at a wrong place has no effect, or the API server rejects the object, as `kubectl` asks it to.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "unknown-field",
    sees: "FAIL: `backoffLimit` in the spec of a PyTorchJob, `rdzvEndpoint` in its `elasticPolicy`, \
           `volumeMounts` in a TrainJob's `trainer`, `subdomain` in the spec of a Job, `env` beside \
           `containers`",
    fails: "unknown-field.yaml",
    passes: "good-indexed-job.yaml",
    find: Find::Pods(|_, pods| find(pods)),
};

const CONTAINER: &str = "name image command args workingDir ports envFrom env resources resizePolicy \
    restartPolicy restartPolicyRules volumeMounts volumeDevices livenessProbe readinessProbe startupProbe \
    lifecycle terminationMessagePath terminationMessagePolicy imagePullPolicy securityContext tty stdin \
    stdinOnce";

const POD: &str = "volumes initContainers containers ephemeralContainers restartPolicy dnsPolicy \
    hostNetwork nodeSelector terminationGracePeriodSeconds activeDeadlineSeconds serviceAccountName \
    serviceAccount hostIPC nodeName hostPID shareProcessNamespace automountServiceAccountToken \
    securityContext imagePullSecrets os hostname subdomain affinity schedulerName tolerations hostAliases \
    priorityClassName priority dnsConfig hostUsers readinessGates runtimeClassName enableServiceLinks \
    preemptionPolicy overhead resourceClaims topologySpreadConstraints setHostnameAsFQDN schedulingGates \
    resources hostnameOverride workloadRef";

const JOB: &str = "parallelism completions activeDeadlineSeconds podFailurePolicy successPolicy \
    backoffLimit backoffLimitPerIndex maxFailedIndexes selector manualSelector template completionMode \
    suspend managedBy ttlSecondsAfterFinished podReplacementPolicy";

const PYTORCH_JOB: &str = "pytorchReplicaSpecs runPolicy elasticPolicy nprocPerNode";

const POLICY: &str = "minReplicas maxReplicas rdzvBackend rdzvPort rdzvHost rdzvId rdzvConf standalone \
    nProcPerNode maxRestarts metrics";

const TRAINER: &str = "image command args env numNodes resourcesPerNode numProcPerNode";

/// The parts of objects that are known, by their makers: where, what, and its fields.
const PARTS: &[(Maker, &str, &str, &str)] = &[
    (Maker::Job, "", "a Job's spec", JOB),
    (Maker::IndexedJob, "", "a Job's spec", JOB),
    (Maker::PyTorchJob, "", "a PyTorchJob's spec", PYTORCH_JOB),
    (Maker::PyTorchJob, "/elasticPolicy", "an elasticPolicy", POLICY),
    (Maker::TrainJob, "/spec/trainer", "a TrainJob's trainer", TRAINER),
];

fn find(pods: &Pods) -> Vec<Check> {
    let of = |value: &Value, known: &str, what: &str, at: Location| {
        // Other names may come from a merge of YAML, or from a tool that fills the file in.
        let is_known = |name: &str| {
            known.split(' ').any(|field| field == name) || !name.bytes().all(|b| b.is_ascii_alphanumeric())
        };
        let name = value.as_object()?.keys().find(|name| !is_known(name))?;
        let evidence =
            format!("`{name}` is no field of {what}: kubectl rejects the object, or it has no effect");
        let field = format!("{}.{name}", at.field.trim_end_matches('.'));
        Some(Check::fail(evidence, "put it where it belongs").at(Location { field, ..at }))
    };
    let mut found = Vec::new();
    for (maker, part, what, known) in PARTS.iter().filter(|(maker, ..)| *maker == pods.maker) {
        let at =
            if *maker == Maker::TrainJob { pods.at("") } else { pods.of_owner(part.trim_start_matches('/')) };
        found.extend(pods.owner.pointer(part).and_then(|value| of(value, known, what, at)));
    }
    if !pods.is_container && !matches!(pods.maker, Maker::Unknown | Maker::Slurm | Maker::Ray) {
        found.extend(of(&pods.spec, POD, "a pod's spec", pods.at("")));
        for own in pods.init_containers.iter().chain(&pods.containers) {
            found.extend(of(&own.value, CONTAINER, "a container", pods.at(&own.at(""))));
        }
    }
    found
}
