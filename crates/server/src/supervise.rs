//! Background tasks that must not end: code that relies on them would wait without any sign.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Runs a task for ever. When the task panics or returns, it is logged and started again after a pause that
/// grows each time. Dropping the future ends the task.
pub async fn keep_running<F>(task: &'static str, mut start: impl FnMut() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut pause = SHORTEST_PAUSE;
    loop {
        let started = Instant::now();
        let mut running = JoinSet::new();
        running.spawn(start());
        let how = match running.join_next().await {
            Some(Err(error)) if error.is_panic() => "panicked",
            _ => "ended",
        };
        if started.elapsed() > LONGEST_PAUSE {
            pause = SHORTEST_PAUSE;
        }
        tracing::error!(
            task,
            "the background task `{task}` {how}, which is a bug: please report it with the lines before; it \
             starts again in {pause:?}"
        );
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause.saturating_mul(2));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    #[test]
    fn a_task_that_panics_is_started_again_and_one_that_works_is_left_alone() {
        let starts = Arc::new(AtomicU32::new(0));
        let (done, is_done) = tokio::sync::oneshot::channel();
        let mut done = Some(done);
        let counted = Arc::clone(&starts);
        let start = move || {
            let nth = counted.fetch_add(1, Relaxed);
            let done = if nth == 1 { done.take() } else { None };
            async move {
                assert!(nth > 0, "injected");
                if let Some(done) = done {
                    let _ = done.send(());
                }
                std::future::pending::<()>().await;
            }
        };
        runtime().block_on(async {
            tokio::select! {
                () = keep_running("test", start) => unreachable!("it runs for ever"),
                finished = is_done => finished.expect("it was started again"),
            }
        });
        assert_eq!(starts.load(Relaxed), 2);
    }

    #[test]
    fn a_task_ends_with_its_keeper() {
        runtime().block_on(async {
            let held = Arc::new(());
            let theirs = Arc::clone(&held);
            let keeper = tokio::spawn(keep_running("test", move || {
                let held = Arc::clone(&theirs);
                async move {
                    std::future::pending::<()>().await;
                    drop(held);
                }
            }));
            tokio::task::yield_now().await;
            keeper.abort();
            while Arc::strong_count(&held) > 1 {
                tokio::task::yield_now().await;
            }
        });
    }
}
