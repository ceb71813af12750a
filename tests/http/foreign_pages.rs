//! A browser may run where the server trusts the address. Only the server's own page gets anything through
//! it: neither a page whose name resolves to the server (DNS rebinding), nor a page from elsewhere. Other
//! programs are admitted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use axum::body::Body;
use axum::http::Request;
use rallypoint_server::config::ServerConfig;
use rallypoint_server::{Server, admin};
use tower::ServiceExt;

use crate::common::{PATIENCE, TestServer};

/// Sends exactly these headers. Returns the status and the answer.
fn ask(server: &TestServer, request_line: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.admin).expect("the admin port listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    write!(stream, "{request_line}\r\n{headers}Connection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, answer)
}

#[test]
fn foreign_pages_are_refused_and_change_nothing() {
    let server = TestServer::start(&[]);
    let reset = format!("DELETE /api/v1/stores/{} HTTP/1.1", server.store.port());
    let evil = "Host: evil.example:29501\r\n";
    let own = "Host: localhost:29501\r\n";
    for headers in [
        evil.to_owned(),
        format!("{evil}Origin: http://evil.example:29501\r\n"),
        format!("{own}Origin: http://evil.example\r\n"),
        format!("{own}Origin: http://localhost:3000\r\n"),
        format!("{own}Origin: null\r\n"),
        format!("{own}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n"),
        format!("{own}Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\n"),
        format!("{own}{evil}"),
    ] {
        for request in [&reset, "GET / HTTP/1.1", "GET /api/v1/runs HTTP/1.1", "GET /metrics HTTP/1.1"] {
            let (status, answer) = ask(&server, request, &headers);
            assert!(status == 403 && answer.contains("\"foreign_"), "{request} {headers}: {answer}");
        }
    }
}

/// A relay asks from another host, over the network, and so may a browser there.
#[tokio::test]
async fn a_page_gets_nothing_through_a_relay_or_the_network() {
    let router = admin::router(Server::start(ServerConfig::default(), Vec::new()).expect("a server"));
    let peer = SocketAddr::from(([10, 0, 0, 5], 40_000));
    let relay = ("rallypoint-relay", "train-0");
    // In a plain GET of a page, a browser names no origin.
    let browser = ("accept-language", "en");
    let (evil, pod) = ("evil.example:29501", "train-0.training:29501");
    for (host, more, status) in [
        (evil, relay, 403),
        (evil, browser, 403),
        ("localhost:29501", relay, 200),
        ("127.0.0.1:29501", relay, 200),
        ("rallypoint.train.svc:29501", browser, 200),
        (pod, ("accept", "application/json"), 200),
    ] {
        for path in ["/api/v1/runs", "/api/v1/stores", "/api/v1/links", "/api/v1/waits", "/metrics"] {
            let request = Request::get(path).header("host", host).header(more.0, more.1);
            let request = request.body(Body::empty()).expect("a request");
            let answer = router.clone().oneshot(admin::arrived(request, peer, Some(peer))).await;
            assert_eq!(answer.expect("an answer").status(), status, "{host} {more:?} {path}");
        }
    }
}

#[test]
fn whoever_asks_by_a_name_of_the_server_is_let_in() {
    let server = TestServer::start(&["--allow-host", "rally.example.com,.hpc.example.edu"]);
    let reset = format!("DELETE /api/v1/stores/{} HTTP/1.1", server.store.port());
    for headers in [
        // A port-forward to another port: with the server's page, and without a browser.
        "Host: localhost:9000\r\nOrigin: http://localhost:9000\r\nSec-Fetch-Site: same-origin\r\n\
         Sec-Fetch-Mode: cors\r\n",
        "Host: 127.0.0.1:9000\r\n",
        "Host: 10.1.2.3:29501\r\n",
        "Host: [fd00::7]:29501\r\n",
        "Host: rallypoint:29501\r\n",
        "Host: rallypoint.train.svc.cluster.local:29501\r\n",
        "Host: rally.example.com\r\nOrigin: https://rally.example.com\r\n",
        "Host: head.hpc.example.edu:29501\r\n",
        // A link to the page.
        "Host: localhost:9000\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n",
    ] {
        for request in [&reset, "GET / HTTP/1.1", "GET /metrics HTTP/1.1"] {
            let (status, answer) = ask(&server, request, headers);
            assert_eq!(status, 200, "{request} {headers}: {answer}");
        }
    }
    // Probes may use any name, or none.
    assert_eq!(ask(&server, "GET /livez HTTP/1.1", "Host: lb.example.com\r\n").0, 200);
    assert_eq!(ask(&server, "GET /readyz HTTP/1.0", "").0, 200);
}
