//! The metrics of a server as Prometheus text. Every name and help text is here. Nothing is counted here: a
//! scrape reads the counts of engines, listeners and insight. Except for the run id, no label comes from a
//! key or a peer.

pub mod openmetrics;
mod runs;

use prometheus::core::Collector;
use prometheus::proto::{self, LabelPair, MetricFamily, MetricType};
use prometheus::{Encoder, Gauge, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use crate::Server;
use crate::engine::{BUCKETS, Histogram, Meter, WAIT_BUCKET_FACTOR};
use crate::journal::etcd::{COMMIT_BUCKETS, Commits, Etcd, Role};
use rallypoint_protocol::Op;
use rallypoint_store::DropCause;

/// The content type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of `server` at this moment.
pub fn render(server: &Server) -> prometheus::Result<String> {
    let registry = Registry::new();
    let mut families = Vec::new();
    register_process(&registry)?;
    register_build_info(&registry)?;
    register_events(&registry, server)?;
    register_links(&registry, server)?;
    register_journal(&registry, server)?;
    let meter = register_stores(&registry, server)?;
    families.push(runs::register(&registry, server)?);
    families.extend(registry.gather());
    families.push(request_durations(&meter));
    families.push(wait_durations(&meter));
    families.extend(
        server.stores().journal().and_then(|journal| journal.etcd()).map(|etcd| commit_durations(etcd)),
    );
    families.sort_by(|a, b| a.name().cmp(b.name()));
    let mut text = Vec::new();
    TextEncoder::new().encode(&families, &mut text)?;
    String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
}

/// The metrics of a standby server at an etcd.
pub fn render_standby(etcd: &Etcd) -> prometheus::Result<String> {
    let registry = Registry::new();
    register_process(&registry)?;
    register_build_info(&registry)?;
    register_etcd(&registry, etcd)?;
    let mut families = registry.gather();
    families.push(commit_durations(etcd));
    families.sort_by(|a, b| a.name().cmp(b.name()));
    let mut text = Vec::new();
    TextEncoder::new().encode(&families, &mut text)?;
    String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
}

fn register_process(registry: &Registry) -> prometheus::Result<()> {
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
}

fn register_build_info(registry: &Registry) -> prometheus::Result<()> {
    let help = "Always 1; the labels say what runs.";
    let info = IntGaugeVec::new(Opts::new("rallypoint_build_info", help), &["version", "rustc"])?;
    info.with_label_values(&[env!("CARGO_PKG_VERSION"), crate::COMPILER]).set(1);
    registry.register(Box::new(info))
}

fn register_events(registry: &Registry, server: &Server) -> prometheus::Result<()> {
    let counts = server.cleanup_counts();
    let dropped = counter(
        registry,
        "rallypoint_keys_dropped_total",
        "Keys dropped by the rules for stale keys or by an operator.",
        &["cause"],
    )?;
    let resets =
        counter(registry, "rallypoint_store_resets_total", "Times a whole store was emptied.", &["cause"])?;
    for cause in DropCause::ALL {
        dropped.with_label_values(&[cause.name()]).inc_by(counts.keys_dropped[cause as usize]);
        if matches!(cause, DropCause::StoreIdle | DropCause::Operator) {
            resets.with_label_values(&[cause.name()]).inc_by(counts.store_resets[cause as usize]);
        }
    }
    let restarted = server.watch().with_insight(|insight, _| insight.totals().restarted);
    counter(registry, "rallypoint_runs_restarted_total", "Finished runs that were started again.", &[])?
        .with_label_values::<&str>(&[])
        .inc_by(counts.runs_restarted.saturating_add(restarted));
    Ok(())
}

fn register_links(registry: &Registry, server: &Server) -> prometheus::Result<()> {
    let links = server.links().view();
    let away = links.iter().filter_map(|link| link.away);
    let help = "Relays by the state of their link; the clients of one that is away wait for it.";
    let by_state = gauge(registry, "rallypoint_links", help, &["state"])?;
    by_state.with_label_values(&["connected"]).set(level(links.len().saturating_sub(away.clone().count())));
    by_state.with_label_values(&["away"]).set(level(away.clone().count()));
    let help = "Clients that come over links; rallypoint_connections counts them too.";
    let sessions = links.iter().map(|link| link.sessions).fold(0, usize::saturating_add);
    single(registry, IntGauge::new("rallypoint_link_sessions", help)?, |gauge| gauge.set(level(sessions)))?;
    let help = "How long the link that has been away longest has been away; 0 if none is.";
    let longest = away.max().unwrap_or_default().as_secs_f64();
    single(registry, Gauge::new("rallypoint_link_away_seconds", help)?, |gauge| gauge.set(longest))?;
    let help = "Times a relay came back to its clients' sessions after its connection broke.";
    counter(registry, "rallypoint_link_resumes_total", help, &[])?
        .with_label_values::<&str>(&[])
        .inc_by(server.links().resumes());
    Ok(())
}

/// Only if there is a journal.
fn register_journal(registry: &Registry, server: &Server) -> prometheus::Result<()> {
    let Some(journal) = server.stores().journal() else { return Ok(()) };
    let stats = journal.stats();
    let counts = [
        ("rallypoint_journal_commits_total", "Commits written to the journal.", stats.commits),
        ("rallypoint_journal_bytes_total", "Bytes written to the journal.", stats.bytes),
        (
            "rallypoint_journal_writes_total",
            "Writes to the journal; each is of one or more commits.",
            stats.writes,
        ),
        ("rallypoint_journal_syncs_total", "Syncs of the journal (--durability disk).", stats.syncs),
        ("rallypoint_journal_errors_total", "Writes and syncs of the journal that failed.", stats.errors),
    ];
    for (name, help, count) in counts {
        counter(registry, name, help, &[])?.with_label_values::<&str>(&[]).inc_by(count);
    }
    let help = "Segments of the journal on disk.";
    let segments = IntGauge::new("rallypoint_journal_segments", help)?;
    single(registry, segments, |gauge| gauge.set(i64::try_from(stats.segments).unwrap_or(i64::MAX)))?;
    let help = "For how long the journal has not been whole, because it could not be written; 0 if it is.";
    let broken = stats.broken_for.map_or(0.0, |lasts| lasts.as_secs_f64());
    single(registry, Gauge::new("rallypoint_journal_broken_seconds", help)?, |gauge| gauge.set(broken))?;
    journal.etcd().map_or(Ok(()), |etcd| register_etcd(registry, etcd))
}

/// Only if the journal is in an etcd.
fn register_etcd(registry: &Registry, etcd: &Etcd) -> prometheus::Result<()> {
    let standing = etcd.standing();
    let help = "1 where this server leads, 0 where it stands by (--journal etcd://).";
    let leads = i64::from(standing.role() == Role::Leader);
    single(registry, IntGauge::new("rallypoint_leader", help)?, |gauge| gauge.set(leads))?;
    let help = "Changes of the leader that this server has seen.";
    counter(registry, "rallypoint_leader_changes_total", help, &[])?
        .with_label_values::<&str>(&[])
        .inc_by(standing.changes());
    let help = "Requests to etcd that failed; each is made again at the next member.";
    counter(registry, "rallypoint_etcd_errors_total", help, &[])?
        .with_label_values::<&str>(&[])
        .inc_by(standing.errors());
    let help = "How long ago etcd last took something of this leader was sent; above 4.5 answers are held.";
    let since = if leads == 1 { standing.since_renewal().as_secs_f64() } else { 0.0 };
    single(registry, Gauge::new("rallypoint_etcd_renewed_seconds", help)?, |gauge| gauge.set(since))
}

fn commit_durations(etcd: &Etcd) -> MetricFamily {
    let Commits { counts, sum } = etcd.standing().commits();
    family(
        "rallypoint_etcd_commit_duration_seconds",
        "How long etcd took for a transaction with commits of the journal, attempts that failed included.",
        vec![buckets(COMMIT_BUCKETS.into_iter().zip(counts), counts.iter().sum(), sum, Vec::new())],
    )
}

/// Registers everything that the stores and listeners count; returns the sum of their meters.
fn register_stores(registry: &Registry, server: &Server) -> prometheus::Result<Meter> {
    let connections =
        gauge(registry, "rallypoint_connections", "Open connections to a store.", &["listener"])?;
    let connected = counter(
        registry,
        "rallypoint_connections_total",
        "Connections by what became of them; one that breaks the protocol after a good start counts twice.",
        &["listener", "outcome"],
    )?;
    let keys = gauge(registry, "rallypoint_keys", "Plain keys in a store.", &["store"])?;
    let help = "Bytes of names, values, queues and waits in a store.";
    let bytes = gauge(registry, "rallypoint_store_bytes", help, &["store"])?;
    let mut meter = Meter::default();
    let mut waiters = 0;
    let mut oldest = 0.0_f64;
    for listener in server.stores().listeners() {
        let port = listener.engine().port().to_string();
        let stats = listener.engine().stats();
        connections.with_label_values(&[&port]).set(level(stats.connections));
        keys.with_label_values(&[&port]).set(level(stats.keys));
        bytes.with_label_values(&[&port]).set(level(stats.bytes));
        for (outcome, count) in listener.outcomes() {
            connected.with_label_values(&[port.as_str(), outcome.name()]).inc_by(count);
        }
        waiters = usize::saturating_add(waiters, stats.waiters);
        oldest = oldest.max(listener.engine().oldest_wait().map_or(0.0, |wait| wait.as_secs_f64()));
        meter.merge(&listener.engine().meter());
    }
    let help = "Connections with an outstanding WAIT or BARRIER.";
    single(registry, IntGauge::new("rallypoint_waiters", help)?, |gauge| gauge.set(level(waiters)))?;
    let help = "How long the oldest outstanding WAIT or BARRIER has lasted; 0 if there is none.";
    single(registry, Gauge::new("rallypoint_oldest_wait_seconds", help)?, |gauge| gauge.set(oldest))?;
    let help = "Bytes of requests received.";
    counter(registry, "rallypoint_received_bytes_total", help, &[])?
        .with_label_values::<&str>(&[])
        .inc_by(meter.received_bytes);
    counter(registry, "rallypoint_sent_bytes_total", "Bytes of replies.", &[])?
        .with_label_values::<&str>(&[])
        .inc_by(meter.sent_bytes);
    let help = "Bytes that all stores, large buffers, admin connections and runs may hold (--max-memory).";
    let limit = level(server.stores().budget().limit());
    single(registry, IntGauge::new("rallypoint_memory_limit_bytes", help)?, |gauge| gauge.set(limit))?;
    let help = "Bytes that all stores, large buffers, admin connections and runs hold.";
    let used = level(server.stores().budget().used());
    single(registry, IntGauge::new("rallypoint_memory_used_bytes", help)?, |gauge| gauge.set(used))?;
    let requests = counter(registry, "rallypoint_requests_total", "Requests applied.", &["op"])?;
    for op in Op::ALL {
        requests.with_label_values(&[op.name()]).inc_by(meter.requests[op as usize].count());
    }
    Ok(meter)
}

/// A count in the type of a gauge.
fn level(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn single<M: Collector + 'static>(
    registry: &Registry,
    metric: M,
    set: impl FnOnce(&M),
) -> prometheus::Result<()> {
    set(&metric);
    registry.register(Box::new(metric))
}

fn gauge(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
    let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

fn counter(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn request_durations(meter: &Meter) -> MetricFamily {
    let metrics = Op::ALL.iter().map(|&op| {
        let mut label = LabelPair::default();
        label.set_name("op".into());
        label.set_value(op.name().into());
        histogram(&meter.requests[op as usize], 1.0, vec![label])
    });
    family(
        "rallypoint_request_duration_seconds",
        "Server time of a request from its last byte read to its reply made; waits excluded.",
        metrics.collect(),
    )
}

fn wait_durations(meter: &Meter) -> MetricFamily {
    family(
        "rallypoint_wait_duration_seconds",
        "How long outstanding WAITs and BARRIERs lasted until they were satisfied or cancelled.",
        vec![histogram(&meter.waits.0, f64::from(WAIT_BUCKET_FACTOR), Vec::new())],
    )
}

fn family(name: &str, help: &str, metrics: Vec<proto::Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.into());
    family.set_help(help.into());
    family.set_field_type(MetricType::HISTOGRAM);
    family.set_metric(metrics);
    family
}

fn histogram(counted: &Histogram, factor: f64, labels: Vec<LabelPair>) -> proto::Metric {
    let bounds = BUCKETS.iter().map(|bound| bound * factor);
    buckets(bounds.zip(counted.counts), counted.count(), counted.sum * factor, labels)
}

/// Makes a histogram from its buckets, whose counts are not cumulative.
fn buckets(
    counted: impl Iterator<Item = (f64, u64)>,
    count: u64,
    sum: f64,
    labels: Vec<LabelPair>,
) -> proto::Metric {
    let mut total = 0;
    let buckets = counted.map(|(bound, count)| {
        total = u64::saturating_add(total, count);
        let mut bucket = proto::Bucket::default();
        bucket.set_cumulative_count(total);
        bucket.set_upper_bound(bound);
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(count);
    histogram.set_sample_sum(sum);
    let mut metric = proto::Metric::from_label(labels);
    metric.set_histogram(histogram);
    metric
}
