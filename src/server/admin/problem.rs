//! Errors of the API: problem details as in RFC 9457, whose `detail` says what to do.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::core::ids::Shown;
use crate::server::Ended;

/// Seconds until it is worth asking again where the server cannot do now what it is asked for.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// An error answer.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    title: &'static str,
    status: u16,
    detail: String,
    /// What happened, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// What else is known of it.
    #[serde(flatten)]
    more: serde_json::Map<String, serde_json::Value>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self {
            title,
            status: status.as_u16(),
            // It may quote what was sent.
            detail: Shown(&detail.into()).to_string(),
            code: None,
            more: serde_json::Map::new(),
        }
    }

    pub(super) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail).with_code("bad_request")
    }

    pub(super) fn stopping(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_code("stopping")
    }

    pub(super) fn timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the request did not become whole in time; send it again")
    }
}

impl From<Ended> for Problem {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Refused(refusal) => refusal.into(),
            Ended::Barrier(refusal) => refusal.into(),
            Ended::Replaced => Self::new(StatusCode::CONFLICT, ended.to_string()).with_code("replaced"),
            Ended::Stopping => Self::stopping(ended.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer =
            (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(self)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            answer.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        answer
    }
}

impl From<Problem> for Response {
    fn from(problem: Problem) -> Self {
        problem.into_response()
    }
}
