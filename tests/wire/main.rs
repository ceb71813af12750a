//! The store port from outside: bytes, connections, effects of peers on each other, and a server's life.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod adversarial;
mod crowds;
mod hostile_relays;
mod journal;
mod lifecycle;
mod links;
mod memory;
mod nixl;
mod replay;
mod replicas;
mod restarts;
mod siege;
mod skew;
