//! sbatch reads its lines up to the first command. It ignores the others without a word, and the job gets
//! another size.

use super::prelude::*;

const ID: &str = "sbatch-ignored";

pub(super) const RULE: Rule = Rule {
    id: ID,
    chapter: Chapter::Agree,
    sees: "FAIL: `#SBATCH` lines behind the first command of the script",
    fails: "sbatch-ignored.sbatch",
    passes: "good-slurm.sbatch",
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let scripts = manifests.objects.iter().filter(|object| object.value.get("script").is_some());
    let check = |object: &Object| {
        let text = object.value.get("script").and_then(Value::as_str)?;
        let is_command = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
        let command = text.lines().find(is_command)?;
        let mut behind = text.lines().skip_while(|line| !is_command(line));
        let line = behind.find(|line| line.starts_with("#SBATCH"))?;
        let evidence =
            format!("`{}` stands behind the command `{}`: sbatch ignores it", line.trim(), command.trim());
        Some(Check::fail(ID, evidence, "move the #SBATCH lines above every command").at(object.place("-")))
    };
    scripts.filter_map(check).collect()
}
