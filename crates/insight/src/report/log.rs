//! What has been said: facts once, waits when they have lasted and again with growing pauses. And which of it
//! the subscribers do not have yet.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::epoch::Epoch;
use crate::facts::{Held, RunKey};
use crate::reason::{Code, Evidence, Finding, Hold, Reason};
use rallypoint_api::{self as api, Explanation, LinkCounts, RunGone, RunSummary, Severity, TimelineEvent};
use rallypoint_protocol::ids::{Elapsed, Timestamp};

/// A log line says that more have ended when this time has passed, with all that end meanwhile; the next one
/// after twice that time, and so on.
const MORE_ENDED: Duration = Duration::from_secs(3);

/// What an explanation is about. While a topic is held its text may change, but it is one explanation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Topic {
    pub(crate) store: Option<u16>,
    pub(crate) run: Option<RunKey>,
    pub(crate) code: Code,
    pub(crate) about: String,
}

impl Topic {
    fn of(Held { store, run, finding }: &Held) -> Self {
        let (run, about) = (run.clone(), finding.about.clone());
        Self { store: *store, run, code: finding.reason.code, about }
    }
}

/// The subject of an explanation, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Subject {
    pub(crate) run_id: Option<String>,
    /// `train-llm round 0`.
    pub(crate) text: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    id: u64,
    pub(crate) finding: Finding,
    subject: Subject,
    /// When to say it next.
    next: Timestamp,
    pause: Duration,
    /// When to say that more have ended.
    more_ended: Duration,
    said: bool,
    /// It was seen to hold in this look.
    fresh: bool,
    /// A fact, or a wait that is over: when it stops being shown.
    until: Option<Timestamp>,
    holds: bool,
}

impl Entry {
    /// How important it is: of what is more than good to know, what holds, and what keeps processes apart for
    /// good, comes before what has happened.
    fn rank(&self) -> (bool, bool, Severity, Timestamp) {
        use Code::{DuplicateRank, NnodesDiffer, TwoJobs, WorldSizesDiffer};
        let Reason { severity, code, .. } = self.finding.reason;
        let is_apart = matches!(code, DuplicateRank | NnodesDiffer | TwoJobs | WorldSizesDiffer);
        (severity > Severity::Info, self.until.is_none() || is_apart, severity, self.finding.since)
    }
}

/// Something changed.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// An explanation: new, said again, or no longer so.
    Explanation {
        /// What is said.
        explanation: Explanation,
        /// Whether it belongs in the log: a wait that ended does not.
        aloud: bool,
        /// Whether a healthy run is told without it: the log says when it started, when it was complete, and
        /// how it ended.
        is_detail: bool,
    },
    /// A run is new or has changed.
    Run(RunSummary),
    /// A run is no longer shown.
    RunGone(RunGone),
    /// There are more or fewer relays, or clients of them.
    Links(LinkCounts),
    /// Something happened.
    TimelineEvent(TimelineEvent),
}

/// Something for the log and for subscribers, of this run.
pub(crate) type Utterance = (Option<RunKey>, Change);

/// What the list of runs says of one.
#[derive(Debug, Default)]
pub(crate) struct Headline {
    /// The most important of what is wrong.
    pub(crate) explanation: Option<Explanation>,
    /// What holds and is nothing wrong.
    pub(crate) notes: u32,
}

/// Whether what has happened is so still, and not again: that is another event. `None`: it is past.
pub(crate) type Lasts<'l> = &'l dyn Fn(&Topic, &Entry) -> Option<bool>;

/// What has been said, and what has changed.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) explain_after: Duration,
    pub(crate) epoch: Epoch,
    /// All explanations that are shown.
    pub(crate) entries: BTreeMap<Topic, Entry>,
    next_id: u64,
    pub(crate) changes: Vec<Change>,
    /// Until when what comes again and again is not said, and how long that pause is.
    pauses: BTreeMap<Topic, (Timestamp, Duration)>,
    /// When this server read what the last one had kept.
    pub(crate) restarted: Option<Timestamp>,
}

impl Told {
    const MOST: usize = 4096;
    /// After a restart relays are back within this time, and their clients wait again.
    const BACK: Duration = Duration::from_secs(10);
    const FACT_SHOWN: Duration = Duration::from_mins(10);
    /// The first pause of what happens again and again.
    const AGAIN: Duration = Duration::from_secs(30);
    /// A wait is said again after this long at the latest.
    const LONGEST_PAUSE: Duration = Duration::from_mins(10);
    /// Changes kept until they are taken.
    const MOST_CHANGES: usize = 16_384;

    pub(crate) fn new(explain_after: Duration, epoch: Epoch) -> Self {
        let (entries, pauses) = (BTreeMap::new(), BTreeMap::new());
        Self { explain_after, epoch, entries, next_id: 1, changes: Vec::new(), pauses, restarted: None }
    }

    pub(crate) fn tell(&mut self, change: Change) {
        if self.changes.len() < Self::MOST_CHANGES {
            self.changes.push(change);
        }
    }

    /// Something that has happened.
    pub(crate) fn fact(&mut self, held: Held, subject: Subject, now: Timestamp) -> Option<Utterance> {
        let topic = Topic::of(&held);
        let comes_again = held.finding.reason.hold == Hold::Again;
        if comes_again && !self.may_say_again(&topic, now) {
            return None;
        }
        let mut entry = self.entry(&topic, subject, held.finding, now)?;
        (entry.said, entry.holds, entry.until) = (true, false, Some(now + Self::FACT_SHOWN));
        let said = utter(&topic, &entry, true, self.epoch);
        self.entries.insert(topic, entry);
        Some(said)
    }

    /// Whether what comes again and again is to be said now: with growing pauses.
    fn may_say_again(&mut self, topic: &Topic, now: Timestamp) -> bool {
        const MOST: usize = 256;
        // After twice the pause it is something new.
        self.pauses.retain(|_, (until, pause)| now < *until + *pause);
        let pause = match self.pauses.get(topic) {
            Some((until, _)) if now < *until => return false,
            Some((_, pause)) => pause.saturating_mul(2).min(Self::LONGEST_PAUSE),
            // A node that is refused may come again for long.
            None if topic.code == Code::JoinRefused => Self::FACT_SHOWN,
            None => Self::AGAIN,
        };
        if self.pauses.len() < MOST || self.pauses.contains_key(topic) {
            self.pauses.insert(topic.clone(), (now + pause, pause));
        }
        true
    }

    /// A new entry, if there is room for it, to be said then.
    fn entry(&mut self, topic: &Topic, subject: Subject, finding: Finding, next: Timestamp) -> Option<Entry> {
        if self.entries.len() >= Self::MOST && !self.entries.contains_key(topic) {
            return None;
        }
        let id = self.next_id;
        self.next_id = id.saturating_add(1);
        let (said, holds, fresh, more_ended, until) = (false, true, true, MORE_ENDED, None);
        let pause = self.explain_after.max(Duration::from_secs(1));
        Some(Entry { id, finding, subject, next, pause, more_ended, said, fresh, until, holds })
    }

    /// The restart, if what is known since then may have begun before it.
    pub(crate) fn restarted_about(&self, since: Timestamp) -> Option<Timestamp> {
        self.restarted.filter(|at| (*at..*at + Self::BACK).contains(&since))
    }

    /// Something that holds at the moment: says it when it is due.
    pub(crate) fn hold(&mut self, held: Held, subject: Subject, now: Timestamp) -> Option<Utterance> {
        let (topic, mut finding) = (Topic::of(&held), held.finding);
        let is_timed = matches!(finding.reason.hold, Hold::Lasting | Hold::Lasted);
        if let Some(at) = self.restarted_about(finding.since).filter(|_| is_timed) {
            let ago = Elapsed(now.since(at));
            let more = format!(" (or longer: the server was restarted {ago} ago)");
            finding.reason = finding.reason.then(&more);
        }
        let Finding { reason, since, .. } = &finding;
        if let Some(entry) = self.entries.get_mut(&topic).filter(|entry| entry.until.is_none()) {
            entry.fresh = true;
            let before = &entry.finding.reason;
            let is_more = reason.ended > before.ended;
            let presses = reason.severity > before.severity || is_more && reason.severity == Severity::Error;
            if entry.said && presses {
                entry.next = *since;
            } else if entry.said && is_more && now + entry.more_ended < entry.next {
                entry.next = now + entry.more_ended;
                entry.more_ended = entry.more_ended.saturating_mul(2);
            }
            let since = entry.finding.since;
            (entry.finding, entry.subject) = (Finding { since, ..finding }, subject);
        } else {
            // Not while the server was away.
            let next =
                (*since).max(self.restarted.unwrap_or_default()) + reason.hold.lasts(self.explain_after);
            let entry = self.entry(&topic, subject, finding, next)?;
            self.entries.insert(topic.clone(), entry);
        }
        let entry = self.entries.get_mut(&topic).filter(|entry| now >= entry.next)?;
        let reason = &entry.finding.reason;
        let is_wait = !matches!(reason.hold, Hold::AtOnce | Hold::Again);
        // What is only good to know does not press.
        if is_wait && reason.severity > Severity::Info {
            entry.next = now + entry.pause;
            entry.pause = entry.pause.saturating_mul(2).min(Self::LONGEST_PAUSE);
        } else {
            entry.next = now + Self::LONGEST_PAUSE;
        }
        entry.said = true;
        Some(utter(&topic, entry, true, self.epoch))
    }

    /// Ends a look: drops what no longer holds.
    pub(crate) fn settle(&mut self, now: Timestamp, lasts: Lasts<'_>) -> Vec<Utterance> {
        let mut out = Vec::new();
        let epoch = self.epoch;
        self.entries.retain(|topic, entry| {
            let is_fresh = std::mem::take(&mut entry.fresh);
            if let Some(until) = entry.until {
                let lasts = lasts(topic, entry).filter(|_| now < until);
                let holds = (is_fresh || entry.holds) && lasts == Some(true);
                let held = std::mem::replace(&mut entry.holds, holds);
                if lasts.is_none() || entry.holds != held {
                    out.push(utter(topic, entry, false, epoch));
                }
                return lasts.is_some();
            }
            if !is_fresh && entry.said {
                (entry.until, entry.holds) = (Some(now), false);
                out.push(utter(topic, entry, false, epoch));
            }
            is_fresh
        });
        out
    }

    /// What has been said and is still shown.
    fn said(&self) -> impl Iterator<Item = (&Topic, &Entry)> {
        self.entries.iter().filter(|(_, entry)| entry.said)
    }

    /// What has been said about a run and is still shown, the most important first, which is its headline.
    /// `None` is for what concerns no run.
    pub(crate) fn about(&self, run: Option<&RunKey>) -> Vec<Explanation> {
        let mut found: Vec<_> = self.said().filter(|(topic, _)| topic.run.as_ref() == run).collect();
        found.sort_by_key(|(_, entry)| Reverse(entry.rank()));
        found.into_iter().map(|(topic, entry)| show(topic, entry, self.epoch)).collect()
    }

    /// The most important explanation of each run, and how many notes hold.
    pub(crate) fn headlines(&self) -> BTreeMap<RunKey, Headline> {
        let mut best: BTreeMap<&RunKey, (&Topic, &Entry)> = BTreeMap::new();
        let mut headlines: BTreeMap<RunKey, Headline> = BTreeMap::new();
        for (topic, entry) in self.said() {
            let Some(run) = &topic.run else { continue };
            if entry.finding.reason.severity > Severity::Info {
                let best = best.entry(run).or_insert((topic, entry));
                *best = if entry.rank() > best.1.rank() { (topic, entry) } else { *best };
            } else if entry.until.is_none() {
                let notes = &mut headlines.entry(run.clone()).or_default().notes;
                *notes = notes.saturating_add(1);
            }
        }
        for (run, (topic, entry)) in best {
            let explanation = Explanation { evidence: Vec::new(), ..show(topic, entry, self.epoch) };
            headlines.entry(run.clone()).or_default().explanation = Some(explanation);
        }
        headlines
    }

    /// How many warnings and errors are shown of each run, by code.
    pub(crate) fn counts(&self) -> BTreeMap<&RunKey, BTreeMap<(&'static str, Severity), u32>> {
        let mut counts: BTreeMap<_, BTreeMap<_, u32>> = BTreeMap::new();
        for (topic, entry) in self.said() {
            let severity = entry.finding.reason.severity;
            if let Some(run) = topic.run.as_ref().filter(|_| severity > Severity::Info) {
                let shown = counts.entry(run).or_default().entry((topic.code.name(), severity)).or_default();
                *shown = shown.saturating_add(1);
            }
        }
        counts
    }

    /// What was said about one run is now about another.
    pub(crate) fn hand_over(&mut self, from: &RunKey, to: &RunKey) {
        let topics: Vec<Topic> =
            self.entries.keys().filter(|topic| topic.run.as_ref() == Some(from)).cloned().collect();
        for topic in topics {
            if let Some(entry) = self.entries.remove(&topic) {
                let topic = Topic { store: to.port(), run: Some(to.clone()), ..topic };
                self.entries.entry(topic).or_insert(entry);
            }
        }
    }

    /// Forgets what happened in a run before: it starts again.
    pub(crate) fn forget(&mut self, run: &RunKey) {
        self.entries.retain(|topic, _| topic.run.as_ref() != Some(run));
    }
}

fn utter(topic: &Topic, entry: &Entry, aloud: bool, epoch: Epoch) -> Utterance {
    let (explanation, is_detail) = (show(topic, entry, epoch), entry.finding.reason.is_detail);
    (topic.run.clone(), Change::Explanation { explanation, aloud, is_detail })
}

fn show(topic: &Topic, entry: &Entry, epoch: Epoch) -> Explanation {
    Explanation {
        id: entry.id,
        run_id: entry.subject.run_id.clone(),
        store: topic.store,
        code: entry.finding.reason.code.name().to_owned(),
        severity: entry.finding.reason.severity,
        since: epoch.unix(entry.finding.since),
        holds: entry.holds,
        certainty: entry.finding.reason.certainty(),
        text: entry.finding.reason.sentence(entry.subject.text.as_deref()),
        remedy: entry.finding.reason.look_at.to_owned(),
        facts: entry.finding.reason.facts(epoch),
        evidence: entry.finding.evidence.iter().map(|evidence| shown(evidence, epoch)).collect(),
    }
}

fn shown(evidence: &Evidence, epoch: Epoch) -> api::Evidence {
    let Evidence { seen, who, peer, pid, key, at } = evidence;
    api::Evidence {
        seen: *seen,
        who: who.clone(),
        peer: peer.map(|peer| peer.to_string()),
        pid: *pid,
        key: key.clone(),
        at: epoch.unix(*at),
    }
}
