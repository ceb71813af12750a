//! A node and what it says about itself.

use serde::{Deserialize, Serialize};

use super::{Wanted, Who};
use rallypoint_protocol::ids::Label;

/// A place in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankInRound {
    /// The round's number.
    pub round: u64,
    /// The node's rank in it.
    pub rank: u32,
}

/// How a node's work in its round ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The work is done.
    Succeeded,
    /// The work failed.
    Failed,
}

/// What a node says when it leaves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaveRequest {
    /// The reason, for the other nodes.
    pub why: Option<Label>,
    /// How its work ended, if it knows that.
    pub outcome: Option<Outcome>,
}

/// What a node says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// The name that people know.
    pub name: Label,
    /// The address at which its peers reach it.
    pub address: Label,
    /// Its role for the launcher.
    pub role: Option<Label>,
    /// The number of its processes.
    pub local_world_size: Option<u32>,
    /// Its release of PyTorch.
    pub torch_version: Option<Label>,
}

impl NodeInfo {
    /// Bytes of its texts.
    pub(super) fn text_len(&self) -> usize {
        let texts = [Some(&self.name), Some(&self.address), self.role.as_ref(), self.torch_version.as_ref()];
        texts.into_iter().flatten().map(|text| text.as_str().len()).sum()
    }

    pub(super) fn who(&self) -> Who {
        Who { name: self.name.clone(), address: self.address.clone() }
    }
}

/// What a node tells its peers with one join. The server does not read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload(Box<str>);

/// A text that is too long for a [`Payload`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("has {0} bytes, and may have at most {most}", most = Payload::MOST)]
pub struct LongPayload(usize);

impl Payload {
    /// Most bytes.
    pub const MOST: usize = 4096;

    /// Takes the text.
    pub fn new(text: &str) -> Result<Self, LongPayload> {
        if text.len() <= Self::MOST { Ok(Self(text.into())) } else { Err(LongPayload(text.len())) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Bytes that it takes, also in the list of a round as it is sent, where JSON escapes it.
    pub(super) fn memory(&self) -> usize {
        let in_json = |byte: u8| match byte {
            0..=0x1f => 6,
            b'"' | b'\\' => 2,
            _ => 1,
        };
        self.0.bytes().map(in_json).fold(self.0.len(), usize::saturating_add)
    }
}

/// The join of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The node's id, which every retry repeats.
    pub node: Label,
    /// A retry repeats the id; a new join has another one.
    pub join_id: Box<str>,
    /// What it says about itself.
    pub info: NodeInfo,
    /// What it tells its peers with this join.
    pub payload: Option<Payload>,
    /// The rank that it must get.
    pub rank: Option<u32>,
    /// Whether it sends heartbeats once its round is complete, so that its loss is noticed.
    pub watched: bool,
    /// Its place in the last round.
    pub previous: Option<RankInRound>,
    /// The terms that it wants for the run.
    pub wanted: Wanted,
}
