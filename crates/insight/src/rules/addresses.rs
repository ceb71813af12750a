//! Addresses that ranks publish and that ranks on other hosts cannot reach: told before the job fails.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::facts::{Meeting, RankInfo, TrackedRun};
use crate::reason::{Code, Evidence, Finding, Names, Place, Presence, Sighting};
use rallypoint_api::Severity;

const LOOPBACK: &str = "loopback";
/// The process connects to the store from another network, as all others do that published theirs.
const OTHER_NETWORK: &str = "another network than it connects from";

/// Why others cannot reach an address, as far as it tells itself, or where its process connects from.
fn doubt_of(listens: IpAddr, peer: IpAddr) -> Option<&'static str> {
    // The network that Docker gives containers of one host by default.
    let is_of_bridge = |ip: IpAddr| matches!(ip, IpAddr::V4(ip) if ip.octets()[..2] == [172, 17]);
    let is_link_local = match listens {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    match listens {
        _ if listens.is_loopback() => Some(LOOPBACK),
        _ if is_link_local => Some("link-local"),
        _ if is_of_bridge(listens) && !is_of_bridge(peer) => Some("Docker's bridge"),
        _ => None,
    }
}

/// Whether both are of one network, as far as two addresses tell.
fn are_near(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.octets()[..2] == other.octets()[..2],
        // A host has addresses of both kinds.
        _ => true,
    }
}

/// Addresses that ranks on other hosts cannot reach, where nobody is known to have met.
pub(crate) fn unreachable(run: &TrackedRun) -> Vec<Finding> {
    let world = &run.world;
    let gathering = world.meetings.iter().filter(|meeting| !meeting.went_on);
    let of_gloo = gathering.filter_map(of_meeting);
    let of_nccl = world.nccl_root.as_ref().filter(|root| root.gone.is_none()).and_then(|root| {
        let (listens, peer) = (root.listens?, root.wrote.peer?.ip().to_canonical());
        let doubt = doubt_of(listens, peer)?;
        let is_on_other_host =
            |ip: IpAddr| ip.to_canonical() != peer && !(ip.is_loopback() && peer.is_loopback());
        let has_others = world.connected.named().any(|(ip, _)| is_on_other_host(ip));
        let who = run.process_label(&root.wrote);
        let told = (said(&who, listens, doubt), Presence::Connected.into(), root.wrote.clone());
        has_others.then(|| finding(vec![told], false, false, "nccl".into()))
    });
    of_gloo.chain(of_nccl).collect()
}

const IF_IT_HANGS: &str = "if the job hangs, give the interface that the hosts share: GLOO_SOCKET_IFNAME; \
                           a host's name that leads to 127.0.1.1 has that from /etc/hosts";

fn said(who: &str, listens: IpAddr, doubt: &str) -> String {
    format!("{who} published {listens} ({doubt})")
}

/// `may`: others may not reach them. `calm`: all have published, and of two ranks only one has to reach the
/// other.
fn finding(ranks: Vec<(String, Sighting, Evidence)>, may: bool, calm: bool, about: String) -> Finding {
    let since = ranks.iter().map(|(.., wrote)| wrote.at).min().unwrap_or_default();
    let (can, it) = (if may { "may not" } else { "cannot" }, if ranks.len() == 1 { "it" } else { "them" });
    let names = Names::of(ranks.iter().map(|(said, ..)| said.clone()));
    let wrote: Vec<_> = ranks.iter().map(|(.., wrote)| wrote.clone()).collect();
    let reason = Code::AddressUnreachable
        .says(format!("{names}: ranks on other hosts {can} reach {it} there"))
        .misses_each(Place::Rank, ranks.into_iter().map(|(said, seen, _)| (said, seen)))
        .when(may || calm, |reason| reason.severe(Severity::Info).look_at(IF_IT_HANGS));
    Finding::new(reason, about, since).seen(wrote)
}

fn of_meeting(meeting: &Meeting) -> Option<Finding> {
    // Who has ended may have, as it could not reach the others.
    let there = || meeting.ranks().filter_map(|(rank, info)| Some((rank, info, info.listens?)));
    let peer = |info: &RankInfo| info.peer.ip().to_canonical();
    let hosts: HashSet<_> = there().filter_map(|(_, info, _)| info.host.as_deref()).collect();
    let peers: HashSet<_> = there().map(|(_, info, _)| peer(info)).collect();
    if hosts.len() == 1 || peers.len() < 2 || peers.iter().all(IpAddr::is_loopback) {
        return None;
    }
    let is_odd =
        |info: &RankInfo, listens: IpAddr| !peer(info).is_loopback() && !are_near(listens, peer(info));
    let mut odd = there().filter(|(_, info, listens)| is_odd(info, *listens));
    let only_odd = odd.next().filter(|_| odd.next().is_none()).map(|(rank, ..)| rank);
    let doubt = |(rank, info, listens)| {
        let odd = Some(OTHER_NETWORK).filter(|_| only_odd == Some(rank));
        Some((rank, info, listens, doubt_of(listens, peer(info)).or(odd)?))
    };
    let doubts: Vec<(u32, &RankInfo, IpAddr, &str)> = there().filter_map(doubt).collect();
    let may = !doubts.iter().any(|(.., doubt)| *doubt != OTHER_NETWORK);
    let ranks = doubts.iter().map(|(rank, info, listens, doubt)| {
        let seen = info.gone_as().unwrap_or_else(|| Presence::Connected.into());
        (said(&info.label(*rank), *listens, doubt), seen, info.wrote(*rank))
    });
    let loopback = doubts.iter().filter(|(.., doubt)| *doubt == LOOPBACK);
    let from: HashSet<_> = loopback.map(|it| peer(it.1)).collect();
    // One of two ranks has to reach the other.
    let calm = meeting.met.is_some() && (from.len() < 2 || hosts.is_empty());
    let about = format!("meeting {}", meeting.number);
    (!doubts.is_empty()).then(|| finding(ranks.collect(), may, calm, about))
}
