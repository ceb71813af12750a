//! The server: the answers of the admin port about itself and about the run, and the leftovers of an earlier
//! run in the store.

use std::collections::BTreeMap;

use rallypoint_node::endpoint::Endpoint;

/// The answers of the admin port and the store.
#[derive(Debug, Clone, Default)]
pub struct ServerFacts {
    /// The admin port.
    pub admin: String,
    /// Why the admin port did not answer.
    pub unreachable: Option<String>,
    /// Whether the server reports that it is ready.
    pub ready: bool,
    /// Why an answer of several packets did not come, although a small one did.
    pub large: Option<String>,
    /// The version in its metrics.
    pub version: Option<String>,
    /// Seconds by which the server's clock is ahead of this host's.
    pub clock_ahead: Option<i64>,
    /// The pods of the run by their version of PyTorch.
    pub torch_versions: BTreeMap<String, Vec<String>>,
    /// The run, if it has a name.
    pub run_id: Option<String>,
    /// Whether the store itself was asked.
    pub looked_into: bool,
    /// Whether torchrun closed the run, if the store has the run's state.
    pub run_closed: bool,
    /// Whether the store has addresses of an env:// or static job.
    pub has_addresses: bool,
    /// Connections to the store without this one, if the server reports them.
    pub others: Option<usize>,
    /// Keys in the store, if the server reports them.
    pub keys: usize,
    /// The ports of run stores, if the server reports them and they are on another host.
    pub run_stores: Option<RunStores>,
}

/// The ports of run stores, and one of them that was tried.
#[derive(Debug, Clone)]
pub struct RunStores {
    /// The port that was tried.
    pub tried: Endpoint,
    /// The first and the last port.
    pub ports: (u16, u16),
    /// Whether a store is open on the tried port.
    pub is_open: bool,
    /// Why packets do not reach it.
    pub blocked: Option<String>,
    /// Whether relays work without these ports.
    pub takes_relays: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::check_server;
    use crate::{Verdict, assert_found};

    #[test]
    fn each_check_of_the_server_can_pass_and_fail() {
        let good = || ServerFacts {
            admin: "http://rally:29501".into(),
            ready: true,
            version: Some(env!("CARGO_PKG_VERSION").into()),
            clock_ahead: Some(0),
            torch_versions: BTreeMap::from([("2.15.0".into(), vec!["t-0".into()])]),
            run_id: Some("job".into()),
            others: Some(0),
            ..ServerFacts::default()
        };
        let with = |change: &dyn Fn(&mut ServerFacts)| {
            let mut facts = good();
            change(&mut facts);
            facts
        };
        let second = |version: &'static str| {
            with(&move |facts| drop(facts.torch_versions.insert(version.into(), vec!["t-1".into()])))
        };
        let stores = |is_open, blocked: Option<&str>, takes_relays| {
            let tried = Endpoint::new("10.0.0.1", 29510).expect("an address");
            let blocked = blocked.map(str::to_owned);
            let stores = RunStores { tried, ports: (29510, 29599), is_open, blocked, takes_relays };
            with(&move |facts| facts.run_stores = Some(stores.clone()))
        };
        #[rustfmt::skip]
        let rows: [(&str, ServerFacts, Verdict, &str); 22] = [
            ("large-answers", with(&|f| f.large = Some("no answer within 5 s".into())), Verdict::Fail, "MTU"),
            ("run-store-ports", stores(true, None, true), Verdict::Pass, "is reached on 10.0.0.1:29510"),
            ("run-store-ports", stores(false, None, true), Verdict::Pass, "closed now"),
            ("run-store-ports", stores(false, Some("no answer"), true), Verdict::Warn,
                "a relay on this node"),
            ("run-store-ports", stores(true, Some("no answer"), false), Verdict::Fail, "open 29510-29599"),
            ("admin-port", good(), Verdict::Pass, "is ready"),
            ("admin-port", with(&|f| f.unreachable = Some("refused".into())), Verdict::Warn, "NetworkPolicy"),
            ("admin-port", with(&|f| f.ready = false), Verdict::Warn, "starting or stopping"),
            ("server-version", good(), Verdict::Pass, ""),
            ("server-version", with(&|f| f.version = Some("9.9.0".into())), Verdict::Warn, "9.9.0"),
            ("server-version", with(&|f| f.version = None), Verdict::Warn, "another program"),
            ("clock-skew", good(), Verdict::Pass, ""),
            ("clock-skew", with(&|f| f.clock_ahead = Some(40)), Verdict::Warn, "40 s behind"),
            ("torch-versions", good(), Verdict::Pass, "2.15.0"),
            ("torch-versions", second("2.15.1"), Verdict::Warn, "2.15.1 (t-1)"),
            ("torch-versions", second("2.4.1"), Verdict::Fail, "digest"),
            ("stale-keys", good(), Verdict::Pass, ""),
            ("stale-keys", with(&|f| f.run_closed = true), Verdict::Fail, "RendezvousClosedError"),
            ("stale-keys", with(&|f| f.has_addresses = true), Verdict::Fail, "dead ports"),
            ("stale-keys", with(&|f| { f.has_addresses = true; f.others = Some(3); }), Verdict::Warn,
                "one job at a time"),
            ("stale-keys", with(&|f| f.keys = 3), Verdict::Warn, "--one-job on"),
            ("stale-keys", with(&|f| { f.keys = 3; f.others = Some(1); }), Verdict::Pass, ""),
        ];
        for (id, facts, verdict, word) in rows {
            assert_found(&check_server(&facts), id, verdict, word);
        }
    }
}
