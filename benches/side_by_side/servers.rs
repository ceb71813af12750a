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
    /// A server that makes the system calls and hardly anything else (`benches/floor.rs`).
    Floor,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Libuv, Self::Rallypoint, Self::Floor, Self::Legacy];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Libuv => "libuv",
            Self::Rallypoint => "rallypoint",
            Self::Legacy => "legacy",
            Self::Floor => "floor",
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
            Kind::Rallypoint => one_load(start_rallypoint()?, scenario, settings),
            Kind::Floor => one_load(start_floor()?, scenario, settings),
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

/// Loads a server that was started for it, and ends it.
fn one_load(
    (mut process, running): (Child, Running),
    scenario: Scenario,
    settings: &Settings,
) -> anyhow::Result<Report> {
    let report = load(&running, scenario, settings);
    let _ended = process.kill().and_then(|()| process.wait());
    report
}

fn start_rallypoint() -> anyhow::Result<(Child, Running)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--max-connections", "19500", "--ports-file"]);
    start(command, |text| {
        let ports: serde_json::Value = serde_json::from_slice(text).ok()?;
        ports["stores"][0].as_u64()?.try_into().ok()
    })
}

fn start_floor() -> anyhow::Result<(Child, Running)> {
    let program = std::env::var_os("RALLYPOINT_FLOOR")
        .context("RALLYPOINT_FLOOR names no program; run this by the script benches/compare")?;
    start(Command::new(program), |text| std::str::from_utf8(text).ok()?.trim().parse().ok())
}

/// Starts a server whose last argument is the file into which it writes its port.
fn start(mut command: Command, port_in: impl Fn(&[u8]) -> Option<u16>) -> anyhow::Result<(Child, Running)> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("port");
    command.arg(&file).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = command.spawn()?;
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Some(port) = std::fs::read(&file).ok().and_then(|text| port_in(&text)) {
            let running = Running { addr: local(port), pid: process.id() };
            return Ok((process, running));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ended = process.kill().and_then(|()| process.wait());
    bail!("{} never told its port", command.get_program().display())
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
