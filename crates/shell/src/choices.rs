//! Which branch of a script a reading takes.

use brush_parser::ast::CompoundList;

/// What a script chooses between, where its condition cannot be decided.
#[derive(Debug, Default)]
pub(super) struct Choices {
    /// The number of the reading; its digits are the branches to take.
    left: usize,
    /// The readings that there are.
    pub(super) ways: usize,
    /// The branch taken for a condition, so that the same condition is decided alike.
    taken: Vec<(String, usize)>,
}

impl Choices {
    pub(super) fn new(choice: usize) -> Self {
        Self { left: choice, ways: 1, taken: Vec::new() }
    }

    /// The branch to take in this reading.
    pub(super) fn of(&mut self, condition: String, branches: usize) -> usize {
        if let Some((_, taken)) = self.taken.iter().find(|(known, _)| *known == condition) {
            return *taken;
        }
        let branch = self.left.checked_rem(branches).unwrap_or_default();
        self.left = self.left.checked_div(branches).unwrap_or_default();
        self.ways = self.ways.saturating_mul(branches);
        self.taken.push((condition, branch));
        branch
    }
}

/// Whether a condition looks at something that may be another one on each node.
pub(super) fn is_of_one_node(condition: &str) -> bool {
    #[rustfmt::skip]
    const PARTS: [&str; 11] = [
        "RANK", "INDEX", "HOST", "PROCID", "LOCALID", "NODEID", "NODE_ID", "NODENAME", "NODE_NAME", "ROLE",
        "MASTER",
    ];
    let condition = condition.to_uppercase();
    PARTS.iter().any(|part| condition.contains(part))
}

/// Whether a part of a script may launch a training.
pub(super) fn may_launch(list: &CompoundList) -> bool {
    const LAUNCHERS: [&str; 8] =
        ["torchrun", "torch.distributed", "accelerate", "deepspeed", "composer", "srun", "mpirun", "python"];
    let text = list.to_string();
    LAUNCHERS.iter().any(|name| text.contains(name))
}

/// `[ A -a B ]` and the like, of which each side may be unknown.
pub(super) fn both(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

pub(super) fn either(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    both(a.map(|a| !a), b.map(|b| !b)).map(|neither| !neither)
}

/// Whether a text fits a pattern with `*` and `?`; nothing if the pattern has more.
pub(super) fn fits(text: &str, pattern: &str) -> Option<bool> {
    if pattern.contains(['[', '(', '\\']) {
        return None;
    }
    // Which beginnings of the text the pattern fits so far, by their length.
    let text: Vec<char> = text.chars().collect();
    let mut begins: Vec<bool> = std::iter::once(true).chain(text.iter().map(|_| false)).collect();
    for mark in pattern.chars() {
        if mark == '*' {
            let shortest = begins.iter().position(|fits| *fits).unwrap_or(begins.len());
            begins.iter_mut().skip(shortest).for_each(|fits| *fits = true);
        } else {
            let longer = begins.iter().zip(&text).map(|(fits, own)| *fits && (mark == '?' || mark == *own));
            begins = std::iter::once(false).chain(longer).collect();
        }
    }
    begins.last().copied()
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_pattern_fits_as_in_a_shell_and_takes_no_time_to_fail() {
        for (text, pattern, is) in [
            ("node-0", "*-0", true),
            ("node-10", "*-0", false),
            ("node-0", "node-?", true),
            ("node-", "node-?", false),
            ("abcabc", "a*c?b*", true),
            ("", "*", true),
            ("", "", true),
            ("a", "", false),
        ] {
            assert_eq!(fits(text, pattern), Some(is), "{text:?} {pattern:?}");
        }
        assert_eq!(fits("a", "[a]"), None);
        assert_eq!(fits(&"a".repeat(200), &format!("{}b", "a*".repeat(30))), Some(false));
    }
}
