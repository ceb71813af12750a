//! The way to the store: the addresses of its name, the port, and the server that answers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::Check;
use rallypoint_node::client::Step;
use rallypoint_node::endpoint::Endpoint;
use rallypoint_protocol::ids::Elapsed;

/// Facts about the way to the store.
#[derive(Debug, Clone)]
pub struct NetworkFacts {
    /// The store.
    pub endpoint: Endpoint,
    /// The addresses of the name, or the resolver's error.
    pub resolved: Result<Vec<SocketAddr>, String>,
    /// How long the resolver took.
    pub resolving: Duration,
    /// The addresses of this host.
    pub own: Vec<IpAddr>,
    /// The result of each attempt, by address.
    pub tried: Vec<(SocketAddr, Result<Answer, Failure>)>,
    /// Whether the server says that its stores have no ports.
    pub relays_only: bool,
    /// Processes of this host that try to reach another port of the store's host, and get no answer.
    pub dialing: Vec<(String, SocketAddr)>,
}

/// A store that answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The time of one round trip.
    pub latency: Duration,
    /// Whether it knows PING, as PyTorch from 2.5 on.
    pub pings: bool,
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The step.
    pub step: Step,
    /// The error in words.
    pub text: String,
}

/// A slower name server delays every look-up, and there are many.
const SLOW_NAME: Duration = Duration::from_secs(1);
/// A slower round trip makes thousands of successive requests slow.
const SLOW_ANSWER: Duration = Duration::from_millis(100);

/// The message about a server with `--listen none`.
pub const RELAYS_ONLY: &str = "the server's stores have no ports (serve --listen none)";
/// What helps a client of such a server.
pub const RELAYS_ONLY_REMEDY: &str = "start a relay on this node (rallypoint relay --server \
                                             HOST:29501) and name 127.0.0.1:29500, or start the command with \
                                             rallypoint run, which does both";

/// The checks of the store's name.
pub fn check_name(facts: &NetworkFacts) -> Vec<Check> {
    let addresses = facts.resolved.as_ref().ok().map(|addrs| one_address(facts, addrs));
    std::iter::once(name_resolves(facts)).chain(addresses).collect()
}

/// Every check of the way to the store.
pub fn check_network(facts: &NetworkFacts) -> Vec<Check> {
    let mut checks = check_name(facts);
    if facts.resolved.is_ok() {
        checks.push(port_open(facts));
        checks.extend(store_answers(facts));
        checks.extend(latency(facts));
    }
    checks.extend(dialing(facts));
    checks
}

/// Processes that save checkpoints dial such a port if nobody hosts a store for them at `MASTER_ADDR`.
fn dialing(facts: &NetworkFacts) -> Option<Check> {
    let (who, addr) = facts.dialing.first()?;
    let more = match facts.dialing.len().saturating_sub(1) {
        0 => String::new(),
        more => format!(", and {more} more do so"),
    };
    Some(Check::warn(
        "dials-other-port",
        format!(
            "{who} tries to connect to {addr}, and nothing answers there{more}: that is the store's host, \
             and no rank's"
        ),
        "if it is of dcp.async_save in processes: DCP_USE_PREFIX_STORE=1 on every rank (torch 2.10 or \
         later); `rallypoint run` sets it. Else look what hosts a store on that port, and name its own host",
    ))
}

fn name_resolves(facts: &NetworkFacts) -> Check {
    const ID: &str = "name-resolves";
    let host = facts.endpoint.host();
    match &facts.resolved {
        Err(reason) => Check::fail(
            ID,
            format!("`{host}` has no address: {reason}"),
            "late names come by themselves (`rallypoint wait`); if it stays so, compare the Service's \
             selector with the pods' labels, set publishNotReadyAddresses: true on a headless Service, and \
             check name and namespace",
        ),
        Ok(_) if facts.resolving > SLOW_NAME => Check::warn(
            ID,
            format!("the name server took {} for `{host}`", Elapsed(facts.resolving)),
            "each process asks more than once; look at the cluster's DNS, and at ndots in the pod's \
             dnsConfig",
        ),
        Ok(addrs) => Check::pass(ID, format!("`{host}` is {}", list(addrs))),
    }
}

fn list(addrs: &[SocketAddr]) -> String {
    let shown: Vec<String> = addrs.iter().take(4).map(|addr| addr.ip().to_string()).collect();
    let more =
        if addrs.len() > 4 { format!(" and {} more", addrs.len().saturating_sub(4)) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

fn one_address(facts: &NetworkFacts, addrs: &[SocketAddr]) -> Check {
    const ID: &str = "one-address";
    const REMEDY: &str = "name one pod (`train-0.train`), or a ClusterIP Service of the rallypoint server \
                          alone, and use is_host=0 with c10d";
    let v4 = addrs.iter().filter(|addr| addr.is_ipv4()).count();
    // One address of each family means one host.
    if v4 <= 1 && addrs.len().saturating_sub(v4) <= 1 {
        return Check::pass(ID, "the name means one host");
    }
    let (host, all) = (facts.endpoint.host(), list(addrs));
    let own = addrs.iter().find(|addr| facts.own.contains(&addr.ip()));
    let stores = facts.tried.iter().filter(|(_, outcome)| outcome.is_ok()).count();
    if let Some(own) = own {
        let evidence = format!(
            "`{host}` is {all}, and {} is this host: a headless Service over all pods. Each pod finds itself \
             behind the name and hosts a store of its own, and the job falls apart",
            own.ip()
        );
        return Check::fail(ID, evidence, REMEDY);
    }
    if stores > 1 {
        return Check::fail(
            ID,
            format!("`{host}` is {all}, and a store answers on {stores} of them"),
            REMEDY,
        );
    }
    Check::warn(ID, format!("`{host}` is {all}; if these are all pods of the job, it may fall apart"), REMEDY)
}

fn port_open(facts: &NetworkFacts) -> Check {
    const ID: &str = "port-open";
    let is_open = |outcome: &Result<Answer, Failure>| {
        outcome.as_ref().err().is_none_or(|failure| failure.step > Step::Connect)
    };
    if let Some((addr, _)) = facts.tried.iter().find(|(_, outcome)| is_open(outcome)) {
        return Check::pass(ID, format!("{addr} takes connections"));
    }
    if facts.relays_only {
        return Check::fail(ID, RELAYS_ONLY, RELAYS_ONLY_REMEDY);
    }
    let why = facts.tried.iter().find_map(|(_, outcome)| outcome.as_ref().err());
    let why = why.map_or_else(|| "no address was tried".to_owned(), |failure| failure.text.clone());
    Check::fail(ID, why, "start the server, or open port 29500 from this pod in the NetworkPolicy")
}

fn store_answers(facts: &NetworkFacts) -> Option<Check> {
    const ID: &str = "store-answers";
    if let Some((addr, Ok(answer))) = facts.tried.iter().find(|(_, outcome)| outcome.is_ok()) {
        let dialect = if answer.pings { "PyTorch 2.5 or later" } else { "PyTorch 2.2 to 2.4" };
        return Some(Check::pass(ID, format!("a TCPStore answers on {addr}, in the dialect of {dialect}")));
    }
    let failed = facts.tried.iter().filter_map(|(_, outcome)| outcome.as_ref().err());
    let failure = failed.filter(|failure| failure.step > Step::Connect).max_by_key(|failure| failure.step)?;
    Some(Check::fail(
        ID,
        failure.text.clone(),
        "the port is open, but no TCPStore is behind it: check the port (29500, not 29501), and exclude it \
         from a service mesh (traffic.sidecar.istio.io/excludeInboundPorts and excludeOutboundPorts)",
    ))
}

fn latency(facts: &NetworkFacts) -> Option<Check> {
    const ID: &str = "latency";
    let answer = facts.tried.iter().find_map(|(_, outcome)| outcome.as_ref().ok())?;
    let evidence = format!("one round trip takes {:.1} ms", answer.latency.as_secs_f64() * 1000.0);
    Some(if answer.latency > SLOW_ANSWER {
        Check::warn(
            ID,
            evidence,
            "a store call is one round trip; place the server nearer, or look for packet loss",
        )
    } else {
        Check::pass(ID, evidence)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;

    fn addr(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 29500))
    }

    #[expect(clippy::unnecessary_wraps, reason = "an outcome beside `fails`")]
    fn answers(millis: u64) -> Result<Answer, Failure> {
        Ok(Answer { latency: Duration::from_millis(millis), pings: true })
    }

    fn fails(step: Step, text: &str) -> Result<Answer, Failure> {
        Err(Failure { step, text: text.into() })
    }

    fn facts(tried: Vec<(SocketAddr, Result<Answer, Failure>)>) -> NetworkFacts {
        NetworkFacts {
            relays_only: false,
            dialing: Vec::new(),
            endpoint: Endpoint::new("train", 29500).expect("a name"),
            resolved: Ok(tried.iter().map(|(addr, _)| *addr).collect()),
            resolving: Duration::from_millis(3),
            own: vec![addr(9).ip()],
            tried,
        }
    }

    #[test]
    fn each_check_of_the_way_can_pass_and_fail() {
        let late = NetworkFacts { resolved: Err("no such name".into()), ..facts(Vec::new()) };
        let slow = NetworkFacts { resolving: Duration::from_secs(5), ..facts(vec![(addr(1), answers(1))]) };
        let refused = || fails(Step::Connect, "refused");
        let other_port = SocketAddr::new(addr(1).ip(), 41233);
        let dialing = vec![("python (pid 7)".into(), other_port)];
        let dials = NetworkFacts { dialing, ..facts(vec![(addr(1), answers(1))]) };
        #[rustfmt::skip]
        let rows: [(&str, NetworkFacts, Verdict, &str); 15] = [
            ("dials-other-port", dials, Verdict::Warn, "python (pid 7) tries to connect to 10.0.0.1:41233"),
            ("name-resolves", late, Verdict::Fail, "no such name"),
            ("name-resolves", slow, Verdict::Warn, "took 5 s"),
            ("name-resolves", facts(vec![(addr(1), answers(1))]), Verdict::Pass, "10.0.0.1"),
            ("one-address", facts(vec![(addr(1), answers(1)),
                (addr(9), refused())]), Verdict::Fail, "10.0.0.9 is this host"),
            ("one-address", facts(vec![(addr(1), answers(1)),
                (addr(2), answers(1))]), Verdict::Fail, "2 of them"),
            ("one-address", facts(vec![(addr(1), answers(1)),
                (addr(2), refused())]), Verdict::Warn, "10.0.0.1, 10.0.0.2"),
            ("one-address", facts(vec![(addr(9), answers(1))]), Verdict::Pass, "one host"),
            ("port-open", facts(vec![(addr(1), refused())]), Verdict::Fail, "refused"),
            ("port-open", facts(vec![(addr(1), fails(Step::Hello, "HTTP"))]), Verdict::Pass,
                "takes connections"),
            ("store-answers", facts(vec![(addr(1), fails(Step::Hello, "an HTTP server"))]), Verdict::Fail,
                "service mesh"),
            ("store-answers", facts(vec![(addr(1), fails(Step::Ping, "silent"))]), Verdict::Fail, "silent"),
            ("store-answers", facts(vec![(addr(1), answers(1))]), Verdict::Pass, "2.5 or later"),
            ("latency", facts(vec![(addr(1), answers(250))]), Verdict::Warn, "250.0 ms"),
            ("latency", facts(vec![(addr(1), answers(1))]), Verdict::Pass, "1.0 ms"),
        ];
        for (id, facts, verdict, word) in rows {
            let checks = check_network(&facts);
            let check =
                checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("{id}: {checks:?}"));
            assert_eq!(check.verdict, verdict, "{check}");
            assert!(check.to_string().contains(word), "{check}");
        }
    }
}
