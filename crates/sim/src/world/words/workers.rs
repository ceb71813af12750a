//! What insight says about the ranks of native runs and of agents.

use super::super::super::jobs::ADDRESSES;
use super::super::workers::Worker;
use super::super::{Checked, World};
use super::Moment;
use super::ranks::job_name;
use rallypoint_api::{Explanation, Run};
use rallypoint_insight::testing::{names, number, text, yes};
use rallypoint_store::testing::model::{Act, Key};

/// The state of such a rank at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerNow {
    run: Key,
    round: u64,
    rank: u32,
    size: usize,
    client: usize,
    is_alive: bool,
    has_published: bool,
    /// Whether it waits for the address of another rank.
    waits: bool,
}

/// Stands for the ranks of all runs.
const ALL: &str = "";

impl Moment {
    fn workers_of<'m>(&'m self, run: &'m str) -> impl Iterator<Item = &'m WorkerNow> {
        // If the run of the ranks is not known, all of them are in one run without an id.
        let all = run == ALL || run == job_name();
        self.workers.iter().filter(move |it| all || it.run == run)
    }

    /// Whether a rank has published its address in the last round of its run.
    fn has_worker(&self, run: &str, rank: Option<u32>) -> bool {
        let last = self.workers_of(run).map(|it| it.round).max();
        let is_it = |it: &&WorkerNow| Some(it.rank) == rank && Some(it.round) == last;
        self.workers_of(run).filter(is_it).any(|it| it.is_alive && it.has_published)
    }
}

/// The rank in `rank 2`, or in `rank 2 on worker7`.
fn rank_in(name: &str) -> Option<u32> {
    name.strip_prefix("rank ")?.split(' ').next()?.parse().ok()
}

impl World {
    pub(super) fn workers_now(&self) -> Vec<WorkerNow> {
        let now = |it: &Worker| {
            let client = &self.clients[it.client];
            let waits = match self.asked(it.client) {
                Some(Act::Wait(keys)) => ADDRESSES.iter().any(|address| keys.contains(address)),
                _ => false,
            };
            WorkerNow {
                run: it.run,
                round: it.place.round,
                rank: it.place.rank,
                size: it.size,
                client: it.client,
                is_alive: !client.is_gone(),
                has_published: client.issued.len() > 1,
                waits,
            }
        };
        self.workers.iter().map(now).collect()
    }

    /// Whether this held for `many` ranks of a run, not all at one moment.
    fn was_so_of_workers(
        &self,
        run: &str,
        many: usize,
        holds: impl Fn(&WorkerNow) -> bool,
        why: &str,
    ) -> Checked {
        let is_so = |client: usize| {
            let of_client =
                |moment: &Moment| moment.workers_of(run).any(|it| it.client == client && holds(it));
            self.was(of_client, why).is_ok()
        };
        yes(self.workers.iter().filter(|it| is_so(it.client)).count() >= many, why)
    }

    /// Whether this held, for each name, for a rank that the name may mean: `rank 2 on worker7` is one, `rank
    /// 2` may be any.
    fn was_so_of_named(
        &self,
        run: &str,
        names: &[String],
        holds: impl Fn(&WorkerNow) -> bool,
        why: &str,
    ) -> Checked {
        names.iter().try_for_each(|name| {
            let host = name.split_once(" on worker").and_then(|(_, client)| client.parse::<usize>().ok());
            let is_it = |it: &WorkerNow| {
                Some(it.rank) == rank_in(name) && host.is_none_or(|client| client == it.client)
            };
            let is_so = |moment: &Moment| moment.workers_of(run).any(|it| is_it(it) && holds(it));
            self.was(is_so, &format!("{name} {why}"))
        })
    }

    fn no_worker_has_come(&self, run: &str, names: &[String]) -> Checked {
        names.iter().try_for_each(|name| {
            self.was(|moment| !moment.has_worker(run, rank_in(name)), &format!("{name} has come"))
        })
    }

    /// The run whose ranks are meant. A restarted server cannot distinguish the ranks of one static run from
    /// those of the next.
    fn told_apart<'r>(&self, run: &'r str) -> &'r str {
        if self.server_life > 1 && run.starts_with("static-") { ALL } else { run }
    }

    pub(super) fn check_said_of_workers(&self, run: &str, said: &Explanation) -> Checked {
        let facts = &said.facts;
        let run = self.told_apart(run);
        let dead = |names: &[String]| self.was_so_of_named(run, names, |it| !it.is_alive, "is alive");
        match said.code.as_str() {
            "round_complete" => {
                let ranks = number(facts, "ranks");
                self.was_so_of_workers(run, ranks, |it| it.has_published, "so many have not come")
            }
            "lost" => dead(&names(facts, "ranks")),
            "ranks_ended" => {
                dead(&names(facts, "ranks"))?;
                let left = number(facts, "left");
                self.was_so_of_workers(run, left, |it| it.is_alive, "there are not so many left")
            }
            "waiting" => {
                let who = text(facts, "who");
                self.no_worker_has_come(run, &names(facts, "missing"))?;
                let waiters = number(facts, "waiters");
                let waits = |it: &WorkerNow| it.is_alive && it.waits;
                self.was_so_of_workers(run, waiters, waits, "so many do not wait")?;
                let who = [who.to_owned()];
                match (text(&facts["presence"], "is"), facts["but"]["why"].as_str()) {
                    ("never_seen", None) => self.no_worker_has_come(run, &who),
                    ("not_back", None) => yes(self.server_life > 1, "the server was not restarted"),
                    ("closed" | "unreachable", None) => dead(&who),
                    ("away", _) => self.some_link_was_away(),
                    ("connected", None) if facts["presence"]["waits"] == "nothing" => {
                        self.was_so_of_named(run, &who, |it| it.is_alive && !it.waits, "waits")
                    }
                    ("connected", _) => self.was_so_of_named(run, &who, |it| it.is_alive, "is not there"),
                    other => Err(format!("it is never {other:?}")),
                }
            }
            "world_sizes_differ" => {
                let is_prepared = |moment: &Moment, rank, size| {
                    let is_it = |it: &WorkerNow| it.rank as usize == rank && it.size == size;
                    moment.workers_of(run).any(|it| it.is_alive && it.has_published && is_it(it))
                };
                let says = |moment: &Moment| {
                    is_prepared(moment, number(facts, "rank"), number(facts, "says"))
                        && is_prepared(moment, number(facts, "other_rank"), number(facts, "other_says"))
                };
                self.was(says, "they agree, or are not there at once")
            }
            "run_started" if run == job_name() => {
                self.was_so_of_named(run, &[text(facts, "who").into()], |it| it.has_published, "has not come")
            }
            "run_ended" | "not_back" if run == job_name() => self.was(
                |moment| !moment.workers.iter().any(|it| it.is_alive && it.has_published),
                "some are there",
            ),
            "duplicate_rank" => {
                // Also a rank of an earlier round whose agent does not know yet that it was removed.
                let is_claimed = |it: &&WorkerNow| it.is_alive && it.has_published;
                let is_twice = |moment: &Moment| {
                    let mut claimed = moment.workers_of(run).filter(is_claimed);
                    claimed.any(|it| {
                        let other = |other: &WorkerNow| other.rank == it.rank && other.client != it.client;
                        moment.workers_of(run).filter(is_claimed).any(other)
                    })
                };
                self.was(is_twice, "no rank is there twice")
            }
            _ => Err("nothing of that kind is so".into()),
        }
    }

    /// Checks what is shown of the ranks of a run.
    pub(super) fn check_workers(&self, run: &str, shown: &Run) -> Checked {
        let Some(ranks) = shown.summary.ranks.as_ref().filter(|_| !self.workers.is_empty()) else {
            return Ok(());
        };
        let there = ranks.joined as usize;
        self.was_so_of_workers(self.told_apart(run), there, |it| it.is_alive, "so many ranks were not there")
    }
}
