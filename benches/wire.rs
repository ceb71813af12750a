//! The cost of decoding requests and encoding replies. `cargo bench --bench wire -- --quick`.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rallypoint_protocol::{
    Decoded, Decoder, Dialect, KeyList, LegacyRelease, Limits, PairList, Payload, Reply, ReplyBuffer,
    Request, encode_hello, encode_request,
};

const KEY: &[u8] = b"/default_pg/0//cpu//0/17";

fn wire(request: &Request<'_>) -> Vec<u8> {
    let mut wire = Vec::new();
    assert!(encode_request(request, Dialect::C, &mut wire));
    wire
}

/// A decoder after its peer's hello.
fn greeted() -> Decoder {
    let mut decoder = Decoder::new(Limits::default(), LegacyRelease::default());
    let mut hello = Vec::new();
    encode_hello(&mut hello);
    assert!(matches!(decoder.decode(&hello, None), Ok(Decoded::Hello { .. })));
    decoder
}

fn decode(c: &mut Criterion) {
    let many: Vec<String> = (0..1000).map(|n| format!("/default_pg/0//cpu//0/{n}")).collect();
    let one: KeyList = [KEY].into_iter().collect();
    let thousand: KeyList = many.iter().collect();
    let pairs: PairList = many.iter().map(|key| (key, "127.0.0.1:29500")).collect();
    let large = vec![7; 1 << 20];
    let requests = [
        ("set", Request::Set { key: KEY, value: Payload::borrowed(b"127.0.0.1:29500") }),
        ("get", Request::Get { key: KEY }),
        ("add", Request::Add { key: KEY, delta: 1 }),
        ("wait", Request::Wait(one.as_list())),
        ("check_1000_keys", Request::Check(thousand.as_list())),
        ("multi_set_1000_keys", Request::MultiSet(pairs.as_pairs())),
        ("set_1_mib", Request::Set { key: KEY, value: Payload::borrowed(&large) }),
    ];
    let mut group = c.benchmark_group("decode");
    for (name, request) in requests {
        let wire = wire(&request);
        let mut decoder = greeted();
        group.bench_function(name, |b| b.iter(|| black_box(decoder.decode(black_box(&wire), None))));
    }
    // A request in pieces is parsed once in all, not once for each piece.
    let wire = wire(&Request::Check(thousand.as_list()));
    for piece in [64, 1024, wire.len()] {
        let mut decoder = greeted();
        group.throughput(Throughput::Bytes(wire.len() as u64));
        group.bench_function(BenchmarkId::new("check_1000_keys_in_pieces_of", piece), |b| {
            b.iter(|| {
                for end in (piece..wire.len()).step_by(piece).chain([wire.len()]) {
                    let _ = black_box(decoder.decode(&wire[..end], None));
                }
            });
        });
    }
}

fn encode(c: &mut Criterion) {
    let small = Bytes::from_static(b"127.0.0.1:29500");
    let large = Bytes::from(vec![7; 1 << 20]);
    let replies = [
        ("stop_waiting", Reply::StopWaiting),
        ("number", Reply::Number(8)),
        ("small_value", Reply::Value(&small)),
        // The bytes are shared with the store, not copied.
        ("value_of_1_mib", Reply::Value(&large)),
    ];
    let mut group = c.benchmark_group("encode");
    let mut out = ReplyBuffer::default();
    for (name, reply) in replies {
        group.bench_function(name, |b| {
            b.iter(|| {
                out.push(black_box(reply));
                out.advance(out.len());
            });
        });
    }
}

criterion_group!(benches, decode, encode);
criterion_main!(benches);
