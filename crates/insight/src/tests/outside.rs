//! Who is of no job: waits of programs that are no process group, and our own probes (`wait`, `doctor`, `status`, `run`),
//! which are nobody.

use super::lab::Lab;
use crate::Settings;
use rallypoint_api::{Explanation, Severity};
use rallypoint_protocol::{KeyList, PROBE, Request};
use rallypoint_store::StaleKeyConfig;

/// The process id of a probe.
const PID: u32 = 9001;

struct Scene {
    name: &'static str,
    play: fn(&mut Lab),
    /// What has to be named, in time.
    names: &'static [&'static str],
    /// Nothing may be said of waits, or above info.
    is_silent: bool,
}

/// A probe comes, and says what it is.
fn probe(lab: &mut Lab) {
    lab.connect(90, "10.0.0.90", PID);
    lab.apply(90, &Request::Ping { nonce: PID | PROBE });
}

/// A process that is no rank of PyTorch.
fn program(lab: &mut Lab, n: u32) {
    lab.connect(n, &format!("10.0.0.{n}"), 800 + n);
    lab.ping(n);
}

/// Rank 0 of two waits for rank 1.
fn one_of_two(lab: &mut Lab) {
    lab.worker(0, "10.0.0.1");
    lab.publish(0, 0, 2);
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
    let key = metadata(name);
    for _ in 0..times {
        let list = [&key].into_iter().collect::<KeyList>();
        lab.apply(n, &Request::Check(list.as_list()));
        lab.pass(1.0);
    }
}

const SCENES: [Scene; 14] = [
    Scene {
        name: "a program waits for a key that nobody writes",
        play: |lab| {
            program(lab, 1);
            lab.set(1, "data_ready", b"1");
            program(lab, 2);
            lab.wait(2, &["data_redy"]);
        },
        names: &["data_redy", "data_ready", "802"],
        is_silent: false,
    },
    Scene {
        name: "two programs wait for each other",
        play: |lab| {
            for (n, key) in [(1, "from_b"), (2, "from_a")] {
                program(lab, n);
                lab.wait(n, &[key]);
            }
        },
        names: &["from_a", "from_b"],
        is_silent: false,
    },
    Scene {
        name: "programs that count themselves wait for one more",
        play: |lab| {
            for n in [1, 2] {
                program(lab, n);
                lab.add(n, "arrived", 1);
                lab.wait(n, &["all_here"]);
            }
        },
        names: &["all_here"],
        is_silent: false,
    },
    Scene {
        name: "what a program waits for comes",
        play: |lab| {
            program(lab, 1);
            lab.wait(1, &["go"]);
            lab.pass(2.0);
            program(lab, 2);
            lab.set(2, "go", b"1");
        },
        names: &[],
        is_silent: true,
    },
    Scene {
        name: "a program asks again and again for a key",
        play: |lab| {
            program(lab, 1);
            for _ in 0..20 {
                lab.wait(1, &["go"]);
                lab.pass(1.5);
                lab.cancel(1);
            }
        },
        names: &[],
        is_silent: true,
    },
    Scene {
        name: "a group of vLLM waits for a message",
        play: |lab| {
            for n in [1, 2] {
                program(lab, n);
                lab.wait(n, &["/broadcast_from/0/3"]);
            }
        },
        names: &["/broadcast_from/0/3", "801", "802"],
        is_silent: false,
    },
    Scene {
        name: "an agent of NIXL asks for one that has not published",
        play: |lab| {
            agent(lab, 1, "decode-0");
            ask(lab, 1, "prefill-0", 6);
        },
        names: &["agent decode-0", "prefill-0", "nobody has written"],
        is_silent: false,
    },
    Scene {
        name: "an agent of NIXL asks for one that has ended",
        play: |lab| {
            agent(lab, 1, "decode-0");
            agent(lab, 2, "prefill-0");
            lab.leave(2);
            lab.pass(70.0);
            ask(lab, 1, "prefill-0", 6);
        },
        names: &["agent decode-0", "prefill-0", "closed"],
        is_silent: false,
    },
    Scene {
        name: "an agent of NIXL asks for one that comes",
        play: |lab| {
            agent(lab, 1, "decode-0");
            ask(lab, 1, "prefill-0", 2);
            agent(lab, 2, "prefill-0");
            ask(lab, 1, "prefill-0", 6);
        },
        names: &[],
        is_silent: true,
    },
    Scene {
        name: "a probe looks while a rank is missing",
        play: |lab| {
            one_of_two(lab);
            probe(lab);
        },
        names: &["rank 1"],
        is_silent: false,
    },
    Scene {
        name: "a probe waits for the rank that is missing",
        play: |lab| {
            one_of_two(lab);
            probe(lab);
            lab.wait(90, &["/default_pg/0//cpu//0/1"]);
            lab.pass(4.0);
            lab.leave(90);
        },
        names: &["rank 1"],
        is_silent: false,
    },
    Scene {
        name: "a probe came and went before the rank is missed",
        play: |lab| {
            one_of_two(lab);
            probe(lab);
            lab.pass(0.2);
            lab.leave(90);
        },
        names: &["rank 1"],
        is_silent: false,
    },
    Scene {
        name: "a probe looks at a job that trains",
        play: |lab| {
            for n in 0..2 {
                lab.worker(n, "10.0.0.1");
                lab.publish(n, n, 2);
            }
            (0..2).for_each(|n| lab.get(n, &format!("/default_pg/0//cpu//0/{}", 1 - n)));
            lab.pass(5.0);
            probe(lab);
            lab.pass(1.0);
            lab.leave(90);
        },
        names: &[],
        is_silent: true,
    },
    Scene {
        name: "a probe looks at an empty store",
        play: |lab| {
            probe(lab);
            lab.pass(1.0);
            lab.leave(90);
        },
        names: &[],
        is_silent: true,
    },
];

fn check(scene: &Scene) -> Result<(), String> {
    let explain_after = std::time::Duration::from_secs(3);
    let mut lab = Lab::with(Settings { explain_after, ..Settings::default() }, StaleKeyConfig::default());
    // What is said today is not what has to be said.
    lab.scene.is_free();
    (scene.play)(&mut lab);
    lab.pass(6.0);
    let said: Vec<&str> = lab.said.iter().map(|(_, said)| said.text.as_str()).collect();
    let has = |word: &str| said.iter().any(|text| text.contains(word));
    let unsaid = scene.names.iter().find(|name| !has(name));
    let is_wait = |said: &Explanation| said.severity > Severity::Info || said.code.starts_with("waiting");
    let is_loud = lab.said.iter().any(|(_, said)| is_wait(said));
    if let Some(name) = unsaid {
        Err(format!("does not name {name}: {said:?}"))
    } else if has(&PID.to_string()) {
        Err(format!("names the probe: {said:?}"))
    } else if scene.is_silent && is_loud {
        Err(format!("is not silent: {said:?}"))
    } else {
        Ok(())
    }
}

#[test]
fn who_is_of_no_job_is_told_or_left_alone() {
    for scene in &SCENES {
        check(scene).unwrap_or_else(|why| panic!("{}: {why}", scene.name));
    }
}
