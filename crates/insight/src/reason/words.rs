//! Words that several sentences have.

use crate::reason::Names;
use rallypoint_api::ExpectedFrom;
use rallypoint_protocol::ids::{Elapsed, counted};

/// What to do where several runs would be complete together.
pub(crate) const ONE_JOB: &str = "if these are one job, start every node with the same id and the same \
                                  server (--rdzv-id and --rdzv-endpoint, --run-id, or --master-addr and \
                                  --master-port); else look whether the pods of the missing nodes are \
                                  scheduled and reach this server";
/// What to do where something in another store may be what is missing.
pub(crate) const OTHER_PORT: &str =
    "if the ranks in the other store are of this job, start all its processes with the same MASTER_PORT";
/// What to look at where processes ended that told nothing.
pub(crate) const ENDED: &str = "look at the log of each process that ended: a failed import, too little \
                                memory, a wrong interface, a RANK that is not below WORLD_SIZE? Where that \
                                was another, look whether the missing ones have started and reach this \
                                server";
/// What to do about a key of the program that differs by a letter.
pub(crate) const SLIP: &str =
    "one of the two names may be a slip: compare the parts of the program that write and read it";
/// What to do where somebody came to a run that is closed.
pub(crate) const CLOSED: &str = "nothing, if the job is done; else start all nodes again with another \
                                 --rdzv-id (--run-id), or 10 s after the last of the old ones has ended";
pub(crate) const SAME_GROUPS: &str = "let all make the same groups, as many, in the same order, below the \
                                      same prefix, with one world size, and each with a rank of its own; a \
                                      second job needs its own store, or its own prefix";
/// `3 processes have waited up to`: the time is that of the first. One is named.
pub(crate) fn clients(who: &Names) -> String {
    match who.count() {
        1 => format!("{who} has waited"),
        n => format!("{} {}", counted(n, "process", "processes"), have_waited(n)),
    }
}

pub(crate) const fn have_waited(n: usize) -> &'static str {
    if n == 1 { "has waited" } else { "have waited up to" }
}

pub(crate) const fn are(n: usize) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

pub(crate) const fn has(n: usize) -> &'static str {
    if n == 1 { "has" } else { "have" }
}

/// When the first of those that have joined came, who waits since then.
pub(crate) fn waits_since(joined: u32, first: Elapsed) -> String {
    match joined {
        1 => format!(" and waited {first}"),
        _ => format!(", the first {first} ago"),
    }
}

/// `both nodes`, `all 3 nodes`.
pub(crate) fn all(n: u32, unit: &str) -> String {
    if n == 2 { format!("both {unit}") } else { format!("all {n} {unit}") }
}

/// What follows a sentence, if there is something.
pub(crate) fn if_any(before: &str, names: &Names) -> String {
    if names.is_empty() { String::new() } else { format!("{before}{names}") }
}

/// What follows a sentence, if it is known.
pub(crate) fn if_some<T>(value: Option<T>, say: impl FnOnce(T) -> String) -> String {
    value.map(say).unwrap_or_default()
}

/// Which of the ranks before ended first, if that is known.
pub(crate) fn ended_first(first_ended: Option<(String, Elapsed)>) -> String {
    if_some(first_ended, |(rank, before)| {
        format!("; of the ranks before {rank} ended first, {before} earlier")
    })
}

/// The words for the source of a number.
pub(crate) const fn says_who(from: ExpectedFrom) -> &'static str {
    match from {
        ExpectedFrom::Api => "PUT …/expect",
        ExpectedFrom::Announced => "the pods' announcements",
        ExpectedFrom::Flag => "serve --nodes",
        ExpectedFrom::Join => "the first join",
        ExpectedFrom::RoleExchange => "rank 0's role exchange",
        ExpectedFrom::RoundComplete => "the rendezvous state",
        ExpectedFrom::GlooAddress => "the ranks' addresses",
        ExpectedFrom::EarlierRound => "an earlier round",
    }
}
