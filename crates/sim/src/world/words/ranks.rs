//! What insight says about the ranks of the job.

use super::super::super::jobs::ADDRESSES;
use super::super::super::server::PORT;
use super::super::{Checked, World};
use super::Moment;
use rallypoint_api::{Explanation, Run, RunState};
use rallypoint_insight::testing::{names, number, text, yes};
use rallypoint_store::testing::model::Act;

/// The state of a process with a rank at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankNow {
    rank: usize,
    client: usize,
    is_alive: bool,
    /// Whether the server has heard from it.
    is_known: bool,
    has_published: bool,
    /// The rank for whose address it waits.
    waits_for: Option<usize>,
}

impl Moment {
    fn alive(&self) -> impl Iterator<Item = &RankNow> {
        self.ranks.iter().filter(|it| it.is_alive)
    }

    fn published(&self, rank: usize) -> impl Iterator<Item = &RankNow> {
        self.alive().filter(move |it| it.rank == rank && it.has_published)
    }
}

/// The name of the run without an id.
pub(super) fn job_name() -> String {
    format!("store:{PORT}")
}

impl World {
    pub(super) fn ranks_now(&self) -> Vec<RankNow> {
        let now = |it: &super::super::jobs::Process| {
            let client = &self.clients[it.client];
            let waits_for = match self.asked(it.client) {
                Some(Act::Wait(keys)) => ADDRESSES.iter().position(|address| keys.contains(address)),
                _ => None,
            };
            RankNow {
                rank: it.rank,
                client: it.client,
                is_alive: !client.is_gone(),
                is_known: self.heard_of.contains(&it.client),
                has_published: client.issued.len() > 1,
                waits_for,
            }
        };
        self.job.processes.iter().map(now).collect()
    }

    /// Whether this held for `many` processes, not all at one moment.
    fn was_so_of_many(&self, many: usize, holds: impl Fn(&RankNow) -> bool, why: &str) -> Checked {
        let is_so = |client: usize| {
            let of_client = |moment: &Moment| moment.ranks.iter().any(|it| it.client == client && holds(it));
            self.was(of_client, why).is_ok()
        };
        yes(self.job.processes.iter().filter(|it| is_so(it.client)).count() >= many, why)
    }

    /// The processes that a name may mean: `rank 2 on host2-0` is one process, `rank 2` may be any with that
    /// rank.
    fn ranks_called(&self, name: &str) -> Result<Vec<usize>, String> {
        let of_rank = name.strip_prefix("rank ").ok_or_else(|| format!("{name} is no rank"))?;
        let found: Vec<usize> = (self.job.processes.iter())
            .filter(|it| match of_rank.split_once(" on ") {
                Some((rank, host)) => rank == it.rank.to_string() && host == it.host(),
                None => of_rank.split(' ').next() == Some(&it.rank.to_string()),
            })
            .map(|it| it.client)
            .collect();
        Ok(found)
    }

    /// Whether this held, for each name, for a process that the name may mean.
    fn was_so_of_ranks(&self, names: &[String], holds: impl Fn(&RankNow) -> bool, why: &str) -> Checked {
        for name in names {
            let called = self.ranks_called(name)?;
            let is_so =
                |moment: &Moment| moment.ranks.iter().any(|it| called.contains(&it.client) && holds(it));
            self.was(is_so, &format!("{name} {why}"))?;
        }
        Ok(())
    }

    /// Whether all processes were dead from which this server or the last one has heard.
    fn all_were_dead(&self) -> Checked {
        self.was(|moment| !moment.alive().any(|it| it.is_known), "some are alive")
    }

    pub(super) fn no_rank_was_there(&self) -> Checked {
        self.was(|moment| !moment.alive().any(|it| it.has_published), "a rank is there")
    }

    fn nobody_has_come(&self, names: &[String]) -> Checked {
        names.iter().try_for_each(|name| {
            let rank = name.strip_prefix("rank ").and_then(|rest| rest.split(' ').next());
            let rank = rank.and_then(|rank| rank.parse::<usize>().ok());
            let rank = rank.ok_or_else(|| format!("{name} is no rank"))?;
            self.was(|moment| moment.published(rank).next().is_none(), &format!("{name} has come"))
        })
    }

    pub(super) fn check_said_of_ranks(&self, said: &Explanation) -> Checked {
        let facts = &said.facts;
        let size = self.plan.job.as_ref().map(|job| job.ranks.len()).ok_or("there is no job")?;
        let dead = |names: &[String]| self.was_so_of_ranks(names, |it| !it.is_alive, "is alive");
        match said.code.as_str() {
            "run_started" => {
                self.was_so_of_ranks(&[text(facts, "who").into()], |it| it.has_published, "has not come")
            }
            "round_complete" => {
                yes(number(facts, "ranks") == size, "not so many")?;
                let has_come =
                    |moment: &Moment, rank| moment.ranks.iter().any(|it| it.rank == rank && it.has_published);
                self.was(|moment| (0..size).all(|rank| has_come(moment, rank)), "some have not come")
            }
            "run_ended" | "not_back" => self.all_were_dead(),
            "store_reset" => {
                self.was_so_of_ranks(&names(facts, "ranks"), |it| it.has_published, "has not published")
            }
            "lost" => dead(&names(facts, "ranks")),
            "ranks_ended" => {
                dead(&names(facts, "ranks"))?;
                let left = number(facts, "left");
                self.was_so_of_many(left, |it| it.is_alive, "there are not so many left")
            }
            "waiting" => {
                let who = text(facts, "who");
                self.nobody_has_come(&names(facts, "missing"))?;
                let waiters = number(facts, "waiters");
                let waits = |it: &RankNow| it.is_alive && it.waits_for.is_some();
                self.was_so_of_many(waiters, waits, "so many do not wait")?;
                let who = [who.to_owned()];
                match (text(&facts["presence"], "is"), facts["but"]["why"].as_str()) {
                    ("never_seen", None) => self.nobody_has_come(&who),
                    ("not_back", None) => yes(self.server_life > 1, "the server was not restarted"),
                    ("closed" | "unreachable", None) => dead(&who),
                    ("away", _) => self.some_link_was_away(),
                    ("connected", None) if facts["presence"]["waits"] == "nothing" => {
                        self.was_so_of_ranks(&who, |it| it.is_alive && it.waits_for.is_none(), "waits")
                    }
                    ("connected", _) => self.was_so_of_ranks(&who, |it| it.is_alive, "is not there"),
                    other => Err(format!("it is never {other:?}")),
                }
            }
            "duplicate_rank" | "two_jobs" => {
                let twice = |moment: &Moment, rank| moment.published(rank).count() > 1;
                self.was(|moment| (0..size).any(|rank| twice(moment, rank)), "no rank is there twice")
            }
            _ => Err("nothing of that kind is so".into()),
        }
    }

    /// Checks what is shown of the job.
    pub(super) fn check_job(&self, shown: &Run) -> Checked {
        let summary = &shown.summary;
        if let Some(ranks) = &summary.ranks {
            let there = ranks.joined as usize;
            self.was_so_of_many(there, |it| it.is_alive, "so many were not there")?;
        }
        if summary.state.is_over() {
            yes(summary.state != RunState::Finished, "nobody can know that")?;
            return self.all_were_dead();
        }
        self.was(|moment| moment.alive().next().is_some(), "nobody is there")
    }

    /// A process that waits for a rank that does not come must be told so.
    pub(in super::super) fn check_told(&self) -> Checked {
        let Some(server) = &self.server else { return Ok(()) };
        let now = self.ranks_now();
        let Some(stuck) = now.iter().find(|it| it.is_alive && it.waits_for.is_some()) else { return Ok(()) };
        let held = server.watch.run(&job_name(), None, None).map_or_else(Vec::new, |run| run.explanations);
        let is_it = |said: &&Explanation| said.holds && said.code == "waiting";
        yes(held.iter().any(|said| is_it(&said)), &format!("nobody says why {stuck:?} waits: {held:?}"))
    }
}
