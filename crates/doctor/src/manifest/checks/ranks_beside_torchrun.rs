//! torchrun overwrites torch's variables for each worker: a value set beside it misleads the reader.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "ranks-beside-torchrun",
    sees: "WARN: `RANK` or `WORLD_SIZE`, which torchrun sets itself",
    fails: "ranks-beside-torchrun.yaml",
    passes: "good-job-static.yaml",
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    let launch = container
        .launches
        .iter()
        .filter(|_| container.trains())
        .find(|launch| launch.tool == Tool::Torchrun)?;
    let values =
        list(&container.value, "/env").iter().filter_map(|item| item.get("value").and_then(Value::as_str));
    let all: Vec<&str> = container.texts().chain(values).collect();
    let is_used = |name: &str| {
        all.iter().any(|text| {
            [format!("${name}"), format!("${{{name}"), format!("$({name})")]
                .iter()
                .any(|form| text.contains(form.as_str()))
        })
    };
    let exported = |name: &str| {
        launch.command.variable(name).is_some_and(|own| {
            let is_value = |Told { text, .. }: &Told| text.literal().is_none() && own == text;
            !launch.node_rank.as_ref().is_some_and(is_value) && Some(own) != container.variable(name)
        })
    };
    let set: Vec<&str> = ["RANK", "LOCAL_RANK", "WORLD_SIZE"]
        .into_iter()
        .filter(|name| (container.own.iter().any(|own| own == name) || exported(name)) && !is_used(name))
        .collect();
    (!set.is_empty() && container.unread.is_empty()).then(|| {
        let evidence =
            format!("{} set beside torchrun, which sets them for each worker itself", set.join(", "));
        Check::warn(evidence, "leave them out").at(pods.at(&container.at("env")))
    })
}
