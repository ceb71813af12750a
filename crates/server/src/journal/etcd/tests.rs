//! A leader stopped at any transaction leaves the state of a whole commit, no older than the last
//! acknowledged one. Commits take several transactions here, as large ones do.

use std::cell::Cell;

use super::super::tests::{Opened, SEGMENT, Server};
use super::super::{Journal, Segments, read};
use super::Log;
use super::faults::{FakeEtcd, TakenOver};

/// Takes over the leadership and opens the journal.
fn open(etcd: &FakeEtcd) -> Opened {
    let (journal, restored) = Journal::at(&etcd.lead(), SEGMENT)?;
    Ok((journal, restored.image))
}

#[test]
fn killed_after_any_transaction_a_leader_leaves_its_last_whole_commit() {
    let etcd = FakeEtcd::start();
    let torn = Cell::new(0);
    let mut server = Server::start(open(&etcd)).expect("a server");
    let mut transactions = etcd.transactions();
    for n in 1..25 {
        server.change(n);
        server.tidy();
        if n % 3 > 0 {
            continue;
        }
        assert!(server.journal.sync());
        // Check this at once: a leader that has not been heard of for 4.5 s acknowledges nothing.
        let before = server.acknowledged;
        server.acknowledge();
        assert_eq!(server.acknowledged + 1, server.states.len(), "replies leave after a sync");
        let acknowledged = std::mem::replace(&mut server.acknowledged, before);
        for transaction in transactions..etcd.transactions() {
            let left = etcd.after(transaction);
            server.check(|| {
                let (journal, restored) = Journal::at(&left.lead(), SEGMENT)?;
                torn.set(torn.get() + u32::from(restored.cut > 0));
                Ok((journal, restored.image))
            });
            // The new leader may be killed as well.
            for transaction in 0..left.transactions() {
                server.check(|| open(&left.after(transaction)));
            }
        }
        transactions = etcd.transactions();
        server.acknowledged = acknowledged;
        server.check(|| open(&etcd.now()));
    }
    assert!(server.journal.stats().tidied > 0);
    assert!(torn.get() > 20, "{} commits were there in part", torn.get());
}

#[test]
fn a_leader_that_another_one_follows_at_any_transaction_acknowledges_nothing_more() {
    for at in 0.. {
        let mut both_lost = true;
        for when in [TakenOver::Before(at), TakenOver::After(at)] {
            let etcd = FakeEtcd::start();
            etcd.take_over(when);
            let Some(mut server) = Server::start(open(&etcd)) else { continue };
            for n in 1..8 {
                server.change(n);
                server.tidy();
                server.journal.sync();
                server.acknowledge();
            }
            server.check(|| open(&etcd.now()));
            let lost = server.journal.etcd().and_then(|etcd| etcd.standing().lost());
            assert_eq!(lost.is_none(), server.acknowledged == 7);
            both_lost &= lost.is_some();
        }
        if !both_lost {
            assert!(at > 15, "{at} transactions");
            break;
        }
    }
}

#[test]
fn an_answer_that_is_lost_changes_nothing() {
    let etcd = FakeEtcd::start();
    let mut server = Server::start(open(&etcd)).expect("a server");
    etcd.lose_answers();
    for n in 1..10 {
        server.change(n);
        server.tidy();
        assert!(server.journal.sync());
        server.acknowledge();
    }
    assert_eq!(server.acknowledged, 9);
    server.check(|| open(&etcd.now()));
}

#[test]
fn a_look_sees_one_moment_while_the_leader_tidies() {
    let etcd = FakeEtcd::start();
    let mut server = Server::start(open(&etcd)).expect("a server");
    let mut step = |n| {
        server.change(n);
        server.tidy();
        assert!(server.journal.sync());
    };
    (1..30).for_each(&mut step);
    let look = Log::look(&etcd.look());
    let before = look.list().expect("a list");
    let bytes: Vec<_> = before.iter().map(|&number| look.read(number).expect("bytes")).collect();
    let mut seen = Vec::new();
    let mut n = 30;
    let recovered = read(&look, |number, segment| {
        seen.push((number, segment.get(0, segment.len()).to_vec()));
        (n..n + 20).for_each(&mut step);
        n += 20;
    });
    assert!(recovered.expect("it can be read").is_ok());
    assert_eq!(seen, before.into_iter().zip(bytes).collect::<Vec<_>>());
    let now = Log::look(&etcd.look()).list().expect("a list");
    assert!(now.iter().all(|number| seen.iter().all(|(before, _)| before != number)), "all of them are gone");
}
