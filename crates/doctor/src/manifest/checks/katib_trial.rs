//! Katib asks the job of a trial whether it has succeeded, and reads its metrics from one of its containers.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "katib-trial",
    sees: "FAIL: an Experiment whose `successCondition` waits for `Complete` of a PyTorchJob, which says \
           `Succeeded`, or whose `primaryContainerName` no container has. WARN: one of `v1alpha3`",
    examples: ["katib-trial.yaml", "good-katib-trial.yaml"],
    find: Find::Files(|manifests| {
        manifests
            .objects
            .iter()
            .flat_map(|object| [condition(object), container(manifests, object), version(object)])
            .flatten()
            .collect()
    }),
};

fn text<'o>(object: &'o Object, field: &str) -> Option<&'o str> {
    object.trial.get(field)?.as_str().filter(|text| !text.is_empty() && !text.contains('$'))
}

/// The field stands in the Experiment, beside the trial.
fn place(object: &Object, field: &str) -> Location {
    let at = object.place("");
    Location { field: format!("{}.{field}", at.field.trim_end_matches(".trialSpec.")), ..at }
}

fn condition(object: &Object) -> Option<Check> {
    let said = text(object, "successCondition")?;
    let (right, wrong) = match object.kind.as_str() {
        "Job" | "TrainJob" => ("Complete", "Succeeded"),
        "PyTorchJob" | "TFJob" | "MPIJob" | "XGBoostJob" | "PaddleJob" | "JAXJob" => {
            ("Succeeded", "Complete")
        }
        _ => return None,
    };
    let names = |name: &str| said.contains(&format!("\"{name}\""));
    (names(wrong) && !names(right)).then(|| {
        let evidence = format!(
            "successCondition waits for `{wrong}`, but a {} that succeeds has the condition `{right}`: no \
             trial ever ends",
            object.kind
        );
        let remedy = format!("`{right}` in it, or leave it out");
        Check::fail(evidence, remedy).at(place(object, "successCondition"))
    })
}

/// The only version that today's releases serve.
fn version(object: &Object) -> Option<Check> {
    let api = text(object, "apiVersion").filter(|api| api.starts_with("kubeflow.org/v1alpha"))?;
    let evidence = format!("no release of Katib of today has an Experiment of `{api}`");
    Some(Check::warn(evidence, "apiVersion: kubeflow.org/v1beta1").at(place(object, "apiVersion")))
}

fn container(manifests: &Manifests, object: &Object) -> Option<Check> {
    let wanted = text(object, "primaryContainerName")?;
    let containers = || manifests.of_object(object.number).flat_map(|pods| &pods.containers);
    let names: Vec<&str> = containers().filter_map(|own| own.value.get("name")?.as_str()).collect();
    let is_missing =
        !names.is_empty() && !names.contains(&wanted) && !names.iter().any(|name| is_placeholder(name));
    is_missing.then(|| {
        let evidence = format!(
            "no container is called `{wanted}` (primaryContainerName): Katib gets no metrics of a trial"
        );
        let remedy = format!("primaryContainerName: {}", names[0]);
        Check::fail(evidence, remedy).at(place(object, "primaryContainerName"))
    })
}
