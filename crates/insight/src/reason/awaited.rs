//! The process that others wait for: what was seen of it, who else is not there, and what to look at.

use serde::Serialize;

use super::Names;
use super::values::ONE_JOB;
use super::words::if_any;
use crate::presence::{Place, Presence, Sighting};
use rallypoint_protocol::ids::{Elapsed, counted};

pub(super) const OTHER_PORT: &str =
    "if the ranks in the other store are of this job, start all its processes with the same MASTER_PORT";
/// Some have come again, and others have not.
const TOGETHER: &str = "look why the first of them ended; what has come again cannot meet those that go on: restart all agents, or all ranks, of the \
                        job together";
pub(super) const ENDED: &str = "look at the log of each process that ended: a failed import, too little memory, a wrong interface, a RANK that is not below \
                     WORLD_SIZE? Where that was another, look whether the missing ones have started and reach this server";

/// What is known where a chain of waits ends with a process that does not write what it should.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Awaited {
    /// What was seen of it.
    #[serde(flatten)]
    pub seen: Sighting,
    /// The others of its kind that have not published either.
    pub missing: Names,
    /// Processes that connected and ended without telling who they are.
    pub ended: Names,
    /// Ranks of as large a job in other stores, where those are missing that are here.
    pub elsewhere: Names,
    /// Other runs that are not complete: with them this one would be.
    pub apart: Names,
    /// Others that go on with the attempt before.
    pub staying: Names,
    /// How many processes wait for it.
    pub waiters: usize,
    /// For how long the first of them does.
    pub waited: Elapsed,
}

/// How many ranks have come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Published {
    /// Ranks that have published their addresses.
    pub joined: u32,
    /// Processes that are connected.
    pub connected: u32,
    /// How many there are to be.
    pub world_size: Option<u32>,
}

impl Awaited {
    /// Who is waited for, in words: for what, for how long, what was seen of it, who else is not there, and who waits.
    pub(super) fn sentence(&self, who: &str, what: &str) -> String {
        let Self { seen, missing, ended, elsewhere, apart, staying, waiters, waited } = self;
        let others = [
            ("not published either", missing),
            ("in the attempt before", staying),
            ("connected and ended without telling who they are", ended),
            ("in another store", elsewhere),
            ("not complete either", apart),
        ];
        let others: String =
            others.into_iter().map(|(what, names)| if_any(&format!("; {what}: "), names)).collect();
        let waits = if *waiters == 1 { "waits" } else { "wait" };
        let waiters = counted(*waiters, "process", "processes");
        format!("for {waited} waiting for {who}: {seen}{others}; {waiters} {waits} for {what}")
    }

    /// What to look at.
    pub(super) fn remedy(&self, place: Place) -> &'static str {
        let Self { seen, ended, elsewhere, apart, staying, .. } = self;
        match &seen.presence {
            _ if !staying.is_empty() => TOGETHER,
            Presence::NeverSeen | Presence::NotBack { .. } if !apart.is_empty() => ONE_JOB,
            _ if !elsewhere.is_empty() => OTHER_PORT,
            Presence::NeverSeen | Presence::Unknown
                if seen.is_plain() && seen.behind.is_none() && !ended.is_empty() =>
            {
                ENDED
            }
            _ => seen.look_at(place),
        }
    }
}
