//! `rallypoint doctor`: every check of this pod or of manifests, with its verdict, evidence and remedy.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anstyle::AnsiColor;
use clap::builder::BoolishValueParser;
use serde_json::json;

use super::exit_codes::ExitCodes;
use super::flags::Output;
use super::launch::{LaunchArgs, environment, hostname};
use super::reach::admin_of;
use super::units::duration;
use super::{Outcome, manifests, run_client, sarif};
use rallypoint_doctor::{self as doctor, Check, Verdict, probe};
use rallypoint_node::client::http::AdminUrl;
use rallypoint_node::launch::{self, Environment, Meeting, Torchrun};

const AFTER_HELP: &str = "Without --manifest it looks at this pod: run it where the job runs, best with the \
                          job's command behind --. It changes nothing. Exit code: 0 no FAIL, 1 a FAIL (with \
                          --strict also a WARN), 2 usage";

/// Check what makes jobs hang: the environment, the command, the network, the server and this host; or
/// manifests.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// The store [default: what the environment or the command names]
    #[arg(value_name = "HOST:PORT", env = "RALLYPOINT_ENDPOINT")]
    endpoint: Option<String>,

    #[command(flatten)]
    launch: LaunchArgs,

    /// The admin port [default: port 29501 of the store's host]
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL")]
    admin: Option<AdminUrl>,

    /// Check Kubernetes manifests instead, offline: files, folders, or - for stdin; give all files of a job
    /// together
    #[arg(long, env = "RALLYPOINT_MANIFEST", value_name = "FILE", num_args = 1..)]
    manifest: Vec<PathBuf>,

    /// Time for each step on the network
    #[arg(long, env = "RALLYPOINT_STEP_TIMEOUT", value_name = "TIME", default_value = "5s",
        value_parser = duration)]
    step_timeout: Duration,

    /// Exit with 1 also if there is only a WARN
    #[arg(long, env = "RALLYPOINT_STRICT", value_parser = BoolishValueParser::new())]
    strict: bool,

    /// Print SARIF, for code scanning
    #[arg(long, env = "RALLYPOINT_SARIF", requires = "manifest", conflicts_with = "json",
        value_parser = BoolishValueParser::new())]
    sarif: bool,

    #[command(flatten)]
    exit_codes: ExitCodes,

    #[command(flatten)]
    output: Output,

    /// The job's command, whose flags are checked too
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        self.exit_codes.of(self.check())
    }

    fn check(&self) -> anyhow::Result<Outcome> {
        let (files, checks) = if self.manifest.is_empty() {
            (Vec::new(), self.this_pod()?)
        } else {
            manifests::check(&self.manifest)?
        };
        let worst = doctor::worst(&checks);
        if self.sarif {
            println!("{:#}", sarif::report(&checks, &files));
        } else if self.output.is_json() {
            println!("{:#}", json!({ "verdict": worst, "checks": checks }));
        } else {
            let mut text: String = checks.iter().map(coloured).collect();
            let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
            let (pass, warn, fail) = (count(Verdict::Pass), count(Verdict::Warn), count(Verdict::Fail));
            let mut failed: Vec<&str> =
                checks.iter().filter(|check| check.verdict == Verdict::Fail).map(|check| check.id).collect();
            failed.dedup();
            let which = if failed.is_empty() { String::new() } else { format!(": {}", failed.join(", ")) };
            let _ = writeln!(text, "{pass} passed, {warn} warned, {fail} failed{which}");
            print_coloured(&text)?;
        }
        let bad = worst == Verdict::Fail || self.strict && worst == Verdict::Warn;
        Ok(self.exit_codes.of_checks(worst, if bad { Outcome::NotDone } else { Outcome::Done }))
    }

    fn this_pod(&self) -> anyhow::Result<Vec<Check>> {
        let (torchrun, env) = called(&self.command, &environment());
        let given = self.launch.given(self.endpoint.as_deref())?;
        let launch = launch::derive(&env, &given, torchrun.as_ref());
        let mut checks = doctor::check_environment(&env, &launch, torchrun.as_ref());
        if let Some(torchrun) = &torchrun {
            checks.extend(doctor::check_command(torchrun, &env));
        }
        // The endpoint can be checked even if the ranks contradict each other.
        let meeting = launch::endpoint(&env, &given).ok().flatten().map(|endpoint| endpoint.value);
        let meeting =
            launch.as_ref().ok().and_then(|it| Some(it.endpoint.as_ref()?.value.clone())).or(meeting);
        // What a command prints, or an unset variable, is no host, and another source's host is another one.
        let is_open = torchrun.as_ref().is_some_and(|torchrun| {
            let named = |flag| torchrun.flag(flag).is_some_and(|value| value.contains('$'));
            named("rdzv-endpoint") || named("master-addr")
        });
        let meeting = meeting.filter(|_| !is_open || given.endpoint.is_some());
        let several = launch.as_ref().ok().and_then(|it| Some(it.nodes.as_ref()?.value.max > 1));
        let run_id = launch.as_ref().ok().and_then(|it| Some(it.run_id.as_ref()?.value.clone()));
        let own_ip = env.get("POD_IP").and_then(|ip| ip.parse().ok());
        let step = self.step_timeout;
        run_client(async {
            let (mut towards, mut admin_port) = (None, None);
            if let Some(meeting) = &meeting {
                let admin = admin_of(meeting, self.admin.as_ref());
                let store = meeting.store();
                admin_port = Some(admin.endpoint().port());
                let (mut facts, client) = probe::probe_network(&store, own_ip, step).await;
                facts.several = several.unwrap_or_default();
                facts.relays_only = client.is_none() && probe::relays_only(&admin, step).await;
                towards = facts.resolved.iter().flatten().next().map(std::net::SocketAddr::ip);
                checks.extend(match meeting {
                    Meeting::Store(_) => doctor::check_network(&facts),
                    // The plugin does not use the first store.
                    Meeting::Admin(_) => doctor::check_name(&facts),
                });
                let facts = probe::probe_server(&admin, store.port(), run_id.as_deref(), client, step).await;
                checks.extend(doctor::check_server(&facts));
            }
            let mut facts = probe::probe_machine(&hostname(), towards, step).await;
            let store = meeting.as_ref().map(|meeting| meeting.store().port());
            facts.several = several.unwrap_or_default();
            facts.binds = doctor::binds(store, admin_port, &env, torchrun.as_ref());
            checks.extend(doctor::check_machine(&facts, &env, torchrun.as_ref()));
            Ok(())
        })?;
        Ok(checks)
    }
}

/// torchrun as the command starts it, and the variables that it gets.
#[cfg(feature = "manifests")]
fn called(command: &[String], env: &Environment) -> (Option<Torchrun>, Environment) {
    doctor::find_command(command, env, &hostname(), &|path| std::fs::read_to_string(path).ok())
}

/// torchrun in the command, and its variables. Only the reader of manifests evaluates scripts.
#[cfg(not(feature = "manifests"))]
fn called(command: &[String], env: &Environment) -> (Option<Torchrun>, Environment) {
    (launch::find_torchrun_in(command, env), env.clone())
}

/// The printed form of a check, with its verdict in colour.
fn coloured(check: &Check) -> String {
    let name = check.verdict.name();
    let colour = match check.verdict {
        Verdict::Pass => AnsiColor::Green,
        Verdict::Warn => AnsiColor::Yellow,
        Verdict::Fail => AnsiColor::Red,
    };
    let style = colour.on_default().bold();
    let text = format!("{check:#}");
    let rest = text.strip_prefix(name).unwrap_or(&text);
    format!("{style}{name}{style:#}{rest}\n")
}

/// Prints text with colours; without them if there is no terminal, or with NO_COLOR or TERM=dumb.
fn print_coloured(text: &str) -> std::io::Result<()> {
    match anstream::stdout().lock().write_all(text.as_bytes()) {
        // The reader in `rallypoint doctor | head -1` has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
