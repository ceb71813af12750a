//! A browser's token: it comes once in a body, and later in the cookie of every request. No script can read
//! the cookie.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::{Extension, Json};

use super::access::{Encrypted, cookie};
use super::body::Body;
use super::problem::Problem;
use crate::Server;
use rallypoint_api::{self as api, COOKIE};

type SetCookie = [(HeaderName, String); 1];

fn set_cookie(value: &str, rest: &str) -> SetCookie {
    [(header::SET_COOKIE, format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{rest}"))]
}

/// Keeps a token in a cookie, for a browser.
#[utoipa::path(
    post,
    path = "/api/v1/login",
    operation_id = "login",
    request_body(content = api::Login, example = json!({"token": "s3cret"})),
    responses((status = 200, description = "The cookie is set.", body = api::LoggedIn))
)]
pub(super) async fn login(
    State(server): State<Arc<Server>>,
    encrypted: Option<Extension<Encrypted>>,
    Body(api::Login { token }): Body<api::Login>,
) -> Result<(SetCookie, Json<api::LoggedIn>), Problem> {
    let tokens = server.stores().config().access.tokens.as_ref();
    let Some(grant) = tokens.and_then(|tokens| tokens.grant(token.trim())) else {
        let detail = "the server's --token-file does not have this token";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, detail).with_code("unknown_token"));
    };
    let answer = api::LoggedIn {
        role: grant.role.name().into(),
        runs: grant.runs.as_ref().map(|runs| runs.pattern().to_owned()),
    };
    let secure = if encrypted.is_some() { "; Secure" } else { "" };
    Ok((set_cookie(&cookie(token.trim()), secure), Json(answer)))
}

/// Forgets the token that a browser has in its cookie.
#[utoipa::path(
    delete,
    path = "/api/v1/login",
    operation_id = "logout",
    responses((status = 204, description = "The cookie is gone."))
)]
pub(super) async fn logout(_: Request) -> (StatusCode, SetCookie) {
    (StatusCode::NO_CONTENT, set_cookie("", "; Max-Age=0"))
}
