//! The compared servers. Each run starts its own.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rallypoint_bench::{self as loadgen, Plan, Report, Scenario, Settings};

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// PyTorch's default.
    Libuv,
    /// This program.
    Rallypoint,
    /// PyTorch's older server (`use_libuv=False`).
    Legacy,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Libuv, Self::Rallypoint, Self::Legacy];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Libuv => "libuv",
            Self::Rallypoint => "rallypoint",
            Self::Legacy => "legacy",
        }
    }
}

/// Starts servers. PyTorch's servers are forks of one process that has imported torch.
pub(crate) struct Servers {
    torch: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// PyTorch's release.
    pub(crate) torch_version: String,
}

/// A running server.
struct Running {
    addr: SocketAddr,
    pid: u32,
}

impl Servers {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let python = std::env::var("RALLYPOINT_TORCH_PYTHON").context(
            "RALLYPOINT_TORCH_PYTHON names no Python with torch; run this by the script benches/compare",
        )?;
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/torch_server.py");
        let mut torch = Command::new(&python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{python} does not start"))?;
        let (Some(commands), Some(answers)) = (torch.stdin.take(), torch.stdout.take()) else {
            bail!("{python} has no pipes")
        };
        let mut servers =
            Self { torch, commands, answers: BufReader::new(answers), torch_version: String::new() };
        servers.torch_version = servers.ask("version")?;
        Ok(servers)
    }

    fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        writeln!(self.commands, "{command}").context("torch_server.py has ended")?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            bail!("torch_server.py ended at `{command}`; its traceback is above");
        }
        Ok(answer.trim().to_owned())
    }

    /// Runs a scenario with a fresh server.
    pub(crate) fn measure(
        &mut self,
        kind: Kind,
        scenario: Scenario,
        settings: &Settings,
    ) -> anyhow::Result<Report> {
        match kind {
            Kind::Rallypoint => {
                let (mut process, running) = start_rallypoint()?;
                let report = load(&running, scenario, settings);
                let _ended = process.kill().and_then(|()| process.wait());
                report
            }
            Kind::Libuv | Kind::Legacy => {
                let answer = self.ask(&format!("start {}", kind.name()))?;
                let (port, pid) = answer.split_once(' ').context("torch_server.py answers PORT PID")?;
                let running = Running { addr: local(port.parse()?), pid: pid.parse()? };
                let report = load(&running, scenario, settings);
                self.ask(&format!("stop {}", running.pid))?;
                report
            }
        }
        .with_context(|| format!("{} with {}", scenario.name(), kind.name()))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ended = self.torch.kill().and_then(|()| self.torch.wait());
    }
}

fn load(server: &Running, scenario: Scenario, settings: &Settings) -> anyhow::Result<Report> {
    let settings = Settings { pid: Some(server.pid), ..settings.clone() };
    let plan = Plan::new(scenario, server.addr, &settings)?;
    Ok(loadgen::run(&plan, &mut |_| {})?)
}

fn start_rallypoint() -> anyhow::Result<(Child, Running)> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let dir = tempfile::tempdir()?;
    let ports_file = dir.path().join("ports.json");
    let mut process = Command::new(env!("CARGO_BIN_EXE_rallypoint"))
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ports-file"])
        .arg(&ports_file)
        .args(["--max-connections", "19500"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Ok(text) = std::fs::read(&ports_file)
            && let Ok(ports) = serde_json::from_slice::<serde_json::Value>(&text)
            && let Some(port) = ports["stores"][0].as_u64().and_then(|port| u16::try_from(port).ok())
        {
            let running = Running { addr: local(port), pid: process.id() };
            return Ok((process, running));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ended = process.kill().and_then(|()| process.wait());
    bail!("rallypoint serve never told its ports")
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
