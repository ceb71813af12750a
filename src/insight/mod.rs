//! What the traffic says about the jobs: who has joined, who is missing, what everybody waits for, and why.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

pub mod view;
