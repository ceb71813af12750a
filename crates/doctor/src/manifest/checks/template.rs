//! What is filled in later was not checked.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "template",
    sees: "WARN: a Helm template, or placeholders such as `${NAME}`: not checked, or only in part; \
           `YOUR_NAME`, `<name>`, `xxx`",
    examples: ["blanks.yaml", "good-job-static.yaml"],
    find: Find::Files(|manifests| {
        let of_launches = manifests.all_calls().filter_map(|call| of_launch(&call));
        manifests.while_reading(RULE.id).into_iter().chain(of_launches).collect()
    }),
};

fn of_launch(call: &Call<'_>) -> Option<Check> {
    let is_place = |told: &&Told| told.text.literal().is_some_and(is_unfilled);
    let (what, told) = call.launch.told().find(|(_, told)| is_place(told))?;
    let evidence = format!("{what} ({}) is `{}`, which is to be filled in", told.by, told.text);
    Some(Check::warn(evidence, "the value that is meant").at(call.at("command")))
}
