//! A running load test: the workers, the watched processes, and the measurements so far.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "numbers of the load test itself"
)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::bystander::Bystander;
use super::frame::Frame;
use super::tally::Counts;
use super::workers::{self, WorkerContext, Workers};
use super::{
    Dialer, Error, GeneratorUse, Latency, Link, Plan, RelayUse, Report, Scenario, Section, ServerUse,
};
use rallypoint_process::{CpuTime, Process};

/// A thread counts as fully busy from this share of the time on.
const BUSY: f64 = 0.9;

/// The progress of a load test, for a display.
#[derive(Debug, Clone, Copy)]
pub struct Tick {
    /// The current section.
    pub section: &'static str,
    /// Measured units so far, in all sections.
    pub done: u64,
    /// Time since this round of the section began.
    pub elapsed: Duration,
    /// How long the section lasts, if that is known.
    pub lasts: Option<Duration>,
}

/// A prefix that no other load test and no job has. It is short, like the names of jobs.
fn unique_prefix() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("/bench-{:08x}", std::process::id().rotate_left(16) ^ now.as_nanos() as u32)
}

/// The number of units in a round of a section.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Units {
    /// This many.
    Count(usize),
    /// As many as requests were sent.
    Requests,
    /// As many as latencies with this name were recorded.
    Latencies(&'static str),
}

#[derive(Debug)]
struct Measured {
    name: &'static str,
    unit: &'static str,
    units: u64,
    rounds: u64,
    wall: Duration,
    counts: Counts,
    server: Option<ServerUse>,
    server_cpu: CpuTime,
    relays: Option<CpuTime>,
    generator: CpuTime,
}

#[derive(Debug, Default)]
struct Peak {
    /// The system's high-water mark before the test; it cannot be reset.
    mark: u64,
    seen: u64,
}

impl Peak {
    fn of(server: Option<&Process>) -> Self {
        let memory = server.and_then(|server| server.memory().ok()).unwrap_or_default();
        Self { mark: memory.peak, seen: memory.resident }
    }

    fn look(&mut self, server: Option<&Process>) {
        if let Some(memory) = server.and_then(|server| server.memory().ok()) {
            let newest = if memory.peak > self.mark { memory.peak } else { memory.resident };
            self.seen = self.seen.max(newest);
        }
    }
}

/// A running load test.
pub(crate) struct Session<'a> {
    pub(super) plan: &'a Plan,
    workers: Workers,
    own: Process,
    server: Option<Process>,
    relays: Vec<Process>,
    /// The prefix of every key that is not a job's.
    pub(super) prefix: String,
    measured: Vec<Measured>,
    totals: Counts,
    peak: Peak,
    warnings: Vec<String>,
    complete: bool,
    watch: &'a mut dyn FnMut(Tick),
}

impl<'a> Session<'a> {
    /// Starts the workers.
    pub(crate) fn start(
        plan: &'a Plan,
        dialer: Dialer,
        watch: &'a mut dyn FnMut(Tick),
    ) -> Result<Self, Error> {
        let find = |pid| Process::find(pid).map_err(|source| Error::Process { pid, source });
        let server = plan.pid.map(find).transpose()?;
        let relays = plan.relay_pids.iter().map(|&pid| find(pid)).collect::<Result<_, _>>()?;
        Ok(Self {
            plan,
            workers: Workers::start(plan.threads, dialer)?,
            own: Process::own().map_err(Error::System)?,
            peak: Peak::of(server.as_ref()),
            server,
            relays,
            prefix: unique_prefix(),
            measured: Vec::new(),
            totals: Counts::default(),
            warnings: Vec::new(),
            complete: true,
            watch,
        })
    }
}

impl Session<'_> {
    /// Opens connections `0..count`, measured as the section `connect`.
    pub(crate) fn connect(&mut self, count: usize) -> Result<(), Error> {
        self.measure("connect", "connection", Units::Count(count), move |context, links| {
            workers::open(context, links, 0..count)
        })?;
        Ok(())
    }

    /// Does `work` on every connection of `range`, as one round of the section `name`.
    pub(crate) fn measure_each<W, F>(
        &mut self,
        name: &'static str,
        unit: &'static str,
        units: Units,
        range: Range<usize>,
        work: W,
    ) -> Result<Duration, Error>
    where
        W: Fn(Link) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Link, Error>> + Send + 'static,
    {
        self.measure(name, unit, units, move |_, links| workers::each_of(links, range.clone(), work.clone()))
    }

    /// Does `work` on every thread, as one round of the section `name`. Returns the time that it took.
    pub(crate) fn measure<W, F>(
        &mut self,
        name: &'static str,
        unit: &'static str,
        units: Units,
        work: W,
    ) -> Result<Duration, Error>
    where
        W: Fn(WorkerContext, Vec<Link>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Vec<Link>, Error>>,
    {
        let resident_before = self.resident();
        let (server_before, relays_before) = self.watched_cpu()?;
        let own_before = self.own.cpu().map_err(Error::System)?;
        let started = Instant::now();
        self.run(name, started, work)?;
        let wall = started.elapsed();
        let own_after = self.own.cpu().map_err(Error::System)?;
        let (server_after, relays_after) = self.watched_cpu()?;
        self.peak.look(self.server.as_ref());
        let resident_after = self.resident();

        let counts = self.workers.counts();
        let units = match units {
            Units::Count(count) => count as u64,
            Units::Requests => counts.total(),
            Units::Latencies(of) => {
                counts.latencies().filter(|(name, _)| *name == of).map(|(_, found)| found.len()).sum()
            }
        };
        let at = self.section(name, unit, resident_before);
        let section = &mut self.measured[at];
        section.units += units;
        section.rounds += 1;
        section.wall += wall;
        section.generator = section.generator.and(own_after.since(own_before));
        section.server_cpu = section.server_cpu.and(server_after.since(server_before));
        if let Some(relays) = &mut section.relays {
            *relays = relays.and(relays_after.since(relays_before));
        }
        if let Some(server) = &mut section.server {
            server.resident_after = resident_after;
        }
        section.counts.merge(counts);
        Ok(wall)
    }

    /// Does `work` on every connection of `range`, to prepare or clean up: its requests count in the total
    /// only.
    pub(crate) fn prepare_each<W, F>(&mut self, range: Range<usize>, work: W) -> Result<(), Error>
    where
        W: Fn(Link) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Link, Error>> + Send + 'static,
    {
        let work = move |_, links| workers::each_of(links, range.clone(), work.clone());
        self.run("prepare", Instant::now(), work)?;
        self.totals.merge(self.workers.counts());
        Ok(())
    }

    /// The cheapest request that the server answers.
    pub(crate) fn question(&self) -> Arc<Frame> {
        Arc::clone(self.workers.dialer().question())
    }

    /// Starts a bystander, which shows how long other clients make it wait.
    pub(crate) fn bystander(&self) -> Result<Bystander, Error> {
        Bystander::start(self.plan.target)
    }

    /// Ends the bystander and adds its counts to the section `name`.
    pub(crate) fn dismiss(&mut self, bystander: Bystander, name: &'static str) -> Result<(), Error> {
        let counts = bystander.stop()?;
        match self.measured.iter_mut().find(|section| section.name == name) {
            Some(section) => section.counts.merge(counts),
            None => self.totals.merge(counts),
        }
        Ok(())
    }

    /// The scenario's count with this name so far.
    pub(crate) fn fact(&self, name: &str) -> u64 {
        let counts = self.measured.iter().map(|section| &section.counts).chain([&self.totals]);
        counts.filter_map(|counts| counts.facts().get(name)).sum()
    }

    /// Records that a part of the plan was not carried out.
    pub(crate) fn incomplete(&mut self) {
        self.complete = false;
    }

    fn run<W, F>(&mut self, name: &'static str, started: Instant, work: W) -> Result<(), Error>
    where
        W: Fn(WorkerContext, Vec<Link>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Vec<Link>, Error>>,
    {
        let Self { plan, workers, server, peak, watch, .. } = self;
        let lasts = Some(plan.duration).filter(|lasts| {
            !lasts.is_zero()
                && !matches!(plan.scenario, Scenario::Cas | Scenario::Join)
                && name != "connect"
                && name != "prepare"
        });
        let mut beat = |workers: &Workers| {
            peak.look(server.as_ref());
            watch(Tick { section: name, done: workers.done(), elapsed: started.elapsed(), lasts });
        };
        workers.run(plan.patience + plan.duration, &mut beat, work)
    }

    fn section(&mut self, name: &'static str, unit: &'static str, resident_before: u64) -> usize {
        self.measured.iter().position(|section| section.name == name).unwrap_or_else(|| {
            let server = self.server.as_ref().map(|_| ServerUse { resident_before, ..ServerUse::default() });
            self.measured.push(Measured {
                name,
                unit,
                units: 0,
                rounds: 0,
                wall: Duration::ZERO,
                counts: Counts::default(),
                server,
                server_cpu: CpuTime::default(),
                relays: (!self.relays.is_empty()).then(CpuTime::default),
                generator: CpuTime::default(),
            });
            self.measured.len() - 1
        })
    }

    fn resident(&self) -> u64 {
        let memory = self.server.as_ref().and_then(|server| server.memory().ok());
        memory.unwrap_or_default().resident
    }

    /// CPU time of the server and of the relays. Waits until they are idle, but not for long.
    fn watched_cpu(&self) -> Result<(CpuTime, CpuTime), Error> {
        const PAUSE: Duration = Duration::from_millis(2);
        /// A bystander's questions need less CPU time than this.
        const IDLE: Duration = Duration::from_micros(100);
        let of = |process: &Process, pid| process.cpu().map_err(|source| Error::Process { pid, source });
        let read = || -> Result<_, Error> {
            let mut relays = CpuTime::default();
            for (process, &pid) in self.relays.iter().zip(&self.plan.relay_pids) {
                relays = relays.and(of(process, pid)?);
            }
            let server = self.server.iter().zip(self.plan.pid).map(|(process, pid)| of(process, pid)).next();
            Ok((server.transpose()?.unwrap_or_default(), relays))
        };
        let mut last = read()?;
        for _ in 0..250 {
            if self.server.is_none() && self.relays.is_empty() {
                break;
            }
            std::thread::sleep(PAUSE);
            let now = read()?;
            if now.0.since(last.0).ran + now.1.since(last.1).ran < IDLE {
                break;
            }
            last = now;
        }
        read()
    }

    pub(crate) fn report(mut self) -> Report {
        let threads = self.workers.threads();
        self.totals.merge(self.workers.counts());
        let mut sections = Vec::new();
        for measured in std::mem::take(&mut self.measured) {
            let section = measured.to_section(threads);
            self.warnings.extend(bottleneck(&section));
            sections.push(section);
            self.totals.merge(measured.counts);
        }
        self.warnings.extend(lateness(self.totals.facts()));
        Report {
            version: env!("CARGO_PKG_VERSION"),
            plan: self.plan.clone(),
            complete: self.complete,
            sections,
            requests: self.totals.requests(),
            facts: self.totals.facts().clone(),
            server_peak_resident: self.server.as_ref().map(|_| self.peak.seen),
            warnings: self.warnings,
        }
    }
}

impl Measured {
    fn to_section(&self, threads: usize) -> Section {
        let seconds = self.wall.as_secs_f64();
        let share = |time: Duration| time.as_secs_f64() / (seconds * threads as f64).max(1e-9);
        Section {
            name: self.name,
            unit: self.unit,
            units: self.units,
            rounds: self.rounds,
            seconds,
            requests: self.counts.requests(),
            latencies_us: self.counts.latencies().map(|(name, found)| (name, Latency::of(found))).collect(),
            server: self.server.map(|server| ServerUse {
                cpu_seconds: self.server_cpu.ran.as_secs_f64(),
                kernel_seconds: self.server_cpu.in_kernel.as_secs_f64(),
                cpu_us_per_unit: self.server_cpu.ran.as_secs_f64() * 1e6 / self.units.max(1) as f64,
                ..server
            }),
            relays: self.relays.map(|relays| RelayUse {
                cpu_seconds: relays.ran.as_secs_f64(),
                kernel_seconds: relays.in_kernel.as_secs_f64(),
                cpu_us_per_unit: relays.ran.as_secs_f64() * 1e6 / self.units.max(1) as f64,
            }),
            generator: GeneratorUse {
                cpu_seconds: self.generator.ran.as_secs_f64(),
                kernel_seconds: self.generator.in_kernel.as_secs_f64(),
                busy: share(self.generator.ran),
                queued: share(self.generator.queued),
            },
        }
    }
}

/// Warns if the generator, and not the server, set the pace.
fn bottleneck(section: &Section) -> Option<String> {
    /// Shorter sections prove little: the CPU clock of a running thread moves in steps.
    const LEAST_SECONDS: f64 = 0.02;
    let GeneratorUse { busy, queued, .. } = section.generator;
    if section.seconds < LEAST_SECONDS || busy + queued < BUSY {
        return None;
    }
    let (name, unit) = (section.name, section.unit);
    let (why, what_helps) = if queued > busy {
        let waited = format!(
            "waited {:.0} % of the time for a core, as the machine is busy with others",
            queued * 100.0
        );
        (waited, "A machine with free cores helps")
    } else {
        (format!("were busy {:.0} % of the time", busy * 100.0), "More --threads or another machine help")
    };
    Some(format!(
        "the load generator was itself the bottleneck of `{name}`: its threads {why}. The server may be \
         faster than this wall-clock time; its CPU time per {unit} holds. {what_helps}"
    ))
}

fn lateness(facts: &BTreeMap<&'static str, u64>) -> Option<String> {
    let count = |name| facts.get(name).copied().unwrap_or_default();
    let (late, due) = (count("late_sends"), count("due_sends"));
    (late * 100 > due).then(|| {
        format!(
            "the load generator was itself late with {late} of {due} sends (by more than 1 ms); their \
             latencies, measured from the intended time, are too long by that. More --threads or a lower \
             --rate help"
        )
    })
}
