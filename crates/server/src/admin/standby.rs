//! The admin port of a standby server: health, metrics, and for every other request the name of the leader.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::accept::{PAUSE, RESERVE, Reserve, Serving, keep_files, serve_connection};
use super::access::{only_certified, only_known};
use super::problem::Problem;
use super::routes;
use crate::config::AccessConfig;
use crate::journal::etcd::{Etcd, Role};
use crate::metrics;
use crate::tcp::Workers;
use rallypoint_access::tls::ServerTls;

/// Serves the admin port until the result is dropped.
pub fn serve(
    listener: std::net::TcpListener,
    etcd: Arc<Etcd>,
    tls: Option<ServerTls>,
    access: &AccessConfig,
) -> io::Result<Serving> {
    let thread = Workers::start("standby", NonZeroUsize::MIN)?;
    let runtime = thread.round_robin().next().clone();
    let listener = {
        let _entered = runtime.enter();
        TcpListener::from_std(listener)?
    };
    let router = Router::new()
        .route("/livez", get(routes::livez))
        .route("/readyz", get(refuse))
        .route("/metrics", get(page_of_metrics))
        .fallback(refuse)
        .layer(from_fn_with_state(access.clone(), only_known))
        .layer(from_fn_with_state(access.clone(), only_certified))
        .with_state(etcd);
    let tls = tls.map(Arc::new);
    keep_files(&runtime, tls.clone(), access);
    runtime.spawn(accept(listener, router, tls));
    Ok(Serving::on(thread))
}

async fn accept(listener: TcpListener, router: Router, tls: Option<Arc<ServerTls>>) {
    let mut reserve = Reserve::new(RESERVE);
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let served = tokio::spawn(serve_connection(stream, peer, tls.clone(), router.clone(), None));
        reserve.enter(served.abort_handle());
        tokio::task::yield_now().await;
    }
}

async fn refuse(State(etcd): State<Arc<Etcd>>) -> Problem {
    let detail = match etcd.standing().role() {
        Role::Standby(Some(leader)) => format!("standby: {leader} leads"),
        Role::Standby(None) => "standby: it is not known who leads; does etcd answer?".into(),
        Role::Leader => "this server leads now, and starts to serve".into(),
        Role::Lost(lost) => lost.to_string(),
    };
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_code("standby")
}

async fn page_of_metrics(State(etcd): State<Arc<Etcd>>) -> Result<Response, Problem> {
    let text = metrics::render_standby(&etcd);
    let text = text.map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}
