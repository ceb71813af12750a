//! `/api/v1/runs/{run_id}/announce`: the gate where pods wait for each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::access::PeerIp;
use super::problem::Problem;
use crate::gather::{Announcement, Refused, Standing};
use crate::launch::Nodes;
use crate::server::Server;

/// The longest poll; shorter than any proxy's patience, and than the server's own for a request.
pub const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// Between two looks at one run.
const LEAST_WAIT: Duration = Duration::from_millis(100);

/// What a pod sends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Announce {
    pod: String,
    #[serde(default)]
    uid: String,
    node_rank: Option<u32>,
    /// `N` or `MIN:MAX`.
    nodes: String,
    torch: Option<String>,
    /// How long the answer may take if others are missing.
    #[serde(default)]
    wait_seconds: f64,
}

/// How things stand for the pod that asked.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    run_id: String,
    /// `go`, `gathering` or `parked`.
    state: &'static str,
    expected: u32,
    arrived: usize,
    missing: Vec<String>,
    waited_seconds: f64,
    /// The sentence for people.
    detail: String,
    /// What does not keep anybody, but will hurt.
    warning: Option<String>,
}

pub(super) async fn announce(
    State(server): State<Arc<Server>>,
    PeerIp(address): PeerIp,
    Path(run_id): Path<String>,
    body: Result<Json<Announce>, JsonRejection>,
) -> Result<(StatusCode, Json<Answer>), Problem> {
    if server.is_idle() {
        let why = "this pod has no store (--only-on-index), so nobody gathers here: announce to the pod that has it, by its own name";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why.to_owned()));
    }
    let Json(sent) = body.map_err(|error| {
        let form = "send {\"pod\": …, \"uid\": …, \"node_rank\": …, \"nodes\": \"N\", \"wait_seconds\": …}";
        Problem::new(error.status(), format!("{}; {form}", error.body_text()))
    })?;
    let nodes = Nodes::parse(&sent.nodes).ok_or_else(|| {
        Problem::new(StatusCode::BAD_REQUEST, format!("nodes is `{}`; write N or MIN:MAX", sent.nodes))
    })?;
    let wait = Duration::try_from_secs_f64(sent.wait_seconds).unwrap_or_default().min(LONGEST_WAIT);
    let said = Announcement {
        pod: sent.pod,
        uid: sent.uid,
        node_rank: sent.node_rank,
        nodes,
        address,
        torch: sent.torch,
    };
    let deadline = tokio::time::Instant::now() + wait;
    let mut bell = server.gathering().bell();
    loop {
        // Seen before asking: a gate that opens in between rings again.
        bell.borrow_and_update();
        let standing = server.announce(&run_id, said.clone()).map_err(|refused| refusal(&refused))?;
        let waits = !matches!(standing, Standing::Go(_));
        let until = match &standing {
            // Nobody rings when the holder of a rank is gone.
            Standing::Parked { silent, .. } => {
                let left = server.gathering().gates().pod_timeout().saturating_sub(*silent);
                deadline.min(tokio::time::Instant::now() + left.max(LEAST_WAIT))
            }
            _ => deadline,
        };
        if waits {
            let rung = tokio::time::timeout_at(until, bell.changed()).await.is_ok();
            if rung || until < deadline {
                continue;
            }
        }
        let status = if waits { StatusCode::ACCEPTED } else { StatusCode::OK };
        return Ok((status, Json(answer(&server, &run_id, nodes, standing))));
    }
}

fn refusal(refused: &Refused) -> Problem {
    let status = match refused {
        Refused::Disagree { .. } => StatusCode::CONFLICT,
        Refused::Rank { .. } | Refused::Text(_) => StatusCode::BAD_REQUEST,
        Refused::TooManyPods(_) | Refused::TooManyRuns => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem::new(status, refused.to_string())
}

fn answer(server: &Server, run_id: &str, nodes: Nodes, standing: Standing) -> Answer {
    let versions = server.gathering().differing_versions(run_id);
    let warning = versions.map(|versions| format!("the pods have different versions of PyTorch: {versions}"));
    let answer = |state, arrived, waited: Duration, detail| Answer {
        run_id: run_id.to_owned(),
        state,
        expected: nodes.min,
        arrived,
        missing: Vec::new(),
        waited_seconds: waited.as_secs_f64(),
        detail,
        warning: warning.clone(),
    };
    match standing {
        Standing::Go(opened) => {
            let detail = format!("all {} pods are there", opened.pods);
            answer("go", opened.pods, opened.after, detail)
        }
        Standing::Gathering(progress) => Answer {
            missing: progress.missing.clone(),
            ..answer("gathering", progress.arrived, progress.waited, progress.to_string())
        },
        Standing::Parked { node_rank, holder, address, .. } => {
            let detail = format!(
                "node rank {node_rank} is held by pod `{holder}` at {address}, which lives; this pod waits until that one \
                 is gone. If both are meant to run, one has the wrong rank"
            );
            answer("parked", 0, Duration::ZERO, detail)
        }
    }
}

/// A run's announced pods.
#[derive(Debug, Serialize)]
pub(super) struct Announced {
    run_id: String,
    /// `N` or `MIN:MAX`.
    nodes: Option<String>,
    /// Whether the pods were let go.
    open: bool,
    pods: Vec<PodEntry>,
    /// Pods by their version of PyTorch.
    torch_versions: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Serialize)]
struct PodEntry {
    pod: String,
    uid: String,
    node_rank: Option<u32>,
    address: String,
    torch: Option<String>,
    silent_seconds: f64,
    live: bool,
}

/// Who announced himself, without announcing anybody.
pub(super) async fn announced(
    State(server): State<Arc<Server>>,
    Path(run_id): Path<String>,
) -> Result<Json<Announced>, Problem> {
    let now = server.now();
    let gates = server.gathering().gates();
    let Some(run) = gates.run(&run_id) else {
        let detail = format!("no pod announced itself for run `{run_id}`, or all of them are gone");
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    let entry = |member: &crate::gather::Member| {
        let silent = now.since(member.seen);
        PodEntry {
            pod: member.said.pod.clone(),
            uid: member.said.uid.clone(),
            node_rank: member.said.node_rank,
            address: member.said.address.to_string(),
            torch: member.said.torch.clone(),
            silent_seconds: silent.as_secs_f64(),
            live: silent < gates.pod_timeout(),
        }
    };
    Ok(Json(Announced {
        nodes: run.nodes().map(|nodes| nodes.to_string()),
        open: run.opened().is_some(),
        pods: run.members().map(entry).collect(),
        torch_versions: run.versions().0,
        run_id,
    }))
}
