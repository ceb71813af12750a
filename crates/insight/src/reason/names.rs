//! Names in a sentence: the first of them, and how many more there are.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use crate::reason::Sighting;

/// Some names, and how many more there are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Names {
    /// The first of them.
    pub shown: Vec<String>,
    /// How many are not shown.
    pub more: usize,
    /// All of them, if they are one range.
    #[serde(skip)]
    pub range: Option<String>,
    /// Who they are and what was seen of each, where the names have it behind them.
    #[serde(skip)]
    pub seen: Vec<(String, Sighting)>,
}

/// `node 48-63`, if these are numbered without a gap.
fn range(names: &[String]) -> Option<String> {
    let what = names.first()?.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = |name: &String| {
        let number = name.strip_prefix(what)?;
        number.parse().ok().filter(|value: &u32| value.to_string() == number)
    };
    let (first, last) = (number(names.first()?)?, number(names.last()?)?);
    let is_range = names.iter().map(number).eq((first..=last).map(Some));
    // `train-48-63` could be one name.
    let to = if what.ends_with('-') { format!(" to {what}") } else { "-".to_owned() };
    is_range.then(|| format!("{what}{first}{to}{last}"))
}

impl Names {
    const SHOWN: usize = 8;

    /// Takes the first names and counts the rest. Many names that are numbered without a gap are one range.
    pub(crate) fn of(names: impl IntoIterator<Item = String>) -> Self {
        let mut shown: Vec<String> = names.into_iter().collect();
        let more = shown.len().saturating_sub(Self::SHOWN);
        let range = if more > 0 { range(&shown) } else { None };
        shown.truncate(Self::SHOWN);
        Self { shown, more, range, seen: Vec::new() }
    }

    /// Takes the first of these and counts the rest; only the first are put into words.
    pub(crate) fn of_some<T>(all: impl IntoIterator<Item = T>, name: impl FnMut(T) -> String) -> Self {
        let mut all = all.into_iter();
        let shown = all.by_ref().take(Self::SHOWN).map(name).collect();
        Self { shown, more: all.count(), ..Self::default() }
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
            return f.write_str(range);
        }
        match (self.shown.split_last(), self.more) {
            (None, more) => write!(f, "{more}"),
            (Some(_), more @ 1..) => write!(f, "{} and {more} more", self.shown.join(", ")),
            (Some((last, [])), 0) => write!(f, "{last}"),
            (Some((last, rest)), 0) => write!(f, "{} and {last}", rest.join(", ")),
        }
    }
}
