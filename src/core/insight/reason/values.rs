//! The parts of reasons: durations, names, where a process is.

use serde::Serialize;
use std::fmt::{self, Display, Formatter};

use crate::api::Severity;
use crate::core::ids::Elapsed;
use crate::core::rendezvous::Fact;

/// Some names, and how many more there are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Names {
    /// The first of them.
    pub shown: Vec<String>,
    /// How many are not shown.
    pub more: usize,
}

impl Names {
    /// Names in a sentence.
    const SHOWN: usize = 8;

    /// Takes the first names and counts the rest.
    pub fn of(names: impl IntoIterator<Item = String>) -> Self {
        let mut names = names.into_iter();
        let shown = names.by_ref().take(Self::SHOWN).collect();
        Self { shown, more: names.count() }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shown.len().saturating_add(self.more)
    }
}

impl Display for Names {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.shown.split_last(), self.more) {
            (None, more) => write!(f, "{more}"),
            (Some(_), more @ 1..) => write!(f, "{} and {more} more", self.shown.join(", ")),
            (Some((last, [])), 0) => write!(f, "{last}"),
            (Some((last, rest)), 0) => write!(f, "{} and {last}", rest.join(", ")),
        }
    }
}

/// What a process does for which others wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is", content = "for_seconds")]
pub enum Whereabouts {
    /// It has never been seen.
    NeverCame,
    /// It is connected and waits for nothing here: it is busy with something else.
    Busy,
    /// Its connection closed this long ago.
    Gone(Elapsed),
    /// The key belongs to a round that the run has left.
    WentOn,
    /// The key does not tell who it is.
    Unknown,
}

impl Display for Whereabouts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverCame => f.write_str("it has not come"),
            Self::Busy => {
                f.write_str("it is connected, but waits for nothing here: it is busy or stuck elsewhere")
            }
            Self::Gone(ago) => write!(f, "its connection closed {ago} ago"),
            Self::WentOn => f.write_str("that was in another round, and the run has gone on without it"),
            Self::Unknown => f.write_str("the keys do not tell which process that is"),
        }
    }
}

/// Something in the words of the native rendezvous.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Said {
    pub(in crate::core::insight) code: &'static str,
    #[serde(skip)]
    pub(in crate::core::insight) severity: Severity,
    /// Whether it is something that is waited for.
    #[serde(skip)]
    pub(in crate::core::insight) waiting: bool,
    /// What follows the run's name.
    #[serde(skip)]
    pub(in crate::core::insight) text: String,
    #[serde(skip)]
    pub(in crate::core::insight) remedy: &'static str,
}

impl Said {
    /// What the rendezvous says, in its own words.
    pub(in crate::core::insight) fn of(fact: &Fact) -> Self {
        Self {
            code: fact.code(),
            severity: if fact.is_warning() { Severity::Warning } else { Severity::Info },
            waiting: false,
            text: fact.to_string(),
            remedy: fact.remedy(),
        }
    }
}

/// What a run is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Agents, one a node.
    Node,
    /// Worker processes without agents.
    Process,
}

impl Unit {
    pub(in crate::core::insight) fn count(self, n: u32) -> String {
        let (one, many) = match self {
            Self::Node => ("node", "nodes"),
            Self::Process => ("process", "processes"),
        };
        format!("{n} {}", if n == 1 { one } else { many })
    }
}
