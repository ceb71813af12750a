//! Reaches a server: tries its store or its admin port until it answers, and checks names with several
//! addresses.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::news::{News, Reason};
use rallypoint_doctor::{Check, Verdict, check_network, probe};
use rallypoint_node::client::http::{self, AdminUrl};
use rallypoint_node::client::{self, Client, ConnectError, Endpoint, Options, mistaken};
use rallypoint_node::launch::Meeting;
use rallypoint_server::clock::deadline_in;

/// The result of a wait.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) waited: Duration,
    /// The address that answered.
    pub(super) outcome: Result<SocketAddr, Reason>,
}

impl Ended {
    pub(super) fn to_json(&self, endpoint: impl Display) -> serde_json::Value {
        let (endpoint, waited) = (endpoint.to_string(), self.waited.as_secs_f64());
        match &self.outcome {
            Ok(addr) => json!({
                "ready": true, "endpoint": endpoint, "address": addr.to_string(), "waited_seconds": waited,
            }),
            Err(reason) => json!({
                "ready": false, "endpoint": endpoint, "step": reason.step, "reason": reason.text,
                "waited_seconds": waited,
            }),
        }
    }
}

/// The least time that makes an attempt worthwhile.
const WORTH_TRYING: Duration = Duration::from_millis(250);

/// The port to wait for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Port<'a> {
    Store(&'a Endpoint),
    Admin(&'a AdminUrl),
}

impl Display for Port<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(store) => store.fmt(f),
            Self::Admin(admin) => admin.fmt(f),
        }
    }
}

/// A failed attempt.
struct Failed {
    reason: Reason,
    /// Whether it ran into its time limit.
    is_late: bool,
    /// Whether further attempts are useless.
    is_final: bool,
}

/// Tries again and again, unless waiting does not help. `say` gets a line for people whenever there is news.
pub(super) async fn reach(
    port: Port<'_>,
    timeout: Duration,
    interval: Duration,
    say: &mut impl FnMut(String),
) -> Ended {
    let (started, deadline) = (Instant::now(), deadline_in(timeout));
    let mut news = News::default();
    let mut warned = Vec::new();
    loop {
        let left = timeout.saturating_sub(started.elapsed());
        let tried = match port {
            Port::Store(store) => try_store(store, deadline, &mut warned, say).await,
            Port::Admin(admin) => try_admin(admin, Options::default().step.min(left)).await,
        };
        let failed = match tried {
            Ok(addr) => return Ended { waited: started.elapsed(), outcome: Ok(addr) },
            Err(failed) => failed,
        };
        let mut reason = failed.reason;
        // An attempt that the end cut short says less than the attempt before it.
        let cut_short = left < Options::default().step && failed.is_late;
        if let (true, Some(last)) = (cut_short, &news.last) {
            reason = last.clone();
        }
        let (waited, left) = (started.elapsed(), timeout.saturating_sub(started.elapsed()));
        if failed.is_final {
            return Ended { waited, outcome: Err(reason) };
        }
        if left < WORTH_TRYING {
            tokio::time::sleep(left).await;
            return Ended { waited: started.elapsed(), outcome: Err(reason) };
        }
        if let Some(line) = news.line(&reason, waited, left) {
            say(line);
        }
        tokio::time::sleep(interval.min(left.saturating_sub(WORTH_TRYING)).max(Duration::from_millis(10)))
            .await;
    }
}

async fn try_store(
    store: &Endpoint,
    deadline: Instant,
    warned: &mut Vec<SocketAddr>,
    say: &mut impl FnMut(String),
) -> Result<SocketAddr, Failed> {
    let error = match attempt(store, deadline, warned, say).await {
        Ok(client) => return Ok(client.peer()),
        Err(error) => error,
    };
    let is_late = error.failures.iter().any(client::StepError::is_late);
    let last_word = mistaken::never_a_store(&error).await;
    let mut reason = Reason::of(&error);
    let is_final = last_word.is_some();
    reason.text = last_word.unwrap_or(reason.text);
    Err(Failed { reason, is_late, is_final })
}

/// One attempt at an admin port: is its server ready?
async fn try_admin(admin: &AdminUrl, step: Duration) -> Result<SocketAddr, Failed> {
    let failed = |text, is_late, is_final| {
        Err(Failed { reason: Reason { step: "admin", text: format!("{admin}: {text}") }, is_late, is_final })
    };
    let asked = match http::request(admin, "GET", "/readyz", step).await {
        Ok(answer) if answer.is_success() => admin.connect(step).await.map(|(_, addr)| addr),
        Ok(answer) => {
            return failed(format!("not ready: {} ({})", answer.text(), answer.status), false, false);
        }
        Err(error) => Err(error),
    };
    match asked {
        Ok(addr) => Ok(addr),
        Err(error) => match mistaken::never_an_admin_port(admin, &error).await {
            Some(last_word) => failed(last_word, false, true),
            None => failed(error.to_string(), matches!(error, http::HttpError::Late(_)), false),
        },
    }
}

/// Ends when the server says that its stores have no ports, so that nobody waits for one.
pub(super) async fn until_relays_only(admin: &AdminUrl) {
    const SELDOM: Duration = Duration::from_secs(10);
    let mut pause = WORTH_TRYING;
    loop {
        tokio::time::sleep(pause).await;
        if probe::relays_only(admin, Options::default().step).await {
            return;
        }
        pause = SELDOM.min(pause.saturating_mul(2));
    }
}

/// One attempt: tries all addresses, in turn.
async fn attempt(
    endpoint: &Endpoint,
    deadline: Instant,
    warned: &mut Vec<SocketAddr>,
    say: &mut impl FnMut(String),
) -> Result<Client, ConnectError> {
    let options = || {
        let options = Options::default();
        let left = deadline.saturating_duration_since(Instant::now());
        Options { step: options.step.min(left), ..options }
    };
    let failed = |failures| ConnectError { endpoint: endpoint.clone(), failures };
    let mut addrs = client::resolve(endpoint, options().step).await.map_err(|error| failed(vec![error]))?;
    addrs.sort_unstable();
    if *warned != addrs {
        if let Some(warning) = several(endpoint, &addrs) {
            say(warning);
        }
        warned.clone_from(&addrs);
    }
    let mut failures = Vec::new();
    for addr in addrs {
        if !failures.is_empty() && options().step < WORTH_TRYING {
            break;
        }
        match Client::connect_addr(addr, &options()).await {
            Ok(client) => return Ok(client),
            Err(error) => failures.push(error),
        }
    }
    Err(failed(failures))
}

/// The admin port: the given one, or the endpoint if that is an admin port, or the usual port beside the
/// store.
pub(super) fn admin_of(meeting: &Meeting, said: Option<&AdminUrl>) -> AdminUrl {
    let named = || match meeting {
        Meeting::Admin(admin) => AdminUrl::at(admin.clone()),
        Meeting::Store(store) => AdminUrl::beside(store),
    };
    said.cloned().unwrap_or_else(named)
}

/// The admin port beside a store that answered. If a name has several addresses, it is at the address that
/// answered: in other pods, a sidecar without a store may listen.
pub(super) async fn admin_beside(store: &Endpoint, answered: SocketAddr) -> AdminUrl {
    let addrs = client::resolve(store, Options::default().step).await;
    let one = Endpoint::new(&answered.ip().to_string(), answered.port()).ok();
    let one = one.filter(|_| addrs.is_ok_and(|addrs| addrs.len() > 1));
    AdminUrl::beside(one.as_ref().unwrap_or(store))
}

/// Why nodes cannot meet there: several stores answer behind the name, so the nodes would meet on different
/// ones. If only one of several addresses answers, connecting is only slower.
pub(super) async fn several_stores(store: &Endpoint) -> Option<Reason> {
    const STEP: Duration = Duration::from_secs(5);
    if client::resolve(store, STEP).await.map_or(0, |addrs| addrs.len()) < 2 {
        return None;
    }
    let (mut facts, _) = probe::probe_network(store, None, STEP).await;
    // With rallypoint no node hosts a store, so it does no harm here if the name includes this pod's own
    // address.
    facts.own.clear();
    let several = |check: &Check| check.id == "one-address" && check.verdict == Verdict::Fail;
    let check = check_network(&facts).into_iter().find(several)?;
    Some(Reason { step: "resolve", text: check.to_string() })
}

/// The warning about a name with several addresses. One address of each family means one host.
fn several(endpoint: &Endpoint, addrs: &[SocketAddr]) -> Option<String> {
    const SHOWN: usize = 4;
    let v4 = addrs.iter().filter(|addr| addr.is_ipv4()).count();
    if v4 <= 1 && addrs.len().saturating_sub(v4) <= 1 {
        return None;
    }
    let mut shown: Vec<String> = addrs.iter().take(SHOWN).map(|addr| addr.ip().to_string()).collect();
    if addrs.len() > SHOWN {
        shown.push("…".into());
    }
    Some(format!(
        "warning: `{}` has {} addresses ({}); if that is a headless Service over all pods, each pod may host \
         a store of its own and the job falls apart; name one pod, or a Service of the store alone",
        endpoint.host(),
        addrs.len(),
        shown.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_addresses_of_one_family_are_a_risk() {
        let endpoint = Endpoint::new("train", 29500).expect("a name");
        let addr = |text: &str| text.parse::<SocketAddr>().expect("an address");
        assert_eq!(several(&endpoint, &[addr("127.0.0.1:1"), addr("[::1]:1")]), None);
        let warning = several(&endpoint, &[addr("10.0.0.1:1"), addr("10.0.0.2:1")]).expect("a warning");
        assert!(warning.starts_with("warning: `train` has 2 addresses (10.0.0.1, 10.0.0.2); "), "{warning}");
    }
}
