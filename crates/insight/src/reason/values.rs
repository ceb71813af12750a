//! The parts of reasons: durations, names, where a process is.

use serde::Serialize;
use std::fmt::{self, Display, Formatter};

use rallypoint_api::Severity;
use rallypoint_protocol::ids::Elapsed;
use rallypoint_rendezvous::Fact;

/// What to do where several runs would be complete together.
pub(super) const ONE_JOB: &str = "if these are one job, start every node with the same --rdzv-id and --rdzv-endpoint; else look \
                                  whether the pods of the missing nodes are scheduled and reach this server";

/// Some names, and how many more there are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Names {
    /// The first of them.
    pub shown: Vec<String>,
    /// How many are not shown.
    pub more: usize,
    /// All of them, if they are one range.
    #[serde(skip)]
    pub range: Option<Numbered>,
}

/// Names that end in numbers without a gap: `node 48`, `node 49`, …
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    what: String,
    first: u32,
    last: u32,
}

impl Numbered {
    fn parts(name: &str) -> Option<(&str, u32)> {
        let what = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name.get(what.len()..)?;
        Some((what, number.parse().ok().filter(|value: &u32| value.to_string() == number)?))
    }

    fn of(name: &str) -> Option<Self> {
        let (what, first) = Self::parts(name)?;
        Some(Self { what: what.to_owned(), first, last: first })
    }

    fn with(self, name: &str) -> Option<Self> {
        let (what, number) = Self::parts(name)?;
        let follows = what == self.what && self.last.checked_add(1) == Some(number);
        follows.then_some(Self { last: number, ..self })
    }
}

impl Display for Numbered {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { what, first, last } = self;
        // `train-48-63` could be one name.
        if what.ends_with('-') {
            write!(f, "{what}{first} to {what}{last}")
        } else {
            write!(f, "{what}{first}-{last}")
        }
    }
}

impl Names {
    /// Names in a sentence.
    const SHOWN: usize = 8;

    /// Takes the first names and counts the rest. Many names that are numbered without a gap are one range.
    pub fn of(names: impl IntoIterator<Item = String>) -> Self {
        let (mut shown, mut more) = (Vec::new(), 0_usize);
        let mut range: Option<Numbered> = None;
        for name in names {
            range = match range {
                _ if shown.is_empty() => Numbered::of(&name),
                Some(range) => range.with(&name),
                None => None,
            };
            if shown.len() < Self::SHOWN {
                shown.push(name);
            } else {
                more = more.saturating_add(1);
            }
        }
        Self { shown, more, range: range.filter(|_| more > 0) }
    }

    /// Takes the first of these and counts the rest; only the first are put into words.
    pub fn of_some<T>(all: impl IntoIterator<Item = T>, name: impl FnMut(T) -> String) -> Self {
        let mut all = all.into_iter();
        let shown = all.by_ref().take(Self::SHOWN).map(name).collect();
        Self { shown, more: all.count(), range: None }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shown.len().saturating_add(self.more)
    }
}

impl Display for Names {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(range) = &self.range {
            return range.fmt(f);
        }
        match (self.shown.split_last(), self.more) {
            (None, more) => write!(f, "{more}"),
            (Some(_), more @ 1..) => write!(f, "{} and {more} more", self.shown.join(", ")),
            (Some((last, [])), 0) => write!(f, "{last}"),
            (Some((last, rest)), 0) => write!(f, "{} and {last}", rest.join(", ")),
        }
    }
}

/// The advice for one of these, or for several.
pub(super) fn for_each(names: &Names, one: &'static str, many: &'static str) -> &'static str {
    if names.count() > 1 { many } else { one }
}

/// Why a key of a program is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Absence {
    /// Nobody has written it.
    NotWritten,
    /// It was written and deleted, or it is not known any more whether it was.
    NotThere,
    /// A client deleted it, or took its last item.
    Deleted,
    /// An operator reset the store: it may have been there before.
    Reset {
        /// How long ago.
        ago: Elapsed,
    },
}

impl Display for Absence {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWritten => f.write_str("which nobody has written"),
            Self::NotThere => f.write_str("which does not exist"),
            Self::Deleted => f.write_str("which was there: a client deleted it, or took its last item"),
            Self::Reset { ago } => write!(f, "which does not exist; an operator reset the store {ago} ago"),
        }
    }
}

/// Whether a node that comes had been in its round before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// It had not.
    First,
    /// It had, or another process in its place.
    Again,
    /// It was never away: others had taken it out, as nothing came of it, and it goes on with the round.
    Back,
}

/// Where nodes stand that send no heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Standing {
    /// They are in the round.
    InRound {
        /// What the others do.
        others: Others,
    },
    /// Others have taken them out of the round.
    TakenOut {
        /// The round had not been complete.
        joining: bool,
    },
    /// Others had taken them out, and they were heard from since.
    SilentAgain,
}

/// What the other nodes of a run do where some send no heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Others {
    /// They send theirs.
    Send,
    /// They wait here: agents send none then.
    Wait,
    /// Nothing comes of them either, or there are none.
    Silent,
}

/// What becomes of the place of a node that died while its round was not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Vacancy {
    /// The round needs it, or another.
    Open,
    /// Nobody has said how many nodes there should be.
    Unknown,
    /// Another process has joined in its place.
    Filled,
    /// There are as many nodes as the round needs without it.
    Spare,
    /// It had none yet: it waited for the next round.
    Waited,
    /// Nobody can have it: the others have completed the round with it.
    Counted,
}

/// Why nothing came of nodes that another one took out of their round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Silence {
    /// That is not known: their connections are open.
    Connected,
    /// They wait for something here: agents send no heartbeats then.
    Waits,
    /// The links of relays on their hosts are away.
    LinkAway {
        /// The relays' names.
        links: Names,
    },
    /// They were connected to the last server, and have not come back to this one.
    NotBack,
}

/// What was heard of a pod since it announced itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum PodSince {
    /// Nothing else.
    Nothing,
    /// Nothing, and it does not count at the gate any more.
    Silent {
        /// For how long.
        for_seconds: Elapsed,
    },
    /// Other pods have its name, and a relay of that name was turned away.
    Namesake,
    /// Its relay said that it goes: the command has ended.
    RelayLeft {
        /// How long ago.
        for_seconds: Elapsed,
    },
    /// The link of its relay is away.
    LinkAway {
        /// For how long.
        for_seconds: Elapsed,
    },
    /// The link of its relay was away for too long, and was given up.
    LinkLost {
        /// How long ago.
        for_seconds: Elapsed,
    },
}

impl PodSince {
    /// Whether none of its processes can be connected through its relay.
    pub(crate) const fn is_gone(self) -> bool {
        matches!(self, Self::RelayLeft { .. } | Self::LinkLost { .. })
    }

    /// What its relay shows.
    pub(crate) fn since_then(self) -> Option<String> {
        match self {
            Self::Nothing | Self::Silent { .. } | Self::Namesake => None,
            Self::RelayLeft { for_seconds } => Some(format!("its relay left {for_seconds} ago")),
            Self::LinkAway { for_seconds } => Some(format!("its link has been away for {for_seconds}")),
            Self::LinkLost { for_seconds } => Some(format!("its link was given up {for_seconds} ago")),
        }
    }
}

impl Display for PodSince {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("announced itself"),
            Self::Silent { for_seconds } => {
                write!(f, "announced itself, and nothing has been heard of it for {for_seconds}")
            }
            Self::Namesake => f.write_str(
                "announced itself, as others of that name did, and a relay of that name is turned away, as another has it",
            ),
            Self::RelayLeft { .. } | Self::LinkAway { .. } | Self::LinkLost { .. } => {
                write!(f, "announced itself, and {}", self.since_then().unwrap_or_default())
            }
        }
    }
}

/// What a process does for which others wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Whereabouts {
    /// It has never been seen.
    NeverCame,
    /// It has never been seen, but the pod with its rank has announced itself.
    Announced {
        /// The pod's name.
        pod: String,
        /// What was heard of that since.
        since: PodSince,
    },
    /// It has not been seen since the server was restarted: its job had met before, and may go on without the store.
    NotSinceRestart {
        /// How long ago that was.
        for_seconds: Elapsed,
    },
    /// Nobody has told this rank, and connections are there that have told none: one of them may be its.
    NotTold {
        /// The processes of those, as far as they are likely to be it.
        candidates: Names,
        /// Processes that have told a rank, and have more connections that counted themselves: containers may be alike.
        alike: Names,
        /// How long ago the connection of the last process with this rank closed.
        gone_for: Option<Elapsed>,
    },
    /// It has never been seen, and these are claimed by more than one process: one of those may be it.
    Twin {
        /// Ranks.
        claimed: Names,
    },
    /// No process tells that it is rank 0, as with NCCL; these are connected, and do not wait for its id.
    MayBe {
        /// One of them may be it.
        candidates: Names,
        /// How long ago the connection of the last rank 0 closed.
        gone_for: Option<Elapsed>,
    },
    /// It is connected and waits for nothing here: it is busy with something else.
    Busy,
    /// Its clients are away with the link of a relay: what it does meanwhile is not known.
    Away {
        /// The relay's name.
        link: String,
        /// For how long.
        for_seconds: Elapsed,
    },
    /// It came just now, or its link is back: what it waits for is not known yet.
    JustCame,
    /// It is connected, and so is another with its address and process id: one of them waits, and it is not known which.
    Alike,
    /// It waited here until just now: what it does next is not known yet.
    JustWaited,
    /// A static node or a rank that is there, and has not come again since an attempt began for which it should.
    NotAgain,
    /// It is connected, and waits itself for a key of which the server does not know who writes it.
    Waits {
        /// The key.
        key: String,
    },
    /// It is there and had written the key, which was dropped since.
    Dropped {
        /// By what.
        why: String,
    },
    /// Its connection closed this long ago.
    Gone {
        /// How long.
        for_seconds: Elapsed,
    },
    /// Contact with it was lost, and its connection was given up this long ago.
    CutOff {
        /// How long.
        for_seconds: Elapsed,
    },
    /// Its connection closed this long ago, and its round is complete: c10d takes nobody in.
    GoneForRound {
        /// How long.
        for_seconds: Elapsed,
        /// Another process has come for it.
        has_heir: bool,
        /// Contact with it was lost, and its connection was given up.
        is_cut_off: bool,
    },
    /// It makes its process group for another time than those who wait for it, as torch counts that in each process.
    MadeOtherwise {
        /// For which time it does.
        made: u32,
        /// For which time they do.
        asked: u32,
    },
    /// It has met with all others of its job before. Who waits for it is none of them.
    Met {
        /// How long ago it ended, if it has.
        ended: Option<Elapsed>,
    },
    /// It is a rank that has never been seen, and its node died this long ago.
    NodeGone {
        /// How long.
        for_seconds: Elapsed,
        /// Contact with it was lost.
        is_cut_off: bool,
    },
    /// It is a rank whose node has finished: it does not come again.
    NodeFinished,
    /// It is a rank that has never been seen, and its node was taken out of the round, as nothing comes of it.
    NodeSilent {
        /// The relay whose link is away, if that is why.
        link: Option<String>,
        /// For how long.
        for_seconds: Elapsed,
    },
    /// It is a node that the one with rank 0 does not count on.
    NotCounted {
        /// How many nodes that one counts on.
        nodes: u32,
    },
    /// Nobody has come as this rank, and those who are there disagree whether there is one.
    Disputed,
    /// A node of a native round that has written nothing in the round's store.
    Joined,
    /// A node that was in the round when it was complete, and has left it or was taken out of it.
    LeftRound,
    /// The key belongs to a round that the run has left.
    WentOn,
    /// It belongs to a round of the native rendezvous that was given up.
    RoundOver {
        /// Why.
        why: String,
    },
    /// The key does not tell who it is.
    Unknown,
}

impl Whereabouts {
    /// Of a process that is gone, or with which contact was lost, since then; nobody has taken its place.
    pub(crate) const fn gone(for_seconds: Elapsed, is_cut_off: bool) -> Self {
        if is_cut_off { Self::CutOff { for_seconds } } else { Self::Gone { for_seconds } }
    }
}

impl Display for Whereabouts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverCame => f.write_str("it has not come"),
            Self::Announced { pod, since } => write!(f, "it has not come; its pod {pod} {since}"),
            Self::NotSinceRestart { for_seconds } => write!(
                f,
                "it has not come since the server was restarted {for_seconds} ago; before that the job had met"
            ),
            Self::Twin { claimed } => {
                let are = if claimed.count() == 1 { "is" } else { "are" };
                write!(
                    f,
                    "it has not come, and {claimed} {are} claimed by several live processes: it may be one of them"
                )
            }
            Self::NotTold { candidates, alike, gone_for } => {
                match gone_for {
                    Some(gone_for) => write!(f, "its connection closed {gone_for} ago")?,
                    None => f.write_str("nobody has published it")?,
                }
                if !candidates.is_empty() {
                    let (are, have) = if candidates.count() == 1 { ("is", "has") } else { ("are", "have") };
                    write!(f, ", and {candidates} {are} connected and {have} told no rank yet")?;
                }
                if !alike.is_empty() {
                    let have = if alike.count() == 1 { "has" } else { "have" };
                    write!(
                        f,
                        ", and {alike} {have} connected once more without telling a rank, as containers do that share an \
                         address"
                    )?;
                }
                Ok(())
            }
            Self::MayBe { candidates, gone_for } => {
                match gone_for {
                    Some(gone_for) => write!(f, "its connection closed {gone_for} ago")?,
                    None => f.write_str("nobody has published it")?,
                }
                match candidates.count() {
                    1 => write!(f, "; {candidates} is connected and does not wait for it: it may be rank 0"),
                    _ => write!(f, "; {candidates} are connected and do not wait for it: one may be rank 0"),
                }
            }
            Self::Busy => {
                f.write_str("it is connected, but waits for nothing here: it is busy, stuck elsewhere, or cut off")
            }
            Self::Away { link, for_seconds } => {
                write!(f, "the link of {link} has been away for {for_seconds}, so what it does is not known")
            }
            Self::JustCame => f.write_str("it has just come"),
            Self::Alike => f.write_str(
                "it is connected, and so is another with its address and process id: which of them waits is not known",
            ),
            Self::JustWaited => f.write_str("it waited here itself until just now"),
            Self::NotAgain => f.write_str("it is there, and goes on with the attempt before"),
            Self::Waits { key } => write!(f, "it waits itself for `{key}`, which does not exist"),
            Self::Dropped { why } => write!(f, "it had published it, and it was dropped: {why}"),
            Self::NotCounted { nodes } => {
                write!(f, "node rank 0 counts on {} and has no ranks for it", Unit::Node.count(*nodes))
            }
            Self::Gone { for_seconds } => {
                write!(f, "its connection closed {for_seconds} ago, and nobody has taken its place")
            }
            Self::CutOff { for_seconds } => write!(
                f,
                "its connection was given up {for_seconds} ago, as nothing came back, and nobody has taken its place"
            ),
            Self::GoneForRound { for_seconds, has_heir, is_cut_off } => {
                let end = if *is_cut_off { "was given up" } else { "closed" };
                let why = if *is_cut_off { ", as nothing came back" } else { "" };
                let who = if *has_heir {
                    "the process that came in its place cannot join this round"
                } else {
                    "nobody can take its place in this round"
                };
                write!(f, "its connection {end} {for_seconds} ago{why}, and {who}, which is complete")
            }
            Self::MadeOtherwise { made, asked } => write!(
                f,
                "it makes its process group for time number {made}, and those who wait for it for time number {asked}"
            ),
            Self::Met { ended: None } => f.write_str("it is there, and has met with the others of its job before"),
            Self::Met { ended: Some(ago) } => {
                write!(f, "it had met with the others of its job before, and ended {ago} ago")
            }
            Self::NodeGone { for_seconds, is_cut_off: false } => {
                write!(f, "it has not come, and its node died, failed or was stopped {for_seconds} ago")
            }
            Self::NodeGone { for_seconds, is_cut_off: true } => {
                write!(f, "it has not come, and the connection of its node was given up {for_seconds} ago")
            }
            Self::NodeFinished => f.write_str("its node has finished, and does not start it again"),
            Self::NodeSilent { link, for_seconds } => {
                let why = link.as_ref().map(|link| format!(", as the link of {link} is away")).unwrap_or_default();
                write!(
                    f,
                    "it has not come; its node has sent no heartbeat for {for_seconds}{why}, and was taken out of the round"
                )
            }
            Self::Disputed => f.write_str("it may not exist, as the ranks disagree on the world size"),
            Self::Joined => f.write_str("it has joined the round, and has written nothing in the round's store"),
            Self::LeftRound => f.write_str("it was in the round, and has left it or was taken out of it"),
            Self::WentOn => f.write_str("that was in another round, and the run has gone on without it"),
            Self::RoundOver { why } => write!(f, "that round is over: {why}"),
            Self::Unknown => f.write_str("the keys do not tell which process that is"),
        }
    }
}

/// How far a run had got when a node of it died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The round was complete; what its workers do is not seen here.
    RoundComplete,
    /// Its ranks come together here, and not all had published their addresses.
    RanksComing,
    /// All ranks had published their addresses here.
    RanksComplete,
}

impl Display for Moment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RoundComplete => "after the round was complete",
            Self::RanksComing => "before all ranks had published their addresses",
            Self::RanksComplete => "while training",
        })
    }
}

/// Something in the words of the native rendezvous.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Said {
    pub(crate) code: &'static str,
    #[serde(skip)]
    pub(crate) severity: Severity,
    /// Whether it is something that is waited for.
    #[serde(skip)]
    pub(crate) waiting: bool,
    /// Whether the text goes on after the run's name; else it is a sentence about a node.
    #[serde(skip)]
    pub(crate) is_predicate: bool,
    /// What follows the run's name.
    #[serde(skip)]
    pub(crate) text: String,
    #[serde(skip)]
    pub(crate) remedy: &'static str,
}

impl Said {
    /// Nodes are missing, and these runs are not complete either: together they would be.
    pub(crate) fn is_not_complete_with(&mut self, others: &Names) {
        if self.code == "nodes_missing" {
            self.text = format!("{}; not complete either: {others}", self.text);
            self.remedy = ONE_JOB;
        }
    }

    /// What the rendezvous says, in its own words.
    pub(crate) fn of(fact: &Fact) -> Self {
        Self {
            code: fact.code(),
            severity: match (fact.is_error(), fact.is_warning()) {
                (true, _) => Severity::Error,
                (false, true) => Severity::Warning,
                (false, false) => Severity::Info,
            },
            waiting: false,
            is_predicate: !fact.begins_with_a_node(),
            text: fact.to_string(),
            remedy: fact.remedy(),
        }
    }
}

/// What a run is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Agents, one a node.
    Node,
    /// Worker processes without agents.
    Process,
}

impl Unit {
    pub(crate) fn count(self, n: u32) -> String {
        let one = match self {
            Self::Node => "node",
            Self::Process => "process",
        };
        format!("{n} {}", if n == 1 { one } else { self.many() })
    }

    pub(super) const fn many(self) -> &'static str {
        match self {
            Self::Node => "nodes",
            Self::Process => "processes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_without_a_gap_are_one_range() {
        let said = |what: &str, numbers: std::ops::RangeInclusive<u32>| {
            Names::of(numbers.map(|number| format!("{what}{number}"))).to_string()
        };
        assert_eq!(said("", 48..=63), "48-63");
        assert_eq!(said("node ", 48..=56), "node 48-56");
        assert_eq!(said("train-", 0..=4095), "train-0 to train-4095");
        assert_eq!(said("", 48..=50), "48, 49 and 50");
        let gap = (0..=3).chain(5..=12).map(|number| number.to_string());
        assert_eq!(Names::of(gap).to_string(), "0, 1, 2, 3, 5, 6, 7, 8 and 4 more");
        let padded = (0..=20).map(|number| format!("n{number:02}"));
        assert_eq!(Names::of(padded).to_string(), "n00, n01, n02, n03, n04, n05, n06, n07 and 13 more");
        assert_eq!(Names::of((0..20).map(|_| "a".to_owned())).count(), 20);
    }
}
