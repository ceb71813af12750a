//! The documents for users: the program accepts their commands, and the named things exist.
//!
//! A block marked "sh" has commands. The program parses each command line of rallypoint in it. A block marked
//! "sh tested" is run as a whole, in the repository, with a server of its own in place of `rallypoint:29500`
//! and `rallypoint:29501`, which is also the one on this host. In a block marked "console tested" commands
//! stand behind `$`, and below each is what it prints: `…` stands for any text, and alone on a line for any
//! lines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{PATIENCE, TestServer};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const BINARY: &str = env!("CARGO_BIN_EXE_rallypoint");
/// A flag that no command has. The parser reads from left to right, so it reports this flag only if it
/// accepted everything before.
const UNKNOWN: &str = "--end-of-check";

/// The documents: README.md, deploy/README.md and docs/*.md.
pub(crate) fn documents() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    let folder = root.join("docs").read_dir().expect("docs").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> =
        folder.filter(|path| path.extension().is_some_and(|ext| ext == "md")).collect();
    found.extend([root.join("README.md"), root.join("deploy/README.md")]);
    found.sort();
    found
}

/// The blocks of a document with this mark, with continued lines joined.
pub(crate) fn blocks(text: &str, mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = None;
    for line in text.lines() {
        match (&mut inside, line.trim_start().strip_prefix("```")) {
            (None, Some(info)) => inside = Some((info.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(inside.take()),
            (Some((_, block)), None) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, None) => {}
        }
    }
    let chosen = found.into_iter().filter(|(info, _)| info == mark);
    chosen.map(|(_, block)| block.replace("\\\n", " ")).collect()
}

/// The arguments of every call of rallypoint in a script.
fn calls(script: &str) -> Vec<Vec<String>> {
    let commands = script.lines().flat_map(|line| line.split(['|', ';', '&']));
    commands
        .filter_map(|command| {
            let bare = command.replace("\"$(pidof -s rallypoint)\"", "1");
            let bare = bare.replace("eval \"$(", "").replace(")\"", "");
            let words = shlex::split(&bare).unwrap_or_else(|| panic!("quotes in {command:?}"));
            let is_its = |word: &String| !["#", ">", "2>"].iter().any(|end| word.starts_with(end));
            let words: Vec<String> = words.into_iter().take_while(is_its).collect();
            let at = words.iter().position(|word| Path::new(word).ends_with("rallypoint"))?;
            // Nothing precedes it, or a program that starts it.
            let starts =
                at == 0 || words[at - 1] == "--" || words[..at].iter().all(|word| word.contains('='));
            starts.then(|| words[at + 1..].iter().map(|word| filled(word)).collect())
        })
        .collect()
}

/// An argument with values in place of a document's placeholders.
fn filled(word: &str) -> String {
    let mut word = word.replace("$NNODES", "4").replace("$PORT", "29500").replace(":PORT", ":29500");
    for name in ["HOST", "RUN", "PID"] {
        if word == name || word.starts_with(&format!("{name}:")) {
            word = word.replacen(name, "1", 1);
        }
    }
    word
}

pub(crate) fn run(arguments: &[String]) -> Output {
    assert_cmd::Command::new(BINARY)
        .args(arguments)
        .env_clear()
        .timeout(PATIENCE)
        .output()
        .expect("the program starts")
}

#[test]
fn the_program_takes_every_command_line_of_the_documents() {
    let mut seen = BTreeSet::new();
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("text");
        let scripts = ["sh", "sh tested"].into_iter().flat_map(|mark| blocks(&text, mark));
        let sessions = blocks(&text, "console tested").into_iter().flat_map(|block| session(&block));
        let scripts = scripts.chain(sessions.map(|(command, _)| command));
        for mut arguments in scripts.flat_map(|script| calls(&script)) {
            seen.extend(arguments.first().cloned());
            let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
            arguments.insert(end, UNKNOWN.into());
            let output = run(&arguments);
            let said = String::from_utf8_lossy(&output.stderr);
            let taken = said.contains(&format!("unexpected argument '{UNKNOWN}'"));
            assert!(
                taken && output.status.code() == Some(2),
                "{}: {arguments:?}: {said}",
                document.display()
            );
        }
    }
    let some = ["serve", "run", "wait", "env", "doctor", "status", "join", "barrier", "bench"];
    let missing: Vec<_> = some.into_iter().filter(|command| !seen.contains(*command)).collect();
    assert!(missing.is_empty(), "no document shows {missing:?}, or they are not found");
}

/// The commands of a session on a console, each with the lines below it.
fn session(block: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => found.push((command.to_owned(), Vec::new())),
            (None, Some((_, lines))) => lines.push(line.to_owned()),
            (None, None) => panic!("the first line is no command: {line}"),
        }
    }
    found
}

/// Whether a command printed what its document shows.
fn shows(expected: &[String], printed: &[&str]) -> bool {
    match (expected, printed) {
        ([], []) => true,
        ([any, rest @ ..], _) if any == ANY => {
            (0..=printed.len()).any(|skipped| shows(rest, &printed[skipped..]))
        }
        ([line, rest @ ..], [first, others @ ..]) => is_like(line, first) && shows(rest, others),
        _ => false,
    }
}

/// What stands for any text.
const ANY: &str = "…";

fn is_like(expected: &str, line: &str) -> bool {
    match expected.split_once(ANY) {
        None => expected == line,
        Some((before, after)) => line.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| is_like(after, &rest[at..]))
        }),
    }
}

/// Where the blocks of the documents run: a folder of programs, with rallypoint and what stands for Slurm.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        use std::os::unix::fs::{PermissionsExt, symlink};
        const SRUN: &str = "#!/bin/sh\nexec env SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2] \
            SLURM_NNODES=2 SLURM_NTASKS=2 SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 \"$@\"\n";
        let folder = tempfile::tempdir().expect("a folder");
        symlink(BINARY, folder.path().join("rallypoint")).expect("a link");
        let srun = folder.path().join("srun");
        std::fs::write(&srun, SRUN).expect("written");
        std::fs::set_permissions(&srun, std::fs::Permissions::from_mode(0o755)).expect("executable");
        Self(folder)
    }

    /// Runs a script with a server of its own. What it prints has the names of the documents.
    fn run(&self, options: &str, script: &str) -> (Output, String) {
        let server = TestServer::start(&[]);
        let (store, admin) = (server.store.to_string(), server.admin.to_string());
        let script = script.replace("rallypoint:29500", &store).replace("rallypoint:29501", &admin);
        let path = format!("{}:{}", self.0.path().display(), std::env::var("PATH").expect("PATH"));
        let shell = Command::new("sh")
            .args([options, &format!("exec 2>&1\n{script}")])
            .current_dir(ROOT)
            .env_clear()
            .envs([("PATH", path), ("RALLYPOINT_ADMIN", admin.clone())])
            .output()
            .expect("a shell");
        let said = String::from_utf8_lossy(&shell.stdout).into_owned();
        (shell, said.replace(&store, "rallypoint:29500").replace(&admin, "rallypoint:29501"))
    }
}

#[test]
fn blocks_that_are_marked_run() {
    let bench = Bench::new();
    let (mut scripts, mut commands) = (0, 0);
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("text");
        for script in blocks(&text, "sh tested") {
            let (shell, said) = bench.run("-euc", &script);
            assert!(shell.status.success(), "{}:\n{script}\n{said}", document.display());
            scripts += 1;
        }
        for block in blocks(&text, "console tested") {
            const MARK: &str = "=== the next command ===";
            let session = session(&block);
            let steps: Vec<String> =
                session.iter().map(|(command, _)| format!("echo '{MARK}'\n{command}\n")).collect();
            let script = steps.concat();
            let (_, said) = bench.run("-uc", &script);
            let printed: Vec<&str> = said.split(&format!("{MARK}\n")).skip(1).collect();
            assert_eq!(printed.len(), session.len(), "{}:\n{said}", document.display());
            for ((command, lines), printed) in session.iter().zip(printed) {
                let is_shown = shows(lines, &printed.lines().collect::<Vec<_>>());
                assert!(is_shown, "{}:\n$ {command}\n{printed}", document.display());
                commands += 1;
            }
        }
    }
    assert!(scripts >= 1 && commands >= 9, "only {scripts} scripts and {commands} commands are marked");
}

#[test]
fn what_a_console_shows_is_compared() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let cases = [
        ("a\nb", "a\nb", true),
        ("a\nb", "a", false),
        ("a", "a\nb", false),
        ("took … ms", "took 12 ms", true),
        ("took … ms", "took 12 s", false),
        ("…\nlast", "one\ntwo\nlast", true),
        ("…\nlast", "one\nlast\ntwo", false),
    ];
    for (expected, printed, is_it) in cases {
        assert_eq!(shows(&lines(expected), &printed.lines().collect::<Vec<_>>()), is_it, "{expected}");
    }
}

/// Every check that a document names must exist in `doctor`.
#[test]
fn checks_are_called_as_in_doctor() {
    let mut source = String::new();
    let mut folders = vec![Path::new(ROOT).join("crates/doctor/src")];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                source += &std::fs::read_to_string(path).expect("text");
            }
        }
    }
    let text = std::fs::read_to_string(Path::new(ROOT).join("docs/kubernetes.md")).expect("text");
    let table = text.split("| symptom |").nth(1).expect("the table of symptoms");
    let mut count = 0;
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').collect();
        assert_eq!(cells.len(), 6, "{row}");
        for check in cells[3].split('`').skip(1).step_by(2) {
            assert!(source.contains(&format!("\"{check}\"")), "doctor has no check `{check}`");
            count += 1;
        }
    }
    assert!(count > 10, "only {count} checks found");
}

/// A recipe says with what it was tried, and when: in each run by a test, which is there and knows its
/// manifest, or once in some month.
#[test]
fn each_recipe_says_with_what_it_was_tried() {
    let text = std::fs::read_to_string(Path::new(ROOT).join("docs/recipes.md")).expect("text");
    let table = text.split("| you use |").nth(1).expect("the table");
    let mut held = 0;
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let tried = row.trim_end_matches(" |").rsplit("| ").next().expect("a cell");
        assert!(
            tried.contains(|digit: char| digit.is_ascii_digit())
                || tried.contains("only")
                || tried.contains("not tried"),
            "{row}"
        );
        let held_by = tried.split_once("**held** by `");
        let month = tried.split_once("once, ").and_then(|(_, month)| month.split_once(' '));
        let is_dated = month.is_some_and(|(_, year)| year.len() == 4 && year.parse::<u32>().is_ok());
        assert!(held_by.is_some() || is_dated || tried.contains("not tried: "), "tried when? {row}");
        let Some((_, test)) = held_by else { continue };
        let file = Path::new(ROOT).join("tests/pytorch").join(test.trim_end_matches('`'));
        let test = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}: {row}"));
        if let Some((_, link)) = row.split_once("](../deploy/") {
            let (manifest, _) = link.split_once(')').expect("a link");
            let (folder, _) =
                manifest.trim_start_matches("kustomize/overlays/").rsplit_once('/').expect("a file");
            let overlay = folder.replace('/', "-");
            assert!(test.contains(&format!("\"{overlay}\"")), "no test of {overlay}: {row}");
        }
        held += 1;
    }
    assert!(held > 8, "{held} rows are held by a test");
}

/// What nobody reads helps nobody. A page that grows makes another shorter: git keeps what is left out.
#[test]
fn the_documents_have_at_most_30_000_words() {
    const MOST: usize = 30_000;
    let root = Path::new(ROOT);
    let mut pages: Vec<PathBuf> =
        documents().into_iter().filter(|path| !path.starts_with(root.join("deploy"))).collect();
    pages.push(root.join("CHANGELOG.md"));
    let mut counts: Vec<(usize, PathBuf)> = pages
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("text");
            // A graph is a picture.
            let parts = text.split("```mermaid").enumerate();
            let read = |(n, part): (usize, &str)| match part.split_once("```") {
                Some((_, rest)) if n > 0 => rest.split_whitespace().count(),
                _ => part.split_whitespace().count(),
            };
            (parts.map(read).sum(), path)
        })
        .collect();
    counts.sort();
    let words: usize = counts.iter().map(|(count, _)| count).sum();
    assert!(words > MOST / 2 && words <= MOST, "{words} words, {MOST} at most: {counts:#?}");
}

/// A page begins with what its reader wants, and fits three screens, but for tables and commands, in which
/// one looks something up. `explanations.md` is made from the rules, and nothing but such a list.
#[test]
fn a_page_says_whom_it_is_for_and_fits_three_screens() {
    const MOST: usize = 1_000;
    let pages: Vec<PathBuf> = documents().into_iter().filter(|path| !path.ends_with("README.md")).collect();
    assert!(pages.len() > 15, "{pages:?}");
    let readme = std::fs::read_to_string(Path::new(ROOT).join("README.md")).expect("text");
    let words = readme.split_whitespace().count();
    assert!(words <= 900, "README.md: {words} words");
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("text");
        let first = text.split("\n\n").nth(1).expect("a first paragraph");
        assert!(first.starts_with("You "), "{}: {first}", page.display());
        let outside: String = text.split("```").step_by(2).collect();
        let prose = outside.lines().filter(|line| !line.starts_with('|'));
        let words: usize = prose.map(|line| line.split_whitespace().count()).sum();
        assert!(words <= MOST || page.ends_with("explanations.md"), "{}: {words} words", page.display());
    }
}

/// What a link to a heading ends with, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
    kept.map(|char| if char == ' ' { '-' } else { char }).collect()
}

/// Links between the documents lead somewhere: to a file, and to a heading in it.
#[test]
fn links_lead_to_files_and_headings() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("text");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = document.parent().expect("a folder");
            let path = if file.is_empty() { document.clone() } else { folder.join(file) };
            assert!(path.exists(), "{}: {target}", document.display());
            if !heading.is_empty() {
                let page = std::fs::read_to_string(path).expect("text");
                let found = page.lines().any(|line| line.starts_with('#') && anchor(line) == heading);
                assert!(found, "{}: {target}", document.display());
            }
        }
    }
}
