//! How CPU time and memory grow with the number of ranks, waiters and keys.

use std::time::Duration;

use rallypoint_bench::{Report, Scenario, Section, Settings};
use serde::{Deserialize, Serialize};

use crate::servers::{Kind, Servers};

/// The quantity that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Many {
    /// Starting ranks (`init`), with their connections.
    Rank,
    /// Waiters: the memory of a parked wait, and the CPU time of parking and release (`fanout`).
    Waiter,
    /// Keys with values of 8 bytes: their memory, and the CPU time of setting them (`big`).
    Key,
}

impl Many {
    pub(crate) const ALL: [Self; 3] = [Self::Rank, Self::Waiter, Self::Key];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rank => "rank",
            Self::Waiter => "waiter",
            Self::Key => "key",
        }
    }

    const fn counts(self) -> [usize; 5] {
        match self {
            Self::Rank | Self::Waiter => [1000, 3000, 6000, 12_000, 19_000],
            Self::Key => [1000, 8000, 32_000, 65_536, 131_072],
        }
    }
}

/// One measured point.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) server: Kind,
    pub(crate) many: Many,
    pub(crate) count: usize,
    pub(crate) cpu_us_each: f64,
    pub(crate) bytes_each: f64,
    /// Wall-clock time of all of them.
    pub(crate) seconds: f64,
}

/// Measures all points, with the two servers in turn.
pub(crate) fn measure(servers: &mut Servers, quick: bool) -> Vec<Point> {
    let mut points = Vec::new();
    for many in Many::ALL {
        for count in many.counts().into_iter().map(|count| if quick { count / 10 } else { count }) {
            for server in [Kind::Libuv, Kind::Rallypoint] {
                let report = servers.measure(server, scenario(many), &settings(many, count));
                // A failed run leaves out its point; the others are still measured.
                let report = report.inspect_err(|error| eprintln!("compare: {error:#}")).ok();
                points.extend(report.and_then(|report| point(server, many, count, &report)));
                eprintln!("compare: growth, {count} x {} {}", many.name(), server.name());
            }
        }
    }
    points
}

const fn scenario(many: Many) -> Scenario {
    match many {
        Many::Rank => Scenario::Init,
        Many::Waiter => Scenario::Fanout,
        Many::Key => Scenario::Big,
    }
}

fn settings(many: Many, count: usize) -> Settings {
    match many {
        Many::Rank | Many::Waiter => Settings { ranks: Some(count), ..Settings::default() },
        Many::Key => Settings {
            keys: Some(count),
            rounds: Some(1),
            patience: Some(Duration::from_mins(2)),
            ..Settings::default()
        },
    }
}

fn point(server: Kind, many: Many, count: usize, report: &Report) -> Option<Point> {
    let (grows, works): (_, &[&str]) = match many {
        Many::Rank => ("init", &["init"]),
        Many::Waiter => ("park", &["park", "release"]),
        Many::Key => ("multi_set", &["multi_set"]),
    };
    let works: Vec<&Section> = works.iter().filter_map(|name| report.section(name)).collect();
    let grown = report.section(grows)?.server?;
    let each = |sum: f64| sum / count as f64;
    Some(Point {
        server,
        many,
        count,
        cpu_us_each: each(
            works.iter().filter_map(|work| work.server).map(|server| server.cpu_seconds).sum::<f64>(),
        ) * 1e6,
        bytes_each: each(grown.resident_after.saturating_sub(grown.resident_before) as f64),
        seconds: works.iter().map(|work| work.seconds).sum(),
    })
}
