//! The threads of the load generator. Each has its own runtime and a share of the connections. So the
//! generator uses as many cores as it is given, and no request has to take a contended lock.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of the load test itself")]

use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::tally::Counts;
use super::{Dialer, Error, Link, Tally};

type Job = Box<dyn FnOnce(&Runtime, &mut Vec<Link>) + Send>;

/// How often the caller's function runs while the threads work.
const BEAT: Duration = Duration::from_millis(50);

/// The data that a thread passes to its work.
#[derive(Debug, Clone)]
pub(crate) struct WorkerContext {
    /// The thread's number, from 0.
    pub(super) thread: usize,
    /// The number of threads.
    pub(super) threads: usize,
    pub(super) tally: Arc<Tally>,
    pub(super) dialer: Arc<Dialer>,
}

impl WorkerContext {
    /// Whether this thread serves the connection with this number.
    pub(crate) fn has(&self, number: usize) -> bool {
        self.dialer.link_of(number) % self.threads == self.thread
    }
}

/// The threads and their connections.
#[derive(Debug)]
pub(crate) struct Workers {
    workers: Vec<Worker>,
    dialer: Arc<Dialer>,
}

#[derive(Debug)]
struct Worker {
    jobs: Option<mpsc::Sender<Job>>,
    tally: Arc<Tally>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start() -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(31)
            .build()
            .map_err(Error::System)?;
        let (jobs, todo) = mpsc::channel::<Job>();
        let thread = std::thread::Builder::new().name("loadgen".into()).spawn(move || {
            let mut links = Vec::new();
            while let Ok(job) = todo.recv() {
                job(&runtime, &mut links);
            }
        });
        Ok(Self { jobs: Some(jobs), tally: Arc::default(), thread: Some(thread.map_err(Error::System)?) })
    }
}

impl Workers {
    /// Starts the threads, without connections.
    pub(crate) fn start(threads: usize, dialer: Dialer) -> Result<Self, Error> {
        let workers = (0..threads.max(1)).map(|_| Worker::start()).collect::<Result<_, _>>()?;
        Ok(Self { workers, dialer: Arc::new(dialer) })
    }

    /// Number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len()
    }

    /// The dialer that opens the connections.
    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Finished units so far, over all threads.
    pub(crate) fn done(&self) -> u64 {
        self.workers.iter().map(|worker| worker.tally.done()).sum()
    }

    /// Takes the counts of all threads.
    pub(crate) fn counts(&self) -> Counts {
        let mut all = Counts::default();
        self.workers.iter().for_each(|worker| all.merge(worker.tally.take()));
        all
    }

    /// Gives every thread the work with its own connections, which the work returns, and waits for all
    /// threads. Calls `beat` again and again meanwhile.
    pub(crate) fn run<W, F>(
        &mut self,
        limit: Duration,
        beat: &mut dyn FnMut(&Self),
        work: W,
    ) -> Result<(), Error>
    where
        W: Fn(WorkerContext, Vec<Link>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Vec<Link>, Error>>,
    {
        let (ended, ends) = mpsc::channel();
        for (thread, worker) in self.workers.iter().enumerate() {
            let context = WorkerContext {
                thread,
                threads: self.workers.len(),
                tally: Arc::clone(&worker.tally),
                dialer: Arc::clone(&self.dialer),
            };
            let (work, ended) = (work.clone(), ended.clone());
            let job: Job = Box::new(move |runtime, links| {
                let lent = std::mem::take(links);
                let done = runtime.block_on(async {
                    let in_time = tokio::time::timeout(limit, work(context, lent)).await;
                    in_time.unwrap_or(Err(Error::NotInTime { after: limit }))
                });
                let _asked = ended.send(done.map(|mut back| {
                    back.sort_unstable_by_key(|link| link.number);
                    *links = back;
                }));
            });
            if let Some(jobs) = &worker.jobs {
                jobs.send(job).map_err(|_| Error::ThreadDied)?;
            }
        }
        drop(ended);
        let mut running = self.workers.len();
        while running > 0 {
            match ends.recv_timeout(BEAT) {
                Ok(end) => {
                    end?;
                    running -= 1;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => beat(self),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(Error::ThreadDied),
            }
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.jobs = None;
            if let Some(thread) = worker.thread.take() {
                let _ended = thread.join();
            }
        }
    }
}

/// Opens this thread's connections of `range`.
pub(crate) async fn open(
    context: WorkerContext,
    mut links: Vec<Link>,
    range: Range<usize>,
) -> Result<Vec<Link>, Error> {
    let numbers = range.filter(|&number| context.has(number));
    let opened = each(numbers, |number| {
        let context = context.clone();
        async move { context.dialer.open(number, &context.tally).await }
    })
    .await?;
    links.extend(opened);
    Ok(links)
}

/// Does `work` on all connections of `range` at once, and leaves the others alone.
pub(crate) async fn each_of<F>(
    links: Vec<Link>,
    range: Range<usize>,
    work: impl Fn(Link) -> F,
) -> Result<Vec<Link>, Error>
where
    F: Future<Output = Result<Link, Error>> + Send + 'static,
{
    let (chosen, mut all): (Vec<_>, Vec<_>) =
        links.into_iter().partition(|link| range.contains(&link.number));
    all.extend(each(chosen.into_iter(), work).await?);
    Ok(all)
}

/// Does `work` on all items at once. The first error ends everything.
pub(crate) async fn each<I, T, F>(
    items: impl Iterator<Item = I>,
    work: impl Fn(I) -> F,
) -> Result<Vec<T>, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let mut tasks: JoinSet<_> = JoinSet::new();
    for item in items {
        tasks.spawn(work(item));
    }
    let mut done = Vec::with_capacity(tasks.len());
    while let Some(ended) = tasks.join_next().await {
        done.push(ended.map_err(|_| Error::ThreadDied)??);
    }
    Ok(done)
}
