//! The memory of the server is used up for a while: requests that need memory are refused, and their clients
//! closed.

use super::super::mutants::Mutant;
use super::World;
use rallypoint_server::engine::Reservation;

#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// The memory that is taken away.
    taken: Option<Reservation>,
    /// Whether memory was ever taken away.
    pub(super) was_there: bool,
}

impl Shortage {
    pub(super) fn is_there(&self) -> bool {
        self.taken.is_some()
    }

    /// Whether the server may have refused something because of it.
    pub(super) fn may_be_why(&self, why: &impl ToString) -> bool {
        let why = why.to_string();
        // A restarted server does not know why a client was closed.
        let is_it = why.contains("--max-memory") || why.contains("it ended before the server was restarted");
        self.was_there && is_it
    }
}

impl World {
    pub(super) fn use_up_memory(&mut self, leaves: usize) {
        self.free_memory();
        let Some(server) = &self.server else { return };
        let budget = server.stores.budget();
        let mut taken = budget.reservation();
        taken.set(budget.room().saturating_sub(leaves));
        (self.shortage.taken, self.shortage.was_there) = (Some(taken), true);
    }

    pub(super) fn free_memory(&mut self) {
        let Some(mut taken) = self.shortage.taken.take() else { return };
        trace!(self, "there is memory again");
        if self.is(Mutant::MemoryKept) {
            taken.set(1);
            std::mem::forget(taken);
        }
    }

    /// How much memory is taken away.
    pub(super) fn used_up(&self) -> usize {
        self.shortage.taken.as_ref().map_or(0, Reservation::bytes)
    }
}
