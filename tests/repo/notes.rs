//! The protocol notes, and the pages for people who change the program, name files, tests and recordings. All
//! of these must exist.

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below a folder of the repository.
fn files_below(folder: &str) -> Vec<PathBuf> {
    let mut folders = vec![root().join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("readable").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// The texts in backticks on a page.
fn quoted(page: &str) -> impl Iterator<Item = &str> {
    // Markdown allows no backtick inside a quote, so every second piece is one.
    page.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Whether `text` defines the test `name`: a function, a line of the table that makes functions, or a story.
fn defines(text: &str, name: &str) -> bool {
    let story = format!("\n= {}\n", name.replace('_', " "));
    [format!("fn {name}("), format!("def {name}("), format!("    {name}: \""), story]
        .iter()
        .any(|form| text.contains(form))
}

#[test]
fn every_test_and_recording_that_the_notes_name_exists() {
    let sources: Vec<(String, String)> = ["src", "crates", "tests"]
        .into_iter()
        .flat_map(files_below)
        .filter(|path| path.extension().is_some_and(|end| end == "rs" || end == "py"))
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("readable");
            (path.with_extension("").to_string_lossy().into_owned(), text)
        })
        .collect();
    let recordings = files_below("tests/data");
    let mut pages = files_below("proto-notes");
    pages.extend(["docs/architecture.md", "SECURITY.md", "CONTRIBUTING.md"].map(|page| root().join(page)));
    assert!(!pages.is_empty());

    let (mut missing, mut tests) = (Vec::new(), 0);
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("readable");
        let page = page.file_name().expect("a file").to_string_lossy().into_owned();
        for name in quoted(&text) {
            let exists = if let Some((file, test)) = name.split_once("::") {
                tests += 1;
                let of_file = |path: &str| path.ends_with(&format!("/{file}"));
                sources.iter().any(|(path, text)| of_file(path) && defines(text, test))
            } else if [".json", ".jsonl"].iter().any(|end| name.ends_with(end)) {
                root().join(name).is_file() || recordings.iter().any(|path| path.ends_with(name))
            } else if [".rs", ".py"].iter().any(|end| name.ends_with(end)) && !name.contains('*') {
                root().join(name).is_file()
            } else {
                continue;
            };
            if !exists {
                missing.push(format!("{page}: `{name}`"));
            }
        }
    }
    println!("{tests} references to tests");
    assert!(tests > 100, "the notes name their tests as `file::test`, and only {tests} were found");
    assert!(missing.is_empty(), "these do not exist:\n{}", missing.join("\n"));
}
