mod costs;

use proptest::prelude::*;

use super::*;

const MAX_RUNS: usize = 7;
const TIMEOUT: Duration = Duration::from_secs(30);

struct World {
    gates: Gates,
    now: Timestamp,
    finished: Option<Timestamp>,
    restarts: bool,
    /// The number of requests so far.
    requests: u64,
    journal: Journal,
}

/// What the rows of all changes add up to: how each gate opened, and its pods.
type Journal = BTreeMap<String, (Opened, BTreeMap<PodKey, Announcement>)>;

impl World {
    fn new() -> Self {
        Self {
            gates: Gates::new(TIMEOUT, MAX_RUNS),
            now: Timestamp::default(),
            finished: None,
            restarts: false,
            requests: 0,
            journal: Journal::new(),
        }
    }

    fn write_journal(&mut self) {
        for KeptChange { run_id, opened, pods } in self.gates.take_kept() {
            let Some(opened) = opened else {
                let (_, mut left) = self.journal.remove(&run_id).expect("a gate that was kept");
                for (key, said) in &pods {
                    assert!(said.is_none() && left.remove(key).is_some());
                }
                assert!(left.is_empty(), "no row is left over: {left:?}");
                continue;
            };
            let (_, rows) = self.journal.entry(run_id).or_insert((opened, BTreeMap::new()));
            for (key, said) in pods {
                match said {
                    Some(said) => drop(rows.insert(key, said)),
                    None => assert!(rows.remove(&key).is_some(), "{key:?} has a row"),
                }
            }
        }
    }

    /// The server dies, and another one continues with the journal.
    fn restart(&mut self) {
        self.write_journal();
        self.gates = Gates::new(TIMEOUT, MAX_RUNS);
        self.now = Timestamp::default();
        for (run_id, (opened, pods)) in &self.journal {
            self.gates.restore(run_id, *opened, &pods.values().cloned().collect::<Vec<_>>(), self.now);
        }
    }

    fn after(&mut self, secs: u64) -> &mut Self {
        self.now = self.now + Duration::from_secs(secs);
        self
    }

    /// Pod `name` with its ordinal as rank, of `nodes`.
    fn pod(&mut self, name: &str, uid: &str, nodes: &str) -> Result<PodStanding, PodRefusal> {
        let rank = name.split('-').nth(1).and_then(|rank| rank.parse().ok());
        self.said(name, uid, rank, nodes)
    }

    fn said(
        &mut self,
        name: &str,
        uid: &str,
        node_rank: Option<u32>,
        nodes: &str,
    ) -> Result<PodStanding, PodRefusal> {
        let said = self.announcement(name, uid, node_rank, nodes);
        let standing = self.gates.announce("run", &said, self.finished, self.now);
        self.requests += 1;
        self.gates.park("run", &said, self.requests);
        standing
    }

    fn announcement(&self, name: &str, uid: &str, node_rank: Option<u32>, nodes: &str) -> Announcement {
        Announcement {
            pod: name.into(),
            uid: uid.into(),
            node_rank,
            nodes: Nodes::parse(nodes).expect("nodes"),
            address: IpAddr::from([10, 0, 0, node_rank.unwrap_or(99) as u8]),
            ip: None,
            torch: Some(format!("2.{}", uid.len())),
            world_size: None,
            restarts: self.restarts,
        }
    }

    /// The pod whose request was the last one is killed while that request is held.
    fn cut(&mut self, name: &str, uid: &str, node_rank: Option<u32>, nodes: &str) -> bool {
        let said = self.announcement(name, uid, node_rank, nodes);
        self.gates.cut("run", &said, self.requests, self.now)
    }

    fn snapshot(&self) -> GateSnapshot {
        self.gates.of("run").and_then(|gate| gate.snapshot(self.now, TIMEOUT)).expect("somebody is there")
    }
}

fn connected_at_0(addr: IpAddr) -> Contact {
    if addr == IpAddr::from([10, 0, 0, 0]) { Contact::Connected } else { Contact::None }
}

fn goes(standing: Result<PodStanding, PodRefusal>) -> bool {
    matches!(standing.expect("taken"), PodStanding::Go(_))
}

fn progress(standing: Result<PodStanding, PodRefusal>) -> String {
    match standing.expect("taken") {
        PodStanding::Waiting(progress) => progress.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_gate_opens_when_all_are_there_and_stays_open() {
    let mut world = World::new();
    assert_eq!(
        progress(world.pod("t-0", "a", "3")),
        "1 of 3 pods are there; missing: t-1 (node rank 1), t-2 (node rank 2)"
    );
    assert_eq!(progress(world.pod("t-2", "c", "3")), "2 of 3 pods are there; missing: t-1 (node rank 1)");
    assert_eq!(
        progress(world.after(5).pod("t-0", "a", "3")),
        "2 of 3 pods are there; missing: t-1 (node rank 1)"
    );
    let Ok(PodStanding::Go(opened)) = world.after(7).pod("t-1", "b", "3") else { panic!("all are there") };
    assert_eq!((opened.after, opened.pods, opened.just_now), (Duration::from_secs(12), 3, true));
    let Ok(PodStanding::Go(opened)) = world.pod("t-0", "a", "3") else { panic!("open") };
    assert!(!opened.just_now);
}

#[test]
fn a_replaced_pod_passes_while_others_of_its_run_live() {
    let mut world = World::new();
    world.pod("t-0", "a", "2").expect("taken");
    assert!(goes(world.pod("t-1", "b", "2")));
    // Rank 0 is connected. Much later, rank 1 is replaced under its name.
    for _ in 0..5 {
        world.after(20);
        let now = world.now;
        world.gates.tick(now, connected_at_0);
    }
    assert!(goes(world.pod("t-1", "b2", "2")));
    let members: Vec<_> =
        world.gates.of("run").expect("there").members().map(|m| m.said.uid.clone()).collect();
    assert_eq!(members, ["a", "b2"]);
}

#[test]
fn a_rank_that_a_live_pod_holds_is_not_given_twice() {
    let mut world = World::new();
    world.said("job-0-aaaaa", "a", Some(0), "2").expect("taken");
    assert!(goes(world.said("job-1-bbbbb", "b", Some(1), "2")));
    let Ok(PodStanding::Parked { node_rank, holder, silent, .. }) =
        world.after(10).said("job-1-ccccc", "c", Some(1), "2")
    else {
        panic!("parked")
    };
    assert_eq!((node_rank, &holder[..], silent), (1, "job-1-bbbbb", Duration::from_secs(10)));
    // The holder is gone for good, and another pod of the run lives.
    let now = world.after(25).now;
    world.gates.tick(now, connected_at_0);
    assert!(goes(world.said("job-1-ccccc", "c", Some(1), "2")));
    assert_eq!(world.gates.of("run").expect("there").members().count(), 2, "the old holder is dropped");
}

#[test]
fn pods_that_went_away_before_the_gate_opened_do_not_count() {
    let mut world = World::new();
    world.pod("t-0", "a", "3").expect("taken");
    world.after(20).pod("t-1", "b", "3").expect("taken");
    let standing = progress(world.after(20).pod("t-2", "c", "3"));
    assert_eq!(standing, "2 of 3 pods are there; missing: t-0 (node rank 0, was there and is gone)");
    assert!(goes(world.pod("t-0", "a2", "3")), "its successor does");
}

#[test]
fn a_second_run_under_the_same_id_gathers_again() {
    let mut world = World::new();
    world.pod("t-0", "a", "2").expect("taken");
    assert!(goes(world.pod("t-1", "b", "2")));
    // All pods were deleted. The set comes back with another size.
    progress(world.after(31).pod("t-0", "a2", "3"));
    progress(world.pod("t-1", "b2", "3"));
    assert!(goes(world.pod("t-2", "c2", "3")));
    let now = world.after(31).now;
    world.gates.tick(now, |_| Contact::None);
    assert!(world.gates.of("run").is_none(), "and is forgotten when nobody is left");
}

#[test]
fn an_elastic_run_starts_with_its_minimum() {
    let mut world = World::new();
    progress(world.pod("t-3", "a", "2:4"));
    assert!(goes(world.pod("t-1", "b", "2:4")));
    assert!(goes(world.pod("t-0", "c", "2:4")));
}

#[test]
fn pods_without_ranks_are_counted_by_name() {
    let mut world = World::new();
    assert_eq!(progress(world.said("a", "1", None, "2")), "1 of 2 pods are there");
    assert_eq!(progress(world.said("a", "1", None, "2")), "1 of 2 pods are there");
    assert!(goes(world.said("b", "2", None, "2")));
}

#[test]
fn what_cannot_be_right_is_refused_with_the_reason() {
    let mut world = World::new();
    world.pod("t-0", "a", "4").expect("taken");
    let error = world.pod("t-1", "b", "8").expect_err("another size").to_string();
    assert!(error.contains("expects 8 nodes") && error.contains("`t-0` expects 4"), "{error}");
    let error = world.pod("t-4", "b", "4").expect_err("no place").to_string();
    assert!(error.contains("ranks are 0 to 3"), "{error}");
    assert_eq!(world.said("", "b", None, "4"), Err(PodRefusal::Text("the name of a pod")));
    let long = "x".repeat(257);
    assert_eq!(world.said(&long, "b", None, "4"), Err(PodRefusal::Text("the name of a pod")));
}

#[test]
fn the_number_of_runs_is_bounded() {
    let mut world = World::new();
    let said = |n: usize| Announcement {
        pod: "p".into(),
        uid: n.to_string(),
        node_rank: None,
        nodes: Nodes::exactly(2),
        address: IpAddr::from([10, 0, 0, 1]),
        ip: None,
        torch: None,
        world_size: None,
        restarts: false,
    };
    for n in 0..MAX_RUNS {
        world.gates.announce(&format!("run-{n}"), &said(n), None, world.now).expect("room");
    }
    assert_eq!(
        world.gates.announce("one more", &said(0), None, world.now),
        Err(PodRefusal::TooManyRuns(MAX_RUNS))
    );
    world.gates.announce("run-0", &said(1), None, world.now).expect("a known run");
}

#[test]
fn different_versions_are_named_with_their_pods() {
    let mut world = World::new();
    for (name, uid) in [("t-0", "a"), ("t-1", "a"), ("t-2", "bb")] {
        world.pod(name, uid, "4").expect("taken");
    }
    let gate = world.gates.of("run").expect("there");
    assert_eq!(gate.differing_versions().as_deref(), Some("2.1 (t-0, t-1), 2.2 (t-2)"));
}

#[test]
fn a_finished_run_is_started_again_only_by_pods_that_mean_it() {
    let mut world = World::new();
    world.pod("t-0", "a", "2").expect("taken");
    assert!(goes(world.pod("t-1", "b", "2")));
    world.finished = Some(world.after(10).now);
    let error =
        world.after(5).pod("t-1", "b", "2").expect_err("the same pod, its container restarted").to_string();
    assert!(
        error.contains("run `run` finished 5 s ago") && error.contains("--restart-finished on"),
        "{error}"
    );
    world.restarts = true;
    assert_eq!(progress(world.pod("t-1", "b", "2")), "1 of 2 pods are there; missing: t-0 (node rank 0)");
    assert!(goes(world.pod("t-0", "a", "2")), "the gate of the new run");
    assert!(goes(world.pod("t-0", "a", "2")), "which stays open");
}

#[test]
fn an_open_gate_outlives_the_server_and_one_that_fills_does_not() {
    let mut world = World::new();
    world.pod("t-0", "a", "2").expect("taken");
    world.restart();
    assert!(world.gates.of("run").is_none(), "its pods announce themselves again");
    world.pod("t-0", "a", "2").expect("taken");
    assert!(goes(world.pod("t-1", "b", "2")));
    world.restart();
    assert!(goes(world.pod("t-1", "c", "2")), "the pod that replaces one passes, although nobody else asks");
    world.restart();
    let parked = world.pod("u-1", "d", "2");
    assert!(matches!(parked, Ok(PodStanding::Parked { holder, .. }) if holder == "t-1"));
    world.after(31);
    world.gates.tick(world.now, |_| Contact::None);
    world.restart();
    assert!(world.gates.of("run").is_none(), "its pods were gone before the server was");
}

#[test]
fn others_see_a_gate_change_when_something_changes() {
    let mut world = World::new();
    let mut last = 0;
    let mut changed = |world: &World| {
        let before = std::mem::replace(&mut last, world.gates.version());
        before != last
    };
    world.pod("t-0", "a", "3").expect("taken");
    assert!(changed(&world));
    let now = world.now;
    world.gates.tick(now, |_| Contact::None);
    changed(&world);
    world.after(1).pod("t-0", "a", "3").expect("taken");
    world.gates.tick(now, |_| Contact::None);
    assert!(!changed(&world), "it said the same again");
    world.pod("u-0", "b", "3").expect("parked");
    assert!(changed(&world));
    world.pod("u-0", "b", "3").expect("parked");
    assert!(!changed(&world), "it still waits");
    world.pod("t-1", "c", "4").expect_err("another number");
    assert!(changed(&world));
    let away =
        |world: &World| world.snapshot().turned_away.into_iter().map(|pod| pod.said.pod).collect::<Vec<_>>();
    assert_eq!(away(&world), ["t-1", "u-0"]);
    world.pod("t-1", "c", "3").expect("it was put right");
    assert!(changed(&world));
    assert_eq!(away(&world), ["u-0"]);
    let missing = world.snapshot().missing;
    assert_eq!((missing.len(), missing[0].node_rank, missing[0].pod.as_deref()), (1, 2, Some("t-2")));
    // One pod goes away, and the refused pod gives up.
    world.after(20).pod("t-1", "c", "3").expect("taken");
    let now = world.after(20).now;
    world.gates.tick(now, |_| Contact::None);
    assert!(changed(&world));
    let missing: Vec<_> = world.snapshot().missing.iter().map(Missing::to_string).collect();
    assert_eq!(missing, ["t-0 (node rank 0, was there and is gone)", "t-2 (node rank 2)"]);
    let away = world.snapshot().turned_away;
    let gone: Vec<_> = away.iter().map(|pod| (pod.said.pod.as_str(), pod.gone.is_some())).collect();
    assert_eq!(gone, [("u-0", true)], "nobody has taken it in");
    let now = world.after(31).now;
    world.gates.tick(now, |_| Contact::None);
    assert!(changed(&world) && world.gates.of("run").is_none());
}

#[test]
fn a_gate_that_the_last_server_opened_is_told_from_one_that_this_one_did() {
    let mut world = World::new();
    world.pod("t-0", "a", "2").expect("taken");
    assert_eq!(world.snapshot().state, GateState::Gathers);
    world.after(3).pod("t-1", "b", "2").expect("taken");
    assert_eq!(world.snapshot().state, GateState::Open { since: world.now });
    world.restart();
    assert_eq!(world.snapshot().state, GateState::OpenBefore);
}

#[test]
fn a_pod_that_is_there_with_another_rank_is_not_named_as_missing() {
    let mut world = World::new();
    world.said("t-2", "a", Some(2), "4").expect("taken");
    world.said("t-0", "b", Some(1), "4").expect("taken");
    let missing: Vec<_> = world.snapshot().missing.iter().map(Missing::to_string).collect();
    assert_eq!(missing, ["node rank 0", "t-3 (node rank 3)"]);
}

#[test]
fn a_pod_that_comes_again_with_another_rank_is_held_back_no_more() {
    let mut world = World::new();
    world.said("w-b", "b", Some(1), "3").expect("taken");
    world.said("w-a", "a", Some(1), "3").expect("parked");
    assert_eq!(world.snapshot().turned_away.len(), 1);
    world.said("w-a", "a2", Some(0), "3").expect("taken");
    assert_eq!(world.snapshot().turned_away.len(), 0);
}

#[test]
fn a_killed_pod_makes_way_for_the_one_with_its_rank_and_comes_again_with_another() {
    let mut world = World::new();
    world.said("w-a", "a", Some(1), "2").expect("taken");
    let held_back = |standing| matches!(standing, Ok(PodStanding::Parked { .. }));
    assert!(held_back(world.said("w-b", "b", Some(1), "2")));
    progress(world.said("w-a", "a", Some(1), "2"));
    assert!(world.cut("w-a", "a", Some(1), "2"));
    assert_eq!(world.snapshot().pods.len(), 0);
    let now = world.after(1).now;
    world.gates.tick(now, |_| Contact::Connected);
    // The new pod comes before the other one asks again.
    assert_eq!(
        progress(world.said("w-a", "a2", Some(0), "2")),
        "1 of 2 pods are there; missing: node rank 1"
    );
    assert!(goes(world.said("w-b", "b", Some(1), "2")), "nobody has its rank any more");
    assert!(goes(world.said("w-a", "a2", Some(0), "2")));
    assert!(world.snapshot().turned_away.is_empty());
}

#[test]
fn a_pod_that_was_held_back_has_waited_since_the_first_one_came() {
    let mut world = World::new();
    world.said("w-a", "a", Some(1), "2").expect("taken");
    world.said("w-b", "b", Some(1), "2").expect("parked");
    world.after(7).said("w-a", "a", Some(1), "2").expect("taken");
    assert!(world.cut("w-a", "a", Some(1), "2"));
    progress(world.said("w-b", "b", Some(1), "2"));
    let Ok(PodStanding::Go(opened)) = world.after(3).said("w-a", "a2", Some(0), "2") else { panic!("both") };
    assert_eq!(opened.after, Duration::from_secs(10));
}

#[test]
fn a_pod_that_is_held_back_is_so_no_more_when_it_is_killed() {
    let mut world = World::new();
    world.said("job-1", "old", Some(1), "3").expect("taken");
    world.said("job-1", "new", Some(1), "3").expect("its successor");
    world.said("job-1", "old", Some(1), "3").expect("parked");
    assert_eq!(world.snapshot().turned_away.len(), 1);
    let version = world.gates.version();
    assert!(world.cut("job-1", "old", Some(1), "3"));
    assert!(world.snapshot().turned_away.is_empty() && world.gates.version() > version);
    assert_eq!(world.snapshot().pods.len(), 1, "the other one is there");
}

#[test]
fn a_pod_that_comes_and_goes_is_counted_whoever_it_is() {
    let mut world = World::new();
    world.said("t-0", "x", Some(0), "3").expect("taken");
    for (uid, times) in [("a", 0), ("b", 0), ("b", 0), ("c", 3), ("d", 4)] {
        world.said("t-1", uid, Some(1), "3").expect("taken");
        let known = world.snapshot().in_a_loop;
        assert_eq!(known, Vec::from_iter((times > 0).then(|| ("t-1".to_owned(), times))), "{uid}");
        assert!(world.cut("t-1", uid, Some(1), "3"));
    }
}

#[test]
fn a_pod_that_was_let_go_and_comes_again_is_counted() {
    let mut world = World::new();
    world.said("t-1", "x", Some(1), "2").expect("taken");
    for (uid, times) in [("a", 0), ("a", 0), ("a", 0), ("a", 3), ("b", 4)] {
        assert!(goes(world.said("t-0", uid, Some(0), "2")));
        let known = world.snapshot().in_a_loop;
        assert_eq!(known, Vec::from_iter((times > 0).then(|| ("t-0".to_owned(), times))), "{uid}");
    }
}

#[test]
fn a_pod_that_asks_again_at_once_is_not_gone() {
    let mut world = World::new();
    world.said("t-0", "a", Some(0), "2").expect("taken");
    let (said, first) = (world.announcement("t-0", "a", Some(0), "2"), world.requests);
    world.said("t-0", "a", Some(0), "2").expect("its next request, before the first one is seen to break");
    assert!(!world.gates.cut("run", &said, first, world.now));
    assert_eq!(world.snapshot().pods.len(), 1);
    assert!(world.cut("t-0", "a", Some(0), "2"));
    assert_eq!(world.snapshot().pods.len(), 0);
    progress(world.said("t-0", "a", Some(0), "2"));
    assert!(goes(world.said("t-1", "b", Some(1), "2")), "it has come again");
}

#[test]
fn two_commands_on_one_host_are_two_pods() {
    let mut world = World::new();
    let first = progress(world.said("host", "a", Some(0), "2"));
    assert_eq!(first, "1 of 2 pods are there; missing: node rank 1");
    assert!(goes(world.said("host", "b", Some(1), "2")));
    assert!(goes(world.said("host", "a", Some(0), "2")));
    // Without ranks, the second pod may be the successor of the first, until the first one announces itself
    // again.
    let mut world = World::new();
    progress(world.said("host", "a", None, "2"));
    progress(world.said("host", "b", None, "2"));
    assert!(goes(world.said("host", "a", None, "2")));
    assert!(goes(world.said("host", "b", None, "2")));
}

#[test]
fn two_live_ones_that_claim_one_place_are_named() {
    let mut world = World::new();
    progress(world.said("host", "a", Some(0), "2"));
    progress(world.said("host", "b", Some(0), "2"));
    for _ in 0..3 {
        let Ok(PodStanding::Parked { node_rank, holder, .. }) =
            world.after(5).said("host", "a", Some(0), "2")
        else {
            panic!("the first one lives, and its place is taken")
        };
        assert_eq!((node_rank, &holder[..]), (0, "host"));
        progress(world.said("host", "b", Some(0), "2"));
        let away: Vec<_> = world.snapshot().turned_away.into_iter().map(|pod| pod.said.uid).collect();
        assert_eq!(away, ["a"]);
    }
    assert!(goes(world.said("host", "c", Some(1), "2")), "the others do not wait for them");
    // The pod that holds the place goes away.
    for _ in 0..7 {
        world.after(5).said("host", "a", Some(0), "2").expect("taken");
        world.said("host", "c", Some(1), "2").expect("taken");
    }
    assert!(goes(world.said("host", "a", Some(0), "2")));
}

#[test]
fn a_host_of_several_pods_names_no_missing_one() {
    let mut world = World::new();
    world.said("node-0", "a", Some(0), "4").expect("taken");
    let missing = progress(world.said("node-0", "b", Some(1), "4"));
    assert_eq!(missing, "2 of 4 pods are there; missing: node rank 2, node rank 3");
}

/// What the processes on two hosts do.
#[derive(Debug, Clone)]
enum Step {
    Announce(usize),
    /// Its request is held, and the process is killed.
    Kill(usize),
    /// Another process takes its place.
    Restart(usize),
    Wait(u64),
    /// The relays at the addresses `up` are connected. The links of the relays at `away` are lost.
    Links {
        up: u8,
        away: u8,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = 0..4_usize;
    let step = prop_oneof![
        6 => pod.clone().prop_map(Step::Announce),
        1 => pod.clone().prop_map(Step::Kill),
        2 => pod.prop_map(Step::Restart),
        2 => prop_oneof![1..9_u64, Just(31)].prop_map(Step::Wait),
        2 => (0..16_u8, 0..16_u8).prop_map(|(up, away)| Step::Links { up, away }),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn whatever_happened_before_those_who_keep_asking_meet(
        steps in steps(),
        with_ranks in any::<bool>(),
        shared in 1..4_usize,
        restarts in any::<bool>(),
    ) {
        let mut world = World::new();
        let mut lives = [0; 4];
        let announce = |world: &mut World, lives: &[u32; 4], pod: usize| {
            let host = format!("host-{}", pod / shared);
            let rank = with_ranks.then_some(pod as u32);
            world.said(&host, &format!("{pod}/{}", lives[pod]), rank, "4").expect("never refused")
        };
        for step in steps {
            match step {
                Step::Announce(pod) => { announce(&mut world, &lives, pod); }
                Step::Kill(pod) => {
                    if !matches!(announce(&mut world, &lives, pod), PodStanding::Go(_)) {
                        let host = format!("host-{}", pod / shared);
                        let rank = with_ranks.then_some(pod as u32);
                        let uid = format!("{pod}/{}", lives[pod]);
                        prop_assert!(world.cut(&host, &uid, rank, "4"));
                        let live: Vec<_> = world.snapshot().pods.into_iter().map(|pod| pod.uid).collect();
                        prop_assert!(!live.contains(&uid), "who is dead does not count: {live:?}");
                    }
                    lives[pod] += 1;
                }
                Step::Restart(pod) => lives[pod] += 1,
                Step::Links { up, away } => world.gates.tick(world.now, |addr| {
                    let IpAddr::V4(addr) = addr else { return Contact::None };
                    let is_in = |relays: u8| relays & (1 << (addr.octets()[3] % 4)) != 0;
                    match (is_in(up), is_in(away)) {
                        (true, _) => Contact::Connected,
                        (false, true) => Contact::Away,
                        (false, false) => Contact::None,
                    }
                }),
                Step::Wait(secs) => {
                    world.after(secs);
                    world.gates.tick(world.now, |_| Contact::None);
                }
            }
            let ranks: Vec<u32> = world.gates.of("run").into_iter()
                .flat_map(super::Gate::members).filter_map(|member| member.said.node_rank).collect();
            if let Some(gate) = world.gates.of("run") {
                let live = gate.members().filter(|member| member.is_live(world.now, TIMEOUT));
                let counted = gate.members.roll(world.now, TIMEOUT).live();
                prop_assert_eq!(live.count(), counted, "living pods are counted once");
                let there = gate.members().filter(|member| member.is_there(world.now, TIMEOUT));
                prop_assert_eq!(there.count(), gate.members.roll(world.now, TIMEOUT).there);
            }
            let distinct: std::collections::BTreeSet<&u32> = ranks.iter().collect();
            prop_assert_eq!(distinct.len(), ranks.len());
            world.write_journal();
            let open = world.gates.of("run").filter(|gate| gate.opened().is_some());
            let pods = |gate: &Gate| gate.members().map(|member| member.said.clone()).collect::<Vec<_>>();
            let kept = world.journal.get("run").map(|(_, pods)| pods.values().cloned().collect::<Vec<_>>());
            prop_assert_eq!(kept, open.map(pods), "the journal knows the open gate, and nothing else");
        }
        if restarts {
            world.restart();
        }
        for _ in 0..4 {
            world.after(3);
            for pod in 0..4 {
                announce(&mut world, &lives, pod);
            }
        }
        for pod in 0..4 {
            prop_assert!(matches!(announce(&mut world, &lives, pod), PodStanding::Go(_)), "{pod}");
        }
    }
}

/// Pods 0 and 1 of three wait, each behind a relay. The link of pod 1 has just broken.
fn with_a_link_away() -> World {
    let mut world = World::new();
    for (name, uid) in [("t-0", "a"), ("t-1", "b")] {
        assert!(!goes(world.pod(name, uid, "3")));
    }
    world.gates.tick(world.now, |_| Contact::Connected);
    let now = world.after(1).now;
    world.gates.tick(now, link_of_1_is(Contact::Away));
    world
}

fn link_of_1_is(contact: Contact) -> impl Fn(IpAddr) -> Contact {
    move |addr| if addr == IpAddr::from([10, 0, 0, 1]) { contact } else { Contact::Connected }
}

#[test]
fn the_gate_does_not_open_for_a_pod_whose_link_is_away() {
    let mut world = with_a_link_away();
    let missing = "2 of 3 pods are there; missing: t-1 (node rank 1, was there, and its link is away)";
    assert_eq!(progress(world.pod("t-2", "c", "3")), missing);
    let snapshot = world.snapshot();
    assert_eq!(snapshot.pods.len(), 2);
    assert!(snapshot.missing.iter().all(|missing| missing.is_away && missing.seen.is_some()), "{snapshot:?}");
    // The link was away for too long, so the pod is still not there.
    let now = world.after(10).now;
    world.gates.tick(now, link_of_1_is(Contact::None));
    assert!(progress(world.pod("t-2", "c", "3")).starts_with("2 of 3"));
}

#[test]
fn the_gate_opens_when_the_link_is_back_or_the_pod_is_heard_of_otherwise() {
    let mut world = with_a_link_away();
    let now = world.after(1).now;
    world.gates.tick(now, |_| Contact::Connected);
    assert!(goes(world.pod("t-2", "c", "3")), "the link is back");

    let mut world = with_a_link_away();
    assert!(!goes(world.pod("t-1", "b", "3")), "it comes without its relay");
    let now = world.after(1).now;
    world.gates.tick(now, link_of_1_is(Contact::Away));
    assert!(goes(world.pod("t-2", "c", "3")));
}

#[test]
fn a_pod_whose_link_is_away_keeps_its_rank_and_its_run() {
    let mut world = with_a_link_away();
    let standing = world.said("other", "x", Some(1), "3").expect("taken");
    assert!(matches!(standing, PodStanding::Parked { node_rank: 1, is_away: true, .. }), "{standing:?}");
    let now = world.after(1).now;
    world.gates.tick(now, |_| Contact::Away);
    assert!(world.gates.of("run").is_some(), "all may be alive");
    assert!(progress(world.pod("t-0", "a", "3")).starts_with("1 of 3"));
}

#[test]
fn a_link_that_breaks_after_the_gate_has_opened_takes_nobody_from_it() {
    let mut world = with_a_link_away();
    let now = world.after(1).now;
    world.gates.tick(now, |_| Contact::Connected);
    assert!(goes(world.pod("t-2", "c", "3")));
    world.gates.tick(now, link_of_1_is(Contact::Away));
    assert_eq!(world.snapshot().pods.len(), 3);
}
