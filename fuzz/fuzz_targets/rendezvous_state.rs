//! Arbitrary bytes as the state of torchrun's c10d backend: the reader neither panics nor allocates without
//! bound, and gives one result for one input.
//!
//! The input serves as the value itself and as the pickle inside it, so that the fuzzer need not learn
//! base64.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rallypoint_protocol::rendezvous_state::read;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0_u32, |group, &byte| group << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        let digits = [18, 12, 6, 0].map(|shift| ALPHABET[(group >> shift & 63) as usize]);
        text.extend_from_slice(&digits[..chunk.len() + 1]);
        text.resize(text.len() + 3 - chunk.len(), b'=');
    }
    text
}

fuzz_target!(|data: &[u8]| {
    let _ = read(data);
    let value = base64(data);
    let state = read(&value);
    assert_eq!(state, read(&value));
    if let Ok(Some(state)) = state {
        assert!(state.participants.len() <= data.len());
    }
});
