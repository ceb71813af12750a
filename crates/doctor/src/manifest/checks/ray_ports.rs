//! Ray refuses to start where two of its parts have one port, where a worker has what is for the head alone,
//! or where a number is none. The workers then wait for a head that never is, or never join it.

use super::prelude::*;
use crate::manifest::launches::{flag, starts_ray, symmetric_run};
use crate::manifest::pods::dotted;

pub(super) const RULE: Rule = Rule {
    id: "ray-ports",
    sees: "FAIL: `ray start --head --port=10001`, or `port: \"10001\"` in `rayStartParams`: a port of \
           another part of Ray; `ray start` with neither `--head` nor `--address`; `port` of a worker; \
           `object-store-memory: \"5g\"`; `address: \"\"`; `ray symmetric-run` without `--address`",
    examples: ["ray-ports.yaml", "good-ray-block.yaml"],
    find: Find::Files(|manifests| {
        let of_objects = manifests.objects.iter().flat_map(of_object);
        let of_commands = manifests.containers().filter_map(|(pods, container)| {
            let found =
                container.all_commands().find_map(|it| of_command(it).or_else(|| of_symmetric_run(it)))?;
            Some(found.at(pods.at(&container.at("command"))))
        });
        of_objects.chain(of_commands).collect()
    }),
};

fn of_object(object: &Object) -> Vec<Check> {
    const CLUSTERS: [&str; 4] = ["", "/rayClusterConfig", "/rayClusterSpec", "/jobTemplate/rayClusterSpec"];
    let of_group = |at: String, is_head: bool| {
        let params = object.value.pointer(&at)?;
        let told = |name: &str| Some(params.get(name)?.as_str().unwrap_or_default().to_owned());
        Some(refused(told, is_head)?.at(object.place(&dotted(&at))))
    };
    let of_cluster = |at: &str| {
        let groups = list(&object.value, &format!("/spec{at}/workerGroupSpecs")).len();
        let workers = (0..groups).map(|n| format!("/spec{at}/workerGroupSpecs/{n}/rayStartParams"));
        let head = of_group(format!("/spec{at}/headGroupSpec/rayStartParams"), true);
        head.into_iter().chain(workers.filter_map(|at| of_group(at, false))).collect::<Vec<_>>()
    };
    CLUSTERS.iter().flat_map(|at| of_cluster(at)).collect()
}

fn of_command(command: &Command) -> Option<Check> {
    let words = command.written();
    // An unknown word may be any flag.
    (starts_ray(&words) && !words.iter().any(|word| word.starts_with('$'))).then_some(())?;
    let has = |flag: &str| words.iter().any(|word| word.split('=').next() == Some(flag));
    if !has("--head") && !has("--address") {
        let evidence = "`ray start` has neither `--head` nor `--address`: it refuses to start";
        return Some(Check::fail(evidence, "--head on one node, and --address=HOST:6379 on the others"));
    }
    let is_head = has("--head");
    refused(|name| Some(flag(&command.words, &[name])?.text.to_string()), is_head)
}

/// What is to run on every node, sees by the address who is the head, and hands on options to `ray start`.
fn of_symmetric_run(command: &Command) -> Option<Check> {
    let words = command.written();
    let words = symmetric_run(&words).filter(|own| !own.iter().any(|word| word.starts_with('$')))?;
    let own: Vec<&str> =
        words.iter().take_while(|word| *word != "--").filter_map(|word| word.split('=').next()).collect();
    let wrong = |name: &&&str| {
        let is_other = name.ends_with("nodes") && **name != "--min-nodes";
        is_other || ["--head", "--node-ip-address", "--port", "--block"].contains(*name)
    };
    let (what, remedy) = if let Some(name) = own.iter().find(wrong) {
        (format!("has no option `{name}`"), "--address HOST:6379 --min-nodes N")
    } else if !own.contains(&"--address") {
        ("needs `--address`".into(), "--address HOST:6379, the same on all nodes")
    } else if own.len() == words.len() {
        ("needs a `--` in front of the program".into(), "`--` in front of it")
    } else {
        return None;
    };
    Some(Check::fail(format!("`ray symmetric-run` {what}: it refuses to start"), remedy))
}

fn refused(told: impl Fn(&str) -> Option<String>, is_head: bool) -> Option<Check> {
    let no_host = |name: &&str| told(name).is_some_and(|it| it.is_empty() || it.starts_with("ray://"));
    if let Some(name) = ["address", "node-ip-address"].into_iter().find(no_host) {
        let evidence = format!("`{name}` has no host: `ray start` refuses to start, or joins nobody");
        return Some(Check::fail(evidence, format!("no `{name}`, or HOST:PORT without a scheme")));
    }
    if let Some(check) = no_number(&told) {
        return Some(check);
    }
    if is_head {
        return clash(told);
    }
    let name =
        ["port", "redis-shard-ports", "include-dashboard"].into_iter().find(|name| told(name).is_some())?;
    let evidence = format!("`{name}` is for the head alone: `ray start` refuses to start a worker with it");
    Some(Check::fail(evidence, format!("no `{name}`: a worker has the head's address")))
}

/// A parameter that is to be a whole number, without a unit.
fn no_number(told: impl Fn(&str) -> Option<String>) -> Option<Check> {
    #[rustfmt::skip]
    const NUMBERS: [&str; 11] = [
        "num-cpus", "num-gpus", "memory", "object-store-memory", "port", "dashboard-port",
        "metrics-export-port", "min-worker-port", "max-worker-port", "object-manager-port",
        "node-manager-port",
    ];
    let is_wrong = |text: &String| {
        text.starts_with(|c: char| c.is_ascii_digit())
            && text.parse::<u64>().is_err()
            && !text.contains(['$', '{'])
    };
    let (name, text) = NUMBERS.iter().find_map(|name| Some((name, told(name).filter(is_wrong)?)))?;
    let evidence = format!("`{name}` is {text}: `ray start` takes whole numbers alone, and does not start");
    let remedy = if name.ends_with("memory") { "the number of bytes" } else { "a whole number" };
    Some(Check::fail(evidence, remedy))
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
