//! `rallypoint completions` and `rallypoint man`: the command line for shells and for `man`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::terminal::{print, say};
use super::{Cli, Outcome};

const AFTER_HELP: &str =
    "For bash: rallypoint completions bash > ~/.local/share/bash-completion/completions/rallypoint";

/// Print the completions of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Print the manual page, or write one page for each command into a folder.
#[derive(Debug, clap::Args)]
pub(super) struct Manual {
    /// The folder, such as /usr/local/share/man/man1 [default: print the first page]
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl Completions {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "rallypoint", &mut text);
        print(&text)?;
        Ok(Outcome::Done)
    }
}

impl Manual {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let mut command = Cli::command();
        command.build();
        let Some(folder) = self.folder else {
            print(&page(command)?)?;
            return Ok(Outcome::Done);
        };
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let count = write_pages(&command, "rallypoint", &folder)?;
        say(format_args!("{count} pages are in {}", folder.display()));
        Ok(Outcome::Done)
    }
}

/// Writes the pages of a command and of its subcommands. Returns their number.
fn write_pages(command: &clap::Command, name: &str, folder: &Path) -> anyhow::Result<usize> {
    let file = folder.join(format!("{name}.1"));
    // Clap keeps names for as long as the program runs.
    let called: &'static str = name.to_owned().leak();
    let bytes = page(command.clone().name(called).display_name(called))?;
    std::fs::write(&file, bytes).with_context(|| file.display().to_string())?;
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    below
        .map(|below| write_pages(below, &format!("{name}-{}", below.get_name()), folder))
        .try_fold(1_usize, |sum, count| Ok(sum.saturating_add(count?)))
}

fn page(command: clap::Command) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Man::new(command).render(&mut bytes)?;
    Ok(bytes)
}
