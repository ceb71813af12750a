//! What is said of what was found, in one form for all: the rule, the sentence, what to look at, and the
//! facts.
//!
//! A sentence is made where its facts are found, and nowhere changed after that. The same value goes to the
//! log, the API, `status`, the page and the metrics. `docs/explanations.md` lists every code with its
//! meaning.

mod evidence;
mod losses;
mod native;
pub(crate) mod rules;
mod values;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub(super) use self::evidence::{Evidence, Finding};
pub(crate) use self::losses::{Loss, RankLoss};
pub(crate) use self::rules::Hold;
pub use self::rules::{Code, RULES, Rule};
pub(crate) use self::values::Absence;
pub(crate) use self::values::{Last, Unit};
use super::epoch::Epoch;
pub(crate) use super::names::Names;
use super::presence::Place;
use super::totals::Tally;
use rallypoint_api::{Certainty, ExpectedFrom, MissingNode, Severity};
use rallypoint_protocol::ids::Timestamp;

/// What is said of what was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reason {
    pub(crate) code: Code,
    pub(crate) severity: Severity,
    pub(crate) certainty: Certainty,
    pub(crate) hold: Hold,
    /// What to do about it. Empty if there is nothing to do.
    pub(crate) look_at: &'static str,
    pub(crate) text: String,
    /// It belongs to a run's ordinary course, and is the end of a sentence that begins with the run.
    is_predicate: bool,
    /// What is waited for, if nothing else is known of it.
    pub(crate) plain: Option<Place>,
    /// A node is waited for that was never seen: another run may have it.
    pub(crate) lacks_node: bool,
    /// How many have ended, where that is a part of what is said: when more do, it is said again.
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
    joined: Option<u32>,
    expected: Option<u32>,
    from: Option<ExpectedFrom>,
    /// More that this kind of explanation has.
    more: Map<String, Value>,
}

/// Who is not there, or does not do what others wait for.
#[derive(Debug, Clone, PartialEq)]
struct Missing {
    what: Place,
    name: String,
    presence: Last,
    at: Option<Timestamp>,
}

impl Code {
    /// The beginning of what is said by this rule.
    pub(crate) fn says(self, text: impl Into<String>) -> Reason {
        let Rule { severity, hold, look_at, .. } = *self.rule();
        Reason {
            code: self,
            severity,
            certainty: Certainty::Seen,
            hold,
            look_at,
            text: text.into(),
            is_predicate: false,
            plain: None,
            lacks_node: false,
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

    /// The run is its subject.
    pub(crate) fn predicate(self) -> Self {
        Self { is_predicate: true, ..self }
    }

    /// Whether it was found by looking at all others.
    pub(crate) fn eliminated(self, is_eliminated: bool) -> Self {
        let certainty = if is_eliminated { Certainty::Eliminated } else { self.certainty };
        Self { certainty, ..self }
    }

    pub(crate) fn tally(self, tally: Tally) -> Self {
        Self { tally: Some(tally), ..self }
    }

    /// How many have joined, and how many should.
    pub(crate) fn joined(self, joined: u32, expected: Option<u32>) -> Self {
        Self { facts: Facts { joined: Some(joined), expected, ..self.facts }, ..self }
    }

    /// How many there should be.
    pub(crate) fn expects(self, expected: Option<u32>) -> Self {
        Self { facts: Facts { expected, ..self.facts }, ..self }
    }

    /// Who says how many there should be.
    pub(crate) fn from(self, from: Option<ExpectedFrom>) -> Self {
        Self { facts: Facts { from, ..self.facts }, ..self }
    }

    /// Who is held up.
    pub(crate) fn held(self, held: &Names) -> Self {
        Self { facts: Facts { held: held.clone(), ..self.facts }, ..self }
    }

    /// Another fact, under a name of its own.
    pub(crate) fn fact(mut self, name: &str, fact: impl Serialize) -> Self {
        let fact = serde_json::to_value(fact).unwrap_or_default();
        self.facts.more.insert(name.to_owned(), fact);
        self
    }

    /// Who is missing, and what was seen of them last.
    pub(crate) fn misses(mut self, what: Place, names: &Names, presence: Last) -> Self {
        let all = names.shown.iter().cloned();
        self.facts.missing.extend(all.map(|name| Missing { what, name, presence, at: None }));
        self
    }

    /// Nodes that are missing, each with what was seen of it.
    pub(crate) fn misses_nodes(mut self, nodes: &[MissingNode]) -> Self {
        self.facts.missing.extend(nodes.iter().map(|node| Missing {
            what: Place::Node,
            name: name_of(node),
            presence: node.known_from.into(),
            at: node.last_seen.map(|at| Timestamp(Duration::from_secs_f64(at))),
        }));
        self
    }

    /// When that was seen.
    pub(crate) fn at(mut self, at: Timestamp) -> Self {
        let all = self.facts.missing.iter_mut();
        all.for_each(|missing| missing.at = missing.at.or(Some(at)));
        self
    }

    /// With more words.
    pub(crate) fn then(mut self, more: &str) -> Self {
        self.text += more;
        self
    }

    /// `; title: names`, if there are any.
    pub(crate) fn and(self, title: &str, names: &Names) -> Self {
        self.then(&words::if_any(&format!("; {title}: "), names))
    }

    /// Who is missing, under what was seen of them last, and when: `; never seen: node 2 and node 3`.
    pub(crate) fn lacks_each(
        mut self,
        what: Place,
        all: impl IntoIterator<Item = (String, Last, Option<Timestamp>)>,
    ) -> Self {
        let mut by_presence: BTreeMap<Last, Vec<String>> = BTreeMap::new();
        for (name, presence, at) in all {
            by_presence.entry(presence).or_default().push(name.clone());
            self.facts.missing.push(Missing { what, name, presence, at });
        }
        by_presence
            .into_iter()
            .fold(self, |reason, (last, names)| reason.and(last.words(), &Names::of(names)))
    }

    /// [`Self::and`] of those who are missing, which are also a fact of their own.
    pub(crate) fn lacks(self, title: &str, field: &str, what: Place, names: &Names, presence: Last) -> Self {
        self.and(title, names).fact(field, names).misses(what, names, presence)
    }

    /// Names the processes that have ended.
    pub(crate) fn ended(self, ended: &Names) -> Self {
        let ended_too = self.lacks("gone", "ended", Place::Rank, ended, Last::Closed);
        Self { ended: ended.count(), ..ended_too }
    }

    /// The other processes of a run in which some wait: those that wait elsewhere or nowhere.
    pub(crate) fn others(self, others: &Names) -> Self {
        let is_eliminated = !others.is_empty();
        self.lacks("not there", "others", Place::Rank, others, Last::Connected).eliminated(is_eliminated)
    }

    /// Other runs have what it lacks.
    pub(crate) fn add_apart(&mut self, title: &str, apart: &Names) {
        if !apart.is_empty() {
            self.text += &words::if_any(&format!("; {title}: "), apart);
            self.look_at = words::ONE_JOB;
        }
    }

    /// A key is there that differs by a slip from the one that is waited for.
    pub(crate) fn exists(self, similar: Option<String>) -> Self {
        self.then(&words::if_some(similar, |key| format!("; `{key}` exists")))
    }

    /// Two jobs use the same keys.
    pub(crate) fn two_jobs(first: String, second: String, why: &str) -> Self {
        let text = format!("two jobs on one store: {first} and {second} ({why})");
        Code::TwoJobs.says(text).fact("first", first).fact("second", second)
    }

    pub(crate) const CLAIMED: &str = "; two jobs on one store, two nodes with one rank, or a process of an \
                                      earlier round that was not ended";

    /// Live processes claim one place. `others`: more such places, each with the processes that claim it.
    pub(crate) fn claimed(what: &str, all: &Names, others: &Names) -> Self {
        let n = if all.count() == 2 { "two".to_owned() } else { all.count().to_string() };
        Code::DuplicateRank
            .says(format!("{n} live processes have claimed {what}: {all}"))
            .and("the same is so of", others)
            .held(all)
            .fact("first", all)
    }

    /// Whether it is a wait: reported only when it has lasted, and again with growing pauses.
    pub(crate) fn is_waiting(&self) -> bool {
        self.hold != Hold::AtOnce
    }

    /// The sentence, about `subject` (`train-llm round 0`).
    pub(crate) fn sentence(&self, subject: Option<&str>) -> String {
        match subject {
            Some(subject) if self.is_predicate => format!("{subject} {}", self.text),
            Some(subject) => format!("{subject}: {}", self.text),
            None => self.text.clone(),
        }
    }

    /// What it was found from, for programs, with its code.
    pub(crate) fn facts(&self, epoch: Epoch) -> Value {
        let Facts { held, missing, joined, expected, from, more } = &self.facts;
        let missing = missing.iter().map(|Missing { what, name, presence, at }| {
            json!({ "what": what, "name": name, "presence": presence, "at": at.map(|at| epoch.unix(at)) })
        });
        let mut facts = more.clone();
        let all = json!({
            "code": self.code.name(),
            "held": held,
            "missing": missing.collect::<Vec<_>>(),
            "joined": joined,
            "expected": expected,
            "from": from,
        });
        if let Value::Object(all) = all {
            facts.extend(all);
        }
        facts.into()
    }
}

/// Its name, or its rank.
pub(crate) fn name_of(node: &MissingNode) -> String {
    node.name.clone().unwrap_or_else(|| format!("node {}", node.rank.unwrap_or_default()))
}
