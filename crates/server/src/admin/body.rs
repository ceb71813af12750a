//! Request bodies, which must be complete and in time, and answer bodies in shared parts.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::HttpBody;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::REQUEST_TIMEOUT;
use super::problem::Problem;

/// The JSON body of a request.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        match tokio::time::timeout(REQUEST_TIMEOUT, Json::from_request(request, state)).await {
            Ok(Ok(Json(body))) => Ok(Self(body)),
            Ok(Err(error)) => {
                let hint = "GET /api/v1/openapi.json describes the body; send it as application/json";
                Err(Problem::new(error.status(), format!("{}; {hint}", error.body_text()))
                    .with_code("bad_request"))
            }
            Err(_) => Err(Problem::timeout()),
        }
    }
}

/// The body of an answer, in parts: a part that many answers share is made once.
#[derive(Debug)]
pub(super) struct Parts(pub(super) VecDeque<Bytes>);

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(http_body::Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}
