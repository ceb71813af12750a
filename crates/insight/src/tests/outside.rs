//! Who is of no job: waits of programs that are no process group, and our own probes (`wait`, `doctor`,
//! `status`, `run`), which are nobody.

use super::faults::{check_free, fault};
use super::lab::Lab;
use rallypoint_protocol::{KeyList, PROBE, Request};

/// The process id of a probe, which no sentence names.
const PID: u32 = 9001;
const NOBODY: &[&str] = &["9001"];

/// A probe comes, and says what it is.
fn probe(lab: &mut Lab) {
    lab.connect(90, "10.0.0.90", PID);
    lab.apply(90, &Request::Ping { nonce: PID | PROBE });
}

/// A process that is no rank of PyTorch.
fn program(lab: &mut Lab, n: u32) {
    lab.come(n, &format!("10.0.0.{n}"), 800 + n);
}

/// Rank 0 of two waits for rank 1.
fn one_of_two(lab: &mut Lab) {
    lab.rank(0, "10.0.0.1", 0, 2);
    lab.wait_for_rank(0, 1);
}

/// An agent of NIXL comes, and publishes its metadata.
fn agent(lab: &mut Lab, n: u32, name: &str) {
    program(lab, n);
    lab.set(n, &metadata(name), b"blob");
}

fn metadata(name: &str) -> String {
    format!("/nixl/agents/metadata/{name}/NULL_AGENT")
}

/// One asks each second for the metadata of an agent, so many times.
fn ask(lab: &mut Lab, n: u32, name: &str, times: u32) {
    ask_for(lab, n, &metadata(name), times);
}

fn ask_for(lab: &mut Lab, n: u32, key: &str, times: u32) {
    for _ in 0..times {
        let list = [key].into_iter().collect::<KeyList>();
        lab.apply(n, &Request::Check(list.as_list()));
        lab.pass(1.0);
    }
}

/// The key that the leader of NVRx's rendezvous writes first.
const LED: &str = "/ft_rendezvous_barrier:job:shutdown";

/// An agent of NVRx's `ft_launcher` comes to its rendezvous.
fn ft_agent(lab: &mut Lab, n: u32) {
    program(lab, n);
    lab.add(n, "/ft_rendezvous_barrier:job:join_count_0", 1);
}

#[test]
fn who_is_of_no_job_is_told_or_left_alone() {
    check_free(&[
        fault("a program waits for a key that nobody writes", |lab| {
            program(lab, 1);
            lab.set(1, "data_ready", b"1");
            program(lab, 2);
            lab.wait(2, &["data_redy"]);
        })
        .names(&["data_redy", "data_ready", "802"]),
        fault("two programs wait for each other", |lab| {
            for (n, key) in [(1, "from_b"), (2, "from_a")] {
                program(lab, n);
                lab.wait(n, &[key]);
            }
        })
        .names(&[
            "not there: process 802 at 10.0.0.2 (connected, waits for `from_a`)",
            "(connected, waits for `from_b`)",
        ]),
        fault("who should write it was there and ended", |lab| {
            program(lab, 1);
            program(lab, 2);
            lab.set(2, "other", b"1");
            lab.pass(1.0);
            lab.wait(1, &["table"]);
            lab.leave(2);
        })
        .words(&["`table`", "gone: process 802 at 10.0.0.2 (connection closed"])
        .never(&["not there: "]),
        fault("a process does not come to a barrier of programs, and one ended long before", |lab| {
            (1..5).for_each(|n| program(lab, n));
            lab.leave(4);
            lab.pass(90.0);
            for n in 1..3 {
                lab.add(n, "/ckpt/num_members", 1);
                lab.wait(n, &["/ckpt/last_member"]);
            }
        })
        .words(&[
            "process 801 at 10.0.0.1 and process 802 at 10.0.0.2 have waited up to",
            "at the barrier `/ckpt`, which 2 have reached; not there: process 803 at 10.0.0.3 (connected",
        ])
        .never(&["gone: "]),
        fault("programs use different prefixes", |lab| {
            for (n, prefix, rank) in [(1, "run_a", 2), (2, "run_a", 2), (3, "run_b", 0)] {
                program(lab, n);
                lab.wait(n, &[&format!("/{prefix}/0//cpu//0/{rank}")]);
            }
        })
        .words(&[
            "process 801 at 10.0.0.1 and process 802 at 10.0.0.2 have waited up to",
            "the address of rank 2 of the group below the prefix `run_a`",
            "not there: process 803 at 10.0.0.3 (connected, waits for `/run_b/",
            "the same prefix",
        ]),
        fault("programs with one prefix lack one of them", |lab| {
            program(lab, 1);
            lab.wait(1, &["/run_a/0//cpu//0/1"]);
        })
        .words(&["process 801 at 10.0.0.1 has waited", "prefix `run_a`", "have not reached"])
        .never(&["same prefix", "not there: "]),
        fault("programs that count themselves wait for one more", |lab| {
            for n in [1, 2] {
                program(lab, n);
                lab.add(n, "arrived", 1);
                lab.wait(n, &["all_here"]);
            }
        })
        .names(&["all_here"]),
        fault("what a program waits for comes", |lab| {
            program(lab, 1);
            lab.wait(1, &["go"]);
            lab.pass(2.0);
            program(lab, 2);
            lab.set(2, "go", b"1");
        })
        .silent(),
        fault("a program asks again and again for a key", |lab| {
            program(lab, 1);
            for _ in 0..20 {
                lab.wait(1, &["go"]);
                lab.pass(1.5);
                lab.cancel(1);
            }
        })
        .silent(),
        fault("a group of vLLM waits for a message", |lab| {
            for n in [1, 2] {
                program(lab, n);
                lab.wait(n, &["/broadcast_from/0/3"]);
            }
        })
        .names(&["/broadcast_from/0/3", "801", "802"]),
        fault("an agent of NIXL asks for one that has not published", |lab| {
            agent(lab, 1, "decode-0");
            ask(lab, 1, "prefill-0", 6);
        })
        .names(&["agent decode-0", "prefill-0", "nobody has written"]),
        fault("an agent of NIXL asks for one that has ended", |lab| {
            agent(lab, 1, "decode-0");
            agent(lab, 2, "prefill-0");
            lab.leave(2);
            lab.pass(70.0);
            ask(lab, 1, "prefill-0", 6);
        })
        .names(&["agent decode-0", "prefill-0", "closed"]),
        fault("an agent of NIXL asks for one that comes", |lab| {
            agent(lab, 1, "decode-0");
            ask(lab, 1, "prefill-0", 2);
            agent(lab, 2, "prefill-0");
            ask(lab, 1, "prefill-0", 6);
        })
        .silent(),
        fault("no agent leads the rendezvous of ft_launcher", |lab| {
            (1..3).for_each(|n| ft_agent(lab, n));
            ask_for(lab, 1, LED, 6);
        })
        .names(&["job", "801", LED]),
        fault("an agent that comes later leads it", |lab| {
            ft_agent(lab, 1);
            ask_for(lab, 1, LED, 2);
            ft_agent(lab, 2);
            lab.set(2, LED, b"");
            ask_for(lab, 1, LED, 6);
        })
        .silent(),
        fault("a probe looks while a rank is missing", |lab| {
            one_of_two(lab);
            probe(lab);
        })
        .names(&["rank 1"])
        .never(NOBODY),
        fault("a probe waits for the rank that is missing", |lab| {
            one_of_two(lab);
            probe(lab);
            lab.wait(90, &["/default_pg/0//cpu//0/1"]);
            lab.pass(4.0);
            lab.leave(90);
        })
        .names(&["rank 1"])
        .never(NOBODY),
        fault("a probe came and went before the rank is missed", |lab| {
            one_of_two(lab);
            probe(lab);
            lab.pass(0.2);
            lab.leave(90);
        })
        .names(&["rank 1"])
        .never(NOBODY),
        fault("a probe looks at a job that trains", |lab| {
            (0..2).for_each(|n| lab.rank(n, "10.0.0.1", n, 2));
            (0..2).for_each(|n| lab.get(n, &format!("/default_pg/0//cpu//0/{}", 1 - n)));
            lab.pass(5.0);
            probe(lab);
            lab.pass(1.0);
            lab.leave(90);
        })
        .silent()
        .never(NOBODY),
        fault("a probe looks at an empty store", |lab| {
            probe(lab);
            lab.pass(1.0);
            lab.leave(90);
        })
        .silent()
        .never(NOBODY),
    ]);
}
