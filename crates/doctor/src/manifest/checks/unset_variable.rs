//! An endpoint, a rank or a number that is made of an empty variable is another one than its reader thinks.

use super::node_rank::is_index;
use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "unset-variable",
    sees: "FAIL: a launch value uses `$(NAME)` or `$NAME`, and nothing sets it, or is a variable's name \
           without `$`",
    examples: ["unset-variable.yaml", "good-job-static.yaml"],
    find: Find::Container(find),
};

fn find(pods: &Pods, container: &Container) -> Vec<Check> {
    let of_launch = |launch| in_launch(pods, container, launch);
    // `rallypoint run` sets the variables of a launch.
    let is_read = |launch: &&Launch| container.trains() && !launch.by_rallypoint;
    let launches: Vec<Check> = container.launches.iter().filter(is_read).flat_map(of_launch).collect();
    launches.into_iter().chain(left_as_written(pods, container)).collect()
}

/// Unset variables in the values for the endpoint and the node's rank. Other values are left to the script.
fn in_launch(pods: &Pods, container: &Container, launch: &Launch) -> Vec<Check> {
    let mut said = std::collections::BTreeSet::new();
    let mut found = Vec::new();
    for (what, told) in launch.told() {
        // Other checks look at ranks and ports that are words. An id may be any word.
        let is_name = matches!(what, "the master's address" | "the number of nodes");
        let name = told.text.literal().filter(|_| is_name);
        if let Some(name) = name.filter(|name| launch.command.variables.contains_key(*name)) {
            let evidence = format!(
                "{what} ({}) is the word `{name}`, and a variable is called so: a `$` is missing",
                told.by
            );
            let check = Check::fail(evidence, format!("${name}"));
            found.push(check.at(pods.at(&container.at("command"))));
        }
        for name in told.text.unset() {
            let of_maker =
                !pods.are_tasks() && pods.facts().prefixes.iter().any(|prefix| name.starts_with(prefix));
            let of_service = name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT");
            // Another check names the cause: pods without an index.
            let is_index = is_index(name) && !pods.has_index() && what == "the node rank";
            let is_early = container.too_early().any(|(_, early)| early == name);
            if of_maker || of_service || is_index || is_early || !said.insert(name.to_owned()) {
                continue;
            }
            let (by, maker) = (&told.by, pods.facts().name);
            let evidence = if name.contains(' ') {
                format!(
                    "{what} ({by}) comes from the {name}, which neither the template nor a {maker} gives to \
                     the pods: it is empty"
                )
            } else if container.left_as_written().contains(name) {
                format!("{what} ({by}) names $({name}), which is not defined: it stays as it is written")
            } else {
                format!("{what} ({by}) is made of ${name}, but nothing sets it: it is empty")
            };
            found.push(Check::fail(evidence, remedy(pods, name)).at(pods.at(&container.at("command"))));
        }
    }
    found
}

/// `$(NAME)` that the kubelet does not expand: in a command without a shell, and in variables that come too
/// early.
fn left_as_written(pods: &Pods, container: &Container) -> Vec<Check> {
    let of_maker = |name: &str| pods.facts().prefixes.iter().any(|prefix| name.starts_with(prefix));
    // Kustomize fills in such names, too, in what is no training as a rule.
    let tell = if pods.train() { Check::fail } else { Check::warn };
    let mut found = Vec::new();
    for (variable, name) in container.too_early() {
        let later = container.variables.contains_key(name);
        let is_own = container.own.iter().any(|own| own == name);
        let (why, advice) = match later {
            true if is_own => ("which is defined only after it", remedy(pods, name)),
            true => (
                "which the maker adds only after it",
                format!("use ${name} in the command, where it is filled in"),
            ),
            false => ("which is not defined", remedy(pods, name)),
        };
        let evidence = format!("{variable} names $({name}), {why}: the text stays as it is written");
        found.push(tell(evidence, advice).at(pods.at(&container.at("env"))));
    }
    let unexpanded = container.argv.iter().filter_map(|word| Some((word, container.unexpanded(word)?)));
    for (written, name) in unexpanded {
        let known = container.variables.contains_key(name);
        if !known && (pods.is_open || !container.trains()) {
            continue;
        }
        let evidence = format!(
            "`{written}` stays as it is written: no shell reads it, and Kubernetes fills in only $(NAME)"
        );
        let remedy = if known { format!("write $({name})") } else { remedy(pods, name) };
        found.push(Check::fail(evidence, remedy).at(pods.at(&container.at("command"))));
    }
    for name in container.left_as_written() {
        let is_unset = |(_, told): (&str, &Told)| told.text.unset().any(|unset| unset == name);
        if of_maker(name) || container.launches.iter().any(|launch| launch.told().any(is_unset)) {
            continue;
        }
        let evidence =
            format!("$({name}) is used, but no variable of that name is defined: it stays as it is written");
        found.push(tell(evidence, remedy(pods, name)).at(pods.at(&container.at("command"))));
    }
    found
}

fn remedy(pods: &Pods, name: &str) -> String {
    let facts = pods.facts();
    if let Some(option) = name.strip_prefix("SLURM_").filter(|_| pods.are_tasks()) {
        return format!("#SBATCH --{}=…, which sets it", option.to_lowercase().replace('_', "-"));
    }
    if pods.are_tasks() {
        let advice = format!("bash -c '… ${name} …', in single quotes, so that each task fills it in");
        let exported = format!("export {name}: no other program gets what the script sets without");
        return if name.contains("RANK") { advice } else { exported };
    }
    let is_rank = ["RANK", "INDEX", "ORDINAL"].iter().any(|word| name.to_uppercase().contains(word));
    let is_id = ["UID", "RUN_ID", "JOB_ID", "RDZV_ID"].iter().any(|word| name.to_uppercase().contains(word));
    match (facts.index, facts.run_id) {
        (Some(index), _) if is_rank => match index.in_env() {
            Some(line) => format!("put into env: {line}, and use $POD_INDEX"),
            None => format!("use {}, which a {} sets", index.in_shell(), facts.name),
        },
        (_, Some(path)) if is_id => format!("put into env: {}", env_of_field(name, path)),
        _ => format!("define {name} in env, before its first use; a {} does not set it", facts.name),
    }
}
