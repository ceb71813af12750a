//! Checks the name of the run: it must be equal in all pods, and differ between runs if a store outlives
//! them.

use super::super::Check;
use super::Manifests;
use super::launch::{Launch, Tool};
use super::names::{Target, resolve};
use super::pods::Pods;
use rallypoint_node::launch::Backend;
use rallypoint_node::makers::env_of_field;
use rallypoint_shell::Source;

pub(crate) fn check(pods: &Pods, manifests: &Manifests, checks: &mut Vec<Check>) {
    for container in &pods.containers {
        for launch in &container.launches {
            let dynamic = launch.tool == Tool::Torchrun
                && matches!(launch.backend, Backend::C10d | Backend::Rallypoint);
            let several = launch.most_nodes().is_none_or(|nodes| nodes > 1) && launch.nodes.is_some();
            if dynamic && several && !launch.is_told_elsewhere && !launch.by_rallypoint {
                let found = run_id(pods, manifests, launch);
                checks.extend(found.map(|check| check.at(pods.at(&container.at("command")))));
            }
        }
    }
}

fn run_id(pods: &Pods, manifests: &Manifests, launch: &Launch) -> Option<Check> {
    const ID: &str = "run-id";
    let Some(told) = &launch.run_id else {
        let of_no_effect = launch.environment.has_any(&["RDZV_ID"]);
        if launch.open || !of_no_effect && !outlives(pods, manifests, launch) {
            return None;
        }
        let evidence = if of_no_effect {
            "RDZV_ID is set, but torchrun reads PET_RDZV_ID; the run is called `none`"
        } else {
            "torchrun calls the run `none`; two jobs on this store would meet"
        };
        return Some(Check::warn(ID, evidence, remedy(pods)));
    };
    let text = &told.text;
    if text.literal() == Some("") {
        return Some(Check::fail(ID, format!("{} is empty", told.by), remedy(pods)));
    }
    let shared_by = |source: Source| {
        source == Source::ChildJobUid
            && launch
                .most_nodes()
                .is_none_or(|nodes| pods.in_unit.is_some_and(|unit| u64::from(nodes) <= unit))
    };
    if text.varies() && !text.source().is_some_and(shared_by) && pods.are_several() && !launch.conditional {
        let what = text.source().map_or("another one in each pod", Source::name);
        let evidence =
            format!("the run's id ({}) is {what}: each pod waits alone in a run of its own", told.by);
        return Some(Check::fail(ID, evidence, remedy(pods)));
    }
    let constant = text.literal()?;
    outlives(pods, manifests, launch).then(|| {
        let evidence = format!(
            "every run is called `{constant}`; on a store that outlives it the next run \
             meets what this one left"
        );
        Check::warn("constant-run-id", evidence, remedy(pods))
    })
}

/// Whether the store outlives the run: it is not in one of the run's own pods.
fn outlives(pods: &Pods, manifests: &Manifests, launch: &Launch) -> bool {
    let Some(host) = &launch.host else { return false };
    match resolve(&host.text, pods, manifests) {
        Target::Pod { pods: other, .. } => other.object != pods.object,
        Target::Service(service) => {
            let of_own = manifests
                .training(pods.object)
                .any(|own| super::names::takes(service, own) != super::names::Taken::None);
            !of_own
        }
        Target::Absent => true,
        Target::Own | Target::Nothing(_) | Target::Elsewhere => false,
    }
}

/// The remedy: the line to change.
fn remedy(pods: &Pods) -> String {
    let facts = pods.facts();
    match facts.run_id {
        Some(path) => format!("--rdzv-id=$(RUN_UID), with this in env: {}", env_of_field("RUN_UID", path)),
        None => format!(
            "--rdzv-id with a name that you change for each run (`{}-1`, …): a {} gives its pods no id of \
             the run",
            if pods.name.is_empty() { "train" } else { &pods.name },
            facts.name
        ),
    }
}
