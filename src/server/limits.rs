//! Limits of the process and the machine.

/// How many finished handshakes the kernel queues on a listening socket at the most.
pub fn somaxconn() -> Option<i32> {
    std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok()?.trim().parse().ok()
}

/// Three quarters of the memory limit of the control group, or 1 GiB where there is none.
pub fn default_max_memory() -> usize {
    const FILES: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit =
        FILES.iter().find_map(|file| std::fs::read_to_string(file).ok()?.trim().parse::<usize>().ok());
    match limit {
        // Without a limit version 1 shows a number near 2^63.
        Some(limit) if limit < 1 << 50 => limit / 4 * 3,
        _ => 1 << 30,
    }
}
