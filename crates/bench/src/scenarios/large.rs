//! Requests that keep a server busy for long: large values, or very many keys. A bystander shows the effect
//! on other clients.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of the load test itself")]

use std::sync::Arc;
use std::time::Instant;

use super::{Error, Frame, Session, Units};
use rallypoint_protocol::{KeyList, PairList, Payload, Request};

/// Simultaneous deletions during the cleanup.
const DELETE_AT_ONCE: usize = 1000;

/// One value of `size` bytes, or `keys` values in one request, on each connection, `rounds` times.
pub(crate) fn big(session: &mut Session<'_>) -> Result<(), Error> {
    let plan = session.plan;
    session.connect(plan.connections)?;
    let prefix = session.prefix.clone();
    let (count, size) = (plan.keys, plan.size);
    let keys = move |number: usize| -> Vec<String> {
        (0..count).map(|n| format!("{prefix}/{number}/{n}")).collect()
    };
    if count == 1 {
        let set = keys.clone();
        ask_often(session, "set", move |number| {
            Frame::of(&Request::Set {
                key: set(number)[0].as_bytes(),
                value: Payload::borrowed(&vec![b'v'; size]),
            })
        })?;
        let get = keys.clone();
        ask_often(session, "get", move |number| Frame::of(&Request::Get { key: get(number)[0].as_bytes() }))?;
    } else {
        let set = keys.clone();
        ask_often(session, "multi_set", move |number| {
            let pairs: PairList = set(number).iter().map(|key| (key, vec![b'v'; size])).collect();
            Frame::of(&Request::MultiSet(pairs.as_pairs()))
        })?;
        let check = keys.clone();
        ask_often(session, "check", move |number| {
            let keys: KeyList = check(number).iter().collect();
            Frame::of(&Request::Check(keys.as_list()))
        })?;
        let get = keys.clone();
        ask_often(session, "multi_get", move |number| {
            let keys: KeyList = get(number).iter().collect();
            Frame::of(&Request::MultiGet(keys.as_list()))
        })?;
    }
    session.prepare_each(0..plan.connections, move |mut link| {
        let keys = keys(link.number);
        async move {
            for some in keys.chunks(DELETE_AT_ONCE) {
                let delete = some.iter().map(|key| Request::Delete { key: key.as_bytes() });
                link.ask(&Frame::batch(delete)).await?;
            }
            Ok(link)
        }
    })
}

/// Every connection sends one frame `rounds` times, with a bystander beside them. A question after a request
/// without a reply shows when the server has done it.
fn ask_often(
    session: &mut Session<'_>,
    name: &'static str,
    frame: impl Fn(usize) -> Frame + Clone + Send + 'static,
) -> Result<(), Error> {
    let (connections, rounds) = (session.plan.connections, session.plan.rounds);
    // The encoding is not part of the measurement.
    let frames: Arc<[Frame]> = (0..connections).map(frame).collect();
    let question = session.question();
    let bystander = session.bystander()?;
    for _ in 0..rounds {
        let (frames, question) = (Arc::clone(&frames), Arc::clone(&question));
        session.measure_each(
            name,
            "request",
            Units::Count(connections),
            0..connections,
            move |mut link| {
                let (frames, question) = (Arc::clone(&frames), Arc::clone(&question));
                async move {
                    let frame = &frames[link.number];
                    let started = Instant::now();
                    link.send(frame).await?;
                    let mut bytes = 0;
                    for &(op, answer) in &frame.answers {
                        bytes += link.take(op, answer).await?;
                    }
                    if frame.answers.is_empty() {
                        link.ask(&question).await?;
                    }
                    link.tally.took(name, started.elapsed());
                    link.tally.fact("bytes_read", bytes);
                    Ok(link)
                }
            },
        )?;
    }
    session.dismiss(bystander, name)
}
