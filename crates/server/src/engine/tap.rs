//! A simulation's view of an engine: the order of the applied requests, and their commits.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::Range;

use crate::journal::CommitNumber;
use rallypoint_protocol::Request;
use rallypoint_protocol::ids::ConnId;

/// One event in a critical section.
#[derive(Debug)]
pub enum Tapped<'a> {
    /// A connection came.
    Connected(ConnId, SocketAddr),
    /// These keys of a request were written or answered, and the request has more.
    Begun(ConnId, &'a Request<'a>, Range<usize>),
    /// A request was applied. This many of its keys were written or answered in earlier steps.
    Applied(ConnId, &'a Request<'a>, usize),
    /// A connection ended.
    Left(ConnId),
    /// The store is as it was at the end of the last server. These connections go on, by their numbers.
    Restored(&'a [(u32, SocketAddr)]),
    /// The critical section ended; it is this commit.
    Committed(CommitNumber),
}

type Listener = Box<dyn FnMut(u16, Tapped<'_>)>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// From here on this thread's engines report to `listener`, each with the port of its store.
pub fn listen(listener: impl FnMut(u16, Tapped<'_>) + 'static) {
    LISTENER.set(Some(Box::new(listener)));
}

pub(super) fn tell(port: u16, tapped: Tapped<'_>) {
    LISTENER.with_borrow_mut(|listener| {
        if let Some(listener) = listener {
            listener(port, tapped);
        }
    });
}
