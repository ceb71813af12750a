//! The command that a shell would start, with the pod's variables: a script sets and uses variables, and
//! calls other scripts.

use crate::manifest::launch::Launch;
use crate::manifest::launches;
use rallypoint_node::launch::{Environment, Tool, Torchrun, find_torchrun_in};
use rallypoint_shell::{self as shell, Command, Part, Reading, Source, Surroundings, Text, Variables};

/// torchrun as a command starts it on this host, and the variables that it gets. `file` gives the text of a
/// script.
pub fn find_command(
    argv: &[String],
    env: &Environment,
    hostname: &str,
    file: &dyn Fn(&str) -> Option<String>,
) -> (Option<Torchrun>, Environment) {
    let is_shell = argv.iter().any(|word| shell::is_shell(word));
    let commands = if is_shell { read(argv, env, file).commands } else { Vec::new() };
    let found = commands.iter().find_map(|command| {
        let words: Vec<String> = command.words.iter().map(|word| filled(word, hostname).0).collect();
        let torchrun = Torchrun::parse(&words);
        let accelerate = launches::launch(command, 0).filter(|it| it.tool() == Tool::Accelerate);
        (torchrun.is_some() || accelerate.is_some()).then(|| {
            // accelerate gives its master to its processes.
            let given = |launch: Launch| [("MASTER_ADDR", launch.host), ("MASTER_PORT", launch.port)];
            let told = accelerate.into_iter().flat_map(given).filter_map(|(name, told)| Some((name, told?)));
            let set = told.map(|(name, told)| (name.to_owned(), filled(&told.text, hostname).0));
            (torchrun, variables(command, hostname).with(&set.collect::<Vec<_>>()))
        })
    });
    found.unwrap_or_else(|| (find_torchrun_in(argv, env), env.clone()))
}

fn read(argv: &[String], env: &Environment, file: &dyn Fn(&str) -> Option<String>) -> Reading {
    let words: Vec<Text> = argv.iter().map(Text::known).collect();
    let known = |(name, value): (&str, &str)| (name.to_owned(), vec![Text::known(value)]);
    let variables: Variables = env.iter().map(known).collect();
    shell::started(&words, false, &[], Surroundings { variables, open: false, file, here: &[], choice: 0 })
}

/// The variables of a command whose values are known.
fn variables(command: &Command, hostname: &str) -> Environment {
    let one = |(name, value): (String, Vec<Text>)| {
        let (value, is_known) = filled(value.first()?, hostname);
        is_known.then_some((name, value))
    };
    command.environment().into_iter().filter_map(one).collect()
}

/// A text with this host's name where it has the host's name, and whether everything in it is known.
fn filled(text: &Text, hostname: &str) -> (String, bool) {
    let mut made = String::new();
    let mut is_known = true;
    for part in text.parts() {
        match part {
            Part::Known(known) => made.push_str(known),
            Part::Of(Source::HostName) => made.push_str(hostname),
            other => {
                is_known &= matches!(other, Part::Unset(_));
                made.push_str(&Text::of(other.clone()).to_string());
            }
        }
    }
    (made, is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(script: &str) -> (Option<Torchrun>, Environment) {
        let argv = ["sh", "-c", script].map(str::to_owned);
        let env: Environment = [("RUN", "r1"), ("MASTER_ADDR", "elsewhere")].into_iter().collect();
        let file = |path: &str| {
            (path == "start.sh").then(|| "exec torchrun --rdzv-endpoint=$1:29500 t.py".to_owned())
        };
        find_command(&argv, &env, "n1", &file)
    }

    #[test]
    fn a_script_is_evaluated_with_the_variables_of_the_pod() {
        for (script, endpoint) in [
            ("HEAD=train-0; torchrun --rdzv-endpoint=$HEAD.$RUN:29500 t.py", "train-0.r1:29500"),
            ("torchrun --rdzv-endpoint=${HEAD:-train-0}:29500 t.py", "train-0:29500"),
            ("MASTER_ADDR=train-0\nif true; then torchrun --rdzv-endpoint=$MASTER_ADDR t.py; fi", "train-0"),
            ("bash start.sh train-0", "train-0:29500"),
            ("torchrun --rdzv-endpoint=$(hostname):1 t.py", "n1:1"),
            ("torchrun --rdzv-endpoint=$(head -1 hosts):1 t.py", "$(head -1 hosts):1"),
        ] {
            let (torchrun, _) = found(script);
            let torchrun = torchrun.unwrap_or_else(|| panic!("{script}"));
            assert_eq!(torchrun.flag("rdzv-endpoint"), Some(endpoint), "{script}");
        }
        let (_, env) = found("export MASTER_ADDR=train-0; torchrun t.py");
        assert_eq!(env.get("MASTER_ADDR"), Some("train-0"));
        let (_, env) = found("export MASTER_ADDR=$(head -1 hosts); torchrun t.py");
        assert_eq!(env.get("MASTER_ADDR"), None, "the pod's own value is not the one that torchrun gets");
    }

    #[test]
    fn the_master_of_accelerate_is_the_one_that_it_is_told() {
        let (torchrun, env) =
            found("H=train-0; accelerate launch --main_process_ip=$H --main_process_port 29501 t.py");
        assert_eq!((torchrun, env.get("MASTER_ADDR")), (None, Some("train-0")));
        assert_eq!(env.get("MASTER_PORT"), Some("29501"));
    }
}
