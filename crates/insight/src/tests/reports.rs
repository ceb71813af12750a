//! What public bug reports show, each with its healthy twin: addresses that cannot work, groups on which
//! ranks disagree, many that are lost at one moment, jobs that were over at once.

use std::net::IpAddr;

use super::faults::{check_free, fault};
use super::lab::Lab;
use crate::Change;
use rallypoint_api::{RunState, Severity};

const RUN: &str = "store:29500";

/// A gloo address as PyTorch writes it, where its process listens at `ip`.
fn gloo(host: &str, world: usize, ip: &str) -> Vec<u8> {
    let mut value = super::lab::gloo(host, world);
    let at = 8 + host.len() + 8;
    let (family, start, octets) = match ip.parse().expect("an address") {
        IpAddr::V4(ip) => (2, 4, ip.octets().to_vec()),
        IpAddr::V6(ip) => (10, 8, ip.octets().to_vec()),
    };
    value[at] = family;
    value[at + start..at + start + octets.len()].copy_from_slice(&octets);
    value
}

/// Ranks, each at this address of the store's network, on this host, listening there.
fn ranks(lab: &mut Lab, ranks: &[(&str, &str, &str)]) {
    for (n, (peer, host, listens)) in (0..).zip(ranks) {
        lab.worker(n, peer);
        let key = format!("/default_pg/0//cpu//0/{n}");
        lab.set(n, &key, &gloo(host, ranks.len(), listens));
    }
}

/// Four ranks on hosts of their own, which have all published.
fn four(lab: &mut Lab) {
    ranks(lab, &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"].map(|ip| (ip, &ip[7..], ip)));
}

/// The id of all ranks as NCCL makes it, where rank 0 listens at `ip`.
fn nccl_id(ip: [u8; 4]) -> Vec<u8> {
    let mut id = vec![7; 8];
    id.extend([2, 0, 0xa6, 0x9d]);
    id.extend(ip);
    id.resize(128, 0);
    id
}

fn nccl(lab: &mut Lab, peers: [&str; 2], ip: [u8; 4]) {
    (0..).zip(peers).for_each(|(n, peer)| lab.worker(n, peer));
    lab.set(0, "/default_pg/0//cuda//0", &nccl_id(ip));
    lab.get(1, "/default_pg/0//cuda//0");
}

const UNREACHABLE: &str = "on other hosts";

#[test]
fn what_reports_show_is_said_and_not_of_their_twins() {
    check_free(&[
        fault("a rank publishes a loopback address", |lab| ranks(lab, &[("10.0.0.1", "n0", "10.0.0.1"), ("10.0.0.2", "n1", "127.0.1.1")])).words(&[
            "rank 1 on n1 published 127.0.1.1 (loopback): ranks on other hosts cannot reach it",
            "if the job hangs, give the interface that the hosts share: GLOO_SOCKET_IFNAME",
        ]).silent().never(&["rank 0 on n0 published"]),
        fault("a rank publishes a link-local address", |lab| ranks(lab, &[("10.0.0.1", "n0", "10.0.0.1"), ("10.0.0.2", "n1", "169.254.7.1")])).words(&["rank 1 on n1 published 169.254.7.1 (link-local)"]),
        fault("a rank publishes the address of Docker's bridge", |lab| ranks(lab, &[("10.0.0.1", "n0", "10.0.0.1"), ("10.0.0.2", "n1", "172.17.0.1")])).words(&["rank 1 on n1 published 172.17.0.1 (Docker's bridge)"]),
        fault("one rank publishes an address of another network than all others", |lab| ranks(lab, &[("10.0.0.1", "n0", "10.0.0.1"), ("10.0.0.2", "n1", "192.168.122.1")])).words(&[
            "rank 1 on n1 published 192.168.122.1 (another network than it connects from)",
            "may not reach it",
        ]).never(&["cannot reach"]),
        fault("an address that cannot work is named before all ranks have come", |lab| {
            for (n, listens) in [(0, "127.0.1.1"), (1, "10.0.0.2")] {
                lab.worker(n, &format!("10.0.0.{}", n + 1));
                lab.set(n, &format!("/default_pg/0//cpu//0/{n}"), &gloo(&format!("n{n}"), 4, listens));
            }
        }).words(&["rank 0 on n0 published 127.0.1.1"]),
        fault("the NCCL id has a loopback address", |lab| nccl(lab, ["10.0.0.1", "10.0.0.2"], [127, 0, 0, 1])).words(&["published 127.0.0.1 (loopback): ranks on other hosts cannot reach it", "NCCL_SOCKET_IFNAME"]),
        fault("twin: the NCCL id has an address that works", |lab| nccl(lab, ["10.0.0.1", "10.0.0.2"], [10, 0, 0, 1])).never(&[UNREACHABLE]),
        fault("twin: all ranks are on one host", |lab| {
            ranks(lab, &[("10.0.0.1", "n0", "127.0.1.1"), ("10.0.0.1", "n0", "127.0.1.1")]);
        }).never(&[UNREACHABLE]),
        fault("twin: hosts that are emulated on one", |lab| ranks(lab, &[("127.0.0.2", "n0", "127.0.0.1"), ("127.0.0.3", "n1", "127.0.0.1")])).never(&[UNREACHABLE]),
        fault("twin: all ranks meet in a network of their own", |lab| ranks(lab, &[("10.0.0.1", "n0", "192.168.1.1"), ("10.0.0.2", "n1", "192.168.1.2")])).never(&[UNREACHABLE]),
        fault("twin: containers of one host", |lab| ranks(lab, &[("172.17.0.2", "c0", "172.17.0.2"), ("172.17.0.3", "c1", "172.17.0.3")])).never(&[UNREACHABLE]),
        fault("ranks wait below different groups", |lab| {
            four(lab);
            lab.pass(1.0);
            for (n, group, other) in [(0, 1, 2), (1, 1, 2), (2, 2, 0), (3, 2, 0)] {
                lab.set(
                    n,
                    &format!("/default_pg/0//{group}//cpu//0/{n}"),
                    &gloo(&n.to_string(), 4, "10.0.0.1"),
                );
                lab.wait(n, &[&format!("/default_pg/0//{group}//cpu//0/{other}")]);
            }
        }).words(&[
            "4 processes have waited",
            "for each other: rank 0 on 1 and rank 1 on 2 below the sub-group 1; rank 2 on 3 and rank 3 on 4 below the sub-group 2",
            "in the same order",
        ]).never(&["have not reached this call"]),
        fault("twin: ranks make their groups one after the other", |lab| {
            four(lab);
            lab.pass(1.0);
            for n in 0..4 {
                for group in [1, 2] {
                    lab.set(
                        n,
                        &format!("/default_pg/0//{group}//cpu//0/{n}"),
                        &gloo(&n.to_string(), 4, "10.0.0.1"),
                    );
                }
            }
        }).never(&["each other"]),
        fault("many are lost at one moment", |lab| {
            (0..8).for_each(|n| lab.worker(n, &format!("10.0.0.{n}")));
            (0..7).for_each(|n| lab.publish(n, n, 8));
            (0..5).for_each(|n| lab.wait_for_rank(n, 7));
            lab.pass(6.0);
            for n in 0..8 {
                lab.leave(n);
                lab.pass(0.02);
            }
        }).words(&["the connections of all 8 processes closed within 0.1 s, 5 of them while they waited"]).never(&["left without finishing", "died"]),
        fault("twin: a few leave, and others much later", |lab| {
            (0..4).for_each(|n| lab.worker(n, &format!("10.0.0.{n}")));
            (0..3).for_each(|n| lab.publish(n, n, 4));
            for n in 0..4 {
                lab.leave(n);
                lab.pass(2.0);
            }
        }).never(&["closed within"]),
        fault("a rank is killed, and takes the others with it within milliseconds", |lab| {
            four(lab);
            lab.pass(5.0);
            for n in [2, 0, 1, 3] {
                lab.leave(n);
                lab.pass(0.002);
            }
        }).words(&["ended: the connections of all 4 processes closed after 5 s; first: rank 2 on 3, 6 ms before the last"]),
        fault("a job of one rank", |lab| ranks(lab, &[("10.0.0.1", "n0", "10.0.0.1")])).words(&["rank 0 on n0 is its only rank"]).never(&["(+"]),
        fault("twin: a job that is done in less than a second", |lab| {
            four(lab);
            lab.pass(0.4);
            (0..4).for_each(|n| lab.leave(n));
        }).words(&["the connections of all 4 processes closed", "success cannot be seen here"]).never(&["SOCKET_IFNAME", "look at", "logs"]),
    ]);
}

/// The rows are its judge.
fn lab() -> Lab {
    let mut lab = Lab::soon();
    lab.scene.is_free();
    lab
}

/// Nothing is seen but that all have published their addresses, until one writes what none writes before they
/// have met.
#[test]
fn whether_ranks_have_met_is_known_only_when_a_key_shows_it() {
    let mut lab = lab();
    four(&mut lab);
    lab.pass(40.0);
    let have_met = |lab: &Lab| {
        let run = lab.run(RUN).summary;
        (run.state, run.ranks.map(|ranks| ranks.have_met))
    };
    assert_eq!(have_met(&lab), (RunState::Running, Some(false)));
    assert!(lab.said.iter().all(|(_, said)| said.severity == Severity::Info), "{:?}", lab.said);
    lab.set(1, "/default_pg/0//1//cpu//0/1", &gloo("2", 4, "10.0.0.2"));
    lab.pass(1.0);
    assert_eq!(have_met(&lab), (RunState::Running, Some(true)));
}

/// A healthy run is told when it starts, when it is complete and when it is over; the rest is for the debug
/// log.
#[test]
fn a_healthy_run_has_three_lines() {
    let mut lab = lab();
    lab.joins(0, "job", "join");
    lab.pass(1.0);
    lab.joins(1, "job", "join complete");
    lab.exchange("job", 0, 2, 1);
    lab.pass(1.0);
    (0..2).for_each(|n| lab.rank(10 + n, &format!("10.77.0.{}", 10 + n), n, 2));
    lab.pass(2.0);
    (0..2).for_each(|n| lab.leave(10 + n));
    (0..2).for_each(|n| lab.reach_exit(n, "job", n == 1));
    (0..2).for_each(|n| lab.leave(n));
    lab.pass(3.0);
    let lines = |is_detail: bool| {
        let line = move |news: &Change| match news {
            Change::Explanation { explanation, aloud: true, is_detail: its } if *its == is_detail => {
                Some(explanation.text.clone())
            }
            _ => None,
        };
        lab.news.iter().filter_map(line).collect::<Vec<_>>()
    };
    assert_eq!((lines(false).len(), lines(true).len()), (3, 1), "{:?}", lines(false));
    assert!(lines(true)[0].contains("have published their addresses"), "{:?}", lines(true));
    let advice = lab.said.iter().map(|(_, said)| &said.remedy).find(|remedy| !remedy.is_empty());
    assert_eq!(advice, None, "all left well");
}
