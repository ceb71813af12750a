use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(20);

/// A client and, in place of a server, the other end of its connection after the greeting.
async fn pair(max_reply: usize) -> (Client, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = listener.local_addr().expect("bound");
    let greeting = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut greeting = [0; 10];
        stream.read_exact(&mut greeting).await.expect("hello and ping");
        stream.write_all(&greeting[6..]).await.expect("written");
        stream
    });
    let options = Options { step: LONG, call: SHORT, max_reply };
    let client = Client::connect_addr(addr, &options).await.expect("connected");
    (client, greeting.await.expect("greeted"))
}

async fn hears(peer: &mut TcpStream, bytes: &[u8]) {
    let mut heard = vec![0; bytes.len()];
    peer.read_exact(&mut heard).await.expect("a request");
    assert_eq!(heard, bytes);
}

#[tokio::test]
async fn a_wait_that_ends_in_time_is_a_success() {
    let (mut client, mut peer) = pair(1024).await;
    peer.write_all(&[0]).await.expect("written");
    client.wait(&["k"], LONG).await.expect("released");
    hears(&mut peer, &[6, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'k']).await;
}

#[tokio::test]
async fn a_wait_that_does_not_is_taken_back_and_the_client_goes_on() {
    let (mut client, mut peer) = pair(1024).await;
    let waiting = tokio::spawn(async move {
        let ended = client.wait(&["k"], SHORT).await;
        (client, ended)
    });
    hears(&mut peer, &[6, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'k', 12]).await;
    peer.write_all(&[1]).await.expect("written");
    let (mut client, ended) = waiting.await.expect("no panic");
    assert!(matches!(ended, Err(Error::NotInTime { after: SHORT })), "{ended:?}");
    peer.write_all(&5_i64.to_le_bytes()).await.expect("written");
    assert_eq!(client.num_keys().await.expect("in step"), 5);
}

#[tokio::test]
async fn a_release_that_crosses_the_cancellation_counts() {
    let (mut client, mut peer) = pair(1024).await;
    let waiting = tokio::spawn(async move {
        let ended = client.barrier(b"b", 2, SHORT).await;
        (client, ended)
    });
    hears(&mut peer, &[18, 1, 0, 0, 0, 0, 0, 0, 0, b'b', 2, 0, 0, 0, 0, 0, 0, 0, 12]).await;
    peer.write_all(&[0, 1]).await.expect("written");
    let (mut client, ended) = waiting.await.expect("no panic");
    ended.expect("released");
    peer.write_all(&[0]).await.expect("written");
    assert!(client.check(&["b"]).await.expect("in step"));
}

#[tokio::test]
async fn a_server_that_does_not_answer_ends_the_use_of_the_connection() {
    let (mut client, _peer) = pair(1024).await;
    assert!(matches!(client.num_keys().await, Err(Error::NoAnswer { .. })));
    assert!(matches!(client.set(b"k", b"v").await, Err(Error::OutOfStep)));
}

#[tokio::test]
async fn a_call_dropped_half_way_ends_the_use_of_the_connection() {
    let (mut client, _peer) = pair(1024).await;
    assert!(tokio::time::timeout(SHORT / 10, client.add(b"k", 1)).await.is_err());
    assert!(matches!(client.add(b"k", 1).await, Err(Error::OutOfStep)));
}

#[tokio::test]
async fn garbage_and_oversize_are_errors() {
    let (mut client, mut peer) = pair(1024).await;
    peer.write_all(&[7]).await.expect("written");
    assert!(matches!(client.check(&["k"]).await, Err(Error::Garbage { .. })));

    let (mut client, mut peer) = pair(1024).await;
    peer.write_all(&(-1_i64).to_le_bytes()).await.expect("written");
    assert!(matches!(client.list_keys().await, Err(Error::Garbage { .. })));

    for count in [i64::MAX, 129] {
        let (mut client, mut peer) = pair(1024).await;
        peer.write_all(&count.to_le_bytes()).await.expect("written");
        assert!(matches!(client.list_keys().await, Err(Error::TooLarge { limit: 1024, .. })), "{count}");
    }

    let (mut client, mut peer) = pair(1024).await;
    peer.write_all(&[0]).await.expect("written");
    peer.write_all(&u64::MAX.to_le_bytes()).await.expect("written");
    assert!(matches!(client.get(b"k", LONG).await, Err(Error::TooLarge { limit: 1024, .. })));
}

#[tokio::test]
async fn a_close_names_the_call_and_the_likely_reason() {
    let (mut client, peer) = pair(1024).await;
    drop(peer);
    let error = client.list_keys().await.expect_err("closed").to_string();
    assert_eq!(
        error,
        "the server closed the connection at list_keys (PyTorch's server can list keys from 2.10 on)"
    );
}

#[tokio::test]
async fn a_pop_that_another_client_won_waits_on() {
    let (mut client, mut peer) = pair(1024).await;
    let popping = tokio::spawn(async move { client.queue_pop(b"q", LONG).await });
    let wait = [6, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'q'];
    let pop = [15, 1, 0, 0, 0, 0, 0, 0, 0, b'q'];
    hears(&mut peer, &wait).await;
    peer.write_all(&[0]).await.expect("written");
    hears(&mut peer, &pop).await;
    peer.write_all(&0_i64.to_le_bytes()).await.expect("written");
    hears(&mut peer, &wait).await;
    peer.write_all(&[0]).await.expect("written");
    hears(&mut peer, &pop).await;
    peer.write_all(&1_i64.to_le_bytes()).await.expect("written");
    peer.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, b'x']).await.expect("written");
    assert_eq!(popping.await.expect("no panic").expect("an item"), "x");
}
