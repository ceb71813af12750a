//! `rallypoint store`: one call on any TCPStore. stdout has the store's answer.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use anyhow::{Context, anyhow};
use base64::Engine as _;
use clap::builder::BoolishValueParser;
use serde_json::{Value, json};

use super::flags::Output;
use super::terminal::{print, say};
use super::units::{duration, size};
use super::{Outcome, run_client};
use rallypoint_node::client::{Client, Endpoint, Error, Options};
use rallypoint_protocol::ids::{ShownKey, is_plain};

/// Look inside any TCPStore, rallypoint's or PyTorch's (2.2 and later). In JSON, bytes are given in base64,
/// and as text where they are UTF-8.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    call: Call,

    /// The store
    #[arg(
        long,
        global = true,
        env = "RALLYPOINT_STORE",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:29500"
    )]
    store: Endpoint,

    /// How long to wait for the connection, and again for keys or an answer
    #[arg(
        long,
        global = true,
        env = "RALLYPOINT_STORE_TIMEOUT",
        value_name = "TIME",
        default_value = "10s",
        value_parser = duration
    )]
    timeout: Duration,

    #[command(flatten)]
    output: Output,

    /// Use keys exactly as they are on the wire; without this flag a `/` is added, as PyTorch does
    #[arg(long, global = true, env = "RALLYPOINT_RAW", value_parser = BoolishValueParser::new())]
    raw: bool,

    /// Largest answer to accept
    #[arg(
        long,
        global = true,
        env = "RALLYPOINT_MAX_REPLY",
        value_name = "SIZE",
        default_value = "256MiB",
        value_parser = size
    )]
    max_reply: usize,
}

#[derive(Debug, clap::Subcommand)]
enum Call {
    /// Wait for a key and print its value as it is; on a terminal, characters that are not printable are
    /// escaped
    Get {
        /// The key
        key: OsString,
        /// Fail at once if the key is missing
        #[arg(long, env = "RALLYPOINT_NO_WAIT", value_parser = BoolishValueParser::new())]
        no_wait: bool,
    },
    /// Store a value
    Set {
        /// The key
        key: OsString,
        /// The value, or - to read it from stdin
        value: OsString,
    },
    /// Add to a counter and print the sum
    Add {
        /// The key
        key: OsString,
        /// What to add
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        delta: i64,
    },
    /// Wait until all keys are there
    Wait {
        /// The keys
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<OsString>,
    },
    /// Print whether all keys are there now; exit code 1 if not
    Check {
        /// The keys
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<OsString>,
    },
    /// Print the names of all keys, one on each line; bytes that are not printable are shown as \xNN
    Keys,
    /// Delete keys and print how many were there; exit code 1 if one was not
    Delete {
        /// The keys
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<OsString>,
    },
    /// Print the number of keys
    NumKeys,
    /// Append to a value
    Append {
        /// The key
        key: OsString,
        /// What to append, or - to read it from stdin
        value: OsString,
    },
    /// Append an item to a queue
    QueuePush {
        /// The queue
        key: OsString,
        /// The item, or - to read it from stdin
        value: OsString,
    },
    /// Wait for an item in a queue, take it, and print it as it is
    QueuePop {
        /// The queue
        key: OsString,
        /// Fail at once if the queue is empty
        #[arg(long, env = "RALLYPOINT_NO_WAIT", value_parser = BoolishValueParser::new())]
        no_wait: bool,
    },
    /// Print the number of items in a queue
    QueueLen {
        /// The queue
        key: OsString,
    },
}

/// The result of a call: for people and pipes, and for `--json`.
struct Answer {
    text: Vec<u8>,
    json: Value,
    outcome: Outcome,
}

impl Answer {
    fn done(json: Value) -> Self {
        Self { text: Vec::new(), json, outcome: Outcome::Done }
    }

    fn line(text: impl std::fmt::Display, json: Value) -> Self {
        Self { text: format!("{text}\n").into_bytes(), json, outcome: Outcome::Done }
    }

    /// A value, byte for byte. On a terminal a line end follows, so that the prompt begins on its own line.
    fn bytes(value: &[u8]) -> Self {
        let mut text = value.to_vec();
        if std::io::stdout().is_terminal() {
            text.push(b'\n');
        }
        Self { text, json: bytes_json(value), outcome: Outcome::Done }
    }

    fn with(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let json = self.output.is_json();
        let answer = run_client(async {
            let options = Options { step: self.timeout, call: self.timeout, max_reply: self.max_reply };
            let mut client = Client::connect(&self.store, &options).await?;
            self.ask(&mut client).await
        })?;
        let printed = if json { format!("{}\n", answer.json).into_bytes() } else { answer.text };
        print(&printed).context("stdout")?;
        Ok(answer.outcome)
    }

    async fn ask(&self, client: &mut Client) -> anyhow::Result<Answer> {
        let limit = self.timeout;
        let done = json!({"done": true});
        Ok(match &self.call {
            Call::Get { key, no_wait: true } => {
                match client.try_get(&self.wire(key)).await.map_err(explain)? {
                    Some(value) => Answer::bytes(&value),
                    None => return Err(missing(&[key])),
                }
            }
            Call::Get { key, .. } => match client.get(&self.wire(key), limit).await {
                Err(error @ Error::NotInTime { .. }) => return Err(missing(&[key]).context(error)),
                value => Answer::bytes(&value.map_err(explain)?),
            },
            Call::Set { key, value } => {
                client.set(&self.wire(key), &read_value(value)?).await.map_err(explain)?;
                client.sync().await.map_err(too_large)?;
                Answer::done(done)
            }
            Call::Append { key, value } => {
                client.append(&self.wire(key), &read_value(value)?).await.map_err(explain)?;
                client.sync().await.map_err(too_large)?;
                Answer::done(done)
            }
            Call::QueuePush { key, value } => {
                client.queue_push(&self.wire(key), &read_value(value)?).await.map_err(explain)?;
                // The question for the length shows whether the server knows queues at all.
                let length = client.queue_len(&self.wire(key)).await.map_err(explain)?;
                Answer::done(json!({"done": true, "queue_len": length}))
            }
            Call::Add { key, delta } => {
                let sum = client.add(&self.wire(key), *delta).await.map_err(explain)?;
                Answer::line(sum, json!({"value": sum}))
            }
            Call::Wait { keys } => match client.wait(&self.wires(keys), limit).await {
                Err(error @ Error::NotInTime { .. }) => {
                    let absent = self.absent(client, keys).await?;
                    return Err(missing(&absent).context(error));
                }
                waited => {
                    waited.map_err(explain)?;
                    Answer::done(json!({"ready": true}))
                }
            },
            Call::Check { keys } => return self.check(client, keys).await,
            Call::Keys => self.list(client.list_keys().await.map_err(explain)?),
            Call::Delete { keys } => return self.delete(client, keys).await,
            Call::NumKeys => {
                let count = client.num_keys().await.map_err(explain)?;
                Answer::line(count, json!({"num_keys": count}))
            }
            Call::QueuePop { key, no_wait: true } => {
                match client.try_queue_pop(&self.wire(key)).await.map_err(explain)? {
                    Some(item) => Answer::bytes(&item),
                    None => return Err(anyhow!("queue `{}` is empty", ShownKey(key.as_bytes()))),
                }
            }
            Call::QueuePop { key, .. } => match client.queue_pop(&self.wire(key), limit).await {
                Err(error @ Error::NotInTime { .. }) => {
                    let empty = anyhow!("queue `{}` is empty", ShownKey(key.as_bytes()));
                    return Err(empty.context(error));
                }
                item => Answer::bytes(&item.map_err(explain)?),
            },
            Call::QueueLen { key } => {
                let length = client.queue_len(&self.wire(key)).await.map_err(explain)?;
                Answer::line(length, json!({"queue_len": length}))
            }
        })
    }

    async fn check(&self, client: &mut Client, keys: &[OsString]) -> anyhow::Result<Answer> {
        if client.check(&self.wires(keys)).await.map_err(explain)? {
            return Ok(Answer::line(true, json!({"ready": true, "missing": []})));
        }
        let absent = self.absent(client, keys).await?;
        say(missing(&absent));
        let absent: Vec<Value> = absent.iter().map(|key| bytes_json(key.as_bytes())).collect();
        Ok(Answer::line(false, json!({"ready": false, "missing": absent})).with(Outcome::NotDone))
    }

    async fn delete(&self, client: &mut Client, keys: &[OsString]) -> anyhow::Result<Answer> {
        let (mut deleted, mut absent) = (0, Vec::new());
        for key in keys {
            if client.delete(&self.wire(key)).await.map_err(explain)? {
                deleted = usize::saturating_add(deleted, 1);
            } else {
                absent.push(key);
            }
        }
        let answer = Answer::line(deleted, json!({"deleted": deleted}));
        if absent.is_empty() {
            return Ok(answer);
        }
        say(missing(&absent));
        Ok(answer.with(Outcome::NotDone))
    }

    /// The key on the wire.
    fn wire(&self, key: &OsStr) -> Vec<u8> {
        let slash: &[u8] = if self.raw { b"" } else { b"/" };
        [slash, key.as_bytes()].concat()
    }

    fn wires(&self, keys: &[OsString]) -> Vec<Vec<u8>> {
        keys.iter().map(|key| self.wire(key)).collect()
    }

    /// The absent keys among these.
    async fn absent<'k>(
        &self,
        client: &mut Client,
        keys: &'k [OsString],
    ) -> anyhow::Result<Vec<&'k OsString>> {
        let mut absent = Vec::new();
        for key in keys {
            if !client.check(&[self.wire(key)]).await.map_err(explain)? {
                absent.push(key);
            }
        }
        Ok(absent)
    }

    fn list(&self, mut keys: Vec<bytes::Bytes>) -> Answer {
        keys.sort_unstable();
        let shown: Vec<&[u8]> = keys
            .iter()
            .filter_map(|key| if self.raw { Some(&key[..]) } else { key.strip_prefix(b"/") })
            .collect();
        if shown.len() < keys.len() {
            let others = keys.len().saturating_sub(shown.len());
            say(format_args!("{others} more without PyTorch's leading `/`; --raw shows them"));
        }
        let text = shown.iter().flat_map(|key| format!("{}\n", on_one_line(key)).into_bytes()).collect();
        let names: Vec<Value> = shown.iter().map(|key| bytes_json(key)).collect();
        Answer { text, json: json!({"keys": names}), outcome: Outcome::Done }
    }
}

/// A key on one line: unprintable characters and invalid UTF-8 as `\xNN`, and each backslash doubled.
fn on_one_line(key: &[u8]) -> String {
    let mut text = String::new();
    let hex = |text: &mut String, bytes: &[u8]| {
        text.extend(bytes.iter().flat_map(|byte| ['\\', 'x', digit(byte >> 4), digit(byte & 15)]));
    };
    for chunk in key.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if !is_plain(c) => hex(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => text.push(c),
            }
        }
        hex(&mut text, chunk.invalid());
    }
    text
}

fn digit(value: u8) -> char {
    char::from_digit(value.into(), 16).unwrap_or('?')
}

fn bytes_json(bytes: &[u8]) -> Value {
    let base64 = base64::engine::general_purpose::STANDARD.encode(bytes);
    json!({"base64": base64, "utf8": std::str::from_utf8(bytes).ok()})
}

fn read_value(given: &OsStr) -> anyhow::Result<Vec<u8>> {
    if given != "-" {
        return Ok(given.as_bytes().to_vec());
    }
    let mut value = Vec::new();
    std::io::stdin().lock().read_to_end(&mut value).context("stdin")?;
    Ok(value)
}

fn missing<K: AsRef<OsStr>>(keys: &[K]) -> anyhow::Error {
    const SHOWN: usize = 10;
    let mut names: Vec<String> =
        keys.iter().take(SHOWN).map(|key| format!("`{}`", ShownKey(key.as_ref().as_bytes()))).collect();
    if keys.len() > SHOWN {
        names.push(format!("{} more", keys.len().saturating_sub(SHOWN)));
    }
    anyhow!("missing: {}", names.join(", "))
}

/// An error of a call, with the flag that may help.
fn explain(error: Error) -> anyhow::Error {
    match error {
        Error::TooLarge { .. } => anyhow!("{error}; see --max-reply"),
        Error::NoAnswer { .. } => anyhow!("{error}; see --timeout"),
        error => error.into(),
    }
}

/// An error of the question after a write that has no answer.
fn too_large(error: Error) -> anyhow::Error {
    match error {
        Error::Closed { .. } => {
            anyhow!("the server closed the connection; the key or the value is too large for it")
        }
        error => explain(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_on_one_line() {
        assert_eq!(on_one_line(b"a\n\\b\xff\xc3\xa9\x1b"), "a\\x0a\\\\b\\xffé\\x1b");
    }
}
