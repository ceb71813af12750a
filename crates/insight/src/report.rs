//! What was said, and the documents that show it.

pub(crate) mod documents;
pub(crate) mod log;
pub(crate) mod summary;
