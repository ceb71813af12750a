//! What tests of several crates share: how explanations are compared with what happened, and torchrun's state
//! as agents write it.
#![expect(missing_docs, reason = "it is there for tests only")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    reason = "it is there for tests only"
)]

mod names;
pub mod oracle;
pub mod pickle;

pub use self::names::names_in;

use serde_json::Value;

/// What is seen is told a moment later: it was true at some moment of so many seconds.
pub const DELAY: f64 = 3.6;

/// Why something that was said is not so.
pub type Checked = Result<(), String>;

pub fn yes(holds: bool, why: &str) -> Checked {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

/// What is true, moment by moment.
#[derive(Debug)]
pub struct Past<T>(pub Vec<(f64, T)>);

impl<T> Past<T> {
    /// Whether it held at some moment just before `at`.
    pub fn any(&self, at: f64, holds: impl Fn(&T) -> bool) -> bool {
        self.any_since(at - DELAY, at, holds)
    }

    /// Whether it held at some moment between these.
    pub fn any_since(&self, from: f64, at: f64, holds: impl Fn(&T) -> bool) -> bool {
        self.between(from, at).any(holds)
    }

    /// All moments between these, the last one first.
    pub fn between(&self, from: f64, at: f64) -> impl Iterator<Item = &T> {
        let recent = self.0.iter().rev().skip_while(move |(then, _)| *then > at);
        // The last moment before that lasted into it.
        let since = self.0.iter().rev().map(|(then, _)| *then).find(|then| *then <= from);
        let recent = recent.take_while(move |(then, _)| since.is_none_or(|since| *then >= since));
        recent.map(|(_, moment)| moment)
    }
}

/// The names in a field of what is said; of those that are missing, who was never seen.
pub fn names(facts: &Value, field: &str) -> Vec<String> {
    let unseen = facts[field].as_array().into_iter().flatten();
    let unseen = unseen.filter(|who| who["presence"]["is"] == "never_seen").map(|who| &who["name"]);
    let shown = facts[field]["shown"].as_array().into_iter().flatten();
    shown.chain(unseen).filter_map(Value::as_str).map(str::to_owned).collect()
}

pub fn number(facts: &Value, field: &str) -> usize {
    facts[field].as_u64().unwrap_or_else(|| panic!("no {field} in {facts}")) as usize
}

pub fn text<'f>(facts: &'f Value, field: &str) -> &'f str {
    facts[field].as_str().unwrap_or_else(|| panic!("no {field} in {facts}"))
}
