//! The handlers of most routes. They read the engines and the host; nothing is kept here.

use std::io::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Deserialize;
use utoipa::IntoParams;

use super::access::{Caller, LocalAddr, reaches_stores};
use super::body::Body;
use super::negotiate;
use super::problem::Problem;
use super::target::{Named, Params, StorePath};
use crate::metrics::{self, openmetrics};
use crate::{NoStore, Server};
use rallypoint_api as api;
use rallypoint_api::WaitList;

/// Most keys shown of one wait; the rest is a number.
const KEYS_SHOWN: usize = 10;
/// How many waits are shown if the request does not say.
const WAITS_SHOWN: usize = 1000;
/// Most waits shown.
const MAX_WAITS_SHOWN: usize = 10_000;

/// The event loop turns.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "livez",
    responses((status = 200, description = "It does.", body = String, content_type = "text/plain"))
)]
pub(super) async fn livez() -> &'static str {
    "ok\n"
}

/// Every listener is bound and new clients are welcome. A leader that etcd has not heard of for too long is
/// not ready.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    responses((status = 200, description = "Ready.", body = String, content_type = "text/plain"))
)]
pub(super) async fn readyz(State(server): State<Arc<Server>>) -> Result<&'static str, Problem> {
    if server.is_ready() {
        return Ok("ok\n");
    }
    if server.stores().is_stopping() {
        return Err(Problem::stopping("the server is stopping"));
    }
    let detail = "etcd has not heard of this server for so long that another one may lead: answers are held";
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_code("standby"))
}

/// Prometheus text, or OpenMetrics if `Accept` asks for it; gzip if `Accept-Encoding` allows it.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    responses((status = 200, description = "All metrics.", content(
        (String = "text/plain"),
        (String = "application/openmetrics-text"),
    )))
)]
pub(super) async fn metrics(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let failed = |error: String| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error);
    let (open, packed) = (negotiate::wants_openmetrics(&headers), negotiate::wants_gzip(&headers));
    // Making the page waits for locks, and health requests must not wait behind it.
    let page = tokio::task::spawn_blocking(move || page_of_metrics(&server, open, packed)).await;
    let page = page.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
    let kind = if open { openmetrics::CONTENT_TYPE } else { metrics::CONTENT_TYPE };
    let mut answer =
        ([(header::CONTENT_TYPE, kind), (header::VARY, "accept, accept-encoding")], page).into_response();
    if packed {
        answer.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(answer)
}

fn page_of_metrics(server: &Server, open: bool, packed: bool) -> Result<Vec<u8>, String> {
    let text = metrics::render(server).map_err(|error| error.to_string())?;
    let text = if open { openmetrics::of_text(&text) } else { text };
    if !packed {
        return Ok(text.into_bytes());
    }
    let mut pack = GzEncoder::new(Vec::new(), Compression::fast());
    pack.write_all(text.as_bytes()).and_then(|()| pack.finish()).map_err(|error| error.to_string())
}

/// This document.
#[utoipa::path(
    get,
    path = "/api/v1/openapi.json",
    operation_id = "openapi",
    responses((status = 200, description = "This document.", body = Object))
)]
pub(super) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], super::OPENAPI)
}

pub(super) async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no such route; GET /api/v1/openapi.json describes all")
}

pub(super) async fn not_allowed() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this route does not take this method")
}

/// The stores with their sizes.
#[utoipa::path(
    get,
    path = "/api/v1/stores",
    operation_id = "listStores",
    responses((status = 200, description = "The stores.", body = api::StoreList))
)]
pub(super) async fn stores(State(server): State<Arc<Server>>, caller: Caller) -> Json<api::StoreList> {
    let entry = |listener: Arc<crate::StoreListener>| {
        let (port, stats) = (listener.engine().port(), listener.engine().stats());
        api::Store {
            port,
            run_id: server.stores().run_of(port),
            keys: stats.keys,
            bytes: stats.bytes,
            connections: stats.connections,
            waiters: stats.waiters,
        }
    };
    let all = server.stores().listeners().into_iter().map(entry);
    Json(api::StoreList { stores: all.filter(|store| caller.sees_of(store.run_id.as_deref())).collect() })
}

/// How the server itself is.
#[utoipa::path(
    get,
    path = "/api/v1/server",
    operation_id = "serverHealth",
    responses((status = 200, description = "Its connections, memory and journal.", body = api::ServerHealth))
)]
pub(super) async fn health(State(server): State<Arc<Server>>, local: LocalAddr) -> Json<api::ServerHealth> {
    let (config, stores) = (server.stores().config(), server.stores().listeners());
    let journal = server.stores().journal().zip(config.journal.as_ref());
    let host = local.store_host(&server);
    let mut ports = stores.iter().map(|store| store.engine().port());
    let first = ports.find(|port| server.stores().run_of(*port).is_none());
    Json(api::ServerHealth {
        version: env!("CARGO_PKG_VERSION").into(),
        up_seconds: server.up().as_secs_f64(),
        ready: server.is_ready(),
        stores: stores.len(),
        connections: server.stores().connections(),
        max_connections: config.max_connections,
        memory_bytes: server.stores().budget().used(),
        max_memory_bytes: server.stores().budget().limit(),
        waiters: stores.iter().map(|store| store.engine().stats().waiters).sum(),
        endpoint: first.filter(|_| !config.relays_only).map(|port| {
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        }),
        run_stores: (!config.relays_only).then(|| api::StorePorts {
            host,
            first: *config.store_ports.start(),
            last: *config.store_ports.end(),
        }),
        journal: journal.map(|(journal, config)| api::JournalHealth {
            path: config.path.display().to_string(),
            error: journal.trouble(),
            broken_seconds: journal.stats().broken_for.unwrap_or_default().as_secs_f64(),
        }),
    })
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitQuery {
    /// How many to show, at most 10000. By default 1000.
    #[param(example = 10)]
    limit: Option<usize>,
}

/// Outstanding WAITs and BARRIERs, and keys that clients ask for again and again, the oldest first.
#[utoipa::path(
    get,
    path = "/api/v1/waits",
    operation_id = "listWaits",
    params(WaitQuery),
    responses((status = 200, description = "The waits.", body = WaitList))
)]
pub(super) async fn waits(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Params(query): Params<WaitQuery>,
) -> Json<WaitList> {
    let limit = query.limit.unwrap_or(WAITS_SHOWN).min(MAX_WAITS_SHOWN);
    let is_bound = caller.runs().is_some();
    let (total, waits) =
        server.stores().open_waits(if is_bound { MAX_WAITS_SHOWN } else { limit }, KEYS_SHOWN);
    let mut list = server.watch().with_insight(|insight, now| insight.documents(now).waits(total, waits));
    if is_bound {
        list.waits.retain(|wait| {
            let run = wait.run_id.clone().or_else(|| server.stores().run_of(wait.store));
            caller.sees_of(run.as_deref())
        });
        list.total = list.waits.len();
        list.waits.truncate(limit);
    }
    Json(list)
}

/// Gives a run its own store.
#[utoipa::path(
    post,
    path = "/api/v1/stores",
    operation_id = "openStore",
    request_body(content = api::OpenStore, example = json!({"run_id": "train-17"})),
    responses(
        (status = 200, description = "The store it had.", body = api::RunStore),
        (status = 201, description = "A new store.", body = api::RunStore)
    )
)]
pub(super) async fn open_store(
    State(server): State<Arc<Server>>,
    local: super::access::LocalAddr,
    caller: Caller,
    headers: HeaderMap,
    Body(api::OpenStore { run_id }): Body<api::OpenStore>,
) -> Result<(StatusCode, Json<api::RunStore>), Problem> {
    super::fields::run_id(&run_id)?;
    caller.may_touch(&format!("run `{run_id}`"), Some(&run_id))?;
    reaches_stores(&server, &headers)?;
    let store = server.stores().store_for_run(&run_id).map_err(|error| no_store(&error))?;
    let host = local.store_host(&server);
    let status = if store.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(api::RunStore { run_id, host, port: store.port })))
}

/// The run's own store, as an answer names it. Opens the store if the run has none yet.
pub(super) fn store_of_run(
    server: &Server,
    local: super::access::LocalAddr,
    run_id: &str,
) -> Result<api::StoreAddress, Problem> {
    let store = server.stores().store_for_run(run_id).map_err(|error| no_store(&error))?;
    Ok(api::StoreAddress { host: local.store_host(server), port: store.port })
}

fn no_store(error: &NoStore) -> Problem {
    match error {
        NoStore::Stopping => Problem::stopping(error.to_string()),
        NoStore::NoPortLeft { .. } => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

/// Empties a store; a run's own store is closed.
#[utoipa::path(
    delete,
    path = "/api/v1/stores/{port}",
    operation_id = "resetStore",
    params(StorePath),
    responses((status = 200, description = "Done.", body = api::StoreReset)),
    security((), ("token" = []))
)]
pub(super) async fn reset_store(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Named(port): Named<u16>,
) -> Result<Json<api::StoreReset>, Problem> {
    caller.may_touch(&format!("the store on port {port}"), server.stores().run_of(port).as_deref())?;
    if let Some(closed) = server.stores().reset(port) {
        return Ok(Json(api::StoreReset { port, reset: true, closed }));
    }
    let open: Vec<String> =
        server.stores().listeners().iter().map(|listener| listener.engine().port().to_string()).collect();
    let detail = format!("no store listens on port {port}; the stores are on {}", open.join(", "));
    Err(Problem::new(StatusCode::NOT_FOUND, detail))
}
