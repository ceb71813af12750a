//! Flags that several commands have.

use clap::ValueEnum;
use clap::builder::BoolishValueParser;

use crate::node::client::http::{AdminUrl, DEFAULT_ADMIN};

/// Text for people, or JSON for programs: `-o json`, and `--json`, which says the same.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Output {
    /// How to print
    #[arg(short, long, global = true, env = "RALLYPOINT_OUTPUT", value_name = "FORMAT")]
    output: Option<OutputFormat>,

    /// Print JSON, as -o json does
    #[arg(long, global = true, env = "RALLYPOINT_JSON", value_parser = BoolishValueParser::new())]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    Text,
    Json,
}

impl Output {
    pub(super) fn is_json(self) -> bool {
        self.output.map_or(self.json, |output| output == OutputFormat::Json)
    }
}

/// Where the server's admin port is: `--admin`, as with all commands, or as the first word.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct AdminPort {
    /// The server's admin port
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: AdminUrl,

    /// The same as --admin, and before it
    #[arg(value_name = "ADMIN")]
    first_word: Option<AdminUrl>,
}

impl AdminPort {
    pub(super) fn url(self) -> AdminUrl {
        self.first_word.unwrap_or(self.admin)
    }
}
