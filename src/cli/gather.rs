//! A pod announces itself and waits until all pods of its run are there.

use std::time::Duration;

use anyhow::bail;
use serde_json::json;
use tokio::time::Instant;

use super::news::{News, Reason};
use super::poll::unique_token;
use super::reach::several_stores;
use super::terminal::say as say_line;
use rallypoint_api::{
    Announce, AnnounceAnswer, AnnounceState, MAX_ANNOUNCE_WAIT, OpenStore, PeerDuration, StoreAddress,
};
use rallypoint_node::client::http::{self, AdminUrl};
use rallypoint_node::client::{Endpoint, mistaken};
use rallypoint_node::launch::LaunchEnv;
use rallypoint_protocol::ids::Elapsed;

/// The first announcement waits only this long, so that the pod soon reports what it waits for, or that it is
/// parked.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long an answer may take beyond the requested wait.
const GRACE: Duration = Duration::from_secs(10);
/// The shortest useful time limit of a request.
const LEAST: Duration = Duration::from_millis(250);

/// The announcement of a pod.
#[derive(Debug)]
pub(super) struct AnnouncePayload {
    pub(super) run_id: String,
    said: Announce,
}

/// Time limits for retries.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetryPolicy {
    /// For everything.
    pub(super) whole: Duration,
    /// Until the first answer of the server.
    pub(super) first_answer: Duration,
    /// The pause between two failed attempts.
    pub(super) pause: Duration,
}

impl RetryPolicy {
    /// The time that is left after `waited`.
    fn left(&self, waited: Duration, has_answered: bool) -> Duration {
        let whole = if has_answered { self.whole } else { self.whole.min(self.first_answer) };
        whole.saturating_sub(waited)
    }
}

/// The result of a gathering.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) waited: Duration,
    pub(super) outcome: Result<Go, Reason>,
}

/// The permission to start.
#[derive(Debug)]
pub(super) struct Go {
    pub(super) detail: String,
    /// The run's own store, if the pod asked for it.
    pub(super) store: Option<Endpoint>,
}

impl AnnouncePayload {
    /// The announcement of this pod. With `restart_finished` it may start a finished run again. The error
    /// names a missing value.
    pub(super) fn of(
        launch: &LaunchEnv,
        torch: Option<String>,
        restart_finished: bool,
    ) -> Result<Self, String> {
        let run_id =
            launch.run_id_or_store().ok_or("nothing names the run; set --run-id (RALLYPOINT_RUN_ID)")?;
        let nodes = launch
            .nodes
            .as_ref()
            .ok_or("nothing says how many nodes there are; set --nodes (RALLYPOINT_NODES)")?;
        let pod = Some(launch.pod.name.clone()).filter(|name| !name.is_empty());
        let said = Announce {
            nodes: nodes.value.to_string(),
            node_rank: launch.node_rank.as_ref().map(|rank| rank.value),
            pod: pod.ok_or("this host has no name; set POD_NAME")?,
            // Without a UID, this token distinguishes the process from its successor, and from another one on
            // this host.
            uid: launch.pod.uid.clone().unwrap_or_else(unique_token),
            ip: launch.pod.address.as_ref().and_then(|address| address.parse().ok()),
            torch,
            world_size: launch.world_size.as_ref().map(|size| size.value),
            restart_finished,
            store: false,
            wait_seconds: PeerDuration::default(),
        };
        Ok(Self { run_id, said })
    }

    /// Also asks for the run's own store.
    pub(super) fn with_store(mut self) -> Self {
        self.said.store = true;
        self
    }

    fn body(&self, wait: Duration) -> serde_json::Value {
        json!(Announce { wait_seconds: PeerDuration::at_most(wait), ..self.said.clone() })
    }

    /// Reads the permission from the answer. If the pod asked for a store, the answer must name it: on
    /// another store than the other pods', the job would hang.
    fn go(&self, answer: AnnounceAnswer) -> Result<Go, Reason> {
        let store = answer.store.and_then(|store| Endpoint::new(&store.host, store.port).ok());
        if self.said.store && store.is_none() {
            return Err(Reason {
                step: "refused",
                text: "the answer names no store of the run's own".into(),
            });
        }
        Ok(Go { detail: answer.detail, store })
    }
}

impl Gathered {
    /// The result for scripts.
    pub(super) fn to_json(&self, endpoint: &Endpoint) -> serde_json::Value {
        let (endpoint, waited) = (endpoint.to_string(), self.waited.as_secs_f64());
        match &self.outcome {
            Ok(Go { detail, .. }) => {
                json!({"ready": true, "endpoint": endpoint, "detail": detail, "waited_seconds": waited})
            }
            Err(reason) => json!({
                "ready": false, "endpoint": endpoint, "step": reason.step, "reason": reason.text,
                "waited_seconds": waited,
            }),
        }
    }

    /// Logs the result.
    pub(super) fn finish(self, payload: &AnnouncePayload) -> anyhow::Result<Go> {
        match self.outcome {
            Ok(go) => {
                say_line(format_args!(
                    "run `{}`: {} after {}",
                    payload.run_id,
                    go.detail,
                    Elapsed(self.waited)
                ));
                Ok(go)
            }
            Err(reason) => {
                bail!("run `{}`: gave up after {}: {}", payload.run_id, Elapsed(self.waited), reason.text)
            }
        }
    }
}

/// Announces the pod until the gate opens. Refuses if the nodes would meet on different stores: the first pod
/// sees only one store behind the name, so it checks again while it waits.
pub(super) async fn gather(
    store: &Endpoint,
    admin: &AdminUrl,
    payload: &AnnouncePayload,
    patience: RetryPolicy,
    say: &mut impl FnMut(String),
) -> Gathered {
    let started = Instant::now();
    let refused = |reason| Gathered { waited: started.elapsed(), outcome: Err(reason) };
    if let Some(reason) = several_stores(store).await {
        return refused(reason);
    }
    tokio::select! {
        gathered = announce(admin, payload, patience, say) => gathered,
        reason = until_several_stores(store) => refused(reason),
    }
}

/// Checks at growing intervals, as hundreds of pods may wait.
async fn until_several_stores(store: &Endpoint) -> Reason {
    const SELDOM: Duration = Duration::from_secs(30);
    let mut pause = Duration::from_secs(1);
    loop {
        tokio::time::sleep(pause).await;
        if let Some(reason) = several_stores(store).await {
            return reason;
        }
        pause = SELDOM.min(pause.saturating_mul(2));
    }
}

/// Announces the pod again and again until the gate opens. It retries if the server does not answer, but not
/// if the server refuses.
async fn announce(
    admin: &AdminUrl,
    payload: &AnnouncePayload,
    patience: RetryPolicy,
    say: &mut impl FnMut(String),
) -> Gathered {
    let started = Instant::now();
    let path = format!("/api/v1/runs/{}/announce", http::path_part(&payload.run_id));
    let mut news = News::default();
    let mut warned = None;
    let (mut most, mut has_answered) = (FIRST_WAIT, false);
    loop {
        let left = patience.left(started.elapsed(), has_answered);
        let wait = std::mem::replace(&mut most, MAX_ANNOUNCE_WAIT).min(left);
        // A server that has not answered yet may be unreachable. The request must then end within the
        // remaining time.
        let grace = if has_answered { GRACE } else { GRACE.min(left.saturating_sub(wait).max(LEAST)) };
        let asked = http::post(admin, &path, &payload.body(wait), wait.saturating_add(grace)).await;
        let ended = |outcome| Gathered { waited: started.elapsed(), outcome };
        let unreachable = |text| Reason { step: "announce", text: format!("{admin}: {text}") };
        let is_known = has_answered;
        has_answered |= asked.is_ok();
        let (reason, at_once) = match asked {
            Ok(answer) if answer.is_success() => match serde_json::from_slice::<AnnounceAnswer>(&answer.body)
            {
                Ok(answer) => {
                    if answer.warning != warned {
                        answer.warning.iter().for_each(|warning| say(format!("warning: {warning}")));
                        warned.clone_from(&answer.warning);
                    }
                    if answer.state == AnnounceState::Go {
                        return ended(payload.go(answer));
                    }
                    (Reason { step: "gather", text: answer.detail }, true)
                }
                Err(error) => {
                    let text = format!("the answer does not come from rallypoint: {error}");
                    return ended(Err(unreachable(text)));
                }
            },
            Ok(answer) if is_passing(&answer) => (
                Reason { step: "busy", text: format!("{admin}: {} ({})", answer.text(), answer.status) },
                false,
            ),
            Ok(answer) => return ended(Err(Reason { step: "refused", text: answer.text() })),
            Err(error) if is_known => (unreachable(error.of_known_port()), false),
            Err(error) => match mistaken::never_an_admin_port(admin, &error).await {
                Some(last_word) => return ended(Err(unreachable(last_word))),
                None => (unreachable(error.to_string()), false),
            },
        };
        let waited = started.elapsed();
        let left = patience.left(waited, has_answered);
        if left.is_zero() {
            return ended(Err(reason));
        }
        if let Some(line) = news.line(&reason, waited, left) {
            say(line);
        }
        if !at_once {
            tokio::time::sleep(patience.pause.min(left)).await;
        }
    }
}

/// The run's own store, without a wait for other pods. It retries until the time is over: on another store,
/// the pod would leave the others waiting.
pub(super) async fn own_store(
    admin: &AdminUrl,
    run_id: &str,
    patience: RetryPolicy,
    say: &mut impl FnMut(String),
) -> anyhow::Result<Endpoint> {
    let started = Instant::now();
    let mut news = News::default();
    let mut has_answered = false;
    loop {
        let left = patience.left(started.elapsed(), has_answered);
        let limit = GRACE.min(left.max(LEAST));
        let asked =
            http::post(admin, "/api/v1/stores", &OpenStore { run_id: run_id.to_owned() }, limit).await;
        let is_known = has_answered;
        has_answered |= asked.is_ok();
        let text = match asked {
            Ok(answer) if answer.is_success() => {
                let opened = serde_json::from_slice::<StoreAddress>(&answer.body).ok();
                match opened.and_then(|opened| Endpoint::new(&opened.host, opened.port).ok()) {
                    Some(endpoint) => return Ok(endpoint),
                    None => "the answer names no store".to_owned(),
                }
            }
            Ok(answer) if is_passing(&answer) => answer.text(),
            Ok(answer) => bail!("no store of its own for run `{run_id}`: {admin}: {}", answer.text()),
            Err(error) if is_known => error.of_known_port(),
            Err(error) => match mistaken::never_an_admin_port(admin, &error).await {
                Some(last_word) => bail!("no store of its own for run `{run_id}`: {last_word}"),
                None => error.to_string(),
            },
        };
        let waited = started.elapsed();
        let left = patience.left(waited, has_answered);
        if left.is_zero() {
            bail!(
                "no store of its own for run `{run_id}` after {}: {admin}: {text}; --own-store off, on every \
                 node, uses the main one",
                Elapsed(waited)
            );
        }
        let reason = Reason {
            step: "store",
            text: format!("no store of its own for run `{run_id}` yet: {admin}: {text}"),
        };
        if let Some(line) = news.line(&reason, waited, left) {
            say(line);
        }
        tokio::time::sleep(patience.pause.min(left)).await;
    }
}

/// Whether to ask again: the server is busy, or about to stop.
fn is_passing(answer: &http::Answer) -> bool {
    answer.status >= 500 || answer.status == 408
}
