//! `rallypoint env`: the launch environment, as variables for a shell, a script or a container.

use clap::ValueEnum;
use clap::builder::BoolishValueParser;
use serde_json::json;

use super::Outcome;
use super::launch::{LaunchArgs, environment};
use super::terminal::{print, say};
use rallypoint_node::launch::{self, for_torch, variables};
use rallypoint_protocol::ids::Shown;

const AFTER_HELP: &str = "In a shell: eval \"$(rallypoint env)\". To be a client of the server, an env:// \
                          program also needs TORCHELASTIC_USE_AGENT_STORE=True, and before torch 2.6 \
                          TORCHELASTIC_RESTART_COUNT=0; `rallypoint run` sets both. Exit code: 0 it follows, \
                          2 the environment contradicts itself or cannot be read; stderr says which variable";

/// Derive the launch environment from what the platform gives: PET_* for torchrun, MASTER_*, and for env://
/// RANK and WORLD_SIZE, if they follow from it.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    #[command(flatten)]
    launch: LaunchArgs,

    /// The store [default: what the environment names]
    #[arg(long, env = "RALLYPOINT_ENDPOINT", value_name = "HOST:PORT")]
    endpoint: Option<String>,

    /// How to print the variables
    #[arg(
        short = 'o',
        long,
        alias = "output",
        env = "RALLYPOINT_ENV_FORMAT",
        value_name = "FORMAT",
        default_value = "shell"
    )]
    format: Format,

    /// Say where each value came from: on stderr, or with --format json beside the variables
    #[arg(long, env = "RALLYPOINT_EXPLAIN", value_parser = BoolishValueParser::new())]
    explain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Shell,
    Json,
    Docker,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let env = environment();
        let launch = self.launch.derive(self.endpoint.as_deref(), &env, None)?;
        let mut variables = variables(&launch);
        variables.extend(for_torch(&launch, &env));
        let text = match self.format {
            Format::Shell => launch::Format::Shell.render(&variables),
            Format::Docker => launch::Format::Docker.render(&variables),
            Format::Json if self.explain => {
                let explained = variables
                    .iter()
                    .map(|(name, value, from)| ((*name).to_owned(), json!({ "value": value, "from": from })));
                let explained: serde_json::Map<_, _> = explained.collect();
                format!("{:#}\n", json!({ "variables": explained, "launch": launch }))
            }
            Format::Json => launch::Format::Json.render(&variables),
        };
        print(text.as_bytes())?;
        if self.explain && self.format != Format::Json {
            eprintln!("# platform: {}", launch.platform.name);
            for (name, value, from) in &variables {
                eprintln!("# {name}={}  <- {}", Shown(value), Shown(from));
            }
        }
        launch.notes.iter().for_each(say);
        let missing = [
            (launch.node_rank.is_none(), "RALLYPOINT_NODE_RANK"),
            (launch.nodes.is_none(), "RALLYPOINT_NODES"),
            (launch.endpoint.is_none(), "RALLYPOINT_ENDPOINT"),
        ];
        let missing: Vec<&str> = missing.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
        if variables.is_empty() {
            say("nothing in the environment says which node this process is; set RALLYPOINT_NODE_RANK, \
                 RALLYPOINT_NODES, RALLYPOINT_ENDPOINT and RALLYPOINT_RUN_ID");
            return Ok(Outcome::NotDone);
        }
        if !missing.is_empty() {
            say(format!("nothing gives {}", missing.join(", ")));
        }
        Ok(Outcome::Done)
    }
}
