//! The admin port.
//!
//! | route | who may | what |
//! |---|---|---|
//! | `GET /` | all | the page: runs, nodes and ranks, live |
//! | `GET /livez` | all | the admin port's event loop turns |
//! | `GET /readyz` | all | every listener is bound and new clients are welcome |
//! | `GET /metrics` | all | Prometheus text |
//! | `GET /api/v1/stores` | all | the stores with their sizes |
//! | `GET /api/v1/waits` | all | outstanding WAITs and BARRIERs, the oldest first |
//! | `GET /api/v1/runs` | all | every run: who has joined, who is missing, what matters most |
//! | `GET /api/v1/runs/{run_id}` | all | one run with its nodes, ranks, waits and explanations |
//! | `GET /api/v1/events` | all | the same live, as server-sent events |
//! | `PUT /api/v1/runs/{run_id}/expect` | operators | how many nodes to expect |
//! | `DELETE /api/v1/runs/{run_id}` | operators | forgets a run and drops its rendezvous' keys |
//! | `POST /api/v1/stores` | members | gives a run its own store |
//! | `POST /api/v1/runs/{run_id}/announce` | members | waits until all pods of the run have announced themselves |
//! | `GET /api/v1/runs/{run_id}/announce` | all | the pods that announced themselves |
//! | `DELETE /api/v1/stores/{port}` | operators | empties a store; a run's own store is closed |
//! | `POST /api/v1/runs/{run_id}/join` | members | joins the next round of a run and waits for it |
//! | `POST /api/v1/runs/{run_id}/heartbeat` | members | keeps a node's place and waits for a change |
//! | `POST /api/v1/runs/{run_id}/leave` | members | leaves a run |
//! | `POST /api/v1/runs/{run_id}/close` | the run's nodes, operators | closes a run |
//! | `POST /api/v1/runs/{run_id}/extend` | operators | moves the deadline of the round that gathers |
//! | `POST /api/v1/barriers/{name}/arrive` | members | arrives at a barrier and waits for the others |
//! | `GET /api/v1/link` | members | becomes the link of a relay (`Upgrade: rallypoint-link/1`) |
//! | `GET /api/v1/links` | all | the links of the relays |
//! | `GET /api/v1/server` | all | how the server itself is |
//! | `GET /docs/explanations.md` | all | what the explanations mean |
//! | `GET /api/v1/openapi.json` | all | all of this for programs |
//!
//! "All" and "members" are the peers within `--allow`. Operators send the token of `--token-file`, or come
//! over loopback if there is no token. Errors are `application/problem+json` (RFC 9457).

mod accept;
mod access;
mod announce;
mod barriers;
mod body;
mod fields;
mod host;
mod link;
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
use axum::routing::{delete, get, post, put};

use crate::api;
use crate::server::Server;
pub use accept::{Serving, serve};
pub use openapi::{OPENAPI, document as openapi};

/// Most bytes in a request's body.
const MAX_BODY: usize = 64 * 1024;
/// A request must be complete within this time. It is answered within the same time, plus the time that it
/// asks to wait.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that a request may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2 * REQUEST_TIMEOUT.as_secs() + api::MAX_WAIT.as_secs());

/// A router, and the description of the same routes: neither can have one that the other has not. A test asks for each
/// path that the handlers' descriptions name.
macro_rules! routes {
    ($(#[$doc:meta])* $router:ident, $described:ident: $($method:ident $path:literal $module:ident::$handler:ident,)*) => {
        $(#[$doc])*
        fn $router() -> Router<Arc<Server>> {
            Router::new()$(.route($path, $method($module::$handler)))*
        }

        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($module::$handler),*))]
        struct $described;
    };
}

routes! {
    /// Routes that must be answered under any load.
    probes, Probes:
    get "/livez" routes::livez,
    get "/readyz" routes::readyz,
    get "/metrics" routes::metrics,
}

routes! {
    /// All but [`probes`].
    api_routes, Api:
    get "/" page::page,
    get "/api/v1/stores" routes::stores,
    post "/api/v1/stores" routes::open_store,
    delete "/api/v1/stores/{port}" routes::reset_store,
    get "/api/v1/runs/{run_id}/announce" announce::announced,
    post "/api/v1/runs/{run_id}/announce" announce::announce,
    get "/api/v1/waits" routes::waits,
    get "/api/v1/runs" runs::list,
    get "/api/v1/runs/{run_id}" runs::one,
    delete "/api/v1/runs/{run_id}" runs::forget,
    put "/api/v1/runs/{run_id}/expect" runs::expect,
    get "/api/v1/events" runs::events,
    post "/api/v1/runs/{run_id}/join" rendezvous::join,
    post "/api/v1/runs/{run_id}/heartbeat" rendezvous::heartbeat,
    post "/api/v1/runs/{run_id}/leave" rendezvous::leave,
    post "/api/v1/runs/{run_id}/close" rendezvous::close,
    post "/api/v1/runs/{run_id}/extend" rendezvous::extend,
    post "/api/v1/barriers/{name}/arrive" barriers::arrive,
    get "/api/v1/link" link::link,
    get "/api/v1/links" link::links,
    get "/api/v1/server" routes::health,
    get "/docs/explanations.md" page::explanations,
    get "/api/v1/openapi.json" routes::openapi,
}

/// The admin port's routes.
pub fn router(server: Arc<Server>) -> Router {
    all(api_routes(), server)
}

/// The routes of the API with everything else.
fn all(api: Router<Arc<Server>>, server: Arc<Server>) -> Router {
    let routes = probes()
        .merge(api)
        .fallback(routes::not_found)
        .method_not_allowed_fallback(routes::not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY));
    guarded(routes, server)
}

/// Adds to a request the address it came from and the server's own address on which it came in; [`router`]
/// needs both.
pub fn arrived<B>(mut request: Request<B>, peer: SocketAddr, local: Option<SocketAddr>) -> Request<B> {
    request.extensions_mut().insert(access::PeerAddr(peer));
    if let Some(local) = local {
        request.extensions_mut().insert(access::LocalAddr(local.ip().to_canonical()));
    }
    request
}

/// Routes for all peers within `--allow`.
fn guarded(routes: Router<Arc<Server>>, server: Arc<Server>) -> Router {
    routes
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&server), access::only_own_names))
        .layer(axum::middleware::from_fn(access::only_certified))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&server), access::only_allowed))
        .with_state(server)
}
