//! Fields that the bodies of several routes share: labels, run ids, tokens and waiting times.

use std::time::Duration;

use super::problem::Problem;
use rallypoint_api::{self as api, PeerDuration};
use rallypoint_protocol::ids::{Label, RunId};
use rallypoint_rendezvous::Payload;

pub(super) fn run_id(text: &str) -> Result<RunId, Problem> {
    label("run_id", text).map(|label| RunId::new(label.as_str().as_bytes()))
}

pub(super) fn label(name: &str, text: &str) -> Result<Label, Problem> {
    Label::new(text).map_err(|error| Problem::bad_request(format!("`{name}` {error}")))
}

pub(super) fn optional(name: &str, text: Option<&str>) -> Result<Option<Label>, Problem> {
    text.map(|text| label(name, text)).transpose()
}

pub(super) fn payload(text: &str) -> Result<Payload, Problem> {
    Payload::new(text).map_err(|error| Problem::bad_request(format!("`payload` {error}")))
}

/// A label that may be empty.
pub(super) fn token(name: &str, text: String) -> Result<Box<str>, Problem> {
    if !text.is_empty() {
        label(name, &text)?;
    }
    Ok(text.into())
}

pub(super) fn wait(given: PeerDuration) -> Duration {
    given.get().min(api::MAX_WAIT)
}
