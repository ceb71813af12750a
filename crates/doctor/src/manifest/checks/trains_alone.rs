//! Kubeflow's Trainer, and the operator for an elastic PyTorchJob, set `PET_*`, which torchrun reads and no
//! other launcher: each node takes itself for the only one, trains alone, and ends with 0.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "trains-alone",
    sees: "FAIL: `python`, `accelerate launch`, `trl` or `deepspeed` in a TrainJob of several nodes, or \
           in an elastic PyTorchJob",
    fails: "bad-trainjob-python.yaml",
    passes: "good-trainjob.yaml",
    find: Find::Pods(find),
};

fn find(_: &Manifests, pods: &Pods) -> Vec<Check> {
    let is_elastic = pods.maker == Maker::PyTorchJob && pods.has(When::Elastic) && !pods.has(When::Master);
    let of_trainer = pods.maker == Maker::TrainJob && pods.has_torch_runtime();
    if !pods.are_several() || !of_trainer && !is_elastic {
        return Vec::new();
    }
    pods.containers.iter().filter_map(|container| of_container(pods, container)).collect()
}

fn of_container(pods: &Pods, container: &Container) -> Option<Check> {
    const TRAINERS: [&str; 4] = ["python", "accelerate", "trl", "deepspeed"];
    let is_told = |launch: &Launch| {
        matches!(launch.tool, Tool::Torchrun | Tool::Program | Tool::Other)
            || launch.by_rallypoint
            || launch.node_rank.is_some()
            || launch.is_configured
    };
    let reads_variables =
        |command: &Command| command.words.iter().any(|word| word.to_string().contains("PET_"));
    let handled = container.open
        || container.argv.iter().any(|text| text.contains("PET_"))
        || container.launches.iter().any(is_told)
        || container.commands.iter().any(reads_variables);
    let program =
        container.commands.iter().rev().filter(|command| !command.conditional).find_map(|command| {
            let words = command.words.iter().take(4).filter_map(Text::literal).map(basename);
            words.into_iter().find(|word| {
                TRAINERS
                    .iter()
                    .any(|name| word.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') == *name)
            })
        })?;
    (!handled && container.may_train(true)).then(|| {
        let evidence = format!(
            "`{program}` does not read the PET_* variables of a {}: each of {} nodes trains alone, and all \
             exit 0",
            pods.facts().name,
            pods.count.unwrap_or_default()
        );
        let remedy = "start it with `torchrun`, or give the launcher the number of nodes, the node's rank \
                      and the master from PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT";
        Check::fail(evidence, remedy).at(pods.at(&container.at("command")))
    })
}
