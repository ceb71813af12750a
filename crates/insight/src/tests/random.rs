//! Whatever is observed, in whatever order: no panic, and nothing beyond its bound.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::lab::{Lab, announcement, gloo};
use crate::{Insight, Settings};
use rallypoint_protocol::ids::{ConnId, RunId, Timestamp};
use rallypoint_rendezvous::gate::{Announcement, Gates};
use rallypoint_store::{DropCause, Observed, WaitView};

const MAX_RUNS: usize = 5;

fn key() -> impl Strategy<Value = String> {
    let small = 0..4_u32;
    prop_oneof![
        (0..9_u32).prop_map(|run| format!("/torch.rendezvous.r{run}")),
        (
            small.clone(),
            small.clone(),
            prop::sample::select(vec![
                "MASTER_ADDR",
                "MASTER_PORT",
                "torchelastic/role_info/1",
                "torchelastic/role_info/4000000000",
                "torchelastic/assigned_ranks/0",
                "torchelastic/assigned_ranks/2",
                "torchelastic/agent/terminal_state/num_members",
                "torchelastic/agent/terminal_state/last_member",
            ])
        )
            .prop_map(|(run, round, part)| format!("/torch.rendezvous.r{run}.{round}/{part}")),
        (small.clone(), small.clone())
            .prop_map(|(run, node)| format!("/s{run}/torchelastic/role_info/{node}")),
        (small.clone(), small.clone())
            .prop_map(|(run, node)| format!("/s{run}/torchelastic/assigned_ranks/{node}")),
        any::<u32>().prop_map(|rank| format!("/default_pg/0//cpu//0/{rank}")),
        small.clone().prop_map(|rank| format!("/default_pg/0//cpu//0/{rank}")),
        small.clone().prop_map(|rank| format!("/default_pg/0//sub//cpu//0/{rank}")),
        small.prop_map(|attempt| format!("//worker/attempt_{attempt}/default_pg/0//cpu//0/1")),
        Just("/default_pg/0//cuda//0".to_owned()),
        Just("/default_pg/store_based_barrier_key:0:last_worker".to_owned()),
        Just("/default_pg/0//exception_dump".to_owned()),
        Just("init/".to_owned()),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let samples = include_str!("../../../../tests/data/samples/rdzv_states.json");
    let samples: Vec<serde_json::Value> = serde_json::from_str(samples).expect("JSON");
    let states: Vec<Vec<u8>> =
        samples.iter().filter_map(|s| Some(s["value_base64"].as_str()?.as_bytes().to_vec())).collect();
    prop_oneof![
        4 => prop::sample::select(states),
        2 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (1..9_usize).prop_map(|world| gloo("host", world)),
        1 => Just(b"[0, 8, 0, 8]".to_vec()),
        1 => Just(b"[4294967295, 4294967295, 1, 1]".to_vec()),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Observe(Observed),
    Waits(Vec<(u32, String, u64)>),
    Announce(u32, u32),
    Forget(u32),
    Pass(u64),
}

fn conn() -> impl Strategy<Value = ConnId> {
    (0..12_u32).prop_map(|n| ConnId::new(n, n))
}

fn step() -> impl Strategy<Value = Step> {
    let peer = ([10, 0, 0, 1], 40000).into();
    let bytes = |key: String| key.into_bytes().into_boxed_slice();
    prop_oneof![
        4 => (conn(), prop::option::of(0..4_u32), key()).prop_map(move |(conn, pid, key)| {
            Step::Observe(Observed::Client { conn, peer, pid, key: bytes(key) })
        }),
        8 => (conn(), key(), value()).prop_map(move |(conn, key, value)| {
            Step::Observe(Observed::Wrote { conn, key: bytes(key), value: Bytes::from(value) })
        }),
        2 => conn().prop_map(|conn| Step::Observe(Observed::Gone { conn, used_own_keys: false })),
        1 => key().prop_map(move |key| {
            Step::Observe(Observed::Dropped { key: bytes(key), cause: DropCause::PairedWithGone })
        }),
        1 => (conn(), key()).prop_map(move |(conn, key)| {
            Step::Observe(Observed::GaveUp { conn, key: bytes(key), waited: Duration::from_mins(1) })
        }),
        1 => (conn(), conn(), key()).prop_map(move |(first, second, key)| {
            Step::Observe(Observed::TwoWriters { key: bytes(key), first, second })
        }),
        1 => (0..9_u32).prop_map(|run| {
            let run_id = RunId::new(format!("r{run}").as_bytes());
            Step::Observe(Observed::RunRestarted { run_id })
        }),
        1 => Just(Step::Observe(Observed::StoreReset { cause: DropCause::StoreIdle })),
        2 => prop::collection::vec((0..12_u32, key(), 0..100_u64), 0..12).prop_map(Step::Waits),
        1 => (0..9_u32, 0..5_u32).prop_map(|(run, pod)| Step::Announce(run, pod)),
        1 => (0..9_u32).prop_map(Step::Forget),
        4 => (0..40_000_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn nothing_observed_breaks_it(steps in prop::collection::vec(step(), 0..80)) {
        let mut insight = Insight::new(Settings { max_runs: MAX_RUNS, ..Settings::default() });
        let mut gates = Gates::new(Duration::from_secs(30), 1000);
        let mut now = Timestamp::default();
        for step in steps {
            match step {
                Step::Observe(observed) => insight.observe(7, now, observed),
                Step::Waits(waits) => {
                    let open = |(n, key, waited): (u32, String, u64)| {
                        let (conn, peer) = (ConnId::new(n, n), ([10, 0, 0, 1], 40000).into());
                        WaitView::new(conn, peer, None, Duration::from_secs(waited), key.into_bytes().into())
                    };
                    insight.waits(7, waits.into_iter().map(open).collect(), &[], now);
                }
                Step::Announce(run, pod) => {
                    let run = format!("r{run}");
                    let said = announcement(&format!("pod{pod}"), pod % 3, pod / 2 + 3);
                    let said = Announcement { torch: Some(pod.to_string()), ..said };
                    let _ = gates.announce(&run, &said, insight.finished(&run), now);
                    let gate = gates.of(&run).and_then(|run| run.snapshot(now, gates.pod_timeout()));
                    insight.gate(&run, gate.filter(|_| pod > 0), now);
                }
                Step::Forget(run) => {
                    insight.forget(&format!("r{run}"));
                }
                Step::Pass(millis) => {
                    now = now + Duration::from_millis(millis);
                    insight.tick(now);
                }
            }
            prop_assert!(insight.jobs.runs.len() <= MAX_RUNS);
            prop_assert!(insight.told.entries.len() <= 4096);
        }
        insight.tick(now + Duration::from_mins(1));
        let list = insight.documents(now).list(0);
        for run in &list.runs {
            let shown = insight.documents(now).run(&run.run_id, run.store, Some(run.kind));
            prop_assert!(shown.is_some_and(|shown| shown.timeline.len() <= 256));
            prop_assert!(run.nodes.joined <= 20_000);
        }
        serde_json::to_string(&list).expect("JSON");
        insight.documents(now).figures();
    }
}

/// The largest rank has no next one, of which the others ask where its own ranks end.
#[test]
fn a_node_with_the_largest_rank_is_shown() {
    for rank in [0, u32::MAX] {
        let mut lab = Lab::new();
        lab.joins(0, "job", &format!("join complete rank:{rank}"));
        let key = format!("/torch.rendezvous.job.0/torchelastic/assigned_ranks/{rank}");
        lab.set(0, &key, b"[0, 8, 0, 8]");
        lab.pass(1.0);
        let node = &lab.run("job").participants[0];
        assert_eq!((node.rank, node.base_rank, node.local_world_size), (Some(rank), Some(0), Some(8)));
    }
}

/// What is held stays bounded however much comes.
#[test]
fn a_flood_is_bounded() {
    let mut insight = Insight::new(Settings { max_runs: 10, ..Settings::default() });
    let peer = ([10, 0, 0, 1], 40000).into();
    for n in 0..50_000_u32 {
        let conn = ConnId::new(n, n);
        let key: Box<[u8]> = format!("/torch.rendezvous.run{n}").into_bytes().into();
        insight.observe(7, Timestamp::default(), Observed::Client { conn, peer, pid: Some(1), key });
        let key: Box<[u8]> =
            format!("/default_pg/0//cpu//0/{}", n.wrapping_mul(1_000_003)).into_bytes().into();
        insight.observe(7, Timestamp::default(), Observed::Wrote { conn, key, value: Bytes::new() });
    }
    insight.tick(Timestamp(Duration::from_secs(10)));
    assert!(insight.jobs.runs.len() <= 10);
    for run in insight.jobs.runs.values() {
        assert!(run.world.shown().ranks().count() <= 131_072 && run.timeline.len() <= 256);
    }
    assert!(insight.take_changes().len() <= 16_384);
}
