//! Requests to rallypoint's own HTTP API, on a link that has sent no hello.

use std::io;

use serde_json::Value;

use super::{Error, Link};

/// Real heads are much smaller.
const MAX_HEAD: usize = 16 * 1024;

/// Sends a POST with a JSON body. Returns the status and the body of the answer. Counts the bytes of both
/// directions.
pub(crate) async fn post(link: &mut Link, path: &str, body: &Value) -> Result<(u16, Value), Error> {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: rallypoint\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         \r\n{body}",
        body.len()
    );
    let answer = link.exchange(request.as_bytes(), length).await.map_err(Error::Http)?;
    link.tally.fact("sent_bytes", request.len() as u64);
    link.tally.fact("received_bytes", answer.len() as u64);
    read(&answer).map_err(Error::Http)
}

/// The length of the whole answer, once its head is complete.
fn length(answer: &[u8]) -> io::Result<Option<usize>> {
    let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if answer.len() > MAX_HEAD { Err(io::ErrorKind::InvalidData.into()) } else { Ok(None) };
    };
    let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
    let body =
        text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    body.map(|body| Some(head.saturating_add(4).saturating_add(body)))
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read(answer: &[u8]) -> io::Result<(u16, Value)> {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(answer.len());
    let status =
        String::from_utf8_lossy(&answer[..head]).split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or(io::ErrorKind::InvalidData)?;
    Ok((status, serde_json::from_slice(answer.get(head.saturating_add(4)..).unwrap_or_default())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] =
        b"HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{\"a\":1}";

    #[test]
    fn an_answer_is_whole_when_its_body_is() {
        assert_eq!(length(&ANSWER[..30]).expect("no fault"), None);
        assert_eq!(length(ANSWER).expect("no fault"), Some(ANSWER.len()));
        let (status, body) = read(ANSWER).expect("JSON");
        assert_eq!((status, &body["a"]), (202, &serde_json::json!(1)));
        assert!(length(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(length(&vec![b'x'; MAX_HEAD + 1]).is_err());
        let endless = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", usize::MAX);
        assert_eq!(length(endless.as_bytes()).expect("no fault"), Some(usize::MAX));
    }
}
