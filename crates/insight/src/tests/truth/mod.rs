//! Random schedules of faults, of which the truth is known: who came, who is dead, who waits for whom. Nothing that is
//! said may contradict it. What happens is said in time; who waits for long is told every cause by name, with a remedy
//! that helps ([`complete`]). The simulator (`crates/sim`) looks at the past in the same way.
//!
//! The tests run a few hundred schedules of each kind, always the same; `PROPTEST_CASES=10000` runs as many as that,
//! and `PROPTEST_RNG_SEED=7` others.

mod complete;
mod dynamic;
mod fixed;
mod native;
mod ranks;

use std::collections::BTreeMap;
use std::fmt::Debug;

use proptest::prelude::{ProptestConfig, Strategy};
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};

use self::complete::{Due, FACT, is_sound};
use super::lab::Lab;
use super::yardstick::{self, Scene};
use crate::RunFigures;
use crate::testing::{Checked, DELAY, Past, names, number, text, yes};
use rallypoint_api::{Explanation, Run, RunSummary, Severity};

/// Plays random schedules. Of each kind of failure the first is shown, as short as it can be made.
fn play_all<S: Strategy>(kind: &str, schedules: &S, play: impl Fn(S::Value) -> (Checked, Scene)) {
    const SHRINKS: usize = 400;
    /// The first of them are held against the yardstick.
    const HELD: u32 = 160;
    /// Of so many the names are counted.
    const COUNTED: u32 = 2000;
    let config = ProptestConfig::default();
    let rng_seed = if config.rng_seed == RngSeed::Random { RngSeed::Fixed(16) } else { config.rng_seed };
    let (held, counted) = if rng_seed == RngSeed::Fixed(16) { (HELD, COUNTED) } else { (0, 0) };
    let config = ProptestConfig { rng_seed, ..config };
    let cases = config.cases;
    let mut runner = TestRunner::new(config);
    let mut failed: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let (mut lost, mut names) = (Vec::new(), 0);
    for case in 0..cases {
        let mut schedule = schedules.new_tree(&mut runner).expect("a schedule");
        let (checked, mut scene) = play(schedule.current());
        let Err(mut shortest) = checked else {
            scene.is_schedule(kind, case);
            if case < held {
                lost.extend(yardstick::hold(&scene).err());
            }
            if case < counted {
                names += scene.names();
            }
            continue;
        };
        let kind = kind_of(&shortest);
        if let Some((times, _)) = failed.get_mut(&kind) {
            *times += 1;
            continue;
        }
        for _ in 0..SHRINKS {
            if !schedule.simplify() {
                break;
            }
            match play(schedule.current()).0 {
                Err(why) if kind_of(&why) == kind => shortest = why,
                _ if schedule.complicate() => {}
                _ => break,
            }
        }
        failed.insert(kind, (1, shortest));
    }
    if cases == counted {
        lost.extend(yardstick::hold_count(kind, names).err());
    }
    let times: usize = failed.values().map(|(times, _)| times).sum();
    let stories: Vec<String> =
        failed.into_values().map(|(times, story)| format!("{times} times: {story}")).collect();
    assert!(stories.is_empty(), "{times} of {cases} schedules fail:\n{}\n", stories.join("\n\n"));
    assert!(lost.is_empty(), "{} schedules:\n{}", lost.len(), lost.join("\n"));
}

/// A failure without what differs from schedule to schedule: of something that is not so, the code and why.
fn kind_of(why: &str) -> String {
    let first = why.lines().next().unwrap_or_default();
    let parts: Vec<&str> = first.split(": ").collect();
    let kind = match parts[..] {
        [_, code, _, .., why] => format!("{code}: {why}"),
        _ => first.to_owned(),
    };
    kind.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// How often those who look at the store do so.
const STEP: f64 = 0.5;

/// Some processes with what happens to them, and what is true of them.
trait World {
    type Op: Debug;
    /// The run that all of them are in.
    const RUN: &'static str;

    fn lab(&self) -> &Lab;
    fn lab_mut(&mut self) -> &mut Lab;
    /// What has been said and is compared.
    fn checked(&mut self) -> &mut usize;
    fn play(&mut self, op: Self::Op);
    /// Each process does what it does at this moment.
    fn act(&mut self);
    /// What is so now has been so.
    fn remember(&mut self);
    /// Others than insight see that time has passed.
    fn tick(&mut self) {}
    fn check(&self, at: f64, said: &Explanation) -> Checked;
    /// Those who cannot go on are told why, and the numbers are right.
    fn check_end(&self) -> Checked;
    /// What has happened and was not looked for yet.
    fn due(&mut self) -> &mut Vec<Due>;
    /// Whether this has not to be said after all.
    fn is_settled(&self, due: &Due) -> bool;

    /// What is said and shown of the run.
    fn shown(&self) -> Vec<Explanation> {
        let run = self.lab().insight.run(Self::RUN, None, None, self.lab().now);
        run.map(|run| run.explanations).unwrap_or_default()
    }

    fn seconds(&self) -> f64 {
        self.lab().now.0.as_secs_f64()
    }

    fn pass(&mut self, seconds: f64) -> Checked {
        let until = self.seconds() + seconds;
        while self.seconds() < until {
            self.act();
            self.remember();
            self.lab_mut().pass(STEP);
            self.tick();
            let done = *self.checked();
            for (at, said) in self.lab().said.iter().skip(done) {
                self.check(*at, said)
                    .and_then(|()| is_sound(said))
                    .map_err(|why| format!("{at:.1}: {}: {}: {why}", said.code, said.text))?;
            }
            *self.checked() = self.lab().said.len();
            self.check_due()?;
        }
        Ok(())
    }

    /// What has happened is said in time.
    fn check_due(&mut self) -> Checked {
        let now = self.seconds();
        let due: Vec<Due> = self.due().extract_if(.., |due| due.at + FACT <= now).collect();
        for due in due.iter().filter(|due| !self.is_settled(due)) {
            due.check(&self.lab().said, &self.shown())
                .map_err(|why| format!("not in time: {why}\nsince {:.1}", due.at))?;
        }
        Ok(())
    }
}

/// Operations, each with the tenths of a second after it.
type Schedule<O> = Vec<(O, u32)>;

/// Plays a schedule, and compares what is said. An error tells what was played and said.
fn played<W: World>(mut world: W, about: &str, schedule: Schedule<W::Op>) -> (Checked, Scene) {
    let mut lines = Vec::new();
    let mut checked = Ok(());
    for (op, tenths) in schedule {
        let at = world.seconds();
        lines.push((at, format!("{at:5.1} {op:?}")));
        world.play(op);
        world.remember();
        checked = checked.and_then(|()| world.pass(f64::from(tenths) / 10.0));
    }
    let checked = checked.and_then(|()| world.pass(9.0)).and_then(|()| {
        world.act();
        // What was found last is said now.
        world.lab_mut().pass(STEP);
        world.check_end()
    });
    let checked = checked.map_err(|why| {
        let line =
            |(at, said): &(f64, Explanation)| (*at, format!("        {at:5.1} {}: {}", said.code, said.text));
        lines.extend(world.lab().said.iter().map(line));
        lines.sort_by(|a, b| a.0.total_cmp(&b.0));
        let story: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
        format!("{why}\n{about}\n{}", story.join("\n"))
    });
    (checked, world.lab_mut().scene.take())
}

/// What the metrics show of a run agrees with its document.
fn agree(lab: &Lab, run: &Run) -> Checked {
    let figures = lab.insight.figures(lab.now);
    let is_it = |figures: &&RunFigures| figures.summary.run_id == run.summary.run_id;
    let figures = figures.iter().find(is_it).ok_or("the metrics do not have it")?;
    let without = |summary: &RunSummary| RunSummary { explanation: None, notes: 0, ..summary.clone() };
    yes(figures.summary == without(&run.summary), "the metrics show another state")?;
    let complaints = run.explanations.iter().filter(|said| said.severity > Severity::Info).count();
    let counted: u32 = figures.complaints.values().sum();
    yes(complaints == counted as usize, "the metrics count other explanations")
}
