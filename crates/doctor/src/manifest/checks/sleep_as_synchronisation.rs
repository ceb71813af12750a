//! A pause hopes that the other pods are up by then; on a slow day they are not.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "sleep-as-synchronisation",
    sees: "WARN: `sleep 30` in front of torchrun. FAIL: `sleep infinity`",
    examples: ["sleep.yaml", "good-job-static.yaml"],
    find: Find::Launch(Tool::ALL, find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { container, launch, .. } = call;
    // What one pod alone waits for may be there already. Tasks of a batch system start together, on nodes
    // that have names.
    let several = launch.most_nodes().is_none_or(|nodes| nodes > 1)
        && call.pods.part_of.is_none()
        && call.pods.maker != Maker::Slurm;
    let sleep = container.commands[..launch.at.min(container.commands.len())].iter().find(|command| {
        command.words[0].literal() == Some("sleep")
            && !command.conditional
            && !command.repeated
            && command.moment != launch.command.moment
    })?;
    let words = sleep.written();
    if matches!(words.get(1).map(String::as_str), Some("inf" | "infinity")) {
        let evidence = format!("`{}` stands in front of it: it never starts", words.join(" "));
        return Some(Check::fail(evidence, "leave that out").at(call.at("command")));
    }
    several.then(|| {
        let check = Check::warn(
            format!("`{}` hopes that the others are up by then", words.join(" ")),
            "wait for what is needed: an init container with `rallypoint wait --nodes N`, or start with \
             `rallypoint run`",
        );
        check.at(call.at("command"))
    })
}
