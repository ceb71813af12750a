//! A file without pods says nothing about a job.

use super::prelude::*;
use crate::manifest::pods::runtime;

pub(super) const RULE: Rule = Rule {
    id: "pods",
    sees: "WARN: nothing in the file makes pods, or a TrainJob's runtime has no Job for its trainer",
    examples: ["nothing-to-look-at.yaml", "good-job-static.yaml"],
    find: Find::After(find),
};

fn find(manifests: &Manifests, found: &[Check]) -> Vec<Check> {
    if manifests.files.is_empty() {
        let place = Location { file: "-".into(), object: "-".into(), field: "-".into() };
        let remedy = "give the files of the job: *.yaml, *.json, a script for sbatch";
        return vec![Check::warn("no manifest was found; there was nothing to check", remedy).at(place)];
    }
    let without_template = |object: &Object| {
        let known = Maker::of_kind(&object.api, &object.kind) != Maker::Unknown;
        let said = found.iter().filter_map(|check| check.place.as_ref()).any(|place| {
            ["spec.runtimeRef", "kind", "apiVersion"].map(|at| object.place(at)).contains(place)
        });
        let none =
            known && object.kind != "Script" && !said && manifests.of_object(object.number).next().is_none();
        let Some(runtime) = runtime(object, &manifests.objects).filter(|_| none) else {
            let check = Check::warn("no pod template was found in it", "see that its spec is complete");
            return none.then(|| check.at(object.place("spec")));
        };
        let evidence = format!(
            "no Job of {} is marked as its trainer: the command, the number of nodes and PET_* reach no pod",
            runtime.name
        );
        let remedy =
            "trainer.kubeflow.org/trainjob-ancestor-step: trainer in the labels of that Job's template";
        Some(Check::warn(evidence, remedy).at(object.place("spec.runtimeRef")))
    };
    let mut checks: Vec<Check> = manifests.objects.iter().filter_map(without_template).collect();
    for file in &manifests.files {
        let said = found.iter().chain(&checks).any(|check| {
            check.verdict != Verdict::Pass && check.place.as_ref().is_some_and(|place| place.file == *file)
        });
        let understood = manifests.objects.iter().any(|object| {
            let of_names = matches!(object.kind.as_str(), "Service" | "NetworkPolicy" | "ConfigMap");
            object.file == *file
                && (object.is_called()
                    || of_names && manifests.files.len() > 1
                    || manifests.of_object(object.number).next().is_some())
        });
        if !understood && !said && (manifests.files.len() == 1 || manifests.pods.is_empty()) {
            let place = Location { file: file.clone(), object: "-".into(), field: "-".into() };
            let check = Check::warn(
                "no object in this file makes pods; there was nothing to check",
                "give all files of the job together",
            );
            checks.push(check.at(place));
        }
    }
    checks
}
