//! The links of the relays: the request that becomes a link, and the list of links.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;

use super::accept::HeldPlace;
use super::access::{Caller, PeerAddr};
use super::problem::Problem;
use crate::{Bearer, LinkView, Server};
use rallypoint_access::tls::Stream;
use rallypoint_api as api;
use rallypoint_link::UPGRADE;

/// Becomes the link of a relay: the connection of all clients on one node. The protocol behind the upgrade is
/// rallypoint's own.
#[utoipa::path(
    get,
    path = "/api/v1/link",
    operation_id = "link",
    responses(
        (status = 101, description = "The connection is a link from here on."),
        (
            status = 426,
            description = "Without `Upgrade: rallypoint-link/1`: a relay of another release, or no relay."
        )
    )
)]
pub(super) async fn link(
    State(server): State<Arc<Server>>,
    peer: PeerAddr,
    caller: Caller,
    mut request: Request,
) -> Response {
    let asked = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if !asked.is_some_and(|asked| asked.eq_ignore_ascii_case(UPGRADE)) {
        let detail =
            format!("this is where relays come: ask with `Connection: Upgrade` and `Upgrade: {UPGRADE}`");
        // The code tells a client whether a relay is the only way to a store.
        let code = if server.stores().config().relays_only { "relays_only" } else { "relays" };
        let mut answer = Problem::new(StatusCode::UPGRADE_REQUIRED, detail).with_code(code).into_response();
        answer.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(UPGRADE));
        return answer;
    }
    let upgraded = hyper::upgrade::on(&mut request);
    let place = request.extensions_mut().remove::<HeldPlace>();
    let grant = caller.grant().cloned();
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let Ok(parts) = upgraded.downcast::<TokioIo<Stream>>() else {
            return tracing::error!("a link came over a connection that is no socket");
        };
        server.links().serve(parts.io.into_inner(), parts.read_buf, Bearer { peer: peer.0, grant }, place);
    });
    let upgrade = [(header::CONNECTION, "upgrade"), (header::UPGRADE, UPGRADE)];
    (StatusCode::SWITCHING_PROTOCOLS, upgrade).into_response()
}

/// The links of the relays, by name.
#[utoipa::path(
    get,
    path = "/api/v1/links",
    operation_id = "listLinks",
    responses((status = 200, description = "The links.", body = api::LinkList))
)]
pub(super) async fn links(State(server): State<Arc<Server>>, caller: Caller) -> Json<api::LinkList> {
    let entry = |link: LinkView| api::Link {
        name: link.name,
        addr: link.addr.to_string(),
        clients: rallypoint_protocol::ids::count(link.sessions),
        away_seconds: link.away.map(|away| away.as_secs_f64()),
    };
    // A caller for some runs sees only the relays whose token is for exactly those runs.
    let is_own = |link: &LinkView| caller.runs().is_none_or(|runs| link.runs.as_ref() == Some(runs));
    Json(api::LinkList { links: server.links().view().into_iter().filter(is_own).map(entry).collect() })
}
