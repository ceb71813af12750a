//! Counts the steps that the store takes, so that a test can measure a cost without a clock.

use std::cell::Cell;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// One look at a name, a registration or a range of ranks.
pub(crate) fn step() {
    STEPS.set(STEPS.get() + 1);
}

/// The steps that `act` takes.
pub(crate) fn of(act: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    act();
    STEPS.get() - before
}
