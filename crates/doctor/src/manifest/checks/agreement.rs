//! Who waits at another port, with another backend or for another run than the others, waits alone.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "agreement",
    sees: "FAIL: Master and Worker, or two `srun … &` of one script, have different ports, backends, ids of \
           the run or numbers of nodes, or the port is `$RANDOM`",
    examples: ["agreement.yaml", "good-pytorchjob.yaml"],
    find: Find::Launch(&[Tool::Torchrun, Tool::Accelerate, Tool::Other, Tool::Program], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { manifests, pods, launch, .. } = call;
    if !takes_part(launch) || !call.are_to_meet() {
        return None;
    }
    if let Some(told) = launch.port.as_ref().filter(|told| told.text.varies() && pods.are_several()) {
        let what = told.text.source().map_or("another one in each pod", Source::name);
        let evidence = format!("the port ({}) is {what}: each pod calls at another port", told.by);
        return Some(Check::fail(evidence, "one port for all, such as 29500").at(call.at("command")));
    }
    // Two that differ are said once, at the later one.
    let mut before = manifests.together(pods).take_while(|others| !std::ptr::eq(*pods, *others));
    before.find_map(|others| {
        // A pod may start one training after the other, and each of these meets its own counterpart.
        let launches = others.launches().filter(|other| other.tool == launch.tool && takes_part(other));
        let theirs: Vec<_> = launches.flat_map(values).collect();
        let differs = |(what, own): &(&'static str, String)| {
            let mut of_others = theirs.iter().filter(|(name, _)| name == what).map(|(_, value)| value);
            let first = of_others.next().filter(|first| *first != own)?;
            of_others.all(|value| value != own).then(|| (*what, own.clone(), first.clone()))
        };
        let (what, own, theirs) = values(launch).iter().find_map(differs)?;
        let evidence = format!(
            "{what} is {own} here, but {theirs} in {} {}: they never meet",
            others.place.object, others.place.field
        );
        Some(Check::fail(evidence, format!("{what} is the same in all pods")).at(call.at("command")))
    })
}

fn takes_part(launch: &Launch) -> bool {
    !(launch.command.conditional || launch.by_rallypoint || launch.is_told_elsewhere)
}

/// What all nodes must have in common, as far as it is known.
fn values(launch: &Launch) -> Vec<(&'static str, String)> {
    let literal = |told: &Option<Told>| told.as_ref().and_then(|told| told.text.literal().map(str::to_owned));
    // Variables that are not seen here may say what no flag does.
    let is_all = !launch.command.open;
    let backend = match &launch.backend {
        Backend::Static => Some("static"),
        Backend::C10d => Some("c10d"),
        Backend::Other(name) => Some(name.as_str()).filter(|name| *name != "$"),
        Backend::Rallypoint => None,
    };
    let port = launch.known_port().filter(|_| is_all || launch.port.is_some());
    let run_id = literal(&launch.run_id).filter(|_| launch.backend != Backend::Static);
    let all = [
        ("the backend", backend.filter(|_| is_all).map(str::to_owned)),
        ("the number of nodes", literal(&launch.nodes).filter(|_| !is_all)),
        ("the port", port.map(str::to_owned)),
        ("the run's id", run_id),
    ];
    all.into_iter().filter_map(|(what, value)| Some((what, value?))).collect()
}
