//! Requests to etcd and its answers: the parts of its JSON gateway that the journal uses. The gateway writes
//! numbers as text, keys and values in base64, and omits everything that is 0, empty or false.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

/// A number as the gateway writes it.
pub(super) fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

pub(super) fn base64(bytes: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(bytes)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) revision: String,
}

/// A key with its value and version.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    key: String,
    value: String,
    pub(super) version: String,
}

impl KeyValue {
    pub(super) fn key(&self) -> String {
        String::from_utf8(BASE64_STANDARD.decode(&self.key).unwrap_or_default()).unwrap_or_default()
    }

    pub(super) fn value(&self) -> Vec<u8> {
        BASE64_STANDARD.decode(&self.value).unwrap_or_default()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Range {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TxnPart {
    response_range: Range,
}

/// The result of a transaction.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Txn {
    pub(super) succeeded: bool,
    responses: Vec<TxnPart>,
}

impl Txn {
    /// The key that the transaction read because its comparison failed.
    pub(super) fn found(&self) -> Option<&KeyValue> {
        self.responses.first()?.response_range.kvs.first()
    }
}

/// Reads `key`, or all keys from it up to `end`.
pub(super) fn range(key: &str, end: Option<&str>) -> Value {
    let mut range = json!({ "key": base64(key) });
    if let Some(end) = end {
        range["range_end"] = base64(end).into();
    }
    range
}
