//! Arbitrary bytes, cut anywhere. The decoder never panics, always asks for more than it has, and decodes the
//! pieces to the result of the whole.
//!
//! The first byte of the input chooses the setting for operation 8 and, with the second one, the cuts; the
//! rest is the peer's stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rallypoint_protocol::{Decoded, Decoder, LegacyRelease, Limits, ProtocolError, Request};

/// Small, so that the fuzzer reaches both sides of each limit.
const LIMITS: Limits = Limits { key: 64, value: 256, keys_per_request: 16 };

/// The result of a stream: its requests (as text, since they borrow from the input), their length in bytes,
/// and its error.
type Outcome = (Vec<String>, usize, Option<ProtocolError>);

/// Decodes `input` as it arrives. `arrivals` has the rising lengths at which the decoder is called; the last
/// one is the whole length.
fn decode(input: &[u8], legacy: LegacyRelease, arrivals: impl Iterator<Item = usize>) -> Outcome {
    let mut decoder = Decoder::new(LIMITS, legacy);
    let mut requests = Vec::new();
    let mut start = 0;
    for end in arrivals {
        loop {
            let there = &input[start..end];
            match decoder.decode(there, None) {
                Ok(Decoded::Request { request, len }) => {
                    assert!(0 < len && len <= there.len());
                    check(&request);
                    requests.push(format!("{request:?} {:?}", decoder.dialect()));
                    start += len;
                }
                Ok(Decoded::Hello { len }) => {
                    assert_eq!((start, len), (0, 5), "a hello is the first five bytes");
                    requests.push("hello".into());
                    start += len;
                }
                Ok(Decoded::Incomplete { need }) => {
                    assert!(need > there.len(), "it asked for {need} bytes and has {}", there.len());
                    break;
                }
                Err(error) => return (requests, start, Some(error)),
            }
        }
    }
    (requests, start, None)
}

/// Checks that a request is within the limits, and that its lists have the announced lengths.
fn check(request: &Request<'_>) {
    match request {
        Request::Check(keys) | Request::Wait(keys) | Request::MultiGet(keys) => {
            assert!(keys.len() <= LIMITS.keys_per_request);
            assert_eq!(keys.iter().count(), keys.len());
            assert_eq!(keys.iter().map(|key| key.len() + 8).sum::<usize>(), keys.wire_len());
            assert!(keys.iter().all(|key| key.len() <= LIMITS.key));
        }
        Request::MultiSet(pairs) => {
            assert!(pairs.len() <= LIMITS.keys_per_request);
            assert_eq!(pairs.iter().count(), pairs.len());
            assert!(
                pairs.iter().all(|(key, value)| {
                    key.len() <= LIMITS.key && value.as_slice().len() <= LIMITS.value
                })
            );
        }
        Request::Set { key, value } | Request::QueuePush { key, value } => {
            assert!(key.len() <= LIMITS.key && value.as_slice().len() <= LIMITS.value);
        }
        _ => {}
    }
}

/// The decoder recognizes another protocol by its first four bytes. If a cut splits them, the first byte
/// alone is an unknown operation.
fn kind(error: ProtocolError) -> ProtocolError {
    match error {
        ProtocolError::Foreign(_) | ProtocolError::UnknownOp(_) => ProtocolError::UnknownOp(0),
        error => error,
    }
}

fuzz_target!(|data: &[u8]| {
    let [setting, step, input @ ..] = data else { return };
    let legacy = if setting & 1 == 0 { LegacyRelease::V2_1 } else { LegacyRelease::V2_0 };
    let whole = decode(input, legacy, std::iter::once(input.len()));

    let step = 1 + usize::from(*step) % 40;
    let cuts = (usize::from(*setting) % step..input.len()).step_by(step).chain([input.len()]);
    let pieces = decode(input, legacy, cuts);
    assert_eq!(whole.0, pieces.0);
    assert_eq!((whole.1, whole.2.map(kind)), (pieces.1, pieces.2.map(kind)));
});
