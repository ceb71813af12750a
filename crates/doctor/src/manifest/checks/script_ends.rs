//! A script that has started its last programs with `&` ends at once. Slurm then ends all that it has
//! started, and so does the kubelet.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "script-ends",
    sees: "FAIL: `srun torchrun … &` ends a batch script or a container's, without `wait`. WARN: \
           `torchrun … | tee log` in a pod, without `pipefail`",
    examples: ["script-ends.sbatch", "good-slurm.sbatch"],
    find: Find::Pods(|manifests, pods| {
        let of = |own| find(manifests, pods, own).into_iter().chain(hides_failure(pods, own));
        pods.containers.iter().flat_map(of).collect()
    }),
};

/// The exit code of a pipe is that of its last command.
fn hides_failure(pods: &Pods, container: &Container) -> Option<Check> {
    let is_seen = |text: &str| text.contains("pipefail");
    let matters = |launch: &&Launch| pods.are_several() || launch.tool() != Tool::Program;
    let launch = container.launches.iter().filter(matters).find(|launch| launch.command.piped)?;
    let all = container.commands.iter();
    let reads =
        all.skip(launch.at).skip(1).find(|command| !command.piped && command.moment >= launch.command.moment);
    let by = reads?.words.first()?.to_string();
    // The agent of HyperPod watches the training itself.
    let is_watched = pods.are_tasks() || pods.maker == Maker::HyperPod;
    (!is_watched && basename(&by) == "tee" && !container.texts().any(is_seen)).then(|| {
        let evidence = format!(
            "the exit code is that of `{by}`: a pod whose training has failed counts as one that has \
             succeeded"
        );
        Check::warn(evidence, "set -o pipefail, with bash").at(pods.at(&container.at("command")))
    })
}

fn find(manifests: &Manifests, pods: &Pods, container: &Container) -> Option<Check> {
    // By hand, the programs go on when the script ends.
    if pods.are_tasks() && pods.step.usual.is_none() || !container.unread.is_empty() || !container.trains() {
        return None;
    }
    let is_said = |command: &&Command| {
        let program = command.words.first().map(ToString::to_string).unwrap_or_default();
        !matches!(basename(&program), "echo" | "printf" | "date" | "set" | "true" | "exit")
    };
    let commands = if pods.are_tasks() { &*container.script } else { &container.commands };
    let last = commands.iter().rfind(is_said).filter(|command| command.background)?;
    let is_called = |script: &&Object| container.texts().any(|text| text.contains(&script.name));
    let called = manifests.of_kind("Script").filter(is_called).filter_map(Object::script);
    let waits = container
        .texts()
        .chain(called)
        .any(|text| ["wait", "fg", "tail -f", "sleep", "disown"].iter().any(|word| text.contains(word)));
    (!waits).then(|| {
        let words = last.written().into_iter().take(2).collect::<Vec<_>>().join(" ");
        let who = if pods.are_tasks() { "the job" } else { "the container" };
        let evidence = format!("the script ends while `{words} …` runs in the background, and {who} with it");
        Check::fail(evidence, "`wait` as the last line").at(pods.at(&container.at("command")))
    })
}
