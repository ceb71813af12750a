//! A scheduler that admits the pods of a group together waits for as many as the group names. If fewer are
//! made, or the next one only when the one before is Ready, no pod starts.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "gang",
    sees: "FAIL: a PodGroup waits for more pods than it has, or than a StatefulSet makes at once",
    examples: ["gang.yaml", "good-gang.yaml"],
    find: Find::Files(|manifests| {
        let of_groups = manifests.of_kind("PodGroup").filter_map(|group| find(manifests, group));
        of_groups.chain(manifests.objects.iter().filter_map(|object| of_policy(manifests, object))).collect()
    }),
};

/// What names the group of a pod, for the schedulers that have such groups.
const KEYS: [&str; 5] = [
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-name",
];

/// The policy of a job of Kubeflow's, of which its operator makes a PodGroup.
fn of_policy(manifests: &Manifests, object: &Object) -> Option<Check> {
    const FIELD: &str = "spec.runPolicy.schedulingPolicy.minAvailable";
    let least = object.value.pointer(&format!("/{}", FIELD.replace('.', "/")))?.as_u64()?;
    let count = manifests.of_object(object.number).find_map(|pods| pods.nodes)?;
    let evidence =
        format!("minAvailable: {least}, but the job has {count} pods: a scheduler of gangs admits none");
    let check = Check::warn(evidence, format!("minAvailable: {count}"));
    (least > count).then(|| check.at(object.place(FIELD)))
}

fn find(manifests: &Manifests, group: &Object) -> Option<Check> {
    let least = group.value.pointer("/spec/minMember")?.as_u64()?;
    let is_of = |pods: &&Pods| {
        let named = |key: &&str| pods.labels.get(*key).or_else(|| pods.annotations.get(*key));
        let is_named = KEYS.iter().filter_map(named).any(|name| *name == group.name);
        is_named && group.shares_namespace(pods.namespace.as_deref())
    };
    let all: Vec<&Pods> = manifests.pods.iter().filter(is_of).collect();
    let count = all.iter().map(|pods| pods.count).sum::<Option<u64>>().filter(|_| !all.is_empty())?;
    let at_once: u64 =
        all.iter().map(|pods| if pods.are_ordered() { 1 } else { pods.count.unwrap_or(1) }).sum();
    let (evidence, remedy) = match () {
        () if least > count => (
            format!("minMember: {least}, but the group has {count}: the scheduler admits none of them"),
            format!("minMember: {count}"),
        ),
        () if least > at_once => (
            format!(
                "minMember: {least}, but a StatefulSet makes its next pod only when the one before is Ready: \
                 the scheduler admits none"
            ),
            "podManagementPolicy: Parallel".into(),
        ),
        () => return None,
    };
    Some(Check::fail(evidence, remedy).at(group.place("spec.minMember")))
}
