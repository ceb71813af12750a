//! What tests of several crates share: how explanations are compared with what happened, and how agents
//! change torchrun's state.
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
pub mod state;

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

/// The names of those who are missing, of whom this was seen last; none: whatever was.
pub fn missing(facts: &Value, presence: Option<&str>) -> Vec<String> {
    let all = facts["missing"].as_array().into_iter().flatten();
    let those = all.filter(|who| presence.is_none_or(|is| who["presence"]["is"] == is));
    those.filter_map(|who| who["name"].as_str()).map(str::to_owned).collect()
}

/// The first of those who are held up.
pub fn held(facts: &Value) -> Vec<String> {
    let shown = facts["held"]["shown"].as_array().into_iter().flatten();
    shown.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// How many are held up.
pub fn waiters(facts: &Value) -> usize {
    held(facts).len() + facts["held"]["more"].as_u64().unwrap_or_default() as usize
}

pub fn number(facts: &Value, field: &str) -> usize {
    facts[field].as_u64().unwrap_or_else(|| panic!("no {field} in {facts}")) as usize
}

pub fn text<'f>(facts: &'f Value, field: &str) -> &'f str {
    facts[field].as_str().unwrap_or_else(|| panic!("no {field} in {facts}"))
}
