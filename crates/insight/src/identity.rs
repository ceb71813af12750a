//! Whose connection is which process, node or rank, and what was seen of it.
//!
//! Nobody says who he is. What is known follows from what each connection writes, and this always holds:
//! - An agent is known by the keys of its rendezvous. c10d: a connection is the node whose heartbeat alone
//!   changes with what it writes. Static: it has the rank of the role that it writes.
//! - A worker is known by the keys of a group, or as it has only counted itself for a while. It belongs to
//!   the only run whose agents use its store and may have it, or else to the store's run without an id.
//! - A rank is known by the address that it publishes. Who counts the others is rank 0, or the agent of node
//!   rank 0, if just one job lacks that.
//! - Connections with one address and process id are one process, unless they do what one does not: they are
//!   different ranks or nodes, one becomes the rank that another is and waits as, or both wait for one key of
//!   a program. Containers may share both; then each connection is taken for a process.
//! - Who comes on another connection while the old one is open is the same process; what is not the same
//!   process and claims the same place is another one beside it.

pub(crate) mod processes;
pub(crate) mod roles;
pub(crate) mod sighting;
