//! What an explanation carries with it.

use super::super::lab::{Lab, PORT};
use super::gather;
use rallypoint_api::Seen;

#[test]
fn an_explanation_carries_its_evidence() {
    let mut lab = Lab::soon();
    gather(&mut lab, &[0, 1], 3);
    lab.pass(8.0);
    lab.leave(1);
    lab.pass(5.0);
    let run = lab.run(&format!("store:{PORT}"));
    let of = |code: &str| {
        let found = run.explanations.iter().find(|said| said.code == code);
        found.unwrap_or_else(|| panic!("{code} is not shown")).evidence.clone()
    };
    let key = Some("/default_pg/0//cpu//0/2".to_owned());
    let [waits] = &of("waiting")[..] else { panic!("{:?}", of("waiting")) };
    assert_eq!((waits.seen, &*waits.who, &waits.key), (Seen::Waits, "rank 0 on host0", &key));
    assert_eq!((waits.peer.as_deref(), waits.pid), (Some("10.0.0.0:40000"), Some(2000)));
    assert!(waits.at < 1.0, "it began to wait then: {}", waits.at);
    let [closed] = &of("lost")[..] else { panic!("{:?}", of("lost")) };
    assert_eq!((closed.seen, &*closed.who, &closed.key), (Seen::Closed, "rank 1 on host1", &None));
    assert!((8.0..8.2).contains(&closed.at), "{}", closed.at);
    assert!(run.summary.explanation.expect("a headline").evidence.is_empty());
}
