//! Looks at what is known as time goes by: what has changed, what holds, and what to say about it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::adapters::store::Fold;
use crate::epoch::Epoch;
use crate::facts::run::{Membership, RunKey, SETTLE, TrackedNode, TrackedRun};
use crate::facts::store::{Beside, Claim, Clash, Client, Foreign, GivenUp, Passed};
use crate::facts::wanted::wanted;
use crate::jobs::Jobs;
use crate::reason::presence::{Place, Presence};
use crate::reason::words::{SAME_GROUPS, has, if_some};
use crate::reason::{Code, Evidence, Finding, Names, Reason};
use crate::report::log::{Change, Subject, Topic, Utterance};
use crate::report::summary::summary;
use crate::report::told::Told;
use crate::rules::{self, conditions, losses};
use rallypoint_api::{RunKind, RunState, Seen, Severity, TimelineEvent};
use rallypoint_protocol::ids::{ConnId, Elapsed, ShownKey, Timestamp, counted};
use rallypoint_protocol::keys::{Role, is_asked_for};
use rallypoint_rendezvous::barrier::OpenBarrier;
use rallypoint_store::is_slip;

/// Two agents' runs in one store are two jobs when both have been there this long.
const SETTLED: Duration = Duration::from_secs(2);
/// Gathering runs whose ids are compared, each with each.
const MOST_COMPARED: usize = 256;
/// A connection that only counted itself counts as a worker after this long.
const UNDECIDED: Duration = Duration::from_secs(5);
/// A client that gave up is seen to wait for the same key again within this time: waits are told each second,
/// when they have lasted for one.
const RETRIED: Duration = Duration::from_secs(3);
const POLLS: &str =
    "nothing, if the program means to poll; else look at the process that should write the key";
/// A run that is over is shown this long.
const OVER_SHOWN: Duration = Duration::from_hours(1);

/// Something that was found about a run, or only about a store.
struct Held {
    store: Option<u16>,
    run: Option<RunKey>,
    finding: Finding,
}

/// What is known, what has been said, and the time.
pub(crate) struct Look<'i> {
    pub(crate) jobs: &'i mut Jobs,
    pub(crate) told: &'i mut Told,
    pub(crate) explain_after: Duration,
    pub(crate) epoch: Epoch,
    pub(crate) now: Timestamp,
}

impl Look<'_> {
    /// Clients of `env://` that only counted themselves are workers that have not got further. Not those that
    /// count others: they may be agents.
    pub(crate) fn decide_roles(&mut self) {
        let at = self.now;
        let is_undecided = |client: &Client| {
            client.role == Role::Unknown && client.has_counted_itself && at.since(client.since) >= UNDECIDED
        };
        let mut undecided: Vec<(Timestamp, u16, ConnId)> = Vec::new();
        for store in self.jobs.stores.values() {
            let counts = |conn| store.waits.get(conn).is_some_and(|wait| wait.view.counted.is_some());
            let clients =
                store.clients.iter().filter(|&(conn, client)| is_undecided(client) && !counts(conn));
            undecided.extend(clients.map(|(&conn, client)| (client.since, store.port, conn)));
        }
        // Agents that gather have no workers yet: it may be one of them.
        let gathers = |run: &TrackedRun| run.kind == RunKind::Static && run.round.completed.is_none();
        undecided.retain(|(_, port, _)| {
            let mut runs = self.jobs.runs.values().filter(|run| run.store() == Some(*port));
            !runs.any(|run| gathers(run) && !run.agents.is_empty())
        });
        undecided.sort_unstable();
        for (since, port, conn) in undecided {
            Fold { jobs: self.jobs, told: self.told, port, at }.settle_worker(conn, since);
        }
    }

    /// Agents whose own writes have not shown their node are found by process id.
    pub(crate) fn match_agents(&mut self) {
        for run in self.jobs.runs.values_mut().filter(|run| run.kind == RunKind::C10d) {
            if run.nodes().all(|node| node.conn.is_some()) {
                continue;
            }
            let Some(store) = run.store().and_then(|port| self.jobs.stores.get(&port)) else { continue };
            let taken: HashSet<ConnId> = run.nodes().filter_map(|node| node.conn).collect();
            let free: Vec<ConnId> = run.agents.iter().filter(|conn| !taken.contains(conn)).copied().collect();
            let mut same_pid: HashMap<Option<u32>, usize> = HashMap::new();
            for client in free.iter().filter_map(|conn| store.clients.get(conn)) {
                let clients = same_pid.entry(client.pid).or_default();
                *clients = clients.saturating_add(1);
            }
            for conn in free {
                let Some(client) = store.clients.get(&conn) else { continue };
                if same_pid.get(&client.pid) == Some(&1) {
                    run.match_by_pid(conn, client.pid, Some(client.peer));
                }
            }
            let is_unclear = same_pid.contains_key(&None);
            run.have_agents(|pid| is_unclear || same_pid.contains_key(&pid));
        }
    }

    /// Lets time pass for each run, and reports what was found of runs and links.
    pub(crate) fn pass_time(&mut self) {
        for key in self.jobs.runs.keys().cloned().collect::<Vec<_>>() {
            let plan = self.jobs.plan(&key);
            let Some(run) = self.jobs.runs.get_mut(&key) else { continue };
            run.pass_time(&plan, self.explain_after, self.now);
            let (moments, findings) = run.take_findings();
            let name = self.jobs.name(&key);
            for moment in moments {
                self.told.tell(Change::TimelineEvent(TimelineEvent {
                    at: self.epoch.unix(moment.at),
                    run_id: Some(name.clone()),
                    code: moment.code,
                    text: moment.text,
                }));
            }
            for finding in findings {
                // A node that is refused may come again and again.
                let code = finding.reason.code;
                if code == Code::JoinRefused && self.told.log.shows(&key, code, &finding.about) {
                    continue;
                }
                self.jobs.totals.count(finding.reason.tally);
                self.fact(Held { store: key.port(), run: Some(key.clone()), finding });
            }
        }
        let news = std::mem::take(&mut self.jobs.links.untold);
        for finding in rules::links::happened(&news, self.jobs.links.grace) {
            self.fact(Held { store: None, run: None, finding });
        }
    }

    fn subject_of(&self, held: &Held) -> Subject {
        let Some(key) = &held.run else { return Subject::default() };
        let name = self.jobs.name(key);
        // torchrun's name of a run that was given none: "none complete" would say that nobody is.
        let named = if name == "none" { format!("run {name}") } else { name.clone() };
        let text = match self.jobs.runs.get(key) {
            // Two runs of one id are in rounds of their own.
            Some(_) if held.finding.reason.code == Code::TwoBackends => named,
            // The native rendezvous names the round itself, and most static jobs have only one.
            Some(run) if run.kind == RunKind::C10d || run.kind == RunKind::Static && run.round.number > 0 => {
                format!("{named} round {}", held.finding.round.unwrap_or(run.round.number))
            }
            _ => named,
        };
        Subject { run_id: Some(name), text: Some(text) }
    }

    fn fact(&mut self, mut held: Held) {
        let subject = self.subject_of(&held);
        held.finding.reason.is_detail |= self.is_detail(&held);
        let run = held.run.as_ref().and_then(|key| self.jobs.runs.get(key));
        let is_complete = held.finding.reason.code == Code::RoundComplete;
        if let Some(run) = run.filter(|run| is_complete && run.is_elastic()) {
            self.told.log.rounds_before(&run.key);
        }
        let topic = Topic::of(held.store, held.run, &held.finding);
        let utterance = self.told.log.fact(topic, subject, held.finding, self.now);
        self.say(utterance);
    }

    /// Whether a run is told without it, as its nodes are at the exit barrier when it is closed.
    fn is_detail(&self, held: &Held) -> bool {
        let run = held.run.as_ref().and_then(|key| self.jobs.runs.get(key));
        let Reason { code, severity, .. } = held.finding.reason;
        let is_close = (code, severity) == (Code::RunClosed, Severity::Info);
        // The rendezvous learns only afterwards that those at the barrier have succeeded.
        run.is_some_and(|run| is_close && (run.state == RunState::Finished || !run.round.exit.is_empty()))
    }

    fn say(&mut self, utterances: impl IntoIterator<Item = Utterance>) {
        for (run, change) in utterances {
            if let Some(run) = run.and_then(|key| self.jobs.runs.get_mut(&key)) {
                run.touch();
                if let Change::Explanation { explanation: said, aloud: true, .. } = &change {
                    run.remember(self.now, &said.code, said.text.clone());
                }
            }
            self.told.tell(change);
        }
    }

    /// Reports which clients gave up on which key, together for one key.
    pub(crate) fn tell_given_up(&mut self) {
        let mut due = Vec::new();
        for store in self.jobs.stores.values_mut() {
            if store.given_up.is_empty() {
                continue;
            }
            // Who tries again may do so on another connection.
            let mut last_came: HashMap<(IpAddr, u32), Timestamp> = HashMap::new();
            for client in store.clients.values() {
                if let Some(process) = client.process() {
                    let since = last_came.entry(process).or_default();
                    *since = client.since.max(*since);
                }
            }
            let came = |gave_up: &Evidence| last_came.get(&(gave_up.peer?.ip(), gave_up.pid?)).copied();
            let clients = &store.clients;
            let settled = store.given_up.extract_if(.., |_, given_up| {
                let is_there = |(conn, gave_up): &(ConnId, Evidence)| {
                    clients.contains_key(conn) || came(gave_up).is_some()
                };
                let may_retry = given_up.who.iter().any(is_there);
                self.now.since(given_up.at) >= if may_retry { RETRIED } else { SETTLE }
            });
            for (key, mut given_up) in settled.collect::<Vec<_>>() {
                let tries_again = |(conn, gave_up): &(ConnId, Evidence)| {
                    store.waits.get(conn).is_some_and(|wait| wait.view.missing.contains(&key.1))
                        || came(gave_up).is_some_and(|since| since >= gave_up.at)
                };
                given_up.again |= given_up.who.iter().any(tries_again);
                if store.may_say(&key, self.now) {
                    due.push((store.port, key, given_up));
                }
            }
        }
        for (port, (run, key), given_up) in due {
            let met = run.as_ref().and_then(|run| self.jobs.runs.get(run)?.world.last_met);
            // What they gave up on has come since, and all have met; or it is told as one long wait.
            if given_up.again && (is_asked_for(&key) || met.is_some_and(|met| met >= given_up.at)) {
                continue;
            }
            let GivenUp { waited, who, more, again, beside, at } = given_up;
            let Beside { writer, missing, others, ended } = beside;
            let shown = who.iter().map(|(_, gave_up)| gave_up.who.clone()).collect();
            let evidence = who.into_iter().map(|(_, gave_up)| gave_up);
            let who = Names { shown, more, range: None };
            let (about, waited) = (ShownKey(&key).to_string(), Elapsed(waited));
            let tries = if again { " to try again" } else { "" };
            // The one that must write it is named already.
            let missing = if missing.count() == 1 { Names::default() } else { missing };
            let writer = if_some(writer, |writer| format!("; it must come from {writer}"));
            let reason = Code::GaveUp
                .says(format!("{who} gave up on `{about}` after {waited}{tries}{writer}"))
                .held(&who)
                .lacks("missing", Place::Rank, &missing, Presence::Unknown)
                .ended(&ended)
                .others(&others)
                .when(again, |reason| reason.severe(Severity::Info).look_at(POLLS));
            let finding = Finding::new(reason, about, at).seen(evidence).in_round(wanted(&key).round);
            self.fact(Held { store: Some(port), run, finding });
        }
    }

    /// Reports whether clashes come from two nodes or from two jobs, when all of them should be known.
    pub(crate) fn tell_clashes(&mut self) {
        self.tell_second_jobs();
        let mut due: Vec<(u16, Vec<Clash>)> = Vec::new();
        for store in self.jobs.stores.values_mut() {
            if store.clashes.first().is_some_and(|clash| self.now.since(clash.at) >= SETTLE) {
                due.push((store.port, std::mem::take(&mut store.clashes)));
            }
        }
        for (port, mut clashes) in due {
            clashes.retain(|clash| clash.conns.iter().all(|conn| !self.is_away(port, *conn)));
            clashes.sort_by(|a, b| (&a.run, &a.claim).cmp(&(&b.run, &b.claim)));
            let clients = self.jobs.stores.get(&port).map(|store| &store.clients);
            let is_there = |conn: &ConnId| clients.is_some_and(|clients| clients.contains_key(conn));
            let are_alike = |a: &Clash, b: &Clash| a.run == b.run && a.claim.is_like(&b.claim);
            let mut found = Vec::new();
            for clashes in clashes.chunk_by(are_alike) {
                let of_one = clashes.chunk_by(|a, b| a.claim == b.claim);
                let mut all = of_one.flat_map(|clashes| live(clashes, is_there)).peekable();
                let Some(&first) = all.peek() else { continue };
                let mut who: BTreeMap<Claim, BTreeMap<ConnId, String>> = BTreeMap::new();
                let clashes = all.flat_map(|Clash { claim, conns, wrote, .. }| {
                    let named = conns.iter().copied().zip(wrote);
                    named.map(|(conn, wrote)| (claim.clone(), conn, wrote.who.clone()))
                });
                // Some were not seen: what the first wrote had been dropped before the second came.
                for (claim, conn, name) in clashes.chain(self.claims(port, &first.run, &first.claim)) {
                    who.entry(claim).or_default().entry(conn).or_insert(name);
                }
                let finding = duplicates(first, who, self.are_alone(first));
                found.push(Held { store: Some(port), run: Some(first.run.clone()), finding });
            }
            for held in found {
                self.fact(held);
            }
        }
    }

    /// Whether both processes are the only ranks of their groups: neither reads what the other writes over.
    fn are_alone(&self, clash: &Clash) -> bool {
        let (Claim::Rank(rank), Some(run)) = (&clash.claim, self.jobs.runs.get(&clash.run)) else {
            return false;
        };
        clash.conns.iter().all(|conn| run.world.of(Some(*rank), *conn).size == Some(1))
    }

    /// All of the kind of `one` that two live processes of a run claim, with their names.
    fn claims(&self, port: u16, run: &RunKey, one: &Claim) -> Vec<(Claim, ConnId, String)> {
        let Some(run) = self.jobs.runs.get(run) else { return Vec::new() };
        let of_rival = |rival: &TrackedNode| {
            let rank = rival.rank?;
            Some((Claim::NodeRank(rank), [rival.conn?, run.node_of_rank(rank)?.conn?]))
        };
        let twice = run.world.claimed_twice.iter();
        let twice = twice.map(|(&rank, &(one, other))| (Claim::Rank(rank), [one, other]));
        let all = run.those(Membership::Rival).filter_map(of_rival).chain(twice);
        let named = all.filter(|(claim, _)| claim.is_like(one)).flat_map(|(claim, conns)| {
            conns.map(|conn| (claim.clone(), conn, self.jobs.claimant(port, conn, &claim)))
        });
        named.collect()
    }

    /// Reports runs each of whose ranks a live process has already. Of agents there is one run: these may be
    /// of its last round.
    fn tell_second_jobs(&mut self) {
        let without_agents = self.jobs.runs.iter_mut().filter(|(_, run)| !run.has_agents());
        let found: Vec<_> =
            without_agents.filter_map(|(key, run)| Some((key.clone(), run.take_second_job()?))).collect();
        for (key, (ranks, rank, claims)) in found {
            let port = key.port();
            let Some(store) = port.and_then(|port| self.jobs.stores.get_mut(&port)) else { continue };
            store.clashes.retain(|clash| clash.run != key);
            let who = |conn| store.clients.get(&conn).map_or_else(|| "a process".into(), Client::label);
            let both = Names::of(claims.map(who));
            let text =
                format!("each of {ranks} ranks is claimed by several live processes: rank {rank} by {both}");
            let reason = Code::TwoJobs.says(text).held(&both).look_at(
                "if these are two jobs, give each its own store (--listen twice, or POST /api/v1/stores); if \
                 one process started the other (data workers), only one may make the process group",
            );
            let finding = Finding::new(reason, "", self.now);
            self.fact(Held { store: port, run: Some(key), finding });
        }
    }

    /// Reports processes that only counted themselves and ended, where nobody is there who waits for them.
    pub(crate) fn tell_passed(&mut self) {
        for port in self.jobs.stores.keys().copied().collect::<Vec<_>>() {
            let gathers = |run: &TrackedRun| {
                let state = run.state;
                run.met_at() == Some(port) && !state.is_over() && state != RunState::Running
            };
            let is_waited_for = self.jobs.runs.values().any(gathers);
            let Some(store) = self.jobs.stores.get_mut(&port) else { continue };
            let mut due: Vec<&mut Passed> =
                store.passed.iter_mut().filter(|passed| !passed.is_told).collect();
            let (Some(first), Some(last)) = (due.first(), due.last()) else { continue };
            let (since, quiet) = (first.closed.at, self.now.since(last.closed.at));
            // All that end together are told together.
            if quiet < SETTLE && self.now.since(since) < SETTLE.saturating_mul(2) {
                continue;
            }
            for passed in &mut due {
                passed.is_told = true;
            }
            let finding = losses::passed(port, &due, since);
            // Programs may do so again and again.
            if !is_waited_for && store.may_say(&(None, Box::default()), self.now) {
                self.fact(Held { store: Some(port), run: None, finding });
            }
        }
    }

    /// Looks at everything that holds at the moment.
    pub(crate) fn look(&mut self) {
        let mut held = self.two_backends();
        for (key, run) in self.jobs.runs.iter().filter(|(_, run)| run.goes_on()) {
            let plan = self.jobs.plan(key);
            let of_run = conditions::of_run(run, &plan, &self.jobs.links, self.now).into_iter();
            let found = of_run.chain(conditions::of_gate(run, &plan, &self.jobs.links, self.now));
            held.extend(found.map(|finding| Held { store: key.port(), run: Some(key.clone()), finding }));
        }
        let away = rules::links::away(&self.jobs.links, |clients| self.who_is(clients), self.now).into_iter();
        let barriers = self.jobs.barriers.iter().map(|open| barrier_waits(open, self.now));
        held.extend(away.chain(barriers).map(|finding| Held { store: None, run: None, finding }));
        held.extend(self.jobs.foreign.iter().map(|foreign| wrong_port(foreign, self.now)));
        let idle = self.jobs.stores.keys().map(|&port| (port, self.of_store(port, &mut held)));
        for (port, idle) in idle.collect::<Vec<_>>() {
            self.jobs.store(port).idle = idle;
        }
        let held = self.uncovered(held);
        for held in held {
            let subject = self.subject_of(&held);
            let topic = Topic::of(held.store, held.run, &held.finding);
            self.told.log.hold(topic, subject, held.finding, self.now);
        }
        self.jobs.foreign.pass_time(self.now);
        let utterances = self.told.log.settle(self.now);
        self.say(utterances);
    }

    /// Precedence, in one place: what another finding says with more names is not told, waits for those that
    /// contradict others have the remedy for that, and what may be one job is told of each other.
    fn uncovered(&self, mut held: Vec<Held>) -> Vec<Held> {
        let id = |run: &Option<RunKey>| run.as_ref().and_then(RunKey::id).cloned();
        let told = |code: Code| held.iter().filter(move |it| it.finding.reason.code == code);
        let of_backends: HashSet<_> = told(Code::TwoBackends).map(|it| id(&it.run)).collect();
        let of_rounds: HashSet<_> = told(Code::NodesMissing).map(|it| it.run.clone()).collect();
        held.retain_mut(|it| {
            let run = it.run.as_ref().and_then(|key| self.jobs.runs.get(key));
            let joins = run.is_some_and(|run| {
                let is_past = it.finding.round.is_some_and(|round| round != run.round.number);
                run.state == RunState::Joining && !is_past
            });
            let reason = &mut it.finding.reason;
            let waits = matches!(reason.code, Code::NodesMissing | Code::WaitCycle | Code::Waiting);
            if let Some(mistake) = run.filter(|_| waits).and_then(TrackedRun::contradiction) {
                reason.look_at = mistake.rule().look_at;
            }
            // They wait for each other in vain, and the other run has the same id.
            let by_backends = waits && of_backends.contains(&id(&it.run));
            let by_round = joins && reason.plain == Some(Place::Node) && of_rounds.contains(&it.run);
            !by_backends && !by_round
        });
        self.join_halves(&mut held);
        self.join_gatherings(&mut held);
        held
    }

    /// Pods that a gathering lacks may gather for another run: a slip in one of the ids.
    fn join_gatherings(&self, held: &mut [Held]) {
        let gathers = |held: &&Held| held.finding.reason.code == Code::PodsMissing;
        let plan = |held: &Held| Some((held.run.clone()?, self.jobs.plan(held.run.as_ref()?)));
        let plans: Vec<_> = held.iter().filter(gathers).filter_map(plan).collect();
        if plans.len() < 2 {
            return;
        }
        let gates = || plans.iter().filter_map(|(key, plan)| Some((key, plan.gate()?)));
        let pods = gates().flat_map(|(key, gate)| gate.pods.iter().map(move |pod| (pod.pod.as_str(), key)));
        let gathering: HashMap<&str, &RunKey> = pods.collect();
        for held in held.iter_mut().filter(|held| held.finding.reason.code == Code::PodsMissing) {
            let Some(run) = &held.run else { continue };
            let missing = gates().filter(|(key, _)| *key == run).flat_map(|(_, gate)| &gate.missing);
            let elsewhere = missing.filter_map(|missing| {
                let pod = missing.pod.as_deref()?;
                let other = gathering.get(pod).filter(|other| **other != run)?;
                Some(format!("pod {pod} for run {}", self.jobs.name(other)))
            });
            held.finding.reason.add_apart("announced for another run", &Names::of(elsewhere));
        }
    }

    /// Runs that gather in one store under ids that differ by a slip, or in one store or under one id and
    /// would make no more than one together, may be one job.
    fn join_halves(&self, held: &mut [Held]) {
        let gathers = |run: &&TrackedRun| run.state == RunState::Joining && run.joined() > 0;
        let mut gathering: Vec<_> = self.jobs.runs.values().filter(gathers).collect();
        // Each is compared with each other.
        gathering.truncate(MOST_COMPARED);
        let lacks_node = |held: &&mut Held| {
            let reason = &held.finding.reason;
            reason.code == Code::NodesMissing || reason.lacks_node
        };
        for held in held.iter_mut().filter(lacks_node) {
            let Some(run) = held.run.as_ref().and_then(|key| self.jobs.runs.get(key)) else { continue };
            let parts = gathering.iter().filter(|other| other.key != run.key && self.may_be_one(run, other));
            let others = Names::of(parts.map(|part| {
                let there = part.participants().filter(|node| node.is_there()).map(|node| node.name.clone());
                let port = part.key.port().filter(|port| held.store.is_some_and(|store| store != *port));
                let port = port.map_or_else(String::new, |port| format!(" on port {port}"));
                format!("run {}{port} ({})", self.jobs.name(&part.key), Names::of(there))
            }));
            held.finding.reason.add_apart("not complete either", &others);
        }
    }

    /// Whether two runs that gather may be one job. How many nodes there are may be known of one only.
    fn may_be_one(&self, one: &TrackedRun, other: &TrackedRun) -> bool {
        let ids = one.key.id().zip(other.key.id());
        let is_one_store = one.key.port() == other.key.port();
        let is_near = ids.is_some_and(|(one, other)| is_slip(one.as_bytes(), other.as_bytes()));
        let expected = [one, other].into_iter().filter_map(|run| run.expected(&self.jobs.plan(&run.key)));
        let sizes: BTreeSet<u32> = expected.map(|expected| expected.min).collect();
        let together = one.joined().saturating_add(other.joined());
        let fit = sizes.len() < 2 && sizes.iter().all(|size| together <= *size);
        let are_of_kind = one.kind == other.kind && one.round.roles.is_disjoint(&other.round.roles);
        let is_one_id = ids.is_some_and(|(one, other)| one == other);
        is_one_store && is_near || (is_one_store || is_one_id) && are_of_kind && fit
    }

    /// What the waits and the clients of a store show. Returns the connections of which it is to be known
    /// when they asked for something last.
    fn of_store(&self, port: u16, held: &mut Vec<Held>) -> Vec<ConnId> {
        let Some(graph) = self.jobs.graph(port, self.now) else { return Vec::new() };
        for (key, finding) in graph.explain() {
            let run = key.as_ref().and_then(|key| self.jobs.runs.get(key));
            if run.is_none_or(TrackedRun::goes_on) {
                held.push(Held { store: Some(port), run: key, finding });
            }
        }
        let live = |run: &&TrackedRun| run.store() == Some(port) && !run.state.is_over();
        held.extend(self.jobs.runs.values().filter(live).flat_map(|run| {
            let found = graph.without_heartbeat(run).into_iter();
            found.map(|finding| Held { store: Some(port), run: Some(run.key.clone()), finding })
        }));
        held.extend(self.two_jobs(port));
        graph.idle_connections()
    }

    /// Nodes of one id that use different backends, and wait for each other.
    fn two_backends(&self) -> Vec<Held> {
        let gathers = |run: &TrackedRun| matches!(run.state, RunState::Joining | RunState::LastCall);
        let live = self.jobs.runs.iter().filter(|(_, run)| !run.state.is_over());
        let found = live.filter_map(|(key, run)| {
            // Two jobs that lack nobody may well have one id: `none` is that of all that are given none.
            let is_other = |other: &&TrackedRun| {
                other.key.port().is_some()
                    && other.key.id() == key.id()
                    && !other.agents.is_empty()
                    && (gathers(run) || gathers(other))
            };
            let nodes: Vec<_> = run.participants().filter(|node| node.is_there()).collect();
            let beside = self.jobs.runs.values().find(|other| run.native.is_some() && is_other(other));
            let (one, other, others) = match beside {
                Some(other) => ("rallypoint", other.kind.name(), other.participants().collect::<Vec<_>>()),
                None if run.native.is_none() => ("c10d", "static", run.those(Membership::Stranger).collect()),
                None => return None,
            };
            if others.is_empty() && run.native.is_none() {
                return None;
            }
            let first = nodes.first()?;
            let joins = [Some(first), others.first()].into_iter().flatten();
            let joins = joins.map(|node| node.evidence(Seen::Joined, None, node.joined));
            let since = joins.clone().map(|joined| joined.at).max()?;
            let [nodes, others] =
                [&nodes, &others].map(|nodes| Names::of(nodes.iter().map(|node| node.told())));
            let reason = Code::TwoBackends.says(format!(
                "nodes of this run use two rendezvous backends, and never meet: {one} ({nodes}), and {other} \
                 ({others})"
            ));
            let held = [Some(key), beside.map(|run| &run.key)].into_iter().flatten().map(|of| {
                let mut finding = Finding::new(reason.clone(), "", since).seen(joins.clone());
                // The log names both runs in one line.
                finding.reason.is_detail = of != key;
                Held { store: of.port(), run: Some(of.clone()), finding }
            });
            Some(held.collect::<Vec<_>>())
        });
        found.flatten().collect()
    }

    fn is_away(&self, port: u16, conn: ConnId) -> bool {
        let client = self.jobs.stores.get(&port).and_then(|store| store.clients.get(&conn));
        client.is_some_and(|client| self.jobs.links.is_away(client.peer))
    }

    /// The nodes of these clients, or the ranks where there are no agents.
    fn who_is(&self, clients: &[SocketAddr]) -> Names {
        let is_at = |peer: SocketAddr| clients.contains(&peer);
        Names::of(self.jobs.runs.values().flat_map(|run| {
            let nodes = run.participants().filter(|node| node.is_there() && node.peer.is_some_and(is_at));
            let ranks = run.world.shown().live().filter(|(_, info)| !run.has_agents() && is_at(info.peer));
            nodes.map(TrackedNode::label).chain(ranks.map(|(rank, info)| info.label(rank)))
        }))
    }

    /// Two static runs in one store write the same workers' keys. While both gather and their nodes have
    /// different ranks, it may be one job with a slip in an id.
    fn two_jobs(&self, port: u16) -> Option<Held> {
        let clients = &self.jobs.stores.get(&port)?.clients;
        let is_heard = |conn: &ConnId| clients.contains_key(conn) && !self.is_away(port, *conn);
        let is_live = |run: &&TrackedRun| {
            run.key.port() == Some(port)
                && run.kind == RunKind::Static
                && run.agents.iter().any(is_heard)
                && !run.round.roles.is_empty()
                && self.now.since(run.first_seen) >= SETTLED
        };
        let mut live = self.jobs.runs.values().filter(is_live);
        let (one, other) = (live.next()?, live.next()?);
        let gathers = |run: &TrackedRun| run.state == RunState::Joining;
        if gathers(one) && gathers(other) && one.round.roles.is_disjoint(&other.round.roles) {
            return None;
        }
        let both = Names::of([one, other].map(|run| format!("run {}", self.jobs.name(&run.key))));
        let text = format!("two jobs on one store: {both} (their workers use the same keys)");
        let reason = Code::TwoJobs.says(text).held(&both);
        let (older, newer) = if one.first_seen <= other.first_seen { (one, other) } else { (other, one) };
        let finding = Finding::new(reason, "", newer.first_seen);
        Some(Held { store: Some(port), run: Some(older.key.clone()), finding })
    }

    pub(crate) fn forget_over(&mut self) {
        let is_old = |run: &&TrackedRun| {
            run.state.is_over()
                && run.native.is_none()
                && run.agents.is_empty()
                && run.world.connected.is_empty()
                && run.round.over_at.is_some_and(|at| self.now.since(at) >= OVER_SHOWN)
        };
        let old: Vec<RunKey> = self.jobs.runs.values().filter(is_old).map(|run| run.key.clone()).collect();
        for key in &old {
            self.jobs.drop_run(self.told, key);
        }
    }

    pub(crate) fn tell_changes(&mut self) {
        let is_new = |run: &&TrackedRun| !self.told.is_shown(&run.key, run.version);
        let changed: Vec<_> = self.jobs.runs.values().filter(is_new).map(|run| run.key.clone()).collect();
        if changed.is_empty() {
            return;
        }
        let mut headlines = self.told.log.headlines();
        for key in changed {
            let headline = headlines.remove(&key).unwrap_or_default();
            let summary = summary(self.jobs, &self.jobs.runs[&key], headline, self.epoch);
            self.told.show(key, summary);
        }
    }
}

/// The clashes between processes that are there, or else the first one: a process that ended meanwhile may
/// never have been there together with one that came since.
fn live(clashes: &[Clash], is_there: impl Fn(&ConnId) -> bool) -> impl Iterator<Item = &Clash> {
    let is_live = move |clash: &&Clash| clash.conns.iter().all(&is_there);
    let is_none_live = !clashes.iter().any(|it| is_live(&it));
    clashes.iter().take(usize::from(is_none_live)).chain(clashes.iter().filter(is_live))
}

/// What live processes of a run claim, all of one kind together, with who claims it.
fn duplicates(
    first: &Clash,
    mut known: BTreeMap<Claim, BTreeMap<ConnId, String>>,
    are_alone: bool,
) -> Finding {
    let about = match &first.claim {
        Claim::NodeRank(rank) => format!("node {rank}"),
        Claim::Rank(_) => String::new(),
        Claim::Member(id) | Claim::NodeId(id) => id.clone(),
    };
    let all = Names::of(known.remove(&first.claim).unwrap_or_default().into_values());
    let others = Names::of_some(known, |(claim, who)| format!("{claim} ({})", Names::of(who.into_values())));
    let reason = Reason::claimed(&first.claim.to_string(), &all, &others);
    // What a program makes without `init_process_group` has a URL for a name.
    let is_of_group = matches!(&first.claim, Claim::Member(member) if !member.contains("://"));
    let reason = match () {
        () if is_of_group => reason.look_at(SAME_GROUPS),
        () if matches!(first.claim, Claim::NodeId(_)) => reason.look_at(
            "torchrun makes that id of host name and process id, and takes both for one node: give each host \
             (container) a name of its own, or each agent its --local-addr, and restart them",
        ),
        () if are_alone => reason.then(", each as the only rank of its group").severe(Severity::Info).look_at(
            "nothing, if each is a job of its own; else give all the same WORLD_SIZE and MASTER_ADDR, and \
             each its own RANK",
        ),
        () => reason,
    };
    Finding::new(reason, about, first.at).seen(first.wrote.clone())
}

/// A client of another protocol came to a port.
fn wrong_port(foreign: &Foreign, now: Timestamp) -> Held {
    let Foreign { port, peer, protocol, stores, times, last } = foreign;
    let (often, ago) = (counted(*times, "time", "times"), Elapsed(now.since(*last)));
    let a = if *protocol == "HTTP" { "an" } else { "a" };
    let reason = Code::WrongPort
        .says(format!("{a} {protocol} client at {peer} came to port {port} {often}, the last {ago} ago"))
        .and("stores have ports", &Names::of(stores.iter().flatten().map(u16::to_string)));
    let finding = Finding::new(reason, format!("{peer} {protocol}"), *last);
    Held { store: stores.is_none().then_some(*port), run: None, finding }
}

/// Who waits at a barrier of the native rendezvous, and for whom.
fn barrier_waits(open: &OpenBarrier, now: Timestamp) -> Finding {
    let OpenBarrier { name, size, arrived, there, silent, missing, gave_up, since } = open;
    let [present, missing, silent, gave_up] =
        [there, missing, silent, gave_up].map(|who| Names::of(who.iter().cloned()));
    let named = if present.is_empty() { String::new() } else { format!(" ({present})") };
    let (have, waited) = (has(*arrived as usize), Elapsed(now.since(*since)));
    let up_to = if *arrived > 1 { "up to " } else { "" };
    let reason = Code::WaitingAtBarrier
        .says(format!(
            "the barrier `{name}`: {arrived} of {size} {have} arrived{named} and waited {up_to}{waited}"
        ))
        .held(&present)
        .joined(Place::Process, *arrived, Some(*size))
        .lacks("missing", Place::Process, &missing, Presence::NeverSeen)
        .lacks("arrived, and not heard from any more", Place::Process, &silent, Presence::Silent)
        .lacks("arrived, and gave up", Place::Process, &gave_up, Presence::Left);
    let came = there.iter().map(|who| Evidence::by_name(Seen::Joined, who.clone(), *since));
    Finding::new(reason, name.to_string(), *since).seen(came)
}
