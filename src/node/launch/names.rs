//! Pod names. A StatefulSet numbers its pods by name; a Job's pod name ends in five random characters, which can all be
//! digits, so the end of such a name is never an index.

/// What Kubernetes makes random name suffixes of: no vowels and nothing that looks like another character.
const SUFFIX_CHARACTERS: &str = "bcdfghjklmnpqrstvwxz2456789";
/// How many of them a Job, ReplicaSet or DaemonSet appends.
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

/// Whether a name ends in what looks like a random suffix. Five digits of that alphabet are taken for one, since no
/// StatefulSet has 22222 pods.
pub fn random_suffix(pod: &str) -> bool {
    let Some((_, end)) = pod.rsplit_once('-') else { return false };
    end.len() == SUFFIX_LEN && end.chars().all(|c| SUFFIX_CHARACTERS.contains(c))
}

/// The first label of a host name: the pod's own name also where the host name is an FQDN.
pub(super) fn first_label(host: &str) -> &str {
    host.split('.').next().unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

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
