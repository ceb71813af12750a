//! Several pods that run an unknown program may have to meet, and nothing here says how they do.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "no-launch",
    sees: "WARN: several pods run none of these launchers, and something hints at PyTorch: not checked. \
           FAIL: `srun python -c` with `init_process_group` in the text and nothing that sets `RANK`",
    examples: ["no-launch.yaml", "good-job-static.yaml"],
    find: Find::After(find),
};

fn find(manifests: &Manifests, found: &[Check]) -> Vec<Check> {
    let is_said = |pods: &Pods| {
        let of_object = |check: &Check| {
            let place = check.place.as_ref().filter(|_| check.verdict == Verdict::Fail);
            place.is_some_and(|place| (&place.file, &place.object) == (&pods.place.file, &pods.place.object))
        };
        found.iter().any(of_object)
    };
    manifests.pods.iter().filter(|pods| !is_said(pods)).filter_map(|pods| of_pods(manifests, pods)).collect()
}

fn of_pods(manifests: &Manifests, pods: &Pods) -> Option<Check> {
    let several = pods.nodes.or(pods.count).is_some_and(|count| count > 1);
    let makes_any = matches!(pods.maker, Maker::Pod | Maker::Unknown | Maker::JaxJob | Maker::KubeflowJob);
    // Their launcher starts what runs in the pods.
    let are_led = matches!(pods.maker, Maker::Ray | Maker::MpiJob);
    let trains = !(pods.are_of_kubernetes() || makes_any || are_led);
    let on_gpus = || !are_led && pods.containers.iter().any(|it| it.gpus().is_some());
    let is_open = pods.is_open && !pods.are_tasks();
    if !several || is_open || pods.train() || pods.serve() || !(trains || on_gpus()) {
        return None;
    }
    let by_kind = matches!(pods.maker, Maker::PyTorchJob | Maker::HyperPod) || pods.has_torch_runtime();
    let container = pods.containers.iter().find(|it| !is_known(it) && it.may_train(by_kind))?;
    // Flags alone are for the image's own command.
    let is_flag =
        |command: &Command| command.words.first().is_some_and(|word| word.to_string().starts_with('-'));
    let is_program = |command: &&Command| !Container::is_small(command) && !is_flag(command);
    let is_python = |command: &&Command| {
        command.words.iter().any(|word| is_python_file(&word.to_string())) && is_program(command)
    };
    let commands = || container.commands.iter().rev();
    let program = commands().find(is_python).or_else(|| commands().find(is_program));
    let begin = |command: &Command, words| {
        command.words.iter().take(words).map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    if let Some(command) = program.filter(|command| lacks_variables(manifests, command)) {
        let evidence = format!(
            "the pods run `{}` with `init_process_group`, which reads RANK, WORLD_SIZE and MASTER_ADDR: \
             nothing sets them",
            begin(command, 2)
        );
        let remedy = "start it with `torchrun`, or set them for each process";
        return Some(Check::fail(evidence, remedy).at(pods.at(&container.at("command"))));
    }
    let what = match program {
        Some(command) => {
            let of_script = if pods.are_tasks() { "of the script " } else { "" };
            format!("{of_script}run `{}`", begin(command, 3))
        }
        None => "run their image's own command".into(),
    };
    let unknown = || "starts no training as doctor knows it: it was not checked".into();
    let evidence = format!("the pods {what}, which {}", pods.runs_once().unwrap_or_else(unknown));
    let remedy = "if they train together: see that each knows the master's name, how many they are, and its \
                  own number";
    Some(Check::warn(evidence, remedy).at(pods.at(&container.at("command"))))
}

/// Whether a program that stands in the command, or lies beside it, reads torch's variables, which nothing
/// sets.
fn lacks_variables(manifests: &Manifests, command: &Command) -> bool {
    /// It may set them itself, and its call may have them.
    const SETS: [&str; 4] = ["MASTER_ADDR", "SLURM_", "spawn", "MPI"];
    const HAS: [&str; 3] = ["init_method", "rank=", "store="];
    let words = command.written();
    let file = words.iter().find_map(|word| manifests.beside.program(word)).map(str::to_owned);
    let text = file.unwrap_or_else(|| words.concat()).replace("init_method=\"env://\"", "");
    let calls =
        text.split("init_process_group(").skip(1).map(|call| call.split(')').next().unwrap_or_default());
    let mut calls = calls.peekable();
    calls.peek().is_some()
        && !calls.any(|call| HAS.iter().any(|word| call.contains(word)))
        && !SETS.iter().any(|word| text.contains(word))
        && ["RANK", "MASTER_ADDR"].iter().all(|name| command.variable(name).is_none())
}

/// Whether the container is read by another check, or runs something that meets by itself.
fn is_known(container: &Container) -> bool {
    const OTHERS: [&str; 5] = ["ray", "mpirun", "mpiexec", "sshd", "nginx"];
    let meets = |command: &Command| {
        let words = command.words.iter().filter_map(Text::literal).map(basename);
        words.into_iter().any(|word| OTHERS.contains(&word))
    };
    container.only_waits()
        || container.relays()
        || !container.unread.is_empty()
        || container.commands.iter().any(meets)
}
