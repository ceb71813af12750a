//! What explanations may cost to read. A number that has gone down stays down: its ceiling goes with it. The
//! aims are 10,000 lines of code, 10,000 of tests, 35 codes.

use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What says and judges: with its ceiling, and the aim.
struct Budget {
    what: &'static str,
    /// Files and folders, and the parts of them that do not count.
    paths: &'static [&'static str],
    without: &'static [&'static str],
    ceiling: usize,
    aim: usize,
}

const BUDGETS: [Budget; 2] = [
    Budget {
        what: "lines of code of insight, with the sentences of the rendezvous",
        paths: &["crates/insight/src", "crates/rendezvous/src/reason.rs"],
        without: &["crates/insight/src/tests", "crates/insight/src/testing", "crates/insight/src/testing.rs"],
        ceiling: 13_160,
        aim: 10_000,
    },
    Budget {
        what: "lines of its tests, with what the simulator and the plays judge by",
        paths: &[
            "crates/insight/src/tests",
            "crates/insight/src/testing",
            "crates/insight/src/testing.rs",
            "crates/sim/src/world/words",
            "tests/pytorch/plays/judge.py",
            "tests/pytorch/plays/expected.py",
        ],
        without: &[],
        ceiling: 9_975,
        aim: 10_000,
    },
];

/// Kinds of explanations, each a heading of their page.
const CODES: Budget = Budget {
    what: "codes of explanations",
    paths: &["docs/explanations.md"],
    without: &[],
    ceiling: 35,
    aim: 35,
};

/// The lines of the files below a path that `counts`.
fn lines(path: &Path, without: &[&str], counts: fn(&str) -> bool) -> usize {
    if without.iter().any(|other| Path::new(ROOT).join(other) == path) {
        return 0;
    }
    if path.is_dir() {
        let files = std::fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path());
        return files.map(|path| lines(&path, without, counts)).sum();
    }
    if path.extension().is_some_and(|ending| ["rs", "py", "md"].iter().any(|known| ending == *known)) {
        std::fs::read_to_string(path).expect("text").lines().filter(|line| counts(line)).count()
    } else {
        0
    }
}

impl Budget {
    fn check(&self, counts: fn(&str) -> bool) {
        let Self { what, paths, without, ceiling, aim } = self;
        let now: usize = paths.iter().map(|path| lines(&Path::new(ROOT).join(path), without, counts)).sum();
        assert!(now <= *ceiling, "{now} {what}: {ceiling} are the most, and {aim} the aim");
        assert!(
            now > ceiling - ceiling / 10,
            "only {now} {what}: its ceiling in tests/repo/budgets.rs is {ceiling}, and goes down to that"
        );
    }
}

#[test]
fn explanations_cost_no_more_lines_than_before() {
    for budget in &BUDGETS {
        budget.check(|_| true);
    }
}

#[test]
fn explanations_have_no_more_codes_than_before() {
    CODES.check(|line| line.starts_with("### `"));
}
