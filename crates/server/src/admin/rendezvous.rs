//! The routes of the native rendezvous: they turn bodies of the API into events of the rendezvous, and its
//! decisions into answers.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::access::{Caller, LocalAddr, PeerAddr, reaches_stores};
use super::body::{Body, Parts};
use super::fields::{label, optional, payload, run_id, token, wait};
use super::problem::Problem;
use super::target::{Named, RunPath};
use crate::{Joined, Server, SharedRound};
use rallypoint_access::tokens::Role;
use rallypoint_api::{self as api, PeerDuration};
use rallypoint_protocol::ids::{Label, count};
use rallypoint_rendezvous::{
    self as rendezvous, HeartbeatView, Join, LeaveRequest, NodeInfo, RankInRound, Report, Round, RunRefusal,
    Wanted,
};

/// Joins the run's next round; waits for it.
#[utoipa::path(
    post,
    path = "/api/v1/runs/{run_id}/join",
    operation_id = "join",
    params(RunPath),
    request_body(content = api::Join, example = json!({
        "node": "trainer-0-5f2c", "join_id": "1", "name": "trainer-0", "node_rank": 0, "min_nodes": 1,
        "participants": true, "wait_seconds": 15
    })),
    responses(
        (status = 200, description = "The round is complete.", body = api::JoinComplete),
        (status = 202, description = "Not yet: send the same again.", body = api::JoinWaiting)
    )
)]
pub(super) async fn join(
    State(server): State<Arc<Server>>,
    Named(run): Named<String>,
    peer: PeerAddr,
    local: LocalAddr,
    headers: HeaderMap,
    Body(body): Body<api::Join>,
) -> Result<Response, Problem> {
    if body.store != Some(false) {
        reaches_stores(&server, &headers)?;
    }
    let run = run_id(&run)?;
    let (wait, with_participants) = (wait(body.wait_seconds), body.participants);
    let join = join_event(body, peer.0.ip().to_canonical())?;
    let joined = server.rounds().join(&run, join, wait).await?;
    Ok(match joined {
        Joined::Complete { shared, rank } => complete(&server, local, &shared, rank, with_participants)?,
        Joined::Waiting { progress, redundant } => {
            let answer = api::JoinWaiting {
                state: if redundant { api::JoinState::Redundant } else { api::JoinState::Waiting },
                run_id: run.to_string(),
                round: progress.round,
                joined: progress.joined,
                min_nodes: progress.min_nodes,
                max_nodes: progress.max_nodes,
                missing_ranks: progress.missing_ranks,
                missing_nodes: progress.missing_nodes,
                waited_seconds: progress.waited.as_secs_f64(),
                deadline_seconds: progress.left.map(|left| left.as_secs_f64()),
                reason: progress.reason,
            };
            (StatusCode::ACCEPTED, Json(answer)).into_response()
        }
    })
}

fn complete(
    server: &Server,
    local: LocalAddr,
    shared: &SharedRound,
    rank: u32,
    with_participants: bool,
) -> Result<Response, Problem> {
    let round = &shared.round;
    let answer = api::JoinComplete {
        state: api::JoinState::Complete,
        run_id: round.run_id.to_string(),
        round: round.number,
        group_rank: rank,
        group_world_size: count(round.participants.len()),
        store: shared.store_port().map(|port| api::StoreAddress { host: local.store_host(server), port }),
        keep_alive_seconds: round.terms.keep_alive.as_secs_f64(),
        keep_alive_misses: round.terms.keep_alive_misses,
        gathered_seconds: round.took.as_secs_f64(),
        participants: None,
    };
    if !with_participants {
        return Ok(Json(answer).into_response());
    }
    let failed =
        |error: serde_json::Error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let mut head = serde_json::to_vec(&answer).map_err(failed)?;
    // The object stays open for the participants: their list is the same for all nodes, and made once.
    head.pop();
    head.extend_from_slice(b",\"participants\":");
    let parts = Parts([head.into(), shared.listed(list), Bytes::from_static(b"}")].into());
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, axum::body::Body::new(parts)).into_response())
}

fn list(round: &Round) -> Bytes {
    let participants = (0..).zip(&round.participants).map(|(rank, participant)| api::Participant {
        group_rank: rank,
        node: participant.node.to_string(),
        name: participant.info.name.to_string(),
        address: participant.info.address.to_string(),
        role: participant.info.role.as_ref().map(Label::to_string),
        local_world_size: participant.info.local_world_size,
        payload: participant.payload.as_ref().map(|payload| payload.as_str().to_owned()),
    });
    // Strings and numbers always have a JSON form.
    serde_json::to_vec(&participants.collect::<Vec<_>>()).unwrap_or_default().into()
}

/// Keeps a node's place in its round; waits for a change.
#[utoipa::path(
    post,
    path = "/api/v1/runs/{run_id}/heartbeat",
    operation_id = "heartbeat",
    params(RunPath),
    request_body(content = api::Heartbeat, example = json!({
        "node": "trainer-0-5f2c", "join_id": "1", "round": 1, "rank": 0, "world_size": 1, "min_nodes": 1,
        "seen": "continue", "wait_seconds": 0.1
    })),
    responses((status = 200, description = "What to do.", body = api::HeartbeatAnswer))
)]
pub(super) async fn heartbeat(
    State(server): State<Arc<Server>>,
    Named(run): Named<String>,
    peer: PeerAddr,
    Body(body): Body<api::Heartbeat>,
) -> Result<Json<api::HeartbeatAnswer>, Problem> {
    let run = run_id(&run)?;
    let (wait, seen) = (wait(body.wait_seconds), action(body.seen));
    let node = label("node", &body.node)?;
    let address = optional("address", body.address.as_deref())?;
    let report = Report {
        join_id: token("join_id", body.join_id)?,
        info: NodeInfo {
            name: optional("name", body.name.as_deref())?.unwrap_or_else(|| node.clone()),
            address: address.map_or_else(|| label("address", &peer.0.ip().to_canonical().to_string()), Ok)?,
            role: None,
            local_world_size: None,
            torch_version: None,
        },
        node,
        place: RankInRound { round: body.round, rank: body.rank },
        world_size: body.world_size,
        wanted: Wanted {
            min_nodes: body.min_nodes,
            max_nodes: body.max_nodes.unwrap_or(body.min_nodes),
            ..Wanted::default()
        },
    };
    let HeartbeatView { action, reason, waiting } =
        server.rounds().heartbeat(&run, report, seen, wait).await?;
    let action = match action {
        rendezvous::Action::Continue => api::Action::Continue,
        rendezvous::Action::Rejoin => api::Action::Rejoin,
        rendezvous::Action::Closed => api::Action::Closed,
    };
    Ok(Json(api::HeartbeatAnswer { action, reason, round: body.round, num_nodes_waiting: waiting }))
}

fn action(action: api::Action) -> rendezvous::Action {
    match action {
        api::Action::Continue => rendezvous::Action::Continue,
        api::Action::Rejoin => rendezvous::Action::Rejoin,
        api::Action::Closed => rendezvous::Action::Closed,
    }
}

/// Leaves the run.
#[utoipa::path(
    post,
    path = "/api/v1/runs/{run_id}/leave",
    operation_id = "leave",
    params(RunPath),
    request_body(content = api::Leave, example = json!({"node": "trainer-0-5f2c", "reason": "drained"})),
    responses((status = 200, description = "Done.", body = api::Left))
)]
pub(super) async fn leave(
    State(server): State<Arc<Server>>,
    Named(run): Named<String>,
    Body(body): Body<api::Leave>,
) -> Result<Json<api::Left>, Problem> {
    let (run, node) = (run_id(&run)?, label("node", &body.node)?);
    let why = optional("reason", body.reason.as_deref())?;
    let outcome = body.outcome.map(|outcome| match outcome {
        api::Outcome::Succeeded => rendezvous::Outcome::Succeeded,
        api::Outcome::Failed => rendezvous::Outcome::Failed,
    });
    let left = server.rounds().leave(&run, &node, LeaveRequest { why, outcome });
    Ok(Json(api::Left { left }))
}

/// Closes the run. A node of the run may do it; without `node`, only an operator.
#[utoipa::path(
    post,
    path = "/api/v1/runs/{run_id}/close",
    operation_id = "close",
    params(RunPath),
    request_body(content = api::Close, example = json!({"reason": "done"})),
    responses((status = 200, description = "Done.", body = api::Closed)),
    security((), ("token" = []))
)]
pub(super) async fn close(
    State(server): State<Arc<Server>>,
    Named(run): Named<String>,
    caller: Caller,
    Body(body): Body<api::Close>,
) -> Result<Json<api::Closed>, Problem> {
    let run = run_id(&run)?;
    let (node, why) = (optional("node", body.node.as_deref())?, optional("reason", body.reason.as_deref())?);
    let member = node.as_ref().and_then(|node| server.rounds().member(&run, node));
    let by = match (member, &node, caller.role()) {
        (Some(member), ..) => member.to_string(),
        (None, None, Role::Operator) => "an operator".into(),
        // A node that was given up, and comes back.
        (None, Some(node), Role::Operator) => format!("{node}, which is no node of it any more"),
        (None, Some(node), _) => {
            let detail = format!("{node} is not in run {run}; only its nodes and operators may close it");
            return Err(Problem::new(StatusCode::FORBIDDEN, detail).with_code("not_a_member"));
        }
        (None, None, _) => {
            let detail = "name a node of the run as `node`, or be an operator: send the token of the \
                          server's --token-file as `Authorization: Bearer`, or without one ask from the \
                          server's own host";
            return Err(Problem::new(StatusCode::FORBIDDEN, detail).with_code("not_a_member"));
        }
    };
    let by = why.map_or(by.clone(), |why| format!("{by}: {why}"));
    let closed = server.rounds().close(&run, &by)?;
    Ok(Json(api::Closed { run_id: run.to_string(), closed }))
}

/// Moves the deadline of the round that gathers.
#[utoipa::path(
    post,
    path = "/api/v1/runs/{run_id}/extend",
    operation_id = "extend",
    params(RunPath),
    request_body(content = api::Extend, example = json!({"by_seconds": 600})),
    responses((status = 200, description = "Done.", body = api::Extended)),
    security((), ("token" = []))
)]
pub(super) async fn extend(
    State(server): State<Arc<Server>>,
    Named(run): Named<String>,
    Body(body): Body<api::Extend>,
) -> Result<Json<api::Extended>, Problem> {
    let run = run_id(&run)?;
    let (round, left) = server.rounds().extend(&run, body.by_seconds.get())?;
    Ok(Json(api::Extended { run_id: run.to_string(), round, deadline_seconds: left.as_secs_f64() }))
}

fn join_event(body: api::Join, peer: IpAddr) -> Result<Join, Problem> {
    let node = label("node", &body.node)?;
    let address = optional("address", body.address.as_deref())?;
    Ok(Join {
        join_id: token("join_id", body.join_id)?,
        info: NodeInfo {
            name: optional("name", body.name.as_deref())?.unwrap_or_else(|| node.clone()),
            address: address.map_or_else(|| label("address", &peer.to_string()), Ok)?,
            role: optional("role", body.role.as_deref())?,
            local_world_size: body.local_world_size,
            torch_version: optional("torch_version", body.torch_version.as_deref())?,
        },
        node,
        payload: body.payload.as_deref().map(payload).transpose()?,
        rank: body.node_rank,
        watched: body.heartbeat,
        previous: body.previous.map(|api::Placed { round, rank }| RankInRound { round, rank }),
        wanted: Wanted {
            min_nodes: body.min_nodes,
            max_nodes: body.max_nodes.unwrap_or(body.min_nodes),
            join_timeout: body.join_timeout_seconds.map(PeerDuration::get),
            last_call: body.last_call_seconds.map(PeerDuration::get),
            keep_alive: body.keep_alive_seconds.map(PeerDuration::get),
            keep_alive_misses: body.keep_alive_misses,
            grace: body.grace_seconds.map(PeerDuration::get),
            store: body.store,
        },
    })
}

impl From<RunRefusal> for Problem {
    fn from(refusal: RunRefusal) -> Self {
        let status = match &refusal {
            RunRefusal::Closed { .. } | RunRefusal::GracefulExit { .. } => StatusCode::GONE,
            RunRefusal::JoinTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            RunRefusal::NoStore { .. }
            | RunRefusal::TooManyRuns { .. }
            | RunRefusal::TooManyNodes { .. }
            | RunRefusal::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
            RunRefusal::DuplicateRank { .. }
            | RunRefusal::Mismatch { .. }
            | RunRefusal::Left
            | RunRefusal::NotForming(_) => StatusCode::CONFLICT,
            RunRefusal::BadRank { .. } | RunRefusal::BadTerms(_) => StatusCode::BAD_REQUEST,
            RunRefusal::UnknownRun => StatusCode::NOT_FOUND,
        };
        Self::new(status, refusal.to_string()).with_code(refusal.code())
    }
}
