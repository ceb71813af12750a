//! The comparison: one entry for each run of a scenario, and one row for each number of its report with a
//! mark to reach.

use std::time::Duration;

use rallypoint_bench::{Report, Scenario, Section, Settings};

/// One scenario with its numbers.
pub(crate) struct Run {
    pub(crate) id: &'static str,
    pub(crate) scenario: Scenario,
    pub(crate) settings: fn(quick: bool) -> Settings,
    /// Whether the legacy server finishes in reasonable time: it checks every connection for each event.
    pub(crate) legacy: bool,
    /// Whether it runs only once, because it takes long.
    pub(crate) once: bool,
    pub(crate) rows: &'static [Row],
}

/// One line of the table.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: fn(&Report) -> Option<f64>,
    /// A second number that explains the first.
    pub(crate) also: (&'static str, fn(&Report) -> Option<f64>),
    pub(crate) must: Mark,
    pub(crate) aim: Mark,
}

/// The mark that a value has to reach. For all values, smaller is better.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mark {
    None,
    /// At most this much.
    AtMost(f64),
    /// This many times better than libuv.
    Times(f64),
    /// At most this many times the value of another row.
    Flat(&'static str, f64),
    /// At most this many times the value of the floor: what the kernel needs for the system calls alone.
    Floor(f64),
}

/// The marks of what is mostly the kernel's.
const NEAR_THE_FLOOR: (Mark, Mark) = (Mark::Floor(1.25), Mark::Floor(1.1));

impl Run {
    /// Whether a mark compares it with the floor.
    pub(crate) fn has_floor(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.must, Mark::Floor(_)))
    }
}

fn section_cpu(report: &Report, name: &str) -> Option<f64> {
    Some(report.section(name)?.server?.cpu_us_per_unit)
}

fn seconds(report: &Report, name: &str) -> Option<f64> {
    report.section(name).map(|section| section.seconds)
}

fn resident_per_unit(section: &Section) -> Option<f64> {
    let server = section.server?;
    let grown = server.resident_after.saturating_sub(server.resident_before);
    Some(grown as f64 / section.units as f64)
}

fn latency(
    report: &Report,
    section: &str,
    of: &str,
    value: fn(&rallypoint_bench::Latency) -> f64,
) -> Option<f64> {
    report.section(section)?.latencies_us.get(of).map(value)
}

fn steady(connections: usize, depth: usize, keys: Option<usize>, quick: bool) -> Settings {
    Settings {
        connections: Some(connections),
        depth: Some(depth),
        keys,
        duration: Some(Duration::from_millis(if quick { 300 } else { 2000 })),
        ..Settings::default()
    }
}

fn ranks(ranks: usize, quick: bool) -> Settings {
    Settings { ranks: Some(if quick { (ranks / 10).min(1000) } else { ranks }), ..Settings::default() }
}

fn cancel(parked: usize, quick: bool) -> Settings {
    Settings {
        duration: Some(Duration::from_millis(if quick { 300 } else { 1500 })),
        ranks: Some(if quick { parked / 10 } else { parked }),
        ..Settings::default()
    }
}

const fn mix_row(id: &'static str, title: &'static str, (must, aim): (Mark, Mark)) -> Row {
    Row {
        id,
        title,
        unit: "us CPU per request",
        value: |report| section_cpu(report, "requests"),
        also: ("requests/s", |report| report.section("requests").map(Section::rate)),
        must,
        aim,
    }
}

const fn init_row(id: &'static str, title: &'static str) -> Row {
    Row {
        id,
        title,
        unit: "us CPU per rank",
        value: |report| section_cpu(report, "init"),
        also: ("s until the last is ready", |report| seconds(report, "init")),
        must: NEAR_THE_FLOOR.0,
        aim: NEAR_THE_FLOOR.1,
    }
}

const fn cancel_row(id: &'static str, title: &'static str, must: Mark, aim: Mark) -> Row {
    Row {
        id,
        title,
        unit: "us CPU per cancelled wait",
        value: |report| section_cpu(report, "cancel"),
        also: ("us, median", |report| latency(report, "cancel", "cancel", |latency| latency.p50)),
        must,
        aim,
    }
}

/// All runs of the comparison.
pub(crate) const RUNS: &[Run] = &[
    Run {
        id: "mix-64",
        scenario: Scenario::Mix,
        settings: |quick| steady(64, 1, None, quick),
        legacy: true,
        once: false,
        rows: &[mix_row("mix-64", "one request in flight, 64 connections, mixed", NEAR_THE_FLOOR)],
    },
    Run {
        id: "mix-512",
        scenario: Scenario::Mix,
        settings: |quick| steady(512, 1, None, quick),
        legacy: true,
        once: false,
        rows: &[mix_row("mix-512", "one request in flight, 512 connections, mixed", NEAR_THE_FLOOR)],
    },
    Run {
        id: "mix-64x32",
        scenario: Scenario::Mix,
        settings: |quick| steady(64, 32, None, quick),
        legacy: true,
        once: false,
        rows: &[mix_row(
            "mix-64x32",
            "32 in flight, 64 connections, mixed",
            (Mark::Times(12.0), Mark::Times(16.0)),
        )],
    },
    Run {
        id: "mix-512x32",
        scenario: Scenario::Mix,
        settings: |quick| steady(512, 32, None, quick),
        legacy: true,
        once: false,
        rows: &[mix_row(
            "mix-512x32",
            "32 in flight, 512 connections, mixed",
            (Mark::Times(12.0), Mark::Times(16.0)),
        )],
    },
    Run {
        id: "hot-100",
        scenario: Scenario::Mix,
        settings: |quick| steady(100, 1, Some(1), quick),
        legacy: false,
        once: false,
        rows: &[mix_row("hot-100", "one hot key, 100 connections, mixed", NEAR_THE_FLOOR)],
    },
    Run {
        id: "hot-2000",
        scenario: Scenario::Mix,
        settings: |quick| steady(2000, 1, Some(1), quick),
        legacy: false,
        once: false,
        rows: &[mix_row("hot-2000", "one hot key, 2000 connections, mixed", NEAR_THE_FLOOR)],
    },
    Run {
        id: "init-1k",
        scenario: Scenario::Init,
        settings: |quick| ranks(1000, quick),
        legacy: true,
        once: false,
        rows: &[init_row("init-1k", "init storm of 1,000 ranks")],
    },
    Run {
        id: "init-10k",
        scenario: Scenario::Init,
        settings: |quick| ranks(10_000, quick),
        legacy: false,
        once: false,
        rows: &[init_row("init-10k", "init storm of 10,000 ranks")],
    },
    Run {
        id: "init-19k",
        scenario: Scenario::Init,
        settings: |quick| ranks(19_000, quick),
        legacy: false,
        once: false,
        rows: &[init_row("init-19k", "init storm of 19,000 ranks")],
    },
    Run {
        id: "cancel-0",
        scenario: Scenario::Cancel,
        settings: |quick| cancel(0, quick),
        legacy: true,
        once: false,
        rows: &[cancel_row("cancel-0", "cancel, nobody else waits", Mark::Times(1.0), Mark::None)],
    },
    Run {
        id: "cancel-1k",
        scenario: Scenario::Cancel,
        settings: |quick| cancel(1000, quick),
        legacy: true,
        once: false,
        rows: &[cancel_row(
            "cancel-1k",
            "cancel, 1,000 others wait",
            Mark::Flat("cancel-0", 1.2),
            Mark::Flat("cancel-0", 1.1),
        )],
    },
    Run {
        id: "cancel-10k",
        scenario: Scenario::Cancel,
        settings: |quick| cancel(10_000, quick),
        legacy: false,
        once: false,
        rows: &[cancel_row(
            "cancel-10k",
            "cancel, 10,000 others wait",
            Mark::Flat("cancel-0", 1.2),
            Mark::Flat("cancel-0", 1.1),
        )],
    },
    Run {
        id: "leave",
        scenario: Scenario::Leave,
        settings: |quick| ranks(10_000, quick),
        legacy: false,
        once: false,
        rows: &[Row {
            id: "leave-cpu",
            title: "10,000 parked waiters leave",
            unit: "us CPU per waiter",
            value: |report| section_cpu(report, "leave"),
            also: ("ms until the last has left", |report| {
                seconds(report, "leave").map(|seconds| seconds * 1e3)
            }),
            must: NEAR_THE_FLOOR.0,
            aim: NEAR_THE_FLOOR.1,
        }],
    },
    Run {
        id: "fanout",
        scenario: Scenario::Fanout,
        settings: |quick| Settings { rounds: Some(3), ..ranks(10_000, quick) },
        legacy: false,
        once: false,
        rows: &[Row {
            id: "fanout",
            title: "one SET releases 10,000 waiters",
            unit: "us CPU per waiter",
            value: |report| section_cpu(report, "release"),
            also: ("ms until the last is released", |report| {
                latency(report, "release", "release", |latency| latency.max / 1e3)
            }),
            must: Mark::Times(1.0),
            aim: Mark::Times(1.0 / 0.7),
        }],
    },
    Run {
        id: "exchange",
        scenario: Scenario::Exchange,
        settings: |quick| Settings { rounds: Some(if quick { 1 } else { 5 }), ..ranks(512, quick) },
        legacy: true,
        once: false,
        rows: &[Row {
            id: "exchange",
            title: "exchange of 512 ranks",
            unit: "ms CPU per round",
            value: |report| section_cpu(report, "exchange").map(|micros| micros / 1e3),
            also: ("ms a round", |report| {
                report.section("exchange").map(|section| section.seconds * 1e3 / section.rounds as f64)
            }),
            must: Mark::AtMost(60.0),
            aim: Mark::AtMost(30.0),
        }],
    },
    Run {
        id: "cas",
        scenario: Scenario::Cas,
        settings: |quick| Settings { duration: Some(Duration::from_mins(1)), ..ranks(1000, quick) },
        legacy: false,
        once: true,
        rows: &[
            Row {
                id: "cas",
                title: "compare-set storm of 1,000 torchrun nodes",
                unit: "us CPU per attempt",
                value: |report| section_cpu(report, "join"),
                also: ("nodes joined", |report| Some(report.fact("joined") as f64)),
                must: Mark::AtMost(40.0),
                aim: Mark::AtMost(20.0),
            },
            Row {
                id: "cas-time",
                title: "the same, until all have joined",
                unit: "s",
                // A run that did not finish in the given time has no time.
                value: |report| seconds(report, "join").filter(|_| report.complete),
                also: ("attempts", |report| report.section("join").map(|section| section.units as f64)),
                must: Mark::AtMost(60.0),
                aim: Mark::None,
            },
        ],
    },
    Run {
        id: "big-values",
        scenario: Scenario::Big,
        settings: |quick| Settings { rounds: Some(if quick { 2 } else { 50 }), ..Settings::default() },
        legacy: true,
        once: false,
        rows: &[
            Row {
                id: "big-set",
                title: "SET of 7.9 MB",
                unit: "ms CPU",
                value: |report| section_cpu(report, "set").map(|micros| micros / 1e3),
                also: ("ms, median", |report| latency(report, "set", "set", |latency| latency.p50 / 1e3)),
                must: Mark::AtMost(2.2),
                aim: Mark::Times(2.0),
            },
            Row {
                id: "big-get",
                title: "GET of 7.9 MB",
                unit: "ms CPU",
                value: |report| section_cpu(report, "get").map(|micros| micros / 1e3),
                also: ("ms, median", |report| latency(report, "get", "get", |latency| latency.p50 / 1e3)),
                must: Mark::AtMost(2.7),
                aim: Mark::Times(2.0),
            },
        ],
    },
    Run {
        id: "idle",
        scenario: Scenario::Rtt,
        settings: |quick| Settings {
            connections: Some(if quick { 1000 } else { 10_000 }),
            duration: Some(Duration::from_millis(100)),
            ..Settings::default()
        },
        legacy: false,
        once: false,
        rows: &[Row {
            id: "idle",
            title: "memory of an idle connection, of 10,000",
            unit: "KiB",
            value: |report| resident_per_unit(report.section("connect")?).map(|bytes| bytes / 1024.0),
            also: ("us CPU per connection", |report| section_cpu(report, "connect")),
            must: Mark::AtMost(1.5),
            aim: Mark::AtMost(1.0),
        }],
    },
    Run {
        id: "big-keys",
        scenario: Scenario::Big,
        settings: |quick| Settings {
            keys: Some(if quick { 8192 } else { 131_072 }),
            rounds: Some(1),
            // libuv parses all received bytes again with each new part.
            patience: Some(Duration::from_mins(2)),
            ..Settings::default()
        },
        legacy: true,
        once: true,
        rows: &[
            Row {
                id: "big-check",
                title: "CHECK of 131,072 keys",
                unit: "ms CPU",
                value: |report| section_cpu(report, "check").map(|micros| micros / 1e3),
                also: ("ms that another waits at most", |report| {
                    latency(report, "check", "bystander", |latency| latency.max / 1e3)
                }),
                must: Mark::Times(30.0),
                aim: Mark::None,
            },
            Row {
                id: "big-multi-set",
                title: "MULTI_SET of 131,072 keys",
                unit: "ms CPU",
                value: |report| section_cpu(report, "multi_set").map(|micros| micros / 1e3),
                also: ("ms that another waits at most", |report| {
                    latency(report, "multi_set", "bystander", |latency| latency.max / 1e3)
                }),
                must: Mark::Times(30.0),
                aim: Mark::None,
            },
        ],
    },
];
