//! The life of a world from its first event to the last check: the events, the moments of rest, and the end.

use std::time::Duration;

use super::super::client::Client;
use super::super::plan::{BARRIERS, ClientPlan, MILLI, Micros, NUMBERS, QUEUES, SECOND, Step, TEXTS};
use super::{Checked, Event, GRACE, Pipe, Relay, World};
use rallypoint_link::RelayEnd;
use rallypoint_server::clock::invented;
use rallypoint_store::testing::model::Act;

impl World {
    /// The whole life of the world.
    pub(super) fn live(&mut self) -> Checked {
        // By this time all faults have begun, and lasting ones are ended.
        let of_agents = self.plan.elastic.iter().flat_map(|job| &job.faults);
        let of_job = self.plan.job.iter().flat_map(|job| &job.faults).chain(of_agents).map(|(at, _)| *at);
        let rough = self.plan.rough.iter().map(|(at, _)| *at);
        let last =
            self.plan.faults.iter().map(|(at, _)| *at).chain(of_job).chain(rough).max().unwrap_or(0) + MILLI;
        self.run_until(last, |_| false)?;
        self.run_until(last + 5 * SECOND, Self::are_clients_still)?;
        self.is_calm = true;
        for relay in &mut self.relays {
            relay.partitioned_until = relay.partitioned_until.min(self.now);
        }
        self.fill(None);
        self.free_memory();
        trace!(self, "the faults are over");
        self.end_job()?;
        self.end_elastic()?;
        if self.plan.runs.has_workers {
            self.end_faults_of_nodes()?;
            self.settle_runs()?;
        }
        for _ in 0..60 {
            self.settle()?;
            let waiting: Vec<_> =
                (0..self.clients.len()).filter(|&n| self.clients[n].waits().is_some()).collect();
            if waiting.is_empty() {
                break;
            }
            // Barriers that nobody completes are cancelled. For all other waits, a client brings what they
            // wait for.
            for &client in &waiting {
                if let Some(no) = self.clients[client].waits()
                    && matches!(self.clients[client].issued[no], Act::Barrier(..))
                {
                    self.at(0, Event::GiveUp(client, no));
                }
            }
            let texts = TEXTS.iter().map(|key| Act::Set(key, "end".into()));
            let numbers = NUMBERS.iter().map(|key| Act::Add(key, 1));
            let items = QUEUES.iter().map(|key| Act::Push(key, "end".into()));
            self.visit(texts.chain(numbers).chain(items).collect());
        }
        if let Some(client) = self.clients.iter().position(|client| !client.is_gone()) {
            return Err(format!(
                "client {client} does not come to its end: {:?}",
                self.clients[client].state
            ));
        }
        self.settle_runs()?;
        // Compares what the store holds in the end, also after one more death.
        for is_last in [false, true] {
            let keys = || TEXTS.iter().chain(&NUMBERS).chain(&BARRIERS);
            let gets = [Act::MultiGet(keys().copied().collect()), Act::List, Act::NumKeys];
            self.visit(gets.into_iter().chain(QUEUES.map(Act::Len)).collect());
            self.settle()?;
            if is_last {
                break;
            }
            if self.shortage.was_there {
                self.outlast_strangers()?;
                self.check_memory()?;
            }
            self.crash(false)?;
            self.at(10 * MILLI, Event::Start);
            self.settle()?;
            self.settle_runs()?;
        }
        self.outlast_strangers()?;
        let Some(server) = &self.server else { return Err("the server is not there at the end".into()) };
        let sessions: usize = server.links.view().iter().map(|link| link.sessions).sum();
        let stats = server.listener.engine().stats();
        if sessions > 0 || stats.connections > 0 || stats.waiters > 0 {
            return Err(format!(
                "all clients have gone, and the server still has {sessions} sessions, {stats:?}"
            ));
        }
        let trained = self.workers.iter().filter(|it| self.clients[it.client].has_finished);
        self.tally.trained = trained.count() as u64;
        self.check_memory()
    }

    /// Runs until the server has given up the links of foreign peers. A last fault may still come.
    fn outlast_strangers(&mut self) -> Checked {
        let over = self.now;
        while self.server.is_none() || self.now < self.runs.started.max(over) + GRACE + 2 * SECOND {
            self.run_until(self.now + SECOND, |_| false)?;
        }
        Ok(())
    }

    /// One more client with its own connection.
    fn visit(&mut self, acts: Vec<Act>) {
        let steps = acts.into_iter().map(|act| Step { think: 100, act, patience: None }).collect();
        self.clients.push(Client::new(ClientPlan { relay: None, steps }));
        self.reference.add_client();
        self.at(0, Event::Act(self.clients.len() - 1));
    }

    /// Runs until the world is at rest: clients do nothing but wait.
    fn settle(&mut self) -> Checked {
        let until = self.now + 120 * SECOND;
        self.run_until(until, |world| world.is_still() && world.are_clients_still())?;
        if self.is_still() && self.are_clients_still() {
            return self.compare();
        }
        let clients: Vec<_> = self.clients.iter().map(|client| client.state).collect();
        Err(format!("nothing ends: {clients:?}, the links stand still: {}", self.is_still()))
    }

    fn are_clients_still(&self) -> bool {
        self.clients.iter().all(|client| client.is_gone() || client.waits().is_some())
            && !self.agenda.values().any(|event| matches!(event, Event::Act(_)))
    }

    /// Whether nothing is in flight anywhere.
    fn is_still(&self) -> bool {
        let Some(server) = &self.server else { return false };
        let is_up = |relay: &Relay| {
            relay.end.as_ref().is_some_and(|end| end.is_up() && !end.has_frames())
                && !relay.is_sending
                && relay.clients.values().all(|(_, unread)| unread.is_empty())
        };
        let has_line = |conn: u32| server.lines.get(&conn).is_some_and(|line| line.line.is_some());
        self.relays.iter().all(|relay| is_up(relay) && relay.conn.is_some_and(has_line))
            && self.conns.values().all(|conn| {
                let is_empty = |pipe: &Pipe| pipe.pieces.is_empty() || pipe.is_dead;
                (!conn.server_has || is_empty(&conn.up)) && (!conn.relay_has || is_empty(&conn.down))
            })
            && server.lines.values().all(|line| line.held.is_none() && !line.has_turn)
            && server.directs.values().all(|direct| !direct.is_held && !direct.has_turn)
    }

    pub(super) fn run_until(&mut self, until: Micros, is_over: impl Fn(&Self) -> bool) -> Checked {
        let mut seen = self.tally.events;
        while let Some(entry) = self.agenda.first_entry() {
            let &(at, _) = entry.key();
            if at > until {
                break;
            }
            if at >= self.now + 5 * MILLI && self.tally.events != seen && self.is_still() {
                seen = self.tally.events;
                self.compare()?;
                if is_over(self) {
                    return Ok(());
                }
            }
            let Some(((at, _), event)) = self.agenda.pop_first() else { break };
            self.now = at;
            invented::set(self.start, Duration::from_micros(at));
            self.tally.events += 1;
            self.tally.course = self.tally.course.rotate_left(7) ^ at;
            if self.tally.events > 200_000 {
                return Err("it does not come to an end".into());
            }
            self.happens(event)?;
            self.after()?;
        }
        self.now = self.now.max(until);
        Ok(())
    }

    fn happens(&mut self, event: Event) -> Checked {
        match event {
            Event::Act(client) => {
                if self.is_held(client)? || self.is_agent_held(client)? || self.is_worker_held(client)? {
                    return Ok(());
                }
                let sends = self.clients[client].act();
                self.client_sends(client, &sends)
            }
            Event::GiveUp(client, no) => match self.clients[client].give_up(no) {
                Some(sends) => {
                    trace!(self, "client {client} gives up its wait");
                    self.client_sends(client, &sends)
                }
                None => Ok(()),
            },
            Event::Reads(client) => self.client_reads(client),
            Event::DirectArrives(client) | Event::DirectTurn(client) => {
                self.direct_turn(client);
                Ok(())
            }
            Event::DirectSafe(client) => self.direct_safe(client),
            Event::Connect(relay) => {
                self.connect(relay);
                Ok(())
            }
            Event::Send(relay) => {
                self.send(relay);
                Ok(())
            }
            Event::RelayTick(conn) => {
                self.relay_tick(conn);
                Ok(())
            }
            Event::Arrive(conn, way) => self.arrive(conn, way),
            Event::Turn(conn) => self.turn(conn),
            Event::Safe(conn) => self.safe(conn),
            Event::LineTick(conn) => {
                self.line_tick(conn);
                Ok(())
            }
            Event::ServerTick(life) => self.server_tick(life),
            Event::Sync(life) => {
                if let Some(server) = self.server.as_ref().filter(|_| life == self.server_life)
                    && let Some(journal) = &server.journal
                {
                    let _synced = journal.sync();
                }
                Ok(())
            }
            Event::TidyStep(life) => {
                self.tidy(life);
                Ok(())
            }
            Event::Start => self.start_server(),
            Event::StartRelay(relay) => {
                self.start_relay(relay);
                Ok(())
            }
            Event::Fault(n) => self.fault(n),
            Event::NodeComes(node, same_id) => {
                self.node_comes(node, same_id);
                Ok(())
            }
            Event::NodeActs(node, life) => self.node_acts(node, life),
            Event::NodeFault(n) => self.node_fault(n),
            Event::Wishes(n) => self.wishes(n),
            Event::Arrives(n) => self.arrives(n),
            Event::Announces(pod) => self.announces(pod),
            Event::RankComes(rank, attempt) => self.rank_comes(rank, attempt),
            Event::JobFault(n) => self.job_fault(n),
            Event::AgentComes(job, node) => {
                self.agent_comes(job, node);
                Ok(())
            }
            Event::AgentFault(job, n) => self.agent_fault(job, n),
            Event::LaunchAgents(job) => self.launch_agents(job),
            Event::ProcessEnds(client) => self.process_ends(client),
            Event::Rough(n) => self.rough(n),
            Event::Launch => {
                self.launch();
                Ok(())
            }
            Event::Poll(call) => self.poll_call(call),
            Event::MemoryIsFree => {
                self.free_memory();
                Ok(())
            }
            Event::Freed { steps: 0 } => {
                trace!(self, "the disk has room again");
                self.fill(None);
                Ok(())
            }
            Event::Freed { steps } => {
                let room = self.random.below(1500);
                trace!(self, "the disk has some room again: {room} bytes");
                self.fill(Some(room as usize));
                self.at(SECOND, Event::Freed { steps: steps - 1 });
                Ok(())
            }
            Event::NotRefused => {
                trace!(self, "the disk refuses nothing more");
                self.disk.disk.refuse(None);
                self.is_full = false;
                Ok(())
            }
        }
    }

    /// What must happen after every event.
    fn after(&mut self) -> Checked {
        self.look_at_disk()?;
        self.listen()?;
        let mut ready = Vec::new();
        if let Some(server) = &self.server {
            ready.extend(server.take_woken().into_iter().map(Event::Turn));
            for (&client, direct) in &server.directs {
                if direct.woken.take() && !direct.is_held {
                    ready.push(Event::DirectTurn(client));
                }
            }
        }
        for event in ready {
            match event {
                Event::Turn(conn) => self.want_turn(conn),
                event => self.soon(event),
            }
        }
        for relay in 0..self.relays.len() {
            let it = &self.relays[relay];
            let has_frames = it.conn.is_some() && it.end.as_ref().is_some_and(RelayEnd::has_frames);
            if has_frames && !it.is_sending {
                self.relays[relay].is_sending = true;
                self.soon(Event::Send(relay));
            }
        }
        if self.has_runs() {
            self.look_at_calls(false);
        }
        Ok(())
    }
}
