//! Logs and counts what the rules for stale keys did, at once and without loss. What concerns a job is
//! reported by insight.

use std::sync::Mutex;

use super::tcp::Throttle;
use crate::engine::OnCleanup;
use rallypoint_protocol::ids::{ShownKey, counted};
use rallypoint_store::{Cleanup, DropCause};

/// How often each kind of cleanup happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanupCounts {
    /// Keys dropped, by cause.
    pub keys_dropped: [u64; DropCause::ALL.len()],
    /// Stores emptied, by cause.
    pub store_resets: [u64; DropCause::ALL.len()],
    /// Finished runs started again.
    pub runs_restarted: u64,
}

fn add(count: &mut u64, more: usize) {
    *count = count.saturating_add(more as u64);
}

/// Logs and counts.
#[derive(Debug)]
pub struct CleanupLog {
    counts: Mutex<CleanupCounts>,
    throttle: Throttle,
}

/// The kinds of log lines that a busy or broken job could repeat.
#[derive(Clone, Copy)]
enum Repeated {
    KeysDropped,
    UnknownKeys,
    KeysStay,
}

impl Default for CleanupLog {
    fn default() -> Self {
        Self { counts: Mutex::default(), throttle: Throttle::new(3) }
    }
}

impl CleanupLog {
    /// The counts so far.
    pub fn counts(&self) -> CleanupCounts {
        self.counts.lock().map(|counts| counts.clone()).unwrap_or_default()
    }

    fn count(&self, count: impl FnOnce(&mut CleanupCounts)) {
        if let Ok(mut counts) = self.counts.lock() {
            count(&mut counts);
        }
    }

    fn throttled(&self, kind: Repeated, log: impl FnOnce(u64)) {
        if let Some(held_back) = self.throttle.pass(kind as usize) {
            log(held_back);
        }
    }
}

impl OnCleanup for CleanupLog {
    fn cleaned_up(&self, store: u16, cleanup: Cleanup) {
        match &cleanup {
            Cleanup::KeysDropped { cause, keys, example } => {
                self.count(|counts| add(&mut counts.keys_dropped[*cause as usize], *keys));
                if *cause == DropCause::UnknownKey {
                    return self.throttled(Repeated::UnknownKeys, |held_back| {
                        let example = ShownKey(example);
                        tracing::info!(
                            store,
                            cause = cause.name(),
                            keys,
                            held_back,
                            "dropped {} of a process group with its last worker, such as `{example}`: of the \
                             program, or of a newer PyTorch. A program's own keys stay under names without \
                             `default_pg/`",
                            counted(*keys as u64, "key", "keys")
                        );
                    });
                }
                self.throttled(Repeated::KeysDropped, |held_back| {
                    let (why, example) = (explain(*cause), ShownKey(example));
                    let cause = cause.name();
                    tracing::debug!(
                        store,
                        cause,
                        keys,
                        held_back,
                        "dropped {}, such as `{example}`: {why}",
                        counted(*keys as u64, "key", "keys")
                    );
                });
            }
            Cleanup::StoreReset { cause, keys } => {
                self.count(|counts| {
                    add(&mut counts.store_resets[*cause as usize], 1);
                    add(&mut counts.keys_dropped[*cause as usize], *keys);
                });
                let (why, of) = (explain(*cause), counted(*keys, "key", "keys"));
                tracing::info!(store, cause = cause.name(), keys, "emptied the store of {of}: {why}");
            }
            Cleanup::KeysStay { keys, example } => self.throttled(Repeated::KeysStay, |held_back| {
                let (example, stay) = (ShownKey(example), counted(*keys as u64, "key stays", "keys stay"));
                let them = if *keys == 1 { "it" } else { "them" };
                tracing::info!(
                    store,
                    keys,
                    held_back,
                    "nobody is connected any more and {stay}, such as `{example}`: a job that comes again \
                     reads {them}. If this store is for one job at a time, --one-job on empties it when the \
                     last has left"
                );
            }),
            Cleanup::RunRestarted => self.count(|counts| add(&mut counts.runs_restarted, 1)),
        }
    }
}

fn explain(cause: DropCause) -> &'static str {
    match cause {
        DropCause::WriterGone => "the process that wrote them is gone",
        DropCause::PairedWithGone => "their writers were paired with a process whose place another has taken",
        DropCause::AttemptOver => "all workers of the attempt are gone",
        DropCause::UnknownKey => "all workers of the attempt are gone, and no rule knows them",
        DropCause::RunIdle => "the run's last connection has been gone for --forget-run-after",
        DropCause::RunOver => "the run is over and its last connection is gone",
        DropCause::StoreIdle => "the job's last connection has been gone for --reset-when-idle",
        DropCause::OneJob => {
            "the last connection has gone, and the store is for one job at a time (--one-job)"
        }
        DropCause::Operator => "an operator asked for it",
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("alive").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(cause: DropCause) -> String {
        let lines = Lines::default();
        let into = lines.clone();
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
        let log = log.with_writer(move || into.clone()).finish();
        tracing::subscriber::with_default(log, || {
            let example = b"default_pg/0//cpu//0/1"[..].into();
            CleanupLog::default().cleaned_up(29500, Cleanup::KeysDropped { cause, keys: 1, example });
        });
        let text = lines.0.lock().expect("alive").clone();
        String::from_utf8(text).expect("text")
    }

    /// A healthy job drops keys all the time: that is no news, except for keys that no table knows.
    #[test]
    fn dropped_keys_are_no_warning() {
        for cause in DropCause::ALL {
            let level = if cause == DropCause::UnknownKey { " INFO " } else { "DEBUG " };
            let text = logged(cause);
            assert!(text.contains(level) && text.contains("dropped 1 key"), "{cause:?}: {text}");
        }
    }
}
