//! The threads that serve connections: each runs its own single-threaded runtime, and a connection stays on the
//! thread it was given, so no task is ever moved or stolen.

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The serving threads. Dropping them ends every connection.
#[derive(Debug)]
pub(super) struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
    stop: Arc<Notify>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(super) fn start(threads: NonZeroUsize) -> io::Result<Self> {
        let stop = Arc::new(Notify::new());
        let mut workers =
            Self { handles: Vec::new(), next: AtomicUsize::new(0), stop, threads: Vec::new() };
        for n in 0..threads.get() {
            let stop = Arc::clone(&workers.stop);
            let (tell, told) = mpsc::channel();
            let thread = std::thread::Builder::new().name(format!("store-{n}")).spawn(move || {
                match Builder::new_current_thread().enable_all().build() {
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
            workers.handles.push(told.recv().map_err(io::Error::other)??);
        }
        Ok(workers)
    }

    /// Runs a task on the next thread in turn.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let turn = self.next.fetch_add(1, Relaxed) % self.handles.len();
        self.handles[turn].spawn(task).abort_handle()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.notify_waiters();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
