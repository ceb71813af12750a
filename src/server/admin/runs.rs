//! The routes that show runs, and those that tell the server about them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use serde::{Deserialize, Serialize};

use super::access::Operator;
use super::body::Body;
use super::fields::label;
use super::problem::Problem;
use super::target::{Named, Params};
use crate::core::insight::Expectation;
use crate::core::insight::view::{Run, RunList};
use crate::server::{InsightEvent, MAX_SUBSCRIBERS, Server};

/// A comment goes out when nothing has happened for this long.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Nodes that can be expected, and names that can be given with them.
const MAX_NODES: u32 = 1_000_000;
const MAX_NAMES: usize = 16_384;

pub(super) async fn list(State(server): State<Arc<Server>>) -> Json<RunList> {
    Json(server.with_insight(|insight, now| insight.list(now)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunQuery {
    /// The port of the store, where runs of several stores have one id.
    store: Option<u16>,
}

pub(super) async fn one(
    State(server): State<Arc<Server>>,
    Named(run_id): Named<String>,
    Params(query): Params<RunQuery>,
) -> Result<Json<Run>, Problem> {
    server.run(&run_id, query.store).map(Json).ok_or_else(|| no_such_run(&run_id))
}

fn no_such_run(run_id: &str) -> Problem {
    let shown = crate::core::ids::ShownKey(run_id.as_bytes());
    let detail = format!(
        "nothing is known of a run `{shown}`; GET /api/v1/runs lists the runs (one without an id is called store:PORT)"
    );
    Problem::new(StatusCode::NOT_FOUND, detail)
}

/// How many nodes to expect: `nodes`, or `min` and `max`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    nodes: Option<u32>,
    min: Option<u32>,
    max: Option<u32>,
    #[serde(default)]
    names: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Expected {
    run_id: String,
    min: u32,
    max: u32,
}

pub(super) async fn expect(
    State(server): State<Arc<Server>>,
    _operator: Operator,
    Named(run_id): Named<String>,
    Body(body): Body<Expect>,
) -> Result<Json<Expected>, Problem> {
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
    if !server.with_insight(|insight, _| insight.expect(&run_id, expectation)) {
        let detail = "too many runs are expected already; DELETE /api/v1/runs/{run_id} forgets one";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    }
    Ok(Json(Expected { run_id, min, max }))
}

#[derive(Debug, Serialize)]
pub(super) struct Forgotten {
    run_id: String,
    dropped_keys: usize,
}

pub(super) async fn forget(
    State(server): State<Arc<Server>>,
    _operator: Operator,
    Named(run_id): Named<String>,
) -> Result<Json<Forgotten>, Problem> {
    match server.forget_run(&run_id) {
        Some(dropped_keys) => Ok(Json(Forgotten { run_id, dropped_keys })),
        None => Err(no_such_run(&run_id)),
    }
}

pub(super) async fn events(
    State(server): State<Arc<Server>>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let Some((snapshot, events)) = server.subscribe() else {
        let detail = format!("{MAX_SUBSCRIBERS} subscribers are here already; poll /api/v1/runs instead");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    let start = (Some(snapshot), events);
    let stream = futures_util::stream::unfold(start, |(snapshot, mut events)| async move {
        let event = match snapshot {
            Some(snapshot) => snapshot,
            // Whoever has fallen behind, too, is closed: it connects again and gets a new snapshot.
            None => events.recv().await.ok()?,
        };
        Some((Ok(event_of(&event)), (None, events)))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("still here")))
}

fn event_of(event: &InsightEvent) -> Event {
    Event::default().id(event.id.to_string()).event(event.name).data(&*event.data)
}
