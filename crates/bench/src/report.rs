//! The result of a load test, as data and as text. JSON has the same fields.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::cast_precision_loss,
    reason = "numbers of the load test itself"
)]

use std::collections::BTreeMap;
use std::fmt;

use super::Plan;
use super::tally::Latencies;

/// The result of a load test.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// The plan, with the defaults filled in.
    pub plan: Plan,
    /// Whether every part of the plan was carried out.
    pub complete: bool,
    /// One section for each measurement, in order.
    pub sections: Vec<Section>,
    /// Every request, by operation, including hellos, preparation and cleanup.
    pub requests: BTreeMap<&'static str, u64>,
    /// Counts of the scenario, such as `waiters` and `released`.
    pub facts: BTreeMap<&'static str, u64>,
    /// The highest memory use of the server in bytes, if it was watched.
    pub server_peak_resident: Option<u64>,
    /// Reasons to doubt a number.
    pub warnings: Vec<String>,
}

/// One measurement.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// The name of a unit.
    pub unit: &'static str,
    /// The number of units.
    pub units: u64,
    /// The number of rounds.
    pub rounds: u64,
    /// Wall-clock time of all rounds.
    pub seconds: f64,
    /// Requests in this section, by operation.
    pub requests: BTreeMap<&'static str, u64>,
    /// Latencies of single requests, in microseconds.
    pub latencies_us: BTreeMap<&'static str, Latency>,
    /// The resources that the server used, if it was watched.
    pub server: Option<ServerUse>,
    /// The resources that all relays used, if they were watched.
    pub relays: Option<RelayUse>,
    /// The resources that the load generator used.
    pub generator: GeneratorUse,
}

/// The resources that the server's process used during a section.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct ServerUse {
    /// CPU time of all threads.
    pub cpu_seconds: f64,
    /// The kernel's part of it; the system counts it in steps of 10 ms.
    pub kernel_seconds: f64,
    /// CPU time for each unit of the section, in microseconds.
    pub cpu_us_per_unit: f64,
    /// Resident memory before its first round (bytes).
    pub resident_before: u64,
    /// Resident memory after its last round (bytes).
    pub resident_after: u64,
}

/// The resources that all relays used during a section.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct RelayUse {
    /// CPU time of all threads.
    pub cpu_seconds: f64,
    /// The kernel's part of it; for each relay the system counts it in steps of 10 ms.
    pub kernel_seconds: f64,
    /// CPU time for each unit of the section, in microseconds.
    pub cpu_us_per_unit: f64,
}

/// The resources that the load generator used during a section.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct GeneratorUse {
    /// CPU time of all threads.
    pub cpu_seconds: f64,
    /// The kernel's part of it; the system counts it in steps of 10 ms.
    pub kernel_seconds: f64,
    /// The share of time in which its threads were on a core, 0 to 1.
    pub busy: f64,
    /// The share of time in which its threads waited for a core, 0 to 1.
    pub queued: f64,
}

/// A distribution, in microseconds.
#[derive(Debug, Clone, Copy, serde::Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub count: u64,
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Latency {
    /// Sums up the latencies that were measured.
    pub fn of(nanos: &Latencies) -> Self {
        let at = |quantile| nanos.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            count: nanos.len(),
            mean: nanos.mean() / 1e3,
            min: nanos.min() as f64 / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: nanos.max() as f64 / 1e3,
        }
    }
}

impl Report {
    /// The section with this name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// A count of the scenario; 0 if the scenario does not have it.
    pub fn fact(&self, name: &str) -> u64 {
        self.facts.get(name).copied().unwrap_or_default()
    }
}

impl Section {
    /// Units a second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.units as f64 / self.seconds } else { 0.0 }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        write!(f, "{} on {}:", plan.scenario.name(), plan.target)?;
        let numbers = [
            ("ranks", plan.ranks),
            ("connections", plan.connections),
            ("on each link", plan.per_link().unwrap_or_default()),
            ("in flight on each", if plan.depth > 1 { plan.depth } else { 0 }),
            ("keys", plan.keys),
        ];
        for (name, number) in numbers.into_iter().filter(|(_, number)| *number > 0) {
            write!(f, " {number} {name},")?;
        }
        if let Some(rate) = plan.rate {
            write!(f, " {rate} requests/s,")?;
        }
        if !plan.think.is_zero() {
            write!(f, " {} of thinking per participant,", Micros(plan.think.as_secs_f64() * 1e6))?;
        }
        writeln!(f, " {} threads", plan.threads)?;
        for section in &self.sections {
            write!(f, "\n{section}")?;
        }
        if !self.facts.is_empty() {
            let facts: Vec<_> = self.facts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(f, "\n{}", facts.join(", "))?;
        }
        if let Some(peak) = self.server_peak_resident {
            writeln!(f, "\nserver memory at most {}", Bytes(peak))?;
        }
        if !self.complete {
            writeln!(f, "\nnot everything happened in the given time")?;
        }
        for warning in &self.warnings {
            writeln!(f, "\nnote: {warning}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = if self.rounds > 1 { format!(" in {} rounds", self.rounds) } else { String::new() };
        let rate = self.rate();
        let precision = usize::from(rate < 100.0);
        writeln!(
            f,
            "{}: {} x {}{rounds} in {}, {rate:.precision$}/s",
            self.name,
            self.units,
            self.unit,
            Micros(self.seconds * 1e6)
        )?;
        if let Some(server) = &self.server {
            writeln!(
                f,
                "  server CPU {} per {}, {} in all, {} of it in the kernel; memory {} -> {}",
                Micros(server.cpu_us_per_unit),
                self.unit,
                Micros(server.cpu_seconds * 1e6),
                Micros(server.kernel_seconds * 1e6),
                Bytes(server.resident_before),
                Bytes(server.resident_after)
            )?;
        }
        if let Some(relays) = &self.relays {
            writeln!(
                f,
                "  relays CPU {} per {}, {} in all, {} of it in the kernel",
                Micros(relays.cpu_us_per_unit),
                self.unit,
                Micros(relays.cpu_seconds * 1e6),
                Micros(relays.kernel_seconds * 1e6)
            )?;
        }
        writeln!(
            f,
            "  load generator CPU {}, {} of it in the kernel, its threads busy {:.0} % of the time",
            Micros(self.generator.cpu_seconds * 1e6),
            Micros(self.generator.kernel_seconds * 1e6),
            self.generator.busy * 100.0
        )?;
        if !self.latencies_us.is_empty() {
            writeln!(
                f,
                "  {:<14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
                "latency", "count", "p50", "p90", "p99", "p99.9", "max"
            )?;
        }
        for (name, latency) in &self.latencies_us {
            let [p50, p90, p99, p999, max] =
                [latency.p50, latency.p90, latency.p99, latency.p999, latency.max]
                    .map(|t| Micros(t).to_string());
            writeln!(f, "  {name:<14} {:>9} {p50:>9} {p90:>9} {p99:>9} {p999:>9} {max:>9}", latency.count)?;
        }
        Ok(())
    }
}

/// A time with three digits.
struct Micros(f64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match self.0 {
            micros if micros < 1e3 => (micros, "us"),
            micros if micros < 1e6 => (micros / 1e3, "ms"),
            micros => (micros / 1e6, "s"),
        };
        let precision = usize::from(number < 100.0) + usize::from(number < 10.0);
        write!(f, "{number:.precision$} {unit}")
    }
}

/// A size with three digits.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{bytes} B"),
            1024..1_048_576 => write!(f, "{:.1} KiB", bytes / 1024.0),
            1_048_576..1_073_741_824 => write!(f, "{:.1} MiB", bytes / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", bytes / 1_073_741_824.0),
        }
    }
}
