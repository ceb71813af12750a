//! mpirun counts the slots of its hosts, and starts nothing if it is to start more processes than these.
//! deepspeed starts nothing if a line of its host file does not say how many slots the host has.

use super::prelude::*;
use crate::manifest::launches::flag;
use crate::manifest::objects::scalar;

pub(super) const RULE: Rule = Rule {
    id: "mpi-slots",
    sees: "FAIL: `mpirun -np 16` in an MPIJob of 2 Workers with 4 slots each; `deepspeed --hostfile` with a \
           file of hosts without `slots=`. WARN: `-np 4` there; fewer slots than GPUs",
    examples: ["mpi-slots.yaml", "good-mpijob.yaml"],
    find: Find::Pods(|manifests, pods| {
        let commands = pods.containers.iter().flat_map(|own| own.commands.iter().map(move |it| (own, it)));
        let found = commands.filter_map(|(own, command)| {
            find(manifests, pods, own, command).or_else(|| of_deepspeed(manifests, pods, own, command))
        });
        found.collect()
    }),
};

fn find(manifests: &Manifests, pods: &Pods, container: &Container, command: &Command) -> Option<Check> {
    let words = command.written();
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
    // The operator's own file says what the job does.
    let is_operators =
        |at: usize| words.get(at.saturating_add(1)).is_some_and(|it| it == "/etc/mpi/hostfile");
    let mut others = words.iter().enumerate().filter(|(_, word)| is_other(word));
    if !is_mpirun || !is_led || others.any(|(at, _)| !is_operators(at)) || pods.is_open {
        return None;
    }
    let worker = manifests.of_object(pods.object).find(|own| own.role == "worker")?;
    let slots: u64 = field("slotsPerWorker").map_or(Some("1".into()), scalar)?.parse().ok()?;
    // The started program may have a `-n` of its own.
    let at = words.iter().position(|word| matches!(word.as_str(), "-np" | "--np"));
    let Some(at) = at.or_else(|| (words.get(1)? == "-n").then_some(1)) else {
        let gpus = worker.containers.iter().find_map(Container::gpus).filter(|gpus| *gpus > slots)?;
        let evidence = format!(
            "mpirun starts as many processes as there are slots, {slots} a Worker, and each has {gpus} GPUs"
        );
        let check = Check::warn(evidence, format!("slotsPerWorker: {gpus}, if each process uses one"));
        return Some(check.at(pods.at(&container.at("command"))));
    };
    let asked: u64 = words.get(at.saturating_add(1))?.parse().ok()?;
    let workers = worker.count?;
    let runs = field("runLauncherAsWorker") == Some(&Value::Bool(true));
    let all = workers.saturating_add(u64::from(runs)).saturating_mul(slots);
    let each = words.iter().position(|word| matches!(word.as_str(), "-N" | "-npernode" | "--npernode"));
    let each = each.and_then(|at| words.get(at.saturating_add(1))?.parse::<u64>().ok());
    let is_spread =
        words.iter().any(|word| ["map-by", "ppr", "pernode", "bynode"].iter().any(|it| word.contains(it)));
    let each = each.or((!is_spread).then_some(slots)).filter(|each| *each > 0);
    if let Some(used) = each.map(|each| asked.div_ceil(each)).filter(|used| *used < workers && !runs) {
        let evidence = format!(
            "mpirun is to start {asked} processes, which {used} of {workers} Workers hold: others are idle"
        );
        return Some(
            Check::warn(evidence, format!("-np {all}, or fewer Workers"))
                .at(pods.at(&container.at("command"))),
        );
    }
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

/// Whether a command of a script may write a file of hosts.
fn may_write(line: &str, told: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    let is_program = basename(first).starts_with("python")
        || rallypoint_shell::is_shell(first)
        || rallypoint_shell::is_script(first)
        || matches!(basename(first), "sed" | "awk" | "perl" | "mv" | "cp");
    !first.starts_with('#') && (is_program || line.contains(basename(told)))
}

/// A host file that the script writes, or that is in these files.
fn of_deepspeed(manifests: &Manifests, pods: &Pods, own: &Container, command: &Command) -> Option<Check> {
    if !command.words.iter().any(|word| word.literal().is_some_and(|word| basename(word) == "deepspeed")) {
        return None;
    }
    let told = flag(&command.words, &["hostfile"])?.text.to_string();
    // Only what surely writes names alone.
    let writes = |line: &str| {
        let lists = ["scontrol show host", "srun hostname", "cat $PBS_NODEFILE", "echo"];
        let to = line.rsplit_once('>').map(|(_, to)| to.trim().trim_matches(['"', '$', '{', '}']));
        lists.iter().any(|list| line.trim_start().starts_with(list))
            && to.is_some_and(|to| basename(to) == basename(&told) || to.to_lowercase().contains("hostfile"))
    };
    let is_written = || {
        let texts: Vec<&str> = own.texts().collect();
        let says = texts.iter().any(|text| text.contains("slots="));
        let lines = || texts.iter().flat_map(|text| text.lines());
        // What runs before the launcher may write it anew.
        let between = lines().skip_while(|line| !writes(line)).filter(|line| !writes(line));
        let mut between = between.take_while(|line| !line.contains("deepspeed"));
        !says && lines().any(writes) && !between.any(|line| may_write(line, &told))
    };
    let is_named = |text: String| {
        let mut hosts = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        hosts.any(|line| !line.contains("slots="))
    };
    (is_written() || own.file(pods, &manifests.objects, &told).is_some_and(is_named)).then(|| {
        let evidence = format!("the host file `{told}` has hosts without `slots=`: deepspeed refuses it");
        Check::fail(evidence, "HOST slots=8, a line for each host").at(pods.at(&own.at("command")))
    })
}
