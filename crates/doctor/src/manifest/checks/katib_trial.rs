//! Katib asks the job of a trial whether it has succeeded, and reads its metrics from one of its containers.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "katib-trial",
    sees: "FAIL: an Experiment whose `successCondition` waits for `Complete` of a PyTorchJob, which says \
           `Succeeded`, whose `primaryContainerName` no container has, or whose `trialParameters` its \
           template or `parameters` has not. WARN: `v1alpha3`",
    examples: ["katib-trial.yaml", "good-katib-trial.yaml"],
    find: Find::Files(|manifests| {
        manifests
            .objects
            .iter()
            .flat_map(|object| {
                [condition(object), container(manifests, object), version(object), parameters(object)]
            })
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

/// Katib's webhook wants each parameter of the trials used, declared and there:
/// `pkg/webhook/v1beta1/experiment/validator`.
fn parameters(object: &Object) -> Option<Check> {
    const BEGIN: &str = "${trialParameters.";
    let template = object.trial.get("trialSpec").filter(|_| !object.has_blanks)?.to_string();
    let declared = object.trial.get("trialParameters")?.as_array()?;
    let of =
        |item: &Value, field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let names = |items: &[Value], field| items.iter().map(|item| of(item, field)).collect::<Vec<_>>();
    let (own, all) = (names(declared, "name"), names(list(&object.trial, "/parameters"), "name"));
    let used: Vec<&str> = template.split(BEGIN).skip(1).filter_map(|rest| rest.split('}').next()).collect();
    let is_there = |item: &&String| all.is_empty() || all.contains(item) || item.starts_with("${trialSpec.");
    let lost = names(declared, "reference").into_iter().find(|reference| !is_there(&reference));
    let why = if let Some(name) = lost {
        format!("`reference: {name}` is no parameter of the Experiment")
    } else if let Some(name) = own.iter().find(|name| !used.contains(&name.as_str())) {
        format!("the template has no `{BEGIN}{name}}}`")
    } else {
        let name = used.into_iter().find(|name| !own.iter().any(|own| own == name))?;
        format!("the template has `{BEGIN}{name}}}`, and `trialParameters` no `{name}`")
    };
    let evidence = format!("{why}: Katib refuses the Experiment");
    let remedy = "each of trialParameters with a `reference` of `parameters`, and used in the template";
    Some(Check::fail(evidence, remedy).at(place(object, "trialParameters")))
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
