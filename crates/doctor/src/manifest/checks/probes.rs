//! A probe that fails while the pods still wait for each other, or load their model, ends what would have
//! come, or keeps its name from the others.

use super::prelude::*;
use crate::manifest::validation::PROBES;

pub(super) const RULE: Rule = Rule {
    id: "probes",
    sees: "WARN: a probe with `ray status` and `timeoutSeconds` of 1; a livenessProbe \
           that ends a node of several, or vLLM, within 90 seconds. FAIL: a worker of Ray asked for the \
           head's port",
    examples: ["probes.yaml", "good-ray-block.yaml"],
    find: Find::Container(|pods, container| {
        let found = PROBES.iter().filter_map(|probe| of_probe(pods, container, probe));
        found.chain(too_early(pods, container)).collect()
    }),
};

/// The seconds in which models are hardly ever loaded, and nodes there.
const SOON: u64 = 90;

fn of_probe(pods: &Pods, container: &Container, name: &str) -> Option<Check> {
    let probe = container.value.get(name)?;
    let words: Vec<&str> = list(probe, "/exec/command").iter().filter_map(Value::as_str).collect();
    let words = words.iter().flat_map(|word| word.split_whitespace());
    let at = |check: Check| Some(check.at(pods.at(&container.at(name))));
    let is_python = |word: &&str| Grammar::is_program(word);
    let program: Vec<&str> = words.skip_while(|word| !is_python(word)).collect();
    let is_gcs = |word: &&str| word.contains("127.0.0.1:6379") || word.contains("localhost:6379");
    if pods.maker == Maker::Ray && pods.role == "worker" && program.iter().any(is_gcs) {
        let evidence = "it asks for the head's port, which no worker has: each is ended again and again";
        return at(Check::fail(evidence, format!("no {name}: KubeRay adds its own")));
    }
    let seconds = probe.get("timeoutSeconds").map_or(Some(1), Value::as_u64)?;
    (seconds < 2).then_some(())?;
    let what = program.iter().take(2).copied().collect::<Vec<_>>().join(" ");
    let then = match name {
        "readinessProbe" => "the pod is never Ready, and its Service leads nowhere",
        _ => "Kubernetes ends the container again and again",
    };
    let evidence = format!("`{what}` starts Python, which takes longer than the second that it has: {then}");
    (!program.is_empty()).then(|| at(Check::warn(evidence, "timeoutSeconds: 10")))?
}

/// A port that is open only when all nodes are there, and the model is.
fn too_early(pods: &Pods, container: &Container) -> Option<Check> {
    let waits = |launch: &Launch| launch.most_nodes().is_some_and(|nodes| nodes > 1);
    let serves = |command: &Command| {
        let called = Called::find(&command.written());
        called.is_some_and(|called| matches!(called.grammar.name, "vLLM" | "SGLang"))
    };
    let loads = container.launches.iter().any(waits) || container.commands.iter().any(serves);
    let name = PROBES.iter().take(2).find(|name| container.value.get(**name).is_some()).filter(|_| loads)?;
    let probe = container.value.get(*name)?;
    let asks = ["httpGet", "tcpSocket", "grpc"].iter().any(|kind| probe.get(kind).is_some());
    let number = |field: &str, usual: u64| probe.get(field).map_or(Some(usual), Value::as_u64);
    let turns = number("periodSeconds", 10)?.saturating_mul(number("failureThreshold", 3)?);
    let seconds = number("initialDelaySeconds", 0)?.saturating_add(turns);
    let evidence = format!(
        "the container is ended if it does not answer within {seconds} s: until the other nodes are there, \
         and the model is loaded, it does not"
    );
    let remedy = "a startupProbe with periodSeconds: 10 and failureThreshold: 180";
    (asks && seconds < SOON).then(|| Check::warn(evidence, remedy).at(pods.at(&container.at(name))))
}
