//! What names a run.

use crate::watch::StoreOwner;
use rallypoint_protocol::ids::RunId;

/// Names a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RunKey {
    /// A run of the native rendezvous. It belongs to no store, because each of its rounds has its own.
    Native(RunId),
    /// A run that only has its pods' announcements.
    Announced(RunId),
    /// A run known by its traffic on a store. Without an id there is one run for each store.
    Store { port: u16, id: Option<RunId> },
}

impl RunKey {
    /// The id, if there is one.
    pub(crate) fn id(&self) -> Option<&RunId> {
        match self {
            Self::Native(id) | Self::Announced(id) => Some(id),
            Self::Store { id, .. } => id.as_ref(),
        }
    }

    /// What it is called, where the store that it belongs to was opened for `owner`.
    pub(crate) fn name(&self, owner: Option<&StoreOwner>) -> String {
        match (self, owner) {
            (Self::Native(id) | Self::Announced(id) | Self::Store { id: Some(id), .. }, _) => id.to_string(),
            (Self::Store { id: None, .. }, Some(StoreOwner::Run(name))) => name.clone(),
            (Self::Store { id: None, .. }, Some(StoreOwner::Round(run))) => run.to_string(),
            (Self::Store { port, id: None }, None) => format!("store:{port}"),
        }
    }

    /// The port of the store that it belongs to.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Self::Native(_) | Self::Announced(_) => None,
            Self::Store { port, .. } => Some(*port),
        }
    }

    pub(crate) fn is_native(&self) -> bool {
        matches!(self, Self::Native(_))
    }

    pub(crate) fn is_announced(&self) -> bool {
        matches!(self, Self::Announced(_))
    }
}
