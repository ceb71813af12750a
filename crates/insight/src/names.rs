//! Names in a sentence: the first of them, and how many more there are.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

/// Some names, and how many more there are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Names {
    /// The first of them.
    pub shown: Vec<String>,
    /// How many are not shown.
    pub more: usize,
    /// All of them, if they are one range.
    #[serde(skip)]
    pub range: Option<Numbered>,
}

/// Names that end in numbers without a gap: `node 48`, `node 49`, …
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbered {
    what: String,
    first: u32,
    last: u32,
}

impl Numbered {
    fn parts(name: &str) -> Option<(&str, u32)> {
        let what = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name.get(what.len()..)?;
        Some((what, number.parse().ok().filter(|value: &u32| value.to_string() == number)?))
    }

    fn of(name: &str) -> Option<Self> {
        let (what, first) = Self::parts(name)?;
        Some(Self { what: what.to_owned(), first, last: first })
    }

    fn with(self, name: &str) -> Option<Self> {
        let (what, number) = Self::parts(name)?;
        let follows = what == self.what && self.last.checked_add(1) == Some(number);
        follows.then_some(Self { last: number, ..self })
    }
}

impl Display for Numbered {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { what, first, last } = self;
        // `train-48-63` could be one name.
        if what.ends_with('-') {
            write!(f, "{what}{first} to {what}{last}")
        } else {
            write!(f, "{what}{first}-{last}")
        }
    }
}

impl Names {
    /// Names in a sentence.
    const SHOWN: usize = 8;

    /// Takes the first names and counts the rest. Many names that are numbered without a gap are one range.
    pub(crate) fn of(names: impl IntoIterator<Item = String>) -> Self {
        let (mut shown, mut more) = (Vec::new(), 0_usize);
        let mut range: Option<Numbered> = None;
        for name in names {
            range = match range {
                _ if shown.is_empty() => Numbered::of(&name),
                Some(range) => range.with(&name),
                None => None,
            };
            if shown.len() < Self::SHOWN {
                shown.push(name);
            } else {
                more = more.saturating_add(1);
            }
        }
        Self { shown, more, range: range.filter(|_| more > 0) }
    }

    /// Takes the first of these and counts the rest; only the first are put into words.
    pub(crate) fn of_some<T>(all: impl IntoIterator<Item = T>, name: impl FnMut(T) -> String) -> Self {
        let mut all = all.into_iter();
        let shown = all.by_ref().take(Self::SHOWN).map(name).collect();
        Self { shown, more: all.count(), range: None }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.shown.len().saturating_add(self.more)
    }
}

impl Display for Names {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(range) = &self.range {
            return range.fmt(f);
        }
        match (self.shown.split_last(), self.more) {
            (None, more) => write!(f, "{more}"),
            (Some(_), more @ 1..) => write!(f, "{} and {more} more", self.shown.join(", ")),
            (Some((last, [])), 0) => write!(f, "{last}"),
            (Some((last, rest)), 0) => write!(f, "{} and {last}", rest.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_without_a_gap_are_one_range() {
        let said = |what: &str, numbers: std::ops::RangeInclusive<u32>| {
            Names::of(numbers.map(|number| format!("{what}{number}"))).to_string()
        };
        assert_eq!(said("", 48..=63), "48-63");
        assert_eq!(said("node ", 48..=56), "node 48-56");
        assert_eq!(said("train-", 0..=4095), "train-0 to train-4095");
        assert_eq!(said("", 48..=50), "48, 49 and 50");
        let gap = (0..=3).chain(5..=12).map(|number| number.to_string());
        assert_eq!(Names::of(gap).to_string(), "0, 1, 2, 3, 5, 6, 7, 8 and 4 more");
        let padded = (0..=20).map(|number| format!("n{number:02}"));
        assert_eq!(Names::of(padded).to_string(), "n00, n01, n02, n03, n04, n05, n06, n07 and 13 more");
        assert_eq!(Names::of((0..20).map(|_| "a".to_owned())).count(), 20);
    }
}
