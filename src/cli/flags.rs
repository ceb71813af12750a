//! Flags that several commands share.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;

use rallypoint_access::tls::ClientTls;
use rallypoint_node::client::http::{AdminUrl, DEFAULT_ADMIN, use_tls, use_token};

/// Text for people, or JSON for programs.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Output {
    /// Print JSON
    #[arg(long, global = true, env = "RALLYPOINT_JSON", value_parser = BoolishValueParser::new())]
    json: bool,
}

impl Output {
    pub(super) fn is_json(self) -> bool {
        self.json
    }
}

/// The URL of the server's admin port: `--admin`, as in all commands, or the first word.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct AdminPort {
    /// The server's admin port
    #[arg(long, env = "RALLYPOINT_ADMIN", value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: AdminUrl,

    /// The admin port as the first word; it overrides --admin
    #[arg(value_name = "ADMIN")]
    first_word: Option<AdminUrl>,
}

impl AdminPort {
    pub(super) fn url(self) -> AdminUrl {
        self.first_word.unwrap_or(self.admin)
    }
}

/// The client's identity towards an admin port, one flag for all clients.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "A server with tokens")]
pub(super) struct TokenFlag {
    /// File with the token that is sent to the admin port; of a file with several the first
    #[arg(
        id = "token_file",
        long = "token-file",
        global = true,
        env = "RALLYPOINT_TOKEN_FILE",
        value_name = "FILE"
    )]
    file: Option<PathBuf>,
}

impl TokenFlag {
    /// From here on the token is sent in all requests of this process.
    pub(super) fn hold(&self) {
        if let Some(file) = self.file.clone() {
            use_token(file);
        }
    }
}

/// The flags for an encrypted admin port, one set for all clients.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "A server whose admin port speaks TLS")]
pub(super) struct Tls {
    /// Authority of the server's certificate. An admin port that is not on loopback is https:// then
    #[arg(id = "tls_ca", long = "tls-ca", global = true, env = "RALLYPOINT_TLS_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Certificate of this client, where the server wants one
    #[arg(id = "tls_client_cert", long = "tls-client-cert", global = true, env = "RALLYPOINT_TLS_CLIENT_CERT",
        value_name = "FILE", requires_all = ["tls_ca", "tls_client_key"])]
    client_cert: Option<PathBuf>,

    /// Its key
    #[arg(
        id = "tls_client_key",
        long = "tls-client-key",
        global = true,
        env = "RALLYPOINT_TLS_CLIENT_KEY",
        value_name = "FILE",
        requires = "tls_client_cert"
    )]
    client_key: Option<PathBuf>,
}

impl Tls {
    /// From here on these settings hold for all connections of this process.
    pub(super) fn hold(&self) {
        let Some(ca) = self.ca.clone() else { return };
        let identity = self.client_cert.clone().zip(self.client_key.clone());
        use_tls(ClientTls { ca, identity });
    }
}
