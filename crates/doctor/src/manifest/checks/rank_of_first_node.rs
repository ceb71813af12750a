//! The script's own shell fills in `$SLURM_PROCID` before `srun` starts anything: all tasks get one number.

use super::prelude::*;
use rallypoint_shell::Part;

pub(super) const RULE: Rule = Rule {
    id: "rank-of-first-node",
    sees: "FAIL: `srun python train.py --rank=$SLURM_PROCID` in a script for sbatch: each task gets 0",
    fails: "slurm-own-flag.sbatch",
    passes: "good-slurm.sbatch",
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    let by = pods.step.as_ref().map_or(Some("srun"), |step| step.by.as_deref())?;
    let is_read = |told: &Option<Told>| told.as_ref().is_some_and(|told| is_first(&told.text));
    // Another check reports what a launcher gets.
    if !pods.are_several() || container.launches.iter().any(|launch| is_read(&launch.node_rank)) {
        return None;
    }
    let flag = container.commands.iter().find_map(rank_flag)?;
    let evidence = format!(
        "`{flag}` is filled in by the script's own shell, before {by} starts anything: every task gets 0"
    );
    let remedy = format!("{by} bash -c '… {flag} …', in single quotes, so that each task fills it in");
    Some(Check::fail(evidence, remedy).at(pods.at(&container.at("command"))))
}

fn is_first(text: &Text) -> bool {
    text.parts().iter().any(|part| matches!(part, Part::Of(Source::FirstNode)))
}

/// A flag for a rank with the number of the first node.
fn rank_flag(command: &Command) -> Option<String> {
    let is_rank = |word: &Text| {
        let word = word.to_string().to_lowercase();
        word.starts_with("--")
            && (word.contains("rank") || word.contains("node_id") || word.contains("node-id"))
    };
    let words = &command.words;
    words.iter().enumerate().filter(|(_, word)| is_rank(word)).find_map(|(n, word)| {
        let behind = words.get(n.saturating_add(1)).filter(|next| is_first(next));
        let name = word.to_string();
        let name = name.split('=').next().unwrap_or_default();
        (is_first(word) || behind.is_some()).then(|| name.to_owned())
    })
}
