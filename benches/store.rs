//! The cost of the store's operations with 1, 1,000 and 100,000 keys and waiters. The columns should not
//! differ by more than the processor's caches explain. `cargo bench --bench store -- --quick`.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::{KeyList, Payload, Reply, ReplyBuffer, Request};
use rallypoint_store::{Capacity, Cleanup, Effects, Progress, StaleKeyConfig, Store};

const SIZES: [u32; 3] = [1, 1_000, 100_000];
const NOW: Timestamp = Timestamp(std::time::Duration::from_secs(1));

/// Encodes replies, as the server does, and counts wake-ups.
#[derive(Default)]
struct Sink {
    out: ReplyBuffer,
    woken: usize,
}

impl Effects for Sink {
    fn reply(&mut self, reply: Reply<'_>) {
        self.out.push(reply);
    }

    fn wake(&mut self, _: ConnId, _: Timestamp) {
        self.woken += 1;
    }

    fn cleanup(&mut self, _: Cleanup) {}
}

struct World {
    store: Store,
    sink: Sink,
    connections: u32,
}

impl World {
    fn new() -> Self {
        let capacity = Capacity { keys: usize::MAX, bytes: usize::MAX };
        let store = Store::new(capacity, StaleKeyConfig::default());
        Self { store, sink: Sink::default(), connections: 0 }
    }

    fn connect(&mut self) -> ConnId {
        self.connections += 1;
        let conn = ConnId::new(self.connections - 1, self.connections);
        self.store.connect(conn, SocketAddr::from((Ipv4Addr::LOCALHOST, 40000)));
        conn
    }

    fn apply(&mut self, conn: ConnId, request: &Request<'_>) {
        while self.store.apply(conn, request, NOW, &mut self.sink).expect("it fits") == Progress::Begun {
            self.store.begin(&mut self.sink);
        }
        let sent = self.sink.out.len();
        self.sink.out.advance(sent);
    }

    fn with_keys(count: u32) -> (Self, ConnId, Vec<String>) {
        let mut world = Self::new();
        let conn = world.connect();
        let keys: Vec<String> = (0..count).map(|n| format!("/default_pg/0//cpu//0/{n}")).collect();
        for key in &keys {
            world.apply(conn, &set(key, b"127.0.0.1:29500"));
        }
        (world, conn, keys)
    }

    /// Connections that all wait for `/go` and for one own key each.
    fn with_waiters(count: u32) -> (Self, Vec<ConnId>) {
        let mut world = Self::new();
        let waiters: Vec<ConnId> = (0..count).map(|_| world.connect()).collect();
        for (n, &conn) in waiters.iter().enumerate() {
            let keys: KeyList = [format!("/own/{n}"), "/go".to_owned()].into_iter().collect();
            world.apply(conn, &Request::Wait(keys.as_list()));
        }
        (world, waiters)
    }
}

/// Which addresses rank `n` of `size` reads.
type Reads = fn(u32, u32) -> Vec<u32>;

/// As all who read all but their own: two ranges of ranks.
fn mesh(n: u32, size: u32) -> Vec<u32> {
    if n == 1 { vec![0] } else { vec![0, size - 1] }
}

/// As a ring of lazy gloo.
fn ring(n: u32, size: u32) -> Vec<u32> {
    vec![(n + 1) % size, (n + size - 1) % size]
}

/// As a barrier of lazy gloo.
fn barrier(n: u32, size: u32) -> Vec<u32> {
    let distances = std::iter::successors(Some(1), |distance| Some(distance * 2));
    distances
        .take_while(|&distance| distance < size)
        .flat_map(|by| [(n + by) % size, (n + size - by) % size])
        .collect()
}

fn set<'a>(key: &'a str, value: &'a [u8]) -> Request<'a> {
    Request::Set { key: key.as_bytes(), value: Payload::borrowed(value) }
}

/// One request on one key of many.
fn keys(c: &mut Criterion) {
    for size in SIZES {
        let (mut world, conn, keys) = World::with_keys(size);
        let lists: Vec<KeyList> = keys.iter().map(|key| [key].into_iter().collect()).collect();
        let mut at = 0;
        // Steps without a common factor with the sizes, so that every key has its turn.
        let mut next = move || {
            at = (at + 7919) % size as usize;
            at
        };
        let mut group = c.benchmark_group("keys");
        group.bench_function(BenchmarkId::new("set", size), |b| {
            b.iter(|| world.apply(conn, &set(&keys[next()], b"127.0.0.1:29501")));
        });
        group.bench_function(BenchmarkId::new("get", size), |b| {
            b.iter(|| world.apply(conn, &Request::Get { key: keys[next()].as_bytes() }));
        });
        group.bench_function(BenchmarkId::new("check", size), |b| {
            b.iter(|| world.apply(conn, &Request::Check(lists[next()].as_list())));
        });
        group.bench_function(BenchmarkId::new("wait_that_is_over", size), |b| {
            b.iter(|| world.apply(conn, &Request::Wait(lists[next()].as_list())));
        });
        group.bench_function(BenchmarkId::new("add", size), |b| {
            b.iter(|| world.apply(conn, &Request::Add { key: b"/counter", delta: 1 }));
        });
        group.bench_function(BenchmarkId::new("set_and_delete_new", size), |b| {
            b.iter(|| {
                world.apply(conn, &set("/new", b"1"));
                world.apply(conn, &Request::Delete { key: b"/new" });
            });
        });
        group.throughput(Throughput::Elements(u64::from(size)));
        group.bench_function(BenchmarkId::new("check_all", size), |b| {
            let all: KeyList = keys.iter().collect();
            b.iter(|| world.apply(conn, &Request::Check(all.as_list())));
        });
    }
}

/// One connection's wait among many others.
fn waiters(c: &mut Criterion) {
    let mut group = c.benchmark_group("waiters");
    for size in SIZES {
        let (mut world, _) = World::with_waiters(size);
        let conn = world.connect();
        let go: KeyList = ["/go"].into_iter().collect();
        group.bench_function(BenchmarkId::new("wait_and_cancel", size), |b| {
            b.iter(|| {
                world.apply(conn, &Request::Wait(go.as_list()));
                world.apply(conn, &Request::CancelWait);
            });
        });
        group.bench_function(BenchmarkId::new("oldest_wait", size), |b| {
            b.iter(|| black_box(world.store.oldest_wait(NOW)));
        });
        group.bench_function(BenchmarkId::new("view_of_100", size), |b| {
            b.iter(|| black_box(world.store.waits(NOW, 100, 8)));
        });
    }
}

/// Many waiters at once: the cost of one waiter.
fn crowds(c: &mut Criterion) {
    let mut group = c.benchmark_group("crowds");
    group.sample_size(10);
    for size in SIZES {
        group.throughput(Throughput::Elements(u64::from(size)));
        group.bench_function(BenchmarkId::new("one_set_releases_all", size), |b| {
            let all_but_go = || {
                let (mut world, waiters) = World::with_waiters(size);
                let setter = world.connect();
                for n in 0..waiters.len() {
                    world.apply(setter, &set(&format!("/own/{n}"), b"1"));
                }
                (world, setter)
            };
            b.iter_batched(
                all_but_go,
                |(mut world, setter)| {
                    world.apply(setter, &set("/go", b"1"));
                    assert_eq!(world.sink.woken, size as usize);
                    world
                },
                BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("all_leave", size), |b| {
            b.iter_batched(
                || World::with_waiters(size),
                |(mut world, waiters)| {
                    for conn in waiters {
                        world.store.disconnect(conn, NOW, &mut world.sink);
                    }
                    world
                },
                BatchSize::PerIteration,
            );
        });
    }
}

/// A new process takes a place in a group, and all other addresses are spent: requests for them are put off
/// for this long.
fn places(c: &mut Criterion) {
    let mut group = c.benchmark_group("places");
    group.sample_size(10);
    let reads: [(&str, Reads); 3] = [("mesh", mesh), ("ring", ring), ("barrier", barrier)];
    for (name, reads) in reads {
        for size in [1_000, 10_000, 100_000] {
            let key = |rank: u32| format!("/default_pg/0//cpu//0/{rank}");
            let met = || {
                let mut world = World::new();
                let ranks: Vec<(u32, ConnId)> = (0..size).map(|n| (n, world.connect())).collect();
                for &(n, conn) in &ranks {
                    world.apply(conn, &set(&key(n), b"127.0.0.1:29500"));
                }
                for &(n, conn) in &ranks {
                    for rank in reads(n, size) {
                        world.apply(conn, &Request::Get { key: key(rank).as_bytes() });
                    }
                }
                let new = world.connect();
                (world, new)
            };
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter_batched(
                    met,
                    |(mut world, new)| {
                        world.apply(new, &set(&key(0), b"127.0.0.1:29501"));
                        assert_eq!(world.store.dropped(), u64::from(size) - 1);
                        world
                    },
                    BatchSize::PerIteration,
                );
            });
        }
    }
}

criterion_group!(benches, keys, waiters, crowds, places);
criterion_main!(benches);
