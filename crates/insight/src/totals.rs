//! How often things happened, for the metrics.

use std::time::Duration;

/// Upper bounds of [`Totals::join_seconds`] in seconds; the last count is for values above all of them.
pub const JOIN_BUCKETS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0];

/// Rounds by how they ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoundEnds {
    /// All their nodes came.
    pub complete: u64,
    /// They were closed before they were complete.
    pub timed_out: u64,
    /// They were closed after it: they failed or were stopped.
    pub closed: u64,
}

/// How often things happened, for the metrics.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Totals {
    /// Nodes that died in a round.
    pub node_deaths: u64,
    /// Rounds by how they ended.
    pub rounds: RoundEnds,
    /// How long complete rounds took from the first join, in seconds, since the start.
    pub join_seconds: [u64; JOIN_BUCKETS.len().saturating_add(1)],
    /// Their sum.
    pub join_seconds_sum: f64,
    /// Closed native runs that were started again.
    pub restarted: u64,
    /// Observations that were lost.
    pub lost: u64,
}

/// What something that was found counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tally {
    /// A round is complete; its nodes took so long to join.
    Complete(Duration),
    /// A round was closed before it was complete.
    TimedOut,
    /// A round was closed after that.
    Closed,
    /// The connections of so many nodes closed.
    Deaths(usize),
    /// A closed native run was started again.
    Restarted,
}

impl Totals {
    pub(crate) fn add_lost(&mut self, observations: u64) {
        add(&mut self.lost, observations);
    }

    pub(crate) fn count(&mut self, tally: Option<Tally>) {
        match tally {
            Some(Tally::Complete(took)) => {
                add(&mut self.rounds.complete, 1);
                let took = took.as_secs_f64();
                let bucket = JOIN_BUCKETS.iter().position(|&bound| took <= bound);
                add(&mut self.join_seconds[bucket.unwrap_or(JOIN_BUCKETS.len())], 1);
                self.join_seconds_sum += took;
            }
            Some(Tally::TimedOut) => add(&mut self.rounds.timed_out, 1),
            Some(Tally::Closed) => add(&mut self.rounds.closed, 1),
            Some(Tally::Deaths(nodes)) => add(&mut self.node_deaths, nodes as u64),
            Some(Tally::Restarted) => add(&mut self.restarted, 1),
            None => {}
        }
    }
}

fn add(total: &mut u64, n: u64) {
    *total = total.saturating_add(n);
}
