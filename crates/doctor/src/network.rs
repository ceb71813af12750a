//! The way to the store: the addresses of its name, the port, and the server that answers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rallypoint_node::client::Step;
use rallypoint_node::endpoint::Endpoint;

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
    /// Whether several nodes are to meet at the endpoint.
    pub several: bool,
    /// Whether a name that nobody has resolves to these addresses.
    pub any_name: bool,
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

/// The message about a server with `--listen none`.
pub const RELAYS_ONLY: &str = "the server's stores have no ports (serve --listen none)";
/// What helps a client of such a server.
pub const RELAYS_ONLY_REMEDY: &str = "start a relay on this node (rallypoint relay --server \
                                             HOST:29501) and name 127.0.0.1:29500, or start the command with \
                                             rallypoint run, which does both";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::check_network;
    use crate::{Verdict, assert_found};

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
            several: true,
            any_name: false,
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
        let any = NetworkFacts { any_name: true, ..facts(vec![(addr(1), answers(1))]) };
        let own = Endpoint::new("127.0.0.1", 29500).expect("an address");
        let loopback = NetworkFacts { endpoint: own.clone(), ..facts(vec![(addr(1), refused())]) };
        let relayed = NetworkFacts { endpoint: own, ..facts(vec![(addr(1), answers(1))]) };
        assert!(!check_network(&relayed).iter().any(|check| check.id == "loopback-endpoint"), "a relay");
        let of_none = Endpoint::new("0.0.0.0", 29500).expect("an address");
        let of_none = NetworkFacts { endpoint: of_none, ..facts(vec![(addr(1), answers(1))]) };
        let v6 = SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 1], 29500));
        let other_port = SocketAddr::new(addr(1).ip(), 41233);
        let dialing = vec![("python (pid 7)".into(), other_port)];
        let dials = NetworkFacts { dialing, ..facts(vec![(addr(1), answers(1))]) };
        #[rustfmt::skip]
        let rows: [(&str, NetworkFacts, Verdict, &str); 19] = [
            ("loopback-endpoint", loopback, Verdict::Fail, "127.0.0.1:29500"),
            ("loopback-endpoint", of_none, Verdict::Fail, "0.0.0.0:29500 is each node itself"),
            ("port-open", facts(vec![(v6, refused())]), Verdict::Fail, "no IPv6"),
            ("name-resolves", any, Verdict::Fail, "/etc/resolv.conf"),
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
            assert_found(&check_network(&facts), id, verdict, word);
        }
    }
}
