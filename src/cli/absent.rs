//! Stands in for the parts that this program was built without, and tells how to get them.

use super::UsageError;

/// Stands in for `bench`: takes any arguments.
#[cfg(any(test, not(feature = "bench")))]
#[derive(Debug, clap::Args)]
#[command(hide = true, disable_help_flag = true)]
pub(super) struct Args {
    /// Not read
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    _any: Vec<String>,
}

#[cfg(any(test, not(feature = "bench")))]
impl Args {
    #[expect(clippy::unused_self, reason = "called as any command")]
    pub(super) fn run(self) -> anyhow::Result<super::Outcome> {
        Err(is_absent("bench", "bench").into())
    }
}

/// Stands in for `doctor --manifest`.
#[cfg(any(test, not(feature = "manifests")))]
pub(super) fn check<T>(_manifests: &[std::path::PathBuf]) -> anyhow::Result<T> {
    Err(is_absent("doctor --manifest", "manifests").into())
}

fn is_absent(command: &str, feature: &str) -> UsageError {
    UsageError(format!(
        "this program was built without `{command}`: take a released one, or build it with --features \
         {feature}"
    ))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    #[test]
    fn whatever_is_asked_of_an_absent_command_it_says_how_to_get_it() {
        let command = Args::augment_args(Command::new("bench"));
        for words in [&["bench"][..], &["bench", "--help"], &["bench", "mixed", "-n", "4", "--rate=9"]] {
            let matches = command.clone().try_get_matches_from(words).expect("any words");
            let error = Args::from_arg_matches(&matches).expect("any words").run().expect_err("absent");
            assert!(error.is::<UsageError>() && error.to_string().contains("--features bench"), "{error}");
        }
        let error = check::<()>(&["job.yaml".into()]).expect_err("absent");
        assert!(error.is::<UsageError>() && error.to_string().contains("--features manifests"), "{error}");
    }
}
