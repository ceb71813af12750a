//! A `rallypoint relay` for a test.

use std::net::SocketAddr;
use std::process::{Child, Command};

use tempfile::TempDir;

use super::Listening;

/// A relay on its own ports. Dropping it ends the process.
pub(crate) struct TestRelay {
    pub(crate) process: Child,
    /// The address for clients of the server's first store.
    pub(crate) store: SocketAddr,
    /// The address for clients of the API.
    pub(crate) admin: SocketAddr,
    dir: TempDir,
}

impl TestRelay {
    /// Starts a relay for the server with the admin port `server`. Returns once its ports are bound; the link
    /// may come later.
    pub(crate) fn start(server: SocketAddr, name: &str, args: &[&str]) -> Self {
        Self::start_for(&server.to_string(), name, args)
    }

    /// Like [`Self::start`], with the server in any written form.
    pub(crate) fn start_for(server: &str, name: &str, args: &[&str]) -> Self {
        Self::start_as(&mut Command::new(env!("CARGO_BIN_EXE_rallypoint")), server, name, args)
    }

    /// A relay with this limit on open files.
    pub(crate) fn with_open_files(most: u32, server: SocketAddr, name: &str) -> Self {
        let script = format!("ulimit -n {most} && exec \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_rallypoint")]);
        Self::start_as(&mut shell, &server.to_string(), name, &[])
    }

    fn start_as(program: &mut Command, server: &str, name: &str, args: &[&str]) -> Self {
        let own = [
            "relay",
            "--server",
            server,
            "--name",
            name,
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
        ];
        let Listening { process, stores, admin, dir } = Listening::start(program, &[&own[..], args].concat());
        Self { process, store: stores[0], admin, dir }
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for TestRelay {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the relay said:\n{}", self.log());
        }
    }
}
