//! The files of `rallypoint doctor --manifest`.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::UsageError;
use rallypoint_doctor::{Check, SCRIPTS, check_manifests, is_batch_script, of_jobs};

/// A file brings no more than so many others.
const MOST_NAMED: usize = 64;

/// How manifests end.
const MANIFESTS: [&str; 3] = ["yaml", "yml", "json"];

/// How scripts for batch systems end.
const BATCH: [&str; 3] = ["sbatch", "slurm", "sl"];

/// The names and texts of files.
type Files = Vec<(String, String)>;

/// Checks files, folders and stdin (`-`) together. Returns the files as well.
pub(super) fn check(paths: &[PathBuf]) -> anyhow::Result<(Files, Vec<Check>)> {
    let (mut files, mut beside) = (Vec::new(), BTreeSet::new());
    for path in paths {
        if path.as_os_str() == "-" {
            files.push(("stdin".to_owned(), std::io::read_to_string(std::io::stdin())?));
            continue;
        }
        let mut found = Vec::new();
        for path in files_below(path)? {
            let wrong = |error| UsageError(format!("--manifest {}: {error}", path.display()));
            found.push((path.display().to_string(), read(&path).map_err(wrong)?));
        }
        files.extend(if path.is_dir() { of_jobs(found) } else { found });
        if !path.is_dir() {
            beside.extend(files_beside(path));
        }
    }
    read_scripts_of(&mut files);
    for (file, text) in &files {
        // It may name a configuration of its launcher, or the program.
        let folders = folders_of(Path::new(file));
        let named = named_in(text, &["yaml", "yml", "py"]).into_iter();
        beside.extend(named.filter_map(|name| found_in(&folders, name)).take(MOST_NAMED));
        beside.extend(definitions_of(text, &folders));
    }
    let texts = beside.iter().filter_map(|path| Some((path.display().to_string(), read(path).ok()?)));
    let beside: Files = texts.collect();
    let locked: Vec<String> =
        files.iter().map(|(file, _)| file).filter(|file| is_locked(Path::new(file))).cloned().collect();
    let checks = check_manifests(&files, &beside, &locked);
    Ok((files, checks))
}

/// The manifests, or scripts, in the folder of one: they may be of one job.
fn files_beside(file: &Path) -> BTreeSet<PathBuf> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // A script may be that of one node, and another that of the next.
    let endings = if has_ending(file, &SCRIPTS) { &SCRIPTS[..] } else { &MANIFESTS };
    let is_manifest = |path: &PathBuf| has_ending(path, endings) && path != file && is_short_file(path);
    let mut found: BTreeSet<PathBuf> = entries.filter(is_manifest).collect();
    while found.len() > MOST_NAMED {
        found.pop_last();
    }
    found
}

/// The CustomResourceDefinitions of the kinds in a text, where an operator's repository has them.
fn definitions_of(text: &str, folders: &[PathBuf]) -> Vec<PathBuf> {
    const BELOW: [&str; 4] = ["config/crd/bases", "config/crd", "crds", "deploy/crds"];
    let kinds: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("kind: "))
        .map(|kind| kind.trim().to_lowercase())
        .collect();
    let all = folders.iter().flat_map(|folder| BELOW.map(|below| folder.join(below)));
    let entries = all.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let is_of_kind = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        kinds.iter().any(|kind| name.contains(kind.as_str())) && is_short_file(path)
    };
    entries.map(|entry| entry.path()).filter(is_of_kind).take(MOST_NAMED).collect()
}

/// Whether nobody may execute a file.
fn is_locked(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|it| it.permissions().mode() & 0o111 == 0)
}

fn is_short_file(path: &Path) -> bool {
    const LONGEST: u64 = 1 << 20;
    path.metadata().is_ok_and(|it| it.is_file() && it.len() < LONGEST)
}

fn read(path: &Path) -> std::io::Result<String> {
    // A shell takes any bytes.
    if has_ending(path, &MANIFESTS) {
        std::fs::read_to_string(path)
    } else {
        std::fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned())
    }
}

/// Reads the scripts, too, that a script or a manifest names and that lie in its repository as it names them:
/// an image is made of that, as a rule.
fn read_scripts_of(files: &mut Files) {
    let here = std::env::current_dir().unwrap_or_default();
    let mut known: BTreeSet<PathBuf> =
        files.iter().filter_map(|(file, _)| std::path::absolute(file).ok()).collect();
    let mut next = 0;
    while let Some((file, text)) = files.get(next) {
        next = next.saturating_add(1);
        let file = Path::new(file);
        let is_script = text.starts_with("#!") || has_ending(file, &SCRIPTS) || has_ending(file, &BATCH);
        if !is_script && !text.contains("apiVersion") {
            continue;
        }
        let folders = folders_of(file);
        let found = named_in(text, &SCRIPTS).into_iter().filter_map(|name| found_in(&folders, name));
        for path in found.collect::<Vec<_>>() {
            if files.len() < MOST_NAMED
                && known.insert(path.clone())
                && let Ok(text) = read(&path)
            {
                files.push((path.strip_prefix(&here).unwrap_or(&path).display().to_string(), text));
            }
        }
    }
}

/// Where a file of this name lies, if it does. The end of a path on another machine may be one here.
fn found_in(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    let Some(mut rest) = name.strip_prefix('/') else {
        return folders.iter().map(|folder| folder.join(name)).find(|path| is_short_file(path));
    };
    loop {
        if let Some(found) = found_in(folders, rest) {
            return Some(found);
        }
        (_, rest) = rest.split_once('/').filter(|(_, rest)| rest.contains('/'))?;
    }
}

/// The files of these kinds that a text names: of `${DIR}/run.sh`, whose folder may be its own, the last
/// part.
fn named_in<'t>(text: &'t str, endings: &[&str]) -> BTreeSet<&'t str> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let ends = |c: char| c.is_whitespace() || "\"'=;()|&<>`".contains(c);
    // As in a list of YAML: `{command: [bash, run.sh]}`.
    let of_list = |c: char| "[],}".contains(c);
    let words = lines.flat_map(|line| line.split(ends)).map(|word| word.trim_matches(of_list));
    let words = words.map(|word| match word.rsplit_once('$') {
        Some((_, behind)) => behind.split_once('/').map_or("", |(_, rest)| rest),
        None => word,
    });
    words.filter(|word| has_ending(Path::new(word), endings)).collect()
}

/// Where a script may be started: its folder, and those above it in its repository.
fn folders_of(file: &Path) -> Vec<PathBuf> {
    const ABOVE: usize = 4;
    let file = std::path::absolute(file).unwrap_or_default();
    let mut folders: Vec<PathBuf> = file.ancestors().skip(1).take(ABOVE).map(Path::to_owned).collect();
    if let Some(root) = folders.iter().position(|folder| folder.join(".git").exists()) {
        folders.truncate(root.saturating_add(1));
    }
    folders
}

/// The file itself, or every manifest and every script in a folder, at any depth.
fn files_below(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let wrong = |error: std::io::Error| UsageError(format!("--manifest {}: {error}", path.display()));
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = std::fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(wrong)?;
    entries.sort();
    for entry in entries {
        if entry.is_dir() && !entry.is_symlink() {
            found.extend(files_below(&entry)?);
        } else if is_of_job(&entry) {
            found.push(entry);
        }
    }
    Ok(found)
}

/// Whether a file may be of a job: by its ending, or as it is a script for a batch system.
fn is_of_job(path: &Path) -> bool {
    let begins = || {
        let mut mark = [0; 2];
        let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut mark));
        read.is_ok() && mark == *b"#!"
    };
    let is_script = || is_short_file(path) && begins() && read(path).is_ok_and(|text| is_batch_script(&text));
    path.is_file()
        && ([&MANIFESTS[..], &BATCH, &SCRIPTS].iter().any(|it| has_ending(path, it)) || is_script())
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    path.extension().and_then(std::ffi::OsStr::to_str).is_some_and(|ending| endings.contains(&ending))
}
