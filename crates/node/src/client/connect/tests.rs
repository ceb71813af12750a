use super::*;
use tokio::net::TcpListener;

const LIMIT: Duration = Duration::from_millis(400);

/// A server that plays `script` on each connection, one after the other: for each text it reads once and then
/// writes the text. An empty text is a pause instead of an answer. At the end of the script the server
/// closes.
async fn server(script: &'static [&'static [u8]]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            for say in script {
                let mut heard = [0; 64];
                let _heard = stream.read(&mut heard).await;
                if say.is_empty() {
                    tokio::time::sleep(2 * LIMIT).await;
                }
                let _said = stream.write_all(say).await;
            }
        }
    });
    addr
}

async fn failure(script: &'static [&'static [u8]]) -> StepError {
    greet(server(script).await, LIMIT).await.expect_err("no store answers there")
}

#[tokio::test]
async fn a_closed_port_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = listener.local_addr().expect("bound");
    drop(listener);
    let error = greet(addr, LIMIT).await.expect_err("nobody listens");
    assert!(matches!(error, StepError::Refused { .. }), "{error}");
}

#[tokio::test]
async fn others_are_known_by_what_they_answer() {
    let error = failure(&[b"HTTP/1.1 400 Bad Request\r\n\r\n"]).await;
    assert!(matches!(error, StepError::Foreign { answerer: Answerer::Http, .. }), "{error}");
    let error = failure(&[b"HT"]).await;
    assert!(matches!(error, StepError::Foreign { answerer: Answerer::Http, .. }), "{error}");
    let error = failure(&[b"\x01\x02\x03\x04"]).await;
    assert!(error.to_string().ends_with("it answers with 01 02 03 04; is this the right port?"), "{error}");
}

#[tokio::test]
async fn a_peer_that_waits_for_a_line_is_nudged() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        while stream.read_u8().await.expect("more") != b'\n' {}
        stream.write_all(b"<!DOCTYPE HTML>").await.expect("written");
    });
    let error = greet(addr, LIMIT).await.expect_err("an HTTP server");
    assert!(matches!(error, StepError::Foreign { answerer: Answerer::Http, .. }), "{error}");
}

#[tokio::test]
async fn silence_and_a_close_are_told_apart() {
    let error = failure(&[b""]).await;
    assert!(matches!(error, StepError::Silent { .. }), "{error}");
    assert_eq!(error.step(), crate::client::Step::Ping);
    let error = failure(&[]).await;
    assert!(matches!(error, StepError::Closed { .. }), "{error}");
    assert_eq!(error.step(), crate::client::Step::Hello);
}

#[tokio::test]
async fn a_store_that_is_slow_at_first_is_in_step_afterwards() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = listener.local_addr().expect("bound");
    let peer = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut pings = [0; 15];
        // The client has sent both pings only after the nudge.
        stream.read_exact(&mut pings).await.expect("hello and two pings");
        stream.write_all(&pings[6..10]).await.expect("written");
        stream.write_all(&pings[11..15]).await.expect("written");
        assert_eq!(stream.read_u8().await.expect("the next request"), 7);
        stream.write_all(b"next").await.expect("written");
        pings
    });
    let mut greeted = greet(addr, LIMIT).await.expect("a store");
    assert!(greeted.pings);
    greeted.stream.write_all(&[7]).await.expect("written");
    let mut next = [0; 4];
    greeted.stream.read_exact(&mut next).await.expect("the next reply");
    assert_eq!(&next, b"next");
    let pings = peer.await.expect("done");
    assert_eq!(pings[..6], [0, 0xce, 0xf7, 0x85, 0x3c, 13]);
}

#[tokio::test]
async fn a_server_of_pytorch_2_4_is_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut start = [0; 6];
            stream.read_exact(&mut start).await.expect("hello and an operation");
            if start[5] == 7 {
                stream.write_all(&300_i64.to_le_bytes()).await.expect("written");
            }
        }
    });
    let greeted = greet(addr, LIMIT).await.expect("a store");
    assert!(!greeted.pings);
}

#[tokio::test]
async fn names_are_resolved_or_the_reason_is_given() {
    let endpoint = |text: &str| text.parse::<Endpoint>().expect("an endpoint");
    let addrs = resolve(&endpoint("127.0.0.1:1"), LIMIT).await.expect("an address");
    assert_eq!(addrs, [SocketAddr::from(([127, 0, 0, 1], 1))]);
    let error =
        resolve(&endpoint("no-such-host.invalid"), Duration::from_secs(30)).await.expect_err("no address");
    let text = error.to_string();
    assert!(text.starts_with("cannot resolve `no-such-host.invalid`: "), "{text}");
    assert!(!text.contains("failed to lookup"), "{text}");
}
