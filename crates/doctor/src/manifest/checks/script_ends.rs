//! A script that has started its last programs with `&` ends at once. Slurm then ends all that it has
//! started, and so does the kubelet.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "script-ends",
    sees: "FAIL: `srun torchrun … &` ends a batch script or a container's, without `wait`",
    examples: ["script-ends.sbatch", "good-slurm.sbatch"],
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    // By hand, the programs go on when the script ends.
    if pods.are_by_hand() || !container.unread.is_empty() || !container.trains() {
        return None;
    }
    let is_said = |command: &&Command| {
        let program = command.words.first().map(ToString::to_string).unwrap_or_default();
        !matches!(basename(&program), "echo" | "printf" | "date" | "set" | "true" | "exit")
    };
    let commands = if pods.are_tasks() { &*container.script } else { &container.commands };
    let last = commands.iter().rfind(is_said).filter(|command| command.background)?;
    let waits = container
        .texts()
        .any(|text| ["wait", "fg", "tail -f", "sleep", "disown"].iter().any(|word| text.contains(word)));
    (!waits).then(|| {
        let words = last.written().into_iter().take(2).collect::<Vec<_>>().join(" ");
        let who = if pods.are_tasks() { "the job" } else { "the container" };
        let evidence = format!("the script ends while `{words} …` runs in the background, and {who} with it");
        Check::fail(evidence, "`wait` as the last line").at(pods.at(&container.at("command")))
    })
}
