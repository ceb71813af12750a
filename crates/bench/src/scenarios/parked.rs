//! Many outstanding waits: `fanout`, `cancel` and `leave`.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of the load test itself")]

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::{Error, Frame, Session, Units};
use rallypoint_protocol::{KeyList, Op, Payload, Request};

/// `ranks` connections wait for one key, and one more connection sets it.
pub(crate) fn fanout(session: &mut Session<'_>) -> Result<(), Error> {
    let ranks = session.plan.ranks;
    let setter = ranks;
    session.connect(ranks + 1)?;
    let keys: Arc<[String]> =
        (0..session.plan.rounds).map(|round| format!("{}/fanout/{round}", session.prefix)).collect();
    for key in keys.iter() {
        let same = key.clone();
        park(session, move |_| same.clone())?;
        let set = Frame::of(&Request::Set { key: key.as_bytes(), value: Payload::borrowed(b"go") });
        let set = Arc::new(set);
        let sent = Arc::new(OnceLock::new());
        session.measure_each("release", "waiter", Units::Count(ranks), 0..ranks + 1, move |mut link| {
            let (set, sent) = (Arc::clone(&set), Arc::clone(&sent));
            async move {
                if link.number == setter {
                    // No other connection sets it.
                    let _first = sent.set(Instant::now());
                    link.send(&set).await?;
                } else {
                    link.release(Op::Wait).await?;
                    link.tally.took("release", sent.get().map(Instant::elapsed).unwrap_or_default());
                    link.tally.fact("released", 1);
                }
                Ok(link)
            }
        })?;
    }
    session.prepare_each(setter..setter + 1, move |mut link| {
        let keys = Arc::clone(&keys);
        async move {
            for key in keys.iter() {
                link.ask(&Frame::of(&Request::Delete { key: key.as_bytes() })).await?;
            }
            Ok(link)
        }
    })
}

/// `ranks` connections wait, each for its own key. Meanwhile, `connections` others begin a WAIT and cancel
/// it.
pub(crate) fn cancel(session: &mut Session<'_>) -> Result<(), Error> {
    let plan = session.plan;
    session.connect(plan.links())?;
    park_on_own_keys(session)?;
    let prefix = session.prefix.clone();
    let (cancellers, duration) = (plan.ranks..plan.links(), plan.duration);
    session.measure_each(
        "cancel",
        "cancelled wait",
        Units::Latencies("cancel"),
        cancellers,
        move |mut link| {
            let key = format!("{prefix}/cancelled/{}", link.number);
            let until = Instant::now() + duration;
            async move {
                let keys: KeyList = [key].into_iter().collect();
                let wait = Frame::of(&Request::Wait(keys.as_list()));
                let cancel = Frame::of(&Request::CancelWait);
                loop {
                    let started = Instant::now();
                    if started >= until {
                        break;
                    }
                    link.send(&wait).await?;
                    link.send(&cancel).await?;
                    match link.code(Op::CancelWait).await? {
                        1 => link.tally.took("cancel", started.elapsed()),
                        _ => return Err(Error::Garbage { op: Op::CancelWait }),
                    }
                    link.tally.fact("cancelled", 1);
                }
                Ok(link)
            }
        },
    )?;
    Ok(())
}

/// `ranks` connections wait, each for its own key, and then all disconnect at once. The server closes its
/// side after it has removed the wait, so that is when a connection counts as gone.
pub(crate) fn leave(session: &mut Session<'_>) -> Result<(), Error> {
    let ranks = session.plan.ranks;
    session.connect(ranks)?;
    park_on_own_keys(session)?;
    let bystander = session.bystander()?;
    session.measure_each("leave", "waiter", Units::Count(ranks), 0..ranks, move |mut link| async move {
        let started = Instant::now();
        link.leave().await?;
        link.tally.took("leave", started.elapsed());
        link.tally.fact("left", 1);
        Ok(link)
    })?;
    session.dismiss(bystander, "leave")
}

fn park_on_own_keys(session: &mut Session<'_>) -> Result<(), Error> {
    let prefix = session.prefix.clone();
    park(session, move |number| format!("{prefix}/never/{number}"))
}

/// Connections `0..ranks` begin to wait. Returns when the server knows every wait: each WAIT is followed by a
/// question, and the requests of one connection are handled in order.
fn park(
    session: &mut Session<'_>,
    key: impl Fn(usize) -> String + Clone + Send + 'static,
) -> Result<(), Error> {
    let ranks = session.plan.ranks;
    if ranks == 0 {
        return Ok(());
    }
    let question = session.question();
    session.measure_each("park", "waiter", Units::Count(ranks), 0..ranks, move |mut link| {
        let keys: KeyList = [key(link.number)].into_iter().collect();
        let wait = Frame::unanswered(&Request::Wait(keys.as_list()), &question);
        async move {
            link.ask(&wait).await?;
            link.tally.fact("waiters", 1);
            Ok(link)
        }
    })?;
    Ok(())
}
