//! sbatch reads its lines up to the first command, and fills in no variable. It ignores the others without a
//! word, and the job gets another size.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "sbatch-ignored",
    sees: "FAIL: `#SBATCH` lines behind the first command of the script; `#SBATCH --nodes=$NODES`; a script \
           whose first line is not `#!/bin/bash`",
    fails: "sbatch-ignored.sbatch",
    passes: "good-slurm.sbatch",
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let scripts: Vec<&Object> =
        manifests.objects.iter().filter(|it| it.value.get("script").is_some()).collect();
    let unfilled = |object: &Object| {
        const NUMBERS: [&str; 7] =
            ["--nodes", "--ntasks", "--ntasks-per-node", "--gpus", "--gres", "-N", "-n"];
        let text = object.value.get("script").and_then(Value::as_str)?;
        let lines = text.lines().filter_map(|line| line.strip_prefix("#SBATCH"));
        let line = lines.map(str::trim).find(|line| {
            let name = line.split(['=', ' ']).next().unwrap_or_default();
            NUMBERS.contains(&name) && line.split('#').next().is_some_and(|line| line.contains('$'))
        })?;
        let evidence = format!("sbatch fills in no variable: it rejects `#SBATCH {line}`");
        let remedy = "the number itself, or the option on the command line: sbatch --nodes=$NODES SCRIPT";
        Some(Check::fail(evidence, remedy).at(object.place("-")))
    };
    let behind = |object: &Object| {
        let text = object.value.get("script").and_then(Value::as_str)?;
        let is_command = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
        let command = text.lines().find(is_command)?;
        let mut behind = text.lines().skip_while(|line| !is_command(line));
        let line = behind.find(|line| line.starts_with("#SBATCH"))?;
        let evidence =
            format!("`{}` stands behind the command `{}`: sbatch ignores it", line.trim(), command.trim());
        Some(Check::fail(evidence, "move the #SBATCH lines above every command").at(object.place("-")))
    };
    let unnamed = |object: &Object| {
        let text = object.value.get("script").and_then(Value::as_str)?;
        let is_late = !text.starts_with("#!") && text.lines().any(|line| line.starts_with("#SBATCH"));
        let evidence = "the first line names no interpreter (`#!`): sbatch refuses the script";
        is_late.then(|| Check::fail(evidence, "#!/bin/bash as the very first line").at(object.place("-")))
    };
    let found = scripts.iter().filter_map(|it| unnamed(it).or_else(|| unfilled(it)));
    found.chain(scripts.iter().filter_map(|it| behind(it))).collect()
}
