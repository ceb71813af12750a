//! Agents of the plugin: the native rendezvous, which knows its nodes and may be wrong about how they are.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::super::lab::Lab;
use super::super::native::Native;
use super::complete::{Cause, Due, LOOKED, named};
use super::{Checked, DELAY, Past, Schedule, World, agree, play_all, played, yes};
use crate::Settings;
use rallypoint_api::{Explanation, RunState};
use rallypoint_rendezvous::{Action, JoinStanding, LeaveRequest, Outcome, RankInRound};

const HOSTS: usize = 4;
const EXPLAIN_AFTER: f64 = 3.0;
/// How long a request waits at the server before it is sent again.
const POLL: f64 = 5.0;
/// Who is silent for so long is lost.
const LOST_AFTER: f64 = 15.0;

#[derive(Debug, Clone, Copy)]
enum Op {
    /// An agent is started on this host, if none is there.
    Come(usize),
    ComeAll,
    /// It is killed, and its connections close.
    Die(usize),
    Freeze(usize),
    Thaw(usize),
    /// Its workers fail, and it restarts them.
    Restart(usize),
    /// Its workers fail for good.
    Fail(usize),
    /// Its workers succeed.
    Finish(usize),
    FinishAll,
    /// An operator gives more time.
    Extend,
    Close,
    /// The server is restarted, with its journal.
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Joins { redundant: bool },
    Runs,
    Finished,
    Failed,
    Refused,
}

#[derive(Debug, Clone)]
struct Agent {
    host: usize,
    id: String,
    joins: u32,
    place: Option<RankInRound>,
    phase: Phase,
    connected: bool,
    acts: bool,
    /// A request of it waits at the server.
    polls: bool,
    /// When it was last heard of.
    heard: f64,
    /// Since when it is in this phase.
    since: f64,
}

impl Agent {
    /// It has a place in the round that forms, as far as it knows.
    const fn joins(&self) -> bool {
        matches!(self.phase, Phase::Joins { redundant: false })
    }

    const fn is_there(&self) -> bool {
        self.connected && matches!(self.phase, Phase::Joins { .. } | Phase::Runs)
    }
}

#[derive(Debug, Clone, Default)]
struct Moment {
    agents: Vec<Agent>,
    round: u64,
    closed: bool,
    finished: u32,
    size: u32,
}

struct Truth {
    native: Native,
    now: Moment,
    past: Past<Moment>,
    checked: usize,
    /// When the run was closed last.
    closed: f64,
    due: Vec<Due>,
}

fn address(host: usize) -> String {
    format!("10.0.0.{host}")
}

impl Truth {
    fn new(nodes: (u32, u32)) -> Self {
        let explain_after = Duration::from_secs_f64(EXPLAIN_AFTER);
        let mut native = Native::with(Settings { explain_after, ..Settings::default() }, nodes);
        native.lab.pauses = vec![250];
        Self {
            native,
            now: Moment::default(),
            past: Past(Vec::new()),
            checked: 0,
            closed: -1.0,
            due: Vec::new(),
        }
    }

    fn on(&self, host: usize) -> Option<usize> {
        self.now.agents.iter().position(|agent| agent.host == host && agent.is_there())
    }

    fn running(&self, host: usize) -> Option<usize> {
        self.on(host).filter(|&n| self.now.agents[n].phase == Phase::Runs && self.now.agents[n].acts)
    }

    fn come(&mut self, host: usize) {
        if self.on(host).is_some() {
            return;
        }
        let since = self.seconds();
        self.now.agents.push(Agent {
            host,
            id: format!("h{host}-{}", self.now.agents.len()),
            joins: 0,
            place: None,
            phase: Phase::Joins { redundant: false },
            connected: true,
            acts: true,
            polls: true,
            heard: since,
            since,
        });
        self.join(self.now.agents.len() - 1);
    }

    /// It joins, or joins again.
    fn join(&mut self, n: usize) {
        let now = self.seconds();
        let agent = &mut self.now.agents[n];
        agent.joins += 1;
        (agent.phase, agent.heard, agent.since) = (Phase::Joins { redundant: false }, now, now);
        let agent = agent.clone();
        let (name, join) = (format!("h{}", agent.host), agent.joins.to_string());
        let joined = self.native.join_as(&agent.id, &name, &address(agent.host), &join, agent.place);
        match joined {
            // A run that was over begins anew.
            Ok(()) => self.now.closed = false,
            Err(_) => self.refused(n),
        }
        self.look();
    }

    /// Its join is sent again, as it was.
    fn ask_again(&mut self, n: usize) {
        let agent = self.now.agents[n].clone();
        let (name, join) = (format!("h{}", agent.host), agent.joins.to_string());
        match self.native.join_as(&agent.id, &name, &address(agent.host), &join, agent.place) {
            Ok(()) => (self.now.agents[n].heard, self.now.agents[n].polls) = (self.seconds(), true),
            Err(_) => self.refused(n),
        }
    }

    /// Its agent ends, and its connections close.
    fn refused(&mut self, n: usize) {
        self.native.cut(&self.now.agents[n].id.clone());
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.acts, agent.connected) = (Phase::Refused, false, false);
    }

    fn end(&mut self, n: usize, outcome: Outcome) {
        let id = self.now.agents[n].id.clone();
        // One that was frozen may be of a round that is over.
        let is_of_round = self.now.agents[n].place.is_some_and(|place| place.round == self.now.round);
        if outcome == Outcome::Succeeded && is_of_round {
            self.now.finished += 1;
        }
        // torch's agent closes the run as it ends.
        self.native.close(&format!("node {id}"));
        self.now.closed = true;
        self.native.leave(&id, LeaveRequest { why: None, outcome: Some(outcome) });
        let agent = &mut self.now.agents[n];
        agent.phase = if outcome == Outcome::Succeeded { Phase::Finished } else { Phase::Failed };
        (agent.connected, agent.acts) = (false, false);
    }

    /// Who has got a place, or an error. One that is frozen has not read it.
    fn look(&mut self) {
        let now = self.seconds();
        for n in 0..self.now.agents.len() {
            let agent = &self.now.agents[n];
            if !matches!(agent.phase, Phase::Joins { .. }) {
                continue;
            }
            let (acts, before) = (agent.acts, agent.phase);
            let after = match self.native.standing(&agent.id) {
                Ok(JoinStanding::Complete { round, rank }) => {
                    if round.number > self.now.round {
                        self.now.round = round.number;
                        self.now.size = round.participants.len() as u32;
                        self.now.finished = 0;
                    }
                    if acts {
                        self.now.agents[n].place = Some(RankInRound { round: round.number, rank });
                    }
                    Phase::Runs
                }
                Ok(JoinStanding::Waiting) => Phase::Joins { redundant: false },
                Ok(JoinStanding::Redundant) => Phase::Joins { redundant: true },
                Err(_) if acts => {
                    self.refused(n);
                    continue;
                }
                Err(_) => continue,
            };
            if acts && after != before {
                (self.now.agents[n].phase, self.now.agents[n].since) = (after, now);
            }
        }
    }

    /// Why those who have waited for long cannot go on. Of one that is silent it is known after a poll and one and a half
    /// keep-alive times at the latest.
    fn causes(&self) -> Vec<(Cause, String)> {
        const SILENT: f64 = POLL + LOST_AFTER + 3.0;
        let (now, agents) = (self.seconds(), &self.now.agents);
        let is_stuck = |agent: &Agent| {
            agent.acts && agent.joins() && agent.connected && agent.since + EXPLAIN_AFTER + LOOKED < now
        };
        if !agents.iter().any(is_stuck) {
            return Vec::new();
        }
        // Those that were lost before the run was closed are of what is over.
        let of_round = |agent: &&Agent| {
            agent.place.is_some_and(|place| place.round == self.now.round) && agent.heard > self.closed
        };
        let is_back =
            |host: usize| agents.iter().any(|agent| agent.host == host && agent.acts && agent.joins());
        let lost = agents.iter().filter(of_round).filter(|agent| !agent.acts && !is_back(agent.host));
        let cause = |agent: &Agent| match agent.phase {
            // No connection closes where none of its requests waits.
            Phase::Runs if !agent.connected && agent.polls => Some((Cause::Dead, format!("h{}", agent.host))),
            Phase::Runs if agent.heard + SILENT < now => Some((Cause::Frozen, format!("h{}", agent.host))),
            _ => None,
        };
        lost.filter_map(cause).collect()
    }

    /// The hosts that are named in a text.
    fn hosts(text: &str) -> BTreeSet<usize> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words.filter_map(|word| word.strip_prefix('h')?.parse().ok()).collect()
    }

    /// Who came anew in the place of those of the round that are silent is said with them.
    fn names_successors(&self, at: f64, silent: &str, text: &str) -> Checked {
        let came_anew = |host: usize| {
            move |m: &Moment| {
                let waits =
                    |agent: &Agent| matches!(agent.phase, Phase::Joins { .. }) && agent.place.is_none();
                m.agents
                    .iter()
                    .any(|agent| agent.host == host && agent.acts && agent.connected && waits(agent))
            }
        };
        let in_round = silent.split(", h").filter(|node| node.contains(", rank "));
        let hosts = in_round.flat_map(|node| Self::hosts(&format!("h{}", node.trim_start_matches("job: h"))));
        let unsaid = hosts.into_iter().find(|host| !self.past.any(at, |m| !came_anew(*host)(m)));
        yes(unsaid.is_none() || text.contains("came anew"), "its successor waits")
    }

    /// Whether this was so of an agent of each of these hosts just before.
    fn all(&self, at: f64, text: &str, holds: impl Fn(&Moment, &Agent) -> bool) -> Checked {
        let hosts = Self::hosts(text);
        yes(!hosts.is_empty(), "nobody is named")?;
        for host in hosts {
            let is_so = |m: &Moment| m.agents.iter().any(|agent| agent.host == host && holds(m, agent));
            yes(self.past.any(at, is_so), &format!("not so of h{host}"))?;
        }
        Ok(())
    }
}

impl World for Truth {
    type Op = Op;
    const RUN: &'static str = "job";

    fn lab(&self) -> &Lab {
        &self.native.lab
    }

    fn lab_mut(&mut self) -> &mut Lab {
        &mut self.native.lab
    }

    fn checked(&mut self) -> &mut usize {
        &mut self.checked
    }

    fn play(&mut self, op: Op) {
        self.native.lab.pass(0.001);
        match op {
            Op::Come(host) => self.come(host),
            Op::ComeAll => (0..HOSTS).for_each(|host| self.come(host)),
            Op::Die(host) => {
                if let Some(n) = self.on(host) {
                    self.native.cut(&self.now.agents[n].id.clone());
                    let at = self.seconds();
                    let agent = &mut self.now.agents[n];
                    // Of one whose request does not wait at the server no connection closes: it is silent from then on.
                    let (polls, place) = (agent.polls, agent.phase);
                    (agent.connected, agent.acts, agent.since) = (false, false, at);
                    if polls && place != (Phase::Joins { redundant: true }) {
                        let (cause, name) = (Cause::Dead, format!("h{host}"));
                        self.due.push(Due { at, cause, name, or: &["run_finished", "run_closed"] });
                    }
                }
            }
            Op::Freeze(host) => {
                if let Some(n) = self.on(host) {
                    self.now.agents[n].acts = false;
                }
            }
            Op::Thaw(host) => {
                if let Some(n) = self.on(host) {
                    self.now.agents[n].acts = true;
                }
            }
            Op::Restart(host) => {
                if let Some(n) = self.running(host) {
                    self.join(n);
                }
            }
            Op::Fail(host) => {
                if let Some(n) = self.running(host) {
                    self.end(n, Outcome::Failed);
                }
            }
            Op::Finish(host) => {
                if let Some(n) = self.running(host) {
                    self.end(n, Outcome::Succeeded);
                }
            }
            Op::FinishAll => (0..HOSTS).for_each(|host| {
                if let Some(n) = self.running(host) {
                    self.end(n, Outcome::Succeeded);
                }
            }),
            Op::Extend => self.native.extend(60),
            Op::Close => {
                if self.native.close("an operator") {
                    self.now.closed = true;
                }
            }
            Op::Server => {
                self.native.restart_server();
                let now = self.seconds();
                for n in 0..self.now.agents.len() {
                    let agent = &mut self.now.agents[n];
                    if agent.acts && matches!(agent.phase, Phase::Joins { .. }) {
                        self.ask_again(n);
                    } else if !agent.acts {
                        // All count as heard of then, and no connection of theirs closes.
                        (agent.polls, agent.heard) = (false, now);
                    }
                }
                // Whose connection had closed just before is given up later.
                self.due.clear();
            }
        }
        self.look();
        self.past.0.push((self.seconds(), self.now.clone()));
    }

    /// Each agent reads what the server answers, and does it.
    fn act(&mut self) {
        let now = self.seconds();
        for n in 0..self.now.agents.len() {
            let agent = self.now.agents[n].clone();
            if !agent.is_there() {
                continue;
            }
            if !agent.acts {
                // Its last request ends, and no other comes.
                if agent.polls && now >= agent.heard + POLL {
                    self.native.unpark(&agent.id);
                    self.now.agents[n].polls = false;
                }
                continue;
            }
            if let (Phase::Runs, Some(place)) = (agent.phase, agent.place) {
                let size = self.now.size;
                let (name, join) = (format!("h{}", agent.host), agent.joins.to_string());
                let heard = self.native.beat_as(&agent.id, &name, &address(agent.host), &join, place, size);
                (self.now.agents[n].heard, self.now.agents[n].polls) = (now, true);
                if heard.is_ok_and(|action| action == Action::Rejoin) {
                    self.join(n);
                }
            } else {
                self.ask_again(n);
            }
        }
        self.look();
    }

    fn remember(&mut self) {
        if self.now.closed {
            self.closed = self.seconds();
        }
        self.past.0.push((self.seconds(), self.now.clone()));
    }

    fn tick(&mut self) {
        self.native.tick();
    }

    fn check(&self, at: f64, said: &Explanation) -> Checked {
        let text = said.text.as_str();
        let any = |holds: &dyn Fn(&Moment) -> bool, why: &str| yes(self.past.any(at, holds), why);
        let before = |end: &str| text.split(end).next().unwrap_or_default().to_owned();
        let after = |start: &str| text.split_once(start).map_or("", |(_, rest)| rest).to_owned();
        let first_number = |part: &str| {
            let mut words = part.split(|c: char| !c.is_ascii_digit());
            words.find_map(|word| word.parse::<usize>().ok()).ok_or_else(|| format!("no number in {part}"))
        };
        let is_silent = |_: &Moment, agent: &Agent| !agent.acts && agent.phase != Phase::Finished;
        match said.code.as_str() {
            "run_started" if text.contains("gathers: ") => {
                self.all(at, &after("gathers: "), |_, agent| agent.connected || !agent.acts)
            }
            "round_complete" => {
                let nodes = first_number(&after("complete: "))? as u32;
                any(&|m| m.size == nodes, "not so many")?;
                self.all(at, &after("last: "), |_, agent| agent.place.is_some() || !agent.acts)
            }
            "nodes_missing" => {
                yes(!text.contains(" after 0 s: "), "it lasts for longer")?;
                let joined = first_number(after(" after ").split_once(": ").unwrap_or_default().1)?;
                // Of one that is dead or frozen it is known a while later.
                let count = |m: &Moment, sure: bool| {
                    let may_be = |agent: &Agent| if agent.acts { agent.joins() } else { !sure };
                    m.agents.iter().filter(|agent| may_be(agent)).count()
                };
                any(&|m| (count(m, true)..=count(m, false)).contains(&joined), "not so many")?;
                let part = |title: &str| after(title).split("; ").next().unwrap_or_default().to_owned();
                let none_or = |names: String, holds: &dyn Fn(&Agent) -> bool| {
                    if names.is_empty() { Ok(()) } else { self.all(at, &names, |_, agent| holds(agent)) }
                };
                none_or(part("; gone: "), &|agent| !agent.joins() || !agent.acts)?;
                none_or(part("; refused: "), &|agent| agent.phase == Phase::Refused)?;
                none_or(part("; not heard from: "), &|agent| !agent.acts || !agent.connected)?;
                let missing = part("not yet joined again: ");
                let (missing, again) = missing
                    .split_once(" (that process")
                    .or(missing.split_once(" (those"))
                    .unwrap_or((&missing, ""));
                if !again.is_empty() {
                    self.all(at, again, |_, agent| matches!(agent.phase, Phase::Joins { .. }))?;
                }
                if missing.is_empty() {
                    Ok(())
                } else {
                    self.all(at, missing, |_, agent| !agent.joins() || !agent.acts)
                }
            }
            "node_came_late" => {
                let joined = first_number(after(" after ").split_once(": ").unwrap_or_default().1)? as u32;
                let count = |m: &Moment| m.agents.iter().filter(|a| a.joins() || !a.acts).count() as u32;
                any(&|m| joined <= count(m).max(m.size), "not so many")?;
                self.all(at, &before(" come after"), |_, agent| agent.is_there())
            }
            "round_deadline" => Ok(()),
            "node_silent" if text.contains(": the connection") => {
                self.names_successors(at, &before(": the connection"), text)?;
                self.all(at, &before(": the connection"), |_, agent| {
                    !agent.connected && agent.phase != Phase::Finished
                })
            }
            "not_back" => self.all(at, &before("not been heard"), is_silent),
            "node_silent" => {
                self.names_successors(at, &before(": nothing has"), text)?;
                let silence = first_number(&after("nothing has come "))? as f64;
                self.all(at, &before(": nothing has"), |_, agent| agent.heard <= at - silence + 1.0)?;
                self.all(at, &before(": nothing has"), is_silent)
            }
            "lost"
                if text.contains(" left")
                    && !text.contains(" nothing came for ")
                    && !text.contains("not heard from") =>
            {
                self.all(at, &before(" left"), |_, agent| !agent.connected)
            }
            "lost" if text.contains(" waited") => self.all(at, &before(" waited"), is_silent),
            "lost" => {
                const CLOSED: &str = " closed, and nothing came for ";
                let (text, others) = text.split_once("; still in the round: ").unwrap_or((text, ""));
                if !others.is_empty() {
                    self.all(at, others, |_, agent| agent.phase == Phase::Runs || !agent.acts)?;
                }
                let silent = text.split_once(CLOSED).map_or(text, |(_, silent)| silent);
                for (part, how) in [(text, CLOSED), (silent, " not heard from for ")] {
                    let Some((who, silence)) = part.split_once(how) else { continue };
                    self.all(at, who, is_silent)?;
                    let silence = first_number(silence)? as f64;
                    yes(silence + 3.0 >= LOST_AFTER, "too soon")?;
                    self.all(at, who, |_, agent| agent.heard <= at - silence + 1.0)?;
                    self.all(at, who, |_, agent| how != CLOSED || !agent.connected)?;
                }
                Ok(())
            }
            "round_over" if text.contains("did not report") => Ok(()),
            "round_over" if text.contains(" was the first") => {
                let (first, silent) = text.split_once(" was the first").unwrap_or_default();
                let (closed, first) = first.split_once(" closed, and ").unwrap_or(("", first));
                if !closed.is_empty() {
                    self.all(at, closed, is_silent)?;
                }
                self.all(at, first, |_, agent| agent.joins > 1)?;
                if !silent.contains("not been heard") {
                    return Ok(());
                }
                self.all(at, silent, is_silent)
            }
            "round_over" => {
                self.all(at, &before(" joined and"), |_, agent| matches!(agent.phase, Phase::Joins { .. }))
            }
            "run_closed" if text.contains(" failed") => {
                self.all(at, &before(" failed"), |_, agent| agent.phase == Phase::Failed)?;
                let others = after("still in the round: ");
                let is_in = |_: &Moment, agent: &Agent| {
                    agent.connected && (agent.phase == Phase::Runs || !agent.acts)
                };
                if others.is_empty() { Ok(()) } else { self.all(at, &others, is_in) }
            }
            "run_closed" => any(&|m| m.closed, "it is not"),
            "run_finished" => {
                let nodes = first_number(&after("finished: "))? as u32;
                any(&|m| m.size == nodes && m.finished == nodes, "they have not")
            }
            "join_refused" => self.all(at, &before(" was refused"), |_, agent| agent.phase == Phase::Refused),
            "run_started" => self.all(at, &after("again by "), |_, agent| agent.is_there()),
            "stands_by" => {
                self.all(at, text, |_, agent| matches!(agent.phase, Phase::Joins { redundant: true }))
            }
            _ => Err("that cannot be".into()),
        }
    }

    /// The numbers are right, and who waits is told why.
    fn check_end(&self) -> Checked {
        let lab = &self.native.lab;
        let Some(run) = lab.insight.run("job", None, None, lab.now) else { return Ok(()) };
        let moment = &self.now;
        let there = |agent: &&Agent| {
            agent.is_there() && agent.acts && !matches!(agent.phase, Phase::Joins { redundant: true })
        };
        let (some, none) = (moment.agents.iter().any(|a| there(&a)), run.summary.state.is_over());
        yes(!(some && none) || moment.closed, &format!("its state is {:?}", run.summary.state))?;
        let nodes = &run.summary.nodes;
        let (joined, missing) = (nodes.joined as usize, nodes.missing.unwrap_or(0) as usize);
        // Of one that is dead or frozen it is known a while later.
        let sure = |n: usize| moment.agents.iter().filter(|agent| agent.acts && agent.joins()).count() <= n;
        let may = |n: usize| moment.agents.iter().filter(|agent| agent.joins() || !agent.acts).count() >= n;
        if matches!(run.summary.state, RunState::Joining | RunState::LastCall) {
            yes(sure(joined) && may(joined), &format!("{joined} have joined"))?;
            let needed = nodes.expected.as_ref().map_or(0, |expected| expected.min as usize);
            yes(
                missing <= needed.saturating_sub(joined),
                &format!("{joined} of {needed}, {missing} are missing"),
            )?;
        } else if !run.summary.state.is_over() {
            let runs = |agent: &&Agent| {
                let is_of_round = agent.place.is_some_and(|place| place.round == moment.round);
                agent.is_there() && agent.acts && agent.phase == Phase::Runs && is_of_round
            };
            let running = moment.agents.iter().filter(runs).count();
            yes((running..=moment.size as usize).contains(&joined), &format!("{joined} have joined"))?;
        }
        let listed = run.missing.len();
        yes(listed <= missing || none, &format!("{missing} are missing, and {listed} are listed"))?;
        for missing in run.missing.iter().filter_map(|missing| missing.name.as_ref()) {
            let mut called = moment.agents.iter().filter(|agent| format!("h{}", agent.host) == *missing);
            yes(!called.any(|agent| agent.joins() && agent.acts), &format!("{missing} is missing"))?;
        }
        let stuck = moment.agents.iter().find(|agent| {
            agent.acts && agent.joins() && agent.connected && agent.since + 7.0 < self.seconds()
        });
        let is_told = run.explanations.iter().any(|said| said.holds)
            || run.summary.state == RunState::LastCall
            || self.native.lab.said.last().is_some_and(|(at, _)| at + DELAY > self.seconds());
        agree(lab, &run)?;
        for (cause, name) in self.causes() {
            named(&run.explanations, cause, &name)?;
        }
        let state = run.summary.state;
        yes(stuck.is_none() || is_told, &format!("nobody says why {stuck:?} waits: {state:?}"))
    }

    fn due(&mut self) -> &mut Vec<Due> {
        &mut self.due
    }

    fn is_settled(&self, due: &Due) -> bool {
        // Another with its name has come, or the run was closed while it joined.
        let is_it = |agent: &Agent| format!("h{}", agent.host) == due.name;
        let is_settled =
            |agent: &Agent| agent.is_there() || self.now.closed && matches!(agent.phase, Phase::Joins { .. });
        self.now.agents.iter().any(|agent| is_it(agent) && is_settled(agent))
    }
}

fn schedule() -> impl Strategy<Value = ((u32, u32), Schedule<Op>)> {
    let host = || 0..HOSTS;
    let op = prop_oneof![
        8 => host().prop_map(Op::Come),
        2 => Just(Op::ComeAll),
        3 => host().prop_map(Op::Die),
        2 => host().prop_map(Op::Freeze),
        2 => host().prop_map(Op::Thaw),
        2 => host().prop_map(Op::Restart),
        1 => host().prop_map(Op::Fail),
        1 => host().prop_map(Op::Finish),
        1 => Just(Op::FinishAll),
        1 => Just(Op::Extend),
        1 => Just(Op::Close),
        1 => Just(Op::Server),
    ];
    let nodes = prop::sample::select(vec![(2, 2), (3, 3), (4, 4), (2, 3), (1, 4), (2, 4)]);
    let pause = prop::sample::select(vec![0, 2, 5, 10, 40, 90, 180_u32]);
    (nodes, prop::collection::vec((op, pause), 1..16))
}

#[test]
fn what_is_said_of_native_nodes_is_the_truth() {
    play_all("native", &schedule(), |(nodes, schedule)| {
        played(Truth::new(nodes), &format!("{nodes:?}"), schedule)
    });
}
