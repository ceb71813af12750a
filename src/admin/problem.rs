//! Errors of the API: problem details as in RFC 9457, whose `detail` says what to do.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// An error answer.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    detail: String,
}

fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { title: status.canonical_reason().unwrap_or("Error"), status, detail: detail.into() }
    }

    pub(super) fn timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the request did not become whole in time; send it again")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        (self.status, kind, Json(self)).into_response()
    }
}

impl From<Problem> for Response {
    fn from(problem: Problem) -> Self {
        problem.into_response()
    }
}
