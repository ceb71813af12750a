//! What goes wrong, by backend, moment and kind of fault: one line a case with what must be said, how soon, and what must
//! not be said; and the healthy twins, of which nothing may be said above info.

use std::time::Duration;

use super::lab::{Lab, PORT};
use crate::api::Severity;
use crate::core::insight::Settings;
use crate::core::store::StaleKeyConfig;

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
    /// What the sentence has in it, and what the remedy has.
    says: &'static [&'static str],
    remedy: &'static str,
    /// Seconds from that moment; for a wait with the time that it has to last.
    within: f64,
    /// What no sentence and no remedy may have in it, at any time.
    never: &'static [&'static str],
}

const FACT: f64 = 5.0;
/// A wait is seen once a second, when it has lasted for one, and looked at then.
const WAIT: f64 = 3.0 + 2.5;

fn check(fault: &Fault) -> Result<(), String> {
    let mut lab = lab();
    (fault.play)(&mut lab);
    let known = lab.now.0.as_secs_f64();
    lab.pass(12.0);
    let said: Vec<String> = lab
        .said
        .iter()
        .map(|(at, said)| format!("{:+.1} {}: {}; {}", at - known, said.code, said.text, said.remedy))
        .collect();
    let fail = |why: String| Err(format!("{}: {why}\n  {}", fault.name, said.join("\n  ")));
    if let Some(false_word) = fault.never.iter().find(|word| said.iter().any(|line| line.contains(**word))) {
        return fail(format!("says \"{false_word}\""));
    }
    let is_it = |text: &str| fault.says.iter().all(|word| text.contains(word));
    let found = lab.said.iter().find(|(_, said)| said.code == fault.code && is_it(&said.text));
    let Some((at, found)) = found else {
        return fail(format!("does not say {} with {:?}", fault.code, fault.says));
    };
    if at - known > fault.within {
        return fail(format!("says it after {:.1} s", at - known));
    }
    if !found.remedy.contains(fault.remedy) {
        return fail(format!("does not advise \"{}\"", fault.remedy));
    }
    let list = lab.insight.list(lab.now);
    let mut shown = list.explanations.clone();
    for run in &list.runs {
        shown.extend(
            lab.insight.run(&run.run_id, run.store, lab.now).map(|run| run.explanations).unwrap_or_default(),
        );
    }
    if !shown.iter().any(|said| said.code == fault.code && is_it(&said.text)) {
        return fail("the API does not have it".into());
    }
    Ok(())
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

/// Another process takes the place of a rank.
fn replace(lab: &mut Lab, n: u32, rank: u32, world: usize) {
    lab.worker(n, &format!("10.0.0.{rank}"));
    lab.publish(n, rank, world);
}

#[test]
fn faults_of_ranks_without_agents() {
    check_all(&[
        Fault {
            name: "env: two of four never come",
            play: |lab| {
                ranks(lab, &[0, 3], 4);
                read_each_other(lab, &[0, 3], 4);
            },
            code: "waiting_for_rank",
            says: &["rank 1: it has not come", "2 of 4 ranks have published", "missing: rank 1 and rank 2"],
            remedy: "has it started",
            within: WAIT,
            never: &["EADDRINUSE"],
        },
        Fault {
            name: "env: ranks 0 and 2 never come",
            play: |lab| {
                ranks(lab, &[1, 3], 4);
                read_each_other(lab, &[1, 3], 4);
            },
            code: "rank_zero_slow",
            says: &["from rank 0: it has not come", "missing: rank 0 and rank 2"],
            remedy: "has it started",
            within: WAIT,
            never: &[],
        },
        Fault {
            name: "env: rank 0 waits for a key of the program on a second connection",
            play: |lab| {
                ranks(lab, &[0, 1], 2);
                read_each_other(lab, &[0, 1], 2);
                lab.pass(5.0);
                lab.connect_as(10, 0);
                lab.ping(10);
                lab.wait(10, &["data_redy"]);
                lab.wait(1, &["/default_pg/0//cpu//1/0"]);
            },
            code: "rank_zero_slow",
            says: &["from rank 0 on host0: it waits itself for `data_redy`"],
            remedy: "should write that key",
            within: WAIT,
            never: &["waits for nothing", "busy"],
        },
        Fault {
            name: "env: the address of rank 0 was dropped, its peer was replaced",
            play: |lab| {
                ranks(lab, &[0, 1], 3);
                read_each_other(lab, &[0, 1], 3);
                lab.pass(2.0);
                lab.leave(1);
                lab.pass(2.0);
                replace(lab, 11, 1, 3);
                lab.wait_for_rank(11, 0);
            },
            code: "rank_zero_slow",
            says: &["rank 0 on host0", "it was dropped", "rank 1 that ended"],
            remedy: "restart all processes",
            within: WAIT,
            never: &["EADDRINUSE", "from rank 0: it has not come"],
        },
        Fault {
            name: "env: an operator resets the store while ranks come",
            play: |lab| {
                ranks(lab, &[0, 1], 3);
                read_each_other(lab, &[0, 1], 3);
                lab.pass(2.0);
                lab.reset();
                ranks(lab, &[2], 3);
                lab.wait_for_rank(2, 0);
            },
            code: "rank_zero_slow",
            says: &["rank 0 on host0", "an operator reset the store"],
            remedy: "restart all processes",
            within: WAIT,
            never: &["from rank 0: it has not come", "EADDRINUSE", "deadlock"],
        },
        Fault {
            name: "env: a rank dies in the middle of it",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 4);
                read_each_other(lab, &[0, 1, 2], 4);
                lab.pass(2.0);
                lab.leave(1);
            },
            code: "rank_lost",
            says: &["rank 1 on host1", "2 of 4 are still there"],
            remedy: "look at the log of that process",
            within: FACT,
            never: &["0 of 4"],
        },
        Fault {
            name: "env: a rank dies, and another that was not there yet comes",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 4);
                read_each_other(lab, &[0, 1, 2], 4);
                lab.pass(2.0);
                lab.leave(0);
                ranks(lab, &[3], 4);
                lab.wait_for_rank(3, 0);
            },
            code: "rank_zero_slow",
            says: &["rank 0 on host0: its connection closed"],
            remedy: "why that process ended",
            within: WAIT,
            never: &["EADDRINUSE", "has it started", "it has not come"],
        },
        Fault {
            name: "env: three processes with one rank",
            play: |lab| {
                for n in [0, 1, 2] {
                    lab.worker(n, &format!("10.0.0.{n}"));
                    lab.publish(n, 0, 3);
                    lab.wait_for_rank(n, 1);
                    lab.pass(0.2);
                }
            },
            code: "duplicate_rank",
            says: &["rank 0", "host0", "10.0.0.1"],
            remedy: "its own rank",
            within: FACT,
            never: &["host2 and rank 0 on host2", "host2 and process"],
        },
        Fault {
            name: "env: a client that gives up and tries again",
            play: |lab| {
                ranks(lab, &[0], 2);
                for _ in 0..20 {
                    lab.wait_for_rank(0, 1);
                    lab.pass(1.2);
                    lab.cancel(0);
                    lab.pass(0.1);
                }
                lab.wait_for_rank(0, 1);
            },
            code: "gave_up",
            says: &["tries again"],
            remedy: "means to poll",
            within: 0.0,
            never: &["will fail now"],
        },
    ]);
}
