//! A rendezvous is thousands of round trips, one after the other.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "latency",
    sees: "WARN: the network to the store is slow",
    remedy: "a server closer to the job",
    find: Find::Network(|facts| find(facts).filter(|_| facts.resolved.is_ok())),
};

/// A slower round trip makes thousands of successive requests slow.
const SLOW_ANSWER: Duration = Duration::from_millis(100);

fn find(facts: &NetworkFacts) -> Option<Check> {
    let answer = facts.tried.iter().find_map(|(_, outcome)| outcome.as_ref().ok())?;
    let evidence = format!("one round trip takes {:.1} ms", answer.latency.as_secs_f64() * 1000.0);
    Some(if answer.latency > SLOW_ANSWER {
        Check::warn(
            evidence,
            "a store call is one round trip; place the server nearer, or look for packet loss",
        )
    } else {
        Check::pass(evidence)
    })
}
