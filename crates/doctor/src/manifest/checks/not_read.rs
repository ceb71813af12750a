//! A script that is not in these files may start the training in any way.

use super::prelude::*;
use crate::manifest::objects::batch_system;
use crate::manifest::pods::runtime;

pub(super) const RULE: Rule = Rule {
    id: "not-read",
    sees: "WARN: a script, or a TrainJob's runtime, that is not in these files; a batch script in which \
           torchrun stands and is never reached",
    examples: ["bad-job-unread.yaml", "good-configmap-script.yaml"],
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let of_runtime = manifests.objects.iter().filter_map(|object| without_runtime(manifests, object));
    let of_pods = manifests.pods.iter().flat_map(of_pods);
    let scripts = manifests.objects.iter();
    let of_scripts =
        scripts.filter_map(|object| by_hand(manifests, object).or_else(|| unreached(manifests, object)));
    of_scripts.chain(of_runtime).chain(of_pods).collect()
}

/// A script that nothing in the files starts may be right, depending on who does.
fn by_hand(manifests: &Manifests, object: &Object) -> Option<Check> {
    let text = object.script()?;
    let mut pods = manifests.of_object(object.number).filter(|pods| pods.train()).peekable();
    let starts = pods.peek().is_some() && pods.all(|pods| pods.step.by.is_some());
    let starts = starts || writes_batch(manifests, object);
    (!object.is_called() && batch_system(text).is_none() && !starts).then(|| {
        let evidence = of_first_node(manifests, object).unwrap_or_else(|| {
            "nothing says who starts this script: it was only looked for what is wrong wherever it runs"
                .into()
        });
        let remedy = "give the file that starts it as well; `rallypoint doctor -- CMD` on the node";
        Check::warn(evidence, remedy).at(object.place("-"))
    })
}

fn writes_batch(manifests: &Manifests, object: &Object) -> bool {
    manifests.of_object(object.number).any(|pods| pods.step.usual.is_some())
}

/// A script of one node that meets at itself: no copy of it is right for another node.
fn of_first_node(manifests: &Manifests, object: &Object) -> Option<String> {
    let mut calls =
        manifests.calls().filter(|call| call.pods.object == object.number && call.is_of_one_node());
    let (nodes, host) = calls.find_map(|call| {
        let host = call.launch.host.as_ref().filter(|told| is_localhost(&told.text))?;
        Some((call.launch.most_nodes().filter(|nodes| *nodes > 1)?, host))
    })?;
    Some(format!(
        "this script starts one of {nodes} nodes, and `{}` ({}) leads no other there: theirs must name this \
         host, and are not in these files",
        host.text, host.by
    ))
}

/// A launcher that stands in a batch script, and that no command is found to start: behind an `exit`, or a
/// condition.
fn unreached(manifests: &Manifests, object: &Object) -> Option<Check> {
    const LAUNCHERS: [&str; 4] =
        ["torchrun", "accelerate launch", "torch.distributed.run", "torch.distributed.launch"];
    let text = object.script()?;
    let is_said = |pods: &Pods| pods.train() || pods.containers.iter().any(|own| !own.unread.is_empty());
    let is_batch = batch_system(text).is_some() || writes_batch(manifests, object);
    if !is_batch || manifests.of_object(object.number).any(is_said) {
        return None;
    }
    let lines = || text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let launcher = LAUNCHERS.iter().find(|launcher| lines().any(|line| line.contains(**launcher)))?;
    let own = manifests.of_object(object.number).flat_map(|pods| &pods.containers);
    let values =
        own.flat_map(Container::all_commands).flat_map(|command| command.variables.values().flatten());
    let is_used = |name: &&str| {
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        name.starts_with("SLURM_") && words.any(|word| word == *name)
    };
    let empty = values.flat_map(Text::unset).find(is_used);
    let why = empty.map_or(String::new(), |name| format!(", as no option here sets ${name}"));
    let evidence =
        format!("`{launcher}` stands in it, and no command was found that starts it{why}: not checked");
    let remedy =
        "fill in the variables that the script wants first; or `rallypoint doctor -- CMD` in the job";
    Some(Check::warn(evidence, remedy).at(object.place("-")))
}

/// A TrainJob has only what its runtime has, and the runtime may be in another file.
fn without_runtime(manifests: &Manifests, object: &Object) -> Option<Check> {
    let has_command = object.value.pointer("/spec/trainer/command").is_some();
    let is_foreign = object.api.split('/').next() != Maker::TrainJob.group();
    if object.kind != "TrainJob" || is_foreign || has_command || runtime(object, &manifests.objects).is_some()
    {
        return None;
    }
    let name = object.value.pointer("/spec/runtimeRef/name").and_then(Value::as_str).unwrap_or_default();
    let evidence = format!("its runtime `{name}` is not in these files, so its command was not looked at");
    let remedy = format!("give the runtime as well: `kubectl get clustertrainingruntime {name} -o yaml`");
    Some(Check::warn(evidence, remedy).at(object.place("spec.runtimeRef")))
}

fn of_pods(pods: &Pods) -> Vec<Check> {
    let plain = matches!(pods.maker, Maker::StatefulSet | Maker::Deployment | Maker::Pod | Maker::Unknown);
    let matters = |container: &&Container| {
        let has = |field: &str| container.value.get(field).is_some();
        let is_server = (has("ports") || has("readinessProbe") || has("livenessProbe"))
            && container.gpus().is_none()
            && !container.own.iter().any(|name| name.starts_with("MASTER_"));
        // `broken-line` says it.
        let is_broken = |text: &str| rallypoint_shell::mistake(text).is_some();
        let is_script = container.value.get("script").is_some();
        let is_told = is_script && container.texts().any(is_broken);
        let unread = !container.unread.is_empty() && !is_told;
        // A batch script that is no shell may be anything.
        let is_no_shell =
            pods.step.usual.is_some() && container.unread.iter().any(|it| it.contains("no shell"));
        let is_entrypoint = pods.maker == Maker::Ray && pods.is_container;
        unread
            && (container.trains()
                || is_no_shell
                || is_entrypoint
                || pods.nodes.or(pods.count) != Some(1) && !(plain && is_server))
    };
    let check = |container: &Container| {
        let once = pods.runs_once().map_or(String::new(), |often| format!("; it {often}"));
        let evidence =
            format!("a part of the command could not be read: {}{once}", container.unread.join("; "));
        let remedy = "give the file that holds it (a ConfigMap) as well, or run `rallypoint doctor -- CMD` \
                      in the pod";
        Check::warn(evidence, remedy).at(pods.at(&container.at("command")))
    };
    pods.containers.iter().filter(matters).map(check).collect()
}
