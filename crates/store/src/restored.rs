//! The observations of a restored store: what `insight` would see if the clients did now what the journal
//! says they did.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv6Addr, SocketAddr};

use bytes::Bytes;

use super::Store;
use super::effects::{Effects, Observed};
use super::rows::role_of;
use super::slot::SlotId;
use rallypoint_journal::ClientImage;
use rallypoint_protocol::ids::ConnId;
use rallypoint_protocol::keys::{Address, KeyPattern, RendezvousPart, Role, classify};

/// Stands for a writer that the journal does not name.
const SOMEBODY: ConnId = ConnId::new(u32::MAX, 0);

/// A key that is there.
struct Kept<'i> {
    key: &'i [u8],
    pattern: KeyPattern<'i>,
    value: &'i Bytes,
    writer: Option<u32>,
}

impl<'i> Kept<'i> {
    /// The run that the key belongs to.
    fn run(&self) -> Option<&'i [u8]> {
        match self.pattern {
            KeyPattern::Rendezvous { run_id, .. } => Some(run_id),
            KeyPattern::Address(address) => address.run_id,
            _ => None,
        }
    }

    /// The order of observations: the state of a rendezvous first, because it says which round counts;
    /// addresses last, one process group after the other, in the order of their creation.
    fn order(&self) -> (u8, usize, &'i [u8], u32, &'i [u8]) {
        match self.pattern {
            KeyPattern::Rendezvous { part: RendezvousPart::State, .. } => (0, 0, self.key, 0, &[]),
            KeyPattern::Address(Address { group, member, .. }) => (2, group.len(), group, member, self.key),
            _ => (1, 0, self.key, 0, &[]),
        }
    }
}

impl Store {
    /// Observes the clients that are still there, in the order in which they came, and the keys that still
    /// count. Agents and their keys come first, because they tell whose workers the other clients are.
    /// Arrivals at an exit barrier are not known: the clients' waits will show them.
    /// `writers` holds the writers of addresses, sorted by slot.
    pub(super) fn observe_restored<E: Effects>(
        &self,
        clients: &BTreeMap<u32, ClientImage>,
        writers: &[(SlotId, u32)],
        live: &[ConnId],
        fx: &mut E,
    ) {
        // The rules have already dropped the keys of clients that are gone.
        let kept = self.keys.iter().filter_map(|(id, slot)| {
            let key = slot.key();
            let (pattern, value) = (classify(key)?, slot.value()?);
            let writer = writers.binary_search_by_key(&id, |(slot, _)| *slot).ok();
            let writer = writer.and_then(|at| Some(writers.get(at)?.1));
            Some(Kept { key, pattern, value, writer })
        });
        let mut kept: Vec<_> = kept.collect();
        kept.sort_unstable_by_key(Kept::order);
        let mut runs: HashMap<&[u8], (&[u8], Option<ConnId>)> = HashMap::new();
        for key in &kept {
            if let Some(run) = key.run() {
                runs.entry(run).or_insert((key.key, None));
            }
        }
        let of_worker = kept.iter().find(|key| key.pattern.user() == Role::Worker);
        let of_worker = of_worker.map_or(&b"/default_pg/"[..], |key| key.key);
        let known = live.iter().filter_map(|&conn| Some((conn, clients.get(&conn.serial())?)));
        let clients = known.filter_map(|(conn, client)| Some((conn, client, role_of(client.role)?)));
        let (agents, others): (Vec<_>, Vec<_>) = clients.partition(|(_, _, role)| *role == Role::Agent);
        let tell = |conn, key: &[u8], fx: &mut E| {
            if let Some((peer, pid)) = self.peer(conn) {
                fx.observe(Observed::Client { conn, peer, pid, key: key.into() });
            }
        };
        for (conn, client, _) in agents {
            for run in &client.runs {
                let Some((key, agent)) = runs.get_mut(&**run) else { continue };
                agent.get_or_insert(conn);
                tell(conn, key, fx);
            }
        }
        let by_serial: HashMap<u32, ConnId> = live.iter().map(|conn| (conn.serial(), *conn)).collect();
        let wrote = |key: Kept<'_>, fx: &mut E| {
            let agent = || key.run().and_then(|run| runs.get(run)?.1).unwrap_or(SOMEBODY);
            let writer = match key.pattern {
                KeyPattern::Address(_) => key.writer.and_then(|writer| by_serial.get(&writer).copied()),
                KeyPattern::Rendezvous { part: RendezvousPart::State, .. } => Some(agent()),
                KeyPattern::Rendezvous {
                    part: RendezvousPart::ExitBarrier { .. } | RendezvousPart::Other,
                    ..
                } => None,
                KeyPattern::Rendezvous { .. } => Some(SOMEBODY),
                _ => None,
            };
            if let Some(conn) = writer {
                fx.observe(Observed::Wrote { conn, key: key.key.into(), value: key.value.clone() });
            }
        };
        let is_of_agents = |key: &Kept<'_>| key.run().and_then(|run| runs.get(run)?.1).is_some();
        let (of_agents, of_others): (Vec<_>, Vec<_>) = kept.into_iter().partition(is_of_agents);
        for key in of_agents {
            wrote(key, fx);
        }
        for (conn, _, role) in others {
            tell(conn, if role == Role::Worker { of_worker } else { b"init/" }, fx);
        }
        let (nowhere, mut is_anybody_gone) = (SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0), false);
        for (key, _) in runs.values().filter(|(_, agent)| agent.is_none()) {
            is_anybody_gone = true;
            fx.observe(Observed::Client { conn: SOMEBODY, peer: nowhere, pid: None, key: (*key).into() });
        }
        for key in of_others {
            wrote(key, fx);
        }
        if is_anybody_gone {
            fx.observe(Observed::Gone { conn: SOMEBODY, used_own_keys: false });
        }
        fx.observe(Observed::Restored);
    }
}
