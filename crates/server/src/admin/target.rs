//! The parameters in a request's path and query.

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

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

/// Describes `{run_id}` in a path, for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(names("run_id"), parameter_in = Path)]
#[expect(dead_code, reason = "describes what `Named` reads")]
pub(super) struct RunPath(
    /// The run's id.
    #[param(example = "train-17")]
    String,
);

/// Describes `{port}` in a path, for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(names("port"), parameter_in = Path)]
#[expect(dead_code, reason = "describes what `Named` reads")]
pub(super) struct StorePath(
    /// The store's port.
    #[param(example = 29500)]
    u16,
);

/// Describes `{name}` in a path, for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(names("name"), parameter_in = Path)]
#[expect(dead_code, reason = "describes what `Named` reads")]
pub(super) struct BarrierPath(
    /// The barrier's name.
    #[param(example = "epoch")]
    String,
);
