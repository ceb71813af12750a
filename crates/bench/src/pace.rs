//! The clock of an open loop. It announces when each request is due, whether or not its predecessors were
//! answered, so that a slow server cannot slow down its own load ("coordinated omission").
#![expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    reason = "numbers of the load test itself"
)]

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;

use super::{Error, Tally};

/// A request sent later than this is the generator's fault, and is counted.
const LATE: Duration = Duration::from_millis(1);

/// Shorter pauses are spent polling, because the timer costs about as much.
const SHORT: Duration = Duration::from_micros(10);

/// Tells the `lanes`, in turn, that a request is due: `rate` times a second from `start` until `until`. A
/// busy lane keeps its due requests. Counts the due requests in `tally`, and how many of them this clock
/// itself announced late.
pub(crate) async fn pace(
    start: Instant,
    until: Instant,
    rate: f64,
    lanes: Vec<UnboundedSender<Instant>>,
    tally: &Tally,
) -> Result<(), Error> {
    let timer = Timer::new().map_err(Error::System)?;
    let (mut due_sends, mut late_sends) = (0_u64, 0_u64);
    for lane in lanes.iter().cycle() {
        // Computed from the start each time, so that rounding errors do not add up.
        let due = start + Duration::from_secs_f64(due_sends as f64 / rate);
        if due >= until {
            break;
        }
        timer.sleep_until(due).await.map_err(Error::System)?;
        late_sends += u64::from(due.elapsed() > LATE);
        due_sends += 1;
        // A lane that has ended has failed, and its own error ends the section.
        let _listening = lane.send(due);
    }
    tally.fact("due_sends", due_sends);
    tally.fact("late_sends", late_sends);
    Ok(())
}

/// A timer of the kernel; the runtime's own timer has steps of a millisecond.
struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    #[expect(deprecated, reason = "the replacement is unsafe code; an OwnedFd keeps what that would promise")]
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)?))
    }

    async fn sleep_until(&self, due: Instant) -> io::Result<()> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if left < SHORT {
                tokio::task::yield_now().await;
                continue;
            }
            let once = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let time = Itimerspec { it_interval: never, it_value: once };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &time)?;
            let mut expired = [0; 8];
            self.0
                .async_io(tokio::io::Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut expired)?))
                .await?;
        }
    }
}
