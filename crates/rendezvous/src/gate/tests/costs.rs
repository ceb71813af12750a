//! The cost of an announcement, as the number of pods that are looked at: among few and among many pods.

use super::super::pods::LOOKS;
use super::*;

/// How many pods are looked at when pod 5 announces itself again, when `pods` are there and one is missing.
fn once_more_among(pods: u32, ranked: bool) -> u64 {
    let mut world = World::new();
    let nodes = (pods + 1).to_string();
    let say = |world: &mut World, n: u32| {
        // Names that follow no pattern, and one pod with another PyTorch.
        let uid = if n == 7 { "another" } else { "a" };
        progress(world.said(&format!("host{n:05}"), uid, ranked.then_some(n), &nodes))
    };
    for n in 0..pods {
        say(&mut world, n);
    }
    let before = LOOKS.get();
    assert!(say(world.after(5), 5).starts_with(&format!("{pods} of {nodes} pods are there")));
    assert!(world.gates.of("run").expect("there").differing_versions().is_some());
    LOOKS.get() - before
}

#[test]
fn a_repeated_announcement_costs_the_same_however_many_others_wait() {
    for ranked in [true, false] {
        assert_eq!(once_more_among(100, ranked), once_more_among(2000, ranked), "with ranks: {ranked}");
    }
}
