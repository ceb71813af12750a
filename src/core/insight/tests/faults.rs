//! What goes wrong, by backend, moment and kind of fault: one line a case with what must be said, how soon, and what must
//! not be said; and the healthy twins, of which nothing may be said above info.

use std::time::Duration;

use super::lab::{Lab, PORT, gloo};
use crate::api::{Certainty, NodeState, RunKind, RunState, Seen, Severity};
use crate::core::ids::ConnId;
use crate::core::insight::{Expectation, Settings, StoreOwner};
use crate::core::store::{Observed, StaleKeyConfig};

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

/// These follow from the traffic of a run as a whole.
const WITHOUT_EVIDENCE: [&str; 7] =
    ["run_ended", "all_left", "run_finished", "run_started", "ranks_complete", "round_complete", "two_jobs"];

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
    let Some(shown) = shown.iter().find(|said| said.code == fault.code && is_it(&said.text)) else {
        return fail("the API does not have it".into());
    };
    let has_none = !shown.evidence.iter().any(|evidence| evidence.peer.is_some());
    if has_none != WITHOUT_EVIDENCE.contains(&fault.code) {
        return fail(format!("has as its evidence {:?}", shown.evidence));
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
            remedy: "have they started",
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
            remedy: "have they started",
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
            says: &["rank 0 on host0", "it was dropped", "a process of rank 1, and another took"],
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
            remedy: "look at the log of what ended",
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
            name: "env: a rank dies, and others have never come",
            play: |lab| {
                ranks(lab, &[0, 1], 4);
                read_each_other(lab, &[0], 4);
                lab.leave(1);
                lab.worker(12, "10.0.0.12");
                lab.publish(12, 3, 4);
                lab.wait_for_rank(12, 1);
            },
            code: "waiting_for_rank",
            says: &["rank 1 on host1: its connection closed", "; not published: rank 2"],
            remedy: "have they started",
            within: WAIT,
            never: &["not published: rank 1", "EADDRINUSE"],
        },
        Fault {
            name: "env: one that met the others before dies while they meet again",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                read_each_other(lab, &[0, 1, 2], 3);
                lab.pass(1.0);
                lab.leave(2);
                replace(lab, 12, 2, 3);
                lab.leave(1);
                lab.wait_for_rank(12, 0);
            },
            code: "rank_zero_slow",
            says: &[
                "goes on with the attempt before",
                "; not published: rank 1 on host1 (its connection closed)",
            ],
            remedy: "restart all",
            within: WAIT,
            never: &["it has not come"],
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
            says: &[
                "3 live processes have claimed rank 0: rank 0 on host0 (pid 2000), process 2001 at 10.0.0.1 and process 2002 at",
            ],
            remedy: "its own RANK",
            within: FACT,
            never: &["host2 and rank 0 on host2", "host2 and process", "ranks 0"],
        },
        Fault {
            name: "env: a process connects and ends without publishing",
            play: |lab| {
                ranks(lab, &[0], 2);
                lab.worker(7, "10.0.0.7");
                lab.pass(0.2);
                lab.leave(7);
                lab.wait_for_rank(0, 1);
            },
            code: "waiting_for_rank",
            says: &[
                "rank 1: it has not come",
                "without telling a rank: process 2007 at 10.0.0.7 (after 0.2 s)",
            ],
            remedy: "of the process",
            within: WAIT,
            never: &["has it started"],
        },
        Fault {
            name: "env: of two containers with one address and process id, one tells its rank and the other does not",
            play: |lab| {
                ranks(lab, &[0], 3);
                container(lab, 1);
                lab.publish(1, 1, 3);
                container(lab, 2);
                lab.wait_for_rank(0, 2);
                lab.wait_for_rank(1, 2);
            },
            code: "waiting_for_rank",
            says: &[
                "rank 2: nobody has published it, and process 1 at 10.0.0.9 has connected once more without telling a rank",
                "2 of 3 ranks have published, 3 processes have connected",
            ],
            remedy: "processes that have told no rank",
            within: WAIT,
            never: &["has not come", "has it started"],
        },
        Fault {
            name: "env: two containers with one address and process id tell no rank",
            play: |lab| {
                ranks(lab, &[0], 3);
                container(lab, 1);
                container(lab, 2);
                lab.wait_for_rank(0, 1);
            },
            code: "waiting_for_rank",
            says: &["process 1 at 10.0.0.9 (2 connections) is connected and has told no rank yet"],
            remedy: "processes that have told no rank",
            within: WAIT,
            never: &["has not come", "has it started"],
        },
        Fault {
            name: "env: of containers with one address and process id, one ends before it tells its rank",
            play: |lab| {
                for n in [0, 1] {
                    container(lab, n);
                    lab.publish(n, n, 3);
                }
                container(lab, 2);
                lab.pass(0.2);
                lab.leave(2);
                lab.wait_for_rank(0, 2);
                lab.wait_for_rank(1, 2);
            },
            code: "waiting_for_rank",
            says: &["without telling a rank: a connection of process 1 at 10.0.0.9 (after 0.2 s)"],
            remedy: "of the process",
            within: WAIT,
            never: &["has it started"],
        },
        Fault {
            name: "a store made by hand: a process that has used no key of PyTorch's",
            play: |lab| {
                ranks(lab, &[0], 2);
                lab.connect(7, "10.0.0.7", 77);
                lab.ping(7);
                lab.wait_for_rank(0, 1);
            },
            code: "waiting_for_rank",
            says: &[
                "process 77 at 10.0.0.7 is connected and has told no rank yet; 1 of 2",
                "2 processes have connected",
            ],
            remedy: "processes that have told no rank",
            within: WAIT,
            never: &["has not come"],
        },
        Fault {
            name: "a store made by hand with a prefix",
            play: |lab| {
                for n in [1, 2] {
                    lab.connect(n, &format!("10.0.0.{n}"), 2000 + n);
                    lab.ping(n);
                    lab.set(n, &format!("/mine/0//cpu//0/{n}"), b"address");
                    lab.wait(n, &["/mine/0//cpu//0/0"]);
                }
            },
            code: "waiting_for_group",
            says: &["2 processes have waited", "the address of rank 0 of the group below the prefix `mine`"],
            remedy: "have not reached this call",
            within: WAIT,
            never: &["deadlock"],
        },
        Fault {
            name: "env: all end before they publish",
            play: |lab| {
                for n in [1, 2] {
                    lab.worker(n, "10.0.0.7");
                }
                lab.pass(0.5);
                lab.leave(1);
                lab.leave(2);
            },
            code: "ended_unpublished",
            says: &[
                "process 2001 at 10.0.0.7 (after 0.5 s) and process 2002",
                "store on port 29500, counted themselves",
            ],
            remedy: "GLOO_SOCKET_IFNAME",
            within: FACT,
            never: &["left without finishing"],
        },
        Fault {
            name: "nccl: rank 0 ends before it writes the id",
            play: |lab| {
                for n in [0, 1, 2] {
                    lab.worker(n, &format!("10.0.0.{n}"));
                }
                lab.pass(0.5);
                lab.leave(0);
                lab.wait(1, &["/default_pg/0//cuda//0"]);
                lab.wait(2, &["/default_pg/0//cuda//0"]);
            },
            code: "rank_zero_slow",
            says: &[
                "the NCCL id from rank 0",
                "without telling a rank: process 2000 at 10.0.0.0 (after 0.5 s)",
            ],
            remedy: "of the process",
            within: WAIT,
            never: &["EADDRINUSE"],
        },
        Fault {
            name: "env: a rank comes to another store",
            play: |lab| {
                ranks(lab, &[0, 1], 3);
                let (conn, peer) = (ConnId::new(7, 7), ([10, 0, 0, 2], 40000).into());
                let (port, at, key) = (PORT + 1, lab.now, |key: &str| key.as_bytes().into());
                let came = Observed::Client { conn, peer, pid: Some(7), key: key("init/") };
                lab.insight.observe(port, at, came);
                let (key, value) = (key("/default_pg/0//cpu//0/2"), gloo("host2", 3).into());
                lab.insight.observe(port, at, Observed::Wrote { conn, key, value });
                read_each_other(lab, &[0, 1], 3);
            },
            code: "waiting_for_rank",
            says: &[
                "rank 2: it has not come; 2 of 3 ranks",
                "; in another store: rank 2 on host2 (port 29501)",
            ],
            remedy: "same MASTER_PORT",
            within: WAIT,
            never: &[],
        },
        Fault {
            name: "env: a reset takes the addresses of those who wait",
            play: |lab| {
                ranks(lab, &[0, 1], 3);
                read_each_other(lab, &[0, 1], 3);
                lab.pass(1.0);
                lab.reset();
            },
            code: "addresses_dropped",
            says: &[
                "before all ranks had met: the addresses of rank 0 on host0 and rank 1 on host1 are gone",
            ],
            remedy: "restart all processes",
            within: FACT,
            never: &["0 of 3", "none of 3"],
        },
        Fault {
            name: "env: two of four have another WORLD_SIZE",
            play: |lab| {
                ranks(lab, &[0, 1], 4);
                ranks(lab, &[2, 3], 5);
            },
            code: "world_sizes_differ",
            says: &["rank 0 and rank 1 are prepared for 4 ranks, rank 2 and rank 3 for 5"],
            remedy: "same WORLD_SIZE",
            within: FACT,
            never: &["is prepared"],
        },
        Fault {
            name: "env: ranks give up where two have not come",
            play: |lab| {
                ranks(lab, &[0, 3], 4);
                read_each_other(lab, &[0, 3], 4);
                lab.pass(2.0);
                for n in [0, 3] {
                    lab.cancel(n);
                    lab.leave(n);
                }
            },
            code: "gave_up",
            says: &[
                "rank 0 on host0 and rank 3 on host3",
                "rank 1 should have written it; missing: rank 1 and rank 2",
            ],
            remedy: "look at the process that should have written",
            within: FACT,
            never: &[],
        },
        Fault {
            name: "env: a key that the job before has deleted is waited for",
            play: |lab| {
                ranks(lab, &[0, 1], 2);
                lab.set(0, "once", b"1");
                lab.delete(0, "once");
                lab.leave(0);
                lab.leave(1);
                lab.pass(40.0);
                ranks(lab, &[2, 3], 4);
                lab.wait(2, &["once"]);
            },
            code: "waiting_for_key",
            says: &["rank 2 on host2 has waited", "`once`, which nobody has written"],
            remedy: "which part of the program writes that key",
            within: WAIT,
            never: &["deleted"],
        },
        Fault {
            name: "env: a key is deleted before all have read it",
            play: |lab| {
                ranks(lab, &[0, 1], 2);
                lab.set(0, "once", b"1");
                lab.delete(0, "once");
                lab.wait(1, &["once"]);
            },
            code: "waiting_for_key",
            says: &["rank 1 on host1 has waited", "`once`, which was there: a client deleted it"],
            remedy: "deletes that key",
            within: WAIT,
            never: &["nobody has written"],
        },
        Fault {
            name: "env: a reset while training takes a key of the program",
            play: |lab| {
                ranks(lab, &[0, 1], 2);
                lab.set(0, "once", b"1");
                lab.pass(2.0);
                lab.reset();
                lab.wait(1, &["once"]);
            },
            code: "waiting_for_key",
            says: &["`once`, which does not exist; an operator reset the store"],
            remedy: "before the reset",
            within: WAIT,
            never: &["nobody has written", "are gone"],
        },
        Fault {
            name: "env: a rank dies in training, and another with it",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.pass(20.0);
                lab.leave(2);
                lab.pass(0.5);
                lab.leave(1);
            },
            code: "ranks_ended",
            says: &[
                "rank 2 on host2 and rank 1 on host1 closed their connections, the first of them",
                "while 1 process is still connected",
            ],
            remedy: "look at their logs",
            within: WAIT,
            never: &["GLOO_SOCKET_IFNAME"],
        },
        Fault {
            name: "env: ranks that had made a sub-group could connect to each other",
            play: |lab| {
                ranks(lab, &[0, 1], 2);
                lab.set(0, "/default_pg/0//1//cpu//0/0", &gloo("host0", 2));
                lab.pass(2.0);
                lab.leave(1);
            },
            code: "ranks_ended",
            says: &["rank 1 on host1 closed its connection"],
            remedy: "cannot tell success from a crash",
            within: WAIT,
            never: &["GLOO_SOCKET_IFNAME"],
        },
        Fault {
            name: "env: a barrier of torch.distributed is called by its name",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.wait(0, &["/default_pg/0//store_based_barrier_key:grp:last_worker"]);
                lab.wait(1, &["/default_pg/0//store_based_barrier_key:grp:last_worker"]);
            },
            code: "waiting_for_group",
            says: &["the last rank to arrive at the barrier `grp`; not there: rank 2 on host2"],
            remedy: "have not reached this call",
            within: WAIT,
            never: &[],
        },
        Fault {
            name: "env: ranks wait for a key of the program that nobody writes",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.wait(1, &["data_redy"]);
                lab.wait(2, &["data_redy"]);
            },
            code: "waiting_for_key",
            says: &[
                "rank 1 on host1 and rank 2 on host2 have waited",
                "`data_redy`, which nobody has written; not there: rank 0 on host0",
            ],
            remedy: "whether its name is the same",
            within: WAIT,
            never: &["deadlock"],
        },
        Fault {
            name: "env: ranks give up on a key that is one slip from one that is there",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.set(0, "/default_pg/data_ready", b"1");
                lab.wait(1, &["/default_pg/data_redy"]);
                lab.wait(2, &["/default_pg/data_redy"]);
                lab.pass(8.0);
                (1..3).for_each(|n| lab.cancel(n));
                (1..3).for_each(|n| lab.leave(n));
            },
            code: "gave_up",
            says: &[
                "rank 1 on host1 and rank 2 on host2 gave up on `/default_pg/data_redy` after 8 s",
                "; `/default_pg/data_ready` exists; not there: rank 0 on host0",
            ],
            remedy: "may be a slip",
            within: FACT,
            never: &["should have written"],
        },
        Fault {
            name: "env: ranks give up on a sub-group that one of them does not make, as another has ended",
            play: |lab| {
                ranks(lab, &[0, 1, 2, 3], 4);
                lab.pass(6.0);
                lab.leave(3);
                lab.wait(0, &["/default_pg/0//1//cpu//0/2"]);
                lab.wait(1, &["/default_pg/0//1//cpu//0/2"]);
                lab.pass(8.0);
                (0..2).for_each(|n| lab.cancel(n));
            },
            code: "gave_up",
            says: &[
                "rank 0 on host0 and rank 1 on host1 gave up",
                "; rank 2 of the sub-group 1 should have written it; ended: rank 3 on host3 (8 s ago); not there: rank 2 on host2",
            ],
            remedy: "the processes that were not there",
            within: FACT,
            never: &["missing:"],
        },
        Fault {
            name: "env: a rank does not make a sub-group with the others",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.wait(0, &["/default_pg/0//1//cpu//0/2"]);
                lab.wait(1, &["/default_pg/0//1//cpu//0/2"]);
            },
            code: "waiting_for_group",
            says: &["2 processes have waited", "rank 2 of the sub-group 1; not there: rank 2 on host2"],
            remedy: "have not reached this call",
            within: WAIT,
            never: &["ended", "deadlock"],
        },
        Fault {
            name: "env: a rank does not make the sub-groups of a device mesh, and many wait in each",
            play: |lab| {
                ranks(lab, &[0, 1, 2, 3, 4, 5, 6], 7);
                lab.wait(6, &["/default_pg/0//2//cpu//0/1"]);
                lab.wait(0, &["/default_pg/0//1//cpu//0/1"]);
                lab.wait(1, &["/default_pg/0//3//cpu//0/2"]);
                lab.wait(2, &["/default_pg/0//1//cpu//0/1"]);
                lab.wait(3, &["/default_pg/0//3//cpu//0/2"]);
                lab.wait(5, &["/default_pg/0//3//cpu//0/1"]);
            },
            code: "waiting_for_group",
            says: &[
                "6 processes have waited",
                "for rank 1 of the sub-group 1, rank 1 of the sub-group 2 and 2 more members of sub-groups; not there: rank 4 on host4",
            ],
            remedy: "have not reached this call",
            within: WAIT,
            never: &["ended", "deadlock", "waits for `", "the address of rank"],
        },
        Fault {
            name: "env: a rank has ended before the sub-groups of a device mesh are made",
            play: |lab| {
                ranks(lab, &[0, 1, 2, 3], 4);
                lab.leave(2);
                lab.wait(0, &["/default_pg/0//1//cpu//0/1"]);
                lab.wait(1, &["/default_pg/0//3//cpu//0/1"]);
                lab.wait(3, &["/default_pg/0//2//cpu//0/0"]);
            },
            code: "waiting_for_group",
            says: &[
                "3 processes have waited",
                "for rank 0 of the sub-group 2, rank 1 of the sub-group 1 and rank 1 of the sub-group 3; ended: rank 2 on host2 (",
            ],
            remedy: "look why that process ended",
            within: WAIT,
            never: &["not there", "deadlock"],
        },
        Fault {
            name: "env: ranks make their sub-groups in another order, and one that waits for nothing is named first",
            play: |lab| {
                ranks(lab, &[0, 1, 2, 3], 4);
                lab.wait(0, &["/default_pg/0//1//cpu//0/1"]);
                lab.wait(1, &["/default_pg/own"]);
            },
            code: "waiting_for_group",
            says: &[
                "; not there: rank 2 on host2, rank 3 on host3 and rank 1 on host1 (waits for `/default_pg/own`)",
            ],
            remedy: "have not reached this call",
            within: WAIT,
            never: &["ended", "deadlock"],
        },
        Fault {
            name: "env: a rank has ended when the others make a sub-group",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.leave(2);
                lab.wait(0, &["/default_pg/0//1//cpu//0/2"]);
                lab.wait(1, &["/default_pg/0//1//cpu//0/2"]);
            },
            code: "waiting_for_group",
            says: &["rank 2 of the sub-group 1; ended: rank 2 on host2 ("],
            remedy: "look why that process ended",
            within: WAIT,
            never: &["not there", "deadlock"],
        },
        Fault {
            name: "env: a key that nobody writes is one slip from a key that is there",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.set(0, "data_ready", b"1");
                lab.wait(1, &["data_redy"]);
                lab.wait(2, &["data_redy"]);
            },
            code: "waiting_for_key",
            says: &["`data_redy`, which nobody has written; `data_ready` exists"],
            remedy: "may be a slip",
            within: WAIT,
            never: &["ended"],
        },
        Fault {
            name: "env: a key of the next step is no slip",
            play: |lab| {
                ranks(lab, &[0, 1], 2);
                lab.set(0, "step/10", b"1");
                lab.wait(1, &["step/11"]);
            },
            code: "waiting_for_key",
            says: &["`step/11`, which nobody has written"],
            remedy: "whether its name is the same",
            within: WAIT,
            never: &["exists", "slip"],
        },
        Fault {
            name: "env: the rank that would write a key of the program dies",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.pass(40.0);
                lab.wait(0, &["checkpoint/written"]);
                lab.leave(2);
            },
            code: "waiting_for_key",
            says: &["rank 0 on host0 has waited", "`checkpoint/written`", "; ended: rank 2 on host2 ("],
            remedy: "why that process ended",
            within: WAIT,
            never: &["exists", "deadlock"],
        },
        Fault {
            name: "env: a barrier of the program that a rank does not reach",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.pass(10.0);
                for n in [0, 2] {
                    lab.add(n, "ckpt/num_members", 1);
                    lab.wait(n, &["ckpt/last_member"]);
                }
            },
            code: "waiting_at_barrier",
            says: &[
                "rank 0 on host0 and rank 2 on host2",
                "at the barrier `ckpt`; not there: rank 1 on host1",
            ],
            remedy: "gone another way",
            within: WAIT,
            never: &["ended", "does not exist"],
        },
        Fault {
            name: "env: a BARRIER of which one rank is on another connection, and one has died",
            play: |lab| {
                ranks(lab, &[0, 1, 2, 3], 4);
                lab.pass(40.0);
                lab.connect_as(10, 1);
                lab.ping(10);
                lab.barrier(0, "ckpt", 4);
                lab.barrier(10, "ckpt", 4);
                lab.leave(3);
            },
            code: "waiting_at_barrier",
            says: &["at the barrier `ckpt` of 4; ended: rank 3 on host3 (", "; not there: rank 2 on host2"],
            remedy: "why that process ended",
            within: WAIT,
            never: &["not there: rank 1"],
        },
        Fault {
            name: "env: at a BARRIER waits a process that is not known",
            play: |lab| {
                ranks(lab, &[0, 1], 2);
                lab.pass(40.0);
                lab.connect(10, "10.0.0.1", 9999);
                lab.barrier(0, "ckpt", 2);
                lab.barrier(10, "ckpt", 3);
            },
            code: "waiting_at_barrier",
            says: &["rank 0 on host0 has waited", "at the barrier `ckpt` of 2"],
            remedy: "gone another way",
            within: WAIT,
            never: &["not there"],
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

#[test]
fn faults_of_static_runs() {
    check_all(&[
        Fault {
            name: "static: a node dies and is replaced while the others go on",
            play: |lab| {
                static_run(lab, "none", 3);
                for n in 1..3 {
                    lab.get(n, &format!("/none/torchelastic/assigned_ranks/{n}"));
                }
                lab.get(0, "/none/torchelastic/role_info/2");
                lab.pass(5.0);
                lab.leave(2);
                lab.pass(3.0);
                lab.static_node(12, "none", 2, 3);
            },
            code: "rank_zero_slow",
            says: &["the assigned ranks", "it is there, and goes on with the attempt before"],
            remedy: "restart all agents",
            within: WAIT,
            never: &["it has not come", "missing"],
        },
        Fault {
            name: "static: a node comes again, and another dies that went on with the attempt before",
            play: |lab| {
                static_run(lab, "none", 3);
                for n in 1..3 {
                    lab.get(0, &format!("/none/torchelastic/role_info/{n}"));
                    lab.get(n, &format!("/none/torchelastic/assigned_ranks/{n}"));
                }
                lab.pass(5.0);
                lab.leave(0);
                lab.pass(3.0);
                lab.static_node(10, "none", 0, 3);
                lab.pass(1.0);
                lab.leave(1);
            },
            code: "waiting_for_node",
            says: &["node rank 1: its connection closed"],
            remedy: "why that process ended",
            within: WAIT,
            never: &["it has not come", "while joining"],
        },
        Fault {
            name: "static: a node that nobody counts on dies while another has not come",
            play: |lab| {
                lab.static_node(0, "s", 0, 2);
                lab.pass(2.0);
                lab.static_node(3, "s", 3, 4);
                lab.pass(1.0);
                lab.leave(3);
            },
            code: "nodes_missing",
            says: &["1 of 2 nodes has joined; node 1 has been missing"],
            remedy: "missing node",
            within: WAIT,
            never: &["gone: node 3", "node 3 at 10.77.0.13 died"],
        },
        Fault {
            name: "static: a node never comes, and nobody has said how many there are",
            play: |lab| {
                lab.static_node(0, "s", 0, 4);
                lab.static_node(2, "s", 2, 4);
            },
            code: "nodes_missing",
            says: &["2 of 4 nodes have joined", "node 1 and node 3", "rank 0's role exchange"],
            remedy: "missing node",
            within: WAIT,
            never: &["deadlock"],
        },
        Fault {
            name: "static: of the nodes that are not there, one has never come and one has died",
            play: |lab| {
                lab.static_node(0, "s", 0, 3);
                lab.static_node(1, "s", 1, 3);
                lab.leave(1);
            },
            code: "nodes_missing",
            says: &["1 of 3 nodes has joined", "; node 2 has been missing", "; gone: node 1 ("],
            remedy: "missing node",
            within: WAIT,
            never: &["node 1 and node 2", "node 1 has been missing"],
        },
        Fault {
            name: "static: a node with a larger --nnodes waits for ranks that nobody hands out",
            play: |lab| {
                lab.static_node(0, "s", 0, 2);
                lab.static_node(2, "s", 2, 3);
                lab.static_node(1, "s", 1, 2);
                lab.assign_static(0, "s", 2, 1);
            },
            code: "node_rank_beyond",
            says: &["node 2 at 10.77.0.12", "rank 0 counts on 2 nodes"],
            remedy: "same --nnodes",
            within: FACT,
            never: &["from node 0", "3 nodes", "look at rank 0"],
        },
        Fault {
            name: "static: an operator resets the store while nodes join",
            play: |lab| {
                lab.static_node(0, "s", 0, 3);
                lab.static_node(1, "s", 1, 3);
                lab.pass(2.0);
                lab.reset();
            },
            code: "rank_zero_slow",
            says: &["an operator reset the store"],
            remedy: "restart all processes",
            within: WAIT,
            never: &["deadlock", "each waits for the next"],
        },
        Fault {
            name: "static: a node dies before its ranks have come",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..2, 4);
                lab.leave(1);
            },
            code: "node_died",
            says: &["node 1 at 10.77.0.11", "before all ranks had published"],
            remedy: "do not watch each other",
            within: FACT,
            never: &["while training", "heartbeats"],
        },
        Fault {
            name: "static: a node dies, and the others wait for it at the exit barrier",
            play: |lab| {
                static_run(lab, "s", 3);
                lab.exit_static(0, "s", false);
                lab.exit_static(1, "s", false);
                lab.leave(2);
            },
            code: "exit_barrier",
            says: &["2 of 3 nodes have finished", "died, failed or stopped: node 2"],
            remedy: "log of what died",
            within: WAIT,
            never: &["still train", "heartbeats"],
        },
        Fault {
            name: "static: the ranks of a node that is there never come",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..2, 4);
                lab.wait_for_rank(100, 2);
                lab.wait_for_rank(101, 2);
            },
            code: "waiting_for_rank",
            says: &["rank 2 (local rank 0 on node 1 at 10.77.0.11)", "rank 3 (local rank 1 on node 1"],
            remedy: "have they started",
            within: WAIT,
            never: &["meet at"],
        },
        Fault {
            name: "static: a rank fails, that of the other node with it, and both nodes start their workers again",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..4, 4);
                lab.pass(5.0);
                for rank in [3, 0, 2, 1] {
                    lab.leave(100 + rank);
                    lab.pass(0.1);
                }
                lab.restart_workers(0, "s", 0);
                lab.pass(0.5);
                lab.restart_workers(1, "s", 1);
                lab.assign_static(0, "s", 2, 2);
            },
            code: "workers_restarted",
            says: &[
                "node 0 at 10.77.0.10 and node 1 at 10.77.0.11 have ended their workers and start them again",
                "of the ranks before rank 3 on host103 ended first, 0.4 s earlier",
            ],
            remedy: "log of the rank that ended first",
            within: FACT,
            never: &["round 1", "missing", "of 2 nodes", "rank 0"],
        },
        Fault {
            name: "static: a node starts its workers again long after that of the rank that failed first",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..4, 4);
                lab.pass(5.0);
                (102..104).for_each(|rank| lab.leave(rank));
                lab.restart_workers(1, "s", 1);
                lab.pass(1.0);
                for rank in 2..4 {
                    lab.worker(202 + rank, "10.77.0.11");
                    lab.publish(202 + rank, rank, 4);
                }
                lab.leave(100);
                lab.pass(2.0);
                lab.leave(101);
                lab.restart_workers(0, "s", 0);
            },
            code: "workers_restarted",
            says: &[
                "node 0 at 10.77.0.10 has ended",
                "of the ranks before rank 2 on host102 ended first, 3 s earlier",
            ],
            remedy: "log of the rank that ended first",
            within: FACT,
            never: &["round 1", "missing", "of 2 nodes", "rank 0"],
        },
        Fault {
            name: "static: two agents have one node rank, and another is free",
            play: |lab| {
                lab.static_node(0, "s", 0, 4);
                lab.static_node(1, "s", 1, 4);
                lab.static_node(2, "s", 1, 4);
                lab.static_node(3, "s", 2, 4);
            },
            code: "nodes_missing",
            says: &[
                "3 of 4 nodes have joined; node 3 has been missing",
                "several live processes claim node 1",
            ],
            remedy: "give each agent its own --node-rank",
            within: WAIT,
            never: &["is it scheduled"],
        },
        Fault {
            name: "static: two agents have one node rank, and 0 is free",
            play: |lab| {
                lab.static_node(1, "s", 1, 3);
                lab.static_node(2, "s", 1, 3);
                lab.static_node(3, "s", 2, 3);
            },
            code: "rank_zero_slow",
            says: &[
                "it has not come, and node 1 is claimed by several live processes: it may be one of them",
            ],
            remedy: "give each agent its own --node-rank",
            within: WAIT,
            never: &["is it scheduled"],
        },
        Fault {
            name: "static: a rank fails before all have come, and its agent ends the other one of its node",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 1..4, 4);
                lab.pass(5.0);
                lab.leave(103);
                lab.pass(0.2);
                lab.leave(102);
            },
            code: "rank_lost",
            says: &[
                "rank 3 on host103 ended before all ranks had come, and then rank 2 on host102 of the same node; 1 of 4",
            ],
            remedy: "log of what ended first",
            within: FACT,
            never: &["rank 2 on host102 ended"],
        },
        Fault {
            name: "static: a rank fails before it has published, and its agent ends the other one of its node",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..3, 4);
                lab.pass(5.0);
                lab.leave(102);
            },
            code: "rank_lost",
            says: &[
                "rank 2 on host102 ended before all",
                "; rank 3 (local rank 1 on node 1 at 10.77.0.11) of the same node had not",
            ],
            remedy: "which of the node's ranks failed",
            within: FACT,
            never: &["look at the log of what ended;"],
        },
        Fault {
            name: "static: a node starts its workers again after the other has finished",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..4, 4);
                lab.pass(5.0);
                (100..102).for_each(|rank| lab.leave(rank));
                lab.exit_static(0, "s", false);
                lab.pass(2.0);
                (102..104).for_each(|rank| lab.leave(rank));
                lab.restart_workers(1, "s", 1);
                for rank in 2..4 {
                    lab.worker(202 + rank, "10.77.0.11");
                    lab.publish(202 + rank, rank, 4);
                    lab.wait_for_rank(202 + rank, 0);
                }
            },
            code: "rank_zero_slow",
            says: &["the address from rank 0", "its node has finished, and does not start it again"],
            remedy: "restart all agents",
            within: WAIT,
            never: &["has not come", "has it started"],
        },
        Fault {
            name: "static: a rank that has come again gives up, and its node starts its workers once more",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..4, 4);
                lab.pass(5.0);
                (102..104).for_each(|rank| lab.leave(rank));
                lab.restart_workers(1, "s", 1);
                for rank in 2..4 {
                    lab.worker(202 + rank, "10.77.0.11");
                    lab.publish(202 + rank, rank, 4);
                }
                lab.pass(20.0);
                (204..206).for_each(|rank| lab.leave(rank));
                lab.restart_workers(1, "s", 1);
            },
            code: "rank_lost",
            says: &["rank 2 on host204 ended before all ranks had come, and then rank 3 on host205"],
            remedy: "restart all processes",
            within: FACT,
            never: &["20 s earlier"],
        },
        Fault {
            name: "static: a node is killed before all ranks have come",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..1, 4);
                workers(lab, 2..4, 4);
                lab.pass(5.0);
                (102..104).for_each(|rank| lab.leave(rank));
                lab.leave(1);
            },
            code: "rank_lost",
            says: &[
                "rank 2 on host102 and rank 3 on host103 ended before all ranks had come; 1 of 4 is still there",
            ],
            remedy: "logs of what ended",
            within: FACT,
            never: &["and then", "of the same node"],
        },
        Fault {
            name: "static: a worker fails long after it has closed its group",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..4, 4);
                lab.pass(5.0);
                (100..104).for_each(|rank| lab.leave(rank));
                lab.pass(20.0);
                lab.restart_workers(1, "s", 1);
            },
            code: "workers_restarted",
            says: &["node 1 at 10.77.0.11 has ended its workers and starts them again"],
            remedy: "one of them failed",
            within: FACT,
            never: &["ended first"],
        },
        Fault {
            name: "static: a rank fails, and with it the whole job",
            play: |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..4, 4);
                lab.pass(5.0);
                for rank in [3, 0, 2, 1] {
                    lab.leave(100 + rank);
                    lab.pass(0.1);
                }
                lab.leave(0);
                lab.pass(0.2);
                lab.leave(1);
            },
            code: "all_left",
            says: &["both nodes left without finishing; first: rank 3 on host103"],
            remedy: "log of what ended first",
            within: FACT,
            never: &["first: node"],
        },
        Fault {
            name: "static: all nodes end one after the other",
            play: |lab| {
                static_run(lab, "s", 3);
                for n in [1, 2, 0] {
                    lab.leave(n);
                    lab.pass(0.2);
                }
            },
            code: "all_left",
            says: &["all 3 nodes left without finishing; first: node 1 at 10.77.0.11"],
            remedy: "log of what ended first",
            within: FACT,
            never: &["finished:"],
        },
        Fault {
            name: "static: node ranks begin at 1",
            play: |lab| {
                lab.static_node(1, "s", 1, 2);
                lab.static_node(2, "s", 2, 2);
            },
            code: "rank_zero_slow",
            says: &["the assigned ranks from node rank 0: it has not come"],
            remedy: "--node-rank begins at 0",
            within: WAIT,
            never: &["3 nodes"],
        },
        Fault {
            name: "static: all nodes are killed",
            play: |lab| {
                static_run(lab, "s", 2);
                lab.leave(0);
                lab.leave(1);
            },
            code: "all_left",
            says: &["both nodes left without finishing"],
            remedy: "logs",
            within: FACT,
            never: &["finished:"],
        },
    ]);
}

#[test]
fn faults_at_the_end_of_ranks() {
    check_all(&[
        Fault {
            name: "env: all ranks are killed at once",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.pass(20.0);
                (0..3).for_each(|n| lab.leave(n));
            },
            code: "run_ended",
            says: &["the connections of all 3 processes closed"],
            remedy: "cannot be seen here",
            within: FACT,
            never: &["finished", "SOCKET_IFNAME"],
        },
        Fault {
            name: "env: a rank ends in a collective, and with it all others",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.pass(10.0);
                lab.leave(1);
                lab.pass(0.5);
                lab.leave(0);
                lab.pass(1.0);
                lab.leave(2);
            },
            code: "run_ended",
            says: &[
                "the connections of all 3 processes closed after 12 s; first: rank 1 on host1, 1.5 s before the last",
            ],
            remedy: "those of the first one before all",
            within: FACT,
            never: &["SOCKET_IFNAME"],
        },
        Fault {
            name: "env: all ranks end soon after they have met",
            play: |lab| {
                ranks(lab, &[0, 1], 2);
                lab.pass(4.0);
                (0..2).for_each(|n| lab.leave(n));
            },
            code: "run_ended",
            says: &["the connections of both processes closed"],
            remedy: "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME",
            within: FACT,
            never: &["all 2"],
        },
        Fault {
            name: "env: rank 0 and another one have not come",
            play: |lab| {
                ranks(lab, &[2, 3], 4);
                read_each_other(lab, &[2, 3], 4);
            },
            code: "rank_zero_slow",
            says: &["from rank 0: it has not come; missing: rank 0 and rank 1"],
            remedy: "the processes of the missing ranks",
            within: WAIT,
            never: &["rank 0's process:"],
        },
        Fault {
            name: "env: rank 0 has ended, and another one has not come",
            play: |lab| {
                ranks(lab, &[0, 2, 3], 4);
                lab.leave(0);
                read_each_other(lab, &[2, 3], 4);
            },
            code: "rank_zero_slow",
            says: &["rank 0 on host0: its connection closed", "not published: rank 1"],
            remedy: "at those whose addresses are not there",
            within: WAIT,
            never: &[],
        },
        Fault {
            name: "env: NCCL ranks, of which only rank 0 writes anything, are killed",
            play: |lab| {
                (0..3).for_each(|n| lab.worker(n, "10.0.0.1"));
                lab.set(0, "/default_pg/0//cuda//0", &[7; 128]);
                (1..3).for_each(|n| lab.get(n, "/default_pg/0//cuda//0"));
                lab.pass(8.0);
                (0..3).for_each(|n| lab.leave(n));
            },
            code: "run_ended",
            says: &["the connections of all 3 processes closed"],
            remedy: "cannot be seen here",
            within: FACT,
            never: &["finished", " 0 processes"],
        },
        Fault {
            name: "env: a rank comes again alone, and the others go on",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                read_each_other(lab, &[0, 1, 2], 3);
                lab.pass(20.0);
                lab.leave(2);
                lab.pass(1.0);
                replace(lab, 12, 2, 3);
                lab.wait_for_rank(12, 0);
            },
            code: "rank_zero_slow",
            says: &["rank 0 on host0: it is there, and goes on with the attempt before"],
            remedy: "all ranks, of the job together",
            within: WAIT,
            never: &["busy, stuck", "has not come", "none of 3"],
        },
        Fault {
            name: "env: a process that tells no process id does not publish, on the host of a rank that has",
            play: |lab| {
                ranks(lab, &[0, 1], 3);
                lab.connect(7, "10.0.0.1", 4242);
                lab.add(7, "init/", 1);
                lab.wait_for_rank(0, 2);
            },
            code: "waiting_for_rank",
            says: &["rank 2", "nobody has published it, and a process at 10.0.0.1 is connected"],
            remedy: "told no rank",
            within: WAIT,
            never: &["has not come"],
        },
        Fault {
            name: "env: a process connects and does not publish its address",
            play: |lab| {
                ranks(lab, &[0, 1], 3);
                lab.worker(2, "10.0.0.2");
                read_each_other(lab, &[0, 1], 3);
            },
            code: "waiting_for_rank",
            says: &[
                "rank 2: nobody has published it",
                "process 2002 at 10.0.0.2 is connected and has told no rank",
                "3 processes have connected",
            ],
            remedy: "told no rank",
            within: WAIT,
            never: &["has not come", "missing"],
        },
        Fault {
            name: "env: a rank cannot connect to another and ends",
            play: |lab| {
                ranks(lab, &[0, 1, 2], 3);
                lab.pass(1.0);
                lab.leave(2);
            },
            code: "ranks_ended",
            says: &[
                "rank 2 on host2 closed its connection",
                "1 s after all had published",
                "2 processes are still connected",
            ],
            remedy: "GLOO_SOCKET_IFNAME",
            within: WAIT,
            never: &["have met"],
        },
    ]);
}

#[test]
fn a_process_that_never_was_a_rank_leaves_without_a_word() {
    let mut lab = lab();
    lab.worker(0, "10.0.0.0");
    lab.pass(10.0);
    lab.leave(0);
    lab.pass(5.0);
    assert!(lab.run("store:29500").summary.state.is_over());
    assert_eq!(lab.complaints(), Vec::<&str>::new());
}

#[test]
fn an_agent_that_is_frozen_is_named_before_torch_takes_it_out() {
    let mut lab = lab();
    lab.complete_run("job", 3);
    let mut beats = |seconds: u32, of: &[u32]| {
        for _ in 0..seconds / 5 {
            lab.pass(5.0);
            for &n in of {
                lab.cas(n, "job", "");
            }
        }
        (lab.complaints().iter().map(ToString::to_string).collect::<Vec<_>>(), lab.now.0.as_secs_f64())
    };
    assert_eq!(beats(30, &[0, 1, 2]).0, Vec::<String>::new());
    let (said, now) = beats(15, &[0, 2]);
    let silent = "job round 0: node1 (node rank 1) has sent no heartbeat for 1";
    assert!(said[0].starts_with(silent) && said[0].ends_with("; others have"), "{said:?} at {now}");
    let said = beats(5, &[0, 1, 2]).0.len();
    assert_eq!(beats(30, &[0, 1, 2]).0.len(), said, "it is back");
}

#[test]
fn who_replaces_a_dead_node_is_not_left_over_while_torch_takes_it_in() {
    let mut lab = lab();
    lab.complete_run("job", 3);
    lab.leave(1);
    lab.pass(2.0);
    lab.agent(7, "job");
    lab.cas(7, "job", "redundant");
    lab.pass(10.0);
    // The death is noticed, and the others leave the round one by one.
    lab.cas(0, "job", "drop:1");
    lab.cas(7, "job", "wait");
    for n in [0, 2] {
        lab.cas(n, "job", "leave");
        lab.cas(n, "job", "wait");
        lab.pass(2.0);
    }
    lab.pass(6.0);
    let told = lab.texts("left_over");
    let waits = |text: &&str| {
        text.ends_with("node1 (node rank 1) is dead, and in this one until its heartbeats expire")
    };
    assert!(!told.is_empty() && told.iter().all(waits), "{told:?}");
    assert_eq!(lab.complaints().len(), 1, "only the death: {:?}", lab.complaints());
}

#[test]
fn who_takes_the_place_of_a_rank_that_ended_is_not_said_to_have_ended() {
    let mut lab = lab();
    ranks(&mut lab, &[0, 1], 3);
    lab.pass(1.0);
    lab.leave(1);
    lab.pass(0.5);
    lab.worker(10, "10.0.0.1");
    lab.publish(10, 1, 3);
    lab.pass(3.0);
    let lost = lab.texts("rank_lost");
    assert!(matches!(lost[..], [text] if text.contains("rank 1 on host1 ended")), "{lost:?}");
}

#[test]
fn an_explanation_says_how_sure_it_is() {
    let mut lab = lab();
    ranks(&mut lab, &[0, 1, 2], 4);
    read_each_other(&mut lab, &[0, 1, 2], 4);
    lab.pass(8.0);
    lab.leave(1);
    lab.pass(5.0);
    let certainty = |code: &str| {
        let said = lab.said.iter().find(|(_, said)| said.code == code).map(|(_, said)| said.certainty);
        said.unwrap_or_else(|| panic!("{code} was not said"))
    };
    assert_eq!(certainty("waiting_for_rank"), Certainty::Eliminated, "rank 3 was never seen");
    assert_eq!(certainty("rank_lost"), Certainty::Seen, "the connection of rank 1 closed");
}

#[test]
fn an_explanation_carries_its_evidence() {
    let mut lab = lab();
    ranks(&mut lab, &[0, 1], 3);
    read_each_other(&mut lab, &[0, 1], 3);
    lab.pass(8.0);
    lab.leave(1);
    lab.pass(5.0);
    let run = lab.run(&format!("store:{PORT}"));
    let of = |code: &str| {
        let found = run.explanations.iter().find(|said| said.code == code);
        found.unwrap_or_else(|| panic!("{code} is not shown")).evidence.clone()
    };
    let key = Some("/default_pg/0//cpu//0/2".to_owned());
    let [waits] = &of("waiting_for_rank")[..] else { panic!("{:?}", of("waiting_for_rank")) };
    assert_eq!((waits.seen, &*waits.who, &waits.key), (Seen::Waits, "rank 0 on host0", &key));
    assert_eq!((waits.peer.as_deref(), waits.pid), (Some("10.0.0.0:40000"), Some(2000)));
    assert!(waits.at < 1.0, "it began to wait then: {}", waits.at);
    let [closed] = &of("rank_lost")[..] else { panic!("{:?}", of("rank_lost")) };
    assert_eq!((closed.seen, &*closed.who, &closed.key), (Seen::Closed, "rank 1 on host1", &None));
    assert!((8.0..8.2).contains(&closed.at), "{}", closed.at);
    assert!(run.summary.explanation.expect("a headline").evidence.is_empty());
}

/// A healthy run with its name.
type Twin = (&'static str, fn(&mut Lab));

/// What may be said of a healthy run.
fn assert_healthy(name: &str, lab: &mut Lab) {
    lab.pass(60.0);
    let alarms: Vec<_> = lab
        .said
        .iter()
        .filter(|(_, said)| said.severity > Severity::Info)
        .map(|(_, said)| &said.text)
        .collect();
    assert!(alarms.is_empty(), "{name}: {alarms:?}");
}

#[test]
fn healthy_twins_are_silent() {
    let twins: &[Twin] = &[
        ("env: all come, train and end one by one", |lab| {
            ranks(lab, &[0, 1, 2, 3], 4);
            lab.pass(60.0);
            for n in 0..4 {
                lab.leave(n);
                lab.pass(0.5);
            }
        }),
        ("env: one run after the other", |lab| {
            for job in 0..3 {
                for rank in 0..3 {
                    lab.worker(10 * job + rank, "10.0.0.1");
                    lab.publish(10 * job + rank, rank, 3);
                }
                lab.pass(5.0);
                (0..3).for_each(|rank| lab.leave(10 * job + rank));
                lab.pass(0.4);
            }
        }),
        ("static: runs of one id follow each other", |lab| {
            for _ in 0..3 {
                static_run(lab, "none", 2);
                workers(lab, 0..4, 4);
                lab.pass(20.0);
                (100..104).for_each(|n| lab.leave(n));
                lab.exit_static(0, "none", false);
                lab.exit_static(1, "none", true);
                lab.leave(0);
                lab.leave(1);
                lab.pass(15.0);
            }
        }),
        ("c10d: a node leaves by itself before the round is complete", |lab| {
            for n in 0..3 {
                lab.agent(n, "job");
                lab.cas(n, "job", "join");
            }
            lab.cas(2, "job", "leave");
            lab.pass(0.5);
            lab.cas(2, "job", "join complete");
            lab.exchange("job", 0, 3, 1);
        }),
        ("a client that is of no job waits for a key of its own", |lab| {
            lab.connect(0, "10.0.0.9", 44);
            lab.ping(0);
            lab.wait(0, &["mine"]);
        }),
        ("a static job follows a c10d job with the same id", |lab| {
            lab.complete_run("none", 2);
            lab.pass(10.0);
            lab.reach_exit(0, "none", false);
            lab.reach_exit(1, "none", true);
            (0..2).for_each(|n| lab.leave(n));
            lab.pass(3.0);
            static_run(lab, "none", 2);
            lab.pass(20.0);
            assert_eq!(lab.run("none").summary.kind, RunKind::Static);
            lab.exit_static(0, "none", false);
            lab.exit_static(1, "none", true);
            (0..2).for_each(|n| lab.leave(n));
        }),
        ("env: a program polls for a key of its own", |lab| {
            ranks(lab, &[0, 1], 2);
            for _ in 0..30 {
                lab.wait(0, &["checkpoint/next"]);
                lab.pass(1.5);
                lab.cancel(0);
            }
        }),
    ];
    for (name, play) in twins {
        let mut lab = lab();
        play(&mut lab);
        assert_healthy(name, &mut lab);
    }
}

/// What gathers again has begun when that began.
#[test]
fn ranks_that_come_again_join_since_then() {
    let mut lab = lab();
    ranks(&mut lab, &[0, 1, 2], 3);
    lab.pass(20.0);
    lab.leave(1);
    lab.pass(5.0);
    lab.worker(11, "10.0.0.1");
    lab.publish(11, 1, 3);
    lab.pass(2.0);
    let run = lab.run("store:29500").summary;
    let now = lab.now.0.as_secs_f64();
    assert_eq!(run.state, RunState::Joining);
    assert!(now - run.started_at < 3.0, "{run:?} at {now}");
}

#[test]
fn a_run_that_follows_another_at_once_has_times_of_its_own() {
    let mut lab = lab();
    ranks(&mut lab, &[0, 1], 2);
    lab.pass(20.0);
    lab.leave(0);
    lab.leave(1);
    lab.pass(0.3);
    for rank in 0..2 {
        lab.worker(10 + rank, "10.0.0.1");
        lab.publish(10 + rank, rank, 2);
    }
    lab.pass(2.0);
    let run = lab.run("store:29500").summary;
    let now = lab.now.0.as_secs_f64();
    assert!(now - run.state_since < 3.0 && now - run.started_at < 3.0, "{run:?} at {now}");
}

#[test]
fn the_workers_store_is_elsewhere_only_if_it_is() {
    let mut lab = lab();
    static_run(&mut lab, "s", 2);
    lab.set(0, "/s/MASTER_ADDR", b"node0");
    lab.set(0, "/s/MASTER_PORT", b"29500");
    workers(&mut lab, 0..4, 4);
    lab.pass(1.0);
    assert_eq!(lab.run("s").workers_store, None);
}

#[test]
fn a_static_node_that_died_is_missing() {
    let mut lab = lab();
    lab.static_node(0, "s", 0, 3);
    lab.static_node(1, "s", 1, 3);
    lab.pass(3.0);
    lab.leave(1);
    lab.pass(3.0);
    let run = lab.run("s");
    assert_eq!((run.summary.nodes.joined, run.summary.nodes.missing), (1, Some(2)));
    let names: Vec<_> = run.missing.iter().filter_map(|node| node.name.as_deref()).collect();
    assert_eq!(names, ["node 1", "node 2"]);
}

#[test]
fn node_0_that_has_not_come_is_missing_though_nobody_has_said_how_many_there_are() {
    let mut lab = lab();
    lab.static_node(2, "s", 2, 3);
    lab.pass(3.0);
    let run = lab.run("s");
    assert_eq!((run.summary.nodes.expected, run.summary.nodes.missing), (None, Some(2)));
    let names: Vec<_> = run.missing.iter().filter_map(|node| node.name.as_deref()).collect();
    assert_eq!(names, ["node 0", "node 1"]);
}

#[test]
fn static_nodes_that_go_on_with_the_attempt_before_wait_for_no_round() {
    let mut lab = lab();
    static_run(&mut lab, "s", 3);
    lab.pass(5.0);
    lab.leave(1);
    lab.static_node(11, "s", 1, 3);
    lab.pass(3.0);
    let run = lab.run("s");
    let nodes = run.summary.nodes;
    assert_eq!((nodes.joined, nodes.waiting, nodes.earlier, nodes.missing), (1, 0, 2, Some(0)));
    let states: Vec<_> = run.participants.iter().map(|node| node.state).collect();
    assert_eq!(states, [NodeState::Earlier, NodeState::Joined, NodeState::Earlier]);
}

#[test]
fn a_larger_static_job_beside_another_is_no_node_too_many() {
    let mut lab = lab();
    static_run(&mut lab, "none", 2);
    lab.pass(5.0);
    // The node with the highest rank comes first.
    for rank in [2, 0, 1] {
        lab.static_node(10 + rank, "none", rank, 3);
    }
    lab.assign_static(10, "none", 3, 1);
    lab.pass(10.0);
    assert_eq!(lab.texts("node_rank_beyond"), [""; 0]);
    let clash = &lab.texts("duplicate_rank")[0];
    assert!(
        clash.contains("claimed node rank 0: process 1000 at 10.77.0.10 and process 1010 at 10.77.0.20;")
            && clash
                .contains("; the same is so of node rank 1 (process 1001 at 10.77.0.11 and process 1011 at"),
        "{clash}"
    );
    let nodes = lab.run("none").summary.nodes;
    // The first job goes on, and what has come since is another one.
    assert_eq!((nodes.joined, nodes.redundant, nodes.missing), (2, 1, Some(0)));
}

#[test]
fn a_rank_is_the_first_ones_again_when_the_second_that_claimed_it_has_ended() {
    let mut lab = lab();
    ranks(&mut lab, &[0, 1], 3);
    lab.wait_for_rank(1, 2);
    lab.pass(2.0);
    lab.worker(2, "10.0.0.2");
    lab.publish(2, 1, 3);
    lab.pass(5.0);
    lab.leave(2);
    lab.pass(3.0);
    lab.wait_for_rank(0, 1);
    lab.pass(6.0);
    assert!(lab.texts("rank_lost").is_empty(), "{:?}", lab.said);
    let said = lab.texts("waiting_for_rank").join("; ");
    assert!(!said.contains("its connection closed"), "{said}");
    assert!(said.contains("another process with that rank wrote it as well"), "{said}");
}

#[test]
fn a_rank_of_the_job_before_that_ended_well_is_not_the_one_that_is_missing() {
    let said_of_rank_1 = |process: fn(u32) -> (u32, u32)| {
        let mut lab = lab();
        ranks(&mut lab, &[0, 1, 2], 3);
        lab.pass(3.0);
        (0..3).for_each(|n| lab.leave(n));
        lab.pass(0.2);
        for rank in [0, 2] {
            let ((host, pid), n) = (process(rank), 10 + rank);
            lab.connect(n, &format!("10.0.0.{host}"), pid);
            lab.ping(n);
            lab.add(n, "init/", 1);
            lab.publish(n, rank, 3);
            lab.wait_for_rank(n, 1);
        }
        lab.pass(6.0);
        lab.texts("waiting_for_rank").join("; ")
    };
    let said = said_of_rank_1(|rank| (1, 2010 + rank));
    assert!(said.contains("the address of rank 1: it has not come"), "{said}");
    // Those that meet again close their connections, too: they are the same processes.
    let said = said_of_rank_1(|rank| (rank, 2000 + rank));
    assert!(said.contains("rank 1 on host1: its connection closed"), "{said}");
}

#[test]
fn a_pod_whose_node_has_another_name_is_not_missing() {
    let mut lab = lab();
    lab.gate("job", &[("a", 0, 3), ("b", 1, 3), ("c", 2, 3)], &[]);
    lab.agent(9, "job");
    lab.cas(9, "job", "join");
    lab.pass(6.0);
    assert!(lab.run("job").missing.is_empty(), "{:?}", lab.run("job").missing);
    let said = lab.texts("nodes_missing").join("; ");
    assert!(said.contains("1 of 3 nodes has joined") && !said.contains("a has been missing"), "{said}");
}

#[test]
fn a_barrier_that_counts_on_more_than_there_are_is_too_large() {
    let mut lab = lab();
    ranks(&mut lab, &[0, 1], 2);
    lab.pass(2.0);
    (0..2).for_each(|n| lab.barrier(n, "ckpt", 3));
    lab.pass(6.0);
    let said = lab.texts("waiting_at_barrier").join("; ");
    assert!(said.contains("at the barrier `ckpt` of 3; no other process of the run is there"), "{said}");
}

#[test]
fn two_jobs_that_meet_with_each_others_ranks_are_two_jobs() {
    let mut lab = lab();
    for (n, rank) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        lab.worker(n, &format!("10.0.0.{n}"));
        lab.publish(n, rank, 2);
        lab.pass(2.0);
    }
    lab.pass(4.0);
    assert!(
        lab.texts("two_jobs")[0].contains("each of 2 ranks is claimed by two live processes"),
        "{:?}",
        lab.said
    );
}

#[test]
fn the_workers_store_of_one_round_is_not_that_of_the_next() {
    let mut lab = lab();
    lab.complete_run("job", 2);
    lab.set(0, "/torch.rendezvous.job.0/MASTER_ADDR", b"node0");
    lab.set(0, "/torch.rendezvous.job.0/MASTER_PORT", b"29500");
    lab.pass(2.0);
    assert_eq!(lab.run("job").workers_store.as_deref(), Some("node0:29500"));
    lab.cas(1, "job", "next join");
    lab.pass(2.0);
    assert_eq!(lab.run("job").workers_store, None);
}

#[test]
fn ranks_in_a_store_that_was_opened_for_announced_pods_are_a_run_without_agents() {
    let mut lab = lab();
    lab.insight.own_store(PORT, StoreOwner::Run("job".into()));
    lab.gate("job", &[("a", 0, 2), ("b", 1, 2)], &[]);
    lab.pass(1.0);
    ranks(&mut lab, &[0, 1], 2);
    lab.pass(2.0);
    let list = lab.insight.list(0, lab.now);
    let shown: Vec<_> = list.runs.iter().map(|run| (run.run_id.as_str(), run.kind, run.state)).collect();
    assert_eq!(shown, [("job", RunKind::Env, RunState::Running)]);
    lab.leave(0);
    lab.leave(1);
    lab.pass(3.0);
    assert_eq!(lab.run("job").summary.state, RunState::Ended);
}

#[test]
fn faults_of_backends() {
    check_all(&[
        Fault {
            name: "static and c10d agents with one id",
            play: |lab| {
                lab.static_node(0, "job", 0, 2);
                lab.pass(1.0);
                lab.agent(1, "job");
                lab.cas(1, "job", "join");
            },
            code: "two_backends",
            says: &["static (node 0 at 10.77.0.10)", "c10d (node1)"],
            remedy: "same --rdzv-backend",
            within: FACT,
            never: &["no heartbeat", "have joined", "has joined", "node rank 0: "],
        },
        Fault {
            name: "c10d agents, and one of the static rendezvous with their id",
            play: |lab| {
                for n in 0..2 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", "join");
                }
                lab.pass(1.0);
                lab.static_node(2, "job", 2, 3);
                lab.pass(2.0);
                lab.cas(0, "job", "");
            },
            code: "two_backends",
            says: &["static (node 2 at 10.77.0.12)", "c10d (node0 and node1)"],
            remedy: "same --rdzv-backend",
            within: FACT,
            never: &["took", "have joined", "node rank 0: "],
        },
        Fault {
            name: "c10d: no agent is heard of any more, though all are connected",
            play: |lab| {
                lab.complete_run("job", 2);
                for _ in 0..2 {
                    lab.pass(5.0);
                    (0..2).for_each(|n| lab.cas(n, "job", ""));
                }
                lab.pass(10.0);
            },
            code: "no_heartbeat",
            says: &[
                "node0 (node rank 0) and node1 (node rank 1) have sent no heartbeat for",
                "nor has any other",
            ],
            remedy: "network between them and this server",
            within: FACT,
            never: &["died", "; others have"],
        },
        Fault {
            name: "c10d: a node dies before its rank has come here",
            play: |lab| {
                lab.complete_run("job", 3);
                for n in [0, 2] {
                    lab.worker(10 + n, &format!("10.77.0.{}", 10 + n));
                    lab.publish(10 + n, n, 3);
                    lab.wait_for_rank(10 + n, 1);
                }
                lab.pass(1.0);
                lab.leave(1);
            },
            code: "waiting_for_rank",
            says: &[
                "rank 1 (local rank 0 on node1): it has not come, and its node died, failed or was stopped",
            ],
            remedy: "look why that node ended",
            within: WAIT,
            never: &["has it started"],
        },
        Fault {
            name: "c10d: an operator resets the store while the job trains",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.pass(5.0);
                lab.reset();
                lab.forget_state("job");
                (0..2).for_each(|n| lab.wait(n, &["/torch.rendezvous.job"]));
            },
            code: "state_dropped",
            says: &[
                "2 processes have waited",
                "the rendezvous state of run job",
                "an operator reset the store",
            ],
            remedy: "restart all agents",
            within: WAIT,
            never: &["deadlock", "died", "have joined"],
        },
        Fault {
            name: "c10d: a node dies a moment before the last one makes the round complete",
            play: |lab| {
                for n in 0..3 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", "join");
                }
                lab.pass(1.0);
                lab.leave(1);
                lab.agent(3, "job");
                lab.pass(0.3);
                lab.cas(3, "job", "join complete");
            },
            code: "node_died_joining",
            says: &["node1 died, failed or was stopped", "3 of 4 nodes left"],
            remedy: "log and events",
            within: FACT,
            never: &["no heartbeat"],
        },
        Fault {
            name: "c10d: of two nodes that died while joining, torch has taken out one",
            play: |lab| {
                for n in 0..4 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", if n == 3 { "join complete" } else { "join" });
                }
                lab.pass(5.0);
                (0..4).for_each(|n| lab.cas(n, "job", if n == 0 { "next join" } else { "join" }));
                lab.leave(1);
                lab.leave(2);
                lab.pass(3.0);
                lab.cas(0, "job", "drop:1");
            },
            code: "nodes_missing",
            says: &["2 of 4 nodes have joined", "gone: node1 and node2"],
            remedy: "look why the nodes that are gone",
            within: WAIT + 6.0,
            never: &["has been missing", "have been missing"],
        },
        Fault {
            name: "static: nodes of one job have different ids",
            play: |lab| {
                lab.static_node(0, "job", 0, 3);
                lab.static_node(1, "job", 1, 3);
                lab.static_node(2, "jbo", 2, 3);
            },
            code: "rank_zero_slow",
            says: &["jbo: ", "node rank 0: it has not come", "missing: node 0 and node 1"],
            remedy: "same --rdzv-id",
            within: WAIT,
            never: &["two jobs", "EADDRINUSE"],
        },
        Fault {
            name: "c10d: an agent closes the run after a failure",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.pass(5.0);
                lab.cas(1, "job", "close");
            },
            code: "closed_unfinished",
            says: &["closed by node1 (node rank 1)", "none of 2 nodes had finished"],
            remedy: "first error",
            within: FACT,
            never: &["only 0"],
        },
        Fault {
            name: "c10d: the only agent closes the run after a failure",
            play: |lab| {
                lab.complete_run("job", 1);
                lab.pass(5.0);
                lab.cas(0, "job", "close");
            },
            code: "closed_unfinished",
            says: &["closed by node0 (node rank 0)"],
            remedy: "first error",
            within: FACT,
            never: &[],
        },
        Fault {
            name: "c10d: a node comes to a complete round with another --nnodes, and torch restarts all",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.pass(5.0);
                lab.agent(2, "job");
                lab.cas(2, "job", "wait");
            },
            code: "nnodes_differ",
            says: &[
                "node2 came to a complete round of 2 nodes and asks for more",
                "while node1 (node rank 1) asks",
            ],
            remedy: "same --nnodes",
            within: FACT,
            never: &["died", "is it scheduled"],
        },
        Fault {
            name: "c10d: the round with that node is never complete",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.agent(2, "job");
                lab.cas(2, "job", "wait");
                lab.cas(0, "job", "next join");
                lab.cas(2, "job", "join");
                lab.cas(1, "job", "join");
            },
            code: "round_not_complete",
            says: &["3 nodes have joined", "node2 asked for more"],
            remedy: "same --nnodes",
            within: WAIT,
            never: &["died", "some nodes"],
        },
        Fault {
            name: "c10d: a node gives up, closes the run, and says who did not come",
            play: |lab| {
                let names = ["node0", "node1", "node2"].map(str::to_owned).to_vec();
                lab.insight.expect("job", Expectation { min: 3, max: 3, names });
                for n in 0..2 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", "join");
                }
                lab.pass(2.0);
                lab.cas(1, "job", "leave");
                lab.cas(1, "job", "close");
            },
            code: "closed_incomplete",
            says: &["closed by node1 at 2 of 3 nodes", "missing: node2;"],
            remedy: "join_timeout",
            within: FACT,
            never: &["missing: node1"],
        },
        Fault {
            name: "c10d: a node comes to a run that failed",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.cas(1, "job", "close");
                lab.pass(1.0);
                lab.agent(2, "job");
            },
            code: "run_is_closed",
            says: &["process 1002 at 10.77.0.12 cannot join", "closed by node1 (node rank 1)"],
            remedy: "another --rdzv-id",
            within: FACT,
            never: &["finished and was closed"],
        },
        Fault {
            name: "c10d: an agent is frozen, and another takes it out of the round",
            play: |lab| {
                lab.complete_run("job", 3);
                for _ in 0..3 {
                    lab.pass(5.0);
                    lab.cas(0, "job", "");
                    lab.cas(1, "job", "");
                }
                lab.cas(0, "job", "drop:2");
            },
            code: "node_removed",
            says: &[
                "node2 (node rank 2) has sent no heartbeat for 15 s, though its connection is open",
                "node0 (node rank 0) took it out of the round; 2 nodes left",
            ],
            remedy: "frozen",
            within: FACT,
            never: &["died, failed"],
        },
        Fault {
            name: "c10d: the only agent of a round is frozen, and the next takes it out as the next round begins",
            play: |lab| {
                lab.complete_run("job", 1);
                lab.agent(1, "job");
                lab.cas(1, "job", "wait");
                lab.pass(16.0);
                lab.cas(1, "job", "drop:0 next join complete");
            },
            code: "node_removed",
            says: &[
                "node0 (node rank 0) has sent no heartbeat for 1",
                "took it out of the round; no node left",
            ],
            remedy: "frozen",
            within: FACT,
            never: &["died, failed"],
        },
        Fault {
            name: "c10d: a node dies as the last one comes, and the round takes it in",
            play: |lab| {
                for n in 0..2 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", "join");
                }
                lab.pass(3.0);
                lab.leave(1);
                lab.agent(2, "job");
                lab.cas(2, "job", "join complete");
            },
            code: "node_died_joining",
            says: &["node1 died, failed or was stopped"],
            remedy: "pod's log",
            within: FACT,
            never: &["node2 died"],
        },
        Fault {
            name: "c10d: the node that others wait for at the exit barrier died, and was taken out of the round",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.pass(2.0);
                lab.leave(1);
                lab.pass(15.0);
                lab.cas(0, "job", "drop:1");
                lab.reach_exit(0, "job", false);
            },
            code: "exit_barrier",
            says: &["1 of 2 nodes has finished", "; died, failed or stopped: node1"],
            remedy: "log of what died",
            within: WAIT,
            never: &["still running"],
        },
        Fault {
            name: "c10d: an operator named the nodes, one has died, and two have not come",
            play: |lab| {
                let names = (0..4).map(|n| format!("node{n}")).collect();
                lab.insight.expect("job", Expectation { min: 4, max: 4, names });
                for n in 0..2 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", "join");
                }
                lab.leave(1);
            },
            code: "nodes_missing",
            says: &["1 of 4 nodes has joined; node2 and node3 have been missing", "; gone: node1"],
            remedy: "missing node",
            within: WAIT,
            never: &["among them"],
        },
        Fault {
            name: "c10d: node rank 0 is taken out of the round before it has handed out the ranks",
            play: |lab| {
                for n in 0..3 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", if n == 2 { "join complete" } else { "join" });
                }
                for n in 1..3 {
                    lab.wait(n, &[&format!("/torch.rendezvous.job.0/torchelastic/assigned_ranks/{n}")]);
                }
                lab.agent(3, "job");
                lab.cas(3, "job", "wait drop:0");
            },
            code: "rank_zero_slow",
            says: &["2 processes", "from node0 (node rank 0): it is connected, but waits for nothing here"],
            remedy: "is it stopped, overloaded, or cut off",
            within: WAIT,
            never: &["it has not come"],
        },
        Fault {
            name: "c10d: two agents are cut off while the nodes join",
            play: |lab| {
                for n in 0..3 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", "join");
                }
                lab.pass(15.0);
                lab.cas(0, "job", "drop:1 drop:2");
            },
            code: "node_removed",
            says: &["node1 and node2 have sent no heartbeat", "took them out of the round; 1 node left"],
            remedy: "cut off",
            within: FACT,
            never: &["died, failed"],
        },
        Fault {
            name: "c10d: a node that was cut off while the nodes join is missing by its name",
            play: |lab| {
                lab.insight.expect("job", Expectation { min: 3, max: 3, names: Vec::new() });
                for n in 0..2 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", "join");
                }
                lab.pass(2.0);
                lab.cas(0, "job", "drop:1");
            },
            code: "nodes_missing",
            says: &["1 of 3 nodes has joined", "1 has been missing", "gone: node1"],
            remedy: "",
            within: WAIT,
            never: &["died, failed"],
        },
        Fault {
            name: "c10d: only the node that was cut off is not there",
            play: |lab| {
                lab.insight.expect("job", Expectation { min: 2, max: 2, names: Vec::new() });
                for n in 0..2 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", "join");
                }
                lab.pass(1.0);
                lab.cas(0, "job", "drop:1");
            },
            code: "nodes_missing",
            says: &["1 of 2 nodes has joined and waited", "; gone: node1 (2 by"],
            remedy: "look why the node that is gone ended",
            within: WAIT,
            never: &["been missing", "is it scheduled"],
        },
        Fault {
            name: "c10d: a node that is dead is taken out of the round",
            play: |lab| {
                lab.complete_run("job", 3);
                lab.leave(2);
                lab.pass(15.0);
                lab.cas(0, "job", "drop:2");
            },
            code: "node_died",
            says: &["node2 (node rank 2)"],
            remedy: "heartbeats",
            within: 0.0,
            never: &["no heartbeat"],
        },
        Fault {
            name: "c10d: a node dies while it is not seen what its workers do",
            play: |lab| {
                lab.complete_run("job", 3);
                lab.pass(5.0);
                lab.leave(2);
            },
            code: "node_died",
            says: &["node2 (node rank 2)", "after the round was complete", "2 nodes left"],
            remedy: "heartbeats",
            within: FACT,
            never: &["while training"],
        },
    ]);
}

/// Containers with one network may have the same process ids.
#[test]
fn processes_with_one_address_and_process_id_are_not_taken_for_one() {
    let mut lab = lab();
    let come = |lab: &mut Lab, n| {
        lab.connect(n, "10.0.0.1", 7);
        lab.ping(n);
        lab.add(n, "init/", 1);
    };
    (0..3).for_each(|n| come(&mut lab, n));
    lab.publish(0, 0, 3);
    lab.publish(1, 1, 3);
    read_each_other(&mut lab, &[0, 1], 3);
    lab.pass(20.0);
    let waits = lab.texts("waiting_for_rank");
    assert!(
        !waits.is_empty()
            && waits
                .iter()
                .all(|text| text.contains("process 7 at 10.0.0.1 has connected once more without telling")),
        "{waits:?}"
    );

    // What another of them waits for is not what node rank 0 does.
    let mut lab = Lab::with(
        Settings { explain_after: EXPLAIN_AFTER, ..Settings::default() },
        StaleKeyConfig::default(),
    );
    for n in 0..2 {
        lab.connect(n, "10.0.0.1", 7);
        lab.ping(n);
        lab.set(n, &format!("/job/torchelastic/role_info/{n}"), b"{}");
    }
    lab.wait(1, &["/job/torchelastic/assigned_ranks/1"]);
    lab.pass(20.0);
    assert_eq!(lab.texts("wait_cycle"), Vec::<&str>::new());
    let slow = lab.texts("rank_zero_slow");
    assert!(
        !slow.is_empty() && slow.iter().all(|text| text.contains("it is busy, stuck elsewhere, or cut off")),
        "{slow:?}"
    );
}

/// A script that watches the store counts itself as ranks do. Once all ranks have met without it, it is none.
#[test]
fn who_was_there_when_all_met_is_no_rank_that_is_missing() {
    let mut lab = lab();
    lab.worker(9, "10.0.0.9");
    lab.pass(1.0);
    ranks(&mut lab, &[0, 1], 2);
    read_each_other(&mut lab, &[0, 1], 2);
    lab.pass(10.0);
    for n in [0, 1] {
        lab.leave(n);
    }
    lab.pass(3.0);
    lab.worker(2, "10.0.0.1");
    lab.publish(2, 0, 2);
    lab.wait_for_rank(2, 1);
    lab.pass(20.0);
    let waits = lab.texts("waiting_for_rank");
    assert!(!waits.is_empty() && waits.iter().all(|text| !text.contains("process 2009")), "{waits:?}");
    // One that has come since may be it.
    lab.worker(3, "10.0.0.2");
    lab.pass(30.0);
    let waits = lab.texts("waiting_for_rank");
    assert!(
        waits.last().is_some_and(|text| text.contains("process 2003 at 10.0.0.2 is connected")),
        "{waits:?}"
    );
}

/// One of the two is said of a static node that has not come, and the one that names all.
#[test]
fn a_static_node_that_is_missing_is_said_once() {
    let settings = Settings { explain_after: EXPLAIN_AFTER, nodes: Some((3, 3)), ..Settings::default() };
    let mut lab = Lab::with(settings, StaleKeyConfig::default());
    lab.static_node(0, "job", 0, 3);
    lab.static_node(1, "job", 1, 3);
    lab.pass(20.0);
    assert!(!lab.texts("nodes_missing").is_empty());
    assert_eq!(lab.texts("waiting_for_node"), Vec::<&str>::new());
}

/// Who was waited for waited itself until just now: it is not busy yet.
#[test]
fn a_node_whose_wait_was_answered_just_now_is_not_called_busy() {
    let mut lab = lab();
    lab.static_node(0, "job", 0, 3);
    lab.static_node(1, "job", 1, 3);
    lab.pass(20.0);
    lab.static_node(2, "job", 2, 3);
    let since = lab.said.len();
    lab.pass(4.0);
    let slow = |lab: &Lab| lab.said[since..].iter().filter(|(_, said)| said.code == "rank_zero_slow").count();
    assert_eq!(slow(&lab), 0, "{:?}", lab.said);
    lab.pass(6.0);
    assert!(slow(&lab) > 0, "it has been quiet for long");
}

/// The API has the same number as the metric: those who are there.
#[test]
fn a_rank_that_is_gone_has_not_joined() {
    let mut lab = lab();
    ranks(&mut lab, &[0, 1, 2], 3);
    read_each_other(&mut lab, &[0, 1, 2], 3);
    lab.pass(3.0);
    lab.leave(1);
    lab.pass(3.0);
    let shown = lab.run("store:29500").summary.ranks.expect("ranks");
    assert_eq!((shown.joined, shown.gone, shown.expected), (2, 1, Some(3)));
}

/// A rank that only some count on is not said to be missing.
#[test]
fn a_rank_beyond_the_smaller_world_size_may_not_exist() {
    let mut lab = lab();
    ranks(&mut lab, &[0, 1], 3);
    ranks(&mut lab, &[3], 5);
    read_each_other(&mut lab, &[0, 1], 3);
    lab.wait_for_rank(3, 4);
    lab.pass(6.0);
    let waits = lab.texts("waiting_for_rank");
    assert!(
        waits.iter().any(|text| text.contains("for the address of rank 4: it may not exist")),
        "{waits:?}"
    );
    assert!(
        waits.iter().any(|text| text.contains("for the address of rank 2: it has not come")),
        "{waits:?}"
    );
    assert!(
        waits.iter().all(|text| !text.contains("rank 4: it has not") && !text.contains("missing:")),
        "{waits:?}"
    );

    // When the one that is prepared for more has gone, nothing is missing but what the others count on.
    lab.leave(3);
    ranks(&mut lab, &[2], 3);
    lab.pass(3.0);
    let held: Vec<_> = lab.run("store:29500").explanations.into_iter().filter(|said| said.holds).collect();
    assert!(held.iter().all(|said| !said.text.contains("rank 4")), "{held:?}");
}

/// Only those who can meet are counted: 3 of 3, and not 1 or 4.
#[test]
fn ranks_that_can_meet_are_counted_whatever_another_is_prepared_for() {
    for comes_first in [true, false] {
        let mut lab = lab();
        let other = |lab: &mut Lab| {
            ranks(lab, &[3], 4);
            lab.pass(3.0);
        };
        if comes_first {
            other(&mut lab);
        }
        ranks(&mut lab, &[0, 1, 2], 3);
        read_each_other(&mut lab, &[0, 1, 2], 3);
        lab.pass(3.0);
        if !comes_first {
            other(&mut lab);
        }
        let shown = lab.run("store:29500").summary.ranks.expect("ranks");
        assert_eq!((shown.joined, shown.expected, shown.connected), (3, Some(3), 4), "first: {comes_first}");
        assert_eq!(lab.texts("world_sizes_differ").len(), 1);
    }
}

/// Two gatherings of which one lacks what the other has: an id is misspelt.
#[test]
fn a_pod_that_gathers_for_another_run_is_named() {
    let mut lab = Lab::new();
    lab.gate("job", &[("job-0", 0, 3), ("job-2", 2, 3)], &[]);
    lab.gate("jop", &[("job-1", 1, 3)], &[]);
    lab.gate("other", &[("other-0", 0, 3)], &[]);
    lab.pass(40.0);
    let told = |run: &str| {
        let said = lab.run(run).explanations.into_iter().find(|said| said.code == "pods_missing");
        said.map(|said| (said.text, said.remedy)).expect("it is told")
    };
    let (text, remedy) = told("job");
    assert!(text.ends_with("; announced for another run: pod job-1 for run jop"), "{text}");
    assert!(remedy.contains("the same --run-id"), "{remedy}");
    assert!(
        told("jop")
            .0
            .ends_with("; announced for another run: pod job-0 for run job and pod job-2 for run job")
    );
    assert!(!told("other").0.contains("another run"), "{}", told("other").0);
}

/// It waits for nobody: nothing of the round changes, whatever the others do.
#[test]
fn a_static_node_that_starts_its_workers_again_stays_in_the_round() {
    let mut lab = lab();
    static_run(&mut lab, "s", 2);
    lab.pass(5.0);
    for times in 1..4 {
        lab.restart_workers(1, "s", 1);
        lab.pass(5.0);
        let run = lab.run("s");
        let nodes = run.summary.nodes;
        assert_eq!((run.summary.state, run.summary.round), (RunState::Running, 0));
        assert_eq!((nodes.joined, nodes.earlier, nodes.missing), (2, 0, Some(0)));
        assert_eq!(lab.texts("workers_restarted").len(), times, "{:?}", lab.said);
    }
    let last = lab.texts("workers_restarted").pop();
    assert_eq!(
        last,
        Some("s: node 1 at 10.77.0.11 has ended its workers and starts them again, 3 times by now")
    );
    lab.exit_static(0, "s", false);
    lab.exit_static(1, "s", true);
    lab.pass(2.0);
    assert_eq!(lab.texts("run_finished"), ["s finished: 2 nodes after 22 s"]);
}

/// Then it waits for another in the place of that one.
#[test]
fn a_static_node_that_starts_its_workers_again_after_another_has_died_waits_for_that_one() {
    let mut lab = lab();
    static_run(&mut lab, "s", 2);
    lab.pass(5.0);
    lab.leave(1);
    lab.pass(1.0);
    lab.restart_workers(0, "s", 0);
    lab.wait(0, &["/s/torchelastic/role_info/0", "/s/torchelastic/role_info/1"]);
    lab.pass(8.0);
    let nodes = lab.run("s").summary.nodes;
    assert_eq!((nodes.joined, nodes.gone, nodes.missing), (1, 0, Some(1)));
    assert!(lab.texts("workers_restarted").is_empty(), "{:?}", lab.said);
    let missing = lab.texts("nodes_missing");
    assert!(
        missing[0].contains("s round 1: 1 of 2 nodes has joined") && missing[0].contains("; gone: node 1"),
        "{missing:?}"
    );
    lab.static_node(11, "s", 1, 2);
    lab.assign_static(0, "s", 2, 2);
    lab.pass(2.0);
    assert_eq!(lab.run("s").summary.nodes.joined, 2);
    assert_eq!(lab.texts("round_complete").len(), 2, "{:?}", lab.said);
}

/// What was said of the job before is no part of the document of the one that follows it.
#[test]
fn a_static_job_that_is_started_again_has_a_document_of_its_own() {
    let mut lab = lab();
    static_run(&mut lab, "none", 2);
    lab.leave(0);
    lab.leave(1);
    lab.pass(5.0);
    assert_eq!(lab.texts("all_left").len(), 1);
    lab.static_node(10, "none", 0, 2);
    lab.static_node(11, "none", 1, 2);
    lab.assign_static(10, "none", 2, 1);
    lab.pass(3.0);
    let codes: Vec<_> = lab.run("none").explanations.into_iter().map(|said| said.code).collect();
    assert_eq!(codes, ["round_complete"]);
}

#[test]
fn the_metrics_of_a_closed_run_count_who_is_still_there() {
    let mut lab = lab();
    lab.complete_run("job", 3);
    lab.pass(10.0);
    lab.cas(1, "job", "close");
    lab.leave(1);
    for (left, there) in [(None, 2), (Some(0), 1), (Some(2), 0)] {
        if let Some(n) = left {
            lab.leave(n);
        }
        lab.pass(2.0);
        let figures = lab.insight.figures(lab.now);
        let [run] = &figures[..] else { panic!("{figures:?}") };
        assert_eq!((run.summary.state, run.summary.nodes.joined), (RunState::Closed, there));
        assert_eq!(run.summary.nodes.missing, Some(0), "none of them is waited for");
    }
}
