//! mpirun counts the slots of its hosts, and starts nothing if it is to start more processes than these.

use super::prelude::*;
use crate::manifest::objects::scalar;

pub(super) const RULE: Rule = Rule {
    id: "mpi-slots",
    sees: "FAIL: `mpirun -np 16` in an MPIJob of 2 Workers with 4 slots each",
    fails: "mpi-slots.yaml",
    passes: "good-mpijob.yaml",
    find: Find::Pods(|manifests, pods| {
        let commands = pods.containers.iter().flat_map(|own| own.commands.iter().map(move |it| (own, it)));
        commands.filter_map(|(own, command)| find(manifests, pods, own, command)).collect()
    }),
};

fn find(manifests: &Manifests, pods: &Pods, container: &Container, command: &Command) -> Option<Check> {
    let words: Vec<String> = command.words.iter().map(ToString::to_string).collect();
    let is_mpirun = matches!(basename(words.first()?), "mpirun" | "mpiexec" | "orterun");
    // Other implementations do not count, and another file of hosts may have more.
    let is_other = |word: &String| {
        let flag = word.trim_start_matches('-');
        word.starts_with('-') && ["H", "host", "rankfile", "rf"].iter().any(|own| flag.starts_with(own))
            || word.to_lowercase().contains("oversubscribe")
    };
    let field = |name: &str| pods.owner.get(name);
    let of_open_mpi = field("mpiImplementation").is_none_or(|name| name == "OpenMPI");
    let is_led = pods.maker == Maker::MpiJob && pods.role == "launcher" && of_open_mpi;
    if !is_mpirun || !is_led || words.iter().any(is_other) || pods.is_open {
        return None;
    }
    // The started program may have a `-n` of its own.
    let at = words.iter().position(|word| matches!(word.as_str(), "-np" | "--np"));
    let at = at.or_else(|| (words.get(1)? == "-n").then_some(1))?;
    let asked: u64 = words.get(at.saturating_add(1))?.parse().ok()?;
    let workers = manifests.of_object(pods.object).find(|own| own.role == "worker")?.count?;
    let slots: u64 = field("slotsPerWorker").map_or(Some("1".into()), scalar)?.parse().ok()?;
    let runs = field("runLauncherAsWorker") == Some(&Value::Bool(true));
    let all = workers.saturating_add(u64::from(runs)).saturating_mul(slots);
    (asked > all).then(|| {
        let workers = counted(workers, "Worker", "Workers");
        let evidence = format!(
            "mpirun is to start {asked} processes, but {workers} with {} have {all}: it starts none",
            counted(slots, "slot", "slots")
        );
        let remedy = format!("-np {all}, or slotsPerWorker and the Workers that it needs");
        Check::fail(evidence, remedy).at(pods.at(&container.at("command")))
    })
}
