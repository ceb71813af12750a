//! The route of the native barrier.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::body::Body;
use super::fields::{label, token, wait};
use super::problem::Problem;
use super::target::{BarrierPath, Named};
use crate::Server;
use rallypoint_api as api;
use rallypoint_protocol::ids::{Label, count};
use rallypoint_rendezvous::barrier::{Arrival, ArrivalRefusal, ArrivalStanding};

/// Arrives at a barrier; waits for the others.
#[utoipa::path(
    post,
    path = "/api/v1/barriers/{name}/arrive",
    operation_id = "arrive",
    params(BarrierPath),
    request_body(content = api::Arrive, example = json!({
        "participant": "trainer-0", "arrival_id": "1", "world_size": 1, "timeout_seconds": 300,
        "wait_seconds": 15
    })),
    responses(
        (status = 200, description = "All have arrived.", body = api::ArriveReleased),
        (status = 202, description = "Not yet: send the same again.", body = api::ArriveWaiting)
    )
)]
pub(super) async fn arrive(
    State(server): State<Arc<Server>>,
    Named(name): Named<String>,
    Body(body): Body<api::Arrive>,
) -> Result<Response, Problem> {
    let (name, wait) = (label("name", &name)?, wait(body.wait_seconds));
    let members = body.members.as_deref().map(names).transpose()?;
    let Some(size) = body.world_size.or(members.as_ref().map(|members| count(members.len()))) else {
        return Err(Problem::bad_request("say how many must arrive as `world_size`, or who as `members`"));
    };
    let arrival = Arrival {
        participant: label("participant", &body.participant)?,
        arrival_id: token("arrival_id", body.arrival_id)?,
        size,
        members,
        timeout: body.timeout_seconds.get(),
    };
    let barrier = name.to_string();
    let standing = server.rounds().arrive(&name, arrival, wait).await?;
    Ok(match standing {
        ArrivalStanding::Released { generation, size } => {
            Json(api::ArriveReleased { state: "released".into(), barrier, generation, world_size: size })
                .into_response()
        }
        ArrivalStanding::Waiting { generation, arrived, size, missing, waited, .. } => {
            let answer = api::ArriveWaiting {
                state: "waiting".into(),
                barrier,
                generation,
                arrived,
                world_size: size,
                missing,
                waited_seconds: waited.as_secs_f64(),
            };
            (StatusCode::ACCEPTED, Json(answer)).into_response()
        }
    })
}

fn names(members: &[String]) -> Result<BTreeSet<Label>, Problem> {
    let given = members.len();
    let names = members.iter().map(|name| label("members", name)).collect::<Result<BTreeSet<_>, _>>()?;
    if names.len() == given {
        return Ok(names);
    }
    Err(Problem::bad_request("`members` names somebody twice"))
}

impl From<ArrivalRefusal> for Problem {
    fn from(refusal: ArrivalRefusal) -> Self {
        let status = match refusal {
            ArrivalRefusal::Timeout { .. } => StatusCode::REQUEST_TIMEOUT,
            ArrivalRefusal::Mismatch { .. } | ArrivalRefusal::Gone => StatusCode::CONFLICT,
            ArrivalRefusal::Bad(_) => StatusCode::BAD_REQUEST,
            ArrivalRefusal::TooMany(_) | ArrivalRefusal::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
        };
        let problem = Self::new(status, refusal.to_string()).with_code(refusal.code());
        match refusal {
            ArrivalRefusal::Timeout { arrived, missing, .. } => problem.at_barrier(arrived, missing),
            _ => problem,
        }
    }
}
