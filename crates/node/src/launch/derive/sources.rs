//! All sources of one value, and the check that they agree.

use super::Derived;
use crate::launch::{Difference, LaunchError};

/// The sources of one value, best first.
pub(crate) struct Sources<T> {
    pub(super) what: &'static str,
    flag: &'static str,
    pub(super) found: Vec<Derived<T>>,
}

impl<T: PartialEq + std::fmt::Display> Sources<T> {
    pub(crate) const fn of(what: &'static str, flag: &'static str) -> Self {
        Self { what, flag, found: Vec::new() }
    }

    pub(crate) fn add(&mut self, value: Option<T>, from: impl Into<String>, why: impl Into<String>) {
        let (from, why) = (from.into(), why.into());
        self.found.extend(value.map(|value| Derived { value, from, why }));
    }

    /// The first source, if no other source contradicts it.
    pub(crate) fn settle(self, agree: impl Fn(&T, &T) -> bool) -> Result<Option<Derived<T>>, LaunchError> {
        let (what, flag) = (self.what, self.flag);
        let mut found = self.found.into_iter();
        let Some(first) = found.next() else { return Ok(None) };
        match found.find(|other| !agree(&first.value, &other.value)) {
            None => Ok(Some(first)),
            Some(second) => Err(LaunchError::Differ(Box::new(Difference {
                what,
                first: first.from,
                first_value: first.value.to_string(),
                second: second.from,
                second_value: second.value.to_string(),
                flag,
            }))),
        }
    }
}
