//! Looks at what is known as time goes by: what has changed, what holds, and what to say about it.

use std::time::Duration;

use crate::Insight;
use crate::facts::{RunKey, TrackedRun};
use crate::jobs::Jobs;
use crate::reason::{Code, Finding, Reason};
use crate::report::log::{Change, Entry, Subject, Topic, Utterance};
use crate::report::summary::summary;
use crate::rules::waiting::given_up;
use crate::rules::{self, Held, contradictions, losses};
use rallypoint_api::{RunKind, RunState, Severity};
use rallypoint_protocol::ids::Timestamp;
use rallypoint_protocol::keys::is_asked_for;

/// A run that is over is shown this long.
const OVER_SHOWN: Duration = Duration::from_hours(1);

/// See [`Lasts`](crate::report::log::Lasts): what is past when its run is complete again, or over.
fn lasts(jobs: &Jobs, topic: &Topic, entry: &Entry) -> Option<bool> {
    use Code::{JoinRefused, Lost, RoundComplete, RunClosed, RunStarted, TorchVersionsDiffer};
    let Finding { reason, evidence, since, .. } = &entry.finding;
    let Some(run) = topic.run.as_ref().and_then(|key| jobs.runs.get(key)) else { return Some(false) };
    let is_past = match reason.code {
        RunStarted | TorchVersionsDiffer => false,
        JoinRefused | RunClosed => run.round.completed.is_some_and(|completed| *since < completed),
        Code::WorldSizesDiffer => return run.world.differ.then_some(true),
        // A run that is over ended with this.
        Code::GaveUp if matches!(run.state, RunState::Gone | RunState::Ended) => false,
        code if code != RoundComplete && reason.severity == Severity::Info => false,
        _ => run.mended(reason).is_some_and(|mended| *since < mended),
    };
    (!is_past).then(|| reason.code == Lost && run.still_lacks(evidence))
}

impl Insight {
    /// Lets time pass for each run, and reports what was found of runs and links.
    pub(crate) fn pass_time(&mut self, now: Timestamp) {
        for key in self.jobs.runs.keys().cloned().collect::<Vec<_>>() {
            let plan = self.jobs.plan(&key);
            let Some(run) = self.jobs.runs.get_mut(&key) else { continue };
            run.pass_time(&plan, self.told.explain_after, now);
            if std::mem::take(&mut run.has_begun_anew) {
                self.told.forget(&key);
            }
            let (moments, findings) =
                (std::mem::take(&mut run.new_moments), std::mem::take(&mut run.findings));
            let name = self.jobs.name(&key);
            for moment in moments {
                self.told.tell(Change::TimelineEvent(moment.shown(&name, self.told.epoch)));
            }
            for finding in findings {
                self.jobs.totals.count(finding.reason.tally);
                self.fact(Held { store: key.port(), run: Some(key.clone()), finding }, now);
            }
        }
        let news = std::mem::take(&mut self.jobs.links.untold);
        for finding in rules::links::happened(&news, self.jobs.links.grace) {
            self.fact(Held { store: None, run: None, finding }, now);
        }
    }

    fn subject_of(&self, held: &Held) -> Subject {
        let Some(key) = &held.run else { return Subject::default() };
        let name = self.jobs.name(key);
        // torchrun's name of a run that was given none: "none complete" would say that nobody is.
        let named = if name == "none" { format!("run {name}") } else { name.clone() };
        let text = match self.jobs.runs.get(key) {
            // The native rendezvous names the round itself, and most static jobs have only one.
            Some(run) if run.kind == RunKind::C10d || run.kind == RunKind::Static && run.round.number > 0 => {
                format!("{named} round {}", held.finding.round.unwrap_or(run.round.number))
            }
            _ => named,
        };
        Subject { run_id: Some(name), text: Some(text) }
    }

    fn fact(&mut self, mut held: Held, now: Timestamp) {
        let subject = self.subject_of(&held);
        let run = held.run.as_ref().and_then(|key| self.jobs.runs.get(key));
        let Reason { code, severity, .. } = held.finding.reason;
        let is_close = (code, severity) == (Code::RunClosed, Severity::Info);
        // A run is told without it, as its nodes are at the exit barrier when it is closed. The rendezvous
        // learns only afterwards that those at the barrier have succeeded.
        held.finding.reason.is_detail |= run
            .is_some_and(|run| is_close && (run.state == RunState::Finished || !run.round.exit.is_empty()));
        let utterance = self.told.fact(held, subject, now);
        self.say(utterance, now);
    }

    fn hold(&mut self, held: Held, now: Timestamp) {
        let subject = self.subject_of(&held);
        let utterance = self.told.hold(held, subject, now);
        self.say(utterance, now);
    }

    fn say(&mut self, utterances: impl IntoIterator<Item = Utterance>, now: Timestamp) {
        for (run, change) in utterances {
            if let Some(run) = run.and_then(|key| self.jobs.runs.get_mut(&key)) {
                run.touch();
                if let Change::Explanation { explanation: said, aloud: true, .. } = &change {
                    run.remember(now, &said.code, said.text.clone());
                }
            }
            self.told.tell(change);
        }
    }

    /// Reports what happened in stores since `before`, once more of its kind may have come: that clients gave
    /// up, that one place is claimed twice, that processes ended which had only counted themselves.
    pub(crate) fn tell_of_stores(&mut self, before: Timestamp, now: Timestamp) {
        for port in self.jobs.stores.keys().copied().collect::<Vec<_>>() {
            for ((run, key), given_up) in self.jobs.store(port).take_given_up(now) {
                let met = run.as_ref().and_then(|run| self.jobs.runs.get(run)?.world.last_met);
                // What they gave up on has come since, and all have met; or it is told as one long wait.
                if !given_up.again || !is_asked_for(&key) && met.is_none_or(|met| met < given_up.at) {
                    let since = Timestamp(given_up.at.0.saturating_sub(given_up.waited));
                    let finding = given_up::gave_up(&key, given_up, self.told.restarted_about(since));
                    self.fact(Held { store: Some(port), run, finding }, now);
                }
            }
            self.jobs.store(port).settle_claims(before);
            for held in contradictions::claimed_twice(&self.jobs, port, now) {
                self.hold(held, now);
            }
            if let Some((since, passed)) = self.jobs.store(port).take_passed(now) {
                let finding = losses::passed(port, &passed, since);
                self.fact(Held { store: Some(port), run: None, finding }, now);
            }
        }
    }

    /// Looks at everything that holds at the moment.
    pub(crate) fn look(&mut self, now: Timestamp) {
        let (held, idle) = rules::holds(&self.jobs, now);
        for (port, idle) in idle {
            self.jobs.store(port).idle = idle;
        }
        for held in held {
            self.hold(held, now);
        }
        self.jobs.foreign.pass_time(now);
        for (key, finding) in self.pasts.not_back(&self.jobs.runs, now) {
            let (store, name) = (key.port(), self.jobs.name(&key));
            let subject = Subject { run_id: Some(name.clone()), text: Some(name) };
            let run = Some(key).filter(|key| self.jobs.runs.contains_key(key));
            let utterance = self.told.hold(Held { store, run, finding }, subject, now);
            self.say(utterance, now);
        }
        let Self { jobs, told, .. } = self;
        let utterances = told.settle(now, &|topic, entry| lasts(jobs, topic, entry));
        self.say(utterances, now);
    }

    pub(crate) fn forget_over(&mut self, now: Timestamp) {
        let is_old = |run: &&TrackedRun| {
            let over = run.round.over_at.filter(|_| run.state.is_over() && run.is_empty());
            over.is_some_and(|at| now.since(at) >= OVER_SHOWN)
        };
        let old: Vec<RunKey> = self.jobs.runs.values().filter(is_old).map(|run| run.key.clone()).collect();
        for key in &old {
            self.jobs.drop_run(&mut self.told, key);
        }
    }

    pub(crate) fn tell_changes(&mut self) {
        let is_new = |run: &&TrackedRun| run.shown_version != run.version;
        let changed: Vec<_> = self.jobs.runs.values().filter(is_new).map(|run| run.key.clone()).collect();
        if changed.is_empty() {
            return;
        }
        let mut headlines = self.told.headlines();
        for key in changed {
            let headline = headlines.remove(&key).unwrap_or_default();
            let summary = summary(&self.jobs, &self.jobs.runs[&key], headline, self.told.epoch);
            self.jobs.runs.entry(key).and_modify(|run| run.shown_version = run.version);
            self.told.tell(Change::Run(summary));
        }
    }
}
