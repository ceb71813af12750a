//! The routes' answers. What they show is read from the engines; nothing is kept here.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};

use super::access::Operator;
use super::body::Body;
use super::problem::Problem;
use super::target::{Named, Params};
use crate::core::insight::view::WaitList;
use crate::server::metrics;
use crate::server::{NoStore, Server};

/// Keys shown of one wait; the rest is a number.
const KEYS_SHOWN: usize = 10;
/// Waits shown if the request does not say.
const WAITS_SHOWN: usize = 1000;
/// Waits shown at the most.
const MAX_WAITS_SHOWN: usize = 10_000;

pub(super) async fn livez() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz(State(server): State<Arc<Server>>) -> Result<&'static str, Problem> {
    if server.is_ready() {
        return Ok("ok\n");
    }
    Err(Problem::stopping("the server is stopping"))
}

pub(super) async fn metrics(State(server): State<Arc<Server>>) -> Result<impl IntoResponse, Problem> {
    let failed = |error: String| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error);
    // It waits for locks, which whoever asks for health must not.
    let page = tokio::task::spawn_blocking(move || metrics::render(&server)).await;
    let page = page.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page))
}

pub(super) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], crate::api::OPENAPI)
}

pub(super) async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no such route; GET /api/v1/openapi.json describes all")
}

pub(super) async fn not_allowed() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this route does not take this method")
}

/// One store.
#[derive(Debug, Serialize)]
pub(super) struct StoreEntry {
    port: u16,
    /// The run it was opened for.
    run_id: Option<String>,
    keys: usize,
    bytes: usize,
    connections: usize,
    waiters: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct StoreList {
    stores: Vec<StoreEntry>,
}

pub(super) async fn stores(State(server): State<Arc<Server>>) -> Json<StoreList> {
    let entry = |listener: Arc<crate::server::StoreListener>| {
        let (port, stats) = (listener.engine().port(), listener.engine().stats());
        StoreEntry {
            port,
            run_id: server.run_of(port),
            keys: stats.keys,
            bytes: stats.bytes,
            connections: stats.connections,
            waiters: stats.waiters,
        }
    };
    Json(StoreList { stores: server.listeners().into_iter().map(entry).collect() })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitQuery {
    limit: Option<usize>,
}

pub(super) async fn waits(
    State(server): State<Arc<Server>>,
    Params(query): Params<WaitQuery>,
) -> Json<WaitList> {
    let limit = query.limit.unwrap_or(WAITS_SHOWN).min(MAX_WAITS_SHOWN);
    let (total, waits) = server.open_waits(limit, KEYS_SHOWN);
    let list = server.with_insight(|insight, now| insight.explain_waits(total, waits, now));
    Json(list)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenStore {
    run_id: String,
}

/// A run's own store, as its workers reach it.
#[derive(Debug, Serialize)]
pub(super) struct StoreAddress {
    run_id: String,
    host: String,
    port: u16,
}

pub(super) async fn open_store(
    State(server): State<Arc<Server>>,
    local: super::access::LocalAddr,
    Body(OpenStore { run_id }): Body<OpenStore>,
) -> Result<(StatusCode, Json<StoreAddress>), Problem> {
    super::fields::run_id(&run_id)?;
    let store = server.store_for_run(&run_id).map_err(|error| no_store(&error))?;
    let host = local.store_host(&server);
    let status = if store.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(StoreAddress { run_id, host, port: store.port })))
}

/// The run's own store as an answer names it, opened if it is not there yet.
pub(super) fn store_of_run(
    server: &Server,
    local: super::access::LocalAddr,
    run_id: &str,
) -> Result<crate::api::StoreAddress, Problem> {
    let store = server.store_for_run(run_id).map_err(|error| no_store(&error))?;
    Ok(crate::api::StoreAddress { host: local.store_host(server), port: store.port })
}

fn no_store(error: &NoStore) -> Problem {
    match error {
        NoStore::Stopping => Problem::stopping(error.to_string()),
        NoStore::NoPortLeft { .. } => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ResetDone {
    port: u16,
    reset: bool,
}

pub(super) async fn reset_store(
    State(server): State<Arc<Server>>,
    _operator: Operator,
    Named(port): Named<u16>,
) -> Result<Json<ResetDone>, Problem> {
    if server.reset(port) {
        return Ok(Json(ResetDone { port, reset: true }));
    }
    let open: Vec<String> =
        server.listeners().iter().map(|listener| listener.engine().port().to_string()).collect();
    let detail = format!("no store listens on port {port}; the stores are on {}", open.join(", "));
    Err(Problem::new(StatusCode::NOT_FOUND, detail))
}
