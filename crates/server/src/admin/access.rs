//! Which peer may ask for what.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::problem::Problem;
use crate::Server;
use crate::config::AccessConfig;
use rallypoint_access::tokens::{Grant, Role, Runs};
use rallypoint_api::{RELAY_HEADER, own_cookie};

/// The address a request came from.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerAddr(pub(super) SocketAddr);

/// The server's own address on which a request came in. In a pod this is the pod's address, even behind a
/// Service.
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

fn peer_ip(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<PeerAddr>().map(|peer| peer.0.ip().to_canonical())
}

/// Admits only peers within `--allow`.
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

/// Marks a request whose connection is encrypted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Encrypted;

/// Marks a request whose client needs a certificate and has shown none.
#[derive(Debug, Clone, Copy)]
pub(super) struct LacksCertificate;

/// Whether everybody may ask for this path. The kubelet asks for health without certificate and token.
fn is_open(path: &str, access: &AccessConfig) -> bool {
    matches!(path, "/livez" | "/readyz") || (path == "/metrics" && access.open_metrics)
}

/// Admits only clients that have shown a certificate, where they need one.
pub(super) async fn only_certified(
    State(access): State<AccessConfig>,
    request: Request,
    next: Next,
) -> Response {
    let is_open = is_open(request.uri().path(), &access);
    if request.extensions().get::<LacksCertificate>().is_some() && !is_open {
        let detail = "this server wants a client certificate (serve --tls-client-ca): give one with \
                      --tls-client-cert and --tls-client-key";
        return Problem::new(StatusCode::UNAUTHORIZED, detail).with_code("no_certificate").into_response();
    }
    next.run(request).await
}

/// Admits only requests that name this server and do not come from a foreign web page.
pub(super) async fn only_own_names(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    // The clients of a relay come over loopback, too, and the relay adds its token to their requests.
    let by_relay = request.headers().contains_key(RELAY_HEADER);
    let over_loopback = by_relay || peer_ip(request.extensions()).is_none_or(|ip| ip.is_loopback());
    super::host::only_own(&server.stores().config().own_names, over_loopback, request, next).await
}

/// Refuses a client that would get the address of a store which it cannot reach.
pub(super) fn reaches_stores(server: &Server, headers: &HeaderMap) -> Result<(), Problem> {
    if !server.stores().config().relays_only || headers.contains_key(RELAY_HEADER) {
        return Ok(());
    }
    let detail = "this server's stores have no ports (serve --listen none): start a relay on this node \
                  (rallypoint relay --server HOST:29501, or rallypoint run, which has one) and ask by it, on \
                  127.0.0.1";
    Err(Problem::new(StatusCode::CONFLICT, detail).with_code("relays_only"))
}

/// How the server knows the sender of a request.
#[derive(Debug, Clone)]
enum By {
    /// By its address: there is no token file.
    Address,
    /// Not at all: it has shown no token, or an unknown one.
    Nothing { shown: bool },
    /// By its token.
    Token(Grant),
}

/// The sender of a request, and its rights.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    role: Role,
    by: By,
}

impl Caller {
    /// Identifies the sender by its token; without a token file, by its address.
    fn of(access: &AccessConfig, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Self, Problem> {
        let Some(tokens) = &access.tokens else {
            let is_here = peer.is_some_and(|ip| ip.is_loopback());
            return Ok(Self { role: if is_here { Role::Operator } else { Role::Member }, by: By::Address });
        };
        let shown = token_of(headers);
        if let Some(grant) = shown.as_deref().and_then(|token| tokens.grant(token)) {
            return Ok(Self { role: grant.role, by: By::Token(grant) });
        }
        let by = By::Nothing { shown: shown.is_some() };
        if access.require_token { Err(by.lacks(None)) } else { Ok(Self { role: Role::Member, by }) }
    }

    /// The runs that the caller may see and touch; `None` means all runs.
    pub(super) fn runs(&self) -> Option<&Runs> {
        self.grant().and_then(|grant| grant.runs.as_ref())
    }

    /// The grant of the caller's token, if it has one.
    pub(super) fn grant(&self) -> Option<&Grant> {
        match &self.by {
            By::Token(grant) => Some(grant),
            By::Address | By::Nothing { .. } => None,
        }
    }

    /// The caller's role.
    pub(super) const fn role(&self) -> Role {
        self.role
    }

    /// Whether the caller may see a run.
    pub(super) fn sees(&self, run_id: &str) -> bool {
        self.runs().is_none_or(|runs| runs.has(run_id))
    }

    /// Whether the caller may see a thing that belongs to this run, or to no run.
    pub(super) fn sees_of(&self, run_id: Option<&str>) -> bool {
        self.runs().is_none_or(|runs| run_id.is_some_and(|run_id| runs.has(run_id)))
    }

    /// Refuses a caller whose token is for other runs. `what` names the run, the barrier or the store.
    pub(super) fn may_touch(&self, what: &str, run_id: Option<&str>) -> Result<(), Problem> {
        match self.grant() {
            Some(Grant { line, runs: Some(runs), .. }) if !self.sees_of(run_id) => {
                let detail = format!(
                    "the token on line {line} of the server's --token-file is for runs `{}`, and not for \
                     {what}: use a token for it",
                    runs.pattern()
                );
                Err(Problem::new(StatusCode::FORBIDDEN, detail).with_code("other_run"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a caller whose role is below `needed`.
    pub(super) fn must_be(&self, needed: Role) -> Result<(), Problem> {
        if self.role >= needed { Ok(()) } else { Err(self.by.lacks(Some(needed))) }
    }
}

impl By {
    /// The refusal, with its reason: `needed` is the role that the caller lacks, or `None` where any token
    /// would do.
    fn lacks(&self, needed: Option<Role>) -> Problem {
        let (status, code, detail) = match self {
            Self::Address => (
                StatusCode::FORBIDDEN,
                "no_operator",
                "without a token this is allowed from the server's own host only; start the server with \
                 --token-file and send the token as `Authorization: Bearer`"
                    .into(),
            ),
            Self::Nothing { shown: false } => {
                let why = needed.map_or_else(
                    || "this server wants a token (serve --require-token)".into(),
                    |role| format!("this is for the role {}", role.name()),
                );
                let detail = format!(
                    "{why}: send the token of the server's --token-file, with --token-file FILE \
                     (RALLYPOINT_TOKEN_FILE) or as `Authorization: Bearer`"
                );
                (StatusCode::UNAUTHORIZED, "no_token", detail)
            }
            Self::Nothing { shown: true } => (
                StatusCode::UNAUTHORIZED,
                "unknown_token",
                "the server's --token-file does not have this token: it was revoked, or replaced, or is of \
                 another server; send one that is in it"
                    .into(),
            ),
            Self::Token(grant) => {
                let detail = format!(
                    "this is for the role {}, and the token on line {} of the server's --token-file is of \
                     the role {}: use another token",
                    needed.map_or("viewer", Role::name),
                    grant.line,
                    grant.role.name()
                );
                (StatusCode::FORBIDDEN, "wrong_role", detail)
            }
        };
        Problem::new(status, detail).with_code(code)
    }
}

/// The token of a request: from its header, or from a browser's cookie.
fn token_of(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(sent) = text(header::AUTHORIZATION) {
        return sent.strip_prefix("Bearer ").map(|token| token.trim().to_owned());
    }
    let own = own_cookie(text(header::COOKIE)?)?;
    String::from_utf8(URL_SAFE_NO_PAD.decode(own).ok()?).ok()
}

/// The value of the cookie that holds a token.
pub(super) fn cookie(token: &str) -> String {
    URL_SAFE_NO_PAD.encode(token)
}

/// Admits only callers that the server knows, where the server requires that. The page is open: it holds no
/// data, and asks for the token.
pub(super) async fn only_known(
    State(access): State<AccessConfig>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let is_door = is_open(path, &access) || matches!(path, "/" | "/api/v1/login");
    if is_door {
        return next.run(request).await;
    }
    match Caller::of(&access, request.headers(), peer_ip(request.extensions())) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

impl FromRequestParts<Arc<Server>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Server>) -> Result<Self, Problem> {
        of_request(&parts.extensions).cloned()
    }
}

fn of_request(extensions: &Extensions) -> Result<&Caller, Problem> {
    extensions.get::<Caller>().ok_or_else(|| By::Nothing { shown: false }.lacks(None))
}

/// Admits callers of a role to the run (or the barrier) that the path names.
async fn only(role: Role, params: RawPathParams, request: Request, next: Next) -> Response {
    let checked = of_request(request.extensions()).and_then(|caller| {
        caller.must_be(role)?;
        params.iter().try_for_each(|(name, value)| match name {
            "run_id" => caller.may_touch(&format!("run `{value}`"), Some(value)),
            "name" => caller.may_touch(&format!("the barrier `{value}`"), Some(value)),
            _ => Ok(()),
        })
    });
    match checked {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Guards a route that needs no token.
pub(super) async fn all(request: Request, next: Next) -> Response {
    next.run(request).await
}

/// Guards a route that shows all runs: the caller must be allowed to see all of them.
pub(super) async fn overseers(request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    match caller.map_or(Ok(()), |caller| caller.may_touch("the numbers of all runs", None)) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Guards a route for viewers.
pub(super) async fn viewers(params: RawPathParams, request: Request, next: Next) -> Response {
    only(Role::Viewer, params, request, next).await
}

/// Guards a route for members.
pub(super) async fn members(params: RawPathParams, request: Request, next: Next) -> Response {
    only(Role::Member, params, request, next).await
}

/// Guards a route for operators.
pub(super) async fn operators(params: RawPathParams, request: Request, next: Next) -> Response {
    only(Role::Operator, params, request, next).await
}
