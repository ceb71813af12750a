//! `etcd://…` as the place of a journal, and the flags for it.

use std::path::PathBuf;
use std::str::FromStr;

use super::UsageError;
use super::launch::hostname;
use rallypoint_access::tls::ClientTls;
use rallypoint_node::endpoint::Endpoint;
use rallypoint_server::config::{EtcdConfig, EtcdMember};

const PORT: u16 = 2379;
const SCHEME: &str = "etcd://";

/// The place of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JournalPlace {
    /// No journal.
    Off,
    Folder(PathBuf),
    /// An etcd: its members and the prefix of the keys.
    Etcd(Vec<EtcdMember>, String),
}

impl FromStr for JournalPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(rest) = text.strip_prefix(SCHEME) {
            return etcd(rest);
        }
        match text {
            "" => Err("write a folder, etcd://HOST:2379,HOST:2379/PREFIX, or `off`".into()),
            "off" => Ok(Self::Off),
            _ if text.contains("://") => Err("only etcd:// and folders can hold a journal".into()),
            _ => Ok(Self::Folder(text.into())),
        }
    }
}

fn etcd(text: &str) -> Result<JournalPlace, String> {
    let (hosts, prefix) = text.split_once('/').unwrap_or((text, ""));
    let prefix = prefix.trim_matches('/');
    if prefix.is_empty() {
        return Err("a prefix for the names of the keys is missing: etcd://HOST:2379,HOST:2379/PREFIX".into());
    }
    if !prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the prefix must be printable ASCII without spaces".into());
    }
    let member = |host: &str| {
        let endpoint = Endpoint::parse(host, PORT).map_err(|error| error.to_string())?;
        Ok(EtcdMember { host: endpoint.host().to_owned(), port: endpoint.port() })
    };
    let members = hosts.split(',').map(member).collect::<Result<_, String>>()?;
    Ok(JournalPlace::Etcd(members, prefix.to_owned()))
}

/// The flags for connections to an etcd.
#[derive(Debug, Clone, clap::Args)]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
pub(super) struct EtcdFlags {
    /// Authority of the etcd's certificates; without it the connections are plain
    #[arg(long, env = "RALLYPOINT_ETCD_CA", value_name = "FILE")]
    etcd_ca: Option<PathBuf>,

    /// Certificate to show to the etcd
    #[arg(long, env = "RALLYPOINT_ETCD_CERT", value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    etcd_cert: Option<PathBuf>,

    /// Its key
    #[arg(long, env = "RALLYPOINT_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,

    /// User of the etcd
    #[arg(long, env = "RALLYPOINT_ETCD_USER", value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,

    /// File with the user's password
    #[arg(long, env = "RALLYPOINT_ETCD_PASSWORD_FILE", value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
}

impl EtcdFlags {
    pub(super) fn config(&self, members: &[EtcdMember], prefix: &str) -> EtcdConfig {
        let identity = self.etcd_cert.clone().zip(self.etcd_key.clone());
        EtcdConfig {
            members: members.to_vec(),
            prefix: prefix.to_owned(),
            tls: self.etcd_ca.clone().map(|ca| ClientTls { ca, identity }),
            user: self.etcd_user.clone().zip(self.etcd_password_file.clone()),
            name: hostname(),
        }
    }

    /// Refuses flags for an etcd if the journal is not in one.
    pub(super) fn check(&self, place: &JournalPlace) -> Result<(), UsageError> {
        let given = self.etcd_ca.is_some() || self.etcd_user.is_some();
        if given && !matches!(place, JournalPlace::Etcd(..)) {
            return Err(UsageError("--etcd-ca and --etcd-user are for a journal at etcd://…".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_journal_is_read_as_people_write_it() {
        let member = |host: &str, port| EtcdMember { host: host.into(), port };
        let etcd = |members, prefix: &str| Ok(JournalPlace::Etcd(members, prefix.into()));
        assert_eq!("off".parse(), Ok(JournalPlace::Off));
        assert_eq!("/var/lib/x".parse(), Ok(JournalPlace::Folder("/var/lib/x".into())));
        assert_eq!("etcd://a/p".parse(), etcd(vec![member("a", 2379)], "p"));
        assert_eq!(
            "etcd://a:1,[::1]:2/team/jobs/".parse(),
            etcd(vec![member("a", 1), member("::1", 2)], "team/jobs")
        );
        for wrong in
            ["", "etcd://a", "etcd://a/", "etcd:///p", "etcd://a,,b/p", "etcd://a/p q", "s3://bucket"]
        {
            assert!(wrong.parse::<JournalPlace>().is_err(), "{wrong}");
        }
    }
}
