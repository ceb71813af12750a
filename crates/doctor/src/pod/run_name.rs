//! Jobs without a name share one store, and find the keys of each other.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "run-name",
    sees: "WARN: nothing names the run",
    remedy: "`RALLYPOINT_RUN_ID`",
    find: Find::Launch(|at| at.launch.iter().map(find).collect()),
};

fn find(launch: &LaunchEnv) -> Check {
    let run_id = launch.run_id.as_ref();
    match run_id {
        None => Check::warn(
            "nothing names the run; jobs without a name share the store",
            "set RALLYPOINT_RUN_ID to the Job's UID: metadata.labels['batch.kubernetes.io/controller-uid']",
        ),
        Some(run_id) => Check::pass(format!("`{}` from {}", run_id.value, run_id.from)),
    }
}
