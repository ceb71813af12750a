//! Joins: which nodes may join, on which terms, with which rank, and which of them get a place.

use std::time::Duration;

use super::absent::Fate;
use super::forming::needed;
use super::looks::look;
use super::round::Forming;
use super::run::{Member, Run, Seat, signs_of};
use super::{Break, Decision, Did, Join, Label, RankInRound, RunRefusal, Sign, Terms, What, Who, Why};
use rallypoint_protocol::ids::Timestamp;

/// A closed run whose last node is gone can be joined again after this time.
const REOPEN_AFTER: Duration = Duration::from_secs(10);

impl Run {
    pub(super) fn join(
        &mut self,
        join: Join,
        defaults: &Terms,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> Result<(), RunRefusal> {
        if self.members.get(&join.node).is_some_and(|member| member.join_id == join.join_id) {
            self.unpark(&join.node, now);
            self.refuse_contenders(&join.node, now, out);
            // The forming round may have waited for this retry.
            self.settle(now, out);
            return self.not_ended(&join.node);
        }
        self.reopen_if_over(&join, now, out)?;
        let were_learned = self.terms_are_learned;
        self.take_over_terms(&join, defaults)?;
        if were_learned {
            // By the terms that hold from now on, some nodes may be lost already.
            self.check_members(now, out);
        }
        if let Some(rank) = join.rank.filter(|&rank| rank >= self.terms.max_nodes) {
            return Err(RunRefusal::BadRank { rank, max_nodes: self.terms.max_nodes });
        }
        self.succeed_to(&join, now, out);
        let contends = self.rank_is_held(&join)?;
        let limit = (self.terms.max_nodes as usize).saturating_mul(2).saturating_add(64);
        if self.members.len() >= limit && !self.members.contains_key(&join.node) {
            return Err(RunRefusal::TooManyNodes { run: self.id.clone(), limit });
        }
        let displaced = self.displaces(&join);
        let previous = self.rejoin(&join, now, out).or(join.previous.map(|place| place.rank));
        self.learn_place(join.previous, &join.info.who(), now, out);
        self.absent.is_back(&join.node, &join.info.who(), join.rank, previous.is_none());
        if let Some(who) = displaced {
            self.note_absent(&join.node, who.clone(), None, Fate::Displaced, now);
            let by = Sign::now(Did::Joined, &join.info.who());
            self.publish(self.last_round, What::Displaced { who }, vec![by], out);
        }
        let node = join.node.clone();
        self.serials = self.serials.saturating_add(1);
        let member = Member {
            info: join.info,
            payload: join.payload,
            join_id: join.join_id,
            rank: join.rank,
            watched: join.watched,
            previous,
            seat: Seat::Redundant,
            parked: false,
            cut: false,
            unheard: false,
            silence_published: false,
            last_seen: now,
            joined: now,
            serial: self.serials,
        };
        let is_held = member.rank.is_some_and(|rank| self.ranks.contains_key(&rank));
        self.redundant.insert(member.serial, member.rank, is_held, node.clone());
        self.seat(node.clone(), member);
        if !contends && self.has_place() {
            self.give_place(&node, now, out);
        }
        self.watch_for(now);
        self.settle(now, out);
        self.not_ended(&node)
    }

    /// Checks that the join has not ended. The error says how it ended.
    fn not_ended(&self, node: &Label) -> Result<(), RunRefusal> {
        match self.members.get(node).map(|member| &member.seat) {
            Some(Seat::Ended(why)) => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// Starts a closed run again, if it is over.
    fn reopen_if_over(
        &mut self,
        join: &Join,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> Result<(), RunRefusal> {
        let Some(closed) = &self.closed else { return Ok(()) };
        let over = self.idle_since.is_some_and(|since| now.since(since.max(closed.at)) >= REOPEN_AFTER);
        if !over {
            return Err(RunRefusal::Closed { run: self.id.clone(), by: closed.by.clone() });
        }
        self.closed = None;
        self.clear();
        self.let_go = 0;
        self.dissolve(out);
        let had_finished = std::mem::take(&mut self.work).finished.is_some();
        let by = Sign::now(Did::Joined, &join.info.who());
        self.publish(self.last_round, What::Restarted { had_finished }, vec![by], out);
        Ok(())
    }

    /// The first node settles the terms, and the others must agree. A run that was taken over from a report
    /// knows only the numbers of nodes, so the next join settles the other terms.
    fn take_over_terms(&mut self, join: &Join, defaults: &Terms) -> Result<(), RunRefusal> {
        let alone = self.live() == 0
            || (self.live() == 1
                && self.members.get(&join.node).is_some_and(|m| !matches!(m.seat, Seat::Ended(_))));
        match &self.settled_by {
            Some(settled_by) if !alone => {
                let mut differences = join.wanted.differences(&self.terms);
                if self.terms_are_learned {
                    differences.retain(super::Difference::is_about_nodes);
                }
                if !differences.is_empty() {
                    let (run, settled_by) = (self.id.clone(), settled_by.clone());
                    return Err(RunRefusal::Mismatch { run, settled_by, differences });
                }
                if !self.terms_are_learned {
                    return Ok(());
                }
            }
            _ => {}
        }
        self.terms = join.wanted.settle(defaults);
        self.settled_by = Some(join.info.who());
        self.terms_are_learned = false;
        Ok(())
    }

    /// Whether another node holds the rank. A holder that is surely alive keeps it: the join is refused. If
    /// nothing has come from the holder just now, the new node waits, because it may be the replacement.
    fn rank_is_held(&self, join: &Join) -> Result<bool, RunRefusal> {
        let Some(rank) = join.rank else { return Ok(false) };
        let Some(holder) = self.ranks.get(&rank).filter(|holder| **holder != join.node) else {
            return Ok(false);
        };
        match self.members.get(holder) {
            Some(member) if member.parked => {
                let (holder, newcomer) = (member.info.who(), join.info.who());
                Err(RunRefusal::DuplicateRank { rank, holder, newcomer })
            }
            _ => Ok(true),
        }
    }

    /// `node` is alive: refuses the nodes that wait in vain for its rank.
    pub(super) fn refuse_contenders(&mut self, node: &Label, now: Timestamp, out: &mut Vec<Decision>) {
        if self.redundant.is_empty() {
            return;
        }
        let Some((rank, holder)) = self.members.get(node).and_then(|m| Some((m.rank?, m.info.who()))) else {
            return;
        };
        if self.ranks.get(&rank) != Some(node) {
            return;
        }
        let contenders: Vec<Label> = self.redundant.of_rank(rank).inspect(|_| look()).cloned().collect();
        for contender in contenders {
            if let Some(newcomer) = self.members.get(&contender).map(|member| member.info.who()) {
                self.end(
                    &contender,
                    RunRefusal::DuplicateRank { rank, holder: holder.clone(), newcomer },
                    now,
                    out,
                );
            }
        }
    }

    /// The node that this join displaces: another process with this node id and name, which waits at this
    /// moment. A process that was killed does not.
    fn displaces(&self, join: &Join) -> Option<Who> {
        let member = self.members.get(&join.node).filter(|member| member.parked)?;
        let (waits, comes) = (member.info.who(), join.info.who());
        (waits.name == comes.name && matches!(member.seat, Seat::Forming | Seat::Redundant)).then_some(waits)
    }

    /// Ends an earlier join of this node. Returns the rank that the node had.
    fn rejoin(&mut self, join: &Join, now: Timestamp, out: &mut Vec<Decision>) -> Option<u32> {
        let member = self.members.get(&join.node)?;
        let (who, previous) = (member.info.who(), member.previous);
        match self.vacate(&join.node)?.seat {
            Seat::InRound(rank) => {
                let is_first = self.current.as_ref().is_some_and(|current| current.broken.is_none());
                if self.closed.is_none() && is_first {
                    let why = self.why_rejoined(&who, rank, now);
                    self.break_round(why, now, out);
                }
                Some(rank)
            }
            _ => previous,
        }
    }

    /// Why the nodes of the round join again, as far as it is known when the first one does.
    fn why_rejoined(&self, who: &Who, rank: u32, now: Timestamp) -> Break {
        const SHOWN: usize = 8;
        let is_new = |member: &&Member| matches!(member.seat, Seat::Forming) && member.previous.is_none();
        let mut newcomers: Vec<&Member> = self.walk().map(|(_, member)| member).filter(is_new).collect();
        newcomers.sort_by_key(|member| member.serial);
        if !newcomers.is_empty() {
            let newcomers = newcomers.into_iter().take(SHOWN);
            let signs = newcomers.map(|member| Sign::now(Did::Joined, &member.info.who())).collect();
            return Break { why: Why::Newcomers, signs };
        }
        // Who stood by has a place, as an operator expects more.
        let forms = || self.walk().any(|(_, member)| member.seat == Seat::Forming);
        if let Some(current) = self.current.as_ref().filter(|_| self.size.is_some() && forms()) {
            let nodes = current.present.saturating_add(current.unreported()).saturating_add(1);
            return Why::Resized { nodes, expected: self.most_nodes() }.into();
        }
        let is_quiet =
            |member: &&Member| matches!(member.seat, Seat::InRound(_)) && member.watched && !member.parked;
        let quiet = || self.walk().map(|(_, member)| member).filter(is_quiet);
        let late = self.terms.late_after();
        let is_silent = |member: &&Member| !member.cut && now.since(member.last_seen) > late;
        let mut gone = signs_of(quiet().filter(|member| member.is_cut_off(now)), now);
        if gone.is_empty() {
            gone = signs_of(quiet().filter(is_silent), now);
        }
        Break::rejoined(who, rank, gone)
    }

    /// Moves a redundant member into the forming round.
    fn give_place(&mut self, node: &Label, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.seat = Seat::Forming;
        if member.may_be_dead(now, &self.terms) {
            self.doubtful.insert(node.clone());
        }
        self.redundant.remove(member.serial, member.rank);
        self.joined = self.joined.saturating_add(1);
        if let Some(rank) = member.rank {
            self.with_rank = self.with_rank.saturating_add(1);
            self.ranks.insert(rank, node.clone());
            self.redundant.rank_changed(rank, true);
        }
        let who = member.info.who();
        if let Some(forming) = &mut self.forming {
            forming.last = who;
        } else {
            let mut forming = Forming::start(who.clone(), &self.terms, now);
            forming.more_time(self.more_time, &self.terms, now);
            self.forming = Some(forming);
            let needed = needed(self.terms.min_nodes, self.most_nodes());
            let first = Sign::now(Did::Joined, &who);
            self.publish(self.next_round(), What::Forms { needed }, vec![first], out);
        }
    }

    /// Gives free places to the nodes that have waited the longest. Returns whether any node got one.
    pub(super) fn promote(&mut self, now: Timestamp, out: &mut Vec<Decision>) -> bool {
        if self.redundant.is_empty() || !self.has_place() || self.closed.is_some() {
            return false;
        }
        let before = self.redundant.len();
        while self.has_place()
            && let Some(node) = self.redundant.next().cloned()
        {
            self.give_place(&node, now, out);
        }
        self.redundant.len() < before
    }

    /// A node was in this earlier round, so later rounds get greater numbers, even if this server never saw
    /// that round.
    fn learn_place(
        &mut self,
        place: Option<RankInRound>,
        who: &Who,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) {
        let Some(place) = place else { return };
        if place.can_be_learned() {
            self.last_round = self.last_round.max(place.round);
        }
        self.count_as_reported(place, who, now, out);
    }
}
