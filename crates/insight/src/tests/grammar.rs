//! Sentences are English: each one that is told in a scene, and those of losses with none, one and many of
//! everything.

use std::time::Duration;

use crate::epoch::Epoch;
use crate::reason::{Code, Finding, Names, Place};
use crate::report::log::{Subject, Told};
use crate::rules::Held;
use rallypoint_protocol::ids::Timestamp;

/// The only name of one, and how those of many begin.
const ONE: &str = "Solo";
const MANY: &str = "Many";

/// What is wrong with a sentence, if something is.
pub(super) fn fault(text: &str) -> Option<String> {
    const NOUNS: [(&str, &str); 8] = [
        ("node", "nodes"),
        ("process", "processes"),
        ("rank", "ranks"),
        ("pod", "pods"),
        ("client", "clients"),
        ("request", "requests"),
        ("relay", "relays"),
        ("link", "links"),
    ];
    const VERBS: [(&str, &str); 8] = [
        ("has", "have"),
        ("is", "are"),
        ("was", "were"),
        ("runs", "run"),
        ("stands", "stand"),
        ("asks", "ask"),
        ("waits", "wait"),
        ("tries", "try"),
    ];
    const MARKS: [&str; 11] = ["  ", " ;", " ,", " :", " .", ";;", ",,", ",;", ":;", "()", "``"];
    let marks = MARKS.into_iter().find(|mark| text.contains(mark)).map(|mark| format!("`{mark}`"));
    let ends = (text.trim() != text || text.ends_with([';', ':', ','])).then(|| "its ends".to_owned());
    // A comma, semicolon or colon ends what a verb could belong to.
    let words: Vec<&str> = text.split(' ').map(|word| word.trim_matches(['(', ')', '`', '?', '.'])).collect();
    let number_of = |word: &str| match word {
        "none" | "no" => Some(0),
        word => word.parse::<u32>().ok(),
    };
    let is_plural = |word: &str, forms: &[(&str, &str)]| {
        let bare = word.trim_end_matches([',', ';', ':']);
        forms.iter().find_map(
            |(one, many)| {
                if bare == *one { Some(false) } else { (bare == *many).then_some(true) }
            },
        )
    };
    let mut wrong = None;
    for at in 0..words.len() {
        let rest = &words[at..];
        let said = || rest[..rest.len().min(5)].join(" ");
        let [number, next, ..] = rest else { break };
        let is_number = number_of(number).filter(|_| {
            !matches!(words.get(at.wrapping_sub(1)), Some(&("rank" | "round" | "node" | "port" | "to")))
        });
        if let (Some(number), Some(plural)) = (is_number, is_plural(next, &NOUNS))
            // `no node` is one word for none.
            && plural == (number == 1)
            && *rest[0] != *"no"
        {
            wrong = Some(said());
        }
        // `1 of 4 nodes has`, `2 nodes have`: the first number is what the verb belongs to.
        let verb = match rest {
            [_, "of", _, noun, verb, ..] if is_plural(noun, &NOUNS).is_some() => Some(*verb),
            [_, "of", _, verb, ..] => Some(*verb),
            [_, noun, verb, ..]
                if words.get(at.wrapping_sub(1)) != Some(&"of")
                    && !noun.ends_with([',', ';', ':'])
                    && is_plural(noun, &NOUNS).is_some() =>
            {
                Some(*verb)
            }
            _ => None,
        };
        if let (Some(number), Some(plural)) = (is_number, verb.and_then(|verb| is_plural(verb, &VERBS))) {
            // `none is` and `none are` are both right.
            if number > 0 && plural == (number == 1) {
                wrong = Some(said());
            }
        }
        let names = number.trim_end_matches(';');
        let of_names = if names == ONE { Some(false) } else { names.starts_with(MANY).then_some(true) };
        let of_names = if *number == "more" { Some(true) } else { of_names };
        if let (Some(many), Some(plural)) = (of_names, is_plural(next, &VERBS))
            && many != plural
        {
            wrong = Some(said());
        }
    }
    marks.or(ends).or(wrong)
}

#[test]
fn a_fault_is_found() {
    for text in [
        "1 nodes have joined",
        "2 process left",
        "1 of 4 nodes have joined",
        "3 of 4 nodes has joined",
        "2 processes has waited",
        "Solo have waited",
        "Many0 and Many2 has waited",
        "Many0 and 92 more has waited",
        "a  b",
        "a; ; b",
        "gone: ; left",
        "left:",
    ] {
        assert!(fault(text).is_some(), "{text}");
    }
    for text in [
        "1 of 4 nodes has joined",
        "Solo has waited",
        "node rank 2 has not come",
        "none of 4 is still there",
        "4 by serve --nodes are enough",
    ] {
        assert_eq!(fault(text), None, "{text}");
    }
}

/// The log keeps what was said: a cause that is seen later is said as well, and not for each of many.
#[test]
fn that_more_have_ended_is_said_again() {
    let at = |secs| Timestamp(Duration::from_secs(secs));
    let mut log = Told::new(Duration::from_secs(3), Epoch(0.0));
    let mut look = |secs, ended: usize| {
        let ended = Names::of((0..ended).map(|rank| format!("rank {rank}")));
        let reason = Code::WaitingForKey.says("rank 9 has waited for `vocab`").ended(Place::Rank, &ended);
        let finding = Finding::new(reason, "vocab", at(0));
        let said = log.hold(Held { store: None, run: None, finding }, Subject::default(), at(secs));
        log.settle(at(secs), &|_, _| Some(false)).len() + said.iter().len()
    };
    assert_eq!([look(1, 0), look(3, 0), look(20, 0)], [0, 1, 0], "once while it is the same");
    assert_eq!([look(21, 1), look(24, 1), look(60, 1)], [0, 1, 0], "rank 0 ended");
    let told: usize = (0..200).map(|n| look(61 + n, 2 + n as usize)).sum();
    assert!((2..=6).contains(&told), "{told} lines for 200 that end one by one");
}
