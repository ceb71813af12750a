//! Releases may differ in what they say to each other.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "server-version",
    sees: "WARN: the server has another release",
    remedy: "the same release",
    find: Find::Server(|facts| (facts.unreachable.is_none() && facts.large.is_none()).then(|| find(facts))),
};

fn find(facts: &ServerFacts) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    // Releases with equal first two numbers do not differ in anything that matters here.
    let line = |version: &str| version.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
    match &facts.version {
        None => {
            Check::warn("the admin port does not say which rallypoint it is", "is it another program's port?")
        }
        Some(version) if line(version) != line(own) => Check::warn(
            format!("the server is rallypoint {version}, this is {own}"),
            "use one version for server and pods",
        ),
        Some(version) => Check::pass(format!("the server is rallypoint {version}")),
    }
}
