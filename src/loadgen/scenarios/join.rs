//! `join`: nodes meet in one round of the native rendezvous, each with a connection of its own to the admin port.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Error, Session, Units};
use crate::loadgen::http::post;

/// One request waits this long at the most; then it is sent again.
const POLL: Duration = Duration::from_mins(1);

/// `ranks` nodes join at once. Those whose round is not complete when the plan's time is over give up.
pub(super) fn join(session: &mut Session<'_>) -> Result<(), Error> {
    let (nodes, limit) = (session.plan.ranks, session.plan.duration);
    session.connect(nodes)?;
    let path: Arc<str> = format!("/api/v1/runs/{}", session.prefix.trim_start_matches('/')).into();
    let used = Arc::clone(&path);
    session.measure_each("join", "node", Units::Count(nodes), 0..nodes, move |mut link| {
        let path = format!("{used}/join");
        async move {
            let started = Instant::now();
            let name = format!("node-{}", link.number);
            loop {
                let left = limit.saturating_sub(started.elapsed());
                let body = json!({
                    "node": name, "join_id": "1", "min_nodes": nodes, "node_rank": link.number, "heartbeat": false,
                    "wait_seconds": left.min(POLL).as_secs_f64(),
                });
                let (status, answer) = post(&mut link, &path, &body).await?;
                match status {
                    200 if answer["group_rank"] == link.number && answer["group_world_size"] == nodes => {
                        link.tally.took("node", started.elapsed());
                        link.tally.fact("joined", 1);
                        return Ok(link);
                    }
                    202 if !left.is_zero() => {}
                    202 => {
                        link.tally.fact("gave_up", 1);
                        return Ok(link);
                    }
                    _ => return Err(Error::Answer { status, detail: answer["detail"].to_string() }),
                }
            }
        }
    })?;
    session.prepare_each(0..1, move |mut link| {
        let path = format!("{path}/close");
        async move {
            let body = json!({"node": "node-0", "reason": "the load test is over"});
            let _status = post(&mut link, &path, &body).await?;
            Ok(link)
        }
    })?;
    if session.fact("joined") < nodes as u64 {
        session.incomplete();
    }
    Ok(())
}
