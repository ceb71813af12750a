//! What is known, as the API's documents and the metrics show it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::epoch::rounded;
use crate::facts::{RunKey, StoreWatch, TrackedRun, missing};
use crate::jobs::Jobs;
use crate::report::log::{Headline, Told};
use crate::report::summary::{nodes, pods, rank_grid, summary};
use crate::rules::waiting::root::Traced;
use rallypoint_api::{Run, RunKind, RunList, RunSummary, Severity, Wait, WaitList};
use rallypoint_protocol::ids::{ShownKey, Timestamp};
use rallypoint_store::{Polled, WaitView};

const WAITS_SHOWN: usize = 1000;

/// What the metrics say of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFigures {
    /// The run, in few words.
    pub summary: RunSummary,
    /// The label of its series: the run id, with the store's port where two stores have a run of this id.
    pub label: String,
    /// How many warnings and errors are shown of it, by code.
    pub complaints: BTreeMap<(&'static str, Severity), u32>,
}

/// What is known and what is said, to be shown as it is now.
#[derive(Debug, Clone, Copy)]
pub struct Documents<'i> {
    pub(crate) jobs: &'i Jobs,
    pub(crate) log: &'i Told,
    pub(crate) now: Timestamp,
}

impl Documents<'_> {
    /// `GET /api/v1/runs`, where the stores have so many connections.
    pub fn list(&self, connections: usize) -> RunList {
        let mut headlines = self.log.headlines();
        let mut headline = |run: &TrackedRun| headlines.remove(&run.key).unwrap_or_default();
        let summary = |run: &TrackedRun| summary(self.jobs, run, headline(run), self.log.epoch);
        let mut runs: Vec<RunSummary> = self.jobs.runs.values().map(summary).collect();
        runs.sort_by(|a, b| {
            let attention = |run: &RunSummary| {
                let told = run.explanation.as_ref();
                (!run.state.is_over(), told.is_some_and(|told| told.holds), told.map(|told| told.severity))
            };
            attention(b).cmp(&attention(a)).then(b.started_at.total_cmp(&a.started_at))
        });
        RunList {
            now: self.log.epoch.unix(self.now),
            lost_observations: self.jobs.totals.lost,
            connections,
            knows_since: None,
            runs,
            explanations: self.log.about(None),
            links: self.jobs.links.counts,
        }
    }

    /// What the metrics show of each run.
    pub fn figures(&self) -> Vec<RunFigures> {
        let runs = self.jobs.runs.values();
        let named: Vec<(String, &TrackedRun)> = runs.map(|run| (self.jobs.name(&run.key), run)).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, _) in &named {
            let runs = counts.entry(name).or_default();
            *runs = runs.saturating_add(1);
        }
        let mut complaints = self.log.counts();
        let figures = named.iter().map(|(name, run)| {
            // One without a store has the name alone, and the one before it has its store behind it.
            let port = run.key.port().filter(|_| counts.get(name.as_str()) != Some(&1));
            let label = match port {
                None => name.clone(),
                Some(port) => format!("{name}@{port}{}", if run.has_agents() { "" } else { "/env" }),
            };
            let complaints = complaints.remove(&run.key).unwrap_or_default();
            let summary = summary(self.jobs, run, Headline::default(), self.log.epoch);
            RunFigures { summary, label, complaints }
        });
        figures.collect()
    }

    /// `GET /api/v1/runs/{run_id}`. Where runs of several stores have this id, the one that is not over and
    /// came last, unless a store or a kind is named.
    pub fn run(&self, run_id: &str, store: Option<u16>, kind: Option<RunKind>) -> Option<Run> {
        let Self { jobs, log, now } = *self;
        let epoch = log.epoch;
        let keys = jobs.keys_of(run_id, store);
        let found = keys.iter().filter_map(|key| jobs.runs.get(key));
        let found = found.filter(|run| kind.is_none_or(|kind| run.kind == kind));
        let run = found.max_by_key(|run| (!run.state.is_over(), run.has_agents(), run.first_seen))?;
        let plan = jobs.plan(&run.key);
        // Workers of a closed run wait where they met.
        let watch = run.store().or(run.met_at()).and_then(|port| jobs.stores.get(&port));
        let name = jobs.name(&run.key);
        let timeline = run.timeline.iter().map(|moment| moment.shown(&name, epoch));
        let missing = missing(run, &plan, run.expected(&plan)).into_iter();
        Some(Run {
            now: epoch.unix(now),
            summary: summary(jobs, run, log.headlines().remove(&run.key).unwrap_or_default(), epoch),
            participants: match (run.kind, plan.gate()) {
                (RunKind::Announced, Some(gate)) => pods(gate, &plan, epoch),
                _ => nodes(run, epoch),
            },
            missing: missing.map(|node| node.shown(epoch)).collect(),
            rank_grid: rank_grid(run, &jobs.links, epoch),
            waits: watch.map(|watch| self.waits_of(watch, &run.key)).unwrap_or_default(),
            explanations: log.about(Some(&run.key)),
            timeline: timeline.collect(),
            workers_store: run.workers_store(),
            debug_server: watch.filter(|_| !run.state.is_over()).and_then(StoreWatch::debug_server),
        })
    }

    fn waits_of(&self, store: &StoreWatch, key: &RunKey) -> Vec<Wait> {
        let Some(graph) = self.jobs.graph(store.port, self.now) else { return Vec::new() };
        // Whether those are there whose links are away is not known: they are not counted with the others.
        let here = store.waits.values().filter(|wait| !self.jobs.links.is_away(wait.view.peer));
        let of_run = here.filter_map(|wait| {
            let traced = graph.trace(wait.view.conn).filter(|traced| traced.run.as_ref() == Some(key))?;
            Some(self.show_wait(store.port, &wait.view, self.now.since(wait.since), Some(traced)))
        });
        oldest_first(of_run.take(WAITS_SHOWN).collect())
    }

    /// `GET /api/v1/waits`: the waits as the stores show them at this moment, each with what is known of it.
    pub fn waits(&self, total: usize, waits: Vec<(u16, WaitView)>) -> WaitList {
        let explain = |(port, wait): (u16, WaitView)| {
            let traced = self.jobs.graph(port, self.now).and_then(|graph| graph.trace(wait.conn));
            self.show_wait(port, &wait, wait.waited, traced)
        };
        WaitList { total, waits: oldest_first(waits.into_iter().map(explain).collect()) }
    }

    fn show_wait(&self, store: u16, wait: &WaitView, waited: Duration, traced: Option<Traced>) -> Wait {
        let away = if self.jobs.links.is_away(wait.peer) { " (its link is away)" } else { "" };
        let (run, who, writer, reason) = match traced {
            Some(Traced { run, who, writer, reason }) => (run, Some(who), writer, reason),
            None => Default::default(),
        };
        // One that waits in slices waits.
        let polls = wait.polled.filter(|it| *it != Polled::AbsentAgain);
        let keys: Vec<String> = wait.missing.iter().map(|key| ShownKey(key).to_string()).collect();
        Wait {
            store,
            run_id: run.map(|run| self.jobs.name(&run)),
            peer: Some(wait.peer.to_string()),
            pid: wait.pid,
            who: who.map(|who| format!("{who}{away}")),
            op: wait.barrier_size.map_or(polls.map_or("wait", |_| "poll"), |_| "barrier").into(),
            waited_seconds: rounded(waited.as_secs_f64()),
            keys: wait.keys,
            polled: polls.and_then(|_| keys.first().cloned()),
            missing: if polls.is_none_or(Polled::is_absent) { keys } else { Vec::new() },
            world_size: wait.barrier_size,
            writer,
            reason,
        }
    }
}

fn oldest_first(mut waits: Vec<Wait>) -> Vec<Wait> {
    waits.sort_by(|a, b| b.waited_seconds.total_cmp(&a.waited_seconds).then_with(|| a.peer.cmp(&b.peer)));
    waits
}
