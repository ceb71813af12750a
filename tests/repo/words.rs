//! The form of the sources: comments that a stranger understands at once, and lines that fit.

use std::path::{Path, PathBuf};

/// Folders with Rust files. An absent folder is skipped.
const FOLDERS: [&str; 5] = ["src", "crates", "benches", "fuzz", "tests"];
/// The widest line, in columns. rustfmt breaks code at this width, but neither comments nor strings.
const WIDEST: usize = 110;
/// A comment that begins like this refers to something that the reader has to guess.
const RIDDLES: [&str; 4] = ["The same", "That", "Of", "Those"];

/// Files and folders without these rules, each with the reason.
const EXEMPT: &[(&str, &str)] = &[("fuzz/target", "it is built")];
/// Files with wider lines, each with the reason.
const WIDE: &[(&str, &str)] = &[
    ("crates/protocol/src/ids/elapsed.rs", "it shows output, whose lines have any length"),
    ("src/cli/status/changes/tests.rs", "it shows output, whose lines have any length"),
    ("src/cli/status/render/tests.rs", "it shows output, which is as wide as the terminal"),
];

/// Whether a list has a file, or a folder that contains it.
fn has(list: &[(&str, &str)], file: &Path) -> bool {
    list.iter().any(|(path, _)| file.starts_with(path))
}

/// The Rust files in a folder, at any depth.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = folder.read_dir() else { return };
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    Some(line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']).trim())
}

/// Whether a comment begins with words that refer to something unnamed.
fn is_riddle(text: &str) -> bool {
    RIDDLES.iter().any(|words| {
        text.strip_prefix(words).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
    })
}

/// The faults of a file, each with its line number.
fn faults(text: &str, may_be_wide: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut before = "";
    for (number, line) in (1..).zip(text.lines()) {
        let width = line.chars().count();
        if width > WIDEST && !may_be_wide {
            found.push((number, format!("{width} columns")));
        }
        let begins = comment(before).is_none_or(str::is_empty);
        if let Some(text) = comment(line).filter(|text| begins && is_riddle(text)) {
            found.push((number, format!("begins with `{}`", text.chars().take(20).collect::<String>())));
        }
        before = line;
    }
    found
}

#[test]
fn comments_name_what_they_mean_and_lines_fit() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in FOLDERS {
        sources(&root.join(folder), &mut files);
    }
    let (mut checked, mut wrong) = (0, Vec::new());
    for file in files {
        let name = file.strip_prefix(root).expect("below the root");
        if has(EXEMPT, name) {
            continue;
        }
        checked += 1;
        let text = std::fs::read_to_string(&file).expect("text");
        for (line, fault) in faults(&text, has(WIDE, name)) {
            wrong.push(format!("{}:{line}: {fault}", name.display()));
        }
    }
    assert!(checked > 200, "only {checked} files were found");
    assert!(wrong.is_empty(), "reword or break these lines:\n{}", wrong.join("\n"));
}

#[test]
fn a_riddle_and_a_wide_line_are_found() {
    let wide = format!("let text = \"{}\";", "x".repeat(WIDEST));
    let lines = |text: &str| faults(text, false).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    assert_eq!(lines(&wide), [1]);
    assert_eq!(faults(&wide, true), []);
    assert_eq!(lines("/// The same, later.\nfn a() {}\n    // That is so.\n"), [1, 3]);
    assert_eq!(lines("//! One.\n//!\n//! Of two.\n"), [3]);
    // A line that continues a comment may begin with any word, and so may a longer word.
    assert!(lines("/// All parts, and\n/// Of these, one.\n\n/// Offers a part.\n/// Thatch.\n").is_empty());
}
