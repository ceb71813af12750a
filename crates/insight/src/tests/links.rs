//! Links that are away: told as such, and nobody is said to have died.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::time::Duration;

use super::lab::{Lab, PORT, announcement};
use crate::{AwayLink, LinkEvent, LinkNews, StoreOwner};
use rallypoint_api::{Explanation, KnownFrom, LinkCounts, Node, NodeState, RunState, Severity};
use rallypoint_rendezvous::gate::{Contact, Gates};

fn away(lab: &Lab, names: impl IntoIterator<Item = String>) -> Vec<AwayLink> {
    let link = |name| AwayLink {
        name,
        addr: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 11)),
        clients: 8,
        since: lab.now,
        why: Some("the relay closed the connection".into()),
    };
    names.into_iter().map(link).collect()
}

/// The link of the relay at this address is away.
fn link_is_away(lab: &mut Lab, addr: [u8; 4]) {
    let link = AwayLink { name: "train-0".into(), addr: addr.into(), clients: 1, since: lab.now, why: None };
    lab.insight.links(LinkCounts::default(), vec![link], Vec::new(), lab.now);
}

fn look_at(lab: &mut Lab, away: Vec<AwayLink>, news: Vec<LinkNews>) {
    lab.insight.links(LinkCounts::default(), away, news, lab.now);
}

fn codes(lab: &Lab) -> Vec<&str> {
    lab.said.iter().map(|(_, said)| said.code.as_str()).collect()
}

fn happens(lab: &mut Lab, name: &str, what: LinkEvent) {
    let news = LinkNews { name: name.into(), what, at: lab.now };
    look_at(lab, Vec::new(), vec![news]);
}

/// Three pods have passed their gate, each with one rank, and rank 0 waits for rank 1.
fn announced() -> Lab {
    let mut lab = Lab::new();
    lab.insight.own_store(PORT, StoreOwner::Run("job".into()));
    lab.gate("job", &[("train-0", 0, 3), ("train-1", 1, 3), ("train-2", 2, 3)], &[]);
    lab.rank(0, "10.1.0.0", 0, 3);
    lab.wait_for_rank(0, 1);
    lab.pass(4.0);
    lab
}

/// What was seen of rank 1, or of its pod, as rank 0 is told.
#[track_caller]
fn assert_seen_of_rank_1(lab: &mut Lab, presence: &str) {
    lab.pass(32.0);
    let seen = lab.presences("waiting");
    assert!(seen.contains(presence), "{seen:?}");
}

#[test]
fn a_rank_whose_relay_has_left_is_linked_to_its_pod() {
    let mut lab = announced();
    happens(&mut lab, "train-1", LinkEvent::Left);
    assert_seen_of_rank_1(&mut lab, "left");
    // It is started again, and no more is known.
    happens(&mut lab, "train-1", LinkEvent::Came);
    assert_seen_of_rank_1(&mut lab, "announced");
}

#[test]
fn a_rank_whose_link_is_away_or_lost_is_linked_to_its_pod() {
    let mut lab = announced();
    let links = away(&lab, ["train-1".to_owned()]);
    look_at(&mut lab, links, Vec::new());
    assert_seen_of_rank_1(&mut lab, "away");
    happens(&mut lab, "train-1", LinkEvent::Lost { clients: 0 });
    assert_seen_of_rank_1(&mut lab, "unreachable");
}

#[test]
fn what_a_relay_did_before_its_pod_announced_itself_is_of_another_job() {
    let mut lab = Lab::new();
    happens(&mut lab, "train-1", LinkEvent::Left);
    lab.pass(60.0);
    lab.insight.own_store(PORT, StoreOwner::Run("job".into()));
    lab.gate("job", &[("train-0", 0, 2), ("train-1", 1, 2)], &[]);
    lab.rank(0, "10.1.0.0", 0, 2);
    lab.wait_for_rank(0, 1);
    assert_seen_of_rank_1(&mut lab, "announced");
}

#[test]
fn a_pod_that_is_gone_is_told_beside_one_that_is_not() {
    let mut lab = announced();
    happens(&mut lab, "train-2@3c1f20aa", LinkEvent::Left);
    assert_seen_of_rank_1(&mut lab, "announced");
}

#[test]
fn who_has_told_no_rank_is_not_the_one_whose_relay_has_left() {
    let mut lab = announced();
    happens(&mut lab, "train-1:29500@10.0.0.7#1", LinkEvent::Left);
    lab.worker(2, "10.1.0.2");
    lab.add(2, "init/", 1);
    assert_seen_of_rank_1(&mut lab, "left");
}

#[test]
fn a_relay_says_nothing_of_pods_with_one_name_or_with_several_ranks() {
    let mut lab = Lab::new();
    lab.insight.own_store(PORT, StoreOwner::Run("job".into()));
    lab.gate("job", &[("train", 0, 2), ("train", 1, 2)], &[]);
    lab.rank(0, "10.1.0.0", 0, 2);
    lab.wait_for_rank(0, 1);
    happens(&mut lab, "train", LinkEvent::Left);
    assert_seen_of_rank_1(&mut lab, "announced");
    happens(
        &mut lab,
        "train",
        LinkEvent::Namesake { from: [10, 0, 0, 7].into(), other: [10, 0, 0, 5].into() },
    );
    assert_seen_of_rank_1(&mut lab, "announced");
    let mut lab = Lab::new();
    lab.insight.own_store(PORT, StoreOwner::Run("job".into()));
    lab.gate("job", &[("a", 0, 2), ("b", 1, 2)], &[]);
    lab.rank(0, "10.1.0.0", 0, 4);
    lab.wait_for_rank(0, 1);
    happens(&mut lab, "b", LinkEvent::Left);
    assert_seen_of_rank_1(&mut lab, "never_seen");
}

#[test]
fn a_static_node_that_has_not_come_is_linked_to_its_pod() {
    let mut lab = Lab::new();
    lab.insight.own_store(PORT, StoreOwner::Run("job".into()));
    lab.gate("job", &[("train-0", 0, 2), ("train-1", 1, 2)], &[]);
    lab.come(1, "10.1.0.1", 7);
    lab.set(1, "/job/torchelastic/role_info/1", b"{}");
    lab.wait(1, &["/job/torchelastic/assigned_ranks/1"]);
    happens(&mut lab, "train-0", LinkEvent::Left);
    lab.pass(32.0);
    assert_eq!(lab.texts("nodes_missing").len(), 1);
}

#[test]
fn a_c10d_node_that_has_not_come_is_linked_to_its_pod() {
    let mut lab = Lab::new();
    lab.gate("job", &[("node0", 0, 2), ("node1", 1, 2)], &[]);
    lab.agent(0, "job");
    lab.pass(0.1);
    lab.cas(0, "job", "join");
    lab.pass(5.0);
    happens(&mut lab, "node1", LinkEvent::Left);
    lab.pass(32.0);
    assert!(!lab.texts("nodes_missing").is_empty());
}

#[test]
fn a_link_that_comes_back_was_away_and_nothing_else() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.pass(2.0);
    let before = codes(&lab).len();
    let links = away(&lab, ["train-1".to_owned()]);
    lab.pass(2.0);
    look_at(&mut lab, links, Vec::new());
    lab.pass(2.5);
    let list = lab.insight.list(0, lab.now);
    assert_eq!(list.explanations.len(), 1, "{list:?}");
    assert_eq!((list.explanations[0].code.as_str(), list.explanations[0].holds), ("link_away", true));
    look_at(&mut lab, Vec::new(), Vec::new());
    lab.pass(10.0);
    assert!(lab.insight.list(0, lab.now).explanations.is_empty());
    assert_eq!(codes(&lab)[before..], ["link_away"]);
    assert_eq!(lab.run("job").summary.state, RunState::Running);
}

#[test]
fn what_a_process_behind_a_link_does_is_not_known_while_it_is_away() {
    let mut lab = Lab::new();
    for (n, rank, addr) in [(10, 1, "10.77.0.10"), (11, 0, "10.77.0.11")] {
        lab.rank(n, addr, rank, 2);
    }
    lab.wait(10, &["/default_pg/0//cpu//1/0"]);
    lab.pass(5.0);
    let gone = away(&lab, ["train-1".to_owned()]);
    look_at(&mut lab, gone, Vec::new());
    lab.pass(35.0);
    assert!(!lab.texts("waiting").is_empty());
}

#[test]
fn who_is_behind_a_link_that_is_away_claims_no_rank() {
    let mut lab = Lab::new();
    let claim = |lab: &mut Lab, n: u32, rank: u32| {
        lab.rank(n, &format!("10.77.0.{n}"), rank, 3);
    };
    claim(&mut lab, 11, 1);
    let gone = away(&lab, ["train-1".to_owned()]);
    look_at(&mut lab, gone, Vec::new());
    claim(&mut lab, 12, 1);
    lab.pass(5.0);
    assert!(lab.texts("duplicate_rank").is_empty(), "the first may have ended");
    claim(&mut lab, 13, 1);
    lab.pass(5.0);
    assert_eq!(lab.texts("duplicate_rank").len(), 1);
}

#[test]
fn a_job_behind_a_link_that_is_away_is_no_second_job() {
    let mut lab = Lab::new();
    let role = |lab: &mut Lab, n: u32, run: &str| {
        lab.come(n, &format!("10.77.0.{n}"), n);
        lab.set(n, &format!("/{run}/torchelastic/role_info/0"), b"{}");
    };
    role(&mut lab, 11, "first");
    let gone = away(&lab, ["train-1".to_owned()]);
    look_at(&mut lab, gone, Vec::new());
    role(&mut lab, 12, "second");
    lab.pass(5.0);
    assert!(lab.texts("two_jobs").is_empty(), "the first may have ended");
    look_at(&mut lab, Vec::new(), Vec::new());
    lab.pass(5.0);
    assert_eq!(lab.texts("two_jobs").len(), 1);
}

#[test]
fn a_node_whose_link_was_away_for_too_long_is_lost_with_it_and_not_dead() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.rank(10, "10.77.0.11", 1, 3);
    lab.pass(2.0);
    let before = codes(&lab).len();
    let lost = LinkNews { name: "train-1".into(), what: LinkEvent::Lost { clients: 2 }, at: lab.now };
    look_at(&mut lab, Vec::new(), vec![lost]);
    lab.cut_off(1, Some("train-1"));
    lab.cut_off(10, Some("train-1"));
    lab.pass(5.0);
    assert_eq!(codes(&lab)[before..], ["link_away", "lost"]);
    // The others go too, each with its own.
    lab.cut_off(0, Some("train-0"));
    lab.cut_off(2, Some("train-2"));
    lab.pass(5.0);
    assert_eq!(codes(&lab)[before + 2..], ["lost"]);
    assert_eq!(lab.run("job").summary.state, RunState::Gone);
}

#[test]
fn a_node_is_taken_out_of_its_round_because_its_link_is_away() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.pass(2.0);
    let gone = away(&lab, ["train-1".to_owned()]);
    look_at(&mut lab, gone, Vec::new());
    lab.pass(5.0);
    lab.cas(0, "job", "drop:1");
    lab.pass(2.0);
    assert_eq!(lab.texts("lost").len(), 1);
}

#[test]
fn ranks_whose_link_was_away_for_too_long_have_not_ended() {
    let mut lab = Lab::new();
    (0..3).for_each(|n| lab.rank(n, &format!("10.77.0.{n}"), n, 3));
    lab.pass(10.0);
    lab.cut_off(1, Some("train-1"));
    lab.pass(70.0);
    assert!(lab.texts("ranks_ended").is_empty(), "{:?}", lab.said);
    lab.leave(2);
    lab.pass(70.0);
    assert!(!lab.texts("ranks_ended").is_empty());
}

#[test]
fn ranks_whose_hosts_do_not_answer_are_cut_off_and_have_not_ended() {
    let mut lab = Lab::new();
    (0..3).for_each(|n| lab.rank(n, &format!("10.77.0.{n}"), n, 3));
    lab.pass(20.0);
    // The first could not connect to those that are cut off.
    lab.leave(0);
    lab.pass(10.0);
    let ended = lab.texts("ranks_ended").len();
    lab.cut_off(1, None);
    lab.cut_off(2, None);
    lab.pass(70.0);
    assert_eq!((lab.texts("lost").len(), lab.texts("ranks_ended").len()), (1, ended), "{:?}", lab.said);
}

#[test]
fn a_rank_that_is_cut_off_before_all_have_met_is_told_so_to_those_that_wait_for_it() {
    let mut lab = Lab::new();
    (0..2).for_each(|n| lab.rank(n, &format!("10.77.0.{n}"), n, 3));
    lab.wait_for_rank(0, 2);
    lab.pass(5.0);
    lab.cut_off(1, None);
    lab.pass(5.0);
    assert_eq!(lab.texts("lost").len(), 1, "{:?}", lab.said);
    lab.wait_for_rank(0, 1);
    lab.pass(32.0);
    assert!(lab.run("store:29500").explanations.iter().any(|said| said.code == "waiting"));
}

#[test]
fn a_node_whose_host_does_not_answer_is_cut_off_and_not_dead() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.pass(2.0);
    lab.cut_off(1, None);
    lab.pass(5.0);
    assert_eq!(lab.texts("lost").len(), 1);
}

#[test]
fn nodes_that_are_cut_off_are_not_said_to_have_ended() {
    let mut c10d = Lab::soon();
    c10d.join_all("job", 0..4);
    let address = "/torch.rendezvous.job.0/MASTER_ADDR";
    (1..4).for_each(|n| c10d.wait(n, &[address]));
    c10d.pass(2.0);
    c10d.leave(0);
    c10d.cut_off(3, None);
    c10d.pass(8.0);
    let known_from = |lab: &Lab| {
        let missing = lab.run("job").missing.into_iter();
        missing.map(|node| (node.name.unwrap_or_default(), node.known_from)).collect::<Vec<_>>()
    };
    let mut known = known_from(&c10d);
    known.sort();
    assert_eq!(known, [("node0".into(), KnownFrom::Died), ("node3".into(), KnownFrom::Lost)]);

    let mut of_rank_zero = Lab::soon();
    of_rank_zero.join_all("job", 0..2);
    of_rank_zero.wait(1, &[address]);
    of_rank_zero.pass(2.0);
    of_rank_zero.cut_off(0, None);
    of_rank_zero.pass(8.0);

    let mut at_exit = Lab::soon();
    at_exit.complete_run("job", 2);
    at_exit.reach_exit(0, "job", false);
    at_exit.pass(2.0);
    at_exit.cut_off(1, None);
    at_exit.pass(8.0);
    let waits = at_exit.run("job").waits;
    assert!(waits[0].reason.is_some());

    let mut of_static = Lab::soon();
    of_static.static_node(1, "none", 1, 3);
    of_static.static_node(0, "none", 0, 3);
    of_static.pass(2.0);
    of_static.cut_off(1, None);
    of_static.pass(8.0);
    assert!(of_static.run("none").waits.iter().any(|wait| wait.reason.is_some()));
}

#[test]
fn who_waits_beside_a_node_that_is_cut_off_is_told_as_much() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.pass(2.0);
    lab.cut_off(1, None);
    for n in [0, 2] {
        lab.cas(n, "job", "leave");
        lab.cas(n, "job", "wait");
    }
    lab.pass(40.0);
    assert!(!lab.texts("stands_by").is_empty());
}

#[test]
fn the_rank_of_a_static_node_that_was_cut_off_before_this_attempt_has_no_dead_node() {
    let mut lab = Lab::new();
    (0..3).for_each(|n| lab.static_node(n, "job", n, 3));
    lab.assign_static(0, "job", 3, 1);
    lab.pass(2.0);
    lab.cut_off(2, None);
    lab.leave(1);
    lab.pass(2.0);
    // Node 1 begins another attempt, and its rank waits for that of node 2.
    lab.static_node(3, "job", 1, 3);
    lab.rank(10, "10.77.0.11", 1, 3);
    lab.wait_for_rank(10, 2);
    lab.pass(40.0);
    assert!(lab.run("job").waits.iter().any(|wait| wait.reason.is_some()));
}

#[test]
fn many_links_that_are_away_are_one_line() {
    let mut lab = Lab::new();
    let links = away(&lab, (0..300).map(|n| format!("train-{n}")));
    lab.pass(2.0);
    look_at(&mut lab, links, Vec::new());
    lab.pass(5.0);
    assert_eq!(codes(&lab), ["link_away"]);
}

/// What is said of a run at the exit barrier, whose nodes 1 and 2 have these addresses, while the link of the
/// first is away.
fn at_exit(addresses: [&str; 2]) {
    let mut lab = Lab::soon();
    for (n, addr) in (0..).zip(["10.77.0.10"].into_iter().chain(addresses)) {
        lab.come(n, addr, 1000 + n);
        lab.first_cas(n, "job");
        lab.cas(n, "job", if n == 2 { "join complete" } else { "join" });
    }
    lab.exchange("job", 0, 3, 1);
    lab.pass(0.3);
    lab.reach_exit(0, "job", false);
    lab.pass(2.0);
    let gone = away(&lab, ["node1".to_owned()]);
    for _ in 0..9 {
        look_at(&mut lab, gone.clone(), Vec::new());
        lab.pass(1.0);
    }
    assert!(lab.run("job").explanations.iter().any(|said| said.code == "exit_barrier"));
}

#[test]
fn a_node_behind_a_link_that_is_away_is_not_said_to_run_still() {
    at_exit(["10.77.0.11", "10.77.0.12"]);
    // It may be the link of either.
    at_exit(["10.77.0.11", "10.77.0.11"]);
}

/// Three pods at their gate, each at an address of its own.
struct Pods {
    lab: Lab,
    gates: Gates,
}

impl Pods {
    fn announce(ranks: Range<u32>) -> Self {
        let mut pods = Self { lab: Lab::new(), gates: Gates::new(Duration::from_secs(30), 1) };
        ranks.for_each(|rank| pods.announces(rank));
        pods
    }

    fn announces(&mut self, rank: u32) {
        let said = announcement(&format!("train-{rank}"), rank, 3);
        self.gates.announce("job", &said, None, self.lab.now).expect("it is taken");
        self.lab.look_at_gate("job", &self.gates);
    }

    /// Lets time pass, while those with these ranks are connected.
    fn pass(&mut self, seconds: u32, connected: &[u32]) {
        let is_connected = |addr| connected.iter().any(|rank| addr == IpAddr::from([10, 1, 0, *rank as u8]));
        let contact = |addr| if is_connected(addr) { Contact::Connected } else { Contact::None };
        for _ in 0..seconds {
            self.gates.tick(self.lab.now, contact);
            self.lab.look_at_gate("job", &self.gates);
            self.lab.pass(1.0);
        }
    }

    fn said(&self) -> Option<Explanation> {
        self.lab.run("job").explanations.into_iter().find(|said| said.code == "pods_idle")
    }

    /// How many are shown to be there, and gone.
    fn assert_counted(&self, there: u32, gone: u32) {
        let run = self.lab.run("job");
        let nodes = &run.summary.nodes;
        // Nobody misses them when all have left.
        let missing = if there == 0 { 0 } else { gone };
        assert_eq!((nodes.joined, nodes.gone, nodes.missing), (there, gone, Some(missing)));
        assert_eq!(run.missing.len() as u32, missing);
        assert!(
            run.missing
                .iter()
                .all(|node| node.known_from == KnownFrom::Announced && node.last_seen.is_some())
        );
        let is_there = |node: &&Node| node.state == NodeState::Announced;
        assert_eq!(run.participants.iter().filter(is_there).count() as u32, there);
        assert!(self.said().is_some(), "it is told");
    }
}

/// They import something, or hang in it, or have ended.
#[test]
fn pods_of_which_nothing_comes_after_the_gate_are_told() {
    let mut pods = Pods::announce(0..3);
    pods.pass(20, &[]);
    for name in ["train-0", "train-1:29500", "train-2"] {
        happens(&mut pods.lab, name, LinkEvent::Came);
    }
    pods.pass(15, &[0, 1, 2]);
    assert_eq!(pods.said().map(|said| said.severity), Some(Severity::Info));
    happens(&mut pods.lab, "train-2", LinkEvent::Left);
    pods.pass(9, &[0, 1]);
    assert_eq!(pods.said().map(|said| said.severity), Some(Severity::Warning));
    pods.assert_counted(2, 1);
    // It does not count at the gate any more.
    pods.pass(31, &[0, 1]);
    pods.assert_counted(2, 1);
    // Then the others end, and the gate is forgotten.
    happens(&mut pods.lab, "train-0", LinkEvent::Left);
    happens(&mut pods.lab, "train-1:29500", LinkEvent::Left);
    pods.pass(40, &[]);
    pods.assert_counted(0, 3);
    // They are started again.
    for (rank, name) in (0..).zip(["train-0", "train-1:29500", "train-2"]) {
        happens(&mut pods.lab, name, LinkEvent::Came);
        pods.announces(rank);
    }
    pods.pass(1, &[0, 1, 2]);
    pods.assert_counted(3, 0);
}

/// Without relays nothing is heard of them.
#[test]
fn pods_without_relays_are_not_heard_of_after_the_gate() {
    let mut pods = Pods::announce(0..3);
    pods.pass(25, &[]);
    // One is started again and again, and passes the open gate each time.
    pods.announces(1);
    pods.pass(15, &[]);
    pods.pass(25, &[]);
    // One comes at last.
    let lab = &mut pods.lab;
    lab.joins(0, "job", "join");
    lab.pass(1.0);
    assert!(pods.said().is_none());
    assert_eq!(pods.lab.run("job").summary.nodes.expected.map(|it| it.min), Some(3));
    // Or none ever.
    let mut pods = Pods::announce(0..3);
    pods.pass(631, &[]);
    assert!(pods.lab.insight.list(0, pods.lab.now).runs.is_empty());
}

/// All had met, the last one died, and another comes in its place, which waits for who had met before. With
/// the link of that one up or away, this is said of it.
fn said_of_who_met_before(play: fn(&mut Lab), addr: [u8; 4]) {
    for is_away in [false, true] {
        let mut lab = Lab::new();
        play(&mut lab);
        if is_away {
            link_is_away(&mut lab, addr);
        }
        lab.pass(40.0);
        assert!(!lab.texts("waiting").is_empty(), "link away: {is_away}");
    }
}

#[test]
fn who_went_on_with_the_attempt_before_is_not_said_to_be_there_when_its_link_is_away() {
    let of_node = |lab: &mut Lab| {
        (0..3).for_each(|n| lab.static_node(n, "none", n, 3));
        lab.assign_static(0, "none", 3, 1);
        (1..3).for_each(|n| lab.get(n, &format!("/none/torchelastic/assigned_ranks/{n}")));
        lab.get(0, "/none/torchelastic/role_info/2");
        lab.pass(5.0);
        lab.leave(2);
        lab.pass(3.0);
        lab.static_node(12, "none", 2, 3);
    };
    let of_rank = |lab: &mut Lab| {
        (0..3).for_each(|n| lab.rank(n, &format!("10.77.0.{n}"), n, 3));
        (0..3).for_each(|n| (0..3).for_each(|other| lab.get(n, &format!("/default_pg/0//cpu//0/{other}"))));
        lab.pass(20.0);
        lab.leave(2);
        lab.pass(1.0);
        lab.rank(12, "10.77.0.2", 2, 3);
        lab.wait_for_rank(12, 0);
    };
    said_of_who_met_before(of_node, [10, 77, 0, 10]);
    said_of_who_met_before(of_rank, [10, 77, 0, 0]);
}
