//! A field at a wrong place has no effect, or the API server rejects the object, as `kubectl` asks it to.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "unknown-field",
    sees: "FAIL: `backoffLimit` in the spec of a PyTorchJob, `rdzvEndpoint` in its `elasticPolicy`, \
           `volumeMounts` in a TrainJob's `trainer`, `subdomain` in the spec of a Job, `env` beside \
           `containers` or below `imagePullSecrets`; `env` or `command` that is no list",
    fails: "unknown-field.yaml",
    passes: "good-indexed-job.yaml",
    find: Find::Files(|manifests| {
        let of_services = manifests.of_kind("Service").flat_map(|service| {
            let spec = service.value.get("spec").filter(|_| service.api == "v1");
            spec.map_or_else(Vec::new, |spec| of(spec, "service", &service.place("spec")))
        });
        manifests.pods.iter().flat_map(find).chain(of_services).collect()
    }),
};

/// The parts of objects: a key, a name, and the fields. `[]` marks a list. Behind a colon stands the part
/// that the field is.
#[rustfmt::skip]
const PARTS: &[(&str, &str, &str)] = &[
    ("pod", "a pod's spec", "volumes[]:volume initContainers[]:container containers:container \
        ephemeralContainers[] restartPolicy dnsPolicy hostNetwork nodeSelector \
        terminationGracePeriodSeconds activeDeadlineSeconds serviceAccountName serviceAccount \
        hostIPC nodeName hostPID shareProcessNamespace automountServiceAccountToken securityContext \
        imagePullSecrets[]:secret os hostname subdomain affinity:affinity schedulerName \
        tolerations[]:toleration hostAliases[]:alias priorityClassName priority dnsConfig hostUsers \
        readinessGates[] runtimeClassName enableServiceLinks preemptionPolicy overhead \
        resourceClaims[] topologySpreadConstraints[] setHostnameAsFQDN schedulingGates[] resources \
        hostnameOverride workloadRef"),
    ("volume", "a volume", "name hostPath:path emptyDir:empty gcePersistentDisk awsElasticBlockStore \
        gitRepo secret nfs iscsi glusterfs persistentVolumeClaim:claim rbd flexVolume cinder cephfs \
        flocker downwardAPI fc azureFile configMap vsphereVolume quobyte azureDisk \
        photonPersistentDisk projected portworxVolume scaleIO storageos csi ephemeral image"),
    ("container", "a container", "name image command[] args[] workingDir ports[]:port \
        envFrom[]:source env[]:variable resources:resources resizePolicy[] restartPolicy \
        restartPolicyRules[] volumeMounts[]:mount volumeDevices[] livenessProbe:probe \
        readinessProbe:probe startupProbe:probe lifecycle terminationMessagePath \
        terminationMessagePolicy imagePullPolicy securityContext:security tty stdin stdinOnce"),
    ("secret", "an item of imagePullSecrets", "name"),
    ("affinity", "an affinity", "nodeAffinity podAffinity podAntiAffinity"),
    ("toleration", "a toleration", "key operator value effect tolerationSeconds"),
    ("alias", "an item of hostAliases", "ip hostnames[]"),
    ("path", "a hostPath", "path type"),
    ("empty", "an emptyDir", "medium sizeLimit"),
    ("claim", "a persistentVolumeClaim", "claimName readOnly"),
    ("port", "a port", "name hostPort containerPort protocol hostIP"),
    ("source", "an item of envFrom", "prefix configMapRef secretRef"),
    ("variable", "a variable", "name value valueFrom:from"),
    ("resources", "resources", "limits requests claims[]"),
    ("mount", "an item of volumeMounts", "name readOnly recursiveReadOnly mountPath subPath \
        mountPropagation subPathExpr"),
    ("probe", "a probe", "exec httpGet tcpSocket grpc initialDelaySeconds timeoutSeconds \
        periodSeconds successThreshold failureThreshold terminationGracePeriodSeconds"),
    ("security", "a securityContext", "capabilities privileged seLinuxOptions windowsOptions \
        runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation procMount \
        seccompProfile appArmorProfile"),
    ("from", "a valueFrom", "fieldRef resourceFieldRef configMapKeyRef secretKeyRef fileKeyRef"),
    ("job", "a Job's spec", "parallelism completions activeDeadlineSeconds podFailurePolicy \
        successPolicy backoffLimit backoffLimitPerIndex maxFailedIndexes selector manualSelector \
        template completionMode suspend managedBy ttlSecondsAfterFinished podReplacementPolicy"),
    ("stateful-set", "a StatefulSet's spec", "replicas selector template volumeClaimTemplates[] \
        serviceName podManagementPolicy updateStrategy revisionHistoryLimit minReadySeconds \
        persistentVolumeClaimRetentionPolicy ordinals"),
    ("deployment", "a Deployment's spec", "replicas selector template strategy updateStrategy \
        minReadySeconds revisionHistoryLimit paused progressDeadlineSeconds"),
    ("pytorch-job", "a PyTorchJob's spec", "pytorchReplicaSpecs runPolicy elasticPolicy nprocPerNode"),
    ("elastic", "an elasticPolicy", "minReplicas maxReplicas rdzvBackend rdzvPort rdzvHost rdzvId \
        rdzvConf standalone nProcPerNode maxRestarts metrics"),
    ("trainer", "a TrainJob's trainer", "image command[] args[] env[]:variable numNodes \
        resourcesPerNode:resources numProcPerNode"),
    ("service", "a Service's spec", "selector ports[]:service-port clusterIP clusterIPs[] type \
        externalIPs[] sessionAffinity loadBalancerIP loadBalancerSourceRanges[] externalName \
        externalTrafficPolicy healthCheckNodePort publishNotReadyAddresses sessionAffinityConfig \
        ipFamilies[] ipFamilyPolicy ipFamily topologyKeys[] allocateLoadBalancerNodePorts \
        loadBalancerClass internalTrafficPolicy trafficDistribution"),
    ("service-port", "a Service's port", "name protocol appProtocol port targetPort nodePort"),
];

/// The parts of their owner's spec, by makers.
const OWNERS: &[(Maker, &str, &str)] = &[
    (Maker::Job, "", "job"),
    (Maker::IndexedJob, "", "job"),
    (Maker::StatefulSet, "", "stateful-set"),
    (Maker::Deployment, "", "deployment"),
    (Maker::PyTorchJob, "", "pytorch-job"),
    (Maker::PyTorchJob, "/elasticPolicy", "elastic"),
    (Maker::TrainJob, "/spec/trainer", "trainer"),
];

fn find(pods: &Pods) -> Vec<Check> {
    let mut found = Vec::new();
    for (maker, at_owner, part) in OWNERS.iter().filter(|(maker, ..)| *maker == pods.maker) {
        let at = if *maker == Maker::TrainJob {
            pods.at("")
        } else {
            pods.of_owner(at_owner.trim_start_matches('/'))
        };
        found.extend(pods.owner.pointer(at_owner).map_or_else(Vec::new, |value| of(value, part, &at)));
    }
    if !pods.is_container && !matches!(pods.maker, Maker::Unknown | Maker::Slurm | Maker::Ray) {
        found.extend(of(&pods.spec, "pod", &pods.at("")));
    }
    found
}

/// What a part of an object, and the parts in it, must not have.
fn of(value: &Value, part: &str, at: &Location) -> Vec<Check> {
    let Some((_, what, fields)) = PARTS.iter().find(|(key, ..)| *key == part) else { return Vec::new() };
    let below = |name: &str| {
        let field = format!("{}.{name}", at.field.trim_end_matches('.'));
        Location { field, ..at.clone() }
    };
    let mut unknown = Vec::new();
    let mut found = Vec::new();
    for (name, inner) in value.as_object().into_iter().flatten() {
        let known = fields.split_whitespace().map(|field| field.split_once(':').unwrap_or((field, "")));
        let mut known =
            known.map(|(field, part)| (field.trim_end_matches("[]"), field.ends_with("[]"), part));
        let Some((_, is_list, part)) = known.find(|(field, ..)| field == name) else {
            // Other names may come from a merge of YAML, or from a tool that fills the file in.
            unknown.extend(name.bytes().all(|b| b.is_ascii_alphanumeric()).then_some(name.as_str()));
            continue;
        };
        if is_list && (inner.is_object() || inner.as_str().is_some_and(|text| !is_placeholder(text))) {
            let evidence = format!("`{name}` of {what} must be a list: the API server rejects the object");
            found.push(Check::fail(evidence, "- in front of each item").at(below(name)));
        }
        let items = inner.as_array().map_or(std::slice::from_ref(inner), Vec::as_slice);
        for (n, item) in items.iter().enumerate() {
            let place = if inner.is_array() { below(&format!("{name}[{n}]")) } else { below(name) };
            found.extend(of(item, part, &place));
        }
    }
    if let [first, ..] = unknown.as_slice() {
        let (names, are) =
            (unknown.join("`, `"), if unknown.len() > 1 { "are no fields" } else { "is no field" });
        let evidence = format!("`{names}` {are} of {what}: kubectl rejects the object, or it has no effect");
        found.insert(0, Check::fail(evidence, "put it where it belongs").at(below(first)));
    }
    found
}
