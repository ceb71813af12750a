//! Runs another program: by exec, or as its supervisor. The first process of a container must be a
//! supervisor, and so must a process with other work to do meanwhile.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

use super::terminal::say;
use super::{Outcome, client_runtime};

/// Runs work until it is done, or until a signal asks this process to end; then returns the exit code for the
/// signal. Without this, process 1 of a container would ignore the signal.
pub(super) async fn unless_stopped<T>(
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Result<T, Outcome>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let number = tokio::select! {
        done = work => return done.map(Ok),
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
    };
    say(format_args!("stopped by signal {number} while waiting"));
    Ok(Err(Outcome::Code(code_of_signal(number))))
}

/// The output of a program, if it succeeds in time.
pub(super) fn output(program: &Path, args: &[OsString], limit: Duration) -> io::Result<Vec<u8>> {
    /// Larger than any sane answer.
    const MOST: u64 = 64 * 1024;
    let runtime = client_runtime()?;
    let answered = runtime.block_on(async {
        let mut child = tokio::process::Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut text = Vec::new();
        let whole = async {
            if let Some(stdout) = child.stdout.take() {
                stdout.take(MOST).read_to_end(&mut text).await?;
            }
            child.wait().await
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
        let status = tokio::time::timeout(limit, whole).await.map_err(|_| late())??;
        if status.success() { Ok(text) } else { Err(io::Error::other(format!("it ended with {status}"))) }
    });
    runtime.shutdown_background();
    answered
}

/// Replaces this process by the command. Returns only if the command cannot be started, or with its exit code
/// if this process is the first of its container.
pub(super) fn become_command(argv: &[String], set: &[(String, String)]) -> anyhow::Result<Outcome> {
    if std::process::id() == 1 {
        return Ok(client_runtime()?.block_on(run_command(argv, set)));
    }
    let Some((mut command, program)) = command(argv, set) else { return Ok(Outcome::NotDone) };
    let error = command.exec();
    Ok(cannot_start(program, &error))
}

/// Runs the command and supervises it. Returns its exit code.
pub(super) async fn run_command(argv: &[String], set: &[(String, String)]) -> Outcome {
    let Some((mut command, program)) = command(argv, set) else { return Outcome::NotDone };
    match stand_in_front_of(&mut command).await {
        Ok(code) => Outcome::Code(code),
        Err(error) => cannot_start(program, &error),
    }
}

fn command<'a>(argv: &'a [String], set: &[(String, String)]) -> Option<(Command, &'a str)> {
    let (program, args) = argv.split_first()?;
    let mut command = Command::new(program);
    command.args(args).envs(set.iter().map(|(name, value)| (name, value)));
    Some((command, program))
}

/// As in a shell: 127 means not found, 126 not executable.
fn cannot_start(program: &str, error: &io::Error) -> Outcome {
    say(format_args!("cannot start `{program}`: {error}"));
    Outcome::Code(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// The duties of process 1: forwards signals, and reaps every orphan until the command itself has ended.
async fn stand_in_front_of(command: &mut Command) -> io::Result<u8> {
    const HANDED_ON: [(SignalKind, Signal); 6] = [
        (SignalKind::terminate(), Signal::TERM),
        (SignalKind::interrupt(), Signal::INT),
        (SignalKind::hangup(), Signal::HUP),
        (SignalKind::quit(), Signal::QUIT),
        (SignalKind::user_defined1(), Signal::USR1),
        (SignalKind::user_defined2(), Signal::USR2),
    ];
    let mut orphans = signal(SignalKind::child())?;
    let (heard, mut to_hand_on) = tokio::sync::mpsc::unbounded_channel();
    for (kind, number) in HANDED_ON {
        let (mut source, heard) = (signal(kind)?, heard.clone());
        tokio::spawn(async move { while source.recv().await.is_some() && heard.send(number).is_ok() {} });
    }
    let child = Pid::from_child(&command.spawn()?);
    loop {
        while let Some((pid, status)) = reap()? {
            if pid == child {
                return Ok(exit_code(status));
            }
        }
        tokio::select! {
            _ = orphans.recv() => {}
            Some(number) = to_hand_on.recv() => {
                // The command may just have ended; the next turn then reaps it.
                let _gone = kill_process(child, number);
            }
        }
    }
}

/// Reaps an ended child, if there is one.
fn reap() -> io::Result<Option<(Pid, WaitStatus)>> {
    match wait(WaitOptions::NOHANG) {
        Err(rustix::io::Errno::CHILD) => Ok(None),
        reaped => Ok(reaped?),
    }
}

/// The exit code, as a shell gives it.
fn exit_code(status: WaitStatus) -> u8 {
    match (status.exit_status(), status.terminating_signal()) {
        // The kernel keeps eight bits of it.
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => code_of_signal(signal),
        (None, None) => 1,
    }
}

/// The exit code of a process that a signal has ended.
fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(signal.saturating_add(128)).unwrap_or(u8::MAX)
}
