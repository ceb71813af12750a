//! Nodes that give the run different names wait in different runs. A run without a name meets others, and one
//! with the name of an earlier run meets what that one left in the store.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "run-id",
    sees: "FAIL: empty, or different in each pod (`metadata.uid`, `$RANDOM`, `$(date)`). WARN: none, or a \
           constant one, on a store that outlives the run; `RDZV_ID`",
    examples: ["bad-job-id-random.yaml", "good-jobset-uid.yaml"],
    find: Find::Launch(&[Tool::Torchrun], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, .. } = call;
    if !call.uses_run_id() {
        return None;
    }
    let remedy = pods.run_id_remedy();
    let Some(told) = &launch.run_id else {
        let of_no_effect = launch.command.variable("RDZV_ID").is_some();
        let evidence = match of_no_effect {
            _ if launch.command.open => return None,
            true => "RDZV_ID is set, but torchrun reads PET_RDZV_ID; the run is called `none`",
            false if call.store_outlives_run() => {
                "torchrun calls the run `none`; two jobs on this store would meet"
            }
            false => return None,
        };
        return Some(Check::warn(evidence, remedy).at(call.at("command")));
    };
    let text = &told.text;
    if text.literal() == Some("") {
        return Some(Check::fail(format!("{} is empty", told.by), remedy).at(call.at("command")));
    }
    if let Some(constant) = text.literal().filter(|_| call.store_outlives_run()) {
        let evidence = format!(
            "every run is called `{constant}`: on a store that outlives it, it meets what the last left"
        );
        return Some(Check::warn(evidence, remedy).at(call.at("command")));
    }
    let written = text.to_string();
    let default = written.split_once(":-").map_or("", |(_, default)| default);
    let by_default = ["$(date", "$(uuidgen", "RANDOM", "$$"].iter().any(|drawn| default.contains(drawn));
    if by_default && (pods.are_by_hand() || !pods.are_tasks()) {
        let evidence = format!(
            "the run's id ({}) is `{written}`: unless something sets it alike for all nodes, each waits \
             alone in a run of its own",
            told.by
        );
        return Some(Check::warn(evidence, remedy).at(call.at("command")));
    }
    let shared_by = |source: Source| {
        let in_unit = |nodes| pods.in_unit.is_some_and(|unit| u64::from(nodes) <= unit);
        source == Source::ChildJobUid && launch.most_nodes().is_none_or(in_unit)
    };
    let varies = text.varies() && !text.source().is_some_and(shared_by);
    (varies && pods.are_several()).then(|| {
        let what = text.source().map_or("another one in each pod", Source::name);
        let evidence =
            format!("the run's id ({}) is {what}: each pod waits alone in a run of its own", told.by);
        Check::fail(evidence, remedy).at(call.at("command"))
    })
}
