//! sbatch reads its lines up to the first command, and fills in no variable. It ignores the others without a
//! word, and the job gets another size. What runs is a copy of the script, in a folder of slurmd's.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "sbatch-ignored",
    sees: "FAIL: `#SBATCH` lines behind the first command; `#SBATCH --nodes=$NODES`, `-nodes=2`, \
           `--gpu=2`, `--time=24h`; a first line that is not `#!/bin/bash`; files by `dirname \"$0\"`. WARN: \
           `--nodes=<N>`; `--ntasks=1` beside `--ntasks-per-node=2`; lines that all begin with `# SBATCH`; \
           `#BATCH` between them",
    examples: ["sbatch-ignored.sbatch", "good-slurm.sbatch"],
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let scripts = manifests.objects.iter().filter_map(|object| Some((object, object.script()?)));
    let found = scripts.flat_map(|(object, text)| {
        let of_document = documents(text).into_iter().find_map(|inner| with_blank(&inner));
        // A here-document may be another script, which it writes.
        let own = text.lines().take_while(|line| !line.contains("<<") || line.trim_start().starts_with('#'));
        let text = &own.flat_map(|line| [line, "\n"]).collect::<String>();
        let first = unnamed(text).or_else(|| unfilled(text));
        let blank = with_blank(text).or(of_document);
        let found = [first, behind(text), blank, beside(text), misspelled(text)];
        found.into_iter().flatten().chain(refused(text)).map(|check| check.at(object.place("-")))
    });
    found.chain(manifests.pods.iter().filter_map(fewer)).collect()
}

/// `--ntasks` counts, and makes of `--ntasks-per-node` the most that a node may have.
fn fewer(pods: &Pods) -> Option<Check> {
    let size = pods.step.size;
    let (tasks, each) = (size.tasks?, size.each.filter(|_| pods.step.by.as_deref() == Some("srun"))?);
    (tasks < size.nodes.unwrap_or(1).saturating_mul(each)).then(|| {
        let evidence = format!(
            "srun starts {}: beside --ntasks, --ntasks-per-node={each} only says how many a node may have",
            counted(tasks, "task", "tasks")
        );
        Check::warn(evidence, "leave out --ntasks").at(pods.at("command"))
    })
}

/// The long options of sbatch in which people slip.
#[rustfmt::skip]
const OPTIONS: [&str; 22] = [
    "account", "array", "constraint", "cpus-per-gpu", "cpus-per-task", "gpus", "gpus-per-node",
    "gpus-per-task", "gres", "job-name", "mail-type", "mem", "mem-per-cpu", "mem-per-gpu", "nodelist",
    "nodes", "ntasks", "ntasks-per-gpu", "ntasks-per-node", "partition", "qos", "time",
];

/// The names of options that only look like slips of others.
const OTHERS: [&str; 6] = ["tasks-per-node", "export", "exclude", "times", "nodefile", "mem-bind"];

/// A word that is no option of sbatch.
fn refused(text: &str) -> Vec<Check> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("#SBATCH")).map(str::trim);
    let found = lines.filter(|line| line.starts_with('-')).filter_map(|line| {
        let name = line.split(['=', ' ', '\t']).next()?;
        if let Some(long) = name.strip_prefix('-').filter(|long| OPTIONS.contains(long)) {
            let letter = &name[..2];
            let evidence = format!(
                "sbatch reads `{name}` as {letter} with the value `{}`, and rejects the script",
                &line[2..]
            );
            return Some(Check::fail(evidence, format!("#SBATCH --{long}=…")));
        }
        let long = name.strip_prefix("--")?;
        let plain = long.replace('_', "-");
        // sbatch takes the beginning of an option for it, if there is one that begins so.
        let begun: Vec<&&str> = OPTIONS.iter().filter(|option| option.starts_with(long)).collect();
        if OTHERS.iter().any(|other| other.starts_with(long)) || begun.iter().any(|it| **it == long) {
            return None;
        }
        if let [first, second, ..] = begun.as_slice() {
            let evidence = format!("`{name}` may be --{first} or --{second}: sbatch rejects the script");
            return Some(Check::fail(evidence, format!("#SBATCH --{first}=…")));
        }
        if !begun.is_empty() {
            return None;
        }
        let is_it = |option: &&&str| {
            plain.trim_end_matches(|c: char| c.is_ascii_digit()) == **option || crate::is_near(&plain, option)
        };
        let right = OPTIONS.iter().find(is_it)?;
        let evidence = format!("`{name}` is no option of sbatch, which rejects the script");
        Some(Check::fail(evidence, format!("#SBATCH --{right}=…")))
    });
    found.collect()
}

/// The scripts that are handed to sbatch in here-documents.
fn documents(text: &str) -> Vec<String> {
    let mut lines = text.lines();
    let mut all = Vec::new();
    while let Some(line) = lines.next() {
        let Some((before, behind)) = line.split_once("<<") else { continue };
        let end = behind.trim_start_matches('-').trim().trim_matches(['"', '\'', '\\']);
        if before.split_whitespace().next() == Some("sbatch") && !end.is_empty() {
            all.push(lines.by_ref().take_while(|line| line.trim() != end).collect::<Vec<_>>().join("\n"));
        }
    }
    all
}

fn unfilled(text: &str) -> Option<Check> {
    const NUMBERS: [&str; 7] = ["--nodes", "--ntasks", "--ntasks-per-node", "--gpus", "--gres", "-N", "-n"];
    let lines = || text.lines().filter_map(|line| line.strip_prefix("#SBATCH")).map(str::trim);
    let is_number = |line: &str| NUMBERS.contains(&line.split(['=', ' ']).next().unwrap_or_default());
    if let Some(line) = lines().find(|line| is_number(line) && line.ends_with('=')) {
        let evidence = format!("`#SBATCH {line}` has no value: sbatch rejects it");
        return Some(Check::fail(evidence, "the number, or no such line"));
    }
    let is_place = |line: &&str| is_number(line) && line.contains(['<', '[']) && !line.contains('#');
    if let Some(line) = lines().find(is_place) {
        let evidence = format!("`#SBATCH {line}` is to be filled in: sbatch rejects it as it stands");
        return Some(Check::warn(evidence, "the number"));
    }
    if let Some(check) = lines().find_map(limit) {
        return Some(check);
    }
    let line = lines()
        .find(|line| is_number(line) && line.split('#').next().is_some_and(|line| line.contains('$')))?;
    let evidence = format!("sbatch fills in no variable: it rejects `#SBATCH {line}`");
    let remedy = "the number itself, or the option on the command line: sbatch --nodes=$NODES SCRIPT";
    Some(Check::fail(evidence, remedy))
}

/// A time that Slurm cannot read: its `time_str2secs`.
fn limit(line: &str) -> Option<Check> {
    let value = line.strip_prefix("--time=").or_else(|| line.strip_prefix("-t "))?.split('#').next()?.trim();
    let (days, rest) = value.split_once('-').map_or((None, value), |(days, rest)| (Some(days), rest));
    let are_digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let mut parts = rest.split(':');
    let is_time = days.is_none_or(are_digits) && parts.all(are_digits) && rest.matches(':').count() < 3;
    let is_word = ["-1", "infinite", "unlimited"].contains(&value.to_lowercase().as_str());
    let is_open = value.is_empty() || value.contains(['$', '<', '[', '{', '"', '\'', '%']);
    (!is_time && !is_word && !is_open).then(|| {
        let evidence = format!("`{value}` is no time for Slurm: sbatch rejects it");
        Check::fail(evidence, "minutes, HH:MM:SS or DAYS-HH:MM:SS")
    })
}

/// A file is looked for beside the script, and slurmd runs a copy of that.
fn beside(text: &str) -> Option<Check> {
    let code = || text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let is_batch = text.lines().any(|line| line.starts_with("#SBATCH"));
    // These tell where the script is.
    let is_told = code().any(|line| line.contains("SLURM_SUBMIT_DIR") || line.contains("scontrol show job"));
    let is_own = |line: &&str| {
        line.contains("dirname") && ["$0", "${0}", "BASH_SOURCE"].iter().any(|it| line.contains(it))
    };
    let own = code().find(is_own).filter(|_| is_batch && !is_told)?;
    let name = own.split_once('=').map_or("", |(name, _)| name.trim_start_matches("export ").trim());
    let uses = |line: &&str| {
        let is_used = [format!("${name}/"), format!("${{{name}}}/")].iter().any(|it| line.contains(it));
        !is_own(line) && is_used && !name.is_empty()
    };
    // What a test looks for may be missing there.
    let is_direct = |line: &&str| {
        let behind = line.rsplit_once(')').map_or("", |(_, behind)| behind.trim_start_matches('"'));
        let program = line.split_whitespace().next().unwrap_or_default();
        is_own(line) && behind.starts_with('/') && !program.contains(['=', '[']) && program != "if"
    };
    let line = match code().find(is_direct) {
        Some(line) => line,
        None if own.starts_with("cd ") => own,
        None => code().find(uses)?,
    };
    let evidence =
        format!("slurmd runs a copy of this script, which lies in a folder of its own: `{line}` leads there");
    Some(Check::fail(evidence, "$SLURM_SUBMIT_DIR, where sbatch was called, or the whole path"))
}

fn behind(text: &str) -> Option<Check> {
    let is_command = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let mut lines = text.lines();
    let command = lines.find(is_command)?.trim();
    let line = lines.find(|line| line.starts_with("#SBATCH"))?.trim();
    let evidence = format!("`{line}` stands behind the command `{command}`: sbatch ignores it");
    Some(Check::fail(evidence, "move the #SBATCH lines above every command"))
}

fn unnamed(text: &str) -> Option<Check> {
    let is_late = !text.starts_with("#!") && text.lines().any(|line| line.starts_with("#SBATCH"));
    let evidence = "the first line names no interpreter (`#!`): sbatch refuses the script";
    is_late.then(|| Check::fail(evidence, "#!/bin/bash as the very first line"))
}

/// One such line may be meant as a comment; several, and no other, are not.
fn with_blank(text: &str) -> Option<Check> {
    let mut lines = text.lines().filter(|line| line.starts_with("# SBATCH -"));
    let are_all = !text.lines().any(|line| line.starts_with("#SBATCH"));
    let (line, _) = lines.next().zip(lines.next()).filter(|_| are_all)?;
    let evidence = format!("`{}` is a comment, as all such lines here are: sbatch reads none", line.trim());
    Some(Check::warn(evidence, "#SBATCH, without the blank"))
}

/// Between lines that sbatch reads, one that it takes for a comment.
fn misspelled(text: &str) -> Option<Check> {
    let header = || text.lines().take_while(|line| line.trim().is_empty() || line.starts_with('#'));
    let is_near = |line: &&str| {
        let word = line.trim_start_matches('#').split([' ', '\t']).next().unwrap_or_default();
        let is_option = line.split_whitespace().nth(1).is_some_and(|option| option.starts_with('-'));
        is_option && !line.starts_with("##") && crate::is_near(word, "SBATCH")
    };
    let line = header().find(is_near).filter(|_| header().any(|line| line.starts_with("#SBATCH")))?;
    let evidence = format!("`{}` is a comment: sbatch reads lines that begin with #SBATCH", line.trim());
    Some(Check::warn(evidence, "#SBATCH"))
}
