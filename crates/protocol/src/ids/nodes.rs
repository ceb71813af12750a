//! How many nodes a run has.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A number of nodes: up to `max`, and at least `min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nodes {
    /// The least number of nodes to start with.
    pub min: u32,
    /// The greatest number of nodes.
    pub max: u32,
}

impl Nodes {
    /// Exactly `n`.
    pub const fn exactly(n: u32) -> Self {
        Self { min: n, max: n }
    }

    /// Reads `N` or `MIN:MAX`.
    pub fn parse(text: &str) -> Option<Self> {
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        let nodes = Self { min: min.trim().parse().ok()?, max: max.trim().parse().ok()? };
        (1 <= nodes.min && nodes.min <= nodes.max).then_some(nodes)
    }

    /// The number, if only one is possible.
    pub const fn fixed(self) -> Option<u32> {
        if self.min == self.max { Some(self.max) } else { None }
    }
}

impl std::fmt::Display for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.fixed() {
            Some(n) => write!(f, "{n}"),
            None => write!(f, "{}:{}", self.min, self.max),
        }
    }
}

impl Serialize for Nodes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("a number of nodes is N or MIN:MAX"))
    }
}
