//! Links of relays: those that are away, those that were for too long, and relays of one name.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::facts::{AwayLink, LinkEvent, LinkNews, Links};
use crate::reason::{Code, Finding, GONE, Names, Place, Presence, Sighting, has, if_some};
use rallypoint_api::Severity;
use rallypoint_protocol::ids::{Elapsed, Timestamp, counted};

const ONE_BY_ONE: usize = 8;

/// What has happened: what has come together is told together.
pub(crate) fn happened(news: &[LinkNews], grace: Duration) -> Vec<Finding> {
    let namesakes = news.iter().filter_map(|news| match news.what {
        LinkEvent::Namesake { from, other } => Some(namesake(&news.name, from, other, news.at)),
        _ => None,
    });
    namesakes.chain(lost(news, grace)).collect()
}

/// The relays whose links are away. `behind`: the nodes and ranks of these clients.
pub(crate) fn away(links: &Links, behind: impl Fn(&[SocketAddr]) -> Names, now: Timestamp) -> Vec<Finding> {
    let each = if links.away.len() > ONE_BY_ONE { links.away.len() } else { 1 };
    let finding = |away: &[AwayLink]| {
        let only = if let [only] = away { Some(only) } else { None };
        let since = away.iter().map(|link| link.since).min().unwrap_or(now);
        // As they are counted: 9 before 10.
        let mut names: Vec<String> = away.iter().map(|link| link.name.clone()).collect();
        names.sort_by_key(String::len);
        let (names, away_for) = (Names::of(names), Elapsed(now.since(since)));
        let clients: usize = away.iter().map(|link| link.clients.len()).sum();
        let addr = if_some(only, |link| format!(" at {}", link.addr));
        let behind = only.map(|link| behind(&link.clients));
        let with = if_some(behind.filter(|behind| !behind.is_empty()), |who| format!(", with {who},"));
        let why = if_some(only.and_then(|link| link.why.as_ref()), |why| format!(": {why}"));
        let keeps = if_some(Some(clients).filter(|clients| *clients > 0), |clients| {
            let (clients, grace) = (counted(clients, "client", "clients"), Elapsed(links.grace));
            format!("; the server keeps the sessions of {clients} for {grace} (--link-grace)")
        });
        let (the_link, has) = (the_link(&names), has(names.count()));
        let reason = Code::LinkAway
            .says(format!("{the_link} of {names}{addr}{with} {has} been away for {away_for}{why}{keeps}"))
            .misses(Place::Pod, &names, Sighting::at(Presence::Away, since));
        Finding::new(reason, only.map_or_else(String::new, |link| link.name.clone()), since)
    };
    links.away.chunks(each).map(finding).collect()
}

/// Links that were away for too long. With one that had no clients nothing is lost.
fn lost(news: &[LinkNews], grace: Duration) -> Option<Finding> {
    let lost = news.iter().filter_map(|news| match news.what {
        LinkEvent::Lost { clients: clients @ 1.. } => Some((news, clients)),
        _ => None,
    });
    let lost: Vec<_> = lost.collect();
    let since = lost.first()?.0.at;
    let links = Names::of(lost.iter().map(|(link, _)| link.name.clone()));
    let clients: usize = lost.iter().map(|(_, clients)| clients).sum();
    let (the_link, grace) = (the_link(&links), Elapsed(grace));
    let was = if links.count() == 1 { "was" } else { "were" };
    let gone = counted(clients, "client is", "clients are");
    let reason = Code::LinkAway
        .says(format!(
            "{the_link} of {links} {was} away for longer than {grace} (--link-grace): {gone} disconnected"
        ))
        .severe(Severity::Error)
        .look_at(GONE)
        .misses(Place::Pod, &links, Sighting::at(Presence::Unreachable, since));
    Some(Finding::new(reason, format!("lost {links}"), since))
}

fn the_link(links: &Names) -> &'static str {
    if links.count() == 1 { "the link" } else { "the links" }
}

fn namesake(name: &str, from: IpAddr, other: IpAddr, at: Timestamp) -> Finding {
    let reason = Code::JoinRefused
        .says(format!(
            "a relay named {name} at {from} was turned away: another of that name, at {other}, is connected"
        ))
        .look_at(
            "stop the pod that should not be there, or give each relay a name of its own: --name (rallypoint \
             relay), else POD_NAME and POD_UID. It tries again, and its command waits meanwhile",
        )
        .held(&Names::of([name.to_owned()]));
    Finding::new(reason, name, at)
}
