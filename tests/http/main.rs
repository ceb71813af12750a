//! The admin port from outside: routes, rights, native runs, and the view of jobs.

#[path = "../common/mod.rs"]
mod common;

mod admin;
mod api_values;
mod foreign_pages;
mod foreign_text;
mod native_runs;
mod rendezvous;
mod runs;
mod tls;
mod tokens;
