//! Clients of other protocols that came to a store port. Insight reports each of them once.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use rallypoint_protocol::MAGIC;

/// A client of another protocol at a store port, or a client of a store at the admin port.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the port, the peer and what it speaks")]
pub enum Foreign {
    AtStore { port: u16, peer: IpAddr, protocol: &'static str },
    AtAdmin { port: u16, peer: IpAddr },
}

/// Whether a client of a store begins with these bytes: PyTorch 2.2 or later.
pub fn is_hello([code, magic @ ..]: [u8; 5]) -> bool {
    code == 0 && magic == MAGIC
}

/// The foreign clients since the last call.
#[derive(Debug)]
pub struct ForeignClients {
    /// Whether insight asks for them.
    are_told: bool,
    seen: Mutex<Vec<Foreign>>,
}

impl ForeignClients {
    const MOST: usize = 256;

    /// None yet; `are_told` is false if nobody asks for them.
    pub fn new(are_told: bool) -> Self {
        Self { are_told, seen: Mutex::default() }
    }

    /// Records a foreign client. Returns whether insight will report it.
    pub fn came(&self, foreign: Foreign) -> bool {
        if self.are_told {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.len() < Self::MOST {
                seen.push(foreign);
            }
        }
        self.are_told
    }

    /// Takes what was noted since the last call.
    pub fn take(&self) -> Vec<Foreign> {
        std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
