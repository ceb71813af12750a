//! A job is a set of objects: which pods train together.
//!
//! What one start makes does: the pods of an object, or the tasks of a step of a script. What two starts make
//! does if one of them is too few for what its command asks for, and they are steps that run side by side, or
//! meet at one host, or one hosts the other's store, or both are named alike.

use super::Manifests;
use super::launch::Launch;
use super::names::{Taken, Target, resolve, takes};
use super::pods::Pods;

/// The number of the job of each template.
pub(crate) fn group(manifests: &Manifests) -> Vec<usize> {
    let pods = &manifests.pods;
    let first = |own: &Pods| pods.iter().position(|other| other.is_same_start(own)).unwrap_or_default();
    let mut jobs: Vec<usize> = pods.iter().map(first).collect();
    for (one, a) in pods.iter().enumerate() {
        for (other, b) in pods.iter().enumerate().skip(one).skip(1) {
            if jobs[one] != jobs[other] && belong(manifests, a, b) {
                let (from, to) = (jobs[other], jobs[one]);
                jobs.iter_mut().filter(|job| **job == from).for_each(|job| *job = to);
            }
        }
    }
    jobs
}

fn belong(manifests: &Manifests, a: &Pods, b: &Pods) -> bool {
    let lacks = |pods: &Pods| manifests.own_nodes(pods).is_some_and(|own| wanted(pods) > own);
    if !a.train() || !b.train() || !lacks(a) && !lacks(b) {
        return false;
    }
    // Two ways to start one program may stand beside each other.
    let is_whole = |pods: &Pods| manifests.own_nodes(pods) == Some(wanted(pods));
    if wanted(a) != wanted(b) && (is_whole(a) || is_whole(b)) {
        return false;
    }
    if a.are_tasks() || b.are_tasks() {
        return a.object == b.object && a.step.moment == b.step.moment;
    }
    let near = a.namespace == b.namespace || a.namespace.is_none() || b.namespace.is_none();
    let are_of_one =
        || hosts(manifests, a, b) || hosts(manifests, b, a) || meets(a, b) || stem(&a.name) == stem(&b.name);
    near && are_of_one()
}

/// How many nodes or processes the launches of these pods wait for.
fn wanted(pods: &Pods) -> u64 {
    let of_launch =
        |launch: &Launch| launch.most_nodes().or_else(|| launch.number("WORLD_SIZE")).map(u64::from);
    pods.launches().filter_map(of_launch).max().unwrap_or(0)
}

fn endpoints(pods: &Pods) -> impl Iterator<Item = &rallypoint_shell::Text> {
    pods.launches().filter_map(|launch| Some(&launch.host.as_ref()?.text)).filter(|text| !text.varies())
}

fn meets(a: &Pods, b: &Pods) -> bool {
    let local = |text: &str| matches!(text, "" | "localhost" | "127.0.0.1" | "0.0.0.0");
    endpoints(a).any(|host| !local(&host.to_string()) && endpoints(b).any(|other| other == host))
}

/// Whether the store of `b` is in a pod of `a`.
fn hosts(manifests: &Manifests, a: &Pods, b: &Pods) -> bool {
    endpoints(b).any(|host| match resolve(host, b, manifests) {
        Target::Pod { pods, .. } => pods.object == a.object,
        Target::Service(service) => takes(service, a) != Taken::None,
        _ => false,
    })
}

/// The part of a name that the objects of one job share.
fn stem(name: &str) -> Option<&str> {
    const ROLES: [&str; 11] =
        ["master", "worker", "workers", "leader", "head", "node", "rank", "chief", "launcher", "main", "pod"];
    let mut stem = name;
    while let Some((begin, end)) = stem.rsplit_once('-') {
        let role = end.trim_end_matches(|c: char| c.is_ascii_digit());
        if !role.is_empty() && !ROLES.contains(&role) {
            break;
        }
        stem = begin;
    }
    Some(stem).filter(|stem| !stem.is_empty())
}
