//! Every pod finds the store in itself: there are as many stores as pods, and each waits for the others.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "endpoint-is-self",
    sees: "FAIL: `--rdzv-endpoint=$HOSTNAME:29500`, `localhost`: every pod hosts a store of its own (unless \
           it has a [relay](relay.md))",
    fails: "bad-job-localhost.yaml",
    passes: "good-job-relay.yaml",
    find: Find::Launch(Tool::ALL, find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let (told, Target::Own) = call.meeting()? else { return None };
    let name = &told.text;
    let is_first = call.pods.maker == Maker::Pod || call.pods.hosts.iter().any(|hosts| hosts.has_first);
    let are_others = call.pods.are_alike() || call.pods.nodes.is_some_and(|nodes| nodes > 1) && !is_first;
    if !are_others || call.is_of_one_node() || call.pods.relays(name) {
        return None;
    }
    let evidence = format!(
        "the endpoint `{name}` ({}) is each pod itself: every one hosts a store of its own and waits there \
         alone",
        told.by
    );
    Some(Check::fail(evidence, first_pod(call.pods, &told.by)).at(call.at("command")))
}
