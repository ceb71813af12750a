//! Who is named in a sentence.

use std::collections::BTreeSet;

/// What follows a number that is no name: `rank 3, 4 s ago`.
const UNITS: [&str; 12] =
    ["s", "ms", "min", "h", "of", "more", "nodes", "ranks", "processes", "connections", "others", "were"];

/// Longer ranges are one name.
const MOST: u32 = 64;

/// The word without what stands around it.
fn bare(word: &str) -> &str {
    let word = word.trim_matches(|c: char| "(),;:.\"'".contains(c));
    word.strip_suffix("'s").unwrap_or(word)
}

/// `3`, or `3-7`.
fn numbers(word: &str) -> Option<(u32, u32)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Whether it is a name such as `host1`, `train-3`, or an address.
fn is_name(word: &str) -> bool {
    if word.parse::<std::net::IpAddr>().is_ok() {
        return true;
    }
    let begins = word.starts_with(|c: char| c.is_ascii_lowercase());
    let is_word = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    begins && is_word && word.ends_with(|c: char| c.is_ascii_digit())
}

/// The ranks, nodes, processes, hosts, pods and addresses in a sentence about `run`, and the keys of
/// programs. It knows no sentence: `node rank 1 (train-1)` and `node 1 (train-1): closed` name the same.
pub fn names_in(text: &str, run: Option<&str>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut outside = String::new();
    for (at, part) in text.split('`').enumerate() {
        // PyTorch's own keys say what is said in words, too.
        match at % 2 {
            0 => outside.push_str(part),
            _ if !part.contains('/') => drop(names.insert(format!("key {part}"))),
            _ => {}
        }
    }
    let words: Vec<&str> = outside.split_whitespace().collect();
    let mut at = 0;
    while let Some(word) = words.get(at).copied() {
        at += 1;
        let kind = match bare(word) {
            "rank" | "ranks" => "rank",
            "node" | "nodes" => "node",
            "process" | "processes" | "pid" => "pid",
            word => {
                let host = word.rsplit_once(':').map_or(word, |(host, _)| host);
                if is_name(host) && Some(word) != run && host != "store" {
                    names.insert(host.to_owned());
                }
                continue;
            }
        };
        let is_rank = |word: &&str| ["rank", "ranks"].contains(&bare(word));
        if kind == "node" && words.get(at).is_some_and(is_rank) {
            at += 1;
        }
        // `1, 2 and 5`, `3 to 7`, `3-7`.
        let (mut goes_on, mut to) = (!word.ends_with([',', ';', ':']), None);
        while let Some(word) = words.get(at).filter(|_| goes_on).copied() {
            if ["and", "or", "to"].contains(&word) {
                let next = words.get(at + 1).and_then(|next| numbers(bare(next)));
                goes_on = next.is_some();
                to = to.filter(|_| word == "to");
                at += usize::from(goes_on);
                continue;
            }
            let Some((first, last)) = numbers(bare(word)) else { break };
            if words
                .get(at + 1)
                .is_some_and(|next| UNITS.contains(&bare(next)) && !word.ends_with([',', ';', ')']))
            {
                break;
            }
            let first = if words[at - 1] == "to" { to.unwrap_or(first) } else { first };
            if last.saturating_sub(first) > MOST {
                names.insert(format!("{kind} {first}-{last}"));
            } else {
                names.extend((first..=last).map(|number| format!("{kind} {number}")));
            }
            to = Some(last);
            at += 1;
            goes_on =
                word.ends_with(',') || words.get(at).is_some_and(|next| ["and", "or", "to"].contains(next));
        }
    }
    names
}

#[test]
fn names_are_found_whatever_the_sentence() {
    let cases = [
        ("run 2: node rank 1 (train-1) died; 3 of 4 nodes are there", "node 1, train-1"),
        (
            "job: node 1 (train-1), rank 16 to 18: connection closed, 20 s ago",
            "node 1, rank 16, rank 17, rank 18, train-1",
        ),
        ("job: ranks 0, 1 and 3 wait for node 4-5", "node 4, node 5, rank 0, rank 1, rank 3"),
        ("store:29500: all 4 ranks came; last: rank 2 on host3 (+2 s)", "host3, rank 2"),
        ("gone: rank 2, 3 of 4 ranks are there", "rank 2"),
        ("process 2001 at 10.0.0.1 and process 2002", "10.0.0.1, pid 2001, pid 2002"),
        ("missing: rank 1 and rank 2", "rank 1, rank 2"),
        ("1 process has waited for `data_redy`, not for `/default_pg/0//cpu//0/1`", "key data_redy"),
        ("the address of rank 0's host at 10.0.0.1:29500", "10.0.0.1, rank 0"),
    ];
    for (text, names) in cases {
        let found: Vec<String> = names_in(text, None).into_iter().collect();
        assert_eq!(found.join(", "), names, "{text}");
    }
}
