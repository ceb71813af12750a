//! Slurm's host lists, as far as the first host: `node[01-04,07],gpu3` begins with `node01`.

/// The first host of a list. Nested or unclosed brackets are no list.
pub(super) fn first_host(list: &str) -> Option<String> {
    let list = list.trim();
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    if !rest.starts_with('[') {
        return Some(prefix.to_owned()).filter(|host| !host.is_empty());
    }
    let (numbers, rest) = rest[1..].split_once(']')?;
    let first = numbers.split([',', '-']).next()?;
    if first.is_empty() || !first.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // `rack[1-2]node[1-8]` has a second part behind the first bracket.
    let tail = match rest.find(',') {
        Some(0) => "",
        Some(end) => &rest[..end.max(rest.find(']').map_or(0, |at| at + 1))],
        None => rest,
    };
    let tail = if tail.is_empty() { String::new() } else { first_host(tail)? };
    Some(format!("{prefix}{first}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::first_host;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, first) in [
            ("node1", Some("node1")),
            ("node1,node2", Some("node1")),
            ("node[01-04,07],gpu3", Some("node01")),
            ("gpu-a[3,5]", Some("gpu-a3")),
            ("rack[1-2]node[1-8]", Some("rack1node1")),
            ("rack[1-2]node[1,8],x", Some("rack1node1")),
            ("node[1-4].cluster", Some("node1.cluster")),
            ("node[", None),
            ("node[x]", None),
            ("", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }
}
