//! The metrics of the jobs, read from insight. `run_id` and `barrier` come from run ids. `--max-runs` bounds
//! their number, and the series of a run disappear with it.

use prometheus::proto::{self, MetricFamily};
use prometheus::{IntGaugeVec, Registry};

use super::{counter, family, gauge};
use crate::Server;
use rallypoint_api::{RunKind, RunState};
use rallypoint_insight::{JOIN_BUCKETS, RoundEnds, RunFigures, Totals};

/// The longest label, in characters.
const LABEL: usize = 128;

struct Series {
    kind: IntGaugeVec,
    expected: IntGaugeVec,
    joined: IntGaugeVec,
    missing: IntGaugeVec,
    waiting: IntGaugeVec,
    round: IntGaugeVec,
    complete: IntGaugeVec,
    ranks_expected: IntGaugeVec,
    ranks_joined: IntGaugeVec,
    explanations: IntGaugeVec,
    barrier_expected: IntGaugeVec,
    barrier_arrived: IntGaugeVec,
}

impl Series {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let of_run =
            |name: &str, help: &str| gauge(registry, &format!("rallypoint_{name}"), help, &["run_id"]);
        let of_barrier =
            |name: &str, help: &str| gauge(registry, &format!("rallypoint_{name}"), help, &["barrier"]);
        let help = "Always 1; how the run's processes find each other: c10d, static, env, native.";
        Ok(Self {
            kind: gauge(registry, "rallypoint_rendezvous_kind", help, &["run_id", "kind"])?,
            expected: of_run(
                "rendezvous_expected_nodes",
                "Nodes the run needs; absent while nobody has said so.",
            )?,
            joined: of_run("rendezvous_joined_nodes", "Nodes in the run's round; 0 when the run is over.")?,
            missing: of_run("rendezvous_missing_nodes", "Nodes that are needed and have not joined.")?,
            waiting: of_run("rendezvous_waiting_nodes", "Nodes in the wait list or beyond the maximum.")?,
            round: of_run("rendezvous_round", "The run's round, from 0.")?,
            complete: of_run("rendezvous_complete", "1 if the run's round has all its nodes.")?,
            ranks_expected: of_run("ranks_expected", "The world size, where it is known.")?,
            ranks_joined: of_run(
                "ranks_joined",
                "Worker ranks that have published their address and are there.",
            )?,
            explanations: gauge(
                registry,
                "rallypoint_run_explanations",
                "Warnings and errors that the API shows of the run, by the codes of docs/explanations.md.",
                &["run_id", "code", "severity"],
            )?,
            barrier_expected: of_barrier("barrier_expected", "Arrivals that a barrier needs.")?,
            barrier_arrived: of_barrier("barrier_arrived", "Arrivals at a barrier.")?,
        })
    }

    fn set(&self, figures: &RunFigures) {
        let run = &figures.summary;
        let label: String = figures.label.chars().take(LABEL).collect();
        let set = |vec: &IntGaugeVec, value: u32| vec.with_label_values(&[&label]).set(i64::from(value));
        self.kind.with_label_values(&[label.as_str(), run.kind.name()]).set(1);
        let is_complete =
            run.completed_at.is_some() && !matches!(run.state, RunState::Closed | RunState::Gone);
        set(&self.complete, u32::from(is_complete));
        // The API remembers the members of the last round. The metrics count only present members; in a
        // closed run some may go on.
        let has_members = !run.state.is_over() || run.state == RunState::Closed;
        if run.kind != RunKind::Env {
            self.round.with_label_values(&[&label]).set(i64::try_from(run.round).unwrap_or(i64::MAX));
            set(&self.joined, if has_members { run.nodes.joined } else { 0 });
            set(&self.waiting, run.nodes.waiting.saturating_add(run.nodes.redundant));
            if let Some(expected) = run.nodes.expected {
                set(&self.expected, expected.min);
            }
            // Some nodes may be known to be missing before anybody has said how many there should be.
            if let Some(missing) = run.nodes.missing {
                set(&self.missing, missing);
            }
        }
        if let Some(ranks) = &run.ranks {
            set(&self.ranks_joined, if has_members { ranks.joined } else { 0 });
            if let Some(expected) = ranks.expected {
                set(&self.ranks_expected, expected);
            }
        }
        for ((code, severity), &shown) in &figures.complaints {
            let labels = [label.as_str(), code, severity.name()];
            self.explanations.with_label_values(&labels).set(i64::from(shown));
        }
        if let Some(exit) = &run.exit
            && !run.state.is_over()
        {
            self.set_barrier(&format!("{label}/exit"), exit.arrived, exit.expected);
        }
    }

    fn set_barrier(&self, name: &str, arrived: u32, expected: Option<u32>) {
        self.barrier_arrived.with_label_values(&[name]).set(i64::from(arrived));
        if let Some(expected) = expected {
            self.barrier_expected.with_label_values(&[name]).set(i64::from(expected));
        }
    }
}

/// Registers insight's metrics. Returns the family that the registry cannot make.
pub(super) fn register(registry: &Registry, server: &Server) -> prometheus::Result<MetricFamily> {
    let (figures, totals) = server
        .watch()
        .with_insight(|insight, now| (insight.documents(now).figures(), insight.totals().clone()));
    let series = Series::new(registry)?;
    for figures in &figures {
        series.set(figures);
    }
    for (name, arrived, size) in server.rounds().barriers() {
        let label: String = name.chars().take(LABEL).collect();
        series.set_barrier(&label, arrived, Some(size));
    }
    let help = "Nodes that died in a round: their connection closed and they had not finished, or they were \
                not heard from.";
    counter(registry, "rallypoint_node_deaths_total", help, &[])?
        .with_label_values::<&str>(&[])
        .inc_by(totals.node_deaths);
    let help =
        "Rounds by how they ended: complete, timeout (closed before complete), closed (failed or stopped).";
    let rounds = counter(registry, "rallypoint_rendezvous_rounds_total", help, &["outcome"])?;
    let RoundEnds { complete, timed_out, closed } = totals.rounds;
    for (outcome, count) in [("complete", complete), ("timeout", timed_out), ("closed", closed)] {
        rounds.with_label_values(&[outcome]).inc_by(count);
    }
    let help =
        "Observations of jobs that were lost because too many came at once; what is shown may be incomplete.";
    counter(registry, "rallypoint_observations_lost_total", help, &[])?
        .with_label_values::<&str>(&[])
        .inc_by(totals.lost);
    Ok(join_durations(&totals))
}

fn join_durations(totals: &Totals) -> MetricFamily {
    let mut total = 0;
    let buckets = JOIN_BUCKETS.iter().zip(&totals.join_seconds).map(|(bound, count)| {
        total = u64::saturating_add(total, *count);
        let mut bucket = proto::Bucket::default();
        bucket.set_cumulative_count(total);
        bucket.set_upper_bound(*bound);
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(totals.join_seconds.iter().sum());
    histogram.set_sample_sum(totals.join_seconds_sum);
    let mut metric = proto::Metric::default();
    metric.set_histogram(histogram);
    let help = "From the first join of a round until it was complete.";
    family("rallypoint_rendezvous_join_duration_seconds", help, vec![metric])
}
