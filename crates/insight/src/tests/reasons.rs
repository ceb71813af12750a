//! Every rule with an example, and that `docs/explanations.md` has them all as they are said.

use std::time::Duration;

use crate::{
    Absence, Arrival, Awaited, Moment, Names, Place, Presence, Published, RULES, Reason, Rule, Sighting, Unit,
};
use rallypoint_api::{Certainty, ExpectedFrom, RunKind, Severity};
use rallypoint_protocol::ids::Elapsed;

fn names(names: &[&str]) -> Names {
    Names::of(names.iter().map(|name| (*name).to_owned()))
}

/// An example of each rule.
fn examples() -> Vec<Reason> {
    let secs = |secs: f64| Elapsed(Duration::from_secs_f64(secs));
    let (node, rank) = ("train-llm-2 (node rank 2)".to_owned(), "rank 2 on train-llm-1".to_owned());
    let from = Some(ExpectedFrom::Announced);
    let awaited = |presence: Presence, waiters| {
        let (missing, ended, elsewhere, apart, staying) = Default::default();
        Awaited {
            seen: Sighting::from(presence),
            missing,
            ended,
            elsewhere,
            apart,
            staying,
            waiters,
            waited: secs(30.0),
        }
    };
    vec![
        Reason::RunStarted { who: "train-llm-0".into(), expected: Some(4), from, first_ended: None },
        Reason::RoundComplete {
            nodes: 4,
            took: secs(38.2),
            last: "train-llm-2".into(),
            last_after: secs(31.0),
            dead: Names::default(),
        },
        Reason::RanksComplete { ranks: 32, took: secs(2.4), last: rank.clone(), last_after: secs(2.4) },
        Reason::RunFinished { nodes: 4, ran: secs(7200.0) },
        Reason::RunEnded { processes: 32, ran: secs(7200.0), first: None },
        Reason::PodsMissing {
            announced: 3,
            expected: 4,
            missing: names(&["pod train-llm-2 with rank 2"]),
            gone: names(&[]),
            refused: names(&[]),
            apart: Names::default(),
            waited: secs(41.0),
        },
        Reason::PodsIdle {
            pods: 3,
            gone: names(&["train-llm-2 (its relay left 15 s ago)"]),
            unheard: 0,
            silent: None,
            waited: secs(41.0),
        },
        Reason::TorchVersionsDiffer { versions: "2.14.0 (train-llm-1), 2.15.0 (train-llm-0)".into() },
        Reason::NodesMissing {
            joined: 3,
            expected: Some(4),
            from,
            missing: names(&["train-llm-2"]),
            announced: names(&["train-llm-2: announced itself"]),
            gone: names(&[]),
            connected: names(&[]),
            present: names(&["train-llm-0", "train-llm-1", "train-llm-3"]),
            apart: names(&[]),
            first: secs(41.0),
            waited: secs(41.0),
        },
        Reason::RoundNotComplete {
            joined: 4,
            expected: 4,
            from: ExpectedFrom::Announced,
            is_gone: false,
            who: names(&["train-llm-2"]),
            waited: secs(30.0),
        },
        Reason::NodeCameLate {
            node: "train-llm-2".into(),
            nodes: 1,
            arrival: Arrival::First,
            after: secs(58.0),
            joined: 4,
            expected: Some(4),
        },
        Reason::Lost {
            nodes: names(&[&node]),
            cut_off: false,
            links: names(&[]),
            moment: Some(Moment::RoundComplete),
            left: 3,
            expected: Some(4),
            unit: Unit::Node,
            backend: RunKind::C10d,
            gave_up: false,
        },
        Reason::NodeRemoved {
            nodes: names(&["train-llm-2 (node rank 2)"]),
            by: "train-llm-0 (node rank 0)".into(),
            silent: secs(15.0),
            not_back: false,
            left: 2,
        },
        Reason::NoHeartbeat {
            nodes: names(&["train-llm-2 (node rank 2)"]),
            silent: secs(11.0),
            taken_out: None,
        },
        Reason::LinkAway {
            links: names(&["train-llm-2"]),
            clients: 8,
            addr: Some("10.0.0.7".into()),
            why: Some("the relay closed the connection".into()),
            away: secs(4.0),
            grace: secs(10.0),
        },
        Reason::LinkLost { links: names(&["train-llm-2"]), clients: 8, grace: secs(10.0) },
        Reason::RelayRefused {
            relay: "train-llm-2".into(),
            from: [10, 0, 0, 7].into(),
            other: [10, 0, 0, 5].into(),
        },
        Reason::RankLost {
            ranks: names(&[&rank]),
            then: names(&["rank 3 on train-llm-1"]),
            unseen: names(&[]),
            joined: 2,
            world_size: Some(4),
            gave_up: false,
            times: 1,
            go_on: false,
        },
        Reason::WorkersRestarted {
            nodes: names(&["node 1 at 10.0.0.12"]),
            times: 1,
            first_ended: Some((rank.clone(), secs(0.2))),
        },
        Reason::AddressesDropped { ranks: names(&["rank 0 on train-llm-0", "rank 1 on train-llm-0"]) },
        Reason::EndedUnpublished {
            processes: names(&[
                "process 11 at 10.0.0.5 (after 0.2 s)",
                "process 12 at 10.0.0.5 (after 0.3 s)",
            ]),
            port: 29500,
        },
        Reason::RanksEnded { ranks: names(&[&rank]), left: 3, since: secs(31.0), soon: None },
        Reason::AddressUnreachable {
            ranks: names(&["rank 1 on train-llm-1 published 127.0.1.1 (loopback)"]),
            may: false,
        },
        Reason::RanksMissing {
            came: 3,
            world_size: 4,
            missing: names(&["rank 2 on train-llm-1"]),
            beside: names(&["process 815 at 10.0.0.6"]),
            waited: secs(31.0),
        },
        Reason::AllLeft {
            members: 4,
            unit: Unit::Node,
            finished: 0,
            at_once: None,
            first: Some(rank.clone()),
        },
        Reason::NotBack {
            who: names(&["train-llm-0", "train-llm-1"]),
            may_go_on: false,
            restarted: secs(30.0),
        },
        Reason::Waiting {
            who: "rank 2".into(),
            what: "the address".into(),
            place: Place::Rank,
            published: Some(Published { joined: 3, connected: 3, world_size: Some(4) }),
            awaited: awaited(Presence::NeverSeen, 3),
        },
        Reason::WaitingForProcesses {
            host: "rank 0 (process 12 at 10.0.0.5)".into(),
            of_agents: false,
            connected: 3,
            ended: 0,
            reset: None,
            expected: Some(4),
            gone: names(&[]),
            missing: names(&["rank 2"]),
            silent: names(&[]),
            passed: names(&[]),
            elsewhere: names(&[]),
            waiters: 2,
            waited: secs(30.0),
        },
        Reason::WaitingForGroup {
            what: "the address of rank 2 of the sub-group tp".into(),
            waiters: 2,
            disagree: false,
            others: names(&["rank 2 on train-llm-1"]),
            ended: names(&[]),
            waited: secs(30.0),
        },
        Reason::WaitingForKey {
            key: "data_redy".into(),
            who: names(&["rank 1 on train-llm-1", "rank 2 on train-llm-1"]),
            besides: names(&[]),
            similar: Some("data_ready".into()),
            others: names(&["rank 0 on train-llm-0"]),
            ended: names(&[]),
            absence: Absence::NotWritten,
            waited: secs(30.0),
        },
        Reason::WaitingAtBarrier {
            barrier: "checkpoint".into(),
            who: names(&["rank 0 on train-llm-0", "rank 1 on train-llm-0"]),
            size: None,
            too_large: false,
            others: names(&["rank 2 on train-llm-1"]),
            ended: names(&["rank 3 on train-llm-1 (12 s ago)"]),
            waited: secs(30.0),
        },
        Reason::DuplicateRank {
            what: "node rank 1".into(),
            first: "node 1 at 10.0.0.5".into(),
            second: "process 12 at 10.0.0.9".into(),
            more: Names::default(),
            others: Names::default(),
        },
        Reason::TwoJobs {
            first: "run a".into(),
            second: "run b".into(),
            evidence: "their workers use the same keys".into(),
        },
        Reason::TwoBackends {
            first: "rallypoint (train-llm-0)".into(),
            second: "c10d (train-llm-1 and train-llm-2)".into(),
        },
        Reason::FewerThanExpected {
            formed: 2,
            expected: 4,
            from: ExpectedFrom::Flag,
            left_over: names(&["train-llm-2", "train-llm-3"]),
        },
        Reason::NnodesDiffer {
            newcomers: names(&["train-llm-2"]),
            group: 2,
            other: "train-llm-1 (node rank 1)".into(),
        },
        Reason::LeftOver {
            group: 2,
            left_over: names(&["train-llm-2"]),
            staying: Names::default(),
            dead: Names::default(),
            redundant: false,
            fewer: false,
            waited: secs(30.0),
        },
        Reason::WorldSizesDiffer {
            rank: 0,
            says: 2,
            ranks: names(&["rank 0"]),
            other_rank: 2,
            other_says: 4,
            others: names(&["rank 2", "rank 3"]),
            have_met: false,
        },
        Reason::NodeRankBeyond { node: "node 2 at 10.0.0.7".into(), rank: 2, nodes: 2 },
        Reason::AnnouncementsDiffer {
            pod: "a".into(),
            says: "2".into(),
            other_pod: "b".into(),
            other_says: "2:3".into(),
        },
        Reason::RunIsClosed {
            newcomers: names(&["process 12 at 10.0.0.9"]),
            closed_for: secs(6.0),
            by: Some("train-llm-0 (node rank 0)".into()),
            finished: true,
        },
        Reason::ClosedIncomplete {
            joined: 3,
            expected: Some(4),
            missing: names(&["train-llm-2"]),
            present: names(&["train-llm-0", "train-llm-1", "train-llm-3"]),
            by: "train-llm-0".into(),
        },
        Reason::ClosedUnfinished {
            finished: 0,
            nodes: 4,
            by: "train-llm-2 (node rank 2)".into(),
            running: names(&[
                "train-llm-0 (node rank 0)",
                "train-llm-1 (node rank 1)",
                "train-llm-3 (node rank 3)",
            ]),
        },
        Reason::RunRestarted {},
        Reason::WaitCycle {
            members: names(&["train-llm-0", "train-llm-1"]),
            waited: secs(2.0),
            is_elastic: false,
        },
        Reason::GaveUp {
            who: names(&["rank 1 on train-llm-0", "rank 3 on train-llm-1"]),
            key: "/default_pg/0//cpu//0/2".into(),
            waited: secs(300.0),
            writer: "rank 2".into(),
            missing: Names::default(),
            similar: None,
            others: Names::default(),
            ended: Names::default(),
            reset: None,
            again: false,
        },
        Reason::WrongPort {
            peer: "10.0.0.9".into(),
            protocol: "HTTP".into(),
            port: 29500,
            stores: Names::default(),
            times: 3,
            ago: secs(180.0),
        },
        Reason::WorkersElsewhere { address: "train-llm-0:43123".into() },
        Reason::ExitBarrier {
            arrived: 3,
            nodes: Some(4),
            running: names(&[&node]),
            taken_out: Names::default(),
            dead: Names::default(),
            not_back: Names::default(),
            silent: Names::default(),
            waited: secs(121.0),
        },
        Reason::StateDropped { run_id: "train-llm".into(), waiters: 4, waited: secs(31.0) },
        Reason::StoreClosed { round: 2, met: Some(false), since: secs(31.0) },
        Reason::WatchdogFired { who: "rank 3".into() },
        Reason::UnreadableState { detail: "the state is not base64".into() },
        Reason::StandsBy {
            spares: names(&["train-llm-4"]),
            max_nodes: 4,
            unreported: 0,
            given_up: None,
            waited: secs(30.0),
        },
        Reason::WaitsForRank {
            node: "train-llm-2b".into(),
            holder: "train-llm-2 (node rank 2)".into(),
            waited: secs(30.0),
        },
        Reason::BarrierWaits {
            barrier: "train-llm/epoch".into(),
            arrived: 2,
            size: 3,
            there: names(&["train-llm-0", "train-llm-1"]),
            missing: names(&["train-llm-2"]),
            silent: names(&[]),
            gave_up: names(&[]),
            waited: secs(30.0),
        },
    ]
}

/// What only the native rendezvous tells. Its other facts have the codes above.
fn native_examples() -> Vec<Reason> {
    use rallypoint_protocol::ids::Label;
    use rallypoint_protocol::ids::RunId;
    use rallypoint_rendezvous::{Break, Fact, RunRefusal, Who};
    let label = |text: &str| Label::new(text).expect("a label");
    let who = || Who { name: label("train-llm-2"), address: label("10.0.0.3") };
    let broken = |why| Fact::Broken { round: 3, why, left: 2, restarted: None };
    let seconds = Duration::from_secs;
    let all = [
            broken(Break::Left {
                who: who(),
                rank: 2,
                why: Some(label("pod is being deleted")),
                since: seconds(2),
                then: Vec::new(),
            }),
            broken(Break::Rejoined { who: who(), rank: 2 }),
            broken(Break::Newcomers { newcomers: vec!["train-llm-4 (10.0.0.5)".into()] }),
            broken(Break::Resized { nodes: 4, expected: 2 }),
            broken(Break::Unreported { missing: 1, nodes: 4 }),
            Fact::Disconnected {
                nodes: vec!["train-llm-2 (10.0.0.3), rank 2".into()],
                again: Vec::new(),
                since: seconds(3),
                patience: seconds(15),
            },
            Fact::Silent {
                nodes: vec!["train-llm-1 (10.0.0.2), rank 1".into(), "train-llm-2 (10.0.0.3), rank 2".into()],
                again: Vec::new(),
                since: seconds(7),
                patience: seconds(15),
            },
            Fact::Expiring { round: 3, left: seconds(300), missing: "1 more node is needed".into() },
            Fact::Displaced {
                who: Who { name: label("worker"), address: label("10.0.0.5") },
                by: Who { name: label("worker"), address: label("10.0.0.6") },
            },
            Fact::Abandoned {
                round: 3,
                who: who(),
                why: Some(label("gave up waiting")),
                missing: "1 more node is needed".into(),
            },
            Fact::TimedOut { round: 3, after: seconds(1800), missing: "1 more node is needed".into() },
            Fact::Extended { round: 3, by: seconds(600), left: seconds(840) },
            Fact::Refused {
                who: who(),
                why: RunRefusal::Closed {
                    run: RunId::new(b"train-llm"),
                    by: "train-llm-0 (10.0.0.1): its workers have succeeded".into(),
                },
            },
            Fact::Failed {
                round: 3,
                who: who(),
                rank: 2,
                why: Some(label("its agent failed: ChildFailedError")),
                since: seconds(2),
                then: vec!["train-llm-3 (10.0.0.4), rank 3".into()],
                others: vec!["train-llm-0 (10.0.0.1)".into(), "train-llm-1 (10.0.0.2)".into()],
            },
            Fact::Closed { by: "train-llm-0 (10.0.0.1): its workers have succeeded".into() },
            Fact::Adopted { round: 3, nodes: 4, first: who() },
            Fact::MixedReleases("2.14.0 on 1, 2.15.0 on 3".into()),
            Fact::NoStore {
                round: 3,
                why: "no port left for the run's store: runs use all of --store-ports, which are 100; give more with \
                      --store-ports"
                    .into(),
            },
    ];
    all.into_iter().map(|fact| Reason::Told { fact, reset: None, survivors: None }).collect()
}

fn all_examples() -> Vec<Reason> {
    examples().into_iter().chain(native_examples()).collect()
}

/// What a code means: the first row of its rules has that.
fn means(code: &str) -> &'static str {
    RULES.iter().find(|rule| rule.code == code).expect("a rule").means
}

fn page() -> String {
    let part = |reason: &Reason| {
        let severity = match reason.severity() {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let lasts = reason.lasts_for(Duration::MAX);
        let when_said = if !reason.is_waiting() || lasts.is_zero() {
            String::new()
        } else if lasts == Duration::MAX {
            ", after `--explain-after`".to_owned()
        } else {
            format!(", after `--explain-after`, or {} s if that is less", lasts.as_secs())
        };
        let how = match reason.certainty() {
            Certainty::Eliminated => ", by elimination",
            Certainty::Seen => "",
        };
        format!(
            "### `{}` ({severity}{how}{when_said})\n\n{}\n\n> {reason}\n",
            reason.code(),
            means(reason.code())
        )
    };
    let examples = all_examples();
    let first = |rule: &Rule| examples.iter().find(|reason| reason.code() == rule.code).map(part);
    let of_codes = RULES.iter().filter(|rule| !rule.means.is_empty());
    of_codes.filter_map(first).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_page_has_every_explanation_as_it_is_said() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explanations.md");
    let text = std::fs::read_to_string(path).expect("docs/explanations.md");
    let (_, codes) = text.split_once("## All of them\n\n").expect("the heading `All of them`");
    let page = page();
    if std::env::var_os("RALLYPOINT_UPDATE_DOCS").is_some() {
        let before = text.strip_suffix(codes).expect("the end of the page");
        return std::fs::write(path, format!("{before}{page}")).expect("docs/explanations.md is written");
    }
    assert!(
        codes.trim_end() == page.trim_end(),
        "RALLYPOINT_UPDATE_DOCS=1 cargo test --lib the_page_has writes this after `## All of them`:\n\n{page}<<<end"
    );
}

#[test]
fn every_code_has_an_example_and_is_the_tag_of_its_facts() {
    let examples = all_examples();
    for rule in RULES {
        assert!(examples.iter().any(|reason| reason.code() == rule.code), "{} has no example", rule.code);
    }
    for reason in examples {
        assert!(!reason.to_string().is_empty(), "{} has no sentence", reason.code());
        // Some sentences end with what to do.
        let says_it_itself = ["join_refused", "run_started", "no_store"].contains(&reason.code());
        let needs_none = reason.severity() == Severity::Info || says_it_itself;
        assert!(needs_none || !reason.remedy().is_empty(), "{} has no remedy", reason.code());
        assert_eq!(reason.facts()["code"], reason.code());
    }
}

#[test]
fn names_are_listed_and_the_rest_counted() {
    assert_eq!(names(&[]).to_string(), "0");
    assert_eq!(names(&["a"]).to_string(), "a");
    assert_eq!(names(&["a", "b", "c"]).to_string(), "a, b and c");
    let many = Names::of((0..20).map(|n| (2 * n).to_string()));
    assert_eq!((many.to_string().as_str(), many.count()), ("0, 2, 4, 6, 8, 10, 12, 14 and 12 more", 20));
}

#[test]
fn the_example_documents_are_what_the_types_say() {
    use rallypoint_api::{Run, RunList, WaitList};
    let read = |name: &str| {
        let path = format!("{}/../../tests/data/insight/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("an example")
    };
    let list: RunList = serde_json::from_str(&read("runs.json")).expect("a list of runs");
    let codes = list.runs.iter().filter_map(|run| run.explanation.as_ref()).map(|said| said.code.as_str());
    assert!(
        codes.clone().count() > 0 && codes.clone().all(|code| RULES.iter().any(|rule| rule.code == code))
    );
    serde_json::from_str::<WaitList>(&read("waits.json")).expect("a list of waits");
    for name in ["run_4_nodes_one_missing.json", "run_static_rank_missing.json", "run_64_nodes.json"] {
        let text = read(name);
        let run: Run = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let again: serde_json::Value = serde_json::to_value(&run).expect("JSON");
        assert_eq!(again, serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), "{name}");
    }
}
