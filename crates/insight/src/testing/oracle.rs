//! The one judge of what is said in random schedules, of which the truth is known: each explanation is held
//! against a [`World`]. Nothing that is told of anybody may be false; who waits in vain and finds no name of
//! its root is counted. The simulator has the same judge.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;
use std::rc::Rc;

use serde_json::Value;

use super::{Checked, Past, names_in, waiters, yes};
use rallypoint_api::Explanation;

/// One process at one moment.
#[derive(Debug, Clone, Default)]
pub struct Being {
    /// Its own names: host, `pid 12`, and its address, where addresses tell processes apart.
    pub names: Rc<[String]>,
    /// What its place is called, if not as that of the others.
    pub kind: Option<&'static str>,
    /// The rank or node that it has told, or was given last.
    pub place: Option<u32>,
    /// It is counted under that place: it has joined, or published its address.
    pub holds: bool,
    pub connected: bool,
    /// Its link is away.
    pub away: bool,
    /// Its link has been away for so long that it may have been given up.
    pub cut_off: bool,
    /// It has ended, and that may not have been noticed yet.
    pub unnoticed: bool,
    /// It is not frozen.
    pub acts: bool,
    pub finished: bool,
    /// Its last sign of life.
    pub heard: f64,
    /// Since when it waits, and for which places; none: for somebody who is not known.
    pub waits: Option<(f64, Vec<u32>)>,
}

impl Being {
    /// Whether it may be counted as there: nobody can have noticed that it is not.
    pub fn may_be_there(&self) -> bool {
        self.connected || self.unnoticed
    }

    /// It waits for somebody of whom it is known who that is.
    fn waits_here(&self) -> bool {
        self.waits.as_ref().is_some_and(|(_, places)| !places.is_empty())
    }
}

/// What is true of a run at one moment.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// What a place is called: `rank` or `node`.
    pub place: &'static str,
    pub beings: Vec<Being>,
    /// Processes may be told of that are none of these.
    pub has_strangers: bool,
    /// All places that the run needs are taken.
    pub complete: bool,
    /// It is over: finished, closed, or nobody is there. Not always known: none.
    pub over: Option<bool>,
    /// What may be counted, `joined`, `left` or `arrived`: at least and at most.
    pub counts: Vec<(&'static str, usize, usize)>,
}

/// What the name of somebody is told with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Nobody holds the place, or goes by that name in the round.
    Absent,
    /// Its connection has closed.
    Ended,
    /// It is not with the others: ended, frozen, or out of the round.
    Gone,
    /// It is connected.
    There,
    /// It is connected, and waits for nothing.
    Idle,
    /// It does not wait any more, whether it is there or not.
    Free,
    /// It is connected, and holds no place.
    Unplaced,
    /// Nothing is heard of it.
    Quiet,
}

/// Nobody is taken for gone who was heard of so lately.
const SILENT: f64 = 8.0;

use Claim::{Absent, Ended, Free, Gone, Idle, Quiet, There, Unplaced};

/// What was seen of somebody.
fn claim_of(presence: &Value) -> Option<Claim> {
    match presence["is"].as_str()? {
        "never_seen" | "not_again" => Some(Absent),
        "closed" | "unreachable" => Some(Ended),
        "connected" if presence["waits"] == "nothing" => Some(Idle),
        "connected" => Some(There),
        "silent" | "away" => Some(Quiet),
        "left" | "taken_out" => Some(Gone),
        _ => None,
    }
}

/// All that is claimed of somebody: the name, and what.
fn claims(said: &Explanation) -> Vec<(&str, Claim)> {
    let shown = |field: &str| said.facts[field]["shown"].as_array().into_iter().flatten();
    let names = |field| shown(field).filter_map(Value::as_str);
    let held = match said.code.as_str() {
        "gave_up" => Some(Free),
        // It may have been closed as these had left.
        "run_closed" => None,
        _ => Some(There),
    };
    let held = names("held").filter_map(|name| Some((name, held?)));
    let candidates = names("candidates").map(|name| (name, Unplaced));
    let missing = said.facts["missing"].as_array().into_iter().flatten();
    let missing = missing.filter_map(|who| Some((who["name"].as_str()?, claim_of(&who["presence"])?)));
    held.chain(candidates).chain(missing).collect()
}

fn is_address(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
}

/// A name as it is told: the places in it, and all else.
struct Called {
    places: BTreeSet<(String, u32)>,
    own: BTreeSet<String>,
}

impl Called {
    fn of(label: &str) -> Self {
        // `rank 2 (local rank 0 on node 1 at 10.0.0.2)` is a place of which nothing was seen.
        let label = label.split(" (local rank").next().unwrap_or_default();
        // `rank 2 on host3 (4 s ago)`.
        let label = label.split(" (after ").next().unwrap_or_default();
        let (mut places, mut own) = (BTreeSet::new(), BTreeSet::new());
        for name in names_in(label, None) {
            match name.split_once(' ') {
                Some((kind @ ("rank" | "node"), number)) => {
                    places.extend(number.parse().map(|number| (kind.to_owned(), number)));
                }
                Some(("key", _)) => {}
                _ => drop(own.insert(name)),
            }
        }
        Self { places, own }
    }

    fn is(&self, being: &Being, place: &str) -> bool {
        let has_address = being.names.iter().any(|name| is_address(name));
        let mut own = self.own.iter().filter(|name| has_address || !is_address(name)).peekable();
        if own.peek().is_none() {
            let kind = being.kind.unwrap_or(place);
            return being.place.is_some_and(|number| self.places.contains(&(kind.to_owned(), number)));
        }
        own.all(|name| being.names.contains(name))
    }
}

impl World {
    /// Whether somebody holds this place.
    fn holders(&self, place: u32) -> impl Iterator<Item = (usize, &Being)> {
        let holds = move |being: &Being| being.connected && being.holds && being.place == Some(place);
        self.beings.iter().enumerate().filter(move |(_, being)| holds(being))
    }

    fn is_so(&self, called: &Called, claim: Claim, at: f64) -> bool {
        let mut those = self.beings.iter().filter(|being| called.is(being, self.place));
        let holds = |being: &Being| being.connected && being.holds;
        // Who waits sends no heartbeats, and may be taken for gone.
        let is_quiet = |being: &Being| being.heard > 0.0 && being.heard < at - SILENT;
        match claim {
            Absent if called.own.is_empty() => !those.any(holds),
            // If two have one name, the other may be meant.
            Absent => those.clone().next().is_none() || those.any(|being| !holds(being) || !being.acts),
            Ended => those.any(|being| !being.connected || being.cut_off),
            Gone => {
                those.clone().next().is_none()
                    || those.any(|being| !holds(being) || !being.acts || being.cut_off || is_quiet(being))
            }
            There => those.any(|being| being.may_be_there() || being.finished),
            Idle => those.any(|being| being.may_be_there() && !being.waits_here()),
            Free => those.any(|being| !being.connected || !being.waits_here()),
            Unplaced => those.any(|being| being.connected && !being.holds || being.unnoticed),
            Quiet => those.any(|being| !being.acts || being.away || !being.connected || is_quiet(being)),
        }
    }

    /// What the code and its number alone say.
    fn has(&self, said: &Explanation) -> bool {
        let held = |connected: bool| {
            self.beings.iter().filter(move |being| being.connected == connected && being.holds).count()
        };
        match said.code.as_str() {
            "round_complete" => self.complete,
            // Another job may be beside the one that has ended.
            "run_ended" => {
                let all = said.facts["expected"].as_u64();
                self.over == Some(true)
                    || held(true) == 0
                    || all.is_some_and(|all| held(false) >= all as usize)
            }
            "run_finished" => self.over != Some(false),
            "duplicate_rank" => {
                let mut places = BTreeSet::new();
                let mut all = self.beings.iter().filter(|being| being.connected && being.place.is_some());
                all.any(|being| !places.insert((being.kind, being.place)))
            }
            _ => true,
        }
    }
}

/// Whether all that is said at this second was so at some moment since `from`, in the world that is in each
/// moment.
pub fn judge<T>(
    past: &Past<T>,
    world: impl Fn(&T) -> Option<&World>,
    (from, at): (f64, f64),
    said: &Explanation,
) -> Checked {
    let was =
        |holds: &dyn Fn(&World) -> bool| past.any_since(from, at, |moment| world(moment).is_some_and(holds));
    yes(was(&|world| world.has(said)), "it is not so")?;
    let last = past.0.last().and_then(|(_, moment)| world(moment));
    let kinds: BTreeSet<&str> = last
        .iter()
        .flat_map(|world| world.beings.iter().filter_map(|being| being.kind).chain([world.place]))
        .collect();
    let names = last.iter().flat_map(|world| world.beings.iter().flat_map(|being| being.names.iter()));
    // Without them nothing is known of who is called by an address alone.
    let have_addresses = names.into_iter().any(|name| is_address(name));
    for (name, claim) in claims(said).into_iter().filter(|(name, _)| !name.starts_with("run ")) {
        let mut called = Called::of(name);
        called.places.retain(|(kind, _)| kinds.contains(kind.as_str()));
        called.own.retain(|own| have_addresses || !is_address(own));
        let is_known = |world: &World| world.beings.iter().any(|being| called.is(being, world.place));
        if called.own.is_empty() && called.places.is_empty() {
            continue;
        }
        let is_known = past.0.iter().any(|(_, moment)| world(moment).is_some_and(is_known));
        let is_stranger = name.starts_with("process ") && last.is_some_and(|world| world.has_strangers);
        if !is_known && is_stranger {
            continue;
        }
        yes(is_known || matches!(claim, Absent | Gone), &format!("nobody is called {name}"))?;
        yes(was(&|world| world.is_so(&called, claim, at)), &format!("{name} is not {claim:?}"))?;
    }
    let counted = match said.code.as_str() {
        "lost" | "ranks_ended" => Some("left"),
        "exit_barrier" => Some("arrived"),
        // How many there were in a run that is over is told later.
        "run_closed" | "run_finished" => None,
        _ => Some("joined"),
    };
    let is_of_world = last.is_some_and(|world| {
        said.facts["of"] == world.place && world.counts.iter().any(|(of, ..)| Some(*of) == counted)
    });
    if let (true, Some(counted), Some(number)) = (is_of_world, counted, said.facts["joined"].as_u64()) {
        let is_it = |(of, least, most): &(&str, usize, usize)| {
            *of == counted && (*least..=*most).contains(&(number as usize))
        };
        yes(was(&|world| world.counts.iter().any(is_it)), &format!("not {number} {counted}"))?;
    }
    // Strangers may wait, too.
    let is_told = said.code == "waiting" && last.is_some_and(|world| !world.has_strangers);
    let waiters = if is_told { waiters(&said.facts) } else { 0 };
    let wait = |world: &World| world.beings.iter().filter(|being| being.waits.is_some()).count() >= waiters;
    yes(was(&wait), "not so many wait")
}

/// How often something had to be said, and how often it was not, by kind.
#[derive(Debug, Clone, Default)]
pub struct Tally(pub BTreeMap<&'static str, (usize, usize)>);

impl Tally {
    fn count(&mut self, kind: &'static str, is_said: bool) {
        let (all, unsaid) = self.0.entry(kind).or_default();
        *all += 1;
        *unsaid += usize::from(!is_said);
    }

    pub fn add(&mut self, other: &Self) {
        for (kind, (all, unsaid)) in &other.0 {
            let sum = self.0.entry(kind).or_default();
            *sum = (sum.0 + all, sum.1 + unsaid);
        }
    }
}

/// Where a wait leads.
enum Root<'w> {
    /// Nobody holds this place.
    Empty(u32),
    /// It waits for nothing, or is frozen.
    Idle(&'w Being),
    /// They wait for each other.
    Circle(&'w Being),
    /// Nobody knows.
    Unknown,
}

impl World {
    /// Follows a wait to who waits for nothing, or to a place that nobody holds.
    fn roots_of<'w>(&'w self, waiter: &'w Being, passed: &mut BTreeSet<usize>, roots: &mut Vec<Root<'w>>) {
        let Some((_, places)) = &waiter.waits else { return roots.push(Root::Idle(waiter)) };
        if places.is_empty() {
            roots.push(Root::Unknown);
        }
        for &place in places {
            if self.holders(place).next().is_none() {
                roots.push(Root::Empty(place));
            }
            for (n, holder) in self.holders(place) {
                if passed.insert(n) {
                    self.roots_of(holder, passed, roots);
                }
            }
        }
    }

    /// Counts whether each that has waited since before `since` finds a name of each root of its wait in what
    /// is shown.
    pub fn count_unsaid(&self, since: f64, shown: &[Explanation], tally: &mut Tally) {
        let named: BTreeSet<String> =
            shown.iter().flat_map(|said| names_in(&said.text, said.run_id.as_deref())).collect();
        let is_named = |place: Option<u32>, mut own: Vec<&Being>| {
            place.is_some_and(|place| named.contains(&format!("{} {place}", self.place)))
                || own.drain(..).any(|being| being.names.iter().any(|name| named.contains(name)))
        };
        let waits_in_vain = |being: &&Being| {
            being.connected && being.acts && being.waits.as_ref().is_some_and(|(begun, _)| *begun < since)
        };
        for waiter in self.beings.iter().filter(waits_in_vain) {
            let mut roots = Vec::new();
            self.roots_of(waiter, &mut BTreeSet::new(), &mut roots);
            if roots.is_empty() {
                roots.push(Root::Circle(waiter));
            }
            for root in roots {
                match root {
                    Root::Empty(place) => {
                        let of_place = |being: &&Being| being.place == Some(place);
                        let before: Vec<_> = self.beings.iter().filter(of_place).collect();
                        let kind = if before.is_empty() { "who never came" } else { "who ended" };
                        tally.count(kind, is_named(Some(place), before));
                    }
                    Root::Idle(being) => {
                        let kind = if being.acts { "who waits for nothing" } else { "who is frozen" };
                        tally.count(kind, is_named(being.place, vec![being]));
                    }
                    Root::Circle(being) => {
                        tally.count("who waits in a circle", is_named(being.place, vec![being]));
                    }
                    Root::Unknown => {
                        tally.count("that a round is not complete", shown.iter().any(|said| said.holds));
                    }
                }
            }
        }
    }

    /// Whether this one held a place before, and is gone without having finished, while others of the run are
    /// there.
    pub fn lost_since(&self, before: &Self, being: usize) -> bool {
        let (then, now) = (&before.beings[being], &self.beings[being]);
        let others_are_there = || self.beings.iter().any(|being| being.connected && being.holds);
        then.connected
            && then.holds
            && !now.connected
            && !then.finished
            && !now.finished
            && others_are_there()
    }

    /// Whether nobody with this name holds a place, or somebody of several.
    pub fn may_be_missing(&self, name: &str) -> bool {
        self.is_so(&Called::of(name), Absent, 0.0)
    }
}

impl Tally {
    /// Counts whether the loss of this one was said.
    pub fn count_loss<'e>(
        &mut self,
        world: &World,
        being: usize,
        mut said: impl Iterator<Item = &'e Explanation>,
    ) {
        let lost = &world.beings[being];
        let of_place = lost.place.map(|number| format!("{} {number}", world.place));
        let is_named = |said: &Explanation| {
            let names = names_in(&said.text, said.run_id.as_deref());
            said.code == "run_ended" || lost.names.iter().chain(&of_place).any(|name| names.contains(name))
        };
        self.count("who was lost", said.any(is_named));
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut kinds = self.0.iter();
        kinds.try_for_each(|(kind, (all, unsaid))| writeln!(f, "{unsaid} of {all}: {kind}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn being(n: u32, holds: bool, connected: bool) -> Being {
        let names = [format!("host{n}"), format!("pid {n}")].into();
        Being { names, place: Some(n), holds, connected, acts: true, ..Being::default() }
    }

    /// Rank 0 waits for rank 1, which is connected and waits for nothing; rank 2 has ended; 3 never came.
    fn world() -> World {
        let waits = Some((0.0, vec![1, 2, 3]));
        let zero = Being { waits, ..being(0, true, true) };
        let beings = vec![zero, being(1, true, true), being(2, true, false)];
        World { place: "rank", beings, counts: vec![("joined", 2, 2)], ..World::default() }
    }

    fn said(code: &str, text: &str, facts: &Value) -> Explanation {
        let all = json!({
            "id": 1, "run_id": "job", "store": null, "code": code, "severity": "warning", "since": 0.0,
            "holds": true, "certainty": "seen", "text": text, "remedy": "", "facts": facts,
        });
        serde_json::from_value(all).expect("an explanation")
    }

    #[test]
    fn a_false_word_is_found_and_a_true_one_is_not() {
        let missing = |name: &str, is: &str| json!({"missing": [{"name": name, "presence": {"is": is}}]});
        let idle = |name: &str| {
            let presence = json!({"is": "connected", "waits": "nothing"});
            json!({"missing": [{"name": name, "presence": presence}]})
        };
        let cases = [
            (true, "waiting", missing("rank 3", "never_seen")),
            (true, "waiting", missing("rank 2", "never_seen")),
            (false, "waiting", missing("rank 1", "never_seen")),
            (true, "lost", missing("rank 2 on host2", "closed")),
            (false, "lost", missing("rank 1 on host1", "closed")),
            (false, "lost", missing("rank 2 on host7", "closed")),
            (true, "waiting", missing("rank 1 on host1", "connected")),
            (true, "waiting", idle("rank 1")),
            (false, "waiting", idle("rank 0")),
            (false, "waiting", json!({"held": {"shown": ["rank 2"], "more": 0}})),
            (true, "waiting", json!({"of": "rank", "joined": 2, "held": {"shown": ["rank 0"], "more": 0}})),
            (false, "waiting", json!({"of": "rank", "joined": 3})),
            (false, "waiting", json!({"held": {"shown": ["rank 0"], "more": 1}})),
            (false, "round_complete", json!({})),
            (false, "duplicate_rank", json!({})),
            (false, "run_ended", json!({"expected": 3})),
        ];
        let past = Past(vec![(0.0, world())]);
        for (is_true, code, facts) in cases {
            let judged = judge(&past, |world| Some(world), (0.0, 1.0), &said(code, "", &facts));
            assert_eq!(judged.is_ok(), is_true, "{code} {facts}: {judged:?}");
        }
    }

    #[test]
    fn the_root_of_each_wait_is_looked_for() {
        let unsaid = |text: &str| {
            let mut tally = Tally::default();
            world().count_unsaid(1.0, &[said("waiting", text, &json!({}))], &mut tally);
            tally.to_string()
        };
        let all = unsaid("job: rank 1 and rank 2 and rank 3");
        assert_eq!(all, "0 of 1: who ended\n0 of 1: who never came\n0 of 1: who waits for nothing\n");
        assert!(unsaid("job: rank 1 and rank 2").contains("1 of 1: who never came"));
        assert!(unsaid("job: rank 3, host2").contains("1 of 1: who waits for nothing"));
    }
}
