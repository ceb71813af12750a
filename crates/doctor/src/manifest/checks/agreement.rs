//! Who waits at another port, with another backend or for another run than the others, waits alone.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "agreement",
    sees: "FAIL: Master and Worker have different ports, backends or ids of the run, or the port is `$RANDOM`",
    fails: "agreement.yaml",
    passes: "good-pytorchjob.yaml",
    find: Find::Launch(&[Tool::Torchrun, Tool::Accelerate, Tool::Other, Tool::Program], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { manifests, pods, launch, .. } = call;
    if !takes_part(launch) || pods.step.is_some() || !call.are_to_meet() {
        return None;
    }
    if let Some(told) = launch.port.as_ref().filter(|told| told.text.varies() && pods.are_several()) {
        let what = told.text.source().map_or("another one in each pod", Source::name);
        let evidence = format!("the port ({}) is {what}: each pod calls at another port", told.by);
        return Some(Check::fail(evidence, "one port for all, such as 29500").at(call.at("command")));
    }
    manifests.together(pods).filter(|others| !std::ptr::eq(*pods, *others)).find_map(|others| {
        // A pod may start one training after the other, and each of these meets its own counterpart.
        let of_others: Vec<Vec<(&str, String)>> = others
            .launches()
            .filter(|other| other.tool == launch.tool && takes_part(other))
            .map(values)
            .collect();
        let (what, own, theirs) = values(launch).into_iter().find_map(|(what, own)| {
            let mut theirs = of_others.iter().flatten().filter(|(name, _)| *name == what).map(|(_, it)| it);
            let first = theirs.next()?;
            (*first != own && theirs.all(|it| *it != own)).then(|| (what, own.clone(), first.clone()))
        })?;
        let evidence = format!(
            "{what} is {own} here, but {theirs} in {} {}: they never meet",
            others.place.object, others.place.field
        );
        Some(Check::fail(evidence, format!("{what} is the same in all pods")).at(call.at("command")))
    })
}

fn takes_part(launch: &Launch) -> bool {
    !(launch.conditional || launch.by_rallypoint || launch.is_told_elsewhere || launch.open)
}

/// What all nodes must have in common, as far as it is known.
fn values(launch: &Launch) -> Vec<(&'static str, String)> {
    let known = |told: &Option<Told>| Some(told.as_ref()?.text.literal()?.to_owned());
    let backend = match &launch.backend {
        Backend::Static => Some("static".to_owned()),
        Backend::C10d => Some("c10d".to_owned()),
        Backend::Other(name) if name != "$" => Some(name.clone()),
        _ => None,
    };
    let usual = match (launch.tool, &launch.backend) {
        (Tool::Torchrun, Backend::Static) => Some("29500"),
        (Tool::Torchrun, Backend::C10d) => Some("29400"),
        _ => None,
    };
    let port = match &launch.port {
        None => usual.map(str::to_owned),
        told => known(told),
    };
    let run_id = launch.run_id.as_ref().filter(|_| launch.backend != Backend::Static);
    [
        ("the backend", backend),
        ("the port", port),
        ("the run's id", run_id.and_then(|told| told.text.literal().map(str::to_owned))),
    ]
    .into_iter()
    .filter_map(|(what, value)| Some((what, value?)))
    .collect()
}
