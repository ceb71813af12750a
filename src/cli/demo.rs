//! `rallypoint demo`: a job of four pods on this machine, one of them late, without PyTorch. Every process in
//! it is this program, started as users start it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::Outcome;
use super::terminal::print_line;
use super::units::duration;

const AFTER_HELP: &str =
    "It listens on loopback only, on free ports, and leaves nothing behind. Exit code: 0 all four met, 1 not";

const NODES: u32 = 4;
/// The late pod.
const LATE: u32 = 2;
/// The longest time of one step on a slow machine.
const PATIENCE: Duration = Duration::from_mins(1);
/// The command of each pod, in place of a training.
const TRAINING: &str = "echo \"I am rank $RANK of $WORLD_SIZE, and we meet at $MASTER_ADDR:$MASTER_PORT\"";

/// Show in five seconds what a job looks like while one of its pods is missing. Needs no PyTorch.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// How late the fourth pod is
    #[arg(long, env = "RALLYPOINT_LATE", value_name = "TIME", default_value = "5s", value_parser = duration)]
    late: Duration,
}

/// A process that ends with the demo.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that is removed with the demo.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The ports of the server, from its ports file.
#[derive(Debug, Deserialize)]
struct Ports {
    stores: Vec<u16>,
    admin: u16,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let program = std::env::current_exe().context("this program's own file")?;
        let folder = Folder(std::env::temp_dir().join(format!("rallypoint-demo-{}", std::process::id())));
        std::fs::create_dir(&folder.0).with_context(|| folder.0.display().to_string())?;
        let (mut server, ports) = serve(&program, &folder.0)?;
        let store = ports.stores.first().copied().context("the server has no store")?;
        let at =
            At { program, store: format!("127.0.0.1:{store}"), admin: format!("127.0.0.1:{}", ports.admin) };
        print_line(format_args!("# a server for the demo; in a browser: http://{}/", at.admin))?;
        print_line(
            "# pods train-0, train-1 and train-3 of 4 start; each runs: rallypoint run --nodes 4 -- \
             COMMAND\n",
        )?;

        let mut pods = Vec::new();
        for rank in (0..NODES).filter(|&rank| rank != LATE) {
            pods.push((rank, at.pod(rank)?));
        }
        std::thread::sleep(self.late);
        at.status()?;
        print_line(format_args!("\n# train-{LATE} starts, too\n"))?;
        pods.push((LATE, at.pod(LATE)?));
        pods.sort_by_key(|(rank, _)| *rank);
        for (rank, pod) in &mut pods {
            let ended = wait(pod)?;
            let said = std::io::read_to_string(pod.0.stdout.take().context("its output")?)?;
            if !ended.success() {
                bail!("train-{rank} ended with {ended}: {}", said.trim());
            }
            print_line(format_args!("train-{rank}: {}", said.trim()))?;
        }
        if let Some(ended) = server.0.try_wait()? {
            bail!("the server ended with {ended}");
        }
        print_line(
            "\n# Next: rallypoint serve, and `rallypoint run --endpoint HOST:29500 --nodes N -- torchrun …` \
             in each pod",
        )?;
        Ok(Outcome::Done)
    }
}

fn serve(program: &Path, folder: &Path) -> anyhow::Result<(Started, Ports)> {
    let file = folder.join("ports.json");
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--explain-after", "1s"]);
    command.args(["--log", "error", "--drain", "0s", "--ports-file"]).arg(&file);
    let mut server = Started(without_variables(&mut command).spawn().context("rallypoint serve")?);
    let since = Instant::now();
    while !file.exists() {
        if server.0.try_wait()?.is_some() || since.elapsed() > PATIENCE {
            bail!("the server did not start; what it said is above");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((server, serde_json::from_slice(&std::fs::read(file)?)?))
}

/// The addresses of the demo's server.
struct At {
    program: PathBuf,
    store: String,
    admin: String,
}

impl At {
    fn pod(&self, rank: u32) -> anyhow::Result<Started> {
        let mut command = Command::new(&self.program);
        command.args(["run", "--run-id", "train", "--endpoint", &self.store, "--admin", &self.admin]);
        command.args([
            "--nodes",
            &NODES.to_string(),
            "--node-rank",
            &rank.to_string(),
            "--",
            "sh",
            "-c",
            TRAINING,
        ]);
        without_variables(&mut command).env("POD_NAME", format!("train-{rank}"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Started(command.spawn().context("rallypoint run")?))
    }

    fn status(&self) -> anyhow::Result<()> {
        print_line("$ rallypoint status")?;
        let mut command = Command::new(&self.program);
        let ended = without_variables(command.args(["status", "--admin", &self.admin])).status()?;
        if ended.success() { Ok(()) } else { bail!("rallypoint status ended with {ended}") }
    }
}

/// Variables for a real job on this machine must not reach the demo.
fn without_variables(command: &mut Command) -> &mut Command {
    const KEPT: [&str; 7] = ["PATH", "HOME", "TERM", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TMPDIR"];
    let kept = KEPT.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let kept: Vec<_> = kept.collect();
    command.env_clear().envs(kept)
}

fn wait(process: &mut Started) -> anyhow::Result<ExitStatus> {
    let since = Instant::now();
    loop {
        if let Some(ended) = process.0.try_wait()? {
            return Ok(ended);
        }
        if since.elapsed() > PATIENCE {
            bail!("a pod of the demo does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
