//! Which peer may ask for what.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{FromRequestParts, OptionalFromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use crate::server::Server;

/// The address a request came from.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerAddr(pub(super) SocketAddr);

/// The server's own address on which a request came in: in a pod the pod's address, even behind a Service.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalAddr(pub(super) IpAddr);

impl LocalAddr {
    /// The host name of a store of `server`, for the client that sent this request.
    pub(super) fn store_host(self, server: &Server) -> String {
        server.stores().config().advertise_host.clone().unwrap_or_else(|| self.0.to_string())
    }
}

impl FromRequestParts<Arc<Server>> for PeerAddr {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Server>) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().copied().ok_or_else(|| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the request's address is unknown; try again")
        })
    }
}

impl FromRequestParts<Arc<Server>> for LocalAddr {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Server>) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().copied().ok_or_else(|| {
            Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the request's local address is unknown; try again",
            )
        })
    }
}

/// The address a request came from, as the stores know it.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerIp(pub(super) IpAddr);

impl FromRequestParts<Arc<Server>> for PeerIp {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Server>) -> Result<Self, Problem> {
        peer_ip(&parts.extensions).map(Self).ok_or_else(|| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the request's address is unknown; try again")
        })
    }
}

fn peer_ip(extensions: &axum::http::Extensions) -> Option<IpAddr> {
    extensions.get::<PeerAddr>().map(|peer| peer.0.ip().to_canonical())
}

/// Lets in only the peers within `--allow`.
pub(super) async fn only_allowed(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    match peer_ip(request.extensions()) {
        Some(ip) if server.stores().config().allows(ip) => next.run(request).await,
        _ => Problem::new(StatusCode::FORBIDDEN, "this address is not allowed here; see --allow")
            .into_response(),
    }
}

/// Said of a request over a connection whose client has shown no certificate, where it needs one.
#[derive(Debug, Clone, Copy)]
pub(super) struct LacksCertificate;

/// Lets in only clients that have shown a certificate, where they need one. The kubelet, which has none, may ask for health.
pub(super) async fn only_certified(request: Request, next: Next) -> Response {
    let is_probe = matches!(request.uri().path(), "/livez" | "/readyz");
    if request.extensions().get::<LacksCertificate>().is_some() && !is_probe {
        let detail = "this server wants a client certificate (serve --tls-client-ca): give one with --tls-client-cert and \
                      --tls-client-key";
        return Problem::new(StatusCode::UNAUTHORIZED, detail).with_code("no_certificate").into_response();
    }
    next.run(request).await
}

/// Lets in only requests that name this server and do not come from a foreign web page.
pub(super) async fn only_own_names(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    let over_loopback = peer_ip(request.extensions()).is_none_or(|ip| ip.is_loopback());
    super::host::only_own(&server.stores().config().own_names, over_loopback, request, next).await
}

/// Proof that a request may change what others use.
#[derive(Debug)]
pub(super) struct Operator;

impl OptionalFromRequestParts<Arc<Server>> for Operator {
    type Rejection = std::convert::Infallible;

    /// For routes that others may use too: the route itself checks for an operator.
    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<Option<Self>, Self::Rejection> {
        Ok(<Self as FromRequestParts<_>>::from_request_parts(parts, server).await.ok())
    }
}

impl FromRequestParts<Arc<Server>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
        let Some(token) = &server.stores().config().token else {
            return match peer_ip(&parts.extensions) {
                Some(ip) if ip.is_loopback() => Ok(Self),
                _ => Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "without a token this is allowed from the server's own host only; start the server with \
                     --token-file and send the token as `Authorization: Bearer`",
                )),
            };
        };
        let given = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match given.and_then(|given| given.strip_prefix("Bearer ")) {
            Some(given) if token.matches(given.trim()) => Ok(Self),
            _ => Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "send the token of the server's --token-file as `Authorization: Bearer`",
            )),
        }
    }
}
