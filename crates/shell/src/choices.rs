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
    const PARTS: [&str; 11] = [
        "RANK",
        "INDEX",
        "HOST",
        "PROCID",
        "LOCALID",
        "NODEID",
        "NODE_ID",
        "NODENAME",
        "NODE_NAME",
        "ROLE",
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

/// Whether a text fits a pattern with `*` and `?`; nothing if the pattern has more.
pub(super) fn fits(text: &str, pattern: &str) -> Option<bool> {
    fn rest(text: &[char], pattern: &[char]) -> bool {
        match (text, pattern) {
            (_, ['*', behind @ ..]) => (0..=text.len()).any(|at| rest(&text[at..], behind)),
            ([_, text @ ..], ['?', behind @ ..]) => rest(text, behind),
            ([own, text @ ..], [other, behind @ ..]) => own == other && rest(text, behind),
            ([], []) => true,
            _ => false,
        }
    }
    let (text, plain): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
    (!pattern.contains(['[', '(', '\\']) && plain.len() < 64).then(|| rest(&text, &plain))
}
