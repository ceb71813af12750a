//! What goes wrong, by backend, moment and kind of fault: a story for each, with what must be said, how soon,
//! and what must not be said.

mod backends;
mod fixed;
mod ranks;
mod shown;
mod twins;

use super::lab::Lab;
use super::stories::stories_with;

/// Stories of faults: waits are told after 3 s.
fn faults(table: &str) {
    stories_with("faults", "soon", table);
}

/// These ranks have published their addresses, and each reads those of all others.
pub(super) fn gather(lab: &mut Lab, those: &[u32], world: u32) {
    for &rank in those {
        lab.rank(rank, &format!("10.0.0.{rank}"), rank, world as usize);
    }
    read_each_other(lab, those, world);
}

/// Each of these reads the addresses of all others, and waits for the first that is not there.
pub(super) fn read_each_other(lab: &mut Lab, ranks: &[u32], world: u32) {
    for &reader in ranks {
        for other in (0..world).filter(|&other| other != reader) {
            if !ranks.contains(&other) {
                lab.wait_for_rank(reader, other);
                break;
            }
            lab.get(reader, &format!("/default_pg/0//cpu//0/{other}"));
        }
    }
}

/// Agents of a static run with `nodes` nodes, which have their ranks.
pub(super) fn static_run(lab: &mut Lab, run: &str, nodes: u32) {
    for n in (0..nodes).rev() {
        lab.static_node(n, run, n, nodes);
    }
    lab.pass(0.1);
    lab.hand_out_ranks(0, &format!("/{run}"), nodes, 2);
    lab.pass(2.0);
}
