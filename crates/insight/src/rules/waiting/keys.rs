//! Waits for keys of the program, and for groups on a store with a prefix of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::facts::{Client, Meeting, Published, RunKey, TrackedRun, Waiting, process};
use crate::identity::processes::Graph;
use crate::reason::{
    Code, Finding, Hold, Names, Place, Presence, RESET, SAME_GROUPS, SLIP, Sighting, all, are, clients, has,
    have_waited, if_any, if_some,
};
use crate::rules::waiting::NOT_REACHED;
use rallypoint_api::Severity;
use rallypoint_protocol::ids::{ConnId, Elapsed, ShownKey, Timestamp, count};
use rallypoint_protocol::keys::{
    BARRIER, KeyPattern, RendezvousPart, Role, address_of, below_own_prefix, classify, is_asked_for,
    is_promised, own_member, published_by, store_barrier, wanted,
};
use rallypoint_store::{KeyPast, Polled, Similar};

const WRITER_GONE: &str = "look at the log of the process that publishes it; a process publishes once, and \
                           again only when it is started anew";
const POLLED: &str = "look which value is waited for there, and what the process does that is to write it";
/// All that are known have come to a barrier, and it does not end.
const ALL_ARRIVED: &str = "does the barrier count on more than there are, or was its name used before? torch \
                           ends it with the arrival that makes its counter the number of all";
const STATE_DROPPED: &str = "a node that joins writes it again, and the others join it; if none is to come, \
                             restart all agents of the job together";
const LOCKED: &str = "if that is a lock: look at the process that has it, and, where that has ended, take \
                      the key away";

/// The barrier that is waited at with this key: one of a group, which torch before 2.1 polls, a BARRIER, or
/// one of `torch.distributed.elastic.utils.store`, which counts arrivals in `num_members`.
fn barrier_of(key: &[u8], size: Option<i64>) -> Option<String> {
    if wanted(key).what == BARRIER {
        return Some(store_barrier(key));
    }
    let name = if size.is_some() { key } else { key.strip_suffix(b"/last_member")? };
    Some(format!("the barrier `{}`", ShownKey(name)))
}

/// Agents wait for the state of their c10d rendezvous only when it was dropped: it is there from the first of
/// them on.
fn is_state(key: &[u8]) -> bool {
    matches!(classify(key), Some(KeyPattern::Rendezvous { part: RendezvousPart::State, .. }))
}

/// Waits, each with the connection by which its process is known.
type Waiters<'w> = Vec<(ConnId, &'w Waiting)>;

/// The members of a group by the number that they are prepared for.
fn by_size(members: &BTreeMap<ConnId, &Published>) -> BTreeMap<u32, BTreeSet<ConnId>> {
    let mut sizes: BTreeMap<u32, BTreeSet<ConnId>> = BTreeMap::new();
    for (&conn, it) in members {
        sizes.entry(it.size.unwrap_or_default()).or_default().insert(conn);
    }
    sizes
}

impl Graph<'_> {
    /// The group, its prefix and the member that is to write what a wait is for, if the key has the form of a
    /// group below a prefix of the program's own, or others have published beside it.
    fn own_member<'w>(&self, wait: &'w Waiting) -> Option<(&'w [u8], &'w [u8], u32)> {
        let key = wait.view.missing.first()?;
        let is_one = |group| self.published().contains_key(group) || below_own_prefix(key).is_some();
        own_member(key).filter(|(group, ..)| is_one(*group))
    }

    /// Waits for keys that tell no writer: those of a program, of barriers, of groups below a prefix of its
    /// own, the messages of groups without `init_process_group`; and what some ask for again and again.
    pub(crate) fn of_unknown_keys(&self) -> Vec<(Option<RunKey>, Finding)> {
        const MOST: usize = 64;
        let is_message = |key: &[u8]| matches!(classify(key), Some(KeyPattern::Message));
        let is_here = |wait: &&Waiting| !self.jobs.links.is_away(wait.view.peer);
        // A program may have many keys of its own: barriers come first.
        let mut by_key: BTreeMap<(bool, &[u8]), Waiters<'_>> = BTreeMap::new();
        for wait in self.store.every_wait().filter(is_here) {
            let Some(key) = wait.view.missing.first() else { continue };
            let is_barrier = wanted(key).what == BARRIER;
            let is_known = is_barrier || is_state(key) || self.own_member(wait).is_some() || is_promised(key);
            if is_known || is_asked_for(key) || is_message(key) {
                let waiter = self.member(wait).unwrap_or(wait.view.conn);
                by_key.entry((!is_barrier, key)).or_default().push((waiter, wait));
            }
        }
        let mut found = Vec::new();
        for ((_, key), waits) in by_key {
            let mut by_run: BTreeMap<Option<&RunKey>, Waiters<'_>> = BTreeMap::new();
            for &(waiter, wait) in &waits {
                let run = self.store.clients.get(&waiter).and_then(|client| client.run.as_ref());
                by_run.entry(run.filter(|_| published_by(key).is_none())).or_default().push((waiter, wait));
            }
            let found_here = by_run.into_iter().filter_map(|(run, members)| {
                Some((run.cloned(), self.unknown_key(key, run, members, &waits)?))
            });
            found.extend(found_here);
            if found.len() >= MOST {
                break;
            }
        }
        found
    }

    /// Groups whose members are prepared for different numbers of them.
    pub(crate) fn groups_that_differ(&self) -> Vec<(Option<RunKey>, Finding)> {
        let found = self.published().iter().filter_map(|(group, members)| {
            let sizes = by_size(members);
            // Where two have one rank, one was a member before, and the other has taken its place.
            let ranks: BTreeSet<u32> = members.values().map(|it| it.rank).collect();
            let differ = sizes.len() > 1 && ranks.len() == members.len();
            let since = members.values().map(|it| it.at).max().filter(|_| differ)?;
            let sizes = Names::of_some(&sizes, |(size, members)| {
                format!("{} for {size}", Names::of_some(members, |conn| self.who(*conn)))
            });
            let about = ShownKey(group).to_string();
            let text =
                format!("the members of the group below `{about}` are prepared for different sizes: {sizes}");
            let reason = Code::WorldSizesDiffer.says(text).hold(Hold::Soon).look_at(SAME_GROUPS);
            let run = self.store.clients.get(members.keys().next()?)?.run.clone();
            Some((run, Finding::new(reason, about, since)))
        });
        found.collect()
    }

    /// Whether keys show a job here: agents or ranks. Who meets without telling ranks is not known.
    fn has_job(&self) -> bool {
        let is_job = |run: &TrackedRun| {
            let is_here = [run.store(), run.met_at()].contains(&Some(self.store.port));
            let has_ranks = run.world.meetings.iter().any(Meeting::is_live);
            is_here && run.goes_on() && (run.has_agents() || has_ranks)
        };
        self.jobs.runs.values().any(is_job)
    }

    /// What `members` of a run, each with its wait, wait for at one key of the program. Who is not there is
    /// told only if all are known that have one of the `waits` for it.
    fn unknown_key(
        &self,
        key: &[u8],
        run: Option<&RunKey>,
        mut members: Waiters<'_>,
        waits: &[(ConnId, &Waiting)],
    ) -> Option<Finding> {
        let rank = |conn: &ConnId| self.store.clients.get(conn).and_then(|client| client.rank);
        members.sort_by_key(|(conn, wait)| (rank(conn), *conn, wait.since));
        let since = members.iter().map(|(_, wait)| wait.since).min()?;
        let waited = Elapsed(self.now.since(since));
        let about = ShownKey(key).to_string();
        members.dedup_by_key(|(conn, _)| *conn);
        // A process of no job may wait on several connections.
        let mut processes = HashSet::new();
        members.retain(|(_, wait)| {
            let is_known = wait.view.pid.is_some() && run.is_none();
            !is_known || processes.insert(wait.origin())
        });
        let publisher_of = |conn: &ConnId| {
            self.store.publishers.iter().find(|(_, it)| it.conn == *conn && it.gone.is_none())
        };
        let who = Names::of_some(&members, |(conn, wait)| match self.store.clients.get(conn) {
            Some(client) => match publisher_of(conn) {
                Some((name, _)) => format!("agent {} ({})", ShownKey(name), client.label()),
                None => self.who(*conn),
            },
            None => process(wait.view.pid, wait.view.peer),
        });
        let run = run.and_then(|run| self.jobs.runs.get(run));
        let &(first, wait) = members.first()?;
        let polled = members.iter().find_map(|(_, wait)| wait.view.polled);
        let number = if let Some(Polled::Is(it)) = polled { usize::try_from(it).ok() } else { None };
        let (size, arrived) = (wait.view.barrier_size, wait.view.arrived.map(|it| it as usize).or(number));
        let of_run = run.filter(|_| self.has_job()).map(|run| (run, self.meeting(first, run)));
        let group = members.iter().find_map(|(_, wait)| self.own_member(wait));
        // How many members those who have published there are prepared for.
        let sizes =
            group.and_then(|(group, ..)| self.published().get(group)).map(by_size).unwrap_or_default();
        // Whatever their runs: they may be told apart only for a moment.
        let waits: Vec<&Waiting> = waits.iter().map(|(_, wait)| *wait).collect();
        let mut strangers = (Names::default(), Names::default());
        let (ended, others) = match of_run {
            _ if is_state(key) => Default::default(),
            Some((run, meeting)) => {
                let are_known = waits.iter().all(|wait| self.member(wait).is_some());
                if are_known && !run.world.is_unnamed() && !self.store.is_large() {
                    let others = self.not_among(None, &waits, [], |it| !it.is_member());
                    strangers = (self.passed_since(since, |_| true), others);
                }
                (self.ended_ranks(run, meeting), self.not_among(of_run, &waits, [], |_| true))
            }
            None if group.is_none() && (self.has_job() || is_promised(key)) => Default::default(),
            None => {
                let others = self.not_among(None, &waits, sizes.values().flatten(), |_| true);
                (self.passed_since(since, |_| true), others)
            }
        };
        // The others have nothing to do with a lock.
        let (holder, seen) = self.holder(polled, wait.view.past);
        let (ended, others) = if holder.is_empty() { (ended, others) } else { Default::default() };
        let publisher = published_by(key);
        let most = sizes.keys().next_back();
        let is_beyond = group.zip(most).is_some_and(|((.., rank), most)| rank >= *most);
        // The group has no such member: nobody is missing.
        let (ended, others) = if is_beyond { Default::default() } else { (ended, others) };
        let reason = if let Some((_, prefix, rank)) = group {
            let is_apart = |wait| match self.own_member(wait) {
                Some((_, other, _)) => other != prefix,
                None => wait.view.missing.first().is_some_and(|key| address_of(key).is_some()),
            };
            let are_apart = self.store.waits.values().any(is_apart);
            let (have, below) = (have_waited(who.count()), ShownKey(prefix));
            let size = sizes.keys().next().copied().filter(|_| sizes.len() == 1);
            let group = if_some(size, |size| format!(" of {size}"));
            let what = format!("the address of rank {rank} of the group{group} below the prefix `{below}`");
            let is_full = size.is_some_and(|size| who.count() >= size as usize);
            let text = format!("{who} {have} {waited} for {what}");
            Code::Waiting.says(text).look_at(match () {
                () if is_beyond || is_full || sizes.len() > 1 || are_apart => SAME_GROUPS,
                () => NOT_REACHED,
            })
        } else if let Some(barrier) = barrier_of(key, size) {
            let size = size.and_then(|size| u32::try_from(size).ok());
            let of = if_some(size, |size| format!(" of {size}"));
            let waits = have_waited(who.count());
            let reached = if_some(arrived, |arrived| format!(", which {arrived} {} reached", has(arrived)));
            let text = format!("{who} {waits} {waited} at {barrier}{of}{reached}");
            match wanted(key).what {
                BARRIER if polled.is_none() && others.is_empty() && ended.is_empty() => {
                    Code::Waiting.says(text).look_at(ALL_ARRIVED)
                }
                BARRIER => Code::Waiting.says(text).look_at(NOT_REACHED),
                _ => Code::WaitingAtBarrier.says(text),
            }
        } else {
            let similar = members.iter().find_map(|(_, wait)| wait.view.similar.as_ref());
            let gone = publisher.and_then(|name| self.store.publishers.get(name)?.gone);
            let is_led = is_promised(key) && publisher.is_none();
            let (why, look_at) = match (gone, polled) {
                _ if is_state(key) => (
                    "which was dropped: an operator reset the store, or had the run forgotten".into(),
                    STATE_DROPPED,
                ),
                _ if is_led => ("which an agent that leads them (is_host=1) writes".into(), NOT_REACHED),
                (Some(at), _) => {
                    let ago = Elapsed(self.now.since(at));
                    (format!("whose writer's connection closed {ago} ago"), WRITER_GONE)
                }
                (None, Some(Polled::Is(number))) => (format!("which is {number}"), POLLED),
                (None, Some(Polled::Shared)) => {
                    ("to which others have added, too: what they add they take back".into(), LOCKED)
                }
                (None, Some(Polled::Held)) => {
                    ("which holds another value than their compare_set expects".into(), LOCKED)
                }
                (None, Some(Polled::Absent | Polled::AbsentAgain) | None) => self.absence(wait, run),
            };
            let only_asks = |wait: &Waiting| wait.view.polled.is_some_and(|it| it != Polled::AbsentAgain);
            let only_asks = members.iter().all(|(_, wait)| only_asks(wait));
            let n = who.count();
            let text = if only_asks {
                let again = "again and again for up to";
                format!("{who} {} asked for `{about}` {again} {waited}, {why}", has(n))
            } else {
                format!("{who} {} {waited} for `{about}`, {why}", have_waited(n))
            };
            let reason = match () {
                () if is_state(key) => {
                    let text = format!("{} {waited} for `{about}`, {why}", clients(&who));
                    Code::StoreReset.says(text).severe(Severity::Warning).hold(Hold::Lasting)
                }
                () if is_led => Code::Waiting.says(text),
                () => Code::WaitingForKey.says(text),
            };
            let reason = reason.look_at(look_at);
            let is_slip = matches!(similar, Some(Similar::Slip(_))) && gone.is_none();
            reason
                .when(is_slip, |reason| reason.look_at(SLIP))
                .then(&if_some(similar, |similar| self.beside_key(similar)))
        };
        let more = members.iter().flat_map(|(_, wait)| wait.view.missing.iter().skip(1));
        let more = Names::of_some(more.collect::<BTreeSet<_>>(), |key| format!("`{}`", ShownKey(key)));
        let what = if of_run.is_some() { Place::Rank } else { Place::Process };
        let reason = reason.and("waited for with it", &more).held(&who).ended(what, &ended);
        let reason = reason.others(what, &others).lacks("written by", what, &holder, seen);
        let reason = reason.then(&self.all_wait()).and("gone, and told no rank here", &strangers.0);
        let reason = reason.may_be("connected, and told no rank here", strangers.1);
        let waits = members.iter().map(|(conn, wait)| self.evidence(*conn, wait));
        Some(Finding::new(reason, about, since).seen(waits))
    }

    /// Who has written the value of a lock, and is connected or not.
    fn holder(&self, polled: Option<Polled>, past: KeyPast) -> (Names, Presence) {
        let (Some(Polled::Held), KeyPast::Written(wrote)) = (polled, past) else {
            return (Names::default(), Presence::Unknown);
        };
        if let Some(closed) = self.store.passed.iter().find(|it| it.conn == wrote).map(|it| &it.closed) {
            let closed = self.with(&closed.who, Sighting::at(Presence::Closed, closed.at));
            return (Names::of([closed]), Presence::Closed);
        }
        let there = self.everybody().get(&wrote);
        let there = there.map(|(who, known)| self.with(who, self.doing(*known, None)));
        (Names::of(there), Presence::Connected)
    }

    /// `; all 3 processes that are connected wait`: none of them writes what they wait for. Agents write
    /// nothing for programs. Who only asks again and again is told as such.
    fn all_wait(&self) -> String {
        if self.store.is_large() {
            return String::new();
        }
        let mut waits: HashMap<_, bool> = HashMap::new();
        for wait in self.store.every_wait() {
            let blocks = wait.view.polled.is_none_or(|it| it == Polled::AbsentAgain);
            *waits.entry(wait.origin()).or_default() |= blocks;
        }
        let clients = || self.store.clients.values();
        let agents: HashSet<_> = clients().filter(|it| it.role == Role::Agent).map(Client::origin).collect();
        let others: HashSet<_> = clients().map(Client::origin).filter(|it| !agents.contains(it)).collect();
        let does: Option<Vec<bool>> = others.iter().map(|it| waits.get(it).copied()).collect();
        let Some(does) = does.filter(|does| does.len() > 1) else { return String::new() };
        let ask = if does.contains(&false) { " or ask again and again" } else { "" };
        let but = if agents.is_empty() { "" } else { " but the agents" };
        format!("; {} that are connected wait{ask}{but}", all(count(does.len()), "processes"))
    }

    /// A key that is there, and tells something of one that is not, with who has written it.
    fn beside_key(&self, similar: &Similar) -> String {
        match similar {
            Similar::Slip(key) => format!("; `{}` exists", ShownKey(key)),
            Similar::Beside(keys, more) => {
                let keys = Names::of_some(keys, |(key, writers)| {
                    let by: BTreeSet<String> = writers.iter().filter_map(|conn| self.named(*conn)).collect();
                    format!("`{}`{}", ShownKey(key), if_any(" written by ", &Names::of(by)))
                });
                let keys = Names { more: *more, ..keys };
                format!("; beside it there {} {keys}", are(keys.count()))
            }
        }
    }

    /// Who has this connection, or had it.
    fn named(&self, conn: ConnId) -> Option<String> {
        let meetings = || self.jobs.runs.values().flat_map(|run| &run.world.meetings);
        let rank = || meetings().flat_map(Meeting::ranks).find(|(_, info)| info.conn == conn);
        let passed = || self.store.passed.iter().find(|it| it.conn == conn).map(|it| it.closed.who.clone());
        let conn = self.store.moved.get(&conn).copied().unwrap_or(conn);
        let there = self.everybody().get(&conn).map(|(who, _)| who.clone());
        there.or_else(|| rank().map(|(rank, info)| info.label(rank))).or_else(passed)
    }

    /// Why the key that a program waits for is not there, and what to look at.
    fn absence(&self, wait: &Waiting, run: Option<&TrackedRun>) -> (String, &'static str) {
        // It may have been there before.
        let client = || self.store.clients.get(&wait.view.conn).map(|client| client.since);
        let since = run.map(|run| run.first_seen).or_else(client);
        let reset = self.store.reset.filter(|at| since.is_some_and(|since| since <= *at));
        let did = |conn: ConnId, what: &str, at: Timestamp| {
            let who = self.named(conn).unwrap_or_else(|| "a client".into());
            format!("which was there: {who} {what} {} ago", Elapsed(self.now.since(at)))
        };
        let why = match (wait.view.past, reset) {
            (KeyPast::Deleted(conn, at), _) => did(conn, "deleted it", at),
            (KeyPast::Taken(conn, at), _) => did(conn, "took its last item", at),
            (_, Some(at)) => {
                let ago = Elapsed(self.now.since(at));
                return (format!("which does not exist; an operator reset the store {ago} ago"), RESET);
            }
            (KeyPast::NotDeleted, None) if self.store.reset.is_none() => "which nobody has written".into(),
            // It was written and deleted, or it is not known any more whether it was.
            _ => "which does not exist".into(),
        };
        (why, Code::WaitingForKey.rule().look_at)
    }
}
