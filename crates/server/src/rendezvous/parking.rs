//! Parked requests. Each is one entry and one oneshot channel. It is woken once, and then reads its standing.
//! A newer request of a peer replaces its older one.

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::within;
use rallypoint_map::HashMap;
use rallypoint_protocol::ids::{Label, RunId};

/// The event that a request waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Awaited {
    /// A join waits for the run's next round.
    Round(RunId),
    /// A heartbeat waits for another action.
    Change(RunId),
    /// An arrival waits for the release of a barrier.
    Release(Label),
}

/// The parked requests, by event and peer.
#[derive(Debug, Default)]
pub(super) struct Parking {
    waiting: HashMap<Awaited, HashMap<Label, Entry>>,
    serial: u64,
}

#[derive(Debug)]
struct Entry {
    serial: u64,
    /// `None` once it was woken.
    tell: Option<oneshot::Sender<()>>,
}

impl Entry {
    fn wake(&mut self) {
        if let Some(tell) = self.tell.take() {
            // An error is fine: a request that ends removes its own entry.
            let _ = tell.send(());
        }
    }
}

/// The waiting side of a parked request.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) awaited: Awaited,
    pub(super) who: Label,
    serial: u64,
    told: oneshot::Receiver<()>,
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// The event happened, or the time is over: read the standing.
    Look,
    /// A newer request took its place.
    Replaced,
}

impl Ticket {
    /// Waits until it is woken, or until the deadline.
    pub(super) async fn wait(&mut self, until: Instant) -> Woken {
        match within(until, &mut self.told).await {
            Some(Err(_)) => Woken::Replaced,
            Some(Ok(())) | None => Woken::Look,
        }
    }
}

impl Parking {
    /// Parks a request, and replaces an older one.
    pub(super) fn park(&mut self, awaited: Awaited, who: &Label) -> Ticket {
        let (tell, told) = oneshot::channel();
        self.serial = self.serial.wrapping_add(1);
        let entry = Entry { serial: self.serial, tell: Some(tell) };
        self.waiting.entry(awaited.clone()).or_default().insert(who.clone(), entry);
        Ticket { awaited, who: who.clone(), serial: self.serial, told }
    }

    /// Replaces a parked request: a newer one is here.
    pub(super) fn replace(&mut self, awaited: &Awaited, who: &Label) {
        if let Some(waiting) = self.waiting.get_mut(awaited) {
            waiting.remove(who);
            if waiting.is_empty() {
                self.waiting.remove(awaited);
            }
        }
    }

    /// Removes an ended request. `false` if a newer one had replaced it.
    pub(super) fn leave(&mut self, ticket: &Ticket) -> bool {
        let entry = self.waiting.get(&ticket.awaited).and_then(|waiting| waiting.get(&ticket.who));
        let is_here = entry.is_some_and(|entry| entry.serial == ticket.serial);
        if is_here {
            self.replace(&ticket.awaited, &ticket.who);
        }
        is_here
    }

    /// Wakes the request of one peer.
    pub(super) fn wake(&mut self, awaited: &Awaited, who: &Label) {
        self.waiting
            .get_mut(awaited)
            .and_then(|waiting| waiting.get_mut(who))
            .into_iter()
            .for_each(Entry::wake);
    }

    /// Wakes all requests that wait for this event.
    pub(super) fn wake_all(&mut self, awaited: &Awaited) {
        self.waiting.get_mut(awaited).into_iter().flat_map(HashMap::values_mut).for_each(Entry::wake);
    }

    /// Wakes every join.
    pub(super) fn wake_joins(&mut self) {
        let joins = self.waiting.iter_mut().filter(|(awaited, _)| matches!(awaited, Awaited::Round(_)));
        joins.flat_map(|(_, waiting)| waiting.values_mut()).for_each(Entry::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::deadline_in;

    fn change(run: &str) -> Awaited {
        Awaited::Change(RunId::new(run.as_bytes()))
    }

    #[tokio::test]
    async fn a_newer_request_takes_the_place_of_the_older_and_only_it_can_leave() {
        let (mut parking, node) = (Parking::default(), Label::new("a").expect("a label"));
        let mut older = parking.park(change("r"), &node);
        let newer = parking.park(change("r"), &node);
        assert_eq!(older.wait(deadline_in(Duration::MAX)).await, Woken::Replaced);
        assert!(!parking.leave(&older) && parking.leave(&newer) && !parking.leave(&newer));
        assert!(parking.waiting.is_empty(), "nothing stays of it");
    }

    #[tokio::test]
    async fn only_those_are_woken_who_wait_for_what_has_happened() {
        let (mut parking, nodes) = (Parking::default(), ["a", "b"].map(|n| Label::new(n).expect("a label")));
        let mut woken = nodes.each_ref().map(|node| parking.park(change("r"), node));
        let mut other = parking.park(change("other"), &nodes[0]);
        let mut join = parking.park(Awaited::Round(RunId::new(b"r")), &nodes[0]);
        parking.wake_all(&change("r"));
        for ticket in &mut woken {
            assert_eq!(ticket.wait(deadline_in(Duration::MAX)).await, Woken::Look);
        }
        assert!(other.told.try_recv().is_err() && join.told.try_recv().is_err());
        parking.wake_joins();
        assert!(other.told.try_recv().is_err() && join.told.try_recv().is_ok());
    }
}
