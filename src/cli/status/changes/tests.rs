use super::*;
use rallypoint_api::{Run, RunList};

fn runs() -> RunList {
    serde_json::from_str(include_str!("../../../../tests/data/insight/runs.json")).expect("a list")
}

fn all(list: RunList) -> Look {
    Look::All(list, HashMap::new())
}

#[test]
fn the_first_look_tells_everything() {
    insta::assert_snapshot!(lines(None, &all(runs())).join("\n"), @r"
    22:15:00 train-llm round 0: joining, 3/4 nodes
    22:15:00 static-job: running, 2/2 nodes, 3/4 ranks
    22:15:00 warning: train-llm round 0: 3 of 4 nodes have joined, the first 41 s ago; announced itself: train-llm-2; remedy: look at the missing node's pod: is it scheduled, has its image come, does it reach this server?
    22:15:00 warning: static-job: 3 of 4 ranks have published; for 38 s waiting for rank 2: never seen; 3 processes wait for the address; remedy: look at the process of each missing rank: has it started, does it import or load still, has it ended, does it reach this server, is WORLD_SIZE too large?
    ");
}

#[test]
fn nothing_is_said_while_only_time_passes() {
    let mut later = runs();
    later.now += 100.0;
    later.runs[0].version += 1;
    later.runs[0].explanation.as_mut().expect("one").text.push_str(", and for longer");
    assert_eq!(lines(Some(&all(runs())), &all(later)), Vec::<String>::new());
}

#[test]
fn a_change_is_a_line() {
    let mut later = runs();
    later.now += 3.0;
    let mut first = later.runs.remove(0);
    first.state = RunState::LastCall;
    first.nodes.joined = 3;
    first.nodes.gone = 1;
    first.explanation.as_mut().expect("one").holds = false;
    later.runs = vec![first];
    insta::assert_snapshot!(lines(Some(&all(runs())), &all(later)).join("\n"), @r"
    22:15:03 train-llm round 0: last call, 3/4 nodes, 1 node gone
    22:15:03 static-job: no longer shown
    22:15:03 over: train-llm round 0: 3 of 4 nodes have joined, the first 41 s ago; announced itself: train-llm-2
    ");
}

#[test]
fn of_one_run_each_explanation_is_told_once() {
    let run: Run =
        serde_json::from_str(include_str!("../../../../tests/data/insight/run_4_nodes_one_missing.json"))
            .expect("a run");
    let look = Look::One(Box::new(run));
    assert_eq!(lines(None, &look).len(), 2);
    assert_eq!(lines(Some(&look), &look).len(), 0);
}
