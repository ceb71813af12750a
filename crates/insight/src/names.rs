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
