//! Measures how long the name server takes for the name of an address. It sends the question itself: the
//! server must not be linked with the system's resolver functions for this, because PyTorch's store stalls in
//! them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout};

/// Asks a name server, and returns the time and the name in the answer. `None` if there is no network to it,
/// or nobody listens there. If no answer comes, the time is the whole `limit`. An answer without a name also
/// counts.
pub(crate) async fn lookup(
    server: SocketAddr,
    addr: IpAddr,
    limit: Duration,
) -> Option<(Duration, Option<String>)> {
    let any: IpAddr = if server.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    socket.connect(server).await.ok()?;
    let started = Instant::now();
    socket.send(&question(addr)).await.ok()?;
    let mut answer = [0; 512];
    match timeout(limit, socket.recv(&mut answer)).await {
        // The host refused the packet: no name server runs there, and the resolver would notice that at once.
        Ok(Err(_)) => None,
        Ok(Ok(length)) => Some((started.elapsed(), name_in(answer.get(..length)?))),
        Err(_) => Some((started.elapsed(), None)),
    }
}

/// The name in an answer with a PTR record.
fn name_in(answer: &[u8]) -> Option<String> {
    let number = |at: usize| Some(u16::from_be_bytes([*answer.get(at)?, *answer.get(at.checked_add(1)?)?]));
    (number(6)? > 0).then_some(())?;
    // The header, the question with its type and class, the record's own name.
    let (_, question) = name_at(answer, 12)?;
    let (_, record) = name_at(answer, question.checked_add(4)?)?;
    let (name, _) = (number(record)? == 12).then(|| name_at(answer, record.checked_add(10)?))??;
    Some(name).filter(|name| !name.is_empty())
}

/// The name that begins here, and the position behind it. The rest of a name may stand elsewhere.
fn name_at(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    let mut behind = None;
    // A name has at most 127 labels; more would be a loop.
    for _ in 0..128 {
        let length = *message.get(at)?;
        let next = at.checked_add(1)?;
        match length {
            0 => return Some((labels.join("."), behind.unwrap_or(next))),
            0xc0.. => {
                behind = behind.or_else(|| next.checked_add(1));
                at = usize::from(u16::from_be_bytes([length & 0x3f, *message.get(next)?]));
            }
            _ => {
                let end = next.checked_add(usize::from(length))?;
                labels.push(String::from_utf8_lossy(message.get(next..end)?).into_owned());
                at = end;
            }
        }
    }
    None
}

/// The first name server of `/etc/resolv.conf`.
pub(crate) fn first_name_server(resolv_conf: &str) -> Option<SocketAddr> {
    let mut words = resolv_conf.lines().map(str::split_whitespace);
    let first =
        words.find_map(
            |mut line| if line.next() == Some("nameserver") { line.next()?.parse().ok() } else { None },
        );
    first.map(|server: IpAddr| SocketAddr::new(server, 53))
}

/// A DNS question (RFC 1035) for the PTR record of an address.
fn question(addr: IpAddr) -> Vec<u8> {
    let name = match addr.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(v6) => {
            let digits =
                v6.octets().iter().rev().map(|b| format!("{:x}.{:x}.", b & 15, b >> 4)).collect::<Vec<_>>();
            format!("{}ip6.arpa", digits.concat())
        }
    };
    // An id, "recursion desired", one question.
    let mut bytes = vec![0x72, 0x70, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(label.as_bytes());
    }
    // The end of the name, type PTR, class IN.
    bytes.extend_from_slice(&[0, 0, 12, 0, 1]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_names_the_address_backwards() {
        let bytes = question(IpAddr::from([10, 0, 0, 7]));
        assert_eq!(&bytes[12..], b"\x017\x010\x010\x0210\x07in-addr\x04arpa\0\0\x0c\0\x01");
        let bytes = question("::1".parse().expect("an address"));
        assert!(
            bytes[12..].starts_with(b"\x011\x010\x010") && bytes.ends_with(b"\x03ip6\x04arpa\0\0\x0c\0\x01")
        );
    }

    #[test]
    fn the_name_is_read_out_of_an_answer() {
        let mut answer = question(IpAddr::from([10, 0, 0, 7]));
        assert_eq!(name_in(&answer), None, "no answer in it");
        answer[7] = 1;
        // The record's name is the question's; PTR, IN, an hour, 10 bytes; `x7.pods` and the rest of it.
        answer.extend_from_slice(&[0xc0, 12, 0, 12, 0, 1, 0, 0, 14, 16, 0, 10]);
        answer.extend_from_slice(b"\x02x7\x04pods\xc0\x1d");
        assert_eq!(name_in(&answer).as_deref(), Some("x7.pods.arpa"));
        for length in 0..answer.len() {
            name_in(&answer[..length]);
        }
        let length = answer.len();
        answer[length - 1] = u8::try_from(length - 2).expect("short");
        assert_eq!(name_in(&answer), None, "a name that contains itself");
    }

    #[test]
    fn the_first_name_server_is_asked() {
        let text = "search x\n# nameserver 1.1.1.1\nnameserver 10.96.0.10\nnameserver 10.96.0.11\n";
        assert_eq!(first_name_server(text), Some(SocketAddr::from(([10, 96, 0, 10], 53))));
        assert_eq!(first_name_server("search x"), None);
    }

    /// A name server that answers one question after a while. Returns the measured time.
    async fn time_of_server(late: Duration, limit: Duration) -> Option<Duration> {
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let at = server.local_addr().expect("bound");
        let answers = async {
            let mut heard = [0; 512];
            let (length, peer) = server.recv_from(&mut heard).await.expect("a question");
            assert_eq!(&heard[..length], &question(IpAddr::from([10, 0, 0, 7]))[..]);
            tokio::time::sleep(late).await;
            server.send_to(&heard[..length], peer).await.expect("sent");
        };
        let lookup = lookup(at, IpAddr::from([10, 0, 0, 7]), limit);
        tokio::pin!(answers, lookup);
        tokio::select! {
            took = &mut lookup => took,
            () = &mut answers => lookup.await,
        }
        .map(|(took, _)| took)
    }

    #[tokio::test]
    async fn a_late_answer_takes_its_time_and_none_takes_the_limit() {
        const LONG: Duration = Duration::from_mins(1);
        let late = Duration::from_millis(200);
        let prompt = time_of_server(Duration::ZERO, LONG).await.expect("answered");
        assert!(prompt < LONG, "{prompt:?}");
        let took = time_of_server(late, LONG).await.expect("answered");
        assert!((late..LONG).contains(&took), "{took:?}");
        let took = time_of_server(LONG, late).await.expect("not answered, which is known after the limit");
        assert!((late..LONG).contains(&took), "{took:?}");
    }

    #[tokio::test]
    async fn where_no_name_server_runs_there_is_no_time() {
        let closed = UdpSocket::bind("127.0.0.1:0").await.and_then(|socket| socket.local_addr());
        let nobody = closed.expect("a port that was free a moment ago");
        let limit = Duration::from_mins(1);
        assert_eq!(lookup(nobody, IpAddr::from([10, 0, 0, 7]), limit).await, None);
    }
}
