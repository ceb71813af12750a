//! Behaviour of the engine itself, beside the store's.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::{Clock, Engine, MemoryBudget, OnCleanup, Session, WAIT_BUCKET_FACTOR};
use rallypoint_protocol::{KeyList, Payload, ReplyBuffer, Request};
use rallypoint_store::{Capacity, Cleanup, StaleKeyConfig, Store};

struct Deaf;

impl OnCleanup for Deaf {
    fn cleaned_up(&self, _: u16, _: Cleanup) {}
}

fn engine() -> Arc<Engine> {
    let store = Store::new(Capacity { keys: 1 << 20, bytes: 1 << 30 }, StaleKeyConfig::default());
    Engine::new(29500, store, Clock::start(), MemoryBudget::new(1 << 30), Arc::new(Deaf), false, None)
}

fn connect(engine: &Arc<Engine>) -> Session {
    engine.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, 40000)))
}

/// The replies to one request of a client of PyTorch 2.0, and whether it waits.
fn submit(session: &Session, request: Request<'_>) -> (Vec<u8>, bool) {
    let mut out = ReplyBuffer::default();
    let submitted = session.submit(&[(request, 1)], true, None, &mut out, Waker::noop());
    assert_eq!((submitted.applied, submitted.refusal), (1, None));
    (out.to_vec(), submitted.waiting)
}

#[test]
fn a_second_wait_is_as_old_as_itself() {
    let engine = engine();
    let [waiter, setter] = [connect(&engine), connect(&engine)];
    let wait = |key| {
        let keys: KeyList = [key].into_iter().collect();
        assert_eq!(submit(&waiter, Request::Wait(keys.as_list())), (vec![], true));
    };
    wait("first");
    std::thread::sleep(Duration::from_millis(50));
    let began = Instant::now();
    wait("second");
    submit(&setter, Request::Set { key: b"second", value: Payload::borrowed(b"1") });
    let longest = began.elapsed().as_secs_f64();
    let waits = engine.meter().waits.0;
    assert_eq!(waits.count(), 1);
    assert!(waits.sum * f64::from(WAIT_BUCKET_FACTOR) <= longest, "{waits:?} in {longest} s");
}

/// A client of PyTorch 2.0 that gives the same request again has not moved on.
#[test]
fn a_wait_in_slices_is_one_wait() {
    let engine = engine();
    let [waiter, setter] = [connect(&engine), connect(&engine)];
    let names: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
    let keys: KeyList = names.iter().collect();
    let mut out = ReplyBuffer::default();
    let mut sections = 1;
    loop {
        let submitted =
            waiter.submit(&[(Request::Wait(keys.as_list()), 1)], true, None, &mut out, Waker::noop());
        if submitted.applied == 1 {
            assert!(!submitted.waiting, "all keys are there by now");
            break;
        }
        assert!(submitted.worked_enough && submitted.waiting);
        assert!(out.is_empty());
        sections += 1;
        for name in &names {
            submit(&setter, Request::Set { key: name.as_bytes(), value: Payload::borrowed(b"1") });
        }
    }
    assert!(sections > 1);
    assert_eq!(out.to_vec(), [0]);
    assert_eq!(engine.meter().waits.0.count(), 0, "it has not been given up");
}

#[test]
fn a_wake_up_is_taken_once() {
    let engine = engine();
    let [waiter, setter] = [connect(&engine), connect(&engine)];
    let keys: KeyList = ["k"].into_iter().collect();
    assert!(submit(&waiter, Request::Wait(keys.as_list())).1);
    let poll = || {
        let mut out = ReplyBuffer::default();
        (waiter.poll_wake_up(&mut out, Waker::noop()), out.to_vec())
    };
    assert_eq!(poll(), (Poll::Pending, vec![]));
    submit(&setter, Request::Set { key: b"k", value: Payload::borrowed(b"1") });
    assert_eq!(poll(), (Poll::Ready(()), vec![0]));
    assert_eq!(poll(), (Poll::Pending, vec![]));
}
