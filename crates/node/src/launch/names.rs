//! Pod names. A StatefulSet numbers its pods by name. The name of a Job's pod ends in five random characters,
//! possibly all digits, so the end of such a name is never an index.

/// The characters of random name suffixes in Kubernetes: no vowels, and none that resembles another.
const SUFFIX_CHARACTERS: &str = "bcdfghjklmnpqrstvwxz2456789";
/// The length of the suffix that a Job, ReplicaSet or DaemonSet appends.
const SUFFIX_LEN: usize = 5;

/// Splits a name of the form `NAME-N`.
pub fn ordinal(pod: &str) -> Option<(&str, u32)> {
    let (name, digits) = pod.rsplit_once('-')?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let padded = digits.len() > 1 && digits.starts_with('0');
    if name.is_empty() || !plain || padded || random_suffix(pod) {
        return None;
    }
    digits.parse().ok().map(|ordinal| (name, ordinal))
}

/// Whether a host's name is one that clouds and clusters give to nodes: `ip-10-1-2-3`, `gpu-node-7`,
/// `dgx-01`. A number of such a name is no rank.
pub(crate) fn is_of_a_node(host: &str) -> bool {
    const WORDS: [&str; 12] =
        ["ip", "node", "nodes", "host", "gke", "aks", "eks", "vmss", "dgx", "hgx", "compute", "server"];
    let words: Vec<&str> = first_label(host).split('-').collect();
    let number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    let Some((last, set)) = words.split_last().filter(|(last, _)| number(last)) else { return false };
    // A TrainJob calls its pods `JOB-node-0-3`.
    let of_train_job = matches!(set, [.., "node", "0"]);
    let named = set.iter().any(|word| WORDS.contains(word)) && !of_train_job;
    let leading_zero = last.len() > 1 && last.starts_with('0');
    let is_address = words.len() >= 4 && words.iter().rev().take(4).all(|word| number(word));
    named || leading_zero || is_address
}

/// Whether a name seems to end in a random suffix. Five digits of this alphabet count as random, since no
/// StatefulSet has 22222 pods.
pub fn random_suffix(pod: &str) -> bool {
    let Some((_, end)) = pod.rsplit_once('-') else { return false };
    end.len() == SUFFIX_LEN && end.chars().all(|c| SUFFIX_CHARACTERS.contains(c))
}

/// The names of groups in a job with several groups: `JOB-master-0` and `JOB-worker-0` are two pods with the
/// number 0.
const ROLES: [&str; 14] = [
    "master",
    "worker",
    "workers",
    "chief",
    "ps",
    "launcher",
    "leader",
    "evaluator",
    "scheduler",
    "server",
    "driver",
    "executor",
    "head",
    "coordinator",
];

/// The role at the end of a name. It shows that there may be other groups of pods.
pub(crate) fn role_of(set: &str) -> Option<(&str, &str)> {
    set.rsplit_once('-').filter(|(job, role)| !job.is_empty() && ROLES.contains(role))
}

/// Whether two different pods belong to one job, by their names: `js-w-0-0` and `js-w-1-0`, or `j-master-0`
/// and `j-worker-0`.
pub(crate) fn siblings(a: &str, b: &str) -> bool {
    let family = |name| {
        let (mut set, _) = ordinal(name)?;
        while let Some((outer, _)) = ordinal(set) {
            set = outer;
        }
        Some(set)
    };
    let (Some(first), Some(second)) = (family(a), family(b)) else { return false };
    let roles = role_of(first).zip(role_of(second));
    a != b && (first == second || roles.is_some_and(|((a, _), (b, _))| a == b))
}

/// Whether two names mean one host: they are equal, or one is the short form of the other.
pub(crate) fn same_host(a: &str, b: &str) -> bool {
    let plain = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
    let (a, b) = (plain(a), plain(b));
    let is_address = |name: &str| name.parse::<std::net::IpAddr>().is_ok();
    let short = |long: &str, short: &str| {
        !is_address(long) && long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'))
    };
    a == b || short(&a, &b) || short(&b, &a)
}

/// The first label of a host name. It is the pod's own name, even if the host name is an FQDN.
pub(crate) fn first_label(host: &str) -> &str {
    host.split('.').next().unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_one_job_are_known_by_their_names() {
        for (a, b, expected) in [
            ("js-w-0-0", "js-w-1-0", true),
            ("j-master-0", "j-worker-0", true),
            ("train-0", "train-0", false),
            ("train-0", "train-store-0", false),
            ("train-0", "rallypoint", false),
        ] {
            assert_eq!(siblings(a, b), expected, "{a} {b}");
        }
        for (a, b, expected) in [
            ("head", "head.ns.svc.cluster.local", true),
            ("Head.ns.", "head.ns", true),
            ("head", "head2.ns", false),
            ("head.a", "head.b", false),
            ("10.0", "10.0.0.1", false),
            ("10.0.0.1", "10.0.0.1", true),
        ] {
            assert_eq!(same_host(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn only_a_stateful_sets_name_has_an_ordinal() {
        assert_eq!(ordinal("train-llm-3"), Some(("train-llm", 3)));
        assert_eq!(ordinal("train-llm-511"), Some(("train-llm", 511)));
        assert_eq!(ordinal("train-0-24568"), None, "a Job's random suffix of digits alone");
        assert_eq!(ordinal("train-llm-7d9f8b6c5d-x7k2p"), None);
        assert_eq!(ordinal("train"), None);
        assert_eq!(ordinal("-3"), None);
        assert_eq!(ordinal("gpu-007"), None, "a host's number is no ordinal");
    }
}
