use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;
use crate::{encode_hello, encode_request};

const DIALECTS: [Dialect; 4] = [Dialect::Legacy, Dialect::A, Dialect::B, Dialect::C];

/// A decoder in the middle of a connection of this dialect.
fn decoder_of(dialect: Dialect) -> Decoder {
    let legacy = if dialect == Dialect::A { LegacyRelease::V2_0 } else { LegacyRelease::V2_1 };
    Decoder { dialect, ..Decoder::new(Limits::default(), legacy) }
}

/// Arguments for a request of any kind.
#[derive(Debug, Clone, Default)]
struct Args {
    key: Vec<u8>,
    value: Vec<u8>,
    expected: Vec<u8>,
    number: i64,
    nonce: u32,
    /// Keys of a list, or keys and values in turn. The number is even.
    strings: Vec<Vec<u8>>,
}

fn on_wire(strings: &[Vec<u8>]) -> Vec<u8> {
    strings.iter().flat_map(|string| [&(string.len() as u64).to_le_bytes()[..], string].concat()).collect()
}

/// Makes a request. `wire` is the result of [`on_wire`] for the strings.
fn request<'a>(op: Op, args: &'a Args, wire: &'a [u8]) -> Request<'a> {
    let Args { key, value, expected, number, nonce, strings } = args;
    let payload = Payload { bytes: value, owner: None };
    let keys = List { count: strings.len(), wire };
    let pairs = Pairs { count: strings.len() / 2, wire: Payload { bytes: wire, owner: None } };
    match op {
        Op::Set => Request::Set { key, value: payload },
        Op::CompareSet => Request::CompareSet { key, expected, desired: payload },
        Op::Get => Request::Get { key },
        Op::Add => Request::Add { key, delta: *number },
        Op::Check => Request::Check(keys),
        Op::Wait => Request::Wait(keys),
        Op::NumKeys => Request::NumKeys,
        Op::Delete => Request::Delete { key },
        Op::Append => Request::Append { key, value },
        Op::MultiGet => Request::MultiGet(keys),
        Op::MultiSet => Request::MultiSet(pairs),
        Op::CancelWait => Request::CancelWait,
        Op::Ping | Op::Validate => Request::Ping { nonce: *nonce },
        Op::QueuePush => Request::QueuePush { key, value: payload },
        Op::QueuePop => Request::QueuePop { key },
        Op::QueueLen => Request::QueueLen { key },
        Op::ListKeys => Request::ListKeys,
        Op::Barrier => Request::Barrier { key, world_size: *number },
    }
}

/// The operations that a client can send, without the hello.
fn ops() -> impl Iterator<Item = Op> {
    Op::ALL.into_iter().filter(|op| *op != Op::Validate)
}

fn assert_round_trip(args: &Args) {
    let wire = on_wire(&args.strings);
    for dialect in DIALECTS {
        for op in ops() {
            let sent = request(op, args, &wire);
            let mut bytes = Vec::new();
            if !encode_request(&sent, dialect, &mut bytes) {
                assert!(bytes.is_empty());
                continue;
            }
            let len = bytes.len();
            bytes.extend_from_slice(b"next");
            let mut decoder = decoder_of(dialect);
            let received = decoder.decode(&bytes, None);
            assert_eq!(received, Ok(Decoded::Request { request: sent, len }), "{op:?} in {dialect:?}");
            assert_every_split(&decoder_of(dialect), &bytes[..len]);
            let Ok(Decoded::Request { request, .. }) = received else { unreachable!() };
            match request {
                Request::Check(keys) | Request::Wait(keys) | Request::MultiGet(keys) => {
                    assert!(keys.iter().eq(args.strings.iter().map(Vec::as_slice)));
                    assert_eq!(keys.len(), args.strings.len());
                }
                Request::MultiSet(pairs) => {
                    let found = pairs.iter().flat_map(|(key, value)| [key, value.as_slice()]);
                    assert!(found.eq(args.strings.iter().map(Vec::as_slice)));
                    assert_eq!(pairs.len() * 2, args.strings.len());
                }
                _ => {}
            }
        }
    }
}

/// Decodes one whole request or hello that is cut in two at every byte. The first part gives no request, and
/// the decoder never asks for more bytes than there are.
fn assert_every_split(decoder: &Decoder, whole: &[u8]) {
    let in_one = format!("{:?}", decoder.clone().decode(whole, None));
    for at in 0..whole.len() {
        let mut decoder = decoder.clone();
        match decoder.decode(&whole[..at], None) {
            Ok(Decoded::Incomplete { need }) => assert!(at < need && need <= whole.len(), "{at} < {need}"),
            other => panic!("{other:?} from {at} bytes of {in_one}"),
        }
        assert_eq!(format!("{:?}", decoder.decode(whole, None)), in_one, "cut at {at}");
    }
}

#[test]
fn every_operation_survives_the_wire_in_every_dialect_that_has_it() {
    assert_round_trip(&Args::default());
    assert_round_trip(&Args {
        key: b"/k\0\xff".to_vec(),
        value: b"value".to_vec(),
        expected: vec![0; 300],
        number: -2,
        nonce: 0xdead_beef,
        strings: vec![b"/a".to_vec(), Vec::new(), b"/b".to_vec(), vec![7; 70], b"/a".to_vec(), b"1".to_vec()],
    });
    for (dialect, count) in [(Dialect::Legacy, 11), (Dialect::A, 8), (Dialect::B, 12), (Dialect::C, 19)] {
        assert_eq!(Op::ALL.into_iter().filter(|op| op.code(dialect).is_some()).count(), count);
    }
}

/// The bytes that each connection of a recorded program sent, with the name of the recording.
fn recorded_streams() -> Vec<(String, Vec<u8>)> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/transcripts");
    let mut streams = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the recordings are there") {
        let path = entry.expect("readable").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let recording: Json =
            serde_json::from_slice(&std::fs::read(&path).expect("readable")).expect("a recording is JSON");
        let mut sent = std::collections::BTreeMap::<u64, Vec<u8>>::new();
        for chunk in recording["calls"]
            .as_array()
            .expect("calls")
            .iter()
            .flat_map(|call| call["chunks"].as_array().expect("chunks"))
        {
            if chunk[0] == "c" {
                let bytes = unhex(chunk[2].as_str().expect("hex"));
                sent.entry(chunk[1].as_u64().expect("a connection")).or_default().extend(bytes);
            }
        }
        let name = path.file_stem().expect("named").to_string_lossy().into_owned();
        streams.extend(sent.into_values().map(|bytes| (name.clone(), bytes)));
    }
    assert!(streams.len() > 29, "29 recordings");
    streams
}

fn unhex(hex: &str) -> Vec<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16).expect("a hexadecimal digit") as u8;
    hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn start_of(recording: &str) -> Decoder {
    let is_a = recording.starts_with("1.13") || recording.starts_with("2.0");
    Decoder::new(Limits::default(), if is_a { LegacyRelease::V2_0 } else { LegacyRelease::V2_1 })
}

#[test]
fn what_pytorch_sends_is_the_same_cut_anywhere() {
    for (recording, stream) in recorded_streams() {
        let mut decoder = start_of(&recording);
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let before = decoder.clone();
            let (len, again) = match decoder.decode(rest, None) {
                Ok(Decoded::Hello { len }) => {
                    let mut again = Vec::new();
                    encode_hello(&mut again);
                    (len, again)
                }
                Ok(Decoded::Request { request, len }) => {
                    let mut again = Vec::new();
                    assert!(
                        encode_request(&request, decoder.dialect(), &mut again),
                        "{recording}: {request:?}"
                    );
                    (len, again)
                }
                other => panic!("{recording}: {other:?} at {}", stream.len() - rest.len()),
            };
            assert_eq!(again, rest[..len], "{recording}: our client says it in the same bytes");
            assert_every_split(&before, &rest[..len]);
            rest = &rest[len..];
        }
        let dialect = match recording.split('.').take(2).collect::<Vec<_>>()[..] {
            ["1", _] | ["2", "0"] => Dialect::A,
            ["2", "1"] => Dialect::B,
            _ => Dialect::C,
        };
        if decoder.dialect() != Dialect::Legacy {
            assert_eq!(decoder.dialect(), dialect, "{recording}");
        }
    }
}

/// The requests of a stream that arrives in pieces, as one connection of the server decodes them: each as it
/// would be sent again.
fn decode_pieces<'p>(mut decoder: Decoder, pieces: impl Iterator<Item = &'p [u8]>) -> Vec<Vec<u8>> {
    let mut requests = Vec::new();
    let mut buffer = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let len = match decoder.decode(&buffer, None) {
                Ok(Decoded::Hello { len }) => len,
                Ok(Decoded::Request { request, len }) => {
                    let mut again = Vec::new();
                    assert!(encode_request(&request, decoder.dialect(), &mut again));
                    requests.push(again);
                    len
                }
                Ok(Decoded::Incomplete { need }) => {
                    assert!(need > buffer.len());
                    break;
                }
                Err(err) => panic!("{err}"),
            };
            buffer.drain(..len);
        }
    }
    assert!(buffer.is_empty());
    requests
}

#[test]
fn a_byte_at_a_time_is_as_good_as_all_at_once() {
    for (recording, stream) in recorded_streams() {
        let all = decode_pieces(start_of(&recording), std::iter::once(&stream[..]));
        let bytes = decode_pieces(start_of(&recording), stream.chunks(1));
        assert_eq!(bytes, all, "{recording}");
    }
}

#[test]
fn the_first_bytes_tell_the_dialect() {
    use Dialect::{A, B, C, Legacy};
    use LegacyRelease::{V2_0, V2_1};

    let hello = unhex("00cef7853c");
    for (first, setting, found) in [
        ("0101", V2_1, Legacy),
        ("05", V2_1, Legacy),
        ("05", V2_0, Legacy),
        ("0002000000", V2_1, Legacy),
        ("07", V2_1, B),
        ("07", V2_0, B),
        ("08", V2_1, B),
        ("08", V2_0, A),
        ("09", V2_0, B),
        ("0a", V2_1, B),
        ("0b", V2_1, B),
    ] {
        let mut decoder = Decoder::new(Limits::default(), setting);
        let decoded = decoder.decode(&unhex(first), None).map(|decoded| format!("{decoded:?}"));
        assert!(decoded.is_ok(), "{first}: {decoded:?}");
        assert_eq!(decoder.dialect(), found, "{first} with {setting:?}");
        // Later operations may still show the dialect, but a hello is not accepted any more.
        let mut later = Decoder::new(Limits::default(), setting);
        assert!(later.decode(&unhex("06"), None).is_ok());
        assert_eq!(later.dialect(), Legacy);
        assert!(later.decode(&unhex(first), None).is_ok());
        assert_eq!(later.dialect(), found, "06, then {first} with {setting:?}");
    }

    let mut decoder = Decoder::new(Limits::default(), V2_1);
    assert_every_split(&decoder, &hello);
    assert_eq!(decoder.decode(&[&hello[..], b"\x07"].concat(), None), Ok(Decoded::Hello { len: 5 }));
    assert_eq!(decoder.dialect(), C);
    assert_eq!(decoder.decode(&hello, None), Err(ProtocolError::SecondHello));

    for (first, error) in [
        (&b"\x00\x01\x02\x03\x04"[..], ProtocolError::NotAHello),
        (b"\x00\xce\xf7\x85\x3d", ProtocolError::NotAHello),
        (b"\x0c", ProtocolError::UnknownOp(12)),
        (b"\xff", ProtocolError::UnknownOp(255)),
        (b"GET / HTTP/1.1\r\n", ProtocolError::Foreign(Foreign::Http)),
        (b"PRI * HTTP/2.0\r\n", ProtocolError::Foreign(Foreign::Http)),
        (b"\x16\x03\x01\x02\x00", ProtocolError::Foreign(Foreign::Tls)),
    ] {
        assert_eq!(Decoder::new(Limits::default(), V2_1).decode(first, None), Err(error));
    }
    for (dialect, unknown) in [(A, 7), (A, 9), (B, 12), (C, 19), (C, 255)] {
        assert_eq!(decoder_of(dialect).decode(&[unknown], None), Err(ProtocolError::UnknownOp(unknown)));
    }
}

/// A request of dialect C that ends after the length of its first string, or after its count.
fn announcing(op: Op, length: u64) -> Vec<u8> {
    [&[op as u8][..], &length.to_le_bytes()].concat()
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_its_bytes_arrive() {
    let limits = Limits::default();
    let absurd = [1 << 40, 1 << 63, u64::MAX];
    for op in ops() {
        let (limit, too_long): (usize, fn(Op, u64, usize) -> ProtocolError) = match fields(op).first() {
            Some(Field::Key) => (limits.key, |op, len, limit| ProtocolError::KeyTooLong { op, len, limit }),
            Some(Field::Keys | Field::Pairs) => {
                (limits.keys_per_request, |op, count, limit| ProtocolError::TooManyKeys { op, count, limit })
            }
            _ => continue,
        };
        let at_limit = decoder_of(Dialect::C).decode(&announcing(op, limit as u64), None).map(|_| ());
        assert_eq!(at_limit, Ok(()), "{op:?}");
        for length in absurd.into_iter().chain([limit as u64 + 1]) {
            let refused = decoder_of(Dialect::C).decode(&announcing(op, length), None).map(|_| ());
            assert_eq!(refused, Err(too_long(op, length, limit)));
        }
    }
    // Values: behind a key, behind another value, and in a list.
    let limit = limits.value;
    for (op, before) in [
        (Op::Set, "0100000000000000ff"),
        (Op::Append, "0100000000000000ff"),
        (Op::QueuePush, "0000000000000000"),
        (Op::CompareSet, "0100000000000000ff"),
        (Op::CompareSet, "0100000000000000ff0200000000000000aabb"),
        (Op::MultiSet, "02000000000000000100000000000000ff"),
    ] {
        let announce = |len: u64| [&[op as u8][..], &unhex(before), &len.to_le_bytes()].concat();
        let at_limit = announce(limit as u64);
        let Ok(Decoded::Incomplete { need }) = decoder_of(Dialect::C).decode(&at_limit, None) else {
            panic!("{op:?}: a value of the longest allowed length is fine")
        };
        assert!(need >= at_limit.len() + limit);
        for len in absurd.into_iter().chain([limit as u64 + 1]) {
            let refused = decoder_of(Dialect::C).decode(&announce(len), None).map(|_| ());
            assert_eq!(refused, Err(ProtocolError::ValueTooLong { op, len, limit }));
        }
    }
    // A key in a list.
    for (op, before) in [(Op::Wait, "0100000000000000"), (Op::MultiSet, "0200000000000000")] {
        let bytes = [&[op as u8][..], &unhex(before), &8193_u64.to_le_bytes()].concat();
        let refused = decoder_of(Dialect::C).decode(&bytes, None).map(|_| ());
        assert_eq!(refused, Err(ProtocolError::KeyTooLong { op, len: 8193, limit: 8192 }));
    }
}

#[test]
fn the_longest_allowed_request_of_each_kind_is_decoded() {
    let Limits { key, value, keys_per_request } = Limits::default();
    for args in [
        Args { key: vec![1; key], ..Args::default() },
        Args { value: vec![2; value], expected: vec![3; value], ..Args::default() },
        Args { strings: vec![b"/k".to_vec(); keys_per_request], ..Args::default() },
    ] {
        let wire = on_wire(&args.strings);
        for op in ops() {
            let sent = request(op, &args, &wire);
            let mut bytes = Vec::new();
            assert!(encode_request(&sent, Dialect::C, &mut bytes));
            let received = decoder_of(Dialect::C).decode(&bytes, None);
            assert_eq!(received, Ok(Decoded::Request { request: sent, len: bytes.len() }), "{op:?}");
        }
    }
}

/// Walked bytes are overwritten before the last piece arrives, so a decoder that looked at them again would
/// fail. So each byte is walked once, however small the pieces are.
#[test]
fn a_large_request_in_small_pieces_is_walked_once() {
    let count = Limits::default().keys_per_request;
    for (op, strings_each) in [(Op::Check, 1), (Op::MultiSet, 2)] {
        let strings = vec![b"/some/key".to_vec(); count * strings_each];
        let args = Args { strings, ..Args::default() };
        let wire = on_wire(&args.strings);
        let mut whole = Vec::new();
        assert!(encode_request(&request(op, &args, &wire), Dialect::C, &mut whole));

        let mut decoder = decoder_of(Dialect::C);
        let mut buffer = Vec::new();
        for piece in whole.chunks(4096) {
            buffer.extend_from_slice(piece);
            if buffer.len() < whole.len() {
                let decoded = decoder.decode(&buffer, None);
                let Ok(Decoded::Incomplete { need }) = decoded else { panic!("{decoded:?}") };
                assert!(need > buffer.len() && need <= whole.len());
                let walked = decoder.progress.walked;
                assert!(buffer.len() - walked < 8 + 9, "all but the string that is cut is walked");
                buffer[..walked].fill(0xff);
            }
        }
        let decoded = decoder.decode(&whole, None);
        assert_eq!(decoded, Ok(Decoded::Request { request: request(op, &args, &wire), len: whole.len() }));
        assert_eq!(decoder.progress.walked, 0, "ready for the next request");
    }
}

#[test]
fn after_a_rewind_the_decoder_may_start_elsewhere() {
    let mut decoder = decoder_of(Dialect::C);
    let cut = [announcing(Op::Wait, 2), 3_u64.to_le_bytes().to_vec(), b"/k1".to_vec()].concat();
    assert!(matches!(decoder.decode(&cut, None), Ok(Decoded::Incomplete { .. })));
    decoder.rewind();
    let count = [Op::NumKeys as u8];
    assert_eq!(decoder.decode(&count, None), Ok(Decoded::Request { request: Request::NumKeys, len: 1 }));
    assert_eq!(decoder.dialect(), Dialect::C, "the dialect is not forgotten");
}

#[test]
fn a_large_value_keeps_the_buffer_it_came_in_and_a_small_one_does_not() {
    for (len, shared) in [(100, false), (Payload::SHARE_FROM - 1, false), (Payload::SHARE_FROM, true)] {
        let args = Args { key: b"/k".to_vec(), value: vec![7; len], ..Args::default() };
        let mut bytes = Vec::new();
        assert!(encode_request(&request(Op::Set, &args, &[]), Dialect::C, &mut bytes));
        let owner = Bytes::from(bytes);
        let mut decoder = decoder_of(Dialect::C);
        let Ok(Decoded::Request { request: Request::Set { value, .. }, .. }) =
            decoder.decode(&owner, Some(&owner))
        else {
            panic!("a SET")
        };
        let stored = value.to_stored();
        assert_eq!(stored, args.value);
        assert_eq!(stored.as_ptr() == value.as_slice().as_ptr(), shared, "{len} bytes");
        assert_ne!(Payload::borrowed(value.as_slice()).to_stored().as_ptr(), value.as_slice().as_ptr());
    }
}

#[test]
fn a_value_that_came_with_much_else_does_not_keep_the_buffer() {
    let args = Args { key: b"/k".to_vec(), value: vec![7; Payload::SHARE_FROM], ..Args::default() };
    let expected = vec![1; 8 << 20];
    let compare =
        Request::CompareSet { key: &args.key, expected: &expected, desired: Payload::borrowed(&args.value) };
    let mut bytes = Vec::new();
    assert!(encode_request(&compare, Dialect::C, &mut bytes));
    let owner = Bytes::from(bytes);
    match decoder_of(Dialect::C).decode(&owner, Some(&owner)) {
        Ok(Decoded::Request { request: Request::CompareSet { desired, .. }, .. }) => {
            assert_ne!(desired.to_stored().as_ptr(), desired.as_slice().as_ptr());
        }
        other => panic!("no COMPARE_SET: {other:?}"),
    }
}

fn args() -> impl Strategy<Value = Args> {
    let string = || prop::collection::vec(any::<u8>(), 0..40);
    let pairs = prop::collection::vec((string(), string()), 0..6);
    (string(), string(), string(), any::<i64>(), any::<u32>(), pairs).prop_map(
        |(key, value, expected, number, nonce, pairs)| {
            let strings = pairs.into_iter().flat_map(|(key, value)| [key, value]).collect();
            Args { key, value, expected, number, nonce, strings }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_request_survives_the_wire_and_every_cut(args in args()) {
        assert_round_trip(&args);
    }

    #[test]
    fn any_pieces_give_the_same_requests(
        all_args in prop::collection::vec((args(), 1_usize..19), 1..8),
        sizes in prop::collection::vec(1_usize..50, 1..20),
    ) {
        let mut stream = Vec::new();
        encode_hello(&mut stream);
        let mut sent = Vec::new();
        for (args, op) in &all_args {
            let wire = on_wire(&args.strings);
            let from = stream.len();
            assert!(encode_request(&request(Op::ALL[*op], args, &wire), Dialect::C, &mut stream));
            sent.push(stream[from..].to_vec());
        }
        let mut rest = &stream[..];
        let pieces = sizes.into_iter().cycle().map_while(|size| {
            let piece = rest.split_off(..size.min(rest.len()))?;
            (!piece.is_empty()).then_some(piece)
        });
        let decoder = Decoder::new(Limits::default(), LegacyRelease::default());
        prop_assert_eq!(decode_pieces(decoder, pieces), sent);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_are_never_left_waiting_for_what_is_there(
        bytes in prop::collection::vec(prop_oneof![3 => Just(0_u8), 2 => 0_u8..20, 1 => any::<u8>()], 0..200),
        dialect in prop::sample::select(Dialect::ALL.to_vec()),
        small in any::<bool>(),
    ) {
        let mut decoder = decoder_of(dialect);
        if small {
            decoder.limits = Limits { key: 3, value: 2, keys_per_request: 2 };
        }
        let mut rest = &bytes[..];
        loop {
            match decoder.decode(rest, None) {
                Ok(Decoded::Request { len, .. } | Decoded::Hello { len }) => {
                    prop_assert!(0 < len && len <= rest.len());
                    rest = &rest[len..];
                }
                Ok(Decoded::Incomplete { need }) => {
                    prop_assert!(need > rest.len());
                    break;
                }
                Err(_) => break,
            }
        }
    }
}
