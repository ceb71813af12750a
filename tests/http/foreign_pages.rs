//! A browser may sit where the server trusts the address. No web page but the server's own gets anything through it:
//! neither one whose name resolves to the server (DNS rebinding), nor one from elsewhere. Who is no browser is let in.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::common::relay::TestRelay;
use crate::common::{PATIENCE, TestServer};

/// The status of the answer to a request with exactly these headers, and the answer.
fn ask(server: &TestServer, request_line: &str, headers: &str) -> (u16, String) {
    ask_at(server.admin, request_line, headers)
}

fn ask_at(admin: SocketAddr, request_line: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(admin).expect("the admin port listens");
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

#[test]
fn a_relay_lends_its_token_to_no_foreign_page() {
    let server = TestServer::start(&[]);
    let relay = TestRelay::start(server.admin, "train-0", &[]);
    let paths = ["/api/v1/runs", "/api/v1/stores", "/api/v1/links", "/api/v1/waits", "/metrics"];
    for path in paths {
        let request = format!("GET {path} HTTP/1.1");
        let (status, answer) = ask_at(relay.admin, &request, "Host: evil.example:29501\r\n");
        assert!(status == 403 && answer.contains("\"foreign_host\""), "{path}: {answer}");
        for own in ["localhost:29501", "127.0.0.1:29501", "train-0:29501"] {
            let (status, answer) = ask_at(relay.admin, &request, &format!("Host: {own}\r\n"));
            assert_eq!(status, 200, "{own}{path}: {answer}");
        }
    }
}

#[test]
fn whoever_asks_by_a_name_of_the_server_is_let_in() {
    let server = TestServer::start(&["--allow-host", "rally.example.com,.hpc.example.edu"]);
    let reset = format!("DELETE /api/v1/stores/{} HTTP/1.1", server.store.port());
    for headers in [
        // A port-forward to another port, with the page of the server, and one without a browser.
        "Host: localhost:9000\r\nOrigin: http://localhost:9000\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n",
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
    // Probes come by any name, and by none.
    assert_eq!(ask(&server, "GET /livez HTTP/1.1", "Host: lb.example.com\r\n").0, 200);
    assert_eq!(ask(&server, "GET /readyz HTTP/1.0", "").0, 200);
}
