//! The routes that show runs, and the routes that change what the server knows about them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use serde::Deserialize;
use tokio::sync::broadcast;
use utoipa::IntoParams;

use super::access::Caller;
use super::body::Body;
use super::fields::label;
use super::problem::Problem;
use super::target::{Named, Params, RunPath};
use crate::{EventOf, InsightEvent, MAX_SUBSCRIBERS, NotExpected, Server};
use rallypoint_api::{self as api, Run, RunKind, RunList};
use rallypoint_insight::Expectation;

/// A stream sends a comment when nothing has happened for this long.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often a stream checks whether its token is still valid.
const HOLDS_EVERY: Duration = Duration::from_secs(1);
/// Most nodes that can be expected, and most names that can be given with them.
const MAX_NODES: u32 = 1_000_000;
const MAX_NAMES: usize = 16_384;

/// Every run, native or not: who has joined, who is missing, what matters most.
#[utoipa::path(
    get,
    path = "/api/v1/runs",
    operation_id = "listRuns",
    responses((status = 200, description = "The runs.", body = RunList))
)]
pub(super) async fn list(State(server): State<Arc<Server>>, caller: Caller) -> Json<RunList> {
    Json(seen_by(&caller, server.watch().list()))
}

/// The part of the list that the caller may see.
fn seen_by(caller: &Caller, mut list: RunList) -> RunList {
    list.runs.retain(|run| caller.sees(&run.run_id));
    list.explanations.retain(|said| caller.sees_of(said.run_id.as_deref()));
    list
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RunQuery {
    /// The store's port, if runs of several stores have this id. Without it, the newest run that is not over.
    store: Option<u16>,
    /// How its processes find each other, if runs of several backends have this id.
    kind: Option<RunKind>,
}

/// One run with its nodes, ranks, waits and explanations.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{run_id}",
    operation_id = "getRun",
    params(RunPath, RunQuery),
    responses((status = 200, description = "The run.", body = Run))
)]
pub(super) async fn one(
    State(server): State<Arc<Server>>,
    Named(run_id): Named<String>,
    Params(query): Params<RunQuery>,
) -> Result<Json<Run>, Problem> {
    server.watch().run(&run_id, query.store, query.kind).map(Json).ok_or_else(|| no_such_run(&run_id))
}

fn no_such_run(run_id: &str) -> Problem {
    let shown = rallypoint_protocol::ids::ShownKey(run_id.as_bytes());
    let detail = format!(
        "nothing is known of a run `{shown}`; GET /api/v1/runs lists the runs (one without an id is called \
         store:PORT)"
    );
    Problem::new(StatusCode::NOT_FOUND, detail)
}

/// How many nodes to expect of a run.
///
/// A round of a native run is complete as soon as so many are there.
#[utoipa::path(
    put,
    path = "/api/v1/runs/{run_id}/expect",
    operation_id = "expectNodes",
    params(("run_id" = String, Path, description = "The run's id.", example = "train-18")),
    request_body(content = api::Expect, example = json!({"nodes": 4, "names": ["train-18-0", "train-18-1"]})),
    responses((status = 200, description = "Noted.", body = api::Expects)),
    security((), ("token" = []))
)]
pub(super) async fn expect(
    State(server): State<Arc<Server>>,
    Named(run_id): Named<String>,
    Body(body): Body<api::Expect>,
) -> Result<Json<api::Expects>, Problem> {
    const EXAMPLE: &str = "send {\"nodes\": 4}, or {\"min\": 2, \"max\": 4}, and \"names\" if they are known";
    let (min, max) = match (body.nodes, body.min, body.max) {
        (Some(nodes), None, None) => (nodes, nodes),
        (None, Some(min), max) => (min, max.unwrap_or(min)),
        _ => return Err(Problem::bad_request(EXAMPLE)),
    };
    let fits = (1..=MAX_NODES).contains(&min) && min <= max && max <= MAX_NODES;
    if !fits || body.names.len() > MAX_NAMES {
        let detail =
            format!("a run has 1 to {MAX_NODES} nodes, min at most max, and at most {MAX_NAMES} names");
        return Err(Problem::bad_request(detail));
    }
    super::fields::run_id(&run_id)?;
    body.names.iter().try_for_each(|name| label("names", name).map(drop))?;
    let expectation = Expectation { min, max, names: body.names };
    let comes = server.watch().expect(&run_id, expectation).map_err(|why| {
        let (status, code) = match why {
            NotExpected::TooMany => (StatusCode::SERVICE_UNAVAILABLE, "too_many"),
            NotExpected::Unfit(_) => (StatusCode::CONFLICT, "parameter_mismatch"),
        };
        Problem::new(status, why.to_string()).with_code(code)
    })?;
    Ok(Json(api::Expects { run_id, min, max, comes }))
}

/// Forgets a run and drops its rendezvous' keys.
///
/// A native run is closed, and forgotten when its last node is gone.
#[utoipa::path(
    delete,
    path = "/api/v1/runs/{run_id}",
    operation_id = "forgetRun",
    params(RunPath),
    responses((status = 200, description = "Done.", body = api::Forgotten)),
    security((), ("token" = []))
)]
pub(super) async fn forget(
    State(server): State<Arc<Server>>,
    Named(run_id): Named<String>,
) -> Result<Json<api::Forgotten>, Problem> {
    match server.forget_run(&run_id) {
        Some(dropped_keys) => Ok(Json(api::Forgotten { run_id, dropped_keys })),
        None => Err(no_such_run(&run_id)),
    }
}

/// The runs live, as server-sent events.
///
/// First `snapshot` (RunList with `version`), then `run` (RunSummary), `run_gone`, `explanation`, `moment`
/// and `links` (LinkCounts) as they come. A subscriber that does not keep up is closed; it connects again and
/// gets a new snapshot.
#[utoipa::path(
    get,
    path = "/api/v1/events",
    operation_id = "events",
    responses((
        status = 200, description = "The stream; it does not end.", body = String,
        content_type = "text/event-stream"
    ))
)]
pub(super) async fn events(
    State(server): State<Arc<Server>>,
    caller: Caller,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let Some((snapshot, events)) = server.watch().subscribe(|list| seen_by(&caller, list)) else {
        let detail = format!("{MAX_SUBSCRIBERS} subscribers are here already; poll /api/v1/runs instead");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    let start = (Some(snapshot), events, caller, server);
    let stream = futures_util::stream::unfold(start, |(snapshot, mut events, caller, server)| async move {
        let event = match snapshot {
            Some(snapshot) => snapshot,
            None => next_for(&caller, &mut events, &server).await?,
        };
        Some((Ok(event_of(&event)), (None, events, caller, server)))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("still here")))
}

/// The next event that a caller may see. `None` if the caller has fallen behind, or its token is no longer
/// valid: it then connects again, and gets a new snapshot or a refusal.
async fn next_for(
    caller: &Caller,
    events: &mut broadcast::Receiver<InsightEvent>,
    server: &Server,
) -> Option<InsightEvent> {
    let access = &server.stores().config().access;
    let mut looks = tokio::time::interval(HOLDS_EVERY);
    loop {
        let event = tokio::select! {
            event = events.recv() => Some(event.ok()?),
            _ = looks.tick() => None,
        };
        if !access.holds(caller.grant()) {
            return None;
        }
        let is_seen = |event: &InsightEvent| match &event.of {
            EventOf::Server => true,
            EventOf::Run(run_id) => caller.sees_of(run_id.as_deref()),
        };
        if let Some(event) = event.filter(is_seen) {
            return Some(event);
        }
    }
}

fn event_of(event: &InsightEvent) -> Event {
    Event::default().id(event.id.to_string()).event(event.name).data(&*event.data)
}
