//! The server: the answers of the admin port about itself and about the run, and the leftovers of an earlier
//! run in the store.

use std::collections::BTreeMap;

use super::Check;
use rallypoint_node::endpoint::Endpoint;
use rallypoint_protocol::ids::counted;

/// The answers of the admin port and the store.
#[derive(Debug, Clone, Default)]
pub struct ServerFacts {
    /// The admin port.
    pub admin: String,
    /// Why the admin port did not answer.
    pub unreachable: Option<String>,
    /// Whether the server reports that it is ready.
    pub ready: bool,
    /// The version in its metrics.
    pub version: Option<String>,
    /// Seconds by which the server's clock is ahead of this host's.
    pub clock_ahead: Option<i64>,
    /// The pods of the run by their version of PyTorch.
    pub torch_versions: BTreeMap<String, Vec<String>>,
    /// The run, if it has a name.
    pub run_id: Option<String>,
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

/// `Date` has whole seconds, and the answer needed some time.
const CLOCK_TOLERANCE: i64 = 3;

/// Every check of the server.
pub fn check_server(facts: &ServerFacts) -> Vec<Check> {
    let mut checks = vec![admin(facts)];
    if facts.unreachable.is_none() {
        checks.push(version(facts));
        checks.extend(clock(facts));
        checks.extend(torch_versions(facts));
        checks.extend(facts.run_stores.as_ref().map(run_stores));
    }
    checks.push(stale_keys(facts));
    checks
}

fn admin(facts: &ServerFacts) -> Check {
    const ID: &str = "admin-port";
    match &facts.unreachable {
        Some(why) => Check::warn(
            ID,
            format!("{}: {why}", facts.admin),
            "without the admin port pods cannot be gathered and runs get no store of their own; name it with \
             --admin, and open 29501 beside 29500 in the NetworkPolicy. If the store is PyTorch's own, there \
             is none",
        ),
        None if !facts.ready => Check::warn(
            ID,
            format!("{} says that the server is starting or stopping", facts.admin),
            "wait for it, or look at its log",
        ),
        None => Check::pass(ID, format!("{} is ready", facts.admin)),
    }
}

/// Checks the ports of run stores.
pub fn run_stores(stores: &RunStores) -> Check {
    const ID: &str = "run-store-ports";
    let RunStores { tried, ports: (first, last), .. } = stores;
    let Some(why) = &stores.blocked else {
        return Check::pass(
            ID,
            if stores.is_open {
                format!("the store of a run is reached on {tried}")
            } else {
                format!("{tried} is closed now, and says so at once, so a store of a run will be reached")
            },
        );
    };
    let evidence =
        format!("runs and rounds get their stores on ports {first}-{last} of {}: {why}", tried.host());
    let remedy = format!(
        "open {first}-{last} beside 29500 and 29501 from this pod, in the NetworkPolicy and in firewalls"
    );
    if stores.takes_relays {
        Check::warn(
            ID,
            evidence,
            format!("{remedy}; or use a relay on this node, which needs the admin port alone"),
        )
    } else {
        Check::fail(ID, evidence, remedy)
    }
}

fn version(facts: &ServerFacts) -> Check {
    const ID: &str = "server-version";
    let own = env!("CARGO_PKG_VERSION");
    // Releases with equal first two numbers do not differ in anything that matters here.
    let line = |version: &str| version.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
    match &facts.version {
        None => Check::warn(
            ID,
            "the admin port does not say which rallypoint it is",
            "is it another program's port?",
        ),
        Some(version) if line(version) != line(own) => Check::warn(
            ID,
            format!("the server is rallypoint {version}, this is {own}"),
            "use one version for server and pods",
        ),
        Some(version) => Check::pass(ID, format!("the server is rallypoint {version}")),
    }
}

fn clock(facts: &ServerFacts) -> Option<Check> {
    const ID: &str = "clock-skew";
    let ahead = facts.clock_ahead?;
    if ahead.abs() <= CLOCK_TOLERANCE {
        return Some(Check::pass(ID, "this host's clock agrees with the server's"));
    }
    let way = if ahead > 0 { "behind" } else { "ahead of" };
    Some(Check::warn(
        ID,
        format!("this host's clock is {} s {way} the server's", ahead.abs()),
        "torchrun's c10d backend compares the nodes' clocks to find dead ones (15 s); set them by NTP",
    ))
}

fn torch_versions(facts: &ServerFacts) -> Option<Check> {
    const ID: &str = "torch-versions";
    let versions = &facts.torch_versions;
    let line = |version: &str| version.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
    let first = versions.keys().next()?;
    if versions.len() == 1 {
        return Some(Check::pass(ID, format!("every announced pod has PyTorch {first}")));
    }
    let shown: Vec<String> =
        versions.iter().map(|(version, pods)| format!("{version} ({})", pods.join(", "))).collect();
    let evidence = format!("the announced pods have different PyTorch: {}", shown.join(", "));
    let remedy = "use one image for all pods, by its digest";
    Some(if versions.keys().all(|version| line(version) == line(first)) {
        Check::warn(ID, evidence, remedy)
    } else {
        Check::fail(ID, evidence, remedy)
    })
}

fn stale_keys(facts: &ServerFacts) -> Check {
    const ID: &str = "stale-keys";
    let run = facts.run_id.as_deref().unwrap_or("?");
    if facts.run_closed {
        return Check::fail(
            ID,
            format!(
                "run `{run}` is closed in the store: torchrun with this id ends at once with \
                 RendezvousClosedError"
            ),
            "use another id for each run (the Job's UID), or wait until the server forgets it (10 s after \
             its last connection)",
        );
    }
    match (facts.has_addresses, facts.others) {
        (true, Some(0)) => Check::fail(
            ID,
            "addresses of an earlier job are in the store and nobody is connected: a new job would connect \
             to dead ports",
            "rallypoint drops them within --reset-when-idle; PyTorch's own server keeps them: restart it, or \
             use rallypoint",
        ),
        (true, _) => Check::warn(
            ID,
            "addresses of a job are in the store: another job runs on it, or left them",
            "one job at a time on one store; `rallypoint run` gives each run its own",
        ),
        (false, Some(0)) if facts.keys > 0 => Check::warn(
            ID,
            format!(
                "{} in the store and nobody is connected: a job that comes again reads {}",
                counted(facts.keys as u64, "key is", "keys are"),
                if facts.keys == 1 { "it" } else { "them" }
            ),
            "if they are an earlier job's, and the store is for one job at a time, run the server with \
             --one-job on: it empties a store when its last connection has gone; `rallypoint ctl reset` does \
             so now",
        ),
        (false, _) => Check::pass(ID, "nothing of an earlier job is in the way"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;

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
        let rows: [(&str, ServerFacts, Verdict, &str); 21] = [
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
            let checks = check_server(&facts);
            let check =
                checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("{id}: {checks:?}"));
            assert_eq!(check.verdict, verdict, "{check}");
            assert!(check.to_string().contains(word), "{check}");
        }
    }
}
