//! The admin port.
//!
//! The macro `routes!` lists the routes, and who may use each: viewers, members or operators, by the token of
//! `--token-file` that a request shows. Without a token a peer within `--allow` is a member, unless
//! `--require-token` is given; without a token file it is an operator if it comes over loopback. Errors are
//! `application/problem+json` (RFC 9457).

mod accept;
mod access;
mod announce;
mod barriers;
mod body;
mod covered;
mod fields;
mod host;
mod link;
mod login;
mod negotiate;
mod openapi;
mod page;
mod problem;
mod rendezvous;
mod routes;
mod runs;
pub mod standby;
mod target;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{delete, get, post, put};

use crate::{Server, StoreHost};
pub use accept::{Serving, serve};
use covered::covered;
pub use openapi::{OPENAPI, document as openapi};
use rallypoint_api::MAX_WAIT;

/// Most bytes in a request's body.
const MAX_BODY: usize = 64 * 1024;
/// A request must be complete within this time. Its answer comes within the same time, plus the time that the
/// request asks to wait, plus the longest time for which an answer may be held.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that a request may take.
const ANSWER_TIMEOUT: Duration =
    Duration::from_secs(2 * REQUEST_TIMEOUT.as_secs() + MAX_WAIT.as_secs() + StoreHost::MOST_HELD.as_secs());

/// Makes a router and the OpenAPI description from one list, so both have exactly the same routes. A test
/// sends a request to each path in the handlers' descriptions.
macro_rules! routes {
    (
        $(#[$doc:meta])* $router:ident, $described:ident:
        $($method:ident $path:literal $who:ident $module:ident::$handler:ident,)*
    ) => {
        $(#[$doc])*
        fn $router() -> Router<Arc<Server>> {
            Router::new()$(.route($path, $method($module::$handler).route_layer(from_fn(access::$who))))*
        }

        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($module::$handler),*))]
        struct $described;
    };
}

routes! {
    /// Routes that must be answered under any load.
    probes, Probes:
    get "/livez" all routes::livez,
    get "/readyz" all routes::readyz,
    get "/metrics" overseers routes::metrics,
}

routes! {
    /// Routes that never change, or concern this process alone. They answer even on a leader that etcd has
    /// not heard of for too long.
    own_routes, Own:
    get "/" all page::page,
    get "/docs/explanations.md" all page::explanations,
    post "/api/v1/login" all login::login,
    delete "/api/v1/login" all login::logout,
    get "/api/v1/openapi.json" viewers routes::openapi,
    get "/api/v1/server" viewers routes::health,
    // The link holds its own replies until they are safe.
    get "/api/v1/link" members link::link,
}

routes! {
    /// Routes that show or change what the server keeps. [`api`] covers each answer.
    kept_routes, Kept:
    get "/api/v1/stores" viewers routes::stores,
    post "/api/v1/stores" members routes::open_store,
    delete "/api/v1/stores/{port}" operators routes::reset_store,
    get "/api/v1/runs/{run_id}/announce" viewers announce::announced,
    post "/api/v1/runs/{run_id}/announce" members announce::announce,
    get "/api/v1/waits" viewers routes::waits,
    get "/api/v1/runs" viewers runs::list,
    get "/api/v1/runs/{run_id}" viewers runs::one,
    delete "/api/v1/runs/{run_id}" operators runs::forget,
    put "/api/v1/runs/{run_id}/expect" operators runs::expect,
    get "/api/v1/events" viewers runs::events,
    post "/api/v1/runs/{run_id}/join" members rendezvous::join,
    post "/api/v1/runs/{run_id}/heartbeat" members rendezvous::heartbeat,
    post "/api/v1/runs/{run_id}/leave" members rendezvous::leave,
    post "/api/v1/runs/{run_id}/close" members rendezvous::close,
    post "/api/v1/runs/{run_id}/extend" operators rendezvous::extend,
    post "/api/v1/barriers/{name}/arrive" members barriers::arrive,
    get "/api/v1/links" viewers link::links,
}

/// All routes but [`probes`].
fn api(server: &Arc<Server>) -> Router<Arc<Server>> {
    kept_routes().route_layer(from_fn_with_state(Arc::clone(server), covered)).merge(own_routes())
}

/// The admin port's routes.
pub fn router(server: Arc<Server>) -> Router {
    all(api(&server), server)
}

/// The routes of the API, probes, fallbacks and guards.
fn all(api: Router<Arc<Server>>, server: Arc<Server>) -> Router {
    let routes = probes()
        .merge(api)
        .fallback(routes::not_found)
        .method_not_allowed_fallback(routes::not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY));
    guarded(routes, server)
}

/// Adds two addresses to a request: the peer's, and the server's own one on which the request came in.
/// [`router`] needs both.
pub fn arrived<B>(mut request: Request<B>, peer: SocketAddr, local: Option<SocketAddr>) -> Request<B> {
    request.extensions_mut().insert(access::PeerAddr(peer));
    if let Some(local) = local {
        request.extensions_mut().insert(access::LocalAddr(local.ip().to_canonical()));
    }
    request
}

/// Puts the guards before the routes: the peer's address, its certificate, the host name, the token.
fn guarded(routes: Router<Arc<Server>>, server: Arc<Server>) -> Router {
    let state = || Arc::clone(&server);
    let access = || server.stores().config().access.clone();
    routes
        .layer(from_fn_with_state(access(), access::only_known))
        .layer(from_fn_with_state(state(), access::only_own_names))
        .layer(from_fn_with_state(access(), access::only_certified))
        .layer(from_fn_with_state(state(), access::only_allowed))
        .with_state(server)
}
