//! The links of the relays: the connected relays, their connections, and what happens to their clients while
//! a connection is broken. The rules are in [`rallypoint_link`].

mod connection;
mod sessions;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::journal::Journal;
use crate::stores::StoreHost;
pub use connection::Line;
#[cfg(any(test, feature = "sim"))]
pub use connection::Turn;
use rallypoint_access::tokens::{Grant, Runs};
use rallypoint_api::LinkCounts;
use rallypoint_insight::{AwayLink, LinkEvent, LinkNews};
use rallypoint_journal::{Image, LinkId, LinkImage, LinkRow, Row};
use rallypoint_link::{Hello, Identity, Refuse, RelayLife, ServerEnd, ServerLife, SessionNo};
use rallypoint_map::HashMap;
use rallypoint_protocol::ids::{Elapsed, Shown, Timestamp, counted, is_plain};
use sessions::LinkSessions;

/// The largest number of relays.
const MAX_LINKS: usize = 65_536;
/// Where a relay's name comes from.
const NAMED_BY: &str = "--name (rallypoint relay), else POD_NAME and POD_UID, as with rallypoint run, else \
                        the host's name and address";
/// How long until the log repeats that two relays have one name.
const SAY_AGAIN: Duration = Duration::from_mins(1);
/// A refused relay tries again within this time.
const RETRIES: Duration = Duration::from_secs(30);

/// The connection number of a link that gets no other connection.
const RETIRED: u64 = u64::MAX;

/// A link as the API and the metrics show it.
#[derive(Debug, Clone)]
pub struct LinkView {
    /// The relay's name.
    pub name: String,
    /// The address from which it last came.
    pub addr: IpAddr,
    /// How many clients it has.
    pub sessions: usize,
    /// How long its connection has been broken; `None` if it is up.
    pub away: Option<Duration>,
    /// The runs that its clients may touch; `None` means all.
    pub runs: Option<Runs>,
}

/// The peer that brings a link.
#[derive(Debug, Clone)]
pub struct Bearer {
    /// Its address.
    pub peer: SocketAddr,
    /// The grant of its token, if it has shown one.
    pub grant: Option<Grant>,
}

impl Bearer {
    fn runs(&self) -> Option<&Runs> {
        self.grant.as_ref().and_then(|grant| grant.runs.as_ref())
    }
}

/// One relay.
#[derive(Debug)]
struct Link {
    /// The link's number in the journal.
    id: LinkId,
    name: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sessions: LinkSessions,
    /// Why the last connection ended.
    broken: Option<String>,
    /// Number of the connection that serves the link; 0 before the first one, [`RETIRED`] at the end.
    connection: u64,
    /// Another relay that uses this name.
    namesake: Option<Namesake>,
}

/// A relay that is refused because its name is taken. It tries again and again.
#[derive(Debug)]
struct Namesake {
    first: Timestamp,
    last: Timestamp,
    /// When it was last reported.
    told: Option<Timestamp>,
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All links.
#[derive(Debug)]
pub struct LinkHost {
    stores: Arc<StoreHost>,
    clock: Clock,
    life: ServerLife,
    links: Mutex<BTreeMap<String, Arc<Link>>>,
    last_id: AtomicU32,
    resumes: AtomicU64,
    /// Events for [`Self::take_news`].
    news: Mutex<Vec<LinkNews>>,
    /// The log has not said yet how many relays of the last server are back.
    is_recovering: AtomicBool,
}

impl LinkHost {
    /// Restores the links of the last server, as far as the journal knows their sessions. The stores must be
    /// restored before. Without a journal, relays know the server as `new_life`.
    pub fn new(stores: Arc<StoreHost>, clock: Clock, before: &Image, new_life: ServerLife) -> Self {
        let life = stores.journal().map_or(new_life, |journal| ServerLife(journal.life()));
        let host = Self {
            stores,
            clock,
            life,
            links: Mutex::default(),
            last_id: AtomicU32::new(before.last_link),
            resumes: AtomicU64::new(0),
            news: Mutex::default(),
            is_recovering: AtomicBool::new(!before.links.is_empty()),
        };
        let mut links = BTreeMap::new();
        for (&id, image) in &before.links {
            if let Some(link) = host.restore(id, image) {
                links.insert(link.name.clone(), Arc::new(link));
            }
        }
        host.stores.end_unresumed();
        *host.lock() = links;
        host
    }

    /// A link of the last server. Its connection counts as broken until the relay comes.
    fn restore(&self, id: LinkId, image: &LinkImage) -> Option<Link> {
        let relay = image.relay.as_ref()?;
        let name = String::from_utf8(relay.name.to_vec()).ok()?;
        let addr = std::str::from_utf8(&relay.addr).ok()?.parse().ok()?;
        let identity = Identity { name: name.clone(), life: RelayLife(relay.life) };
        let end = ServerEnd::restored(identity, self.life, self.clock.now());
        let mut sessions = LinkSessions::new(id, end, addr, Arc::clone(&self.stores), self.clock);
        let runs = relay.runs.as_ref().and_then(|runs| std::str::from_utf8(runs).ok()).map(Runs::new);
        sessions.are_for(runs.as_ref());
        for (&no, session) in &image.sessions {
            sessions.restore(SessionNo(no), session);
        }
        Some(Link {
            id,
            name,
            state: Mutex::new(State { sessions, broken: None, connection: 0, namesake: None }),
        })
    }

    /// Copies the links into the journal again, in small steps. The stores have already copied the links'
    /// sessions.
    pub async fn copy(&self, journal: &Journal) {
        let links: Vec<_> = self.lock().values().cloned().collect();
        for link in links {
            let sessions: Vec<_> = {
                let state = link.lock();
                if state.connection == RETIRED {
                    continue;
                }
                put_link(journal, &link, &state);
                state.sessions.end().all().collect()
            };
            for no in sessions {
                link.lock().sessions.copy(no);
                journal.write_queued();
                tokio::task::yield_now().await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All links, ordered by name.
    pub fn view(&self) -> Vec<LinkView> {
        let now = self.clock.now();
        let links: Vec<_> = self.lock().values().cloned().collect();
        let view = |link: Arc<Link>| {
            let state = link.lock();
            LinkView {
                name: link.name.clone(),
                addr: state.sessions.relay(),
                sessions: state.sessions.len(),
                away: state.sessions.end().away_since().map(|since| now.since(since)),
                runs: state.sessions.runs().cloned(),
            }
        };
        links.into_iter().map(view).collect()
    }

    /// The memory that is counted for all links, and the memory that they hold, without the bytes in their
    /// connections.
    #[cfg(feature = "sim")]
    pub fn memory(&self) -> (usize, usize) {
        let all: Vec<_> = self.lock().values().map(|link| link.lock().sessions.memory()).collect();
        (all.iter().map(|(counted, _)| counted).sum(), all.iter().map(|(_, held)| held).sum())
    }

    /// Counts of the links, and the links that have been away long enough to report: as a rule a relay comes
    /// back within two seconds.
    pub(super) fn look(&self) -> (LinkCounts, Vec<AwayLink>) {
        const TOLD_AFTER: Duration = Duration::from_secs(2);
        let (now, recovery) = (self.clock.now(), self.stores.config().recovery);
        let links: Vec<_> = self.lock().values().cloned().collect();
        let mut counts = LinkCounts { resumes: self.resumes(), ..LinkCounts::default() };
        let mut told = Vec::new();
        for link in links {
            let state = link.lock();
            let clients = state.sessions.len();
            counts.clients = counts.clients.saturating_add(clients as u64);
            let Some(since) = state.sessions.end().away_since() else {
                counts.connected = counts.connected.saturating_add(1);
                continue;
            };
            counts.away = counts.away.saturating_add(1);
            let told_after = if state.connection == 0 { recovery } else { TOLD_AFTER };
            if now.since(since) >= told_after {
                let (name, addr, why) = (link.name.clone(), state.sessions.relay(), state.broken.clone());
                let clients = state.sessions.clients().collect();
                told.push(AwayLink { name, addr, clients, since, why });
            }
        }
        (counts, told)
    }

    /// The addresses of the relays, each with whether a link from there is up.
    pub fn relays(&self) -> HashMap<IpAddr, bool> {
        let links: Vec<_> = self.lock().values().cloned().collect();
        let mut relays = HashMap::default();
        for link in links {
            let state = link.lock();
            *relays.entry(state.sessions.relay()).or_default() |= state.sessions.end().is_connected();
        }
        relays
    }

    /// Takes the events since the last call.
    pub(super) fn take_news(&self) -> Vec<LinkNews> {
        std::mem::take(&mut *self.news())
    }

    fn news(&self) -> MutexGuard<'_, Vec<LinkNews>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, name: &str, what: LinkEvent) {
        /// The events are taken once a second.
        const MOST: usize = 4 * MAX_LINKS;
        let mut news = self.news();
        if news.len() < MOST {
            news.push(LinkNews { name: name.to_owned(), what, at: self.clock.now() });
        }
    }

    /// How often a relay came back to its sessions.
    pub fn resumes(&self) -> u64 {
        self.resumes.load(Relaxed)
    }

    /// Admits a relay.
    pub fn take_in(&self, hello: &Hello, bearer: &Bearer) -> Result<Line, Refuse> {
        let (now, peer) = (self.clock.now(), bearer.peer);
        let addr = peer.ip().to_canonical();
        let name = &hello.identity.name;
        let refuse = |reason: String, retry| Err(Refuse { reason, retry });
        if name.is_empty() || name.len() > 253 || !name.chars().all(is_plain) {
            return refuse("a relay's name is 1 to 253 printable characters".into(), false);
        }
        if self.stores.is_stopping() {
            return refuse("the server is stopping".into(), true);
        }
        let mut links = self.lock();
        let known = links.get(name).cloned();
        if let Some(link) = &known {
            let mut state = link.lock();
            let end = state.sessions.end();
            if end.identity().life == hello.identity.life {
                if end.is_overtaken(hello) {
                    // Its list of sessions is stale: sessions that came since then would end.
                    return refuse("a later connection of this relay has come before this one".into(), true);
                }
                // Since when it was away before this server was started is not known.
                let away = end.away_since().filter(|_| state.connection > 0);
                if let Err(error) = state.sessions.connected(hello, true, now) {
                    return refuse(format!("the relay does not keep to the protocol: {error}"), false);
                }
                let is_for_others = state.sessions.runs() != bearer.runs();
                state.sessions.are_for(bearer.runs());
                if state.sessions.relay() != addr || is_for_others {
                    state.sessions.moved_to(addr);
                    if let Some(journal) = self.stores.journal() {
                        put_link(journal, link, &state);
                    }
                }
                state.connection = state.connection.saturating_add(1);
                let connection = state.connection;
                let sessions = state.sessions.len();
                let why = state.broken.take();
                drop(state);
                drop(links);
                self.resumes.fetch_add(1, Relaxed);
                let away =
                    away.map_or_else(String::new, |since| format!(" after {}", Elapsed(now.since(since))));
                let why = why.map_or_else(String::new, |why| format!(" ({why})"));
                tracing::info!(
                    link = name,
                    %peer,
                    "the link of {name} is back{away}{why}, with {}",
                    counted(sessions, "client", "clients")
                );
                return Ok(Line { link: Arc::clone(link), connection });
            }
            if state.sessions.runs() != bearer.runs() {
                let reason = format!(
                    "the name {name} is taken by a relay whose token is for other runs; give this one a name \
                     of its own ({NAMED_BY})"
                );
                return refuse(reason, true);
            }
            if end.is_alive(now) {
                let reason = format!(
                    "a relay named {name} is connected already, from {}; give each relay a name of its own: \
                     {NAMED_BY}",
                    state.sessions.relay()
                );
                let mut namesake = state.namesake.take().filter(|it| now.since(it.last) < RETRIES);
                let it = namesake.get_or_insert(Namesake { first: now, last: now, told: None });
                it.last = now;
                // Otherwise it may be a restart of the same pod, before the end of its old process is known.
                let is_beside = state.sessions.end().is_heard_after(it.first);
                if is_beside && it.told.is_none_or(|told| now.since(told) >= SAY_AGAIN) {
                    it.told = Some(now);
                    self.tell(name, LinkEvent::Namesake { from: addr, other: state.sessions.relay() });
                }
                state.namesake = namesake;
                return refuse(reason, true);
            }
        }
        if known.is_none() && links.len() >= MAX_LINKS {
            return refuse(format!("the server has {MAX_LINKS} relays already"), true);
        }
        let id = self.last_id.fetch_add(1, Relaxed).saturating_add(1);
        let end = ServerEnd::new(hello.identity.clone(), self.life);
        let mut sessions = LinkSessions::new(id, end, addr, Arc::clone(&self.stores), self.clock);
        sessions.are_for(bearer.runs());
        if let Err(error) = sessions.connected(hello, false, now) {
            return refuse(format!("the relay does not keep to the protocol: {error}"), false);
        }
        let state = State { sessions, broken: None, connection: 1, namesake: None };
        let link = Arc::new(Link { id, name: name.clone(), state: Mutex::new(state) });
        if let Some(journal) = self.stores.journal() {
            put_link(journal, &link, &link.lock());
        }
        let before = links.insert(name.clone(), Arc::clone(&link));
        self.tell(name, LinkEvent::Came);
        drop(links);
        let replaced = if let Some(before) = before {
            self.retire(&before);
            ", in place of an earlier relay of that name"
        } else {
            ""
        };
        tracing::info!(link = name, %peer, "relay {name} has connected{replaced}");
        Ok(Line { link, connection: 1 })
    }

    /// Records that a connection broke, unless a newer one has taken over.
    pub fn lost(&self, Line { link, connection }: &Line, why: &str) {
        let now = self.clock.now();
        let mut state = link.lock();
        if state.connection != *connection || !state.sessions.end().is_connected() {
            return;
        }
        state.sessions.lost(now);
        state.broken = Some(Shown(why).to_string());
        drop(state);
        tracing::debug!(link = link.name, "the connection of {} broke: {}", link.name, Shown(why));
    }

    /// Handles a relay's goodbye.
    fn bye(&self, link: &Arc<Link>) {
        let mut links = self.lock();
        if links.get(&link.name).is_some_and(|known| Arc::ptr_eq(known, link)) {
            links.remove(&link.name);
            self.tell(&link.name, LinkEvent::Left);
        }
        drop(links);
        self.retire(link);
        tracing::info!(link = link.name, "relay {} has gone", link.name);
    }

    /// Ends a link: its clients, and its connection if there is one.
    fn retire(&self, link: &Link) {
        let mut state = link.lock();
        state.connection = RETIRED;
        state.sessions.end_all();
        if let Some(journal) = self.stores.journal() {
            journal.commit(|out| Row::Link(link.id, None).encode(out));
        }
    }

    /// Logs how many relays of the last server are back: when all of them are, or after a while. An absent
    /// one is then reported like any broken link.
    fn tell_recovery(&self) {
        let took = self.clock.up();
        let (mut back, mut clients, mut away) = (0_usize, 0_usize, 0_usize);
        for link in self.lock().values() {
            let state = link.lock();
            if state.connection == 0 {
                away = away.saturating_add(1);
            } else {
                back = back.saturating_add(1);
                clients = clients.saturating_add(state.sessions.len());
            }
        }
        if away > 0 && took < self.stores.config().recovery {
            return;
        }
        self.is_recovering.store(false, Relaxed);
        let is_back = counted(back, "relay is back", "relays are back");
        let clients = counted(clients, "client", "clients");
        let away = match away {
            0 => String::new(),
            away => format!("; {} still away", counted(away, "is", "are")),
        };
        tracing::info!("{is_back} {} after the restart, with {clients}{away}", Elapsed(took));
    }

    /// Ends the links that have been away for too long, and cuts off clients that take the memory of others.
    pub fn tick(&self) {
        if self.is_recovering.load(Relaxed) {
            self.tell_recovery();
        }
        let now = self.clock.now();
        let grace = self.stores.config().link_grace;
        let mut gone = Vec::new();
        self.lock().retain(|_, link| {
            let mut state = link.lock();
            state.sessions.relieve();
            let is_over = state.sessions.end().away_since().is_some_and(|since| now.since(since) >= grace);
            drop(state);
            if is_over {
                gone.push(Arc::clone(link));
            }
            !is_over
        });
        for link in gone {
            let clients = link.lock().sessions.cut_off(&link.name);
            self.retire(&link);
            self.tell(&link.name, LinkEvent::Lost { clients });
        }
    }
}

/// Records a link in the journal.
fn put_link(journal: &Journal, link: &Link, state: &State) {
    let addr = state.sessions.relay().to_string();
    let RelayLife(life) = state.sessions.end().identity().life;
    let runs = state.sessions.runs().map(|runs| runs.pattern().as_bytes());
    let row = LinkRow { name: link.name.as_bytes(), life, addr: addr.as_bytes(), runs };
    journal.commit(|out| Row::Link(link.id, Some(row)).encode(out));
}
