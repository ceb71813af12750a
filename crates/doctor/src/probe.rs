//! Gathers the facts. It only reads, and changes nothing. Each step has a time limit.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use rustix::process::{Resource, getrlimit};
use tokio::time::{Instant, timeout};

use super::machine::MachineFacts;
use super::network::{Answer, Failure, NetworkFacts};
use super::reverse::{first_name_server, lookup};
use super::server::{RunStores, ServerFacts};
use rallypoint_api as api;
use rallypoint_node::client::http::{self, AdminUrl};
use rallypoint_node::client::{self, Client, Endpoint, Options};
use rallypoint_process::{self as process, SocketState};
use rallypoint_protocol::rendezvous_state;

/// How many addresses of one name are tried.
const MOST_TRIED: usize = 8;

/// Tries the way to the store. Returns a client if a store answered.
pub async fn probe_network(
    endpoint: &Endpoint,
    own_ip: Option<IpAddr>,
    step: Duration,
) -> (NetworkFacts, Option<Client>) {
    let started = Instant::now();
    let resolved = client::resolve(endpoint, step).await.map_err(|error| error.to_string());
    let resolving = started.elapsed();
    let options = Options { step, call: step, ..Options::default() };
    let (mut tried, mut connected) = (Vec::new(), None);
    let mut own: Vec<IpAddr> = own_ip.into_iter().collect();
    for &addr in resolved.iter().flatten().take(MOST_TRIED) {
        // Every host has loopback, so it proves nothing about a Service.
        own.extend(client::source_towards(addr).filter(|ip| !ip.is_loopback()));
        let outcome = match Client::connect_addr(addr, &options).await {
            Ok(mut client) => {
                let started = Instant::now();
                match client.sync().await {
                    Ok(()) => {
                        let answer = Answer { latency: started.elapsed(), pings: client.pings() };
                        connected.get_or_insert(client);
                        Ok(answer)
                    }
                    Err(error) => Err(Failure { step: client::Step::Ping, text: error.to_string() }),
                }
            }
            Err(error) => Err(Failure { step: error.step(), text: error.to_string() }),
        };
        tried.push((addr, outcome));
    }
    let any_name = answers_for_any_name(endpoint, resolved.as_deref().unwrap_or_default(), step).await;
    let dialing = dialing(resolved.as_deref().unwrap_or_default());
    let endpoint = endpoint.clone();
    let facts = NetworkFacts {
        endpoint,
        resolved,
        resolving,
        own,
        tried,
        several: false,
        any_name,
        relays_only: false,
        dialing,
    };
    (facts, connected)
}

/// Whether the resolver gives these addresses for a name that nobody has, too.
async fn answers_for_any_name(endpoint: &Endpoint, found: &[SocketAddr], step: Duration) -> bool {
    let is_name = endpoint.host().parse::<IpAddr>().is_err() && !found.is_empty();
    let nobody = Endpoint::new("rallypoint-asks-for-nobody", endpoint.port()).ok();
    let Some(nobody) = nobody.filter(|_| is_name && !found.iter().any(|addr| addr.ip().is_loopback())) else {
        return false;
    };
    client::resolve(&nobody, step).await.is_ok_and(|same| same.iter().all(|addr| found.contains(addr)))
}

/// The processes of this host that try to reach other ports of these hosts, and get no answer.
fn dialing(stores: &[SocketAddr]) -> Vec<(String, SocketAddr)> {
    let is_beside = |addr: &SocketAddr| {
        stores.iter().any(|store| store.ip().to_canonical() == addr.ip() && store.port() != addr.port())
    };
    // A host without these tables shows no sockets.
    let sockets = process::sockets().unwrap_or_default().into_iter();
    let dialing = sockets.filter(|socket| socket.state == SocketState::Dials && is_beside(&socket.remote));
    dialing.map(|socket| (socket.owner(), socket.remote)).collect()
}

/// Whether a server says that its stores have no ports.
pub async fn relays_only(admin: &AdminUrl, step: Duration) -> bool {
    let asked = http::request(admin, "GET", "/api/v1/link", step).await;
    asked.is_ok_and(|answer| answer.code().as_deref() == Some("relays_only"))
}

/// Asks the admin port and, with `client`, the store itself.
pub async fn probe_server(
    admin: &AdminUrl,
    store_port: u16,
    run_id: Option<&str>,
    client: Option<Client>,
    step: Duration,
) -> ServerFacts {
    let mut facts =
        ServerFacts { admin: admin.to_string(), run_id: run_id.map(Into::into), ..ServerFacts::default() };
    let get = |path: String| async move { http::request(admin, "GET", &path, step).await };
    match get("/readyz".into()).await {
        Err(error) => facts.unreachable = Some(error.to_string()),
        Ok(answer) => {
            facts.ready = answer.is_success();
            let server = answer.date.and_then(|date| httpdate::parse_http_date(&date).ok());
            facts.clock_ahead = server.map(|server| seconds_ahead(server, SystemTime::now()));
        }
    }
    if facts.unreachable.is_none() {
        match get("/metrics".into()).await {
            Ok(answer) => facts.version = version(&String::from_utf8_lossy(&answer.body)),
            Err(error) => facts.large = facts.ready.then(|| error.to_string()),
        }
        if let Some(run_id) = run_id {
            let path = format!("/api/v1/runs/{}/announce", http::path_part(run_id));
            let announced: Option<api::Announced> = said(admin, &path, step).await;
            facts.torch_versions = announced.map(|announced| announced.torch_versions).unwrap_or_default();
        }
        let list: Option<api::StoreList> = said(admin, "/api/v1/stores", step).await;
        let stores = list.map(|list| list.stores).unwrap_or_default();
        let ours = usize::from(client.is_some());
        let store = stores.iter().find(|store| store.port == store_port);
        facts.others = store.map(|store| store.connections.saturating_sub(ours));
        facts.keys = store.map_or(0, |store| store.keys);
        facts.run_stores = probe_run_stores(admin, step).await;
    }
    if let Some(client) = client {
        look_into_store(client, run_id, &mut facts).await;
    }
    facts
}

/// What the admin port answers, if it is of this form.
async fn said<T: serde::de::DeserializeOwned>(admin: &AdminUrl, path: &str, step: Duration) -> Option<T> {
    let answer = http::request(admin, "GET", path, step).await.ok()?;
    serde_json::from_slice(&answer.body).ok()
}

/// Tries one of the ports of run stores, preferably one with a store. It tries no port through a relay, which
/// needs no such port, and none on this host.
pub async fn probe_run_stores(admin: &AdminUrl, step: Duration) -> Option<RunStores> {
    let ports = said::<api::ServerHealth>(admin, "/api/v1/server", step).await?.run_stores?;
    let listed: Option<api::StoreList> = said(admin, "/api/v1/stores", step).await;
    let is_one = |port: &u16| (ports.first..=ports.last).contains(port);
    let open = listed.and_then(|list| list.stores.iter().map(|store| store.port).find(is_one));
    let tried = Endpoint::new(&ports.host, open.unwrap_or(ports.first)).ok()?;
    if admin.endpoint().is_loopback() || tried.is_loopback() {
        return None;
    }
    let addrs = client::resolve(&tried, step).await;
    let way = match addrs.map(|addrs| addrs.first().copied()) {
        Ok(Some(addr)) => client::open(addr, step).await.map(drop),
        Ok(None) => return None,
        Err(error) => Err(error),
    };
    let blocked = match way {
        // No store is open on that port now.
        Err(client::StepError::Refused { .. }) if open.is_none() => None,
        way => way.err().map(|error| error.to_string()),
    };
    let takes_relays =
        http::request(admin, "GET", "/api/v1/link", step).await.is_ok_and(|it| it.status == 426);
    let ports = (ports.first, ports.last);
    Some(RunStores { tried, ports, is_open: open.is_some(), blocked, takes_relays })
}

/// Reads only: CHECK, and GET of present keys. An ADD would change a count, and a WAIT would show up as a
/// wait.
async fn look_into_store(mut client: Client, run_id: Option<&str>, facts: &mut ServerFacts) {
    facts.looked_into = true;
    // A request of several packets; nobody has these keys.
    let names: Vec<String> = (0..64).map(|n| format!("/rallypoint/doctor/{n:0>100}")).collect();
    if let Err(error) = client.check(&names).await {
        facts.large = Some(error.to_string());
        return;
    }
    facts.has_addresses = client.check(&[b"/default_pg/0//cpu//0/0"]).await.unwrap_or(false);
    let Some(run_id) = run_id else { return };
    let key = format!("/torch.rendezvous.{run_id}");
    if let Ok(Some(state)) = client.try_get(key.as_bytes()).await {
        let state = rendezvous_state::read(&state).ok().flatten();
        facts.run_closed = state.is_some_and(|state| state.closed);
    }
}

fn seconds_ahead(server: SystemTime, here: SystemTime) -> i64 {
    match server.duration_since(here) {
        Ok(ahead) => i64::try_from(ahead.as_secs()).unwrap_or(i64::MAX),
        Err(behind) => i64::try_from(behind.duration().as_secs()).map_or(i64::MIN, i64::saturating_neg),
    }
}

/// The version in `rallypoint_build_info{version="…"}`.
fn version(metrics: &str) -> Option<String> {
    let line = metrics.lines().find(|line| line.starts_with("rallypoint_build_info{"))?;
    let (_, rest) = line.split_once("version=\"")?;
    rest.split('"').next().map(str::to_owned)
}

/// Gathers facts about this host.
pub async fn probe_machine(hostname: &str, towards: Option<IpAddr>, step: Duration) -> MachineFacts {
    let limit = getrlimit(Resource::Nofile);
    let own = timeout(step, tokio::net::lookup_host((hostname, 0))).await;
    let own_addresses = own.ok().and_then(Result::ok).map(|addrs| addrs.map(|addr| addr.ip()).collect());
    let file = |path| std::fs::read_to_string(path).unwrap_or_default();
    let name_server = first_name_server(&file("/etc/resolv.conf"));
    let reverse_lookup = match (name_server, towards.filter(|addr| !addr.is_loopback())) {
        (Some(server), Some(addr)) => lookup(server, addr, step).await.map(|(took, _)| took),
        _ => None,
    };
    let own: Vec<IpAddr> = own_addresses.unwrap_or_default();
    let published = match (name_server, own.iter().find(|addr| !addr.is_loopback())) {
        (Some(server), Some(addr)) => match lookup(server, *addr, step).await {
            Some((_, Some(name))) if name.contains('.') => {
                let found = timeout(step, tokio::net::lookup_host((name.as_str(), 0))).await;
                let resolves = found.ok().and_then(Result::ok).is_some_and(|mut all| all.next().is_some());
                Some((name, resolves))
            }
            _ => None,
        },
        _ => None,
    };
    MachineFacts {
        hostname: hostname.to_owned(),
        own_addresses: own,
        published,
        hosts_file: file("/etc/hosts"),
        interfaces: interfaces(),
        several: false,
        descriptors: (limit.current, limit.maximum),
        backlog: file("/proc/sys/net/core/somaxconn").trim().parse().ok(),
        outgoing: two_ports(&file("/proc/sys/net/ipv4/ip_local_port_range")),
        binds: Vec::new(),
        reverse_lookup,
    }
}

/// The names of this host's interfaces, in order.
fn interfaces() -> Vec<String> {
    let all = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    // Beside them there is a file of the bonding driver.
    let all = all.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = all.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

fn two_ports(text: &str) -> Option<(u16, u16)> {
    let mut ports = text.split_whitespace().map_while(|port| port.parse().ok());
    Some((ports.next()?, ports.next()?))
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn who_gets_no_answer_at_another_port_of_the_store_is_seen() {
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let full = socket();
        full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bound");
        // The queue has room for one connection that nobody accepts; the kernel drops the SYNs of the others.
        full.listen(0).expect("listens");
        let addr = full.local_addr().ok().and_then(|addr| addr.as_socket()).expect("an address");
        let dialers: Vec<Socket> = (0..4).map(|_| socket()).collect();
        for dialer in &dialers {
            dialer.set_nonblocking(true).expect("set");
            let _in_progress = dialer.connect(&addr.into());
        }
        let own = format!("(pid {})", std::process::id());
        let sees =
            |store: SocketAddr| dialing(&[store]).iter().any(|(who, to)| *to == addr && who.contains(&own));
        assert!(sees(([127, 0, 0, 1], 1).into()), "{:?}", dialing(&[([127, 0, 0, 1], 1).into()]));
        assert!(!sees(addr), "that is the store's own port");
        assert!(!sees(([127, 0, 0, 2], 1).into()), "that is another host");
    }

    #[test]
    fn what_the_server_says_is_understood() {
        let metrics = "# HELP x\nrallypoint_build_info{rustc=\"1.95\",version=\"0.1.0\"} 1\n";
        assert_eq!(version(metrics).as_deref(), Some("0.1.0"));
        assert_eq!(version("up 1\n"), None);
        let now = SystemTime::now();
        assert_eq!(seconds_ahead(now + Duration::from_secs(40), now), 40);
        assert_eq!(seconds_ahead(now, now + Duration::from_secs(40)), -40);
    }
}
