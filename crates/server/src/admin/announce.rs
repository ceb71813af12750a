//! `/api/v1/runs/{run_id}/announce`: the start gate, where pods wait for each other.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};

use super::access::{LocalAddr, PeerIp, reaches_stores};
use super::body::Body;
use super::fields::{label, token};
use super::problem::Problem;
use super::target::{Named, RunPath};
use crate::{NotHeld, Server};
use rallypoint_api as api;
use rallypoint_protocol::ids::{Nodes, counted};
use rallypoint_rendezvous::gate::{Announcement, Gate, Member, PodRefusal, PodStanding};

/// Announces a pod at its run's start gate and waits for the others.
#[utoipa::path(
    post,
    path = "/api/v1/runs/{run_id}/announce",
    operation_id = "announce",
    params(RunPath),
    request_body(content = api::Announce, example = json!({
        "pod": "trainer-0", "uid": "5f2c", "node_rank": 0, "nodes": "1", "torch": "2.15.0", "wait_seconds": 0
    })),
    responses(
        (status = 200, description = "The pod may start.", body = api::AnnounceAnswer),
        (status = 202, description = "Not yet; ask again with the same body.", body = api::AnnounceAnswer)
    )
)]
pub(super) async fn announce(
    State(server): State<Arc<Server>>,
    PeerIp(address): PeerIp,
    local: LocalAddr,
    Named(run_id): Named<String>,
    headers: HeaderMap,
    Body(sent): Body<api::Announce>,
) -> Result<(StatusCode, Json<api::AnnounceAnswer>), Problem> {
    if server.is_idle() {
        let why = "this pod has no store (--only-on-index), so nobody gathers here: announce to the pod that \
                   has it, by its own name";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why.to_owned()));
    }
    if sent.store {
        reaches_stores(&server, &headers)?;
    }
    let run_id = super::fields::run_id(&run_id)?.to_string();
    let nodes = Nodes::parse(&sent.nodes)
        .ok_or_else(|| Problem::bad_request(format!("`nodes` is `{}`; write N or MIN:MAX", sent.nodes)))?;
    let wait = sent.wait_seconds.get().min(api::MAX_ANNOUNCE_WAIT);
    label("pod", &sent.pod)?;
    sent.torch.as_deref().map(|torch| label("torch", torch)).transpose()?;
    let said = Announcement {
        pod: sent.pod,
        uid: token("uid", sent.uid)?.into(),
        node_rank: sent.node_rank,
        nodes,
        address,
        ip: sent.ip,
        torch: sent.torch,
        world_size: sent.world_size,
        restarts: sent.restart_finished,
    };
    let standing = server.hold(&run_id, &said, wait).await.map_err(|why| match why {
        NotHeld::Stopping => Problem::stopping(why.to_string()),
        NotHeld::Refused(refused) => refusal(&refused),
    })?;
    let waits = !matches!(standing, PodStanding::Go(_));
    let status = if waits { StatusCode::ACCEPTED } else { StatusCode::OK };
    // The answer that opens the gate names one store to all pods, so no pod can go to another store.
    let store =
        if waits || !sent.store { None } else { Some(super::routes::store_of_run(&server, local, &run_id)?) };
    Ok((status, Json(api::AnnounceAnswer { store, ..answer(&server, &said, &run_id, standing) })))
}

fn refusal(refused: &PodRefusal) -> Problem {
    let (status, code) = match refused {
        PodRefusal::Disagree { .. } => (StatusCode::CONFLICT, "mismatch"),
        PodRefusal::Finished { .. } => (StatusCode::CONFLICT, "finished"),
        PodRefusal::Rank { .. } | PodRefusal::Text(_) => (StatusCode::BAD_REQUEST, "bad_request"),
        PodRefusal::NoMemory => (StatusCode::SERVICE_UNAVAILABLE, "no_memory"),
        PodRefusal::TooManyPods(_) | PodRefusal::TooManyRuns(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "too_many")
        }
    };
    Problem::new(status, refused.to_string()).with_code(code)
}

fn answer(server: &Server, said: &Announcement, run_id: &str, standing: PodStanding) -> api::AnnounceAnswer {
    let versions = server.gates().look().of(run_id).and_then(Gate::differing_versions);
    let warning = versions.map(|versions| format!("the pods have different versions of PyTorch: {versions}"));
    let answer = |state, arrived, waited: Duration, detail| api::AnnounceAnswer {
        run_id: run_id.to_owned(),
        state,
        expected: said.nodes.min,
        arrived,
        missing: Vec::new(),
        waited_seconds: waited.as_secs_f64(),
        detail,
        warning: warning.clone(),
        store: None,
    };
    match standing {
        PodStanding::Go(opened) => {
            let all = if opened.pods == 1 { "" } else { "all " };
            let detail = format!("{all}{}", counted(opened.pods, "pod is there", "pods are there"));
            answer(api::AnnounceState::Go, opened.pods, opened.after, detail)
        }
        PodStanding::Waiting(progress) => api::AnnounceAnswer {
            missing: progress.missing.clone(),
            ..answer(api::AnnounceState::Gathering, progress.arrived, progress.waited, progress.to_string())
        },
        PodStanding::Parked { node_rank, holder, address, .. } if holder == said.pod => {
            let detail = format!(
                "two processes on `{holder}` claim node rank {node_rank}, the other one at {address}; \
                 this one waits until that is gone. If both are meant to run, give each its own --node-rank \
                 (RALLYPOINT_NODE_RANK)"
            );
            answer(api::AnnounceState::Parked, 0, Duration::ZERO, detail)
        }
        PodStanding::Parked { node_rank, holder, address, is_away, .. } => {
            let how = if is_away { "whose link is away" } else { "which is alive" };
            let detail = format!(
                "node rank {node_rank} is held by pod `{holder}` at {address}, {how}; this pod waits until \
                 that one is gone. If both are meant to run, one has the wrong rank"
            );
            answer(api::AnnounceState::Parked, 0, Duration::ZERO, detail)
        }
    }
}

/// The pods that announced themselves.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{run_id}/announce",
    operation_id = "announced",
    params(RunPath),
    responses((status = 200, description = "The pods.", body = api::Announced))
)]
pub(super) async fn announced(
    State(server): State<Arc<Server>>,
    Named(run_id): Named<String>,
) -> Result<Json<api::Announced>, Problem> {
    let run_id = super::fields::run_id(&run_id)?.to_string();
    let now = server.now();
    let gates = server.gates().look();
    let Some(gate) = gates.of(&run_id) else {
        let detail = format!("no pod announced itself for run `{run_id}`, or all of them are gone");
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    let entry = |member: &Member| api::AnnouncedPod {
        pod: member.said.pod.clone(),
        uid: member.said.uid.clone(),
        node_rank: member.said.node_rank,
        address: member.said.address.to_string(),
        torch: member.said.torch.clone(),
        silent_seconds: now.since(member.seen).as_secs_f64(),
        live: member.is_there(now, gates.pod_timeout()),
    };
    Ok(Json(api::Announced {
        nodes: gate.nodes().map(|nodes| nodes.to_string()),
        open: gate.opened().is_some(),
        pods: gate.members().map(entry).collect(),
        torch_versions: gate.versions(),
        run_id,
    }))
}
