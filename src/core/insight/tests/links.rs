//! Links that are away: told as such, and nobody is said to have died.

use std::net::{IpAddr, Ipv4Addr};

use super::lab::Lab;
use crate::api::{LinkCounts, RunState};
use crate::core::insight::{AwayLink, LostLink};

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

fn look_at(lab: &mut Lab, away: Vec<AwayLink>, lost: Vec<LostLink>) {
    lab.insight.links(LinkCounts::default(), away, lost, lab.now);
}

fn codes(lab: &Lab) -> Vec<&str> {
    lab.said.iter().map(|(_, said)| said.code.as_str()).collect()
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
    let text = lab.texts("link_away")[0];
    assert!(text.starts_with("the link of train-1 at 10.77.0.11 has been away for 2"), "{text}");
    assert_eq!(lab.run("job").summary.state, RunState::Running);
}

#[test]
fn what_a_process_behind_a_link_does_is_not_known_while_it_is_away() {
    let mut lab = Lab::new();
    for (n, rank, addr) in [(10, 1, "10.77.0.10"), (11, 0, "10.77.0.11")] {
        lab.worker(n, addr);
        lab.publish(n, rank, 2);
    }
    lab.wait(10, &["/default_pg/0//cpu//1/0"]);
    lab.pass(5.0);
    let gone = away(&lab, ["train-1".to_owned()]);
    look_at(&mut lab, gone, Vec::new());
    lab.pass(35.0);
    let said = lab.texts("rank_zero_slow");
    let away = "the link of train-1 has been away for ";
    assert!(!said.is_empty() && said.iter().all(|text| text.contains(away)), "{said:?}");
}

#[test]
fn who_is_behind_a_link_that_is_away_claims_no_rank() {
    let mut lab = Lab::new();
    let claim = |lab: &mut Lab, n: u32, rank: u32| {
        lab.worker(n, &format!("10.77.0.{n}"));
        lab.publish(n, rank, 3);
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
        lab.connect(n, &format!("10.77.0.{n}"), n);
        lab.ping(n);
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
    lab.worker(10, "10.77.0.11");
    lab.publish(10, 1, 3);
    lab.pass(2.0);
    let before = codes(&lab).len();
    let lost = LostLink { name: "train-1".into(), clients: 2, at: lab.now };
    look_at(&mut lab, Vec::new(), vec![lost]);
    lab.cut_off(1, "train-1");
    lab.cut_off(10, "train-1");
    lab.pass(5.0);
    assert_eq!(codes(&lab)[before..], ["link_lost", "node_cut_off"]);
    assert_eq!(
        lab.texts("node_cut_off"),
        [
            "job round 0: node1 (node rank 1) is lost with the link of train-1, away for longer than --link-grace; 2 nodes \
          left"
        ]
    );
    // The others go too, each with its own.
    lab.cut_off(0, "train-0");
    lab.cut_off(2, "train-2");
    lab.pass(5.0);
    assert_eq!(codes(&lab)[before + 2..], ["node_cut_off"]);
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
    let removed: Vec<_> = lab.said.iter().filter(|(_, said)| said.code == "node_removed").collect();
    let [(_, said)] = removed[..] else { panic!("{:?}", lab.said) };
    assert_eq!(
        said.text,
        "job round 0: node1 (node rank 1) has sent no heartbeat for 7.5 s, as the link of train-1 is away: \
         node0 (node rank 0) took it out of the round; 2 nodes left"
    );
    assert!(
        said.remedy.contains("the log of its relay") && !said.remedy.contains("frozen"),
        "{}",
        said.remedy
    );
}

#[test]
fn ranks_whose_link_was_away_for_too_long_have_not_ended() {
    let mut lab = Lab::new();
    for n in 0..3 {
        lab.worker(n, &format!("10.77.0.{n}"));
        lab.publish(n, n, 3);
    }
    lab.pass(10.0);
    lab.cut_off(1, "train-1");
    lab.pass(70.0);
    assert!(lab.texts("ranks_ended").is_empty(), "{:?}", lab.said);
    lab.leave(2);
    lab.pass(70.0);
    assert!(
        lab.texts("ranks_ended").iter().all(|text| text.contains("rank 2 on host2 closed its connection")),
        "{:?}",
        lab.said
    );
    assert!(!lab.texts("ranks_ended").is_empty());
}

#[test]
fn many_links_that_are_away_are_one_line() {
    let mut lab = Lab::new();
    let links = away(&lab, (0..300).map(|n| format!("train-{n}")));
    lab.pass(2.0);
    look_at(&mut lab, links, Vec::new());
    lab.pass(5.0);
    assert_eq!(codes(&lab), ["link_away"]);
    let text = lab.texts("link_away")[0];
    assert!(text.starts_with("the links of train-0 to train-299 have been away for "), "{text}");
    assert!(text.contains("the server keeps the sessions of 2400 clients"), "{text}");
}
