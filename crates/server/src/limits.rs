//! Limits of the process and the machine.

/// The runs, the barriers, the gates, and the view of the runs may each use this fraction (an eighth) of the
/// memory.
pub(super) const RUNS_SHARE: usize = 8;

/// Divides the limit on open files, so that neither port can take the other's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorShares {
    /// Connections to all stores.
    pub stores: usize,
    /// Connections to the admin port.
    pub admin: usize,
}

impl DescriptorShares {
    /// Descriptors of the server itself: its files, and the ones with which its threads wait.
    const OWN: usize = 64;
    /// Each node of a job may hold one connection to the admin port, and several more to the stores for its
    /// ranks.
    const MOST_ADMIN: usize = 65_536;
    /// Enough for health checks, a person and a scraper, whatever the user demands for the stores.
    const LEAST_ADMIN: usize = 512;

    /// Divides `limit` files when up to `listeners` ports are open. `None` means no limit. If the stores want
    /// less than their share, the admin port gets the rest, because links come there. Otherwise it gets an
    /// eighth; it gets less only if the user has `asked` for many connections to the stores.
    pub fn of(limit: Option<u64>, listeners: usize, stores: usize, asked: bool) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let for_peers = limit.saturating_sub(Self::OWN).saturating_sub(listeners.min(limit / 8));
        let least = if asked { (for_peers / 8).min(Self::LEAST_ADMIN) } else { for_peers / 8 };
        let admin = least.max(for_peers.saturating_sub(stores)).min(Self::MOST_ADMIN);
        Self { stores: for_peers.saturating_sub(admin).min(stores), admin }
    }
}

/// The most finished handshakes that the kernel queues on a listening socket.
pub fn somaxconn() -> Option<i32> {
    std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok()?.trim().parse().ok()
}

/// Three quarters of the control group's memory limit, or 1 GiB if there is no limit.
pub fn default_max_memory() -> usize {
    rallypoint_process::memory_limit().map_or(1 << 30, |limit| (limit / 4).saturating_mul(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_stay_below_the_limit_and_each_port_has_some() {
        for limit in [128, 256, 512, 1024, 65_536, 1 << 20] {
            for asked in [false, true] {
                let shares = DescriptorShares::of(Some(limit), 91, usize::MAX, asked);
                assert!((shares.stores + shares.admin) as u64 + 64 <= limit, "{limit}: {shares:?}");
                assert!(shares.admin >= 4 && shares.stores > shares.admin, "{limit}: {shares:?}");
            }
        }
        let of_20_000 = |stores, asked| {
            let shares = DescriptorShares::of(Some(20_000), 91, stores, asked);
            (shares.stores, shares.admin)
        };
        assert_eq!(of_20_000(2000, true), (2000, 17_845));
        assert_eq!(of_20_000(19_000, true), (19_000, 845));
        assert_eq!(of_20_000(250_000, true), (19_333, 512));
        assert_eq!(of_20_000(250_000, false), (17_365, 2480));
        assert_eq!(DescriptorShares::of(None, 91, usize::MAX, false).admin, DescriptorShares::MOST_ADMIN);
        assert_eq!(DescriptorShares::of(Some(0), 91, 10, true), DescriptorShares { stores: 0, admin: 0 });
    }
}
