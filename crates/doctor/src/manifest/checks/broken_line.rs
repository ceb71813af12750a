//! A command goes on in the next line only if the backslash is the last character. A blank or a comment
//! behind it, or a line that is a comment, ends the command, as does one without a backslash: its other flags
//! become a command of their own.

use super::prelude::*;
use rallypoint_shell::{Surroundings, Variables, read};

pub(super) const RULE: Rule = Rule {
    id: "broken-line",
    sees: "FAIL: a blank or a comment behind the `\\` at the end of a line, no `\\` at all, or a line with a \
           comment between the flags: torchrun does not get what follows",
    fails: "broken-line.sbatch",
    passes: "good-slurm.sbatch",
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let of_object = |object: &Object| {
        let of_map = || object.value.get("data").into_iter().filter_map(Value::as_object).flatten();
        let scripts = of_map().filter_map(|(_, text)| text.as_str()).filter(|text| text.starts_with("#!"));
        let mut texts = object.script().into_iter().chain(scripts);
        let broken = texts.clone().find_map(broken).map(check).or_else(|| texts.find_map(unjoined));
        Some(broken?.at(object.place("-")))
    };
    let of_container = |(pods, container): (&Pods, &Container)| {
        let found = container.argv.iter().find_map(|text| broken(text))?;
        Some(check(found).at(pods.at(&container.at("command"))))
    };
    let objects = manifests.objects.iter().filter_map(of_object);
    objects.chain(manifests.containers().filter_map(of_container)).collect()
}

fn check((number, why, lost): (usize, &str, &str)) -> Check {
    let lost = lost.trim().trim_end_matches('\\').trim_end();
    let evidence = format!("line {number}: {why} ends the command there, and `{lost}` is not part of it");
    Check::fail(evidence, "nothing behind the backslash, and comments above the command")
}

/// Flags that stand where a program should.
fn unjoined(text: &str) -> Option<Check> {
    let file = |_: &str| None;
    let surroundings =
        Surroundings { variables: Variables::new(), open: true, file: &file, here: &[], choice: 0 };
    // Elsewhere it may be a rest that nothing needs.
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_next = |flag: &str| {
        let ends = |line: &str| !line.is_empty() && !line.starts_with('#') && !line.ends_with('\\');
        lines.windows(2).any(|two| two[1].starts_with(flag) && ends(two[0]))
    };
    let flag = read(text, &[], surroundings).commands.into_iter().find_map(|command| {
        let name = command.words.first()?.to_string().split('=').next()?.to_owned();
        (name.starts_with("--") && is_next(&name)).then_some(name)
    })?;
    let evidence = format!("`{flag}` stands where a program should: the line before has no backslash");
    Some(Check::fail(evidence, "a backslash at the end of each line but the last of a command"))
}

/// The first line that ends a command too early, by its number, and what the command loses.
fn broken(text: &str) -> Option<(usize, &'static str, &str)> {
    let is_remark = |line: &&str| line.trim_start().starts_with('#');
    let lines: Vec<&str> = text.lines().collect();
    (1..).zip(&lines).filter(|(_, line)| !is_remark(line)).find_map(|(number, line)| {
        let (_, behind) = line.rsplit_once('\\')?;
        let mut next = lines.iter().skip(number).copied();
        let blank = behind.starts_with([' ', '\t']);
        let why = match behind.trim() {
            "" if blank => "a blank behind the backslash",
            remark if blank && remark.starts_with('#') => "a comment behind the backslash",
            "" if lines.get(number).is_some_and(is_remark) => "the comment in the next line",
            _ => return None,
        };
        let lost = next.find(|line| !is_remark(line))?;
        lost.trim_start().starts_with('-').then_some((number, why, lost))
    })
}
