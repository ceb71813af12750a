//! The serving threads. Each runs its own single-threaded runtime, and a connection stays on its thread, so
//! no task is ever moved or stolen. The stores have several threads, the admin port has one.

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

/// The serving threads. Dropping this ends every connection.
#[derive(Debug)]
pub struct Workers {
    round_robin: Arc<RoundRobin>,
    stop: Arc<Notify>,
    threads: Vec<JoinHandle<()>>,
}

/// The serving threads, in turn.
#[derive(Debug, Default)]
pub struct RoundRobin {
    handles: Vec<Handle>,
    next: AtomicUsize,
}

impl Workers {
    /// Starts so many threads.
    pub fn start(name: &str, threads: NonZeroUsize) -> io::Result<Self> {
        let mut workers =
            Self { round_robin: Arc::default(), stop: Arc::new(Notify::new()), threads: Vec::new() };
        let mut handles = Vec::new();
        for n in 0..threads.get() {
            let stop = Arc::clone(&workers.stop);
            let (tell, told) = mpsc::channel();
            let thread = std::thread::Builder::new().name(format!("{name}-{n}")).spawn(move || {
                match Builder::new_current_thread().enable_all().max_blocking_threads(1).build() {
                    Ok(runtime) => {
                        let stopped = stop.notified();
                        tokio::pin!(stopped);
                        stopped.as_mut().enable();
                        let _ = tell.send(Ok(runtime.handle().clone()));
                        runtime.block_on(stopped);
                    }
                    Err(error) => {
                        let _ = tell.send(Err(error));
                    }
                }
            })?;
            workers.threads.push(thread);
            handles.push(told.recv().map_err(io::Error::other)??);
        }
        workers.round_robin = Arc::new(RoundRobin { handles, next: AtomicUsize::new(0) });
        Ok(workers)
    }

    /// No threads: a simulation gives them no work.
    #[cfg(any(test, feature = "sim"))]
    pub fn none() -> Self {
        Self { round_robin: Arc::default(), stop: Arc::default(), threads: Vec::new() }
    }

    /// Gives tasks to the threads. It may outlive them: later tasks are dropped.
    pub fn round_robin(&self) -> &Arc<RoundRobin> {
        &self.round_robin
    }
}

impl RoundRobin {
    /// How many tasks a thread gets before the turn of the next one. Many threads with little work cost more
    /// than one with much work, because each request has to wake its thread. So a small job stays on one
    /// thread, and a large one is spread.
    const IN_A_ROW: usize = 64;

    /// The runtime of the thread whose turn it is.
    #[expect(clippy::arithmetic_side_effects, reason = "there is a thread")]
    pub fn next(&self) -> &Handle {
        let turn = self.next.fetch_add(1, Relaxed) / Self::IN_A_ROW;
        &self.handles[turn % self.handles.len()]
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.notify_waiters();
        let this = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last owner may be a task on one of these threads. That thread then ends with the task.
            if thread.thread().id() != this {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_on_one_of_the_threads_may_be_the_last_to_know_of_them() {
        let two = NonZeroUsize::new(2).expect("not 0");
        let workers = Workers::start("test", two).expect("threads");
        let (tell, told) = mpsc::channel();
        let first = workers.round_robin().next().clone();
        first.spawn(async move {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(workers)));
            let _ = tell.send(ended.is_ok());
        });
        assert_eq!(told.recv(), Ok(true), "it joined itself");
    }
}
