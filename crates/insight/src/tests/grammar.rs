//! Each reason with none, one and many of everything that it counts or names: that its sentence is English, and is the
//! same wherever it is shown.

use std::time::Duration;

use crate::epoch::Epoch;
use crate::explanation_log::{ExplanationLog, Subject, Topic};
use crate::reason::{Finding, Names, Reason};
use crate::{
    Absence, Arrival, Awaited, But, Moment, Place, Presence, Published, RULES, Sighting, TakenOut, Unit,
    Waits,
};
use rallypoint_api::{ExpectedFrom, RunKind};
use rallypoint_protocol::ids::{Elapsed, Label, Timestamp};
use rallypoint_rendezvous::{Break, Difference, Fact, Lost, RunRefusal, Who};

const SIZES: [u32; 5] = [0, 1, 2, 9, 100];
/// The only name of one, and how those of many begin.
const ONE: &str = "Solo";
const MANY: &str = "Many";

fn names(n: u32) -> Names {
    Names::of(list(n))
}

/// Many names have gaps, so that they are no range.
fn list(n: u32) -> Vec<String> {
    match n {
        1 => vec![ONE.into()],
        n => (0..n).map(|at| format!("{MANY}{}", 2 * at)).collect(),
    }
}

fn time() -> Elapsed {
    Elapsed(Duration::from_secs(31))
}

/// What may have been seen of a process, with so many of whatever is counted there.
fn sightings(n: u32) -> Vec<Sighting> {
    let seen = || {
        vec![
            Presence::NeverSeen,
            Presence::Announced,
            Presence::idle(None),
            Presence::idle(Some(time())),
            Presence::Connected { asked: None, waits: Waits::ForKey("k".into()) },
            Presence::Connected { asked: None, waits: Waits::Unclear },
            Presence::Connected { asked: None, waits: Waits::NotKnownYet },
            Presence::Silent { for_seconds: time() },
            Presence::Away { link: "a".into(), for_seconds: time() },
            Presence::gone(time(), true),
            Presence::gone(time(), false),
            Presence::Left { for_seconds: None },
            Presence::Left { for_seconds: Some(time()) },
            Presence::TakenOut { for_seconds: time() },
            Presence::Finished,
            Presence::NotBack { for_seconds: time() },
            Presence::Unknown,
        ]
    };
    let buts = [
        But::MetBefore,
        But::Dropped { how: "an operator reset the store".into() },
        But::MadeOtherwise { made: 1, asked: 3 },
        But::NotCounted { nodes: n },
        But::RoundOver { how: None },
        But::RoundOver { how: Some("a (10.0.0.1), rank 1, left".into()) },
    ];
    let of_pods = seen().into_iter().map(|presence| Sighting::behind("pod a", presence));
    let hindered = buts.into_iter().map(|but| Sighting::from(Presence::idle(None)).but(but));
    let some = seen().into_iter().map(|presence| Sighting::from(presence).or_one_of(names(n)));
    some.chain(of_pods).chain(hindered).collect()
}

fn awaited(n: u32, m: u32) -> impl Iterator<Item = Awaited> {
    let (others, waiters, waited) = (names(m), m as usize, time());
    sightings(n).into_iter().map(move |seen| {
        let (missing, ended, elsewhere, staying) = (others.clone(), names(n), others.clone(), others.clone());
        let apart = others.clone();
        Awaited { seen, missing, ended, elsewhere, apart, staying, waiters, waited }
    })
}

/// Each reason that is seen in the traffic, with `n` and `m` of what it counts. What cannot be is left out: a round of no
/// nodes, more that have joined than there are.
fn forms(n: u32, m: u32) -> Vec<Reason> {
    let (text, from, waited) = (|| "a".to_owned(), ExpectedFrom::Flag, time());
    let (some, others) = (|| names(n), || names(m));
    let (some_of_many, at_least_one) = (n < m, n.max(1));
    let left_over = |staying, dead, redundant, fewer| {
        let (group, left_over) = (n, names(m));
        Reason::LeftOver { group, left_over, staying, dead, redundant, fewer, waited }
    };
    let removed = |not_back| {
        let (nodes, by) = (names(n), "a".to_owned());
        Reason::NodeRemoved { nodes, by, silent: waited, not_back, left: m }
    };
    let no_heartbeat = |taken_out| Reason::NoHeartbeat { nodes: some(), silent: waited, taken_out };
    let mut all = vec![
        Reason::RunStarted { who: text(), expected: Some(at_least_one), from: Some(from), first_ended: None },
        Reason::RunStarted { who: text(), expected: None, from: None, first_ended: Some((text(), time())) },
        Reason::RoundComplete { nodes: n, took: waited, last: text(), last_after: waited, dead: others() },
        Reason::RanksComplete { ranks: n, took: waited, last: text(), last_after: waited },
        Reason::RunFinished { nodes: n, ran: waited },
        Reason::RunEnded { processes: n, ran: waited, first: None },
        Reason::RunEnded { processes: n.max(2), ran: waited, first: Some((text(), time())) },
        Reason::TorchVersionsDiffer { versions: text() },
        Reason::WorkersElsewhere { address: text() },
        Reason::RunRestarted {},
        Reason::UnreadableState { detail: text() },
        Reason::WatchdogFired { who: text() },
        Reason::RoundNotComplete { joined: n, expected: m, from, who: some(), is_gone: n > 1, waited },
        removed(false),
        no_heartbeat(None),
        no_heartbeat(Some(TakenOut::Now)),
        no_heartbeat(Some(TakenOut::Before)),
        Reason::BarrierWaits {
            barrier: text(),
            arrived: n,
            size: n + m,
            there: names(n),
            missing: names(m),
            silent: names(m - n.min(m)),
            gave_up: names(n),
            waited,
        },
        Reason::RoundIncomplete {
            round: 1,
            text: text(),
            is_enough: n == 0,
            lacks: Presence::NeverSeen,
            given_up: Some(waited),
            announced: others(),
            at_exit: some(),
            done: m,
            apart: others(),
            waited,
        },
        Reason::StateDropped { run_id: text(), waiters: m as usize, waited },
        Reason::StoreClosed {
            round: 1,
            met: [None, Some(false), Some(true)][n.min(2) as usize],
            since: waited,
        },
        Reason::AddressesDropped { ranks: some() },
        Reason::EndedUnpublished { processes: some(), port: 29500 },
        Reason::LinkAway {
            links: some(),
            clients: m as usize,
            addr: None,
            why: None,
            away: waited,
            grace: waited,
        },
        Reason::LinkLost { links: some(), clients: m as usize, grace: waited },
        Reason::PodsIdle { pods: m, gone: others(), unheard: 0, silent: None, waited },
        Reason::PodsIdle { pods: m, gone: names(0), unheard: n.min(m), silent: Some(waited), waited },
        Reason::PodsIdle { pods: m, gone: names(0), unheard: m, silent: None, waited },
        Reason::RelayRefused { relay: "a".into(), from: [10, 0, 0, 7].into(), other: [10, 0, 0, 5].into() },
        Reason::NotBack { who: names(n.max(1)), may_go_on: n == 1, restarted: waited },
        Reason::AllLeft { members: n, unit: Unit::Node, finished: 0, at_once: None, first: Some(text()) },
        Reason::AllLeft {
            members: n.saturating_add(1),
            unit: Unit::Node,
            finished: n,
            at_once: None,
            first: None,
        },
        Reason::AllLeft {
            members: n,
            unit: Unit::Process,
            finished: 0,
            at_once: Some((time(), n)),
            first: None,
        },
        Reason::DuplicateRank {
            what: text(),
            first: text(),
            second: text(),
            more: others(),
            others: others(),
        },
        Reason::TwoJobs { first: text(), second: text(), evidence: text() },
        Reason::TwoBackends { first: text(), second: text() },
        left_over(names(0), names(0), true, true),
        left_over(names(0), names(0), true, false),
        left_over(names(0), some(), true, false),
        left_over(some(), names(0), false, false),
        Reason::NnodesDiffer { newcomers: some(), group: m, other: text() },
        Reason::WorldSizesDiffer {
            rank: 0,
            says: n,
            ranks: some(),
            other_rank: 1,
            other_says: m,
            others: names(m.max(1)),
            have_met: n == 2,
        },
        Reason::NodeRankBeyond { node: text(), rank: 2, nodes: n },
        Reason::AnnouncementsDiffer { pod: text(), says: text(), other_pod: text(), other_says: text() },
        Reason::WaitCycle { members: names(m.max(2)), waited, is_elastic: n == 1 },
        Reason::WrongPort {
            peer: text(),
            protocol: text(),
            port: 29500,
            stores: some(),
            times: n.into(),
            ago: waited,
        },
        Reason::StandsBy { spares: some(), max_nodes: m, unreported: 0, given_up: None, waited },
        Reason::StandsBy { spares: some(), max_nodes: m, unreported: m, given_up: None, waited },
        Reason::StandsBy { spares: some(), max_nodes: m, unreported: 0, given_up: Some(waited), waited },
        Reason::WaitsForRank { node: text(), holder: text(), waited },
        Reason::ExitBarrier {
            arrived: n,
            nodes: None,
            running: names(0),
            taken_out: others(),
            dead: others(),
            not_back: others(),
            silent: others(),
            waited,
        },
        removed(true),
    ];
    for world_size in [None, Some(m).filter(|_| some_of_many)] {
        for gave_up in [false, true] {
            all.push(Reason::RankLost {
                ranks: names(at_least_one),
                then: names(n),
                unseen: names(if gave_up { m } else { 0 }),
                joined: n,
                world_size,
                gave_up,
                times: n,
                go_on: n == 2,
            });
        }
        all.push(Reason::WorkersRestarted {
            nodes: names(at_least_one),
            times: m,
            first_ended: world_size.map(|_| (text(), time())),
        });
        let moments = [
            Moment::Waiting,
            Moment::Joining,
            Moment::Counted,
            Moment::RoundComplete,
            Moment::RanksComing,
            Moment::RanksComplete,
        ];
        let moments = moments.map(Some).into_iter().chain([None]);
        for (moment, cut_off) in moments.flat_map(|moment| [(moment, false), (moment, true)]) {
            all.extend([RunKind::C10d, RunKind::Static].map(|backend| Reason::Lost {
                nodes: names(at_least_one),
                cut_off,
                links: if cut_off { others() } else { names(0) },
                moment,
                left: n,
                expected: world_size,
                unit: if n == 2 { Unit::Process } else { Unit::Node },
                backend,
                gave_up: n == 1 && !cut_off,
            }));
        }
        all.extend([Arrival::First, Arrival::Again, Arrival::Back].map(|arrival| Reason::NodeCameLate {
            node: names(at_least_one).to_string(),
            nodes: at_least_one as usize,
            arrival,
            after: waited,
            joined: n,
            expected: world_size,
        }));
        all.push(Reason::ClosedIncomplete {
            joined: n,
            expected: world_size,
            missing: others(),
            present: some(),
            by: text(),
        });
        for soon in [None, Some(waited)] {
            all.push(Reason::RanksEnded { ranks: names(at_least_one), left: m, since: waited, soon });
        }
        for (of_agents, expected) in [(true, None), (false, Some(m)), (false, Some(at_least_one))] {
            all.push(Reason::WaitingForProcesses {
                host: text(),
                of_agents,
                connected: at_least_one,
                ended: n,
                reset: Some(waited),
                expected,
                gone: others(),
                missing: some(),
                silent: others(),
                passed: others(),
                elsewhere: others(),
                waiters: n as usize,
                waited,
            });
        }
        for awaited in awaited(n, m) {
            let published = Some(Published { joined: n, connected: m, world_size });
            let (who, what) = ("rank 7".to_owned(), "the address".to_owned());
            all.push(Reason::Waiting { who, what, place: Place::Rank, published, awaited });
        }
    }
    if some_of_many {
        let (announced, joined, expected) = (n, n, m);
        for (missing, gone, refused) in [(m - n, 0, 0), (0, 0, 0), (0, 0, m - n), (0, m - n, 0), (0, 1, 0)] {
            let (missing, gone, refused) = (names(missing), names(gone), names(refused));
            let apart = Names::default();
            all.push(Reason::PodsMissing { announced, expected, missing, gone, refused, apart, waited });
        }
        let (missing, beside) = (names(m - n), names(m - n));
        all.push(Reason::RanksMissing { came: n, world_size: m, missing, beside, waited });
        all.push(Reason::FewerThanExpected { formed: n, expected, from, left_over: others() });
        for running in [0, 1, m - n] {
            let running = names(running);
            all.push(Reason::ClosedUnfinished { finished: n, nodes: m, by: text(), running });
        }
        all.push(Reason::ExitBarrier {
            arrived: n,
            nodes: Some(m),
            running: names(m - n),
            taken_out: names(0),
            dead: names(0),
            not_back: names(0),
            silent: names(0),
            waited,
        });
        let missing =
            [(0, 0, 0), (1, 0, 0), (m - n, 0, 0), (0, 1, 0), (0, m - n, 0), (0, 0, 1), (0, 0, m - n)];
        all.extend(missing.map(|(missing, gone, connected)| Reason::NodesMissing {
            joined,
            expected: Some(expected),
            from: Some(from),
            missing: names(missing),
            announced: names(0),
            gone: names(gone),
            connected: names(connected),
            present: names(at_least_one),
            apart: names(0),
            first: waited,
            waited,
        }));
    }
    let (expected, from, missing) = (None, None, names(0));
    all.push(Reason::NodesMissing {
        joined: at_least_one,
        expected,
        from,
        missing,
        announced: names(0),
        gone: others(),
        connected: names(0),
        present: names(at_least_one),
        apart: names(0),
        first: waited,
        waited,
    });
    for awaited in awaited(n, m) {
        let (who, what) = ("node rank 0".to_owned(), "the role".to_owned());
        all.push(Reason::Waiting { who, what, place: Place::Node, published: None, awaited });
    }
    let absences = [Absence::NotWritten, Absence::NotThere, Absence::Deleted, Absence::Reset { ago: waited }];
    for (absence, similar) in absences.into_iter().flat_map(|it| [(it, None), (it, Some(text()))]) {
        all.push(Reason::WaitingForKey {
            key: text(),
            who: names(at_least_one),
            besides: some(),
            similar,
            others: others(),
            ended: some(),
            absence,
            waited,
        });
    }
    for (size, too_large) in [(None, false), (Some(m), false), (Some(m), true)] {
        all.push(Reason::WaitingAtBarrier {
            barrier: text(),
            who: names(at_least_one),
            size,
            too_large,
            others: others(),
            ended: some(),
            waited,
        });
    }
    all.push(Reason::WaitingForGroup {
        what: text(),
        waiters: n as usize,
        disagree: n == 1,
        others: others(),
        ended: some(),
        waited,
    });
    all.push(Reason::AddressUnreachable { ranks: names(at_least_one), may: m == 1 });
    for finished in [true, false] {
        all.push(Reason::RunIsClosed {
            newcomers: names(at_least_one),
            closed_for: waited,
            by: Some(text()).filter(|_| finished),
            finished,
        });
    }
    for (again, writer) in [(false, text()), (true, String::new())] {
        all.push(Reason::GaveUp {
            who: names(at_least_one),
            key: text(),
            waited,
            writer,
            missing: others(),
            similar: again.then(text),
            others: others(),
            ended: others(),
            reset: Some(waited).filter(|_| !again && some_of_many),
            again,
        });
    }
    all
}

/// What the native rendezvous says, with `n` and `m` of what it counts.
fn facts(n: u32, m: u32) -> Vec<Fact> {
    let label = |text: &str| Label::new(text).expect("a label");
    let who = || Who { name: label("a"), address: label("10.0.0.3") };
    let long = time().0;
    let broken = |why| Fact::Broken { round: 3, why, left: 2, restarted: (n > 1).then_some(long) };
    let lost = || Lost { closed: list(n), silent: list(m.max(u32::from(n == 0))), since: long };
    let refused = |why| Fact::Refused { who: who(), why };
    let run = || rallypoint_protocol::ids::RunId::new(b"r");
    let differing = || Difference { what: "min_nodes", settled: n.to_string(), wanted: m.to_string() };
    vec![
        Fact::Complete { round: 3, nodes: n as usize, took: long, last: who() },
        Fact::Finished { round: 1, nodes: n, ran: long },
        Fact::Adopted { round: 3, nodes: n, first: who() },
        Fact::Closed { by: "a".into() },
        Fact::Extended { round: 3, by: long, left: long },
        Fact::Restarted { had_finished: n == 0, by: who() },
        Fact::WaiterLost { who: who(), closed: n == 1, silent: long },
        Fact::Displaced { who: who(), by: Who { name: label("a"), address: label("10.0.0.4") } },
        Fact::Abandoned { round: 3, who: who(), why: (n == 1).then(|| label("b")), missing: "a".into() },
        Fact::Disconnected { nodes: list(n.max(1)), again: list(m), since: long, patience: long },
        Fact::Silent { nodes: list(n.max(1)), again: list(m), since: long, patience: long },
        Fact::NotBack { round: 3, nodes: list(n.max(1)), since: long },
        Fact::Lost { round: 3, lost: lost(), others: list(m) },
        Fact::Failed {
            round: 3,
            who: who(),
            rank: 2,
            why: None,
            since: long,
            then: list(m),
            others: list(n),
        },
        broken(Break::Lost(lost())),
        broken(Break::Left { who: who(), rank: 2, why: None, since: long, then: list(m) }),
        broken(Break::Rejoined { who: who(), rank: 2 }),
        broken(Break::RejoinedBesideSilent { who: who(), rank: 2, silent: list(n.max(1)), silent_for: long }),
        broken(Break::RejoinedAfterClosed { who: who(), rank: 2, closed: list(n.max(1)), since: long }),
        broken(Break::Newcomers { newcomers: list(n.max(1)) }),
        broken(Break::Resized { nodes: n, expected: m }),
        broken(Break::Unreported { missing: n, nodes: m }),
        refused(RunRefusal::BadRank { rank: 200, max_nodes: n }),
        refused(RunRefusal::Closed { run: run(), by: "a".into() }),
        refused(RunRefusal::DuplicateRank { rank: 2, holder: who(), newcomer: who() }),
        refused(RunRefusal::Mismatch { run: run(), settled_by: who(), differences: vec![differing()] }),
        refused(RunRefusal::TooManyNodes { run: run(), limit: 100 }),
    ]
}

fn all_forms() -> impl Iterator<Item = Reason> {
    let pairs = SIZES.into_iter().flat_map(|n| SIZES.map(|m| (n, m)));
    pairs.flat_map(|(n, m)| {
        let native = facts(n, m).into_iter().map(move |fact| Reason::Told {
            fact,
            reset: (n == 1).then(time),
            survivors: None,
        });
        forms(n, m).into_iter().chain(native)
    })
}

/// What is wrong with a sentence, if something is.
fn fault(text: &str) -> Option<String> {
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
    const MARKS: [&str; 12] = ["  ", " ;", " ,", " :", " .", ";;", ",,", "::", ",;", ":;", "()", "``"];
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
            !matches!(words.get(at.wrapping_sub(1)), Some(&("rank" | "round" | "node" | "port")))
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
fn sentences_are_english_for_none_one_and_many() {
    let mut wrong: Vec<String> = Vec::new();
    for reason in all_forms() {
        for text in [reason.sentence(Some("job")), reason.sentence(None), reason.remedy().to_owned()] {
            if let Some(fault) = fault(&text) {
                wrong.push(format!("{} ({fault}): {text}", reason.code()));
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{} sentences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn each_reason_has_its_forms() {
    let codes: std::collections::BTreeSet<&str> = all_forms().map(|reason| reason.code()).collect();
    let without: Vec<&str> =
        RULES.iter().map(|rule| rule.code).filter(|code| !codes.contains(code)).collect();
    // Their only numbers are times and what is in the names.
    assert_eq!(without, ["no_store"]);
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

/// What is shown of a finding is its sentence and its remedy, whether it has happened or lasts.
#[test]
fn an_explanation_is_the_sentence_of_its_reason() {
    let subject = || Subject { run_id: Some("job".into()), text: Some("job round 0".into()) };
    let now = Timestamp(Duration::from_secs(100));
    for reason in all_forms() {
        let finding = || Finding::new(reason.clone(), "", Timestamp(Duration::from_secs(1)));
        let topic = || Topic::of(None, None, &finding());
        let mut log = ExplanationLog::new(Duration::from_secs(3), Epoch(0.0));
        let happened = log.fact(topic(), subject(), finding(), now).expect("room");
        let mut log = ExplanationLog::new(Duration::from_secs(3), Epoch(0.0));
        log.hold(topic(), subject(), finding(), now);
        let lasts = log.settle(now).into_iter().next().expect("it has lasted");
        let shown = log.about(None).into_iter().next().expect("it is shown");
        let sentence = reason.sentence(Some("job round 0"));
        for said in [happened.explanation, lasts.explanation, shown] {
            assert_eq!((said.text.as_str(), said.remedy.as_str()), (sentence.as_str(), reason.remedy()));
            assert_eq!((said.code.as_str(), said.severity), (reason.code(), reason.severity()));
            assert_eq!(said.facts["code"], reason.code());
        }
    }
}

/// The log keeps what was said: when the cause is seen later than the wait, that is said as well, and not for each of many.
#[test]
fn that_more_have_ended_is_said_again() {
    let at = |secs| Timestamp(Duration::from_secs(secs));
    let mut log = ExplanationLog::new(Duration::from_secs(3), Epoch(0.0));
    let mut look = |secs, ended: usize| {
        let ended = Names::of((0..ended).map(|rank| format!("rank {rank}")));
        let reason = Reason::WaitingForKey {
            key: "vocab".into(),
            who: Names::of(["rank 9".into()]),
            besides: Names::default(),
            similar: None,
            others: Names::default(),
            ended,
            absence: Absence::NotWritten,
            waited: Elapsed(Duration::from_secs(secs)),
        };
        let finding = Finding::new(reason, "vocab", at(0));
        log.hold(Topic::of(None, None, &finding), Subject::default(), finding, at(secs));
        log.settle(at(secs)).len()
    };
    assert_eq!([look(1, 0), look(3, 0), look(20, 0)], [0, 1, 0], "once while it is the same");
    assert_eq!([look(21, 1), look(24, 1), look(60, 1)], [0, 1, 0], "rank 0 ended");
    let told: usize = (0..200).map(|n| look(61 + n, 2 + n as usize)).sum();
    assert!((2..=6).contains(&told), "{told} lines for 200 that end one by one");
}
