//! What other files have that were not given: those in the folder of one that was, or that one names.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::launch::Launch;
use super::objects::{self, Object};
use super::pods::Pods;
use super::scripts;
use serde_json::Value;

pub(super) struct Beside {
    /// The names of their Services.
    pub(super) services: BTreeSet<String>,
    /// Their CustomResourceDefinitions.
    pub(super) definitions: Vec<Object>,
    /// Configurations of accelerate, by their paths.
    configurations: Vec<(String, Value)>,
    /// What each of their scripts launches, with its name.
    pub(super) scripts: Vec<(String, Vec<Launch>)>,
    /// Programs in Python, by their paths.
    programs: Vec<(String, String)>,
}

impl Beside {
    pub(super) fn of(files: &[(String, String)]) -> Self {
        let (programs, manifests): (Vec<_>, Vec<_>) =
            files.iter().cloned().partition(|(file, _)| Path::new(file).extension() == Some("py".as_ref()));
        let objects = objects::read(&manifests, &mut Vec::new());
        let (services, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(|it| it.kind == "Service");
        let services = services.into_iter().map(|service| service.name).collect();
        let (all, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|it| it.kind == "Script");
        let launches = |script: Object| {
            let (pods, _) = scripts::of(&script, &[], 0);
            (script.name, pods.iter().flat_map(Pods::launches).cloned().collect())
        };
        let scripts = all.into_iter().map(launches).collect();
        let definitions = others.into_iter().filter(|it| it.kind == "CustomResourceDefinition").collect();
        let configurations = files.iter().filter(|(_, text)| text.contains("compute_environment:"));
        let read = |(file, text): &(String, String)| Some((file.clone(), objects::parse(text).ok()?.0));
        let configurations = configurations.filter_map(read).collect();
        Self { services, definitions, configurations, scripts, programs }
    }

    /// The configuration at a path, as a script says it.
    pub(super) fn configuration(&self, path: &str) -> Option<&Value> {
        at_path(&self.configurations, path)
    }

    /// The text of a program.
    pub(super) fn program(&self, path: &str) -> Option<&str> {
        at_path(&self.programs, path).map(String::as_str)
    }
}

/// The files that a kustomization takes for patches.
pub(super) fn patches<'f>(files: impl Iterator<Item = &'f (String, String)>) -> BTreeSet<PathBuf> {
    const FIELDS: [&str; 3] = ["/patches", "/patchesStrategicMerge", "/patchesJson6902"];
    let is_kustomization =
        |file: &Path| file.file_stem().is_some_and(|stem| stem.eq_ignore_ascii_case("kustomization"));
    let named = |(file, text): &(String, String)| {
        let folder = Path::new(file).parent().filter(|_| is_kustomization(Path::new(file)))?;
        let value = objects::parse(text).ok()?.0;
        let items = FIELDS.iter().flat_map(|field| objects::list(&value, field));
        let names = items.filter_map(|item| item.get("path").unwrap_or(item).as_str());
        Some(names.map(|name| plain(&folder.join(name))).collect::<Vec<_>>())
    };
    files.filter_map(named).flatten().collect()
}

/// Whether a file has patches of other objects: a kustomization or its name says so.
pub(super) fn is_patch(file: &str, patches: &BTreeSet<PathBuf>) -> bool {
    let by_name = file.rsplit('/').take(2).any(|part| part.to_lowercase().contains("patch"));
    by_name || patches.contains(&plain(Path::new(file)))
}

/// A path without the folders `.` in it.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

fn at_path<'f, T>(files: &'f [(String, T)], path: &str) -> Option<&'f T> {
    let path = path.trim_start_matches(['.', '/']);
    files.iter().find(|(file, _)| is_at(file, path)).map(|(_, it)| it)
}

/// Whether a file may be the one that a command means by this path.
pub(super) fn is_at(file: &str, path: &str) -> bool {
    file.strip_suffix(path).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
}
