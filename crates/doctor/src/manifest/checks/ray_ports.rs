//! Ray refuses to start where two of its parts have one port. The workers then wait for a head that never is.

use super::prelude::*;
use crate::manifest::launches::{flag, starts_ray};

pub(super) const RULE: Rule = Rule {
    id: "ray-ports",
    sees: "FAIL: `ray start --head --port=10001`, or `port: \"10001\"` in `rayStartParams`: the port of \
           another part of Ray, as 8265 and those of the workers, 10002 to 19999",
    examples: ["ray-ports.yaml", "good-ray-block.yaml"],
    find: Find::Files(|manifests| {
        let of_objects = manifests.objects.iter().filter_map(of_object);
        let of_commands = manifests.containers().filter_map(|(pods, container)| {
            let found = container.all_commands().find_map(of_command)?;
            Some(found.at(pods.at(&container.at("command"))))
        });
        of_objects.chain(of_commands).collect()
    }),
};

fn of_object(object: &Object) -> Option<Check> {
    const CLUSTERS: [&str; 4] = ["", "/rayClusterConfig", "/rayClusterSpec", "/jobTemplate/rayClusterSpec"];
    CLUSTERS.iter().map(|at| format!("/spec{at}/headGroupSpec/rayStartParams")).find_map(|at| {
        let params = object.value.pointer(&at)?;
        let found = clash(|name| Some(params.get(name)?.as_str().unwrap_or_default().to_owned()))?;
        Some(found.at(object.place(&at.replace('/', ".")[1..])))
    })
}

fn of_command(command: &Command) -> Option<Check> {
    let words = command.written();
    // An unknown word may be any flag.
    (starts_ray(&words) && !words.iter().any(|word| word.starts_with('$'))).then_some(())?;
    clash(|name| Some(flag(&command.words, &[name])?.text.to_string()))
}

/// The port of the head, if another part has it by default.
fn clash(told: impl Fn(&str) -> Option<String>) -> Option<Check> {
    let port: u16 = told("port")?.parse().ok()?;
    let (part, own) = match port {
        8265 => ("its dashboard", "dashboard-port"),
        10001 => ("its server for clients", "ray-client-server-port"),
        10002..=19999 => ("its workers (10002 to 19999)", "min-worker-port"),
        _ => return None,
    };
    (told(own).or_else(|| told("worker-port-list")).is_none()).then(|| {
        let evidence = format!("port {port} is that of {part}, too: `ray start` refuses to start the head");
        Check::fail(evidence, "6379, which is Ray's own choice")
    })
}
