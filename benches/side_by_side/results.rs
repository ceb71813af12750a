//! The numbers of a session, in the form of the results file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use rallypoint_bench::Report;
use serde::{Deserialize, Serialize};

use crate::growth::Point;
use crate::runs::Row;
use crate::servers::{Kind, Servers};

/// Everything that a session measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) meta: Meta,
    /// Values by the id of the row.
    pub(crate) rows: BTreeMap<String, BTreeMap<Kind, Measured>>,
    pub(crate) growth: Vec<Point>,
}

/// The circumstances of a session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) commit: String,
    pub(crate) torch: String,
    pub(crate) cores: usize,
    pub(crate) repeat: usize,
    pub(crate) quick: bool,
    pub(crate) minutes: f64,
}

/// The values of one server in one row, one for each repetition.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) values: Vec<f64>,
    pub(crate) also: Vec<f64>,
}

impl Measured {
    pub(crate) fn median(&self) -> Option<f64> {
        median(&self.values)
    }
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len.is_multiple_of(2) => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        _ => Some(sorted[middle]),
    }
}

impl Meta {
    pub(crate) fn now(servers: &mut Servers, repeat: usize, quick: bool) -> anyhow::Result<Self> {
        Ok(Self {
            commit: commit(),
            torch: servers.torch_version.clone(),
            cores: std::thread::available_parallelism()?.get(),
            repeat,
            quick,
            minutes: 0.0,
        })
    }
}

/// The measured commit, marked if the tree has changes.
fn commit() -> String {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(|| "unknown".into());
    let changed = git(&["status", "--porcelain", "--", "src", "Cargo.toml", "Cargo.lock"]);
    if changed.is_none_or(|changes| changes.is_empty()) { commit } else { format!("{commit} with changes") }
}

impl Results {
    pub(crate) fn add(&mut self, row: &Row, kind: Kind, report: Option<&Report>) {
        let measured = self.rows.entry(row.id.into()).or_default().entry(kind).or_default();
        measured.values.extend(report.and_then(row.value));
        measured.also.extend(report.and_then(row.also.1));
    }

    pub(crate) fn median(&self, row: &str, kind: Kind) -> Option<f64> {
        self.rows.get(row)?.get(&kind)?.median()
    }

    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("no results in {}", path.display()))?;
        Ok(serde_json::from_str(&text)?)
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        Ok(std::fs::write(path, serde_json::to_string_pretty(self)? + "\n")?)
    }
}
