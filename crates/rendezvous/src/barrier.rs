//! Named barriers: each participant waits until all have arrived. If the members are named, the missing ones
//! can be named too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Label;
use super::reason::some_of;
use rallypoint_map::HashMap;
use rallypoint_protocol::ids::{Elapsed, Timestamp, count};

/// A released barrier is kept this long for retries of its arrivals.
const RELEASED_KEPT: Duration = Duration::from_mins(1);
/// A participant that has not asked for this long does not count as present.
const ASKS_AGAIN: Duration = Duration::from_secs(3);
/// The pause between two inspections of all barriers.
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// Most names in a list.
const LISTED: usize = 32;
/// More than any job has.
const MAX_SIZE: u32 = 1_000_000;
/// Upper bounds of the bytes of a barrier, of an arrival with the longest texts, and of a member beside its
/// name.
const BARRIER: usize = 1024;
const ARRIVAL: usize = 1024;
const MEMBER: usize = 64;

/// The arrival of a participant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// The participant.
    pub participant: Label,
    /// A retry repeats the id; the arrival at the barrier's next use has another one.
    pub arrival_id: Box<str>,
    /// How many must arrive.
    pub size: u32,
    /// All participants, if they were named.
    pub members: Option<BTreeSet<Label>>,
    /// The arrival is taken back after this time.
    pub timeout: Duration,
}

/// How an arrival stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArrivalStanding {
    /// Not all participants have arrived.
    Waiting {
        /// Which use of the barrier.
        generation: u64,
        /// How many have arrived.
        arrived: u32,
        /// How many must arrive.
        size: u32,
        /// Some of the missing participants, if the members were named.
        missing: Vec<String>,
        /// Time since this arrival.
        waited: Duration,
        /// Time until it is taken back.
        left: Duration,
    },
    /// All have arrived.
    Released {
        /// Which use of the barrier.
        generation: u64,
        /// How many arrivals there were.
        size: u32,
    },
}

/// Why an arrival ended without a release.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArrivalRefusal {
    /// Its time-out has passed.
    #[error(
        "barrier {barrier}: {arrived} of {size} arrived within {}; {}",
        Elapsed(*.after), missing_text(.missing, size.saturating_sub(*.arrived))
    )]
    Timeout {
        /// The barrier.
        barrier: Label,
        /// How many had arrived, including this one.
        arrived: u32,
        /// How many were needed.
        size: u32,
        /// Some of the missing participants, if the members were named.
        missing: Vec<String>,
        /// The time-out of this arrival.
        after: Duration,
    },
    /// The arrival has other parameters than the first one.
    #[error(
        "barrier {barrier}: {first} arrived first and waits for {settled}, but {participant} wants {wanted}"
    )]
    Mismatch {
        /// The barrier.
        barrier: Label,
        /// The participant that came first.
        first: Label,
        /// The participant that wants other parameters.
        participant: Label,
        /// What the first participant wants.
        settled: String,
        /// What this participant wants.
        wanted: String,
    },
    /// The arrival contradicts itself.
    #[error("{0}")]
    Bad(String),
    /// The server already has as many barriers as it may.
    #[error("the server has {0} barriers, as many as it may (--max-runs)")]
    TooMany(usize),
    /// The barriers already use all the memory that they may.
    #[error(
        "the server has no memory left for another arrival; try again in a moment, or give it more with \
         --max-memory"
    )]
    NoMemory,
    /// The arrival is not known: it was silent for too long, or another arrival of this participant took its
    /// place.
    #[error(
        "this arrival is not there any more: it was not heard from for too long, or another took its place"
    )]
    Gone,
}

fn missing_text(missing: &[String], count: u32) -> String {
    match (missing, count) {
        ([], 1) => "1 is missing".into(),
        ([], _) => format!("{count} are missing"),
        _ => format!("missing: {}", some_of(missing)),
    }
}

impl ArrivalRefusal {
    /// A stable code for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "barrier_timeout",
            Self::Mismatch { .. } => "barrier_mismatch",
            Self::Bad(_) => "bad_request",
            Self::TooMany(_) => "too_many_barriers",
            Self::NoMemory => "no_memory",
            Self::Gone => "replaced",
        }
    }
}

#[derive(Debug)]
struct Arrived {
    id: Box<str>,
    parked: bool,
    last_seen: Timestamp,
    since: Timestamp,
    timeout: Duration,
}

impl Arrived {
    /// Whether its participant still waits: a living participant asks again at once.
    fn is_there(&self, now: Timestamp) -> bool {
        self.parked || now.since(self.last_seen) < ASKS_AGAIN
    }

    fn left(&self, now: Timestamp) -> Duration {
        (self.since + self.timeout).since(now)
    }
}

#[derive(Debug, Default)]
struct Barrier {
    /// How often it was released.
    released: u64,
    /// The arrivals of its last use, for their retries.
    last_use: HashMap<Label, Box<str>>,
    last_size: u32,
    touched: Timestamp,
    size: u32,
    members: Option<BTreeSet<Label>>,
    members_memory: usize,
    first: Option<Label>,
    arrived: HashMap<Label, Arrived>,
    /// Participants whose time-out has passed in this use, and that have not come again. Only the first ones
    /// are kept.
    gave_up: BTreeSet<Label>,
    /// Participants that came to this use and were refused, and why. Only the first ones are kept.
    refused: BTreeMap<Label, String>,
    /// No participant has been silent for too long before this time.
    silent_at: Option<Timestamp>,
}

impl Barrier {
    /// Bytes that it takes, roughly.
    fn memory(&self) -> usize {
        let arrivals = [self.arrived.len(), self.last_use.len(), self.gave_up.len(), self.refused.len()];
        let arrivals = arrivals.map(|n| n.saturating_mul(ARRIVAL));
        [BARRIER, self.members_memory].into_iter().chain(arrivals).sum()
    }

    /// Takes back arrivals whose participants have stopped asking.
    fn drop_silent(&mut self, patience: Duration, now: Timestamp) {
        if self.silent_at.is_none_or(|at| at > now) {
            return;
        }
        self.arrived.retain(|_, a| {
            super::looks::look();
            a.parked || now.since(a.last_seen) < patience
        });
        super::give_back(&mut self.arrived);
        self.silent_at = self.arrived.values().filter(|a| !a.parked).map(|a| a.last_seen + patience).min();
    }

    /// A participant has come to others that wait, and cannot wait with them.
    fn refuse(&mut self, participant: Label, why: String) {
        if self.refused.len() < LISTED && !self.arrived.is_empty() {
            self.refused.insert(participant, why);
        }
    }

    /// A participant shows that it is there: it may be silent for too long from this time on.
    fn heard(&mut self, at: Timestamp) {
        self.silent_at = Some(self.silent_at.map_or(at, |known| known.min(at)));
    }

    /// When there may be something to take back or to forget.
    fn next_deadline(&self) -> Option<Timestamp> {
        if self.arrived.is_empty() { Some(self.touched + RELEASED_KEPT) } else { self.silent_at }
    }

    fn missing(&self) -> Vec<String> {
        let members = self.members.iter().flatten();
        members.filter(|name| !self.arrived.contains_key(*name)).take(LISTED).map(Label::to_string).collect()
    }

    fn wants(size: u32, members: Option<&BTreeSet<Label>>) -> String {
        match members {
            Some(names) => {
                format!(
                    "{size}: {}",
                    some_of(&names.iter().take(LISTED).map(Label::to_string).collect::<Vec<_>>())
                )
            }
            None => size.to_string(),
        }
    }
}

/// The last use of a barrier, as the journal keeps it: participants that were released and may not have heard
/// of it. Participants that still wait arrive again by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseRecord {
    released: u64,
    size: u32,
    /// The participants and the ids of their arrivals.
    arrivals: Vec<(Label, Box<str>)>,
}

/// A barrier at which participants wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenBarrier {
    /// Its name.
    pub name: Label,
    /// How many must arrive.
    pub size: u32,
    /// How many have arrived: so many count for its release.
    pub arrived: u32,
    /// The names of those that still wait, if they are few.
    pub there: Vec<String>,
    /// Participants that have arrived and are silent because their connections closed. A few of them.
    pub silent: Vec<String>,
    /// Participants that have not arrived, if the members are known. A few of them.
    pub missing: Vec<String>,
    /// Participants that had arrived, and gave up. A few of them.
    pub gave_up: Vec<String>,
    /// Participants that came and were refused, each with the reason. A few of them.
    pub refused: Vec<String>,
    /// When the first of the waiting participants arrived.
    pub since: Timestamp,
}

/// All barriers.
#[derive(Debug)]
pub struct Barriers {
    patience: Duration,
    limit: usize,
    /// Bytes that all barriers may take.
    max_memory: usize,
    by_name: HashMap<Label, Barrier>,
    tidy_at: Option<Timestamp>,
    /// Barriers that were released or forgotten since the journal was last told. `None` without a journal.
    unkept: Option<BTreeSet<Label>>,
}

impl Barriers {
    /// Without barriers. An arrival is taken back when its participant has not asked for `patience`.
    pub fn new(patience: Duration, limit: usize) -> Self {
        Self {
            patience,
            limit,
            max_memory: usize::MAX,
            by_name: HashMap::default(),
            tidy_at: None,
            unkept: None,
        }
    }

    /// From now on, releases are kept for [`Self::take_kept`].
    pub fn keep_changes(&mut self) {
        self.unkept.get_or_insert_default();
    }

    /// The barriers that were released or forgotten since the last call. A forgotten one has no record.
    pub fn take_kept(&mut self) -> Vec<(Label, Option<ReleaseRecord>)> {
        let Some(unkept) = &mut self.unkept else { return Vec::new() };
        let names = std::mem::take(unkept);
        names.into_iter().map(|name| (name.clone(), self.kept(&name))).collect()
    }

    /// The journal's record of a barrier.
    pub fn kept(&self, name: &Label) -> Option<ReleaseRecord> {
        let barrier = self.by_name.get(name).filter(|barrier| barrier.released > 0)?;
        let arrivals = barrier.last_use.iter().map(|(who, id)| (who.clone(), id.clone())).collect();
        Some(ReleaseRecord { released: barrier.released, size: barrier.last_size, arrivals })
    }

    /// The names of all barriers.
    pub fn names(&self) -> Vec<Label> {
        self.by_name.keys().cloned().collect()
    }

    /// Restores a barrier from the record of the previous server.
    pub fn restore(&mut self, name: Label, record: ReleaseRecord, now: Timestamp) {
        let ReleaseRecord { released, size, arrivals } = record;
        let barrier = Barrier {
            released,
            last_size: size,
            last_use: arrivals.into_iter().collect(),
            touched: now,
            ..Barrier::default()
        };
        self.by_name.insert(name, barrier);
        self.tidy_by(now + RELEASED_KEPT);
    }

    /// Sets how many bytes all barriers may take.
    pub fn limit_memory(&mut self, bytes: usize) {
        self.max_memory = bytes;
    }

    /// Bytes that all barriers take.
    pub fn memory(&self) -> usize {
        self.by_name.values().map(Barrier::memory).sum()
    }

    /// A participant arrives, or asks again. If that releases the barrier, the second value names the
    /// participants to wake.
    pub fn arrive(
        &mut self,
        name: &Label,
        arrival: Arrival,
        now: Timestamp,
    ) -> Result<(ArrivalStanding, Vec<Label>), ArrivalRefusal> {
        let checked = check(&arrival);
        if let (Err(ArrivalRefusal::Bad(why)), Some(barrier)) = (&checked, self.by_name.get_mut(name)) {
            barrier.refuse(arrival.participant.clone(), why.clone());
        }
        checked?;
        if !self.by_name.contains_key(name) {
            self.tidy(now);
            if self.by_name.len() >= self.limit {
                return Err(ArrivalRefusal::TooMany(self.limit));
            }
        }
        self.tidy_by(now + self.patience);
        let barrier = self.by_name.entry(name.clone()).or_default();
        barrier.touched = now;
        barrier.drop_silent(self.patience, now);
        barrier.heard(now + self.patience);
        let Arrival { participant, arrival_id, size, members, timeout } = arrival;
        if let Some(known) = barrier.arrived.get_mut(&participant).filter(|known| known.id == arrival_id) {
            known.last_seen = now;
        }
        match self.standing(name, &participant, &arrival_id, now) {
            Err(ArrivalRefusal::Gone) => {
                self.arrive_anew(name, Arrival { participant, arrival_id, size, members, timeout }, now)
            }
            known => known.map(|standing| (standing, Vec::new())),
        }
    }

    fn arrive_anew(
        &mut self,
        name: &Label,
        arrival: Arrival,
        now: Timestamp,
    ) -> Result<(ArrivalStanding, Vec<Label>), ArrivalRefusal> {
        let Arrival { participant, arrival_id, size, members, timeout } = arrival;
        let members_memory =
            members.iter().flatten().map(|name| MEMBER.saturating_add(name.as_str().len())).sum::<usize>();
        if [self.memory(), ARRIVAL, members_memory].into_iter().sum::<usize>() > self.max_memory {
            return Err(ArrivalRefusal::NoMemory);
        }
        let Some(barrier) = self.by_name.get_mut(name) else { return Err(ArrivalRefusal::Gone) };
        if barrier.arrived.keys().all(|other| *other == participant) {
            (barrier.size, barrier.members, barrier.first) = (size, members, Some(participant.clone()));
            barrier.members_memory = members_memory;
        } else if barrier.size != size || barrier.members != members {
            let wanted = Barrier::wants(size, members.as_ref());
            barrier.refuse(participant.clone(), format!("{participant} wants {wanted}"));
            return Err(ArrivalRefusal::Mismatch {
                barrier: name.clone(),
                first: barrier.first.clone().unwrap_or_else(|| participant.clone()),
                participant,
                settled: Barrier::wants(barrier.size, barrier.members.as_ref()),
                wanted,
            });
        }
        let arrived = Arrived { id: arrival_id.clone(), parked: false, last_seen: now, since: now, timeout };
        barrier.gave_up.remove(&participant);
        barrier.refused.remove(&participant);
        barrier.arrived.insert(participant.clone(), arrived);
        if count(barrier.arrived.len()) < barrier.size {
            return self
                .standing(name, &participant, &arrival_id, now)
                .map(|standing| (standing, Vec::new()));
        }
        barrier.released = barrier.released.saturating_add(1);
        barrier.last_size = barrier.size;
        barrier.gave_up.clear();
        barrier.refused.clear();
        let arrived = std::mem::take(&mut barrier.arrived);
        barrier.last_use = arrived.into_iter().map(|(who, arrived)| (who, arrived.id)).collect();
        let woken = barrier.last_use.keys().cloned().collect();
        if let Some(unkept) = &mut self.unkept {
            unkept.insert(name.clone());
        }
        Ok((ArrivalStanding::Released { generation: barrier.released, size: barrier.last_size }, woken))
    }

    /// How an arrival stands. If its time-out has passed, it is taken back.
    pub fn standing(
        &mut self,
        name: &Label,
        participant: &Label,
        arrival_id: &str,
        now: Timestamp,
    ) -> Result<ArrivalStanding, ArrivalRefusal> {
        let barrier = self.by_name.get_mut(name).ok_or(ArrivalRefusal::Gone)?;
        if barrier.last_use.get(participant).is_some_and(|id| **id == *arrival_id) {
            return Ok(ArrivalStanding::Released { generation: barrier.released, size: barrier.last_size });
        }
        let mine = barrier
            .arrived
            .get(participant)
            .filter(|mine| *mine.id == *arrival_id)
            .ok_or(ArrivalRefusal::Gone)?;
        let (arrived, size, missing) = (count(barrier.arrived.len()), barrier.size, barrier.missing());
        let left = mine.left(now);
        if left.is_zero() {
            let after = mine.timeout;
            barrier.arrived.remove(participant);
            if barrier.gave_up.len() < LISTED {
                barrier.gave_up.insert(participant.clone());
            }
            return Err(ArrivalRefusal::Timeout { barrier: name.clone(), arrived, size, missing, after });
        }
        let waited = now.since(mine.since);
        Ok(ArrivalStanding::Waiting {
            generation: barrier.released.saturating_add(1),
            arrived,
            size,
            missing,
            waited,
            left,
        })
    }

    /// The barriers with waiting arrivals: how many have arrived, and how many must.
    pub fn waiting(&self) -> impl Iterator<Item = (&Label, u32, u32)> {
        let waiting = self.by_name.iter().filter(|(_, barrier)| !barrier.arrived.is_empty());
        waiting.map(|(name, barrier)| (name, count(barrier.arrived.len()), barrier.size))
    }

    /// The barriers at which participants wait.
    pub fn open(&self, now: Timestamp) -> Vec<OpenBarrier> {
        const NAMED: usize = 8;
        let open = self.by_name.iter().filter_map(|(name, barrier)| {
            let is_there = |arrived: &Arrived| arrived.is_there(now);
            let since = barrier.arrived.values().filter(|one| is_there(one)).map(|one| one.since).min()?;
            let names = |that: bool| {
                let those = barrier.arrived.iter().filter(move |(_, one)| is_there(one) == that);
                let mut names: Vec<String> = those.map(|(who, _)| who.to_string()).take(LISTED).collect();
                names.sort_unstable();
                names
            };
            let arrived = barrier.arrived.len();
            let (there, silent) = (names(true), names(false));
            let there = if there.len() <= NAMED { there } else { Vec::new() };
            let (name, size, arrived) = (name.clone(), barrier.size, count(arrived));
            let gave_up: Vec<String> = barrier.gave_up.iter().map(Label::to_string).collect();
            let missing = barrier.missing().into_iter().filter(|name| !gave_up.contains(name)).collect();
            let refused = barrier.refused.values().cloned().collect();
            Some(OpenBarrier { name, size, arrived, there, silent, missing, gave_up, refused, since })
        });
        open.collect()
    }

    /// From now on, a poll of this arrival waits at the server. `false` if there is no such arrival.
    pub fn park(&mut self, name: &Label, participant: &Label) -> bool {
        let Some(arrived) = self.arrived_mut(name, participant) else { return false };
        arrived.parked = true;
        true
    }

    /// The poll has ended.
    pub fn unpark(&mut self, name: &Label, participant: &Label, now: Timestamp) {
        if let Some(arrived) = self.arrived_mut(name, participant) {
            arrived.parked = false;
            arrived.last_seen = now;
            let at = now + self.patience;
            if let Some(barrier) = self.by_name.get_mut(name) {
                barrier.heard(at);
            }
            self.tidy_by(at);
        }
    }

    fn arrived_mut(&mut self, name: &Label, participant: &Label) -> Option<&mut Arrived> {
        self.by_name.get_mut(name)?.arrived.get_mut(participant)
    }

    /// When [`Self::tick`] wants to be called next.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.tidy_at
    }

    /// Does what is due at this time.
    pub fn tick(&mut self, now: Timestamp) {
        if self.tidy_at.is_some_and(|at| at <= now) {
            self.tidy(now);
        }
    }

    fn tidy_by(&mut self, at: Timestamp) {
        self.tidy_at = Some(self.tidy_at.map_or(at, |known| known.min(at)));
    }

    /// Takes back arrivals whose participants have stopped asking, and forgets barriers that nobody uses.
    fn tidy(&mut self, now: Timestamp) {
        let patience = self.patience;
        let unkept = &mut self.unkept;
        self.by_name.retain(|name, barrier| {
            barrier.drop_silent(patience, now);
            let stays = !barrier.arrived.is_empty() || now.since(barrier.touched) < RELEASED_KEPT;
            if let Some(unkept) = unkept.as_mut().filter(|_| !stays && barrier.released > 0) {
                unkept.insert(name.clone());
            }
            stays
        });
        let next = self.by_name.values().filter_map(Barrier::next_deadline).min();
        self.tidy_at = next.map(|at| at.max(now + TIDY_EVERY));
    }
}

fn check(arrival: &Arrival) -> Result<(), ArrivalRefusal> {
    if arrival.size == 0 || arrival.size > MAX_SIZE {
        return Err(ArrivalRefusal::Bad(format!("world_size must be from 1 to {MAX_SIZE}")));
    }
    match &arrival.members {
        Some(members) if members.len() != arrival.size as usize => {
            Err(ArrivalRefusal::Bad("world_size must be the number of members".into()))
        }
        Some(members) if !members.contains(&arrival.participant) => {
            Err(ArrivalRefusal::Bad(format!("{} is not one of the members", arrival.participant)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp(Duration::from_secs(secs))
    }

    fn label(text: &str) -> Label {
        Label::new(text).expect("a label")
    }

    fn arrival(participant: &str, id: &str, size: u32) -> Arrival {
        let timeout = Duration::from_mins(5);
        Arrival { participant: label(participant), arrival_id: id.into(), size, members: None, timeout }
    }

    fn barriers() -> Barriers {
        Barriers::new(Duration::from_secs(15), 2)
    }

    #[test]
    fn the_last_arrival_releases_all_and_retries_hear_the_same() {
        let (mut barriers, name) = (barriers(), label("b"));
        let (first, _) = barriers.arrive(&name, arrival("a", "1", 2), at(0)).expect("waits");
        assert!(
            matches!(first, ArrivalStanding::Waiting { generation: 1, arrived: 1, size: 2, .. }),
            "{first:?}"
        );
        let (again, _) = barriers.arrive(&name, arrival("a", "1", 2), at(1)).expect("waits");
        assert!(
            matches!(again, ArrivalStanding::Waiting { arrived: 1, .. }),
            "a retry does not arrive twice"
        );
        let (last, mut woken) = barriers.arrive(&name, arrival("b", "1", 2), at(2)).expect("released");
        woken.sort();
        assert_eq!(
            (last, woken),
            (ArrivalStanding::Released { generation: 1, size: 2 }, vec![label("a"), label("b")])
        );
        let (retry, _) = barriers.arrive(&name, arrival("a", "1", 2), at(3)).expect("released");
        assert_eq!(retry, ArrivalStanding::Released { generation: 1, size: 2 });
        let (next, _) = barriers.arrive(&name, arrival("a", "2", 2), at(3)).expect("waits");
        assert!(matches!(next, ArrivalStanding::Waiting { generation: 2, arrived: 1, .. }), "{next:?}");
    }

    #[test]
    fn who_is_missing_is_named_when_time_is_over() {
        let (mut barriers, name) = (barriers(), label("b"));
        let members: BTreeSet<Label> = ["a", "b", "c"].map(label).into();
        let mut mine = arrival("a", "1", 3);
        mine.members = Some(members);
        barriers.arrive(&name, mine, at(0)).expect("waits");
        barriers.park(&name, &label("a"));
        let error = barriers.standing(&name, &label("a"), "1", at(300)).expect_err("too late");
        assert_eq!(error.to_string(), "barrier b: 1 of 3 arrived within 5 min; missing: b, c");
        assert_eq!(
            barriers.standing(&name, &label("a"), "1", at(300)),
            Err(ArrivalRefusal::Gone),
            "it is taken back"
        );
    }

    #[test]
    fn who_was_refused_is_told_until_it_comes_as_the_others_do() {
        let (mut barriers, name) = (barriers(), label("b"));
        barriers.arrive(&name, arrival("a", "1", 3), at(0)).expect("waits");
        barriers.arrive(&name, arrival("c", "1", 4), at(1)).expect_err("another number");
        let members = Some(["a", "b"].map(label).into());
        barriers.arrive(&name, Arrival { members, ..arrival("d", "1", 2) }, at(1)).expect_err("no member");
        let refused = |barriers: &Barriers| barriers.open(at(2)).pop().expect("a waits").refused;
        assert_eq!(refused(&barriers), ["c wants 4", "d is not one of the members"]);
        barriers.arrive(&name, arrival("c", "2", 3), at(2)).expect("waits");
        assert_eq!(refused(&barriers), ["d is not one of the members"]);
    }

    #[test]
    fn who_gave_up_is_told_from_who_never_came() {
        let (mut barriers, name) = (barriers(), label("b"));
        let members: BTreeSet<Label> = ["a", "b", "c"].map(label).into();
        let of_three = |who, seconds| Arrival {
            members: Some(members.clone()),
            timeout: Duration::from_secs(seconds),
            ..arrival(who, "1", 3)
        };
        for (who, seconds) in [("a", 300), ("b", 5)] {
            barriers.arrive(&name, of_three(who, seconds), at(0)).expect("waits");
            barriers.park(&name, &label(who));
        }
        barriers.standing(&name, &label("b"), "1", at(5)).expect_err("its time is over");
        let open = barriers.open(at(6)).pop().expect("a waits");
        assert_eq!((open.missing, open.gave_up), (vec!["c".to_owned()], vec!["b".to_owned()]));
        barriers
            .arrive(&name, Arrival { arrival_id: "2".into(), ..of_three("b", 300) }, at(7))
            .expect("waits");
        let open = barriers.open(at(7)).pop().expect("they wait");
        assert_eq!((open.missing, open.gave_up), (vec!["c".to_owned()], Vec::new()));
    }

    #[test]
    fn an_arrival_that_nobody_asks_after_does_not_count() {
        let (mut barriers, name) = (barriers(), label("b"));
        barriers.arrive(&name, arrival("a", "1", 2), at(0)).expect("waits");
        let (alone, _) = barriers.arrive(&name, arrival("b", "1", 2), at(15)).expect("waits");
        assert!(matches!(alone, ArrivalStanding::Waiting { arrived: 1, .. }), "{alone:?}");
    }

    #[test]
    fn a_participant_whose_connection_closed_is_not_said_to_be_there() {
        let (mut barriers, name) = (barriers(), label("b"));
        for who in ["a", "c"] {
            barriers.arrive(&name, arrival(who, "1", 4), at(0)).expect("waits");
            barriers.park(&name, &label(who));
        }
        barriers.unpark(&name, &label("c"), at(5));
        let said = |barriers: &Barriers, seconds| {
            let open = barriers.open(at(seconds)).pop();
            open.map(|open| (open.arrived, open.there.join(" "), open.silent.join(" ")))
        };
        assert_eq!(said(&barriers, 7), Some((2, "a c".into(), String::new())), "it may ask again");
        assert_eq!(said(&barriers, 8), Some((2, "a".into(), "c".into())), "its arrival counts");
        barriers.unpark(&name, &label("a"), at(9));
        assert_eq!(said(&barriers, 12), None, "nobody waits");
    }

    #[test]
    fn what_nobody_asks_after_is_forgotten_without_a_request() {
        let (mut barriers, name) = (barriers(), label("b"));
        barriers.arrive(&name, arrival("a", "1", 2), at(0)).expect("waits");
        barriers.park(&name, &label("a"));
        barriers.tick(at(60));
        assert_eq!(barriers.waiting().count(), 1, "somebody waits");
        barriers.unpark(&name, &label("a"), at(60));
        barriers.tick(at(74));
        assert_eq!(barriers.waiting().count(), 1, "it may come back");
        while let Some(next) = barriers.next_deadline() {
            assert!(next < at(200), "it comes to rest");
            barriers.tick(next);
        }
        assert_eq!((barriers.waiting().count(), barriers.by_name.len()), (0, 0));
    }

    #[test]
    fn another_size_is_refused_with_both_sizes_named() {
        let (mut barriers, name) = (barriers(), label("b"));
        barriers.arrive(&name, arrival("a", "1", 2), at(0)).expect("waits");
        let error = barriers.arrive(&name, arrival("b", "1", 3), at(0)).expect_err("other size");
        assert_eq!(error.to_string(), "barrier b: a arrived first and waits for 2, but b wants 3");
    }

    #[test]
    fn there_is_a_limit_and_old_barriers_make_room() {
        let mut barriers = barriers();
        for name in ["x", "y"] {
            barriers.arrive(&label(name), arrival("a", "1", 1), at(0)).expect("released");
        }
        assert_eq!(
            barriers.arrive(&label("z"), arrival("a", "1", 1), at(1)),
            Err(ArrivalRefusal::TooMany(2))
        );
        barriers.arrive(&label("z"), arrival("a", "1", 1), at(61)).expect("room");
    }
}
