//! Notes the target and the commit of the program, for `rallypoint version`, and links `src/malloc.c` to it.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RALLYPOINT_COMMIT");
    let target = env::var("TARGET").unwrap_or_else(|_| "unknown".into());
    println!("cargo::rustc-env=RALLYPOINT_TARGET={target}");
    println!("cargo::rustc-env=RALLYPOINT_COMMIT={}", commit().unwrap_or_else(|| "unknown".into()));
    println!("cargo::rerun-if-changed=src/malloc.c");
    for object in cc::Build::new().file("src/malloc.c").compile_intermediates() {
        // Linked as it is: nothing calls it, so an archive would leave it out.
        println!("cargo::rustc-link-arg-bins={}", object.display());
    }
}

/// The commit, as who builds says it, as `cargo package` noted it, or as git says it. Git is asked only for a release:
/// elsewhere each commit would build everything again.
fn commit() -> Option<String> {
    if let Some(said) = env::var("RALLYPOINT_COMMIT").ok().filter(|said| !said.is_empty()) {
        return Some(said);
    }
    if let Ok(noted) = std::fs::read_to_string(".cargo_vcs_info.json") {
        return noted.split('"').skip_while(|word| *word != "sha1").nth(2).map(str::to_owned);
    }
    if env::var("PROFILE").as_deref() != Ok("release") {
        return None;
    }
    let log = said_by(Command::new("git").args(["rev-parse", "--git-path", "logs/HEAD"]))?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = said_by(Command::new("git").args(["rev-parse", "HEAD"]))?;
    let changed = said_by(Command::new("git").args(["status", "--porcelain", "--untracked-files=no"]))?;
    Some(if changed.is_empty() { commit } else { format!("{commit}-dirty") })
}

/// What a command printed, if it succeeded.
fn said_by(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
