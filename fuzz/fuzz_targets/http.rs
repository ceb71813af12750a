//! Arbitrary bodies for each route of the API that takes one. The answer's status is 2xx or 4xx, or the
//! answer reports a limit, and the server goes on.
//!
//! The first byte of the input chooses the route, and the second one the run, so that requests meet; the rest
//! is the body. One server takes all inputs, so its state is as after a long life. Time stands still, except
//! that each wait of a request ends at once.
#![no_main]

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use libfuzzer_sys::fuzz_target;
use rallypoint_server::Server;
use rallypoint_server::admin;
use rallypoint_server::config::ServerConfig;
use tower::ServiceExt;

/// The routes with a body. `RUN` stands for the run or the barrier.
const ROUTES: [(&str, &str); 9] = [
    ("POST", "/api/v1/runs/RUN/join"),
    ("POST", "/api/v1/runs/RUN/heartbeat"),
    ("POST", "/api/v1/runs/RUN/leave"),
    ("POST", "/api/v1/runs/RUN/close"),
    ("POST", "/api/v1/runs/RUN/extend"),
    ("POST", "/api/v1/runs/RUN/announce"),
    ("PUT", "/api/v1/runs/RUN/expect"),
    ("POST", "/api/v1/barriers/RUN/arrive"),
    ("POST", "/api/v1/stores"),
];
/// The number of runs and barriers.
const RUNS: u8 = 4;
/// No ports for stores: a round that wants a store is refused, so the fuzzer opens no sockets.
const NO_PORTS: RangeInclusive<u16> = RangeInclusive::new(1, 0);

static ROUTER: LazyLock<Router> = LazyLock::new(|| {
    let config = ServerConfig { listen: Vec::new(), store_ports: NO_PORTS, ..ServerConfig::default() };
    admin::router(Server::start(config, Vec::new()).expect("a server without sockets"))
});

async fn answer(router: &Router, method: &str, path: &str, body: &[u8]) -> StatusCode {
    let here = SocketAddr::from(([127, 0, 0, 1], 29501));
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_vec()))
        .expect("a request");
    let Ok(response) = router.clone().oneshot(admin::arrived(request, here, Some(here))).await;
    response.status()
}

fuzz_target!(|input: &[u8]| {
    let [route, run, body @ ..] = input else { return };
    let (method, path) = ROUTES[usize::from(*route) % ROUTES.len()];
    let path = path.replace("RUN", &format!("run-{}", run % RUNS));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let status = answer(&ROUTER, method, &path, body).await;
        assert!(
            status.is_success() || status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE,
            "{method} {path} was answered with {status}"
        );
        assert_eq!(
            answer(&ROUTER, "GET", "/api/v1/runs", b"").await,
            StatusCode::OK,
            "the runs can be shown"
        );
    });
});
