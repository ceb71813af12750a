//! What changes the facts: one file for each source. They translate, and say nothing themselves.

mod c10d;
mod ends;
mod fixed;
pub(crate) mod gate;
pub(crate) mod journal;
mod keys;
mod native;
pub(crate) mod past;
mod ranks;
pub(crate) mod store;
mod time;
