//! Long polls: they ask again until there is an answer, even if the server is unreachable for a while, and
//! report on stderr what the command waits for.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::UsageError;
use super::terminal::say as say_line;
use rallypoint_api::PeerDuration;
use rallypoint_node::client::http::{self, AdminUrl, Answer};
use rallypoint_node::client::mistaken;
use rallypoint_process::random_number;
use rallypoint_protocol::ids::Elapsed;

/// How long one request waits at the server.
const WAIT: Duration = Duration::from_secs(15);
/// The answer must come within the request's wait plus this time.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Pause before the next attempt at a server that does not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// How a poll ended without success.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The server refused.
    #[error("{}", .0.text())]
    Refused(Answer),
    /// The time is over. The text says what the command waited for.
    #[error("gave up after {after}: {what}", after = Elapsed(*.0), what = .1)]
    Late(Duration, String),
    /// The server at this address can never be the admin port.
    #[error("{0}")]
    Mistaken(String),
    /// The answer cannot be understood.
    #[error("the server's answer is not understood: {0}")]
    BadAnswer(serde_json::Error),
}

impl Ended {
    /// The error of a command. An invalid request is a usage error.
    pub(super) fn into_error(self) -> anyhow::Error {
        match self {
            Self::Refused(answer) if matches!(answer.status, 400 | 422) => UsageError(answer.text()).into(),
            other => other.into(),
        }
    }
}

/// Asks until the answer is 200, and returns it. `body` makes a request that waits for the given time;
/// `reason` turns the body of a 202 into what the command waits for.
pub(super) async fn until_done<B: Serialize, W: DeserializeOwned>(
    admin: &AdminUrl,
    path: &str,
    timeout: Duration,
    body: impl Fn(PeerDuration) -> B,
    reason: impl Fn(&W) -> String,
) -> Result<Answer, Ended> {
    let start = Instant::now();
    let mut said = String::new();
    let mut say = |text: String| {
        if text != said {
            say_line(&text);
            said.clone_from(&text);
        }
        text
    };
    // The first request does not wait, so that the command soon reports what it waits for.
    let mut most = Duration::ZERO;
    let mut has_answered = false;
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        let wait = left.min(std::mem::replace(&mut most, WAIT));
        let asked =
            http::post(admin, path, &body(PeerDuration::at_most(wait)), wait.saturating_add(ANSWER_LIMIT))
                .await;
        let is_known = has_answered;
        has_answered |= asked.is_ok();
        let waits_for = match asked {
            Ok(answer) if answer.status == 200 => return Ok(answer),
            Ok(answer) if answer.status == 202 => {
                let waiting = serde_json::from_slice(&answer.body).map_err(Ended::BadAnswer)?;
                say(reason(&waiting))
            }
            Ok(answer) if is_passing(&answer) => {
                tokio::time::sleep(PAUSE.min(left)).await;
                say(format!("{admin}: {}; trying again", answer.text()))
            }
            Ok(answer) => return Err(Ended::Refused(answer)),
            Err(error) => {
                if !is_known && let Some(last_word) = mistaken::never_an_admin_port(admin, &error).await {
                    return Err(Ended::Mistaken(last_word));
                }
                tokio::time::sleep(PAUSE.min(left)).await;
                let error = if is_known { error.of_known_port() } else { error.to_string() };
                say(format!("{admin}: {error}; trying again"))
            }
        };
        if start.elapsed() >= timeout {
            return Err(Ended::Late(start.elapsed(), waits_for));
        }
    }
}

/// Whether to ask again: a stopping server is soon back, a busy one or one without memory will have room, and
/// beside a standby another server leads.
fn is_passing(answer: &Answer) -> bool {
    answer.code().is_some_and(|code| matches!(code.as_str(), "stopping" | "busy" | "no_memory" | "standby"))
        || matches!(answer.status, 502 | 504)
}

/// The host's name; in Kubernetes it is the pod's.
pub(super) fn host_name() -> Result<String, UsageError> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() {
        return Err(UsageError("this host has no name; say --node".into()));
    }
    Ok(name)
}

/// An id that no other process has, on this host or any other.
pub(super) fn node_id(host: &str) -> String {
    format!("{host}-{}-{:08x}", std::process::id(), random_number() >> 32)
}

/// A token that no other call has.
pub(super) fn unique_token() -> String {
    format!("{:016x}{:016x}", random_number(), random_number())
}
