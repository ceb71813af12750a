//! What goes wrong, by backend, moment and kind of fault: a story for each, with what must be said, how soon,
//! and what must not be said.

mod backends;
mod fixed;
mod ranks;
mod shown;
mod twins;

use super::lab::Lab;
use super::stories::stories_with;
use rallypoint_api::{Explanation, Severity};

pub(super) struct Fault {
    name: &'static str,
    play: fn(&mut Lab),
    /// What is said, in whichever sentence.
    names: &'static [&'static str],
    /// What one sentence has in it, with its remedy.
    words: &'static [&'static str],
    /// Nothing may be said of waits, or above info.
    is_silent: bool,
    /// What no sentence may have in it, at any time.
    never: &'static [&'static str],
}

pub(super) const fn fault(name: &'static str, play: fn(&mut Lab)) -> Fault {
    Fault { name, play, names: &[], words: &[], is_silent: false, never: &[] }
}

impl Fault {
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

/// Stories of faults: waits are told after 3 s.
fn faults(table: &str) {
    stories_with("faults", "soon", table);
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
