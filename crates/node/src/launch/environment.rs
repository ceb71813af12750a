//! The variables of a process. Kubernetes sets a variable of an absent label to the empty string, so empty
//! means unset.

use std::collections::BTreeMap;

use super::LaunchError;

/// Environment variables by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The value without surrounding white space, unless it is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// A copy with these variables added or replaced.
    #[must_use]
    pub fn with<'s>(&self, set: impl IntoIterator<Item = &'s (String, String)>) -> Self {
        let mut all = self.0.clone();
        all.extend(set.into_iter().cloned());
        Self(all)
    }

    /// Whether any of the variables has a value.
    pub fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.get(name).is_some())
    }

    /// Whether the variable is set, but empty: the label is absent, or the variable was never filled in.
    pub fn is_blank(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| value.trim().is_empty())
    }

    /// A count or an index.
    pub fn number(&self, name: &'static str) -> Result<Option<u32>, LaunchError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| LaunchError::NotANumber { name: name.into(), value: text.to_owned() })
    }

    /// All variables, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The variables with a value whose name fits a pattern with at most one `*`, ordered by name.
    pub fn matching<'e>(&'e self, pattern: &str) -> impl Iterator<Item = (&'e str, &'e str)> {
        let (start, end) = match pattern.split_once('*') {
            Some((start, end)) => (start.to_owned(), Some(end.to_owned())),
            None => (pattern.to_owned(), None),
        };
        self.0.keys().filter_map(move |name| {
            let fits = match &end {
                None => *name == start,
                Some(end) => name
                    .strip_prefix(&start)
                    .is_some_and(|rest| rest.len() > end.len() && rest.ends_with(end)),
            };
            Some((name.as_str(), self.get(name)?)).filter(|_| fits)
        })
    }

    /// Whether the process runs in a Kubernetes pod: every container there gets the address of the API
    /// server.
    pub fn in_kubernetes(&self) -> bool {
        self.has_any(&["KUBERNETES_SERVICE_HOST", "POD_NAME"])
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
