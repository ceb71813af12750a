//! What a simulation sees of an engine: in which order requests are applied, and in which commit.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::Range;

use crate::core::ids::ConnId;
use crate::core::protocol::Request;
use crate::server::journal::CommitNumber;

/// One thing that happens in a critical section.
#[derive(Debug)]
pub(crate) enum Tapped<'a> {
    /// A connection has come.
    Connected(ConnId, SocketAddr),
    /// These keys of a request were written or answered, and there are more.
    Begun(ConnId, &'a Request<'a>, Range<usize>),
    /// A request was applied. So many of its keys were written or answered before.
    Applied(ConnId, &'a Request<'a>, usize),
    /// A connection has gone.
    Left(ConnId),
    /// The store is as it was at the end of the last server; these connections go on, by their numbers.
    Restored(&'a [(u32, SocketAddr)]),
    /// The end of the critical section, which is this commit.
    Committed(CommitNumber),
}

type Listener = Box<dyn FnMut(u16, Tapped<'_>)>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// From here on this thread's engines say what they do, each with the port of its store.
pub(crate) fn listen(listener: impl FnMut(u16, Tapped<'_>) + 'static) {
    LISTENER.set(Some(Box::new(listener)));
}

pub(super) fn tell(port: u16, tapped: Tapped<'_>) {
    LISTENER.with_borrow_mut(|listener| {
        if let Some(listener) = listener {
            listener(port, tapped);
        }
    });
}
