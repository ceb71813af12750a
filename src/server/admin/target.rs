//! What a request names in its path and query.

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// The one parameter of a route's path: a run's id, a store's port, a barrier's name.
#[derive(Debug)]
pub(super) struct Named<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(name)| Self(name)).map_err(|error| Problem::bad_request(error.body_text()))
    }
}

/// The parameters after the question mark.
#[derive(Debug)]
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(params)| Self(params)).map_err(|error| Problem::bad_request(error.body_text()))
    }
}
