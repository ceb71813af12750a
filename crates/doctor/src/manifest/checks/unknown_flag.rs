//! torchrun reads only its own flags in front of the script, and refuses any other: the node never joins.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "unknown-flag",
    sees: "FAIL: `torchrun --nproc-per-gpu=4 train.py`, `torchrun --config=c.yaml train.py`",
    examples: ["unknown-flag.yaml", "good-job-static.yaml"],
    find: Find::Torchrun(find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let mut flags = call.launch.torchrun.as_ref()?.unknown_flags();
    let flag = flags.find(|word| word.starts_with("--") && !word.contains(['$', ' ']))?;
    let evidence = format!("`{flag}` is no flag of torchrun: it refuses to start");
    let remedy = "the flag as `torchrun --help` spells it, or behind the script, for that";
    Some(Check::fail(evidence, remedy).at(call.at("command")))
}
