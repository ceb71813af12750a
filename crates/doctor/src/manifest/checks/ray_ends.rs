//! `ray start` returns when its processes run. If it is the last command of a container, that ends, and Ray's
//! processes with it: the others wait for a head, or the head for its workers.

use super::prelude::*;
use crate::manifest::launches::{starts_ray, symmetric_run};

pub(super) const RULE: Rule = Rule {
    id: "ray-ends",
    sees: "FAIL: a pod whose last command is `ray start` without `--block`, or that has an image of Ray and \
           no command; with it, but without `&`, before others. WARN: `srun ray start` without it, or `ray \
           start` without `srun` on several nodes",
    examples: ["ray-ends.yaml", "good-ray-block.yaml"],
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

/// What stands behind a part of Ray that stays in the foreground.
fn behind_block(commands: &[Command]) -> Option<String> {
    let stays = |it: &Command| {
        let words = it.written();
        let is_ray = starts_ray(&words) || words.windows(2).any(|two| two == ["ray", "start"]);
        // Without either it refuses to start.
        let is_part = words.iter().any(|word| word == "--head" || word.starts_with("--address"));
        is_ray
            && is_part
            && words.iter().any(|word| word == "--block")
            && !(it.background || it.conditional || it.repeated || it.piped)
    };
    let at = commands.iter().position(stays)?;
    let is_next = |it: &&Command| !Container::is_small(it) && !it.conditional;
    let next = commands.iter().skip(at).skip(1).find(is_next)?;
    Some(next.written().into_iter().take(3).collect::<Vec<_>>().join(" "))
}

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    // KubeRay itself starts Ray, with the flag, unless a word of the first container does so.
    let starts_itself =
        pods.is_first(container) && container.argv.iter().any(|word| word.contains("ray start"));
    let is_left = pods.maker == Maker::Ray && (pods.is_container || !starts_itself);
    if is_left || !container.unread.is_empty() {
        return None;
    }
    let starts = |command: &&Command| {
        let words = command.written();
        let own = words.iter().skip_while(|word| *word != "start");
        starts_ray(&words)
            && !own.into_iter().any(|word| word.starts_with("--block") || word.starts_with('$'))
    };
    if let Some(next) = behind_block(if pods.are_tasks() { &container.script } else { &container.commands }) {
        let evidence =
            format!("`ray start --block` does not return, and no `&` is behind it: `{next}` waits");
        return Some(Check::fail(evidence, "a `&`, or no --block").at(pods.at(&container.at("command"))));
    }
    let is_srun = |command: &&Command| command.words[0].to_string() == "srun";
    let remedy = "ray start --block …";
    let nodes = pods.step.size.nodes.filter(|nodes| *nodes > 1 && pods.runs_once().is_some());
    let ray = |command: &Command| {
        let words = command.written();
        let is_part = starts_ray(&words).then_some(("ray start", remedy));
        is_part.or_else(|| symmetric_run(&words).map(|_| ("ray symmetric-run", "ray symmetric-run …")))
    };
    let on_first = nodes.zip(container.commands.iter().find_map(ray));
    let check = if let Some((nodes, (ray, on_all))) = on_first {
        let evidence = format!("`{ray}` runs on the first of {nodes} nodes alone: the others are idle");
        Check::warn(evidence, format!("srun --ntasks-per-node=1 {on_all}"))
    } else if pods.are_tasks() {
        container.script.iter().filter(is_srun).find(starts)?;
        let evidence = "`ray start` returns at once, and Slurm ends what a step leaves behind: Ray is gone";
        Check::warn(evidence, remedy)
    } else {
        let image = container.value.get("image").and_then(Value::as_str).unwrap_or_default();
        let is_bare = container.argv.is_empty() && image.starts_with("rayproject/ray");
        let last = container.commands.last().filter(starts).filter(|command| !command.conditional);
        let what =
            if is_bare { "an image of Ray starts nothing by itself" } else { "`ray start` returns at once" };
        (is_bare || last.is_some()).then_some(())?;
        Check::fail(format!("{what}, and the container ends with it: Ray never stays"), remedy)
    };
    Some(check.at(pods.at(&container.at("command"))))
}
