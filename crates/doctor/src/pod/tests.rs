use std::fmt::Write as _;
use std::path::Path;

use super::*;
use crate::{Verdict, assert_found};
use rallypoint_node::launch::{Given, derive};

type Vars = Vec<(&'static str, &'static str)>;

#[test]
fn each_check_of_the_environment_can_pass_and_fail() {
    let full = [("PET_NODE_RANK", "1"), ("PET_NNODES", "4"), ("MASTER_ADDR", "head"), ("JOB_UID", "u")];
    let with = |more: &[(&'static str, &'static str)]| full.iter().chain(more).copied().collect::<Vec<_>>();
    #[rustfmt::skip]
    let rows: [(&str, Vars, bool, Verdict, &str); 13] = [
        ("environment-consistent", with(&[("JOB_COMPLETION_INDEX", "2")]), false, Verdict::Fail,
            "PET_NODE_RANK and JOB_COMPLETION_INDEX differ"),
        ("environment-consistent", with(&[]), false, Verdict::Pass, "node rank 1 from PET_NODE_RANK"),
        ("environment-complete", vec![("MASTER_ADDR", "head")], false, Verdict::Warn, "--node-rank"),
        ("environment-complete", with(&[]), false, Verdict::Pass, ""),
        ("world-size", with(&[("WORLD_SIZE", "4"), ("PET_NPROC_PER_NODE", "8")]), false, Verdict::Fail,
            "pods x processes"),
        ("world-size", with(&[("WORLD_SIZE", "4"), ("PET_NPROC_PER_NODE", "auto")]), false, Verdict::Fail,
            "auto"),
        ("world-size", with(&[("WORLD_SIZE", "4"), ("PET_NPROC_PER_NODE", "8")]), true, Verdict::Warn,
            "overwrites"),
        ("world-size", with(&[("WORLD_SIZE", "32"), ("PET_NPROC_PER_NODE", "8")]), false, Verdict::Pass,
            ""),
        ("world-size", with(&[("WORLD_SIZE", "4"), ("PET_NPROC_PER_NODE", "1")]), false, Verdict::Pass,
            ""),
        ("ranks-beside-torchrun", with(&[("RANK", "1"),
            ("WORLD_SIZE", "4")]), true, Verdict::Warn, "RANK, WORLD_SIZE"),
        ("ranks-beside-torchrun", with(&[]), true, Verdict::Pass, ""),
        ("run-name", vec![("MASTER_ADDR", "head")], false, Verdict::Warn, "controller-uid"),
        ("run-name", with(&[]), false, Verdict::Pass, "JOB_UID"),
    ];
    for (id, vars, beside, verdict, word) in rows {
        let env: Environment = vars.into_iter().collect();
        let command = ["torchrun".to_owned(), "t.py".to_owned()];
        let torchrun = beside.then(|| Torchrun::parse(&command).expect("torchrun"));
        let launch = derive(&env, &Given::default(), torchrun.as_ref());
        assert_found(&check_environment(&env, &launch, torchrun.as_ref()), id, verdict, word);
    }
}

#[test]
fn the_page_lists_the_checks_of_a_pod_as_they_say_themselves() {
    let path = &Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md"));
    // Another test writes other parts of it.
    let lock = std::fs::File::open(path).expect("docs/doctor.md");
    lock.lock().expect("a lock");
    let page = std::fs::read_to_string(path).expect("docs/doctor.md");
    let heading = "## Checks of a pod\n\n";
    let start = page.find(heading).expect("the heading") + heading.len();
    let end = page[start..].find("\n\n").map_or(page.len(), |end| start + end + 1);
    let mut table = "| check | what it sees | remedy |\n|---|---|---|\n".to_owned();
    for Rule { id, sees, remedy, .. } in RULES {
        writeln!(table, "| `{id}` | {sees} | {remedy} |").expect("a text");
    }
    let mut new = page.clone();
    new.replace_range(start..end, &table);
    if std::env::var_os("RALLYPOINT_UPDATE_DOCS").is_some() {
        return std::fs::write(path, new).expect("docs/doctor.md is written");
    }
    assert!(
        new == page,
        "RALLYPOINT_UPDATE_DOCS=1 cargo nextest run -p rallypoint-doctor page writes it anew"
    );
}
