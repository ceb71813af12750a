//! A run with the name of an earlier run meets what that one left in the store.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "constant-run-id",
    sees: "WARN: a constant id on a store that outlives the run",
    examples: ["constant-run-id.yaml", "good-job-c10d.yaml"],
    find: Find::Launch(&[Tool::Torchrun], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let constant = call.launch.run_id.as_ref()?.text.literal().filter(|id| !id.is_empty())?;
    (call.uses_run_id() && call.store_outlives_run()).then(|| {
        let evidence = format!(
            "every run is called `{constant}`: on a store that outlives it, it meets what the last left"
        );
        Check::warn(evidence, call.pods.run_id_remedy()).at(call.at("command"))
    })
}
