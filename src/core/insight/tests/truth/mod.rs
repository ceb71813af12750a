//! Random schedules of faults, of which the truth is known: who came, who is dead, who waits for whom. Nothing that is
//! said may contradict it, and who waits is told why. The simulator (`tests/sim`) looks at the past in the same way.
//!
//! The tests run a few hundred schedules of each kind, always the same; `PROPTEST_CASES=10000` runs as many as that.

mod dynamic;
mod fixed;
mod ranks;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;
use serde_json::Value;

/// What is seen is told a moment later: it was true at some moment of so many seconds.
pub(crate) const DELAY: f64 = 3.6;

fn config() -> ProptestConfig {
    ProptestConfig { rng_seed: RngSeed::Fixed(16), ..ProptestConfig::default() }
}

/// Why something that was said is not so.
pub(crate) type Checked = Result<(), String>;

pub(crate) fn yes(holds: bool, why: &str) -> Checked {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

/// What is true, moment by moment.
#[derive(Debug)]
pub(crate) struct Past<T>(pub(crate) Vec<(f64, T)>);

impl<T> Past<T> {
    /// Whether it held at some moment just before `at`.
    pub(crate) fn any(&self, at: f64, holds: impl Fn(&T) -> bool) -> bool {
        self.any_since(at - DELAY, at, holds)
    }

    /// Whether it held at some moment between these.
    pub(crate) fn any_since(&self, from: f64, at: f64, holds: impl Fn(&T) -> bool) -> bool {
        let recent = self.0.iter().rev().skip_while(|(then, _)| *then > at);
        // The last moment before that lasted into it.
        let since = self.0.iter().rev().map(|(then, _)| *then).find(|then| *then <= from);
        recent
            .take_while(|(then, _)| since.is_none_or(|since| *then >= since))
            .any(|(_, moment)| holds(moment))
    }
}

/// The names in a field of what is said.
pub(crate) fn names(facts: &Value, field: &str) -> Vec<String> {
    let shown = facts[field]["shown"].as_array().into_iter().flatten();
    shown.filter_map(Value::as_str).map(str::to_owned).collect()
}

pub(crate) fn number(facts: &Value, field: &str) -> usize {
    facts[field].as_u64().unwrap_or_else(|| panic!("no {field} in {facts}")) as usize
}

pub(crate) fn text<'f>(facts: &'f Value, field: &str) -> &'f str {
    facts[field].as_str().unwrap_or_else(|| panic!("no {field} in {facts}"))
}
