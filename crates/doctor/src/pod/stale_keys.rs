//! Keys of an earlier job send a new one to ports that nobody has any more.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "stale-keys",
    sees: "FAIL, WARN: keys of an earlier job are in the way",
    remedy: "another id for each run",
    find: Find::Server(|facts| (facts.looked_into || facts.unreachable.is_none()).then(|| find(facts))),
};

fn find(facts: &ServerFacts) -> Check {
    let run = facts.run_id.as_deref().unwrap_or("?");
    if facts.run_closed {
        return Check::fail(
            format!(
                "run `{run}` is closed in the store: torchrun with this id ends at once with \
                 RendezvousClosedError"
            ),
            "use another id for each run (the Job's UID), or wait until the server forgets it (10 s after \
             its last connection)",
        );
    }
    match (facts.has_addresses, facts.others) {
        (true, Some(0)) => Check::fail(
            "addresses of an earlier job are in the store and nobody is connected: a new job would connect \
             to dead ports",
            "rallypoint drops them within --reset-when-idle; PyTorch's own server keeps them: restart it, or \
             use rallypoint",
        ),
        (true, _) => Check::warn(
            "addresses of a job are in the store: another job runs on it, or left them",
            "one job at a time on one store; `rallypoint run` gives each run its own",
        ),
        (false, Some(0)) if facts.keys > 0 => Check::warn(
            format!(
                "{} in the store and nobody is connected: a job that comes again reads {}",
                counted(facts.keys as u64, "key is", "keys are"),
                if facts.keys == 1 { "it" } else { "them" }
            ),
            "if they are an earlier job's, and the store is for one job at a time, run the server with \
             --one-job on: it empties a store when its last connection has gone; `rallypoint ctl reset` does \
             so now",
        ),
        (false, _) => Check::pass("nothing of an earlier job is in the way"),
    }
}
