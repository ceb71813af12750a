//! What names a run.

use crate::facts::store::StoreOwner;
use rallypoint_protocol::ids::RunId;

/// Names a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RunKey {
    /// A run that belongs to no store: one of the native rendezvous, as each of its rounds has a store of its
    /// own, or one that only has its pods' announcements until the rendezvous shows it.
    Id(RunId),
    /// A run known by its traffic on a store. Without an id there is one run for each store.
    Store { port: u16, id: Option<RunId> },
}

impl Default for RunKey {
    fn default() -> Self {
        Self::Store { port: 0, id: None }
    }
}

impl RunKey {
    /// The id, if there is one.
    pub(crate) fn id(&self) -> Option<&RunId> {
        match self {
            Self::Id(id) => Some(id),
            Self::Store { id, .. } => id.as_ref(),
        }
    }

    /// What it is called, where the store that it belongs to was opened for `owner`.
    pub(crate) fn name(&self, owner: Option<&StoreOwner>) -> String {
        match (self, owner) {
            (Self::Id(id) | Self::Store { id: Some(id), .. }, _) => id.to_string(),
            (Self::Store { id: None, .. }, Some(StoreOwner::Run(name))) => name.clone(),
            (Self::Store { id: None, .. }, Some(StoreOwner::Round(run))) => run.to_string(),
            (Self::Store { port, id: None }, None) => format!("store:{port}"),
        }
    }

    /// The port of the store that it belongs to.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Self::Id(_) => None,
            Self::Store { port, .. } => Some(*port),
        }
    }
}
