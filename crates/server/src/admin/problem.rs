//! Errors of the API: problem details as in RFC 9457, whose `detail` says what to do.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::Ended;
use rallypoint_api as api;
use rallypoint_protocol::ids::Shown;

/// Seconds after which a client may ask again, if the server cannot do it now.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// An error answer.
#[derive(Debug)]
pub(super) struct Problem(api::Problem);

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self(api::Problem {
            title: title.into(),
            status: status.as_u16(),
            // `detail` may quote text from the client.
            detail: Shown(&detail.into()).to_string(),
            code: None,
            arrived: None,
            missing: None,
        })
    }

    pub(super) fn with_code(mut self, code: &'static str) -> Self {
        self.0.code = Some(code.into());
        self
    }

    /// Adds the participants that had arrived when a barrier's time was over, and the missing ones.
    pub(super) fn at_barrier(mut self, arrived: u32, missing: Vec<String>) -> Self {
        (self.0.arrived, self.0.missing) = (Some(arrived), Some(missing));
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
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer =
            (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(self.0)).into_response();
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
