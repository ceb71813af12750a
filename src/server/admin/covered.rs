//! What the server knows leaves it only once that is safe. Each answer waits, whoever made it, until the journal has all
//! that had happened when it was made, and until no other server can lead. So no handler can answer too early, and none
//! has to think of it.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use super::problem::Problem;
use crate::server::Server;

/// Holds the answer to a request until it may leave, and of a stream each piece. Who would wait for too long is told so.
pub(super) async fn covered(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let Some(answer) = server.stores().covered(next.run(request)).await else {
        return held(&server).into_response();
    };
    if answer.body().size_hint().exact().is_some() {
        return answer;
    }
    // What is still to come is made later.
    answer.map(|body| {
        Body::from_stream(body.into_data_stream().then(move |piece| {
            let server = Arc::clone(&server);
            async move {
                server.stores().safe().await;
                piece
            }
        }))
    })
}

/// Says nothing of what the server knows of jobs.
fn held(server: &Server) -> Problem {
    let may_answer = server.stores().journal().is_none_or(|journal| journal.may_answer());
    let why = if may_answer {
        "the journal has not taken for 10 s what this answer depends on"
    } else {
        "etcd has not heard of this server for so long that another one may lead"
    };
    let detail = format!("{why}: answers are held. What was asked for is done or not; ask again");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_code("standby")
}
