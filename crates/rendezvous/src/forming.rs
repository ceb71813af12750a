//! The forming round: when it is complete, when it is given up, and what it waits for.

use std::collections::BTreeSet;
use std::time::Duration;

use super::reason::{first_of, if_any, some_of};
use super::round::{Claim, MAX_LEFT, assign_ranks};
use super::run::{Member, Run, Seat};
use super::{Decision, Did, Label, Participant, Round, RoundProgress, RunRefusal, Sign, What, Who};
use rallypoint_protocol::ids::{Elapsed, Timestamp, count, counted};

/// Most names and ranks in an answer.
const LISTED: usize = 32;

impl Run {
    /// Completes the forming round when it is time, or gives it up at its deadline.
    pub(super) fn advance(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        if self.joined == 0 || self.closed.is_some() {
            if self.forming.take().is_some() {
                self.more_time = Duration::ZERO;
            }
            return;
        }
        let expected = self.expected();
        let is_full = self.joined >= self.most_nodes();
        let (is_enough, all_are_heard) = (self.heard() >= self.terms.min_nodes, self.doubtful.is_empty());
        let Some(forming) = &mut self.forming else { return };
        // A node that may be dead keeps its place: if only its connection broke, it is back soon.
        if self.joined >= self.terms.min_nodes && !is_full && expected == 0 {
            forming.last_call.get_or_insert(now + self.terms.last_call);
        } else {
            forming.last_call = None;
        }
        let late = forming.deadline <= now;
        let is_over = is_full || forming.last_call.is_some_and(|at| at <= now);
        if (is_over && all_are_heard) || (is_enough && late) {
            for node in self.doubtful.clone() {
                self.lose(&node, false, now, out);
            }
            self.complete(now, out);
        } else if late {
            self.give_up(now, out);
        } else if forming.announce_at.is_some_and(|at| at <= now) {
            forming.announce_at = None;
        }
    }

    /// Nodes that wait and are alive, as far as is known.
    fn heard(&self) -> u32 {
        self.joined.saturating_sub(count(self.doubtful.len()))
    }

    /// Whether the forming round has enough nodes and waits only for more.
    pub(super) fn is_last_call(&self) -> bool {
        let begun = self.forming.as_ref().is_some_and(|forming| forming.last_call.is_some());
        begun && self.heard() >= self.terms.min_nodes
    }

    /// The latest time at which the forming round ends, as things are now.
    pub(super) fn closes_at(&self) -> Option<Timestamp> {
        let forming = self.forming.as_ref()?;
        let doubtful = self.doubtful.iter().filter_map(|node| self.members.get(node));
        let given_up = doubtful.map(|member| member.given_up(&self.terms)).max();
        let is_full = self.joined >= self.most_nodes();
        let complete = forming.last_call.max(given_up.filter(|_| is_full || forming.last_call.is_some()));
        Some(complete.map_or(forming.deadline, |at| at.min(forming.deadline)))
    }

    fn complete(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(forming) = &self.forming else { return };
        let mut nodes: Vec<(&Label, &Member)> =
            self.walk().filter(|(_, member)| member.seat == Seat::Forming).collect();
        nodes.sort_by_key(|(_, member)| member.serial);
        let claims: Vec<Claim> =
            nodes.iter().map(|(_, m)| Claim { requested: m.rank, previous: m.previous }).collect();
        let mut ranked: Vec<_> = assign_ranks(&claims).into_iter().zip(nodes).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let ids: Vec<Label> = ranked.iter().map(|(_, (node, _))| (*node).clone()).collect();
        let participants: Vec<Participant> = ranked
            .into_iter()
            .map(|(_, (node, m))| Participant {
                node: node.clone(),
                info: m.info.clone(),
                payload: m.payload.clone(),
                watched: m.watched,
            })
            .collect();
        let took = now.since(forming.first_join);
        let number = self.next_round();
        let complete = What::Complete { nodes: count(ids.len()), took };
        let last = Sign::now(Did::Joined, &forming.last);
        let mixed = mixed_releases(&participants);
        let round =
            Round { run_id: self.id.clone(), number, terms: self.terms, participants, completed: now, took };
        self.publish(number, complete, vec![last], out);
        if let Some(mixed) = mixed {
            self.publish(number, What::MixedReleases(mixed), Vec::new(), out);
        }
        self.enter(round, &ids, out);
    }

    fn give_up(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(first_join) = self.forming.as_ref().map(|forming| forming.first_join) else { return };
        let waiting = self.walk().filter(|(_, member)| member.seat == Seat::Forming);
        let nodes: Vec<Label> = waiting.map(|(node, _)| node.clone()).collect();
        let (round, missing) = (self.next_round(), self.waits_in_words(now));
        let (joined, after) = (self.heard(), now.since(first_join));
        self.publish(round, What::GivenUp { after, missing: missing.clone() }, Vec::new(), out);
        let (run, min_nodes) = (self.id.clone(), self.terms.min_nodes);
        let why = RunRefusal::JoinTimeout { run, round, joined, min_nodes, after, missing };
        for node in nodes {
            self.end(&node, why.clone(), now, out);
        }
        (self.forming, self.more_time) = (None, Duration::ZERO);
    }

    pub(super) fn extend(
        &mut self,
        by: Duration,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> Result<(u64, Duration), RunRefusal> {
        let terms = self.terms;
        let Some(forming) = &mut self.forming else { return Err(RunRefusal::NotForming(self.id.clone())) };
        forming.more_time(by, &terms, now);
        self.more_time = self.more_time.saturating_add(by).min(MAX_LEFT);
        let left = forming.deadline.since(now);
        let round = self.next_round();
        self.publish(round, What::Extended { by, left }, Vec::new(), out);
        Ok((round, left))
    }

    /// Ranks that nobody holds, if every waiting node asked for a rank.
    pub(super) fn missing_ranks(&self) -> Vec<u32> {
        if self.with_rank < self.joined || self.joined == 0 {
            return Vec::new();
        }
        (0..self.most_nodes()).filter(|rank| !self.ranks.contains_key(rank)).take(LISTED).collect()
    }

    /// Nodes of the current round that have not joined again, but for the silent ones.
    fn missing_nodes(&self, silent: &BTreeSet<Label>) -> Vec<String> {
        let Some(current) = self.current.as_ref().filter(|c| c.watched > 0) else { return Vec::new() };
        let is_expected = |member: &&Member| member.watched && matches!(member.seat, Seat::InRound(_));
        let twins = self.twins();
        let mut names: Vec<(u32, String)> = self
            .walk()
            .filter(|(node, _)| !silent.contains(*node))
            .map(|(_, member)| member)
            .filter(is_expected)
            .take(LISTED.min(current.watched as usize))
            .filter_map(|member| {
                let has_twin = twins.contains(&(&member.info.name, &member.info.address));
                let label = if has_twin { member.label()? } else { member.info.who().to_string() };
                Some((member.previous.unwrap_or_default(), label))
            })
            .collect();
        names.sort();
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// How many nodes of the complete round send no heartbeats, if there are any.
    fn unwatched(&self) -> Option<u32> {
        let current = self.current.as_ref().filter(|current| current.adoption.is_none())?;
        Some(current.present.saturating_sub(current.watched)).filter(|unwatched| *unwatched > 0)
    }

    /// The members for which `is_it` holds.
    fn members_that(&self, is_it: impl Fn(&Label, &Member) -> bool) -> Vec<Who> {
        let twins = self.twins();
        self.walk()
            .filter(|(node, member)| is_it(node, member))
            .map(|(node, member)| self.told_apart(node, member.info.who(), &twins))
            .collect()
    }

    /// The names and addresses that several nodes have.
    fn twins(&self) -> BTreeSet<(&Label, &Label)> {
        let mut known = BTreeSet::new();
        let here = self.walk().filter(|(_, member)| !matches!(member.seat, Seat::Ended(_)));
        let named = here.map(|(_, member)| (&member.info.name, &member.info.address));
        named.filter(|who| !known.insert(*who)).collect()
    }

    /// A node, with its id where another one, or an absent one, has its name and address.
    fn told_apart(&self, node: &Label, who: Who, twins: &BTreeSet<(&Label, &Label)>) -> Who {
        let has_twin = twins.contains(&(&who.name, &who.address)) || self.absent.has(&who);
        if *node == who.name || !has_twin {
            return who;
        }
        let name = Label::new(&format!("{}, node id {node}", who.name));
        name.map_or_else(|_| who.clone(), |name| Who { name, ..who.clone() })
    }

    /// What the forming round waits for, and which awaited nodes are silent, in words.
    pub(super) fn waits_in_words(&self, now: Timestamp) -> String {
        let silent = self.silent(now);
        self.waits_for(&silent, now) + &self.not_heard_from(&silent)
    }

    /// The silent nodes among those that wait or are to join again.
    fn silent(&self, now: Timestamp) -> BTreeSet<Label> {
        let successors = self.successors(now);
        let has_come = |node: &Label| successors.iter().any(|successor| successor.predecessor == node);
        let is_awaited = |node: &Label, member: &Member| match member.seat {
            Seat::Forming => true,
            // A node that has a successor is named with its successor.
            Seat::InRound(_) => !has_come(node),
            Seat::Redundant | Seat::Ended(_) => false,
        };
        let all = self.walk();
        let silent =
            all.filter(|(node, member)| is_awaited(node, member) && member.is_silent(now, &self.terms));
        silent.map(|(node, _)| node.clone()).collect()
    }

    /// What the forming round waits for, in words. If it needs more nodes and knows nothing of them, it names
    /// the nodes that are there.
    fn waits_for(&self, silent: &BTreeSet<Label>, now: Timestamp) -> String {
        let needed = self.terms.min_nodes.saturating_sub(self.joined) as usize;
        let missing = self.missing_but(silent, now);
        let is_unknown = self.absent.len() < needed
            && self.missing_nodes(&BTreeSet::new()).is_empty()
            && self.missing_ranks().is_empty();
        if !is_unknown {
            return missing;
        }
        let is_there =
            |_: &Label, member: &Member| member.seat == Seat::Forming && !member.is_silent(now, &self.terms);
        let there = self.members_that(is_there);
        match there.len() {
            0 => missing,
            1 => format!("{missing}; there is {}", first_of(there)),
            _ => format!("{missing}; there are {}", first_of(there)),
        }
    }

    /// What the forming round waits for, in words.
    pub(super) fn missing(&self, now: Timestamp) -> String {
        self.missing_but(&BTreeSet::new(), now)
    }

    /// As `missing`, without the names of nodes that are told as silent.
    fn missing_but(&self, silent: &BTreeSet<Label>, now: Timestamp) -> String {
        let (min_nodes, max_nodes) = (self.terms.min_nodes, self.most_nodes());
        let expected = self.expected();
        let round = self.current.as_ref().map_or(0, |c| c.round.number);
        if expected > 0 {
            let names = self.missing_nodes(silent);
            let nodes = counted(expected, "node", "nodes");
            let mut text = format!("{nodes} of round {round} not yet joined again");
            if !names.is_empty() {
                text = format!("{text}: {}", some_of(&names));
            }
            let mut again: Vec<String> =
                self.successors(now).iter().map(|successor| successor.member.info.name.to_string()).collect();
            again.sort_unstable();
            if !again.is_empty() {
                let processes = if again.len() == 1 { "that process" } else { "those processes" };
                text = format!("{text} ({processes} of before: {} came anew)", some_of(&again));
            }
            return text + &self.absent.words();
        }
        if self.joined < min_nodes {
            let ranks: Vec<String> = self.missing_ranks().iter().map(u32::to_string).collect();
            let needed = min_nodes.saturating_sub(self.joined);
            let more = counted(needed, "more node is needed", "more nodes are needed");
            let without_heartbeats = self.unwatched().map(|unwatched| {
                let nodes = counted(unwatched, "node", "nodes");
                format!(
                    "; round {round} is complete with {nodes} without heartbeats: whether they are there \
                     is not known"
                )
            });
            let without_heartbeats = without_heartbeats.unwrap_or_default();
            return more
                + &if_any("node ranks not there", &ranks)
                + &self.absent.words()
                + &without_heartbeats;
        }
        let left = self.forming.as_ref().and_then(|forming| forming.last_call).map(|at| at.since(now));
        match left.filter(|left| self.is_last_call() && !left.is_zero()) {
            Some(left) => {
                format!("enough nodes are there; {} left for more, up to {max_nodes}", Elapsed(left))
            }
            None if !self.doubtful.is_empty() => "whether all of them are alive is not known".into(),
            None => "the round is complete".into(),
        }
    }

    /// The silent nodes in words, to be added to a sentence.
    fn not_heard_from(&self, silent: &BTreeSet<Label>) -> String {
        let words = |title: &str, is_cut: bool| {
            let those = self.members_that(|node, member| member.cut == is_cut && silent.contains(node));
            if those.is_empty() { String::new() } else { format!("; {title}: {}", first_of(those)) }
        };
        if silent.is_empty() {
            return String::new();
        }
        words("connection closed", true) + &words("not heard from", false)
    }

    pub(super) fn progress(&self, node: &Label, now: Timestamp) -> Option<RoundProgress> {
        let member = self.members.get(node)?;
        let (min_nodes, max_nodes) = (self.terms.min_nodes, self.most_nodes());
        let redundant = member.seat == Seat::Redundant;
        let reason = match member.rank.and_then(|rank| Some((rank, self.ranks.get(&rank)?))) {
            Some((rank, holder)) if redundant => {
                let holder = self.members.get(holder)?;
                let silent = Elapsed(now.since(holder.last_seen));
                format!("node rank {rank} is held by {}, not heard from for {silent}", holder.info.who())
            }
            _ if redundant => {
                let why = if self.terms.max_nodes > max_nodes { " (`rallypoint ctl expect`)" } else { "" };
                format!("all {max_nodes} places are taken{why}; this node stands by until one is free")
            }
            _ => {
                let (needed, missing) = (needed(min_nodes, max_nodes), self.missing(now));
                let doubtful = self.not_heard_from(&self.doubtful);
                format!("{} of {needed} nodes joined; {missing}{doubtful}", self.joined)
            }
        };
        Some(RoundProgress {
            round: self.next_round(),
            joined: self.joined,
            min_nodes,
            max_nodes,
            missing_ranks: self.missing_ranks(),
            missing_nodes: self.missing_nodes(&BTreeSet::new()),
            waited: now.since(member.joined),
            left: self.forming.as_ref().filter(|_| !redundant).map(|forming| forming.deadline.since(now)),
            reason,
        })
    }
}

/// How many nodes a round needs, in words.
pub(super) fn needed(min: u32, max: u32) -> String {
    if min == max { min.to_string() } else { format!("{min} to {max}") }
}

/// The releases of PyTorch, with the number of nodes that have each, if there is more than one.
fn mixed_releases(participants: &[Participant]) -> Option<String> {
    let mut counts = std::collections::BTreeMap::<&Label, usize>::new();
    for version in participants.iter().filter_map(|p| p.info.torch_version.as_ref()) {
        let nodes = counts.entry(version).or_default();
        *nodes = nodes.saturating_add(1);
    }
    let text = |(version, nodes): (&&Label, &usize)| format!("{version} on {nodes}");
    (counts.len() > 1).then(|| some_of(&counts.iter().map(text).collect::<Vec<_>>()))
}
