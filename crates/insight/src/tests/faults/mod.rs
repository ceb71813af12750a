//! What goes wrong, by backend, moment and kind of fault: one line a case with what must be said, how soon, and what must
//! not be said.

mod backends;
mod fixed;
mod ranks;
mod shown;
mod twins;

use std::time::Duration;

use super::lab::Lab;
use super::yardstick;
use crate::Settings;
use rallypoint_api::Explanation;
use rallypoint_store::StaleKeyConfig;

/// Waits are explained when they have lasted this long here.
const EXPLAIN_AFTER: Duration = Duration::from_secs(3);

fn lab() -> Lab {
    Lab::with(Settings { explain_after: EXPLAIN_AFTER, ..Settings::default() }, StaleKeyConfig::default())
}

struct Fault {
    name: &'static str,
    /// Plays it up to the moment when it can be known.
    play: fn(&mut Lab),
    code: &'static str,
    /// Who is named by it.
    names: &'static [&'static str],
    /// Seconds from that moment; for a wait with the time that it has to last.
    within: f64,
    /// What no sentence may have in it, at any time.
    never: &'static [&'static str],
}

/// These follow from the traffic of a run as a whole.
const WITHOUT_EVIDENCE: [&str; 5] =
    ["run_ended", "run_finished", "run_started", "round_complete", "two_jobs"];

const FACT: f64 = 5.0;

/// A wait is seen once a second, when it has lasted for one, and looked at then.
const WAIT: f64 = 3.0 + 2.5;

fn check(fault: &Fault) -> Result<(), String> {
    let mut lab = lab();
    lab.scene.is_row("faults", fault.name);
    (fault.play)(&mut lab);
    let known = lab.now.0.as_secs_f64();
    lab.scene.begins(known);
    lab.pass(12.0);
    let held = yardstick::hold(&lab.scene);
    lab.scene.is_free();
    let said: Vec<String> = lab
        .said
        .iter()
        .map(|(at, said)| format!("{:+.1} {}: {}", at - known, said.code, said.text))
        .collect();
    let fail = |why: String| Err(format!("{}: {why}\n  {}", fault.name, said.join("\n  ")));
    if let Some(false_word) = fault.never.iter().find(|word| said.iter().any(|line| line.contains(**word))) {
        return fail(format!("says \"{false_word}\""));
    }
    let is_it = |said: &Explanation| {
        let names = yardstick::names_in(&said.text, said.run_id.as_deref());
        yardstick::is_code(&said.code, fault.code) && fault.names.iter().all(|name| names.contains(*name))
    };
    let Some((at, _)) = lab.said.iter().find(|(_, said)| is_it(said)) else {
        return fail(format!("does not say {} of {:?}", fault.code, fault.names));
    };
    if at - known > fault.within {
        return fail(format!("says it after {:.1} s", at - known));
    }
    let list = lab.insight.list(0, lab.now);
    let mut shown = list.explanations.clone();
    for run in &list.runs {
        shown.extend(
            lab.insight
                .run(&run.run_id, run.store, Some(run.kind), lab.now)
                .map(|run| run.explanations)
                .unwrap_or_default(),
        );
    }
    let Some(shown) = shown.iter().find(|said| is_it(said)) else {
        return fail("the API does not have it".into());
    };
    let has_none = !shown.evidence.iter().any(|evidence| evidence.peer.is_some());
    if has_none != WITHOUT_EVIDENCE.contains(&fault.code) {
        return fail(format!("has as its evidence {:?}", shown.evidence));
    }
    held
}

fn check_all(faults: &[Fault]) {
    let failed: Vec<String> = faults.iter().filter_map(|fault| check(fault).err()).collect();
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), faults.len(), failed.join("\n"));
}

/// Ranks of `env://` that have published their addresses, each on a host of its own.
fn ranks(lab: &mut Lab, ranks: &[u32], world: usize) {
    for &rank in ranks {
        lab.worker(rank, &format!("10.0.0.{rank}"));
        lab.publish(rank, rank, world);
    }
}

/// Each of these reads the addresses of all others, and waits for the first that is not there.
fn read_each_other(lab: &mut Lab, ranks: &[u32], world: u32) {
    for &reader in ranks {
        for other in (0..world).filter(|&other| other != reader) {
            if !ranks.contains(&other) {
                lab.wait_for_rank(reader, other);
                break;
            }
            lab.get(reader, &format!("/default_pg/0//cpu//0/{other}"));
        }
    }
}

/// Agents of a static run with `nodes` nodes, which have their ranks.
fn static_run(lab: &mut Lab, run: &str, nodes: u32) {
    for n in (0..nodes).rev() {
        lab.static_node(n, run, n, nodes);
    }
    lab.pass(0.1);
    lab.assign_static(0, run, nodes, 2);
    lab.pass(2.0);
}

/// Workers of agents, two on each node, that have published their addresses here.
fn workers(lab: &mut Lab, ranks: std::ops::Range<u32>, world: usize) {
    for rank in ranks {
        lab.worker(100 + rank, &format!("10.77.0.{}", 10 + rank / 2));
        lab.publish(100 + rank, rank, world);
    }
}

/// A process in a container: all have one address and process id 1.
fn container(lab: &mut Lab, n: u32) {
    lab.connect(n, "10.0.0.9", 1);
    lab.ping(n);
    lab.add(n, "init/", 1);
}

/// Another process takes the place of a rank.
fn replace(lab: &mut Lab, n: u32, rank: u32, world: usize) {
    lab.worker(n, &format!("10.0.0.{rank}"));
    lab.publish(n, rank, world);
}
