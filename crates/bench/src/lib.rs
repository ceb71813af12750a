//! Load tests of any TCPStore server over the wire: the engine of `rallypoint bench` and of
//! `benches/compare`.
//!
//! A [`Plan`] describes the test; [`run`] carries it out and returns a [`Report`]. The report has one
//! [`Section`] for each measurement, with the requests, the latencies, and the resources that the server and
//! the generator used.
//!
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]
//! The generator has several threads, each with a share of the connections. It sends requests that were
//! encoded before, and warns if it was itself the bottleneck.

mod bystander;
mod error;
mod frame;
mod http;
mod link;
mod pace;
mod plan;
mod report;
mod run;
mod scenarios;
mod session;
mod tally;
mod uplink;
mod workers;

pub use error::Error;
pub use plan::{Plan, PlanError, Relayed, Scenario, Settings};
pub use report::{GeneratorUse, Latency, RelayUse, Report, Section, ServerUse};
pub use run::run;
pub use session::Tick;

use link::{Dialer, Link};
use tally::Tally;
