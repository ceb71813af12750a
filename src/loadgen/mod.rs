//! Load tests of any TCPStore server over the wire: the engine of `rallypoint bench` and of `benches/compare`.
//!
//! A [`Plan`] says what to do; [`run`] does it and gives a [`Report`]. The report has one [`Section`] for each thing
//! measured, with the requests sent, latencies, and what the server's process and the generator itself used.
//!
//! The generator works on several threads with a share of the connections each, sends requests that were encoded
//! before, and says when it was itself the slowest part.

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
