//! Flags of earlier versions. Whoever still sets one learns what to do instead.

use clap::ArgMatches;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of `serve` that are constants now. `RALLYPOINT_<FLAG>` was the variable of each.
const CONSTANTS: [(&str, &str); 16] = [
    ("drop-spent", "addresses of ended processes are always dropped"),
    ("forget-finished-after", "a finished run is forgotten after 10s"),
    ("handshake-timeout", "it is always 10s"),
    ("keep-alive", "it is 5s where a run's first join sets nothing else"),
    ("keep-alive-misses", "it is 3 where a run's first join sets nothing else"),
    ("last-call", "it is 30s where a run's first join sets nothing else (`rallypoint join --last-call`)"),
    ("max-key", "it is always 8KiB"),
    ("max-keys", "--max-memory is the limit"),
    ("max-keys-per-request", "it is always 131072"),
    ("pod-timeout", "it is always 30s"),
    ("recovery", "it is always 2s"),
    ("reload-every", "the files are looked at every 30s"),
    ("request-timeout", "it is always 30s"),
    ("store-linger", "it is always 10m"),
    ("threads", "half the cores serve, 1 to 4"),
    ("write-timeout", "it is always 1m"),
];

/// Flags that all commands had, wherever they stood.
const GLOBAL: [(&str, &str); 6] = [
    ("-o", "use --json"),
    ("--output", "use --json"),
    ("--tls-ca", "`serve` does not need it, and other commands have it after their name"),
    ("--tls-client-cert", "`serve` does not need it, and other commands have it after their name"),
    ("--tls-client-key", "`serve` does not need it, and other commands have it after their name"),
    ("--token-file", "write it after the command's name"),
];

/// Adds a tip to clap's error about an unknown flag, if it is a removed one.
pub(super) fn explained(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && let Some(tip) = tip(flag)
    {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}

fn tip(flag: &str) -> Option<String> {
    let name = flag.strip_prefix("--");
    let constant = name.and_then(|name| CONSTANTS.iter().find(|(known, _)| *known == name));
    let global = || GLOBAL.iter().find(|(known, _)| *known == flag);
    match constant {
        Some((_, why)) => Some(format!("{flag} is gone, leave it out: {why}")),
        None => global().map(|(_, instead)| format!("{flag} is gone: {instead}")),
    }
}

/// Hints for variables that are set and that no command reads any more.
pub(super) fn variables(matches: &ArgMatches) -> impl Iterator<Item = String> {
    let is_server = matches.subcommand_name() == Some("serve");
    let flags: &[(&str, &str)] = if is_server { &CONSTANTS } else { &[("output", "--json prints JSON")] };
    flags.iter().filter_map(|(flag, why)| {
        let variable = format!("RALLYPOINT_{}", flag.to_uppercase().replace('-', "_"));
        let is_set = std::env::var_os(&variable).is_some_and(|value| !value.is_empty());
        is_set.then(|| format!("{variable} is gone, leave it out: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    #[test]
    fn a_removed_flag_says_what_to_do_and_an_unknown_one_does_not() {
        let said = |args: &[&str]| {
            let args = ["rallypoint"].iter().chain(args);
            explained(Cli::try_parse_from(args).expect_err("it is gone")).to_string()
        };
        for (flag, why) in CONSTANTS {
            let text = said(&["serve", &format!("--{flag}=1")]);
            assert!(text.contains(&format!("tip: --{flag} is gone, leave it out: {why}\n")), "{text}");
            assert_eq!(text.matches("tip:").count(), 1, "{text}");
        }
        for (flag, instead) in GLOBAL {
            let text = said(&[flag, "x", "status"]);
            assert!(text.contains(&format!("tip: {flag} is gone: {instead}\n")), "{text}");
        }
        assert!(!said(&["serve", "--max-keyz=1"]).contains("is gone"));
    }
}
