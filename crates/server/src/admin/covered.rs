//! An answer leaves only when it is safe. It waits until the journal has everything that had happened when
//! the answer was made, and while another server may lead. This layer covers every handler, so no handler can
//! answer too early, and none has to know about the journal.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use super::problem::Problem;
use crate::Server;

/// Holds an answer, or each piece of a stream, until it may leave. After too long a wait the client gets 503.
pub(super) async fn covered(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let Some(answer) = server.stores().covered(next.run(request)).await else {
        return held(&server).into_response();
    };
    if answer.body().size_hint().exact().is_some() {
        return answer;
    }
    // The pieces of a stream are made later, so each one waits for itself.
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

/// The answer in place of a held one. It contains nothing that the server knows about jobs.
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
