//! A text whose parts may be unknown.

/// The kind of a value that is not known before the pod runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The pod's index among all nodes.
    Index,
    /// The pod's index in its role, task or child Job. Pods of other roles have equal indices.
    IndexInRole,
    /// The pod's name.
    PodName,
    /// The part of the pod's name after the last dash.
    EndOfPodName,
    /// The pod's host name.
    HostName,
    /// The part of the host name after the last dash.
    EndOfHostName,
    /// The pod's address.
    PodIp,
    /// The pod's own UID.
    PodUid,
    /// The UID of the child Job that the pod belongs to.
    ChildJobUid,
    /// An id that all pods of the run share, and that differs between runs.
    RunUid,
    /// The object's namespace, if the file does not name it.
    Namespace,
    /// A random number or a time: it differs between pods.
    Drawn,
    /// The number that a batch system gives its script itself, which runs on the first node only.
    FirstNode,
    /// The number of a task of a batch system on its node.
    TaskOfNode,
}

impl Source {
    /// Whether two pods have different values.
    pub const fn varies(self) -> bool {
        !matches!(self, Self::RunUid | Self::Namespace | Self::FirstNode)
    }

    /// The name for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Index => "the pod's index",
            Self::IndexInRole => "the pod's index in its role",
            Self::PodName => "the pod's name",
            Self::EndOfPodName => "the end of the pod's name",
            Self::HostName => "the pod's host name",
            Self::EndOfHostName => "the end of the pod's host name",
            Self::PodIp => "the pod's own address",
            Self::PodUid => "the pod's own UID",
            Self::ChildJobUid => "the UID of the pod's own Job",
            Self::RunUid => "an id of the run",
            Self::Namespace => "the namespace",
            Self::Drawn => "a random number or a time",
            Self::FirstNode => "the number of the first node",
            Self::TaskOfNode => "the number of the task on its node",
        }
    }
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A known text.
    Known(String),
    /// A value whose kind is known.
    Of(Source),
    /// A value that cannot be known here.
    Unknown {
        /// The unexpanded text.
        written: String,
        /// Whether two pods certainly have different values.
        varies: bool,
    },
    /// A number that is computed from a value that differs between pods.
    Computed {
        /// The unexpanded text.
        written: String,
        /// The number in the pod for which it is read.
        here: String,
    },
    /// A variable that nothing sets; it is empty.
    Unset(String),
}

/// A text whose parts may be unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text(Vec<Part>);

impl Text {
    /// A known text.
    pub fn known(text: impl Into<String>) -> Self {
        let mut made = Self::default();
        made.push(Part::Known(text.into()));
        made
    }

    /// A text of one part.
    pub fn of(part: Part) -> Self {
        let mut made = Self::default();
        made.push(part);
        made
    }

    /// An unknown text, with its unexpanded form.
    pub fn unknown(written: impl Into<String>, varies: bool) -> Self {
        Self(vec![Part::Unknown { written: written.into(), varies }])
    }

    /// Appends a part.
    pub fn push(&mut self, part: Part) {
        match (self.0.last_mut(), part) {
            (_, Part::Known(text)) if text.is_empty() => {}
            (Some(Part::Known(before)), Part::Known(text)) => before.push_str(&text),
            (_, part) => self.0.push(part),
        }
    }

    /// Appends a text.
    pub fn extend(&mut self, text: Self) {
        for part in text.0 {
            self.push(part);
        }
    }

    /// The text with other parts.
    #[must_use]
    pub fn map(&self, part: impl Fn(&Part) -> Part) -> Self {
        let mut made = Self::default();
        self.0.iter().for_each(|own| made.push(part(own)));
        made
    }

    /// Its parts.
    pub fn parts(&self) -> &[Part] {
        &self.0
    }

    /// A text that is this one or the other. Where one begins with the other, that begin is known.
    pub(crate) fn or(&self, other: &Self, name: &str) -> Self {
        let added = |short: &Self, long: &Self| short.is_begin_of(long).map(|blank| (short.clone(), blank));
        let (mut made, blank) = added(self, other).or_else(|| added(other, self)).unwrap_or_default();
        made.push(Part::Known(if blank { " " } else { "" }.into()));
        made.extend(Self::unknown(format!("${name}"), false));
        made
    }

    /// Whether a longer text begins with this one, and then whether a blank follows in it.
    fn is_begin_of(&self, long: &Self) -> Option<bool> {
        let (last, before) = self.0.split_last()?;
        let (begin, behind) = long.0.split_at_checked(before.len())?;
        let (first, rest) = behind.split_first().filter(|_| begin == before)?;
        let is_blank = |part: &Part| matches!(part, Part::Known(text) if text.starts_with(' '));
        match (last, first) {
            (Part::Known(own), Part::Known(longer)) => Some(longer.strip_prefix(own)?.starts_with(' ')),
            _ => (last == first).then(|| rest.first().is_some_and(is_blank)),
        }
    }

    /// The text, if all of it is known.
    pub fn literal(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Part::Known(text)] => Some(text),
            _ => None,
        }
    }

    /// Its kind, if it is a single part of a known kind.
    pub fn source(&self) -> Option<Source> {
        match self.0.as_slice() {
            [Part::Of(source)] => Some(*source),
            _ => None,
        }
    }

    /// Whether two pods certainly have different values.
    pub fn varies(&self) -> bool {
        self.0.iter().any(|part| match part {
            Part::Of(source) => source.varies(),
            Part::Unknown { varies, .. } => *varies,
            Part::Computed { .. } => true,
            Part::Known(_) | Part::Unset(_) => false,
        })
    }

    /// Whether a part of it cannot be known.
    pub fn is_unknown(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Unknown { .. } | Part::Computed { .. }))
    }

    /// Whether it must be empty: it is known to be empty, or has only unset variables.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Unset(_)))
    }

    /// The variables in it that nothing sets.
    pub fn unset(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Unset(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Splits at the first known occurrence of a character.
    pub fn split_once(&self, at: char) -> Option<(Self, Self)> {
        let (n, before, after) = self.0.iter().enumerate().find_map(|(n, part)| match part {
            Part::Known(text) => text.split_once(at).map(|(before, after)| (n, before, after)),
            _ => None,
        })?;
        let mut left = Self(self.0[..n].to_vec());
        left.push(Part::Known(before.into()));
        let mut right = Self::known(after);
        right.extend(Self(self.0.iter().skip(n).skip(1).cloned().collect()));
        Some((left, right))
    }

    /// The text as a script for another shell. Parts that are not known become variables, which are added.
    pub fn as_script(&self, variables: &mut super::Variables) -> String {
        let mut script = String::new();
        for (n, part) in self.0.iter().enumerate() {
            match part {
                Part::Known(text) => script.push_str(text),
                part => {
                    let name = format!("_PART_{}_{n}", variables.len());
                    script.extend(["${", &name, "}"]);
                    variables.insert(name, vec![Self::of(part.clone())]);
                }
            }
        }
        script
    }

    /// All pieces between the occurrences of a character.
    pub fn split(&self, at: char) -> Vec<Self> {
        let mut rest = self.clone();
        let mut pieces = Vec::new();
        while let Some((piece, after)) = rest.split_once(at) {
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        pieces
    }
}

impl std::fmt::Display for Text {
    /// The form for messages: unknown parts are unexpanded, and parts of a known kind are in angle brackets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for part in &self.0 {
            match part {
                Part::Known(text)
                | Part::Unknown { written: text, .. }
                | Part::Computed { written: text, .. } => f.write_str(text)?,
                Part::Of(source) => write!(f, "$<{}>", source.name())?,
                Part::Unset(name) => write!(f, "${name}")?,
            }
        }
        Ok(())
    }
}
