//! `join`: nodes meet in one round of the native rendezvous. Each has its own connection to the admin port,
//! or several ask in turn on one connection.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of the load test itself")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Error, Link, Session, Units};
use crate::http::post;

/// How long one request waits at most; then it is repeated.
const POLL: Duration = Duration::from_mins(1);

/// `ranks` nodes join at once. A node gives up if its round is not complete within the plan's time.
pub(crate) fn join(session: &mut Session<'_>) -> Result<(), Error> {
    let plan = session.plan;
    let (nodes, limit, connections) = (plan.ranks, plan.duration, plan.connections_made());
    let each = plan.per_link().unwrap_or(1);
    session.connect(connections)?;
    let path: Arc<str> = format!("/api/v1/runs/{}", session.prefix.trim_start_matches('/')).into();
    let used = Arc::clone(&path);
    session.measure_each("join", "node", Units::Count(nodes), 0..connections, move |mut link| {
        let path = format!("{used}/join");
        let own = (link.number * each..nodes).take(each);
        async move {
            let started = Instant::now();
            let left = || limit.saturating_sub(started.elapsed());
            if each > 1 {
                // All nodes ask without a wait first: otherwise the first one to wait would keep the others
                // from joining.
                for node in own.clone() {
                    ask(&mut link, &path, node, nodes, Duration::ZERO).await?;
                }
            }
            for node in own {
                while !ask(&mut link, &path, node, nodes, left().min(POLL)).await? {
                    if left().is_zero() {
                        link.tally.fact("gave_up", 1);
                        return Ok(link);
                    }
                }
                link.tally.took("node", started.elapsed());
                link.tally.fact("joined", 1);
            }
            Ok(link)
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

/// Sends one request of a node. Returns whether its round is complete.
async fn ask(link: &mut Link, path: &str, node: usize, nodes: usize, wait: Duration) -> Result<bool, Error> {
    let body = json!({
        "node": format!("node-{node}"), "join_id": "1", "min_nodes": nodes, "node_rank": node,
        "heartbeat": false,
        "wait_seconds": wait.as_secs_f64(),
    });
    let (status, answer) = post(link, path, &body).await?;
    match status {
        200 if answer["group_rank"] == node && answer["group_world_size"] == nodes => Ok(true),
        202 => Ok(false),
        _ => Err(Error::Answer { status, detail: answer["detail"].to_string() }),
    }
}
