//! Finds a key that tells why another is not there: one that differs from it by one slip of the finger, or
//! only by the prefix of a process group, which a program may have meant; or one that stands beside it
//! (`task/1/doing` beside `task/1/done`), which shows how far its writers have got.

use std::collections::BTreeMap;

use super::keyspace::Slot;
use super::{Store, WaitedKey};
use rallypoint_protocol::ids::ConnId;
use rallypoint_protocol::keys::{KeyPattern, classify};

/// A key that is there, and tells something of one that is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Similar {
    /// It differs by one slip, or by the prefix of a group.
    Slip(Box<[u8]>),
    /// A few of those that differ in one part of their paths only, with the last connections that wrote them,
    /// and how many more there are. Those that differ in the last part come first, and the nearest numbers.
    Beside(Vec<(WaitedKey, Vec<ConnId>)>, usize),
}

impl Store {
    /// A key that is there and is similar to `key`. Looks at no more names than `looks` allows.
    pub(super) fn similar_to(&self, key: &[u8], looks: &mut usize) -> Option<Similar> {
        const FEW: usize = 3;
        let most = *looks;
        let (mut beside, mut more): (BTreeMap<_, &Slot>, usize) = (BTreeMap::new(), 0);
        for (_, slot) in self.keys.iter().take(most) {
            *looks = looks.saturating_sub(1);
            let other = slot.key();
            if !slot.is_present() {
                continue;
            }
            if is_similar(key, other) {
                return Some(Similar::Slip(other.into()));
            }
            if let Some((is_last, distance)) = is_beside(key, other) {
                beside.insert((!is_last, distance, other), slot);
                if beside.len() > FEW {
                    beside.pop_last();
                    more = more.saturating_add(1);
                }
            }
        }
        let told = beside.values().map(|slot| (slot.key().into(), slot.writers().collect()));
        // Where not all were looked at it is not known how many there are.
        let more = if *looks == 0 { 0 } else { more };
        (!beside.is_empty()).then(|| Similar::Beside(told.collect(), more))
    }
}

/// If two keys of a program differ in one part of their paths only: whether it is the last part, and by how
/// much, if these are numbers. They share more than the prefix of a process group.
fn is_beside(key: &[u8], other: &[u8]) -> Option<(bool, u64)> {
    let same = key.iter().zip(other).take_while(|(one, two)| one == two).count();
    let before = key.get(..same)?.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at.saturating_add(1));
    let part = |key| {
        let rest = <[u8]>::get(key, before..)?;
        Some(rest.split_at(rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len())))
    };
    let ((one, behind), (two, there)) = (part(key)?, part(other)?);
    if one == two || one.is_empty() || two.is_empty() || behind != there {
        return None;
    }
    let own = key.windows(2).rposition(|two| two == b"//").map_or(0, |at| at.saturating_add(2));
    let has_name = |part: &[u8]| part.iter().any(u8::is_ascii_alphanumeric);
    let shares = has_name(key.get(own..before)?) || has_name(behind);
    let number = |part: &[u8]| std::str::from_utf8(part).ok()?.parse::<u64>().ok();
    let distance = number(one).zip(number(two)).map_or(u64::MAX, |(one, two)| one.abs_diff(two));
    (shares && is_told(other)).then_some((behind.is_empty(), distance))
}

/// Whether a key is one of a program, or a message of one.
pub(super) fn is_told(key: &[u8]) -> bool {
    matches!(classify(key), None | Some(KeyPattern::Unknown | KeyPattern::Message))
}

fn is_similar(a: &[u8], b: &[u8]) -> bool {
    is_slip(a, b) || is_below_group(a, b) || is_below_group(b, a)
}

/// Whether `long` is `key` as a client names it that has the store of a process group: PrefixStore puts its
/// prefix and a `/` before a key, which begins with one already (`/default_pg/0//key`).
fn is_below_group(long: &[u8], key: &[u8]) -> bool {
    let prefix = long.strip_suffix(key).and_then(|prefix| prefix.strip_suffix(b"/"));
    let is_name = key.first() == Some(&b'/') && key.iter().any(u8::is_ascii_alphabetic);
    is_name && prefix.is_some_and(|prefix| !prefix.is_empty())
}

/// Whether `a` and `b` differ by one slip: a letter or separator more, fewer or changed, two of them swapped,
/// or only the case, or a digit for the letter that looks like it. A changed number is not a slip (`step/10`,
/// `step/11`), nor is a changed letter in a short word (`done_a`, `done_b`), or a word of one letter that
/// became longer.
pub fn is_slip(a: &[u8], b: &[u8]) -> bool {
    /// The shortest word in which a changed letter is a slip…
    const WORD: usize = 4;
    /// …and the shortest that may have got one more.
    const LONGER: usize = 2;
    if a.len().abs_diff(b.len()) > 1 || a == b {
        return false;
    }
    if a.eq_ignore_ascii_case(b) {
        return true;
    }
    let start = a.iter().zip(b).take_while(|(here, there)| here == there).count();
    let shorter = a.len().min(b.len()).saturating_sub(start);
    let end =
        a.iter().rev().zip(b.iter().rev()).take(shorter).take_while(|(here, there)| here == there).count();
    let middle =
        |key: &[u8]| key.get(start..key.len().saturating_sub(end)).map(<[u8]>::to_vec).unwrap_or_default();
    let (of_a, of_b) = (middle(a), middle(b));
    let is_one_slip = match (&*of_a, &*of_b) {
        ([_], [] | [_]) | ([], [_]) => true,
        ([one, two], [first, second]) => one == second && two == first,
        _ => false,
    };
    let is_text =
        |part: &[u8]| part.iter().all(|byte| byte.is_ascii_alphabetic() || b"_-./: ".contains(byte));
    let word_around = |key: &[u8], len: usize| {
        let (before, after) = (key.get(..start), key.get(start.saturating_add(len)..));
        let before = before.unwrap_or_default().iter().rev().take_while(|byte| byte.is_ascii_alphabetic());
        let after = after.unwrap_or_default().iter().take_while(|byte| byte.is_ascii_alphabetic());
        before.count().saturating_add(after.count()).saturating_add(len)
    };
    let looks_alike =
        |one: &[u8], other: &[u8]| matches!((one, other), (b"1", b"l" | b"I") | (b"0", b"o" | b"O"));
    if looks_alike(&of_a, &of_b) || looks_alike(&of_b, &of_a) {
        return true;
    }
    let word = if a.len() == b.len() { WORD } else { LONGER };
    is_one_slip
        && is_text(&of_a)
        && is_text(&of_b)
        && word_around(a, of_a.len()).min(word_around(b, of_b.len())) >= word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_below_a_process_group_is_similar() {
        let pairs = [
            ("/data_done", "/default_pg/0//data_done", true),
            ("/default_pg/0//data_done", "/data_done", true),
            ("/ready", "/worker1/ready", false),
            ("/0", "/default_pg/0//0", false),
            ("/x", "//x", false),
        ];
        for (a, b, expected) in pairs {
            assert_eq!(is_similar(a.as_bytes(), b.as_bytes()), expected, "{a} {b}");
        }
    }

    #[test]
    fn a_key_is_beside_those_that_differ_in_one_part() {
        let beside = [
            ("/task/1/done", "/task/1/doing", Some(true)),
            ("/default_pg/0//ckpt/100/rank2/done", "/default_pg/0//ckpt/100/rank2/error", Some(true)),
            ("/broadcast_from/2/0", "/broadcast_from/1/0", Some(false)),
            ("/pg/0/gather/1", "/pg/0/barrier/1", Some(false)),
            ("job_a/ready", "job_b/ready", Some(false)),
            ("/task/1/done", "/task/2/doing", None),
            ("/task/1/done", "/task/1/sub/doing", None),
            ("/task/1/done", "/task/1/done", None),
            ("/default_pg/0//done", "/default_pg/0//doing", None),
            ("/default_pg/0//step/1", "/default_pg/1//step/1", None),
            ("/done", "/doing", None),
        ];
        for (key, other, expected) in beside {
            let is = is_beside(key.as_bytes(), other.as_bytes()).map(|(is_last, _)| is_last);
            assert_eq!(is, expected, "{key} {other}");
        }
    }

    #[test]
    fn one_slip_is_similar_and_another_name_is_not() {
        let slips = [
            ("data_redy", "data_ready"),
            ("data_ready", "data_raedy"),
            ("data_ready", "Data_Ready"),
            ("data-ready", "data_ready"),
            ("job/epochs", "job/epoch"),
            ("train-lm", "train-llm"),
            ("chackpoint", "checkpoint"),
            ("md/decode-1", "md/decode-l"),
        ];
        for (a, b) in slips {
            assert!(is_slip(a.as_bytes(), b.as_bytes()) && is_slip(b.as_bytes(), a.as_bytes()), "{a} {b}");
        }
        let others = [
            ("step/10", "step/11"),
            ("step/9", "step/10"),
            ("rank0/ready", "rank1/ready"),
            ("rank1/ready", "rank/ready"),
            ("done_a", "done_b"),
            ("done_", "done_b"),
            ("go", "do"),
            ("left", "right"),
            ("loaded", "unloaded"),
            ("same", "same"),
            ("", "a"),
        ];
        for (a, b) in others {
            assert!(!is_slip(a.as_bytes(), b.as_bytes()) && !is_slip(b.as_bytes(), a.as_bytes()), "{a} {b}");
        }
    }
}
