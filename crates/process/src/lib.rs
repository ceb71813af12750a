#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]
//! What the system knows about a process: how many files it may open, its CPU time, its memory. Also random
//! numbers, and the sockets of the host.

mod sockets;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use sockets::{Socket, State as SocketState, holder_of, sockets};

/// Raises the limit on open files to the hard limit, and returns it. `None` if there is no limit.
pub fn raise_descriptor_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        return current;
    }
    maximum
}

/// How many files this process may open.
pub fn descriptor_limit() -> Option<usize> {
    getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok())
}

/// Bytes of memory that the control group of this process may have.
pub fn memory_limit() -> Option<usize> {
    const FILES: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let read = |file: &&str| std::fs::read_to_string(file).ok()?.trim().parse::<usize>().ok();
    // Version 1 of control groups shows a number near 2^63 if there is no limit.
    FILES.iter().find_map(read).filter(|&limit| limit < 1 << 50)
}

/// Whether this process was started to outlive its terminal, as with `nohup`.
pub fn ignores_hangup() -> bool {
    const SIGHUP: u32 = 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (SIGHUP - 1)) != 0)
}

/// A random number. Not a secret.
pub fn random_number() -> u64 {
    // Each state of the standard library's maps has its own random key.
    RandomState::new().hash_one(std::process::id())
}

/// Time since the machine started, including time in sleep, as other hosts' clocks count it.
#[inline]
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// How many ports the system has for outgoing connections from one address to one destination.
pub fn local_ports() -> usize {
    /// Linux's default range, 32768 to 60999.
    const DEFAULT: usize = 28_232;
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = text.split_ascii_whitespace().map(str::parse::<usize>);
    match (bounds.next(), bounds.next()) {
        (Some(Ok(low)), Some(Ok(high))) if low <= high => high.saturating_sub(low).saturating_add(1),
        _ => DEFAULT,
    }
}

/// The CPU time of all threads of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Time on a core.
    pub ran: Duration,
    /// Time ready to run without a core. 0 if the kernel does not say.
    pub queued: Duration,
    /// The kernel's part of the time on a core, in clock ticks.
    pub in_kernel: Duration,
}

impl CpuTime {
    /// The difference from an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(earlier.ran),
            queued: self.queued.saturating_sub(earlier.queued),
            in_kernel: self.in_kernel.saturating_sub(earlier.in_kernel),
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        Self {
            ran: self.ran.saturating_add(more.ran),
            queued: self.queued.saturating_add(more.queued),
            in_kernel: self.in_kernel.saturating_add(more.in_kernel),
        }
    }
}

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that are resident now.
    pub resident: u64,
    /// The highest number of resident bytes so far.
    pub peak: u64,
}

/// A running process, seen through `/proc`.
#[derive(Debug, Clone)]
pub struct Process {
    dir: PathBuf,
}

impl Process {
    /// The process with this id. An error if there is none, or if this user may not look at it.
    pub fn find(pid: u32) -> io::Result<Self> {
        let process = Self { dir: PathBuf::from(format!("/proc/{pid}")) };
        process.cpu()?;
        process.memory()?;
        Ok(process)
    }

    /// This process.
    pub fn own() -> io::Result<Self> {
        Self::find(std::process::id())
    }

    /// CPU time so far, in nanoseconds where the kernel keeps them (`schedstat`), else in clock ticks.
    ///
    /// The exact form does not include threads that have ended. So the difference of two readings is right
    /// only for a process that keeps its threads.
    pub fn cpu(&self) -> io::Result<CpuTime> {
        let in_ticks = self.cpu_in_ticks()?;
        let mut sum = CpuTime { in_kernel: in_ticks.in_kernel, ..CpuTime::default() };
        for task in std::fs::read_dir(self.dir.join("task"))? {
            let text = match std::fs::read_to_string(task?.path().join("schedstat")) {
                Ok(text) => text,
                // If the kernel has no such file, it has none for any thread. A thread may also have just
                // ended.
                Err(_) if sum.ran.is_zero() => return Ok(in_ticks),
                Err(_) => continue,
            };
            let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().unwrap_or(0));
            let mut next = || Duration::from_nanos(numbers.next().unwrap_or(0));
            sum.ran = sum.ran.saturating_add(next());
            sum.queued = sum.queued.saturating_add(next());
        }
        Ok(if sum.ran.is_zero() { in_ticks } else { sum })
    }

    fn cpu_in_ticks(&self) -> io::Result<CpuTime> {
        let text = std::fs::read_to_string(self.dir.join("stat"))?;
        // The name in parentheses may contain blanks. After it, utime and stime are the 12th and 13th fields.
        let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut fields =
            fields.split_ascii_whitespace().skip(11).map(|field| field.parse::<u64>().unwrap_or(0));
        let per_second = u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(u32::MAX);
        let mut next =
            || Duration::from_secs(fields.next().unwrap_or(0)).checked_div(per_second).unwrap_or_default();
        let (in_user, in_kernel) = (next(), next());
        Ok(CpuTime { ran: in_user.saturating_add(in_kernel), queued: Duration::ZERO, in_kernel })
    }

    /// Memory now.
    pub fn memory(&self) -> io::Result<Memory> {
        let text = std::fs::read_to_string(self.dir.join("status"))?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib.saturating_mul(1024))
        };
        Ok(Memory {
            resident: field("VmRSS:").unwrap_or_default(),
            peak: field("VmHWM:").unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_its_own_work_and_memory() {
        let own = Process::own().expect("this process");
        let before = own.cpu().expect("readable");
        let mut sum = 0_u64;
        // Readings may be late by a tick of the scheduler.
        while own.cpu().expect("readable").ran < before.ran + Duration::from_millis(20) {
            sum = (0..100_000_u64).fold(sum, |sum, n| sum.wrapping_mul(31).wrapping_add(n));
        }
        std::hint::black_box(sum);
        let ticks = own.cpu_in_ticks().expect("readable").ran;
        assert!(ticks >= Duration::from_millis(10), "the coarse clock agrees: {ticks:?}");
        let used = own.cpu().expect("readable").since(before);
        assert!(used.ran >= Duration::from_millis(20) && used.in_kernel <= ticks, "{used:?} of {ticks:?}");
        let memory = own.memory().expect("readable");
        assert!(memory.resident > 1 << 20 && memory.peak >= memory.resident, "{memory:?}");
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(Process::find(u32::MAX - 1).is_err());
    }
}
