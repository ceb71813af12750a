//! What goes wrong, by backend, moment and kind of fault: a story for each, with what must be said, how soon,
//! and what must not be said.

mod backends;
mod fixed;
mod ranks;
mod twins;

use super::stories::stories_with;

/// Stories of faults: waits are told after 3 s.
fn faults(table: &str) {
    stories_with("faults", "soon", table);
}
