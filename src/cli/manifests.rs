//! The files of `rallypoint doctor --manifest`.

use std::path::{Path, PathBuf};

use super::UsageError;
use rallypoint_doctor::{Check, SCRIPTS, check_manifests, of_jobs};

/// Manifests, and scripts that start jobs.
const ENDINGS: [&str; 5] = ["yaml", "yml", "json", "sbatch", "slurm"];

/// The names and texts of files.
type Files = Vec<(String, String)>;

/// Checks files, folders and stdin (`-`) together. Returns the files as well.
pub(super) fn check(paths: &[PathBuf]) -> anyhow::Result<(Files, Vec<Check>)> {
    let mut files = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            files.push(("stdin".to_owned(), std::io::read_to_string(std::io::stdin())?));
            continue;
        }
        let mut found = Vec::new();
        for path in files_below(path)? {
            let wrong = |error| UsageError(format!("--manifest {}: {error}", path.display()));
            // A shell takes any bytes.
            let text = if has_ending(&path, &SCRIPTS) {
                String::from_utf8_lossy(&std::fs::read(&path).map_err(wrong)?).into_owned()
            } else {
                std::fs::read_to_string(&path).map_err(wrong)?
            };
            found.push((path.display().to_string(), text));
        }
        files.extend(if path.is_dir() { of_jobs(found) } else { found });
    }
    let checks = check_manifests(&files);
    Ok((files, checks))
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
        } else if entry.is_file() && (has_ending(&entry, &ENDINGS) || has_ending(&entry, &SCRIPTS)) {
            found.push(entry);
        }
    }
    Ok(found)
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    path.extension().and_then(std::ffi::OsStr::to_str).is_some_and(|ending| endings.contains(&ending))
}
