//! Ranks that act together, as in a starting job: `init`, `exchange`, `ncclids` and `barrier`.
#![expect(clippy::cast_possible_wrap, reason = "numbers of the load test itself")]

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;

use super::{Answer, Error, Frame, Link, Session, Units};
use crate::workers::each;
use rallypoint_protocol::{KeyList, Op, Payload, Request};

/// The keys of `init`: the count of clients, and PyTorch's store-based barrier of the first group. Real jobs
/// use these names, so the server treats them as it treats a real job.
pub(crate) const INIT_KEYS: [&str; 3] =
    ["init/", "/default_pg/store_based_barrier_key:0", "/default_pg/store_based_barrier_key:0:last_worker"];

/// The key under which gloo publishes the address of a rank. `context` is the number of its exchange.
pub(crate) fn address_key(context: usize, rank: usize) -> String {
    format!("/default_pg/0//cpu//{context}/{rank}")
}

/// The key under which a root publishes its NCCL id, in a communicator of many ranks. `communicator` is the
/// communicator's number. PyTorch 2.15 has one root for 128 ranks (`TORCH_NCCL_RANKS_PER_ROOT`).
pub(crate) fn nccl_id_key(communicator: usize, root: usize) -> String {
    format!("/default_pg/0//cuda//0/nccl_storekey_{communicator}_{root}")
}

const RANKS_PER_ROOT: usize = 128;

/// How many ranks wait and read at the same time. With 100,000 of them, a core of the generator would be busy
/// for so long that it could not keep their links alive. Also, each request names every key, which needs
/// memory.
const READERS_AT_ONCE: usize = 4096;

/// `ranks` connect at once, count themselves and meet in a barrier.
pub(crate) fn init(session: &mut Session<'_>) -> Result<(), Error> {
    let ranks = session.plan.ranks;
    session.measure("init", "rank", Units::Count(ranks), move |context, _| async move {
        let started = Instant::now();
        let numbers = (0..ranks).filter(|&rank| context.has(rank));
        each(numbers, |rank| {
            let context = context.clone();
            async move {
                let mut link = context.dialer.open(rank, &context.tally).await?;
                start_rank(&mut link, ranks).await?;
                context.tally.took("rank", started.elapsed());
                context.tally.fact("released", 1);
                Ok(link)
            }
        })
        .await
    })?;
    session.prepare_each(0..1, |mut link| async move {
        let count = add(&mut link, INIT_KEYS[0], 0).await?;
        link.tally.fact("init_count", count.unsigned_abs());
        for key in INIT_KEYS {
            link.ask(&Frame::of(&Request::Delete { key: key.as_bytes() })).await?;
        }
        Ok(link)
    })
}

/// The requests of `init_process_group` after the connection, with `TORCH_DIST_INIT_BARRIER=1`.
async fn start_rank(link: &mut Link, ranks: usize) -> Result<(), Error> {
    let [count, barrier, last] = INIT_KEYS;
    add(link, count, 1).await?;
    add(link, barrier, 1).await?;
    if add(link, barrier, 0).await? == ranks as i64 {
        link.send(&Frame::of(&Request::Set { key: last.as_bytes(), value: Payload::borrowed(b"1") })).await?;
    }
    let keys: KeyList = [last].into_iter().collect();
    link.send(&Frame::of(&Request::Wait(keys.as_list()))).await?;
    link.release(Op::Wait).await
}

async fn add(link: &mut Link, key: &str, delta: i64) -> Result<i64, Error> {
    link.send(&Frame::of(&Request::Add { key: key.as_bytes(), delta })).await?;
    link.number(Op::Add).await
}

/// Every rank publishes its address and reads all addresses.
pub(crate) fn exchange(session: &mut Session<'_>) -> Result<(), Error> {
    let ranks = session.plan.ranks;
    publish_and_read(session, "exchange", ranks, address_key)
}

/// Every root publishes its id, and every rank reads all ids.
pub(crate) fn nccl_ids(session: &mut Session<'_>) -> Result<(), Error> {
    let roots = session.plan.ranks.div_ceil(RANKS_PER_ROOT);
    publish_and_read(session, "ncclids", roots, nccl_id_key)
}

/// The first `writers` ranks publish one value each. Then every rank waits for all values and reads them in
/// one request; very many ranks do this in turns.
fn publish_and_read(
    session: &mut Session<'_>,
    name: &'static str,
    writers: usize,
    key: fn(usize, usize) -> String,
) -> Result<(), Error> {
    let (ranks, rounds, size) = (session.plan.ranks, session.plan.rounds, session.plan.size);
    session.connect(ranks)?;
    for round in 0..rounds {
        let turns = Arc::new(Semaphore::new(READERS_AT_ONCE));
        let keys: KeyList = (0..writers).map(|writer| key(round, writer)).collect();
        let wait = Arc::new(Frame::of(&Request::Wait(keys.as_list())));
        let read = Arc::new(Frame::of(&Request::MultiGet(keys.as_list())));
        session.measure_each(name, "round", Units::Count(1), 0..ranks, move |mut link| {
            let (wait, read, turns) = (Arc::clone(&wait), Arc::clone(&read), Arc::clone(&turns));
            let own = (link.number < writers).then(|| {
                let (key, value) = (key(round, link.number), vec![b'a'; size]);
                Frame::of(&Request::Set { key: key.as_bytes(), value: Payload::borrowed(&value) })
            });
            async move {
                if let Some(own) = own {
                    link.send(&own).await?;
                }
                let _turn = turns.acquire().await;
                let started = Instant::now();
                link.send(&wait).await?;
                link.release(Op::Wait).await?;
                link.send(&read).await?;
                let bytes = link.take(Op::MultiGet, Answer::Values(writers)).await?;
                link.tally.took("rank", started.elapsed());
                link.tally.fact("bytes_read", bytes);
                Ok(link)
            }
        })?;
    }
    session.prepare_each(0..writers, move |mut link| async move {
        for round in 0..rounds {
            let key = key(round, link.number);
            link.ask(&Frame::of(&Request::Delete { key: key.as_bytes() })).await?;
        }
        Ok(link)
    })
}

/// All ranks meet in BARRIER.
pub(crate) fn barrier(session: &mut Session<'_>) -> Result<(), Error> {
    let ranks = session.plan.ranks;
    session.connect(ranks)?;
    for round in 0..session.plan.rounds {
        let key = format!("{}/barrier/{round}", session.prefix);
        let arrive = Request::Barrier { key: key.as_bytes(), world_size: ranks as i64 };
        let arrive = Arc::new(Frame::of(&arrive));
        session.measure_each("barrier", "rank", Units::Count(ranks), 0..ranks, move |mut link| {
            let arrive = Arc::clone(&arrive);
            async move {
                let started = Instant::now();
                link.send(&arrive).await?;
                link.release(Op::Barrier).await?;
                link.tally.took("barrier", started.elapsed());
                link.tally.fact("released", 1);
                Ok(link)
            }
        })?;
    }
    Ok(())
}
