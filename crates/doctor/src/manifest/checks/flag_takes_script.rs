//! accelerate has flags that look like switches and take a word, and switches that take none. With the other
//! form it starts another program than the training.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "flag-takes-script",
    sees: "FAIL: `accelerate launch --zero3_init_flag train.py`, `--multi_gpu true train.py`",
    fails: "flag-takes-script.yaml",
    passes: "good-job-accelerate.yaml",
    find: Find::Launch(&[Tool::Accelerate], find),
};

/// Switches without a value, and flags with one.
#[rustfmt::skip]
const SWITCHES: [&str; 13] = [
    "cpu", "multi-gpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "same-network",
    "enable-cpu-affinity", "dynamo-use-fullgraph", "dynamo-use-dynamic", "downcast-bf16", "quiet", "debug",
];
#[rustfmt::skip]
const WITH_VALUE: [&str; 8] = [
    "zero3-init-flag", "zero3-save-16bit-model", "fsdp-offload-params", "fsdp-sync-module-states",
    "fsdp-use-orig-params", "fsdp-cpu-ram-efficient-loading", "fsdp-activation-checkpointing",
    "fsdp-forward-prefetch",
];

fn find(call: &Call<'_>) -> Option<Check> {
    let words = &call.launch.command.words;
    let words: Vec<&str> = words.iter().map(|word| word.literal().unwrap_or_default()).collect();
    let entry = words.iter().position(|word| *word == "launch" || *word == "accelerate.commands.launch")?;
    let own = words.get(entry..)?;
    for pair in own.windows(2) {
        let (flag, next) = (pair[0], pair[1]);
        let Some(name) = flag.strip_prefix("--").map(|name| name.replace('_', "-")) else {
            // Behind the script are the flags of the script.
            if flag.contains(".py") {
                return None;
            }
            continue;
        };
        let (evidence, remedy) = if WITH_VALUE.contains(&name.as_str()) && next.contains(".py") {
            let evidence = format!("{flag} takes a word, and here that is the script `{next}`");
            (evidence, format!("{flag} true {next}"))
        } else if SWITCHES.contains(&name.as_str()) && matches!(next, "true" | "false" | "True" | "False") {
            let evidence = format!("{flag} takes no word: accelerate takes `{next}` for the script");
            (evidence, format!("{flag} alone"))
        } else {
            continue;
        };
        return Some(Check::fail(evidence, remedy).at(call.at("command")));
    }
    None
}
