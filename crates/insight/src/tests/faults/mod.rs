//! What goes wrong, by backend, moment and kind of fault: one line a case with what must be said, how soon,
//! and what must not be said.

mod backends;
mod fixed;
mod ranks;
mod shown;
mod twins;

use super::lab::Lab;
use super::yardstick;
use rallypoint_api::{Explanation, Severity};

pub(super) struct Fault {
    name: &'static str,
    /// Plays it up to the moment when it can be known.
    play: fn(&mut Lab),
    code: &'static str,
    /// Who is named by it.
    names: &'static [&'static str],
    /// What one sentence has in it, with its remedy.
    words: &'static [&'static str],
    /// Nothing may be said of waits, or above info.
    is_silent: bool,
    /// Seconds from that moment; for a wait with the time that it has to last.
    within: f64,
    /// What no sentence may have in it, at any time.
    never: &'static [&'static str],
}

pub(super) const fn fault(name: &'static str, play: fn(&mut Lab)) -> Fault {
    Fault { name, play, code: "", names: &[], words: &[], is_silent: false, within: FACT, never: &[] }
}

impl Fault {
    const fn says(self, code: &'static str, names: &'static [&'static str]) -> Self {
        Self { code, names, ..self }
    }

    /// It is said of a wait.
    const fn waits(self, code: &'static str, names: &'static [&'static str]) -> Self {
        self.says(code, names).within(WAIT)
    }

    const fn within(self, within: f64) -> Self {
        Self { within, ..self }
    }

    pub(super) const fn names(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }

    pub(super) const fn words(self, words: &'static [&'static str]) -> Self {
        Self { words, ..self }
    }

    pub(super) const fn silent(self) -> Self {
        Self { is_silent: true, ..self }
    }

    pub(super) const fn never(self, never: &'static [&'static str]) -> Self {
        Self { never, ..self }
    }
}

/// These follow from the traffic of a run as a whole.
const WITHOUT_EVIDENCE: [&str; 5] =
    ["run_ended", "run_finished", "run_started", "round_complete", "two_jobs"];

const FACT: f64 = 5.0;

/// A wait is seen once a second, when it has lasted for one, and looked at then.
const WAIT: f64 = 3.0 + 2.5;

fn check(fault: &Fault) -> Result<(), String> {
    let mut lab = Lab::soon();
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
    let Some(shown) = lab.shown().into_iter().find(is_it) else {
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

/// Rows of which the yardstick holds nothing: they are their own judge. Names may be told in several
/// sentences.
pub(super) fn check_free(faults: &[Fault]) {
    for Fault { name, play, names, words, is_silent, never, .. } in faults {
        let mut lab = Lab::soon();
        lab.scene.is_free();
        play(&mut lab);
        lab.pass(6.0);
        let said = lab.said.iter().map(|(_, said)| format!("{}; {}", said.text, said.remedy));
        let said: Vec<String> = said.collect();
        let has = |word: &&&str| said.iter().any(|text| text.contains(**word));
        assert_eq!(names.iter().find(|name| !has(name)), None, "{name} does not name: {said:#?}");
        let says_all = |text: &String| words.iter().all(|word| text.contains(word));
        assert!(words.is_empty() || said.iter().any(says_all), "{name} is not said: {said:#?}");
        assert_eq!(never.iter().find(has), None, "{name} says: {said:#?}");
        let is_wait = |said: &Explanation| said.severity > Severity::Info || said.code.starts_with("waiting");
        assert!(!is_silent || !lab.said.iter().any(|(_, said)| is_wait(said)), "{name}: {said:#?}");
    }
}

/// Ranks of `env://` that have published their addresses, each on a host of its own.
fn ranks(lab: &mut Lab, ranks: &[u32], world: usize) {
    for &rank in ranks {
        lab.rank(rank, &format!("10.0.0.{rank}"), rank, world);
    }
}

/// These ranks have published their addresses, and each reads those of all others.
pub(super) fn gather(lab: &mut Lab, those: &[u32], world: u32) {
    ranks(lab, those, world as usize);
    read_each_other(lab, those, world);
}

/// Each of these reads the addresses of all others, and waits for the first that is not there.
pub(super) fn read_each_other(lab: &mut Lab, ranks: &[u32], world: u32) {
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
pub(super) fn static_run(lab: &mut Lab, run: &str, nodes: u32) {
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
        lab.rank(100 + rank, &format!("10.77.0.{}", 10 + rank / 2), rank, world);
    }
}

/// A process in a container: all have one address and process id 1.
fn container(lab: &mut Lab, n: u32) {
    lab.come(n, "10.0.0.9", 1);
    lab.add(n, "init/", 1);
}

/// Another process takes the place of a rank.
fn replace(lab: &mut Lab, n: u32, rank: u32, world: usize) {
    lab.rank(n, &format!("10.0.0.{rank}"), rank, world);
}
