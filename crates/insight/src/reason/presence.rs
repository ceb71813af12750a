//! What was seen of a process last, and when: the one place that says it, and the one table of what to look
//! at.
//!
//! Nothing here is a guess. Why a connection closed, and what a process does that is connected, is not seen
//! here, so it is in no sentence; where to look for that is in [`Sighting::look_at`].

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::reason::names::Names;
use crate::reason::words::{all, has, if_any, if_some};
pub(crate) use rallypoint_api::Presence;
use rallypoint_protocol::ids::{Elapsed, Timestamp, counted};

/// What to look at, where somebody is missed of whom this was seen last.
const fn look_at(presence: Presence, place: Place) -> &'static str {
    match (presence, place) {
        (Presence::NeverSeen, Place::Pod) => MISSING_POD,
        (Presence::NeverSeen, Place::Node) => MISSING_NODE,
        (Presence::NeverSeen | Presence::Unknown, Place::Rank | Place::Process) => MISSING_RANK,
        (Presence::Announced, _) => ANNOUNCED,
        (Presence::Connected, Place::Rank | Place::Process) => {
            "look at that process: is it loading or computing still, is it stopped, has it ended and left \
             its connection to a child, or have the ranks taken different ways?"
        }
        (Presence::Connected | Presence::Unknown, _) => AGENT,
        (Presence::Away, _) => AWAY,
        (
            Presence::Silent | Presence::TakenOut | Presence::Unreachable | Presence::Closed | Presence::Left,
            _,
        ) => GONE,
        (Presence::Finished, _) => DONE,
        (Presence::NotBack, _) => NOT_BACK,
        (Presence::NotAgain, _) => NOT_AGAIN,
    }
}

/// What others need somebody for, and what is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// A pod at the gate.
    Pod,
    /// A node of a round, with its agent.
    Node,
    /// A rank of a group.
    Rank,
    /// A process that may have told no rank.
    Process,
}

impl Place {
    pub(crate) const fn one(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Node => "node",
            Self::Rank => "rank",
            Self::Process => "process",
        }
    }

    pub(crate) const fn many(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Node => "nodes",
            Self::Rank => "ranks",
            Self::Process => "processes",
        }
    }

    /// `1 node`, `3 nodes`.
    pub(crate) fn count(self, n: u32) -> String {
        counted(n, self.one(), self.many())
    }

    /// `3 of 8 nodes`, or `3 nodes` if the whole is not known.
    pub(crate) fn of(self, n: u32, whole: Option<u32>) -> String {
        match whole {
            Some(whole) if n <= whole => format!("{n} of {}", self.count(whole)),
            _ => self.count(n),
        }
    }

    /// `1 of 4 ranks has`, `3 ranks have`.
    pub(crate) fn have(self, n: u32, whole: Option<u32>) -> String {
        format!("{} {}", self.of(n, whole), has(n as usize))
    }

    /// The connections of all that a run or a meeting had.
    pub(crate) fn connections_of(self, n: u32) -> String {
        match n {
            1 => format!("the connection of its only {}", self.one()),
            _ => format!("the connections of {}", all(n, self.many())),
        }
    }

    /// `no node was left`, `3 of 4 nodes were left`: others may have come since.
    pub(crate) fn left(self, n: u32, whole: Option<u32>) -> String {
        match n {
            0 => format!("no {} was left", self.one()),
            n => format!("{} {} left", self.of(n, whole), if n == 1 { "was" } else { "were" }),
        }
    }
}

pub(crate) const MISSING_POD: &str =
    "look at each missing pod: is it scheduled, has its image come, does it reach this server's admin port?";
pub(crate) const MISSING_NODE: &str = "look at the pod of each missing node: is it scheduled, has its image \
                                       come, does it reach this server, has each its own node rank (from 0 \
                                       on)?";
pub(crate) const SAME_WORLD_SIZE: &str = "restart all processes of the job together with the same WORLD_SIZE \
                                          (--nnodes, --nproc-per-node); a second job needs its own store \
                                          (--listen twice, or POST /api/v1/stores)";
const MISSING_RANK: &str = "look at the process of each missing rank: has it started, does it import or load \
                            still, has it ended, does it reach this server, is WORLD_SIZE too large?";
/// A pod starts its command when the gate has let it go.
pub(crate) const ANNOUNCED: &str = "look at the log of each pod that announced itself and has not come: has \
                                    its command ended, what does it do before it connects (imports, a name \
                                    look-up)?";
pub(crate) const AWAY: &str = "look whether that pod still runs, at the network between it and this server, \
                               and at the log of its relay; its clients go on when the link is back";
/// A node that is connected and does not join.
pub(crate) const AGENT: &str = "look at that node's agent and its log: is it stopped, overloaded, or cut off \
                                from this server (--store-ports)?";
pub(crate) const DONE: &str = "what has come again meets nobody of those that are done: restart all of the \
                               job together, if it is to go on";
/// Who is gone, or is not heard from: why is not seen here.
pub(crate) const GONE: &str = "look at its log, its events, its host and the network: did it fail, was it \
                               killed, stopped, frozen or cut off? If the others do not go on by \
                               themselves, restart all together";
/// c10d: others took out who is connected.
pub(crate) const TAKEN_OUT: &str = "agents take out a node whose last heartbeat is 15 s old, and send none \
                                    while they wait here: look first at the one for which it waits, else \
                                    for a frozen host or a wrong clock; if need be restart all together";
pub(crate) const NOT_BACK: &str = "those who had met before the restart and go on do not come again: restart \
                                   all processes of the job together; else look whether that one has \
                                   started, and reaches this server";
const NOT_AGAIN: &str = "look whether it is started again, and what it does before it publishes (imports, \
                         locks); who meets anew needs all processes of the job: start all of them together";

/// Why a process does not write what others wait for, although it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum But {
    /// It has written it for others, and those who wait are none of them.
    MetBefore,
    /// It had written it, and that was dropped since.
    Dropped {
        /// Ranks whose place another process has taken.
        replaced: Names,
    },
    /// It has made its process group more or less often than those who wait for it.
    MadeOtherwise { made: u32, asked: u32 },
    /// The agents, or the pods, count on so many nodes or ranks, and it is none of them.
    NotCounted { by: &'static str, of: Place, all: u32 },
    /// It has gone and come again so often.
    CameAgain { times: u32 },
    /// The key belongs to a round that is over.
    RoundOver { how: Option<String> },
}

impl Display for But {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::MetBefore => f.write_str("it has written that for others before"),
            Self::Dropped { replaced } => {
                let of = if_any("; come in the place of another process: ", replaced);
                write!(f, "what it had published was dropped{of}")
            }
            Self::MadeOtherwise { made, asked } => write!(
                f,
                "it makes its process group for time number {made}, and those who wait for it for time \
                 number {asked}"
            ),
            Self::NotCounted { by, of, all } => write!(f, "the {by} count on {}", of.count(*all)),
            Self::CameAgain { times } => write!(f, "it has come and gone {times} times"),
            Self::RoundOver { how: Some(how) } => write!(f, "that round is over: {how}"),
            Self::RoundOver { how: None } => f.write_str("that was in another round, which the run has left"),
        }
    }
}

impl But {
    pub(crate) const fn look_at(&self) -> &'static str {
        match self {
            Self::MetBefore => {
                "those who have met do not wait for what comes after them: restart all processes of the job \
                 together, or give a second job its own store (--listen twice, or POST /api/v1/stores)"
            }
            Self::Dropped { .. } => {
                "it does not publish it again by itself: restart all processes of the job together"
            }
            Self::MadeOtherwise { .. } => {
                "those who have made their group more or less often never meet: start all ranks anew instead \
                 of trying again in the same process"
            }
            Self::NotCounted { .. } => {
                "start every node with the same --nnodes, and a --node-rank below it; the program has the \
                 world size that its launcher sets (WORLD_SIZE)"
            }
            Self::CameAgain { .. } => "look at that pod's log: what it runs ends soon after it has started",
            Self::RoundOver { .. } => {
                "look why that round ended; who waits in it ends after its time-out (--rdzv-conf \
                 read_timeout), and meets the others in the next round when it is started again"
            }
        }
    }
}

/// What a connected process waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Waits {
    /// Nothing here.
    Nothing,
    /// A key that does not tell who writes it.
    ForKey(String),
    /// Nothing: its last wait was answered then, and it has asked for nothing since.
    Answered(Elapsed),
    /// It or another with its address and process id waits for something.
    Unclear,
    /// It came, or its last wait ended, a moment ago.
    NotKnownYet,
}

/// What was seen of a process, and what else is known where others wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub presence: Presence,
    /// Since when; of who is connected, when it asked for something last.
    pub at: Option<Timestamp>,
    /// What it waits for itself, if it is connected.
    pub waits: Option<Waits>,
    /// Its node or pod (`node`, `pod train-2`), where nothing was seen of itself.
    pub behind: Option<(String, Box<Self>)>,
    /// What keeps it from writing what others wait for.
    pub but: Option<But>,
    /// Processes that are connected and have told no rank: one of them may be it.
    pub candidates: Names,
}

impl From<Presence> for Sighting {
    fn from(presence: Presence) -> Self {
        Self { presence, at: None, waits: None, behind: None, but: None, candidates: Names::default() }
    }
}

/// The node of a rank.
pub(crate) const NODE: &str = "node";

impl Sighting {
    /// This, seen at that time.
    pub(crate) fn at(presence: Presence, at: Timestamp) -> Self {
        Self { at: Some(at), ..Self::from(presence) }
    }

    /// Connected, and waiting for that.
    pub(crate) fn connected(asked: Option<Timestamp>, waits: Waits) -> Self {
        Self { at: asked, waits: Some(waits), ..Self::from(Presence::Connected) }
    }

    /// Connected, and waiting for nothing here.
    pub(crate) fn idle(asked: Option<Timestamp>) -> Self {
        Self::connected(asked, Waits::Nothing)
    }

    /// This keeps it from writing what others wait for. Whether it waits for nothing is another matter.
    pub(crate) fn but(self, but: But) -> Self {
        let waits = self.waits.filter(|waits| *waits != Waits::Nothing);
        Self { but: Some(but), waits, ..self }
    }

    pub(crate) fn or_one_of(self, candidates: Names) -> Self {
        Self { candidates, ..self }
    }

    /// And of its node or pod this.
    pub(crate) fn behind(self, what: impl Into<String>, seen: Self) -> Self {
        Self { behind: Some((what.into(), Box::new(seen))), ..self }
    }

    /// Whether nothing is known of it, so that all of its kind are told as one.
    pub(crate) fn is_unseen(&self) -> bool {
        let is_unseen = matches!(self.presence, Presence::NeverSeen | Presence::NotBack | Presence::NotAgain);
        let of_node = self.behind.as_ref().is_some_and(|(what, _)| what == NODE);
        is_unseen && !of_node || !self.candidates.is_empty()
    }

    /// Whether nothing else is known of it.
    pub(crate) fn is_plain(&self) -> bool {
        self.but.is_none() && self.candidates.is_empty()
    }

    pub(crate) fn look_at(&self, place: Place) -> &'static str {
        match self {
            Self { but: Some(but), .. } => but.look_at(),
            Self { candidates, .. } if !candidates.is_empty() => {
                "look at the processes that have told no rank: what do they do before they publish their \
                 address (a name look-up, the network interface, another group), are they stopped, or does \
                 rank 0 wait for others that have not started?"
            }
            Self { behind: Some((_, behind)), .. } => behind.look_at(place),
            Self { waits: Some(Waits::ForKey(_)), .. } => {
                "look which part of the program should write that key, and whether all ranks go the same way \
                 there"
            }
            Self { presence, .. } => look_at(*presence, place),
        }
    }

    /// In words, as it is now.
    pub(crate) fn says(&self, now: Timestamp) -> String {
        let Self { presence, at, waits, behind, but, candidates } = self;
        let ago = at.map(|at| Elapsed(now.since(at)));
        let words = match (presence, but) {
            (Presence::Unknown, Some(but)) => but.to_string(),
            (Presence::Unknown, None) => "the keys do not tell which process that is".to_owned(),
            _ => presence.words().to_owned(),
        };
        let time = |ago| match presence {
            Presence::Connected if but.is_some() || !matches!(waits, None | Some(Waits::Nothing)) => {
                String::new()
            }
            Presence::Connected => format!(", asked last {ago} ago"),
            Presence::Silent | Presence::Away => format!(" for {ago}"),
            Presence::TakenOut => format!(", last heartbeat {ago} ago"),
            Presence::Unreachable => format!(", {ago} ago"),
            _ => format!(" {ago} ago"),
        };
        let waits = if_some(waits.as_ref(), |waits| match waits {
            Waits::Nothing => ", waits for nothing here".to_owned(),
            Waits::ForKey(key) => format!(", waits for `{key}`"),
            Waits::Answered(ago) => {
                format!(", its wait was answered {ago} ago, and it has asked for nothing since")
            }
            Waits::Unclear => ", and so is another with its address and process id".to_owned(),
            Waits::NotKnownYet => ", what it waits for is not known yet".to_owned(),
        });
        let behind = if_some(behind.as_ref(), |(what, seen)| format!(", its {what}: {}", seen.says(now)));
        let but = but.as_ref().filter(|_| *presence != Presence::Unknown);
        let but = if_some(but, |but| format!(", {but}"));
        let candidates = if_any("; connected, and told no rank here: ", candidates);
        format!("{words}{}{waits}{behind}{but}{candidates}", if_some(ago, time))
    }
}
