//! What was seen of a process last, and when: the one place that says it, and the one table of what to look
//! at.
//!
//! Nothing here is a guess. Why a connection closed, and what a process does that is connected, is not seen
//! here, so it is in no sentence; where to look for that is in [`Presence::look_at`].

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::names::Names;
use crate::reason::words::if_any;
use rallypoint_protocol::ids::Elapsed;

/// What was seen of a process last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub(crate) enum Presence {
    /// Nothing, ever.
    NeverSeen,
    /// It announced itself at the gate.
    Announced,
    /// It is connected.
    Connected {
        /// How long ago it asked for something last.
        asked: Option<Elapsed>,
        /// What it waits for.
        waits: Waits,
    },
    /// It owes a sign of life.
    Silent { for_seconds: Elapsed },
    /// The link of its relay is away.
    Away {
        /// The relay's name.
        link: String,
        for_seconds: Elapsed,
    },
    /// It was given up: its host did not answer, or its link was away for too long.
    Unreachable { for_seconds: Elapsed },
    /// It said that it leaves, or took itself out of the round.
    Left { for_seconds: Option<Elapsed> },
    /// Another node took it out of the round.
    TakenOut { for_seconds: Elapsed },
    /// Its connection closed.
    Closed { for_seconds: Elapsed },
    /// It arrived at the exit barrier.
    Finished,
    /// It may have been there before the server was restarted.
    NotBack { for_seconds: Elapsed },
    /// The key does not tell which process it is.
    Unknown,
}

/// What a connected process waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Waits {
    /// Nothing here.
    Nothing,
    /// A key that does not tell who writes it.
    ForKey(String),
    /// Nothing: its last wait was answered, and it has asked for nothing since.
    Answered(Elapsed),
    /// It or another with its address and process id waits for something.
    Unclear,
    /// It came, or its last wait ended, a moment ago.
    NotKnownYet,
}

impl Presence {
    /// Connected, and waiting for nothing here.
    pub(crate) const fn idle(asked: Option<Elapsed>) -> Self {
        Self::Connected { asked, waits: Waits::Nothing }
    }

    /// Gone, in one of two ways.
    pub(crate) const fn gone(for_seconds: Elapsed, is_cut_off: bool) -> Self {
        if is_cut_off { Self::Unreachable { for_seconds } } else { Self::Closed { for_seconds } }
    }
}

impl Display for Presence {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverSeen => f.write_str("never seen"),
            Self::Announced => f.write_str("announced itself"),
            Self::Connected { asked, waits } => {
                f.write_str("connected")?;
                match (waits, asked) {
                    (Waits::Nothing, Some(ago)) => {
                        write!(f, ", asked last {ago} ago, waits for nothing here")
                    }
                    (Waits::Nothing, None) => f.write_str(", waits for nothing here"),
                    (Waits::Answered(ago), _) => {
                        write!(f, ", its wait was answered {ago} ago, and it has asked for nothing since")
                    }
                    (Waits::ForKey(key), _) => write!(f, ", waits for `{key}`"),
                    (Waits::Unclear, _) => f.write_str(", and so is another with its address and process id"),
                    (Waits::NotKnownYet, _) => f.write_str(", what it waits for is not known yet"),
                }
            }
            Self::Silent { for_seconds } => write!(f, "nothing heard for {for_seconds}"),
            Self::Away { link, for_seconds } => write!(f, "link of {link} away for {for_seconds}"),
            Self::Unreachable { for_seconds } => {
                write!(f, "given up {for_seconds} ago, as its host or link did not answer")
            }
            Self::Left { for_seconds: Some(ago) } => write!(f, "left {ago} ago"),
            Self::Left { for_seconds: None } => f.write_str("left the round"),
            Self::TakenOut { for_seconds } => {
                write!(f, "taken out of the round, last heartbeat {for_seconds} ago")
            }
            Self::Closed { for_seconds } => write!(f, "connection closed {for_seconds} ago"),
            Self::Finished => f.write_str("finished"),
            Self::NotBack { for_seconds } => {
                write!(f, "not seen since the server was restarted {for_seconds} ago")
            }
            Self::Unknown => f.write_str("the keys do not tell which process that is"),
        }
    }
}

/// What others need somebody for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// A pod at the gate.
    Pod,
    /// A node of a round.
    Node,
    /// A rank of a group.
    Rank,
}

/// A pod that is missing.
pub(crate) const MISSING_POD: &str =
    "look at each missing pod: is it scheduled, has its image come, does it reach this server's admin port?";
/// A node that is missing.
pub(crate) const MISSING_NODE: &str = "look at the pod of each missing node: is it scheduled, has its image \
                                       come, does it reach this server, has each agent its own --node-rank \
                                       (from 0 on)?";
pub(crate) const SAME_WORLD_SIZE: &str = "restart all processes of the job together with the same WORLD_SIZE \
                                          (--nnodes, --nproc-per-node); a second job needs its own store \
                                          (--listen twice, or POST /api/v1/stores)";
const MISSING_RANK: &str = "look at the process of each missing rank: has it started, does it import or load \
                            still, has it ended, does it reach this server?";
/// A pod starts its command when the gate has let it go.
pub(crate) const ANNOUNCED: &str = "look at the log of each pod that announced itself and has not come: has \
                                    its command ended, what does it do before it connects (imports, a name \
                                    look-up)?";
pub(crate) const AWAY: &str = "look whether that pod still runs, at the network between it and this server, \
                               and at the log of its relay; its clients go on when the link is back";
pub(crate) const FROZEN: &str = "look at that node: is it frozen, overloaded, or cut off from this server? \
                                 What waits for it does so until its time-out; if it does not come back, \
                                 restart all together";
/// A node that is connected and does not join.
pub(crate) const AGENT: &str = "look at that node's agent and its log: is it stopped, overloaded, or cut off \
                                from this server (--store-ports)?";
pub(crate) const DONE: &str = "what has come again meets nobody of those that are done: restart all agents \
                               of the job together, if it is to go on";
pub(crate) const CUT_OFF: &str = "look at its host and at the network: is it gone, or cut off from this \
                                  server? If the others do not go on by themselves, restart all together";
pub(crate) const GONE: &str = "look at its log and events: did it fail, was it killed or stopped? If the \
                               others do not go on by themselves, restart all together";
pub(crate) const NOT_BACK: &str = "those who had met before the restart and go on do not come again: restart \
                                   all processes of the job together; else look whether that one has \
                                   started, and reaches this server";

impl Presence {
    /// What to look at, where somebody is missed for whom this was seen last.
    pub(crate) const fn look_at(&self, place: Place) -> &'static str {
        match (self, place) {
            (Self::NeverSeen, Place::Pod) => MISSING_POD,
            (Self::NeverSeen, Place::Node) => MISSING_NODE,
            (Self::NeverSeen | Self::Unknown, Place::Rank) => MISSING_RANK,
            (Self::Announced, _) => ANNOUNCED,
            (Self::Connected { waits: Waits::ForKey(_), .. }, _) => {
                "look which part of the program should write that key, and whether all ranks go the same way \
                 there"
            }
            (Self::Connected { .. }, Place::Rank) => {
                "look at that process: is it loading or computing still, is it stopped, or have the ranks \
                 taken different ways?"
            }
            (Self::Connected { .. } | Self::Unknown, _) => AGENT,
            (Self::Silent { .. } | Self::TakenOut { .. }, _) => FROZEN,
            (Self::Away { .. }, _) => AWAY,
            (Self::Unreachable { .. }, _) => CUT_OFF,
            (Self::Closed { .. } | Self::Left { .. }, _) => GONE,
            (Self::Finished, _) => DONE,
            (Self::NotBack { .. }, _) => NOT_BACK,
        }
    }
}

/// The node or the pod of a process that is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Behind {
    /// `node`, or `pod train-2`.
    pub what: String,
    /// What was seen of it.
    pub presence: Presence,
}

/// Why a process does not write what others wait for, although it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub(crate) enum But {
    /// It has written it for others, and those who wait are none of them.
    MetBefore,
    /// It had written it, and that was dropped since.
    Dropped {
        /// Ranks whose place another process has taken.
        replaced: Names,
    },
    /// It makes its process group for another time than those who wait for it: torch counts that in each
    /// process.
    MadeOtherwise { made: u32, asked: u32 },
    /// The one with rank 0 has no ranks for it.
    NotCounted { nodes: u32 },
    /// Others are prepared for fewer ranks.
    OtherSize { ranks: u32 },
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
            Self::NotCounted { nodes: 1 } => f.write_str("node rank 0 counts on 1 node"),
            Self::NotCounted { nodes } => write!(f, "node rank 0 counts on {nodes} nodes"),
            Self::OtherSize { ranks: 1 } => f.write_str("others are prepared for 1 rank"),
            Self::OtherSize { ranks } => write!(f, "others are prepared for {ranks} ranks"),
            Self::RoundOver { how: Some(how) } => write!(f, "that round is over: {how}"),
            Self::RoundOver { how: None } => f.write_str("that was in another round, which the run has left"),
        }
    }
}

impl But {
    const fn look_at(&self) -> &'static str {
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
            Self::NotCounted { .. } => "start every node with the same --nnodes, and a --node-rank below it",
            Self::OtherSize { .. } => SAME_WORLD_SIZE,
            Self::RoundOver { .. } => {
                "look why that round ended; who waits in it ends after its time-out (--rdzv-conf \
                 read_timeout), and meets the others in the next round when it is started again"
            }
        }
    }
}

/// What was seen of a process that others wait for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sighting {
    /// Its own presence.
    pub presence: Presence,
    /// The presence of its node or pod, where nothing was seen of itself.
    pub behind: Option<Behind>,
    /// What keeps it from writing what others wait for.
    pub but: Option<But>,
    /// Processes that are connected and have told no rank: one of them may be it.
    pub candidates: Names,
}

impl From<Presence> for Sighting {
    fn from(presence: Presence) -> Self {
        Self { presence, behind: None, but: None, candidates: Names::default() }
    }
}

impl Sighting {
    pub(crate) fn but(self, but: But) -> Self {
        Self { but: Some(but), ..self }
    }

    pub(crate) fn or_one_of(self, candidates: Names) -> Self {
        Self { candidates, ..self }
    }

    /// Never seen, and of its node or pod this.
    pub(crate) fn behind(what: impl Into<String>, presence: Presence) -> Self {
        let behind = Some(Behind { what: what.into(), presence });
        Self { behind, ..Self::from(Presence::NeverSeen) }
    }

    /// Whether nothing is known of it, so that all of its kind are told as one.
    pub(crate) fn is_unseen(&self) -> bool {
        let is_unseen = matches!(self.presence, Presence::NeverSeen | Presence::NotBack { .. });
        let of_node = self.behind.as_ref().is_some_and(|behind| behind.what == NODE);
        is_unseen && !of_node || !self.candidates.is_empty()
    }

    /// Whether it was found by looking at all others.
    pub(crate) fn is_eliminated(&self) -> bool {
        let is_guessed = !matches!(
            self.presence,
            Presence::Closed { .. }
                | Presence::Unreachable { .. }
                | Presence::Away { .. }
                | Presence::Left { .. }
                | Presence::TakenOut { .. }
                | Presence::Connected { waits: Waits::ForKey(_), .. }
        );
        self.but.is_none() && is_guessed || !self.candidates.is_empty()
    }

    /// Whether nothing else is known of it.
    pub(crate) fn is_plain(&self) -> bool {
        self.but.is_none() && self.candidates.is_empty()
    }

    /// Whether it may go on at any moment.
    pub(crate) fn is_settling(&self) -> bool {
        matches!(self.presence, Presence::Connected { waits: Waits::NotKnownYet, .. }) && self.but.is_none()
    }

    pub(crate) fn look_at(&self, place: Place) -> &'static str {
        match self {
            Self { but: Some(but), .. } => but.look_at(),
            Self { candidates, .. } if !candidates.is_empty() => {
                "look at the processes that have told no rank: what do they do before they publish their \
                 address (a name look-up, the network interface, the program's own work), are they stopped, \
                 or does rank 0 wait for others that have not started?"
            }
            Self { behind: Some(behind), .. } => behind.presence.look_at(place),
            Self { presence, .. } => presence.look_at(place),
        }
    }
}

/// The node of a rank.
pub(crate) const NODE: &str = "node";

impl Display for Sighting {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { presence, behind, but, candidates } = self;
        if let (Presence::Unknown, Some(but)) = (presence, but) {
            return but.fmt(f);
        }
        write!(f, "{presence}")?;
        if let Some(Behind { what, presence }) = behind {
            write!(f, ", its {what}: {presence}")?;
        }
        if let Some(but) = but {
            write!(f, ", {but}")?;
        }
        if !candidates.is_empty() {
            write!(f, "; connected, and told no rank: {candidates}")?;
        }
        Ok(())
    }
}
