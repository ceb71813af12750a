//! Compares rallypoint with PyTorch's own servers: each scenario in turn, several times, in one session.
//!
//! Run it with `benches/compare`. Every run starts its own server. The first comparison is the server's CPU
//! time per unit: on a shared machine, wall-clock time also depends on the other users.

mod growth;
mod page;
mod picture;
mod results;
mod runs;
mod servers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use results::{Meta, Results};
use runs::{RUNS, Run};
use servers::{Kind, Servers};

/// Compares rallypoint with PyTorch's own TCPStore servers.
#[derive(Debug, Parser)]
struct Args {
    /// Smaller and shorter, once: to see whether it works
    #[arg(long)]
    quick: bool,

    /// Only runs of this scenario or of this name
    #[arg(long, value_name = "SCENARIO")]
    only: Option<String>,

    /// How often each server is measured
    #[arg(long, default_value_t = 3)]
    repeat: usize,

    /// Name the runs
    #[arg(long)]
    list: bool,

    /// Make the picture and the page from the results of an earlier run
    #[arg(long)]
    page: bool,

    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let chosen: Vec<&Run> = RUNS.iter().filter(|run| is_chosen(run, args.only.as_deref())).collect();
    if args.list {
        for run in chosen {
            println!("{}", run.id);
        }
        return Ok(());
    }
    if args.page {
        return publish(&Results::read(&results_file())?);
    }
    let with_growth = args.only.as_deref().is_none_or(|only| only == "growth");
    if chosen.is_empty() && !with_growth {
        anyhow::bail!("no run is called {:?}; --list names them", args.only.as_deref().unwrap_or_default());
    }
    let started = Instant::now();
    let repeat = if args.quick { 1 } else { args.repeat.max(1) };
    let mut servers = Servers::start()?;
    let mut results = Results { meta: Meta::now(&mut servers, repeat, args.quick)?, ..Results::default() };
    for run in chosen {
        measure(run, repeat, args.quick, &mut servers, &mut results);
    }
    if with_growth {
        results.growth = growth::measure(&mut servers, args.quick);
    }
    results.meta.minutes = started.elapsed().as_secs_f64() / 60.0;
    println!("{}", page::table(&results));
    if with_growth {
        println!("{}", page::growth(&results));
    }
    if args.quick || args.only.is_some() {
        eprintln!("compare: not everything was measured, so nothing was written");
        return Ok(());
    }
    results.write(&results_file())?;
    publish(&results)
}

/// Measures all servers in turn, several times: other load on the machine then affects all of them.
fn measure(run: &Run, repeat: usize, quick: bool, servers: &mut Servers, results: &mut Results) {
    let repeat = if run.once { 1 } else { repeat };
    for turn in 0..repeat {
        for kind in Kind::ALL {
            let wanted = match kind {
                Kind::Libuv | Kind::Rallypoint => true,
                Kind::Floor => run.has_floor(),
                Kind::Legacy => turn == 0 && run.legacy,
            };
            if !wanted {
                continue;
            }
            let started = Instant::now();
            let report = servers.measure(kind, run.scenario, &(run.settings)(quick));
            // A failed run has no value in the table; the others are still measured.
            let report = report.inspect_err(|error| eprintln!("compare: {error:#}")).ok();
            for row in run.rows {
                results.add(row, kind, report.as_ref());
            }
            let seconds = started.elapsed().as_secs_f64();
            eprintln!("compare: {} {} ({}/{repeat}) took {seconds:.1} s", run.id, kind.name(), turn + 1);
        }
    }
}

fn is_chosen(run: &Run, only: Option<&str>) -> bool {
    only.is_none_or(|only| run.id == only || run.scenario.name() == only)
}

/// Writes the picture and the page.
fn publish(results: &Results) -> anyhow::Result<()> {
    picture::draw(&results.growth, &root().join(page::PICTURE))?;
    page::rewrite(results, &root().join("docs/performance.md"))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn results_file() -> PathBuf {
    root().join("benches/results/compare.json")
}
