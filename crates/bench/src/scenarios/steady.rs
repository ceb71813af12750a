//! Requests at a steady pace for a while: `rtt` and `mix`. A closed loop sends a request when its predecessor
//! is answered; an open loop has a given rate.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::cast_precision_loss,
    reason = "numbers of the load test itself"
)]

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Error, Frame, Link, Session, Units, pace};
use crate::workers::{WorkerContext, each};
use rallypoint_protocol::{KeyList, Payload, Request};

/// The cheapest request.
pub(crate) fn rtt(session: &mut Session<'_>) -> Result<(), Error> {
    let plan = session.plan;
    session.connect(plan.connections)?;
    let depth = plan.depth;
    steady(session, move |_, context| {
        let question = context.dialer.question();
        vec![question.repeated(depth)]
    })
}

/// The requests of jobs, in equal parts.
pub(crate) fn mix(session: &mut Session<'_>) -> Result<(), Error> {
    let plan = session.plan;
    session.connect(plan.connections)?;
    let names = Arc::new(Names {
        prefix: session.prefix.clone(),
        count: if plan.keys == 0 { plan.connections } else { plan.keys },
    });
    let value = vec![b'v'; plan.size];
    let depth = plan.depth;

    let (prepared, first) = (Arc::clone(&names), value.clone());
    // A GET of another connection must never find its key absent.
    session.prepare_each(0..plan.connections, move |mut link| {
        let set = Frame::of(&Request::Set {
            key: prepared.value(link.number).as_bytes(),
            value: Payload::borrowed(&first),
        });
        async move {
            link.send(&set).await?;
            link.ask(&Frame::of(&Request::NumKeys)).await?;
            Ok(link)
        }
    })?;

    let used = Arc::clone(&names);
    steady(session, move |number, _| mix_script(&used, number, &value, depth))?;

    session.prepare_each(0..names.count.min(plan.connections), move |mut link| {
        let (value, counter) = (names.value(link.number), names.counter(link.number));
        async move {
            for key in [value, counter] {
                link.ask(&Frame::of(&Request::Delete { key: key.as_bytes() })).await?;
            }
            Ok(link)
        }
    })
}

/// The keys of `mix`: `count` of them, shared by the connections in turn.
struct Names {
    prefix: String,
    count: usize,
}

impl Names {
    fn value(&self, number: usize) -> String {
        format!("{}/value/{}", self.prefix, number % self.count)
    }

    fn counter(&self, number: usize) -> String {
        format!("{}/counter/{}", self.prefix, number % self.count)
    }
}

/// With one request in flight, each request is one write, as in PyTorch's client. With more, a write has
/// `depth` requests.
fn mix_script(names: &Names, number: usize, value: &[u8], depth: usize) -> Vec<Frame> {
    let (key, counter) = (names.value(number), names.counter(number));
    let key = key.as_bytes();
    let list: KeyList = [key].into_iter().collect();
    let cycle = [
        Request::Set { key, value: Payload::borrowed(value) },
        Request::Wait(list.as_list()),
        Request::Get { key },
        Request::Add { key: counter.as_bytes(), delta: 1 },
        Request::Check(list.as_list()),
    ];
    match depth {
        1 => cycle.iter().map(Frame::of).collect(),
        // A batch of SETs alone would have no reply to wait for. From 2 on, every part of the cycle has a
        // reply.
        _ => (0..cycle.len())
            .map(|batch| Frame::batch(cycle.iter().copied().cycle().skip(batch * depth).take(depth)))
            .collect(),
    }
}

/// Every connection repeats the frames of its script for the plan's duration.
fn steady(
    session: &mut Session<'_>,
    script: impl Fn(usize, &WorkerContext) -> Vec<Frame> + Clone + Send + 'static,
) -> Result<(), Error> {
    let plan = session.plan;
    let (duration, depth, rate, total) = (plan.duration, plan.depth, plan.rate, plan.connections);
    session.measure("requests", "request", Units::Requests, move |context, links| {
        let script = script.clone();
        async move {
            let scripts: Vec<_> = links.iter().map(|link| script(link.number, &context)).collect();
            let start = Instant::now();
            let until = start + duration;
            let work = links.into_iter().zip(scripts);
            let Some(rate) = rate else {
                return each(work, |(link, script)| closed_loop(link, script, until)).await;
            };
            let (lanes, work): (Vec<_>, Vec<_>) = work
                .map(|(link, script)| {
                    let (due, dues) = unbounded_channel();
                    (due, (link, script, dues))
                })
                .unzip();
            let share = rate * lanes.len() as f64 / total as f64 / depth as f64;
            let clock = pace(start, until, share, lanes, &context.tally);
            let sent = each(work.into_iter(), |(link, script, dues)| open_loop(link, script, dues, until));
            let ((), links) = tokio::try_join!(clock, sent)?;
            Ok(links)
        }
    })?;
    Ok(())
}

async fn closed_loop(mut link: Link, script: Vec<Frame>, until: Instant) -> Result<Link, Error> {
    for frame in script.iter().cycle() {
        let started = Instant::now();
        if started >= until {
            break;
        }
        exchange(&mut link, frame, started).await?;
    }
    Ok(link)
}

async fn open_loop(
    mut link: Link,
    script: Vec<Frame>,
    mut dues: UnboundedReceiver<Instant>,
    until: Instant,
) -> Result<Link, Error> {
    for frame in script.iter().cycle() {
        let Some(due) = dues.recv().await else { break };
        if Instant::now() >= until {
            // The server did not keep up. The remaining due requests would only make the test longer.
            link.tally.fact("never_sent", 1 + dues.len() as u64);
            break;
        }
        exchange(&mut link, frame, due).await?;
    }
    Ok(link)
}

/// Sends a frame and records the time of each reply after `since`.
async fn exchange(link: &mut Link, frame: &Frame, since: Instant) -> Result<(), Error> {
    link.send(frame).await?;
    for &(op, answer) in &frame.answers {
        link.take(op, answer).await?;
        link.tally.took(op.name(), since.elapsed());
    }
    Ok(())
}
