//! What is said of what was found, in one form for all: the rule, the sentence, what to look at, and the
//! facts.
//!
//! A sentence is made where its facts are found, and nowhere changed after that. The same value goes to the
//! log, the API, `status`, the page and the metrics. `docs/explanations.md` lists every code with its
//! meaning.

mod evidence;
mod names;
mod presence;
mod rules;
mod words;

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub(crate) use self::evidence::{Evidence, Finding};
pub(crate) use self::names::Names;
pub(crate) use self::presence::{
    ANNOUNCED, But, GONE, NODE, Place, Presence, SAME_WORLD_SIZE, Sighting, TAKEN_OUT, Waits,
};
pub use self::rules::{Code, RULES, Rule};
pub(crate) use self::rules::{Hold, RESET};
pub(crate) use self::words::{
    CLOSED, ENDED, ONE_JOB, OTHER_PORT, SAME_GROUPS, SLIP, all, are, clients, ended_first, has, have_waited,
    if_any, if_some, says_who, waits_since,
};
use crate::epoch::Epoch;
use crate::totals::Tally;
use rallypoint_api::{Certainty, ExpectedFrom, Severity};

/// What is said of what was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reason {
    pub(crate) code: Code,
    pub(crate) severity: Severity,
    pub(crate) hold: Hold,
    /// What to do about it. Empty if there is nothing to do.
    pub(crate) look_at: &'static str,
    pub(crate) text: String,
    /// It belongs to a run's ordinary course, and is the end of a sentence that begins with the run.
    is_predicate: bool,
    /// How many have ended, or claim what others do, where that is a part of what is said: when more do, it
    /// is said again.
    pub(crate) ended: usize,
    /// A healthy run is told without it.
    pub(crate) is_detail: bool,
    /// What it counts for in the metrics.
    pub(crate) tally: Option<Tally>,
    facts: Facts,
}

/// What it was found from, for programs: who is held up, by whom, and how many there are and should be.
#[derive(Debug, Clone, PartialEq, Default)]
struct Facts {
    held: Names,
    missing: Vec<Missing>,
    /// Processes that are connected and have told no rank.
    candidates: Names,
    /// What is counted, and how much of it is there.
    joined: Option<(Place, u32)>,
    expected: Option<u32>,
    from: Option<ExpectedFrom>,
}

/// Who is not there, or does not do what others wait for.
#[derive(Debug, Clone, PartialEq)]
struct Missing {
    what: Place,
    name: String,
    seen: Sighting,
}

impl Code {
    /// The beginning of what is said by this rule.
    pub(crate) fn says(self, text: impl Into<String>) -> Reason {
        let Rule { severity, hold, look_at, .. } = *self.rule();
        Reason {
            code: self,
            severity,
            hold,
            look_at,
            text: text.into(),
            is_predicate: false,
            ended: 0,
            is_detail: false,
            tally: None,
            facts: Facts::default(),
        }
    }
}

impl Reason {
    pub(crate) fn severe(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }

    pub(crate) fn hold(self, hold: Hold) -> Self {
        Self { hold, ..self }
    }

    pub(crate) fn look_at(self, look_at: &'static str) -> Self {
        Self { look_at, ..self }
    }

    /// Changed so, if that is so.
    pub(crate) fn when(self, is_so: bool, change: impl FnOnce(Self) -> Self) -> Self {
        if is_so { change(self) } else { self }
    }

    /// The run is its subject.
    pub(crate) fn predicate(self) -> Self {
        Self { is_predicate: true, ..self }
    }

    pub(crate) fn tally(self, tally: Tally) -> Self {
        Self { tally: Some(tally), ..self }
    }

    /// How many are there, and how many there should be.
    pub(crate) fn joined(self, of: Place, joined: u32, expected: Option<u32>) -> Self {
        Self { facts: Facts { joined: Some((of, joined)), expected, ..self.facts }, ..self }
    }

    /// Whether it is about nodes.
    pub(crate) fn is_of_nodes(&self) -> bool {
        let missing = self.facts.missing.first().map(|missing| missing.what);
        self.facts.joined.map(|(of, _)| of).or(missing) == Some(Place::Node)
    }

    pub(crate) fn expects(self, expected: Option<u32>) -> Self {
        Self { facts: Facts { expected, ..self.facts }, ..self }
    }

    pub(crate) fn from(self, from: Option<ExpectedFrom>) -> Self {
        Self { facts: Facts { from, ..self.facts }, ..self }
    }

    pub(crate) fn held(self, held: &Names) -> Self {
        Self { facts: Facts { held: held.clone(), ..self.facts }, ..self }
    }

    /// Who is missing, and what was seen of each: this, unless the names tell.
    pub(crate) fn misses(self, what: Place, names: &Names, seen: impl Into<Sighting>) -> Self {
        let seen = seen.into();
        if !names.seen.is_empty() {
            return self.misses_each(what, names.seen.clone());
        }
        self.misses_each(what, names.shown.iter().map(|name| (name.clone(), seen.clone())))
    }

    pub(crate) fn then(mut self, more: &str) -> Self {
        self.text += more;
        self
    }

    /// `; title: names`, if there are any.
    pub(crate) fn and(self, title: &str, names: &Names) -> Self {
        self.then(&words::if_any(&format!("; {title}: "), names))
    }

    /// [`Self::misses`] of some that were seen in several ways.
    pub(crate) fn misses_each(
        mut self,
        what: Place,
        all: impl IntoIterator<Item = (String, Sighting)>,
    ) -> Self {
        self.facts.missing.extend(all.into_iter().map(|(name, seen)| Missing { what, name, seen }));
        self
    }

    /// Who is missing, under what was seen of them last: `; never seen: node 2 and node 3`.
    pub(crate) fn lacks_each(self, what: Place, all: impl IntoIterator<Item = (String, Sighting)>) -> Self {
        let all: Vec<_> = all.into_iter().collect();
        let mut by_presence: BTreeMap<Presence, Vec<String>> = BTreeMap::new();
        for (name, seen) in &all {
            by_presence.entry(seen.presence).or_default().push(name.clone());
        }
        let told = by_presence.into_iter();
        let told = told.fold(self, |reason, (last, names)| reason.and(last.words(), &Names::of(names)));
        told.misses_each(what, all)
    }

    /// [`Self::and`] of those who are missing.
    pub(crate) fn lacks(self, title: &str, what: Place, names: &Names, presence: Presence) -> Self {
        self.and(title, names).misses(what, names, presence)
    }

    /// Names the processes that have ended.
    pub(crate) fn ended(self, what: Place, ended: &Names) -> Self {
        Self { ended: ended.count(), ..self.lacks("gone", what, ended, Presence::Closed) }
    }

    /// The other processes of a run in which some wait: those that wait elsewhere or nowhere.
    pub(crate) fn others(self, what: Place, others: &Names) -> Self {
        self.lacks("not there", what, others, Presence::Connected)
    }

    /// Processes that are connected and have told no rank: `title` of them may be missing.
    pub(crate) fn may_be(self, title: &str, candidates: Names) -> Self {
        let told = self.and(title, &candidates);
        Self { facts: Facts { candidates, ..told.facts }, ..told }
    }

    /// What was seen of the node for which others wait.
    pub(crate) fn node_awaited(&self) -> Option<&Sighting> {
        let missing = self.facts.missing.first().filter(|missing| missing.what == Place::Node);
        missing.filter(|_| self.code == Code::Waiting).map(|missing| &missing.seen)
    }

    /// The sentence, about `subject` (`train-llm round 0`).
    pub(crate) fn sentence(&self, subject: Option<&str>) -> String {
        match subject {
            Some(subject) if self.is_predicate => format!("{subject} {}", self.text),
            Some(subject) => format!("{subject}: {}", self.text),
            None => self.text.clone(),
        }
    }

    /// How sure it is: who was never seen, or does nothing that can be seen, is found by the others.
    pub(crate) fn certainty(&self) -> Certainty {
        let is_unseen = |Missing { seen, .. }: &Missing| {
            matches!(seen.presence, Presence::NeverSeen | Presence::Unknown)
                || seen.waits == Some(Waits::Nothing)
        };
        let is_seen = !self.facts.missing.iter().any(is_unseen);
        if is_seen { Certainty::Seen } else { Certainty::Eliminated }
    }

    /// What it was found from, for programs, with its code.
    pub(crate) fn facts(&self, epoch: Epoch) -> Value {
        let Facts { held, missing, candidates, joined, expected, from } = &self.facts;
        let missing = missing.iter().map(|Missing { what, name, seen }| {
            let behind = seen.behind.as_ref().map(|(_, seen)| json!({ "is": seen.presence }));
            json!({
                "what": what,
                "name": name,
                "presence": { "is": seen.presence, "waits": seen.waits, "behind": behind },
                "at": seen.at.map(|at| epoch.unix(at)),
            })
        });
        let (of, joined) = joined.unzip();
        json!({
            "code": self.code.name(),
            "held": held,
            "missing": missing.collect::<Vec<_>>(),
            "candidates": candidates,
            "of": of,
            "joined": joined,
            "expected": expected,
            "from": from,
        })
    }
}
