//! Checks that find the cause of a hang before it happens: PASS, WARN or FAIL, with the evidence and the
//! remedy.
//!
//! Each check is a small function over facts that were gathered before, so that a test needs no network. The
//! module that gathers them (`probe`) has a time limit for each step.
//!
//! | module | what it is for |
//! |---|---|
//! | `pod` | the checks of a pod, one a file: its environment, the way to the store, the server, this host |
//! | `called` | the command that a script starts (feature `manifests`) |
//! | `command` | torchrun's command line |
//! | `network`, `server`, `machine` | the facts for them |
//! | `probe` | gathers the facts of the last three |
//! | `reverse` | how long the name of an address takes |
//! | `manifest` | Kubernetes manifests, offline (feature `manifests`) |
// Numbers come from peers, files and the environment. A file that has only its own says so.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]

#[cfg(feature = "manifests")]
mod called;
mod command;
mod machine;
#[cfg(feature = "manifests")]
mod manifest;
mod network;
mod pod;
pub mod probe;
mod reverse;
mod server;

use serde::Serialize;

#[cfg(feature = "manifests")]
pub use called::find_command;
pub use command::check_command;
pub use machine::MachineFacts;
#[cfg(feature = "manifests")]
pub use manifest::{SCRIPTS, check_manifests, is_batch_script, of_jobs};
pub use network::{NetworkFacts, RELAYS_ONLY, RELAYS_ONLY_REMEDY};
pub use pod::ephemeral_port::binds;
pub use pod::run_store_ports::run_stores;
pub use pod::{check_environment, check_machine, check_name, check_network, check_server};
pub use server::{RunStores, ServerFacts};

use rallypoint_protocol::ids::Shown;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Everything is right.
    Pass,
    /// It may work, or cause harm later.
    Warn,
    /// The job will not work.
    Fail,
}

impl Verdict {
    /// The word in the output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }
}

/// A position in a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Location {
    /// The file.
    pub file: String,
    /// `Kind/name`.
    pub object: String,
    /// The field, as `kubectl explain` takes it.
    pub field: String,
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} {}", self.file, self.object, self.field)
    }
}

/// One check and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The check's name, which stays the same between versions.
    pub id: &'static str,
    /// The position in a manifest, if the check is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Location>,
    /// The result.
    pub verdict: Verdict,
    /// The observed facts.
    pub evidence: String,
    /// The advice, unless the check passed.
    pub remedy: Option<String>,
}

impl Check {
    /// The check under its name, which its rule gives.
    #[must_use]
    pub(crate) fn called(self, id: &'static str) -> Self {
        Self { id, ..self }
    }

    /// A passed check.
    pub fn pass(evidence: impl Into<String>) -> Self {
        Self { id: "", verdict: Verdict::Pass, evidence: evidence.into(), remedy: None, place: None }
    }

    /// A warning.
    pub fn warn(evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, remedy: Some(remedy.into()), ..Self::pass(evidence) }
    }

    /// A failure.
    pub fn fail(evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, remedy: Some(remedy.into()), ..Self::pass(evidence) }
    }
}

#[cfg(feature = "manifests")]
impl Check {
    /// Adds the position in a manifest.
    #[must_use]
    fn at(self, place: Location) -> Self {
        Self { place: Some(place), ..self }
    }
}

/// One line; `{:#}` puts the remedy on its own line.
impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: ", self.verdict.name(), self.id)?;
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        write!(f, "{}", Shown(&self.evidence))?;
        match &self.remedy {
            Some(remedy) => write!(f, "{}-> {}", if f.alternate() { "\n     " } else { " " }, Shown(remedy)),
            None => Ok(()),
        }
    }
}

/// The worst verdict.
pub fn worst(checks: &[Check]) -> Verdict {
    checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Pass)
}

/// Whether two names differ by one letter.
pub(crate) fn is_near(one: &str, other: &str) -> bool {
    let alike = |a: &mut dyn Iterator<Item = (char, char)>| a.take_while(|(a, b)| a == b).count();
    let begin = alike(&mut one.chars().zip(other.chars()));
    let end = alike(&mut one.chars().rev().zip(other.chars().rev()));
    let (short, long) = (one.len().min(other.len()), one.len().max(other.len()));
    one != other
        && short > 3
        && long.saturating_sub(short) < 2
        && begin.saturating_add(end).saturating_add(1) >= long
}

/// Compares the check of this name with what is expected of it.
#[cfg(test)]
#[track_caller]
fn assert_found(checks: &[Check], id: &str, verdict: Verdict, word: &str) {
    let check = checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("{id}: {checks:?}"));
    assert!(check.verdict == verdict && check.to_string().contains(word), "{verdict:?} {word}: {check}");
}
