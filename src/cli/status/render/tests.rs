use super::*;
use rallypoint_api::{
    ExitCounts, Expected, ExpectedFrom, MissingNode, NodeCounts, Presence, RankCounts, RankGrid,
};

fn four() -> Run {
    serde_json::from_str(include_str!("../../../../tests/data/insight/run_4_nodes_one_missing.json"))
        .expect("a run")
}

fn sixty_four() -> Run {
    serde_json::from_str(include_str!("../../../../tests/data/insight/run_64_nodes.json")).expect("a run")
}

fn static_job() -> Run {
    serde_json::from_str(include_str!("../../../../tests/data/insight/run_static_rank_missing.json"))
        .expect("a run")
}

fn healthy(mut run: Run) -> Run {
    run.summary.explanation = None;
    run.explanations.clear();
    run
}

/// A healthy run whose nodes are in `state`.
fn complete(state: RunState) -> Run {
    let mut run = healthy(four());
    run.participants.push(Node {
        name: "train-llm-2".into(),
        after_seconds: Some(31.0),
        ..run.participants[0].clone()
    });
    for (rank, node) in (0..).zip(&mut run.participants) {
        node.rank = Some(rank);
    }
    run.missing.clear();
    run.timeline.clear();
    run.summary.nodes = NodeCounts { joined: 4, missing: Some(0), ..run.summary.nodes };
    run.summary.state = state;
    run.summary.state_since = run.now - 125.0;
    run.summary.completed_at = Some(run.now - 3725.0);
    run
}

/// A run in which `joined` of `n` nodes have joined.
fn many(n: u32, joined: u32) -> Run {
    let mut run = four();
    let node = run.participants[0].clone();
    run.participants = (0..joined)
        .map(|i| Node { name: format!("big-{i}"), after_seconds: Some(f64::from(i) / 100.0), ..node.clone() })
        .collect();
    run.missing = (joined..n)
        .map(|i| MissingNode {
            name: Some(format!("big-{i}")),
            rank: Some(i),
            presence: Presence::Announced,
            last_seen: None,
        })
        .collect();
    let expected = Some(Expected { min: n, max: n, source: ExpectedFrom::Announced });
    run.summary.nodes = NodeCounts { joined, missing: Some(n - joined), expected, ..NodeCounts::default() };
    run
}

#[test]
fn nodes_that_wait_for_the_next_round_count_as_there() {
    let mut run = complete(RunState::Restarting);
    run.summary.nodes = NodeCounts { joined: 0, gone: 1, waiting: 3, ..run.summary.nodes };
    assert_eq!(
        overview(&[&run], 150).lines().next(),
        Some(
            "train-llm round 0  [##################xxxxxx] 3/4 nodes  restarting for 2 min 5 s  gone: 1  \
             waiting for the next round: 3"
        )
    );
    // More nodes may wait than there are places.
    run.summary.nodes = NodeCounts { joined: 2, gone: 0, waiting: 3, ..run.summary.nodes };
    assert!(overview(&[&run], 150).contains("] 4/4 nodes  restarting"), "{}", overview(&[&run], 150));
}

fn list(runs: &[&Run]) -> (RunList, Details) {
    let list = RunList {
        now: runs.first().map_or(0.0, |run| run.now),
        lost_observations: 0,
        connections: 0,
        knows_since: None,
        runs: runs.iter().map(|run| run.summary.clone()).collect(),
        explanations: Vec::new(),
        links: LinkCounts::default(),
    };
    (list, runs.iter().map(|&run| (RunKey::of(&run.summary), Rc::new(run.clone()))).collect())
}

fn overview(of: &[&Run], width: usize) -> String {
    let (list, details) = list(of);
    runs(&list, &details, TextWriter::new(Some(width), false)).text()
}

fn whole(of: &Run, width: usize) -> String {
    run(of, TextWriter::new(Some(width), false)).text()
}

#[test]
fn a_missing_node_is_named() {
    insta::assert_snapshot!(overview(&[&four()], 100), @r"
    train-llm round 0  [###############.....] 3/4 nodes  missing: node 2 (train-llm-2), 41 s
      warning, by elimination: 3 of 4 nodes have joined, the first 41 s ago; announced itself:
        train-llm-2
        remedy: look at the missing node's pod: is it scheduled, has its image come, does it reach this
          server?
    ");
}

#[test]
fn how_long_a_node_is_missing_is_counted_since_it_was_there() {
    let head = |run: &Run| overview(&[run], 150).lines().next().expect("a line").to_owned();
    let mut run = four();
    run.missing[0].last_seen = Some(run.now - 5.0);
    assert!(head(&run).ends_with("missing: node 2 (train-llm-2), 5 s"), "{}", head(&run));
    run.missing.push(MissingNode { name: None, rank: Some(3), last_seen: None, ..run.missing[0].clone() });
    run.summary.nodes.missing = Some(2);
    assert!(head(&run).ends_with("missing: node 2 (train-llm-2), node 3, 5 s to 41 s"), "{}", head(&run));
    // For nodes that had been there, the start of the absence is not known.
    run.missing.clear();
    run.summary.completed_at = Some(run.now - 30.0);
    run.summary.state = RunState::Running;
    run.summary.nodes.expected = Some(Expected { min: 4, max: 4, source: ExpectedFrom::RoundComplete });
    assert!(head(&run).ends_with("missing: 2 nodes"), "{}", head(&run));
    run.summary.nodes.expected = Some(Expected { min: 4, max: 4, source: ExpectedFrom::Flag });
    assert!(head(&run).ends_with("missing: 2 nodes, 41 s"), "{}", head(&run));
}

#[test]
fn several_runs_stand_in_columns_and_each_tells_its_reason() {
    insta::assert_snapshot!(overview(&[&four(), &static_job(), &sixty_four()], 110), @r"
    train-llm round 0  [#################.....] 3/4 nodes  missing: node 2 (train-llm-2), 41 s
      warning, by elimination: 3 of 4 nodes have joined, the first 41 s ago; announced itself: train-llm-2
        remedy: look at the missing node's pod: is it scheduled, has its image come, does it reach this server?

    static-job         [######################] 2/2 nodes  running for 42 s
      ranks            [#################.....] 3/4 ranks  missing: rank 2
      warning, by elimination: 3 of 4 ranks have published; for 38 s waiting for rank 2: never seen; 3 processes
        wait for the address
        remedy: look at the process of each missing rank: has it started, does it import or load still, has it
          ended, does it reach this server, is WORLD_SIZE too large?
      38 s: rank 0, rank 1, rank 3 wait for /default_pg/0//cpu//0/2, which rank 2 writes
        the address must come from rank 2: never seen

    big round 1        [#####################x] 64/48:64 nodes  running for 14 min 34 s  gone: 1
      ranks            [#####################x] 504/512 ranks  disconnected: ranks 136-143
      error, 4 s ago: big-17 (node rank 17): connection closed, after all ranks had published their addresses; 63
        of 64 nodes left
        remedy: look at that pod's log and events; torchrun notices when its heartbeats expire, 15 s by default
    ");
}

#[test]
fn forty_columns_are_enough() {
    insta::assert_snapshot!(overview(&[&four(), &static_job()], 40), @r"
    train-llm round 0  [######..] 3/4 nodes
        missing: node 2 (train-llm-2), 41 s
      warning, by elimination: 3 of 4 nodes
        have joined, the first 41 s ago;
        announced itself: train-llm-2
        remedy: look at the missing node's
          pod: is it scheduled, has its
          image come, does it reach this
          server?

    static-job         [########] 2/2 nodes
        running for 42 s
      ranks            [######..] 3/4 ranks
        missing: rank 2
      warning, by elimination: 3 of 4 ranks
        have published; for 38 s waiting for
        rank 2: never seen; 3 processes wait
        for the address
        remedy: look at the process of each
          missing rank: has it started, does
          it import or load still, has it
          ended, does it reach this server,
          is WORLD_SIZE too large?
      38 s: rank 0, rank 1, rank 3 wait for
        /default_pg/0//cpu//0/2, which rank
        2 writes
        the address must come from rank 2:
          never seen
    ");
}

#[test]
fn without_a_terminal_nothing_is_wrapped() {
    let (list, details) = list(&[&four()]);
    insta::assert_snapshot!(runs(&list, &details, TextWriter::new(None, false)).text(), @r"
    train-llm round 0  [##################......] 3/4 nodes  missing: node 2 (train-llm-2), 41 s
      warning, by elimination: 3 of 4 nodes have joined, the first 41 s ago; announced itself: train-llm-2
        remedy: look at the missing node's pod: is it scheduled, has its image come, does it reach this server?
    ");
}

#[test]
fn one_run_is_told_with_its_timeline() {
    insta::assert_snapshot!(whole(&sixty_four(), 100), @r"
    big round 1  [###################x] 64/48:64 nodes  running for 14 min 34 s  gone: 1
      ranks      [###################x] 504/512 ranks  disconnected: ranks 136-143
      error, 4 s ago: big-17 (node rank 17): connection closed, after all ranks had published their
        addresses; 63 of 64 nodes left
        remedy: look at that pod's log and events; torchrun notices when its heartbeats expire, 15 s by
          default
      last to join: node 63 (big-63) +25.2 s, node 62 (big-62) +24.8 s, node 61 (big-61) +24.4 s, node
        60 (big-60) +24.0 s, node 59 (big-59) +23.6 s
      timeline (UTC)
        22:00:26 big round 1 complete: 64 nodes in 26.0 s; last: big-63 (+25.2 s)
        22:14:56 big round 1: big-17 (node rank 17): connection closed, after all ranks had published
                 their addresses; 63 of 64 nodes left
    ");
}

#[test]
fn of_64_nodes_with_one_missing_each_line_fits() {
    let mut run = many(64, 63);
    let said =
        "train-llm round 0: 63 of 64 nodes have joined, the first 2 min 41 s ago; never seen: train-llm-63";
    run.explanations[0].text = said.into();
    let text = overview(&[&run], 110);
    let headlines = text.lines().filter(|line| line.contains("63 of 64 nodes have joined"));
    let whole = headlines.filter(|line| line.ends_with("never seen: train-llm-63"));
    assert_eq!(whole.count(), 1, "{text}");
}

/// What a reader would not act on stands below no alarm.
#[test]
fn a_note_beside_an_alarm_is_for_who_asks_for_the_run() {
    let mut run = four();
    run.explanations.truncate(1);
    let (severity, text) = (Severity::Info, "a note".to_owned());
    run.explanations.push(Explanation { severity, text, ..run.explanations[0].clone() });
    assert!(!overview(&[&run], 100).contains("a note"));
    assert!(whole(&run, 100).contains("a note"));
    // A wait may be the cause.
    run.explanations[1].code = "waiting_for_key".into();
    assert!(overview(&[&run], 100).contains("a note"));
    run.explanations.remove(0);
    assert!(overview(&[&run], 100).contains("a note"));
}

#[test]
fn of_4096_nodes_only_some_are_named() {
    insta::assert_snapshot!(overview(&[&many(4096, 4000)], 100), @r"
    train-llm round 0  [###################.] 4000/4096 nodes  missing: nodes 4000-4095, 41 s
      warning, by elimination: 3 of 4 nodes have joined, the first 41 s ago; announced itself:
        train-llm-2
        remedy: look at the missing node's pod: is it scheduled, has its image come, does it reach this
          server?
    ");
}

#[test]
fn nobody_knows_how_many_are_expected() {
    let mut run = healthy(four());
    run.summary.nodes.expected = None;
    run.summary.nodes.missing = None;
    run.missing.clear();
    insta::assert_snapshot!(overview(&[&run], 100), @r"
    train-llm round 0  [????????????????????] 3/? nodes  joining for 41 s
        how many are expected is not known
    ");
}

#[test]
fn missing_nodes_without_a_name_are_counted() {
    let mut run = healthy(many(8, 3));
    run.missing.truncate(1);
    run.missing[0].name = None;
    let one_known = overview(&[&run], 100);
    run.missing.clear();
    insta::assert_snapshot!(one_known + &overview(&[&run], 100), @r"
    train-llm round 0  [########............] 3/8 nodes  missing: node 3 and 4 more, 41 s
    train-llm round 0  [########............] 3/8 nodes  missing: 5 nodes, 41 s
    ");
}

#[test]
fn a_node_without_a_better_name_is_called_by_its_rank() {
    let mut run = healthy(many(4, 3));
    run.missing[0].name = Some("node 3".into());
    let text = overview(&[&run], 100);
    assert!(text.contains("missing: node 3, 41 s"), "{text}");
}

/// The notes about these are in the document of the run, not in the list.
#[test]
fn ranks_that_ended_and_spares_are_looked_up() {
    let looked_up = |change: fn(&mut RunSummary)| {
        let mut run = complete(RunState::Running).summary;
        change(&mut run);
        super::super::has_more_to_tell(&run)
    };
    assert!(!looked_up(|_| {}));
    assert!(looked_up(|run| run.notes = 1));
    assert!(looked_up(|run| run.nodes.redundant = 1));
    assert!(looked_up(|run| run.state = RunState::Closed));
    assert!(!looked_up(|run| (run.state, run.notes) = (RunState::Gone, 1)));
    assert!(looked_up(|run| {
        run.ranks =
            Some(RankCounts { joined: 8, away: 0, gone: 1, expected: Some(8), connected: 7, have_met: true });
    }));
    assert!(!looked_up(|run| {
        run.ranks =
            Some(RankCounts { joined: 8, away: 0, gone: 0, expected: Some(8), connected: 8, have_met: true });
    }));
}

#[test]
fn a_last_call_tells_when_it_ends() {
    let mut run = complete(RunState::LastCall);
    run.summary.nodes.expected = Some(Expected { min: 4, max: 6, source: ExpectedFrom::Flag });
    run.summary.deadline = Some(run.now + 12.0);
    insta::assert_snapshot!(overview(&[&run], 100), @r"
    train-llm round 0  [##############......] 4/4:6 nodes  last call for 2 min 5 s, closes in 12 s
    ");
}

#[test]
fn of_a_group_without_heartbeats_it_is_not_said_that_it_runs() {
    let mut run = complete(RunState::Running);
    run.summary.kind = RunKind::Native;
    let text = |run: &Run| overview(&[run], 200);
    assert!(text(&run).contains("running for 2 min 5 s"));
    run.participants.iter_mut().for_each(|node| node.last_heartbeat = None);
    let said = "complete for 2 min 5 s, whether its nodes are there is not known";
    assert!(text(&run).contains(said), "{}", text(&run));
    assert!(super::super::has_more_to_tell(&run.summary), "the details say so");
}

#[test]
fn of_pods_that_have_all_announced_themselves_it_is_not_said_that_they_join() {
    let mut run = many(4, 4);
    run.summary.kind = RunKind::Announced;
    run.summary.nodes.missing = Some(0);
    assert!(overview(&[&run], 150).contains("4/4 nodes  all announced, no process has connected"));
}

#[test]
fn ranks_stand_for_names_that_are_long() {
    let mut run = many(8, 5);
    assert!(overview(&[&run], 110).contains("missing: node 5 (big-5), node 6 (big-6), node 7 (big-7)"));
    run.missing.iter_mut().for_each(|node| node.name = Some("a-name-that-is-too-long-for-a-line".into()));
    assert!(overview(&[&run], 110).contains("missing: nodes 5-7, "));
}

#[test]
fn at_the_exit_barrier_those_who_still_run_are_named() {
    let mut run = complete(RunState::Exiting);
    run.summary.exit = Some(ExitCounts { arrived: 2, expected: Some(4) });
    run.participants[0].state = NodeState::Finished;
    run.participants[3].state = NodeState::Finished;
    insta::assert_snapshot!(overview(&[&run], 100), @r"
    train-llm round 0  [####################] 4/4 nodes  finishing for 2 min 5 s
      exit             [##########..........] 2/4 nodes finished
        not finished: node 1 (train-llm-1), node 2 (train-llm-3)
    ");
}

#[test]
fn the_end_of_a_run_is_told_in_a_line() {
    let ended = [RunState::Finished, RunState::Closed, RunState::Gone]
        .map(|state| overview(&[&complete(state)], 100));
    insta::assert_snapshot!(ended.concat(), @r"
    train-llm round 0  [####################] 4/4 nodes  finished 2 min 5 s ago
    train-llm round 0  [####################] 4/4 nodes
        closed 2 min 5 s ago, not all nodes had finished
    train-llm round 0  [####################] 4/4 nodes
        all its connections have been gone for 2 min 5 s
    ");
}

#[test]
fn a_run_that_was_closed_before_it_was_complete_is_told_apart() {
    let mut run = complete(RunState::Closed);
    run.summary.completed_at = None;
    assert!(state(&run.summary, run.now).ends_with("ago, its round was never complete"));
}

/// It is a note, of something that is past.
#[test]
fn who_closed_a_run_is_told_in_the_overview() {
    let (mut run, four) = (complete(RunState::Closed), four());
    let (text, code, severity) = ("closed by an operator".into(), "run_closed".into(), Severity::Info);
    let closed = Explanation { text, code, severity, holds: false, ..four.explanations[0].clone() };
    run.explanations = vec![closed];
    assert!(overview(&[&run], 100).contains("closed by an operator"));
    run.summary.state = RunState::Finished;
    assert!(!overview(&[&run], 100).contains("closed by an operator"));
}

#[test]
fn a_run_of_bare_ranks_has_no_nodes() {
    let mut run = healthy(static_job());
    run.summary.kind = RunKind::Env;
    run.summary.run_id = "store:29500".into();
    run.summary.nodes = NodeCounts::default();
    run.participants.clear();
    insta::assert_snapshot!(overview(&[&run], 100), @r"
    store:29500  [###############.....] 3/4 ranks  running for 42 s  missing: rank 2
      38 s: rank 0, rank 1, rank 3 wait for /default_pg/0//cpu//0/2, which rank 2 writes
        the address must come from rank 2: never seen
    ");
}

#[test]
fn nccl_ranks_are_counted_by_their_connections() {
    let mut run = complete(RunState::Running);
    run.summary.ranks =
        Some(RankCounts { joined: 1, away: 0, gone: 0, expected: None, connected: 512, have_met: true });
    insta::assert_snapshot!(overview(&[&run], 100), @r"
    train-llm round 0  [####################] 4/4 nodes  running for 2 min 5 s
      ranks            [????????????????????] 1/? ranks, 512 processes
    ");
}

#[test]
fn ranks_are_not_missing_while_those_that_are_there_have_not_told_theirs() {
    let mut run = healthy(static_job());
    run.summary.ranks =
        Some(RankCounts { joined: 0, away: 0, gone: 0, expected: Some(4), connected: 3, have_met: true });
    run.waits.clear();
    run.rank_grid = Some(RankGrid { world_size: Some(4), states: "....".into(), ranks: Vec::new() });
    let shown = overview(&[&run], 100);
    assert!(shown.contains("0/4 ranks, 3 processes  not published: ranks 0-3"), "{shown}");
}

#[test]
fn ranks_that_have_just_left_do_not_run() {
    let mut run = complete(RunState::Running).summary;
    run.kind = RunKind::Env;
    let mut shown = |joined, gone| {
        run.ranks =
            Some(RankCounts { joined, away: 0, gone, expected: Some(2), connected: joined, have_met: false });
        state(&run, run.state_since)
    };
    assert_eq!(shown(0, 2), "all its connections have closed");
    assert!(shown(1, 1).starts_with("all published"), "{}", shown(1, 1));
    assert!(shown(0, 0).starts_with("the first published"), "{}", shown(0, 0));
}

#[test]
fn no_run_is_said_too() {
    insta::assert_snapshot!(overview(&[], 100), @r"
    no runs: no client is connected to a store
    ");
}

#[test]
fn clients_that_are_in_no_run_are_counted() {
    let (list, details) = list(&[]);
    let shown = |connections| {
        runs(&RunList { connections, ..list.clone() }, &details, TextWriter::new(None, false)).text()
    };
    insta::assert_snapshot!(shown(1), @"no runs: 1 client is connected, and no keys show a job: the exchange \
                                        of a process group has not begun, its keys have a prefix of the \
                                        program's own (PrefixStore), or the run was forgotten");
    insta::assert_snapshot!(shown(2), @"no runs: 2 clients are connected, and no keys show a job: the \
                                        exchange of a process group has not begun, its keys have a prefix of \
                                        the program's own (PrefixStore), or the run was forgotten");
}

/// Who is missing may have met the others before.
#[test]
fn a_young_server_without_a_journal_says_what_it_does_not_know() {
    const WORDS: &str =
        "this server was started 45 s ago, without a journal: who was here before is not known";
    for (run, age, is_said) in
        [(four(), 45.0, true), (four(), 4500.0, false), (complete(RunState::Running), 45.0, false)]
    {
        let (list, details) = list(&[&run]);
        let list = RunList { knows_since: Some(list.now - age), ..list };
        let text = runs(&list, &details, TextWriter::new(None, false)).text();
        assert_eq!(text.contains(WORDS), is_said, "{text}");
    }
}

#[test]
fn what_concerns_no_run_comes_last() {
    let (mut list, details) = list(&[&complete(RunState::Running)]);
    let mut foreign = four().explanations.remove(0);
    "an HTTP client talks to store port 29500".clone_into(&mut foreign.text);
    "point it at the admin port".clone_into(&mut foreign.remedy);
    list.explanations.push(foreign);
    list.lost_observations = 12;
    insta::assert_snapshot!(runs(&list, &details, TextWriter::new(Some(60), false)).text(), @r"
    train-llm round 0  [############] 4/4 nodes
        running for 2 min 5 s, its workers are not seen here

      warning, by elimination: an HTTP client talks to store
        port 29500
        remedy: point it at the admin port

    12 observations were lost because too many came at once:
      what is shown may be incomplete
    ");
}

#[test]
fn colour_marks_what_is_wrong() {
    let (list, details) = list(&[&four()]);
    let colored = runs(&list, &details, TextWriter::new(Some(100), true)).text();
    let plain = runs(&list, &details, TextWriter::new(Some(100), false)).text();
    assert!(
        colored.contains(&format!("{WARN}missing: node 2 (train-llm-2), 41 s{}", WARN.render_reset())),
        "{colored:?}"
    );
    assert!(!plain.contains('\x1b'), "{plain:?}");
    assert_eq!(String::from_utf8(anstream::adapter::strip_bytes(colored.as_bytes()).into_vec()), Ok(plain));
}

/// Hostile values in every field that a peer chooses.
fn hostile() -> Run {
    let mut run = static_job();
    let evil = "\x1b[2J\x1b]0;owned\x07\n\u{202e}節点 ".repeat(40);
    run.summary.run_id.clone_from(&evil);
    run.summary.round = u64::MAX;
    run.summary.nodes = NodeCounts {
        joined: u32::MAX,
        waiting: u32::MAX,
        earlier: u32::MAX,
        redundant: u32::MAX,
        finished: u32::MAX,
        gone: u32::MAX,
        expected: Some(Expected { min: u32::MAX, max: u32::MAX, source: ExpectedFrom::Flag }),
        missing: Some(u32::MAX),
    };
    run.summary.ranks = Some(RankCounts {
        joined: 5,
        away: 0,
        gone: u32::MAX,
        expected: Some(0),
        connected: u32::MAX,
        have_met: true,
    });
    run.summary.exit = Some(ExitCounts { arrived: u32::MAX, expected: Some(1) });
    run.summary.state = RunState::Exiting;
    run.summary.started_at = -1e308;
    run.summary.state_since = 1e308;
    run.summary.deadline = Some(1e308);
    run.rank_grid = Some(RankGrid { world_size: None, states: "é.x\x1b".repeat(999), ranks: Vec::new() });
    run.workers_store = Some(evil.clone());
    for node in &mut run.participants {
        node.name.clone_from(&evil);
        node.after_seconds = Some(-1e308);
    }
    run.missing = vec![MissingNode {
        name: Some(evil.clone()),
        rank: None,
        presence: Presence::NeverSeen,
        last_seen: None,
    }];
    for wait in &mut run.waits {
        wait.who = Some(evil.clone());
        wait.writer = Some(evil.clone());
        wait.reason = Some(evil.clone());
        wait.missing = vec![evil.clone(); 10];
        wait.waited_seconds = 1e300;
    }
    for explanation in &mut run.explanations {
        explanation.text.clone_from(&evil);
        explanation.remedy.clone_from(&evil);
    }
    for moment in &mut run.timeline {
        moment.at = 1e308;
        moment.text.clone_from(&evil);
    }
    run
}

#[test]
fn no_document_breaks_the_terminal_at_any_width() {
    use unicode_width::UnicodeWidthStr;
    let runs = [four(), sixty_four(), static_job(), many(4096, 1), hostile()];
    for run in &runs {
        for width in (0..130).chain([500, 65_535]) {
            for text in [overview(&[run], width), whole(run, width)] {
                for line in text.lines() {
                    assert!(width == 0 || line.width() <= width, "{width}: {line}");
                    assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
                }
            }
        }
    }
}

#[test]
fn relays_are_one_line() {
    let run = healthy(complete(RunState::Running));
    let (mut list, details) = list(&[&run]);
    let last = |list: &RunList| -> String {
        let text = runs(list, &details, TextWriter::new(Some(100), false)).text();
        text.lines().next_back().expect("a line").to_owned()
    };
    assert!(!last(&list).contains("relay"));
    list.links = LinkCounts { connected: 12, away: 0, clients: 96, resumes: 0 };
    assert_eq!(last(&list), "12 relays with 96 clients");
    list.links = LinkCounts { connected: 11, away: 1, clients: 96, resumes: 3 };
    assert_eq!(last(&list), "12 relays with 96 clients, 1 of them is away; links came back 3 times");
}
