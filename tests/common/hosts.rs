//! Processes with another `/etc/hosts`, so that a name can mean what a test wants. Needs `unshare`.

use std::path::Path;
use std::process::Command;

use tempfile::NamedTempFile;

use super::TestServer;

/// A hosts file in which `train` is 127.0.0.1 and 127.0.0.2, like a headless Service with the addresses of
/// all pods.
pub(crate) fn train_is_two_pods() -> NamedTempFile {
    let file = NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), "127.0.0.1 localhost\n127.0.0.1 train\n127.0.0.2 train\n").expect("written");
    file
}

/// The program with `args`, and with this hosts file.
pub(crate) fn rallypoint(hosts: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]);
    command.args(["sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]).arg(hosts);
    command.arg(env!("CARGO_BIN_EXE_rallypoint")).args(args);
    // By default, glibc takes only the first line of a name.
    command.env_clear().env("RESOLV_MULTI", "on").env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

/// A server in the second pod: its store has the port of `first`.
pub(crate) fn second_store(first: &TestServer) -> TestServer {
    TestServer::start(&["--listen", &format!("127.0.0.2:{}", first.store.port())])
}
