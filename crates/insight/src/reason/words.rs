//! The words: each reason's sentence.

use std::fmt::{self, Display, Formatter};

use super::values::{Arrival, TakenOut, Unit};
use super::{Names, Reason, Survivors};
use rallypoint_api::ExpectedFrom;
use rallypoint_protocol::ids::{Elapsed, counted};
use rallypoint_rendezvous::Fact;

/// A rank that has ended so often before all have met is in a loop.
const CRASH_LOOP: u32 = 3;

/// `1 node has`, `3 nodes have`.
fn have(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one} has") } else { format!("{n} {many} have") }
}

pub(super) fn clients(n: usize) -> String {
    format!("{} {}", counted(n, "process", "processes"), have_waited(n))
}

/// For how long some have waited: the time is that of the first, and the others may have come later.
const fn have_waited(n: usize) -> &'static str {
    if n == 1 { "has waited" } else { "have waited up to" }
}

fn of_expected(joined: u32, expected: Option<u32>) -> String {
    match expected {
        Some(expected) if joined <= expected => format!("{joined} of {}", Unit::Node.count(expected)),
        _ => Unit::Node.count(joined),
    }
}

const fn are(n: usize) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

const fn has(n: usize) -> &'static str {
    if n == 1 { "has" } else { "have" }
}

/// `3 of 8`, or `3` if the whole is not known.
fn of_whole(n: u32, whole: Option<u32>) -> String {
    match (n, whole) {
        (0, Some(whole)) => format!("none of {whole}"),
        (_, Some(whole)) => format!("{n} of {whole}"),
        (0, None) => "none".into(),
        (_, None) => n.to_string(),
    }
}

/// `n` nodes are missing: their names as far as they are known, else the nodes that are there.
fn who_is_missing(n: usize, missing: &Names, present: &Names, waited: Elapsed) -> String {
    match missing.count() {
        0 => {
            let there = present.count();
            format!("{n} {} been missing for {waited}; there {} {present}", has(n), are(there))
        }
        known if known < n => format!("{n} have been missing for {waited}, {missing} among them"),
        known => format!("{missing} {} been missing for {waited}", has(known)),
    }
}

/// For how long the first of those that have joined waits: the others may have come later.
fn waits_since(joined: u32, first: Elapsed) -> String {
    match joined {
        1 => format!(" and waited {first}"),
        _ => format!(", and the first has waited {first}"),
    }
}

/// `both nodes`, `all 3 nodes`.
fn all(n: u32, unit: &str) -> String {
    if n == 2 { format!("both {unit}") } else { format!("all {n} {unit}") }
}

fn the_link(links: &Names) -> &'static str {
    if links.count() == 1 { "the link" } else { "the links" }
}

/// How often one of them has ended by now, if that is a loop.
fn in_a_loop(times: u32) -> String {
    if times < CRASH_LOOP { String::new() } else { format!(", one of them {times} times by now") }
}

/// Why victims of others ended.
fn after_giving_up(gave_up: bool, those: &Names) -> &'static str {
    match (gave_up, those.count()) {
        (false, _) => "",
        (true, 1) => ", after it had given up on another",
        (true, _) => ", after they had given up on others",
    }
}

/// `1 of 4 ranks has`, `1 rank has`, `3 ranks have`.
fn of_ranks(n: u32, whole: Option<u32>) -> String {
    match whole {
        Some(whole) => format!("{n} of {} {}", counted(whole, "rank", "ranks"), has(n as usize)),
        None => have(n as usize, "rank", "ranks"),
    }
}

/// The other processes of a run in which some wait.
fn not_there(others: &Names, ended: &Names) -> String {
    format!("{}{}", if_any("; ended: ", ended), if_any("; not there: ", others))
}

/// What follows a sentence, if there is something.
pub(super) fn if_any(before: &str, names: &Names) -> String {
    if names.is_empty() { String::new() } else { format!("{before}{names}") }
}

/// Which of the ranks before ended first, if that is known.
fn ended_first(first_ended: Option<&(String, Elapsed)>) -> String {
    first_ended.map_or_else(String::new, |(rank, before)| {
        format!("; of the ranks before {rank} ended first, {before} earlier")
    })
}

/// The words for the source of a number.
const fn says_who(from: ExpectedFrom) -> &'static str {
    match from {
        ExpectedFrom::Api => "PUT …/expect",
        ExpectedFrom::Announced => "the pods' announcements",
        ExpectedFrom::Flag => "serve --nodes",
        ExpectedFrom::Join => "the first join",
        ExpectedFrom::RoleExchange => "rank 0's role exchange",
        ExpectedFrom::RoundComplete => "the rendezvous state",
        ExpectedFrom::GlooAddress => "the ranks' addresses",
        ExpectedFrom::EarlierRound => "an earlier round",
    }
}

impl Reason {
    /// Whether it belongs to a run's ordinary course, and is the end of a sentence that begins with the run.
    const fn is_predicate(&self) -> bool {
        if let Self::Told { fact, .. } = self {
            return !fact.begins_with_a_node();
        }
        matches!(
            self,
            Self::RunStarted { .. }
                | Self::RoundComplete { .. }
                | Self::RunFinished { .. }
                | Self::RunEnded { .. }
                | Self::RunRestarted {}
                | Self::RoundIncomplete { .. }
        )
    }

    /// The sentence, about `subject` (`train-llm round 0`).
    pub fn sentence(&self, subject: Option<&str>) -> String {
        match subject {
            Some(subject) if self.is_predicate() => format!("{subject} {self}"),
            Some(subject) => format!("{subject}: {self}"),
            None => self.to_string(),
        }
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let families =
            [Self::course, Self::missing, Self::losses, Self::waits, Self::conflicts, Self::endings];
        f.write_str(&families.iter().find_map(|family| family(self)).unwrap_or_default())
    }
}

/// The sentences, by family. A test sees that each reason is in one.
impl Reason {
    /// The ordinary course of a run.
    fn course(&self) -> Option<String> {
        Some(match self {
            Self::RunStarted { who, expected, from, first_ended } => {
                let expected = match expected.zip(*from) {
                    Some((n, from)) => {
                        format!("; {} expected ({})", counted(n, "node is", "nodes are"), says_who(from))
                    }
                    None => String::new(),
                };
                format!("started: {who} is the first{expected}{}", ended_first(first_ended.as_ref()))
            }
            Self::RoundComplete { nodes, took, last, last_after, dead } => {
                let nodes = Unit::Node.count(*nodes);
                let dead = if dead.is_empty() {
                    String::new()
                } else {
                    format!("; it counts {dead}, whose connection had closed")
                };
                format!("complete: {nodes} in {took}; last: {last} (+{last_after}){dead}")
            }
            Self::RanksComplete { ranks, took, last, last_after } => {
                let all = if *ranks == 1 {
                    "its only rank has published its address after"
                } else {
                    &format!("{} have published their addresses in", all(*ranks, "ranks"))
                };
                format!("{all} {took}; last: {last} (+{last_after})")
            }
            Self::RunFinished { nodes, ran } => {
                format!("finished: {} after {ran}", Unit::Node.count(*nodes))
            }
            Self::RunEnded { processes: 1, ran, .. } => {
                format!("ended: the connection of its only process closed after {ran}")
            }
            Self::RunEnded { processes, ran, first } => {
                let first = first.as_ref().map_or_else(String::new, |(rank, before)| {
                    format!("; first: {rank}, {before} before the last")
                });
                format!(
                    "ended: the connections of {} closed after {ran}{first}",
                    all(*processes, "processes")
                )
            }
            Self::RunRestarted {} => "had finished and is started again".into(),
            Self::WorkersElsewhere { address } => format!(
                "the workers meet at {address}, a store that rank 0 hosts itself; their ranks cannot be seen here"
            ),
            Self::RoundIncomplete {
                round, text, given_up, announced, at_exit, done, apart, waited, ..
            } => {
                let given_up = given_up
                    .map_or_else(String::new, |left| format!("; what is silent is given up in {left}"));
                let done = match done {
                    0 => String::new(),
                    done => format!("; finished and left: {}", Unit::Node.count(*done)),
                };
                format!(
                    "round {round} is not complete after {waited}: {text}{given_up}{}{}{done}{}",
                    if_any("; announced, and not there: ", announced),
                    if_any("; finished, and at the exit barrier of a round before: ", at_exit),
                    if_any("; not complete either: ", apart),
                )
            }
            Self::Told { fact: Fact::Complete { round, nodes, .. }, survivors: Some(survivors), .. } => {
                let Survivors { lost, of, after } = survivors;
                format!(
                    "round {round} complete: {nodes} of {of} go on {after} later, nobody was started again; lost: {lost}"
                )
            }
            Self::Told { fact, reset, .. } => {
                let reset = reset.map_or_else(String::new, |before| {
                    format!("; an operator had closed its store with a reset {before} before")
                });
                format!("{fact}{reset}")
            }
            _ => return None,
        })
    }

    /// Nodes and pods that have not come, or came late, or are too many.
    fn missing(&self) -> Option<String> {
        Some(match self {
            Self::PodsIdle { pods, gone, unheard, silent, waited } => {
                let since = silent.map_or_else(String::new, |ago| format!(" for {ago}"));
                let unheard = match unheard {
                    0 => String::new(),
                    pods => format!("; not heard of{since}: {}", counted(*pods, "pod", "pods")),
                };
                let (pods, gone) = (counted(*pods, "pod", "pods"), if_any("; gone: ", gone));
                format!("{pods} announced, and no process connected for {waited}{gone}{unheard}")
            }
            Self::PodsMissing { announced, expected, missing, gone, refused, apart, waited } => {
                let others = refused.count().saturating_add(gone.count());
                let n = (expected.saturating_sub(*announced) as usize).saturating_sub(others);
                let n = n.max(missing.count());
                let missing = match missing.count() {
                    _ if n == 0 => String::new(),
                    known if known == n => format!("; missing: {missing}"),
                    _ => format!("; missing: {n}"),
                };
                let there = format!("{announced} of {} announced", counted(*expected, "pod", "pods"));
                let others = if_any("; announced and gone: ", gone)
                    + &if_any("; turned away: ", refused)
                    + &if_any("; announced for another run: ", apart);
                format!("{there} for {waited}{missing}{others}")
            }
            Self::NodesMissing {
                joined,
                expected: Some(expected),
                from,
                missing,
                announced,
                gone,
                connected,
                present,
                apart,
                first,
                waited,
            } => {
                let (there, are) = (of_expected(*joined, Some(*expected)), has(*joined as usize));
                let had_joined = gone.count().saturating_add(connected.count());
                let n = (expected.saturating_sub(*joined) as usize).saturating_sub(had_joined);
                let who = match n {
                    0 => waits_since(*joined, *first),
                    n => format!("; {}", who_is_missing(n, missing, present, *waited)),
                };
                let from = from.map(|from| format!(" ({expected} by {})", says_who(from)));
                let (gone, apart) = (if_any("; gone: ", gone), if_any("; not complete either: ", apart));
                let connected = if_any("; connected, and not in this round yet: ", connected);
                let announced = if_any("; ", announced);
                format!(
                    "{there} {are} joined{who}{gone}{connected}{apart}{}{announced}",
                    from.unwrap_or_default()
                )
            }
            Self::NodesMissing { joined, gone, connected, present, first, .. } => format!(
                "{} joined ({present}){} for more{}{}; nobody has said how many there should be",
                have(*joined as usize, "node", "nodes"),
                waits_since(*joined, *first),
                if_any("; gone: ", gone),
                if_any("; connected, and not in this round yet: ", connected),
            ),
            Self::RoundNotComplete { joined, expected, from, who, is_gone, waited } => {
                let joined = have(*joined as usize, "node", "nodes");
                let (from, are) = (says_who(*from), are(*expected as usize));
                let gone = if *is_gone { ", gone since" } else { "" };
                let who = if_any("; asked for another number: ", who);
                format!(
                    "{joined} joined and the round is not complete after {waited}, although {expected} by {from} {are} enough\
                     {who}{gone}"
                )
            }
            Self::NodeCameLate { node, nodes, arrival, after, joined, expected } => {
                let (there, have) = (of_expected(*joined, *expected), has(*nodes));
                let how = match arrival {
                    Arrival::First => format!("come after {after}"),
                    Arrival::Again => format!("come again after up to {after}"),
                    Arrival::Back => format!("been heard from again after {after}, and go on with the round"),
                };
                format!("{node} {have} {how}: {there} there")
            }
            Self::FewerThanExpected { formed, expected, from, left_over } => {
                let (nodes, from, left_over) =
                    (Unit::Node.count(*formed), says_who(*from), if_any("; left over: ", left_over));
                format!(
                    "the round is complete with {nodes}, but {expected} are expected by {from}{left_over}"
                )
            }
            Self::LeftOver { group, left_over, staying, dead, fewer, waited, .. } => {
                let (group, has) = (Unit::Node.count(*group), has(left_over.count()));
                let fewer = if *fewer { "; asked for fewer nodes" } else { "" };
                let (staying, dead) = (if_any("; still in it: ", staying), if_any("; gone: ", dead));
                format!(
                    "{left_over} {has} waited {waited} beside a complete round of {group}{fewer}{staying}{dead}"
                )
            }
            Self::StandsBy { spares, max_nodes, unreported, given_up, waited } => {
                let (group, has) = (Unit::Node.count(*max_nodes), has(spares.count()));
                let given_up = given_up.map_or_else(String::new, |left| {
                    format!("; came anew, and the processes of before are given up in {left}")
                });
                let unreported = match unreported {
                    0 => String::new(),
                    n => format!("; not reported since the server was restarted: {}", Unit::Node.count(*n)),
                };
                format!(
                    "{spares} {has} waited {waited} beside a round of {group}, the maximum{given_up}{unreported}"
                )
            }
            Self::WaitsForRank { node, holder, waited } => {
                format!("{node} waits {waited} for the rank of {holder}, which is still in the round")
            }
            _ => return None,
        })
    }

    /// Nodes and ranks that are gone.
    fn losses(&self) -> Option<String> {
        Some(match self {
            Self::Lost { nodes, cut_off, links, moment, left, expected, unit, gave_up, .. } => {
                let many = nodes.count() > 1;
                let how = match (*cut_off, links.is_empty()) {
                    (false, _) if many => "connections closed".to_owned(),
                    (false, _) => "connection closed".to_owned(),
                    (true, false) => {
                        format!("{} of {links} away for longer than --link-grace", the_link(links))
                    }
                    (true, true) if many => "given up, as the hosts did not answer".to_owned(),
                    (true, true) => "given up, as the host did not answer".to_owned(),
                };
                let left = match (left, expected) {
                    (0, _) => format!("no {} left", unit.count(1).trim_start_matches("1 ")),
                    (left, Some(all)) if left <= all => format!("{left} of {} left", unit.count(*all)),
                    (left, _) => format!("{} left", unit.count(*left)),
                };
                let moment = moment.map_or_else(String::new, |moment| format!(", {moment}"));
                format!("{nodes}: {how}{moment}{}; {left}", after_giving_up(*gave_up, nodes))
            }
            Self::BarrierWaits { barrier, arrived, size, there, missing, silent, gave_up, waited } => {
                let there = if there.is_empty() { String::new() } else { format!(" ({there})") };
                let (missing, silent) = (
                    if_any("; missing: ", missing),
                    if_any("; arrived, and not heard from any more: ", silent)
                        + &if_any("; arrived, and gave up: ", gave_up),
                );
                format!(
                    "the barrier `{barrier}`: {arrived} of {size} {} arrived{there} and waited {waited}{missing}{silent}",
                    if *arrived == 1 { "has" } else { "have" }
                )
            }
            Self::LinkAway { links, clients, addr, why, away, grace } => {
                let addr = addr.as_ref().map(|addr| format!(" at {addr}")).unwrap_or_default();
                let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                let has = has(links.count());
                let holds = match clients {
                    0 => String::new(),
                    _ => format!(
                        "; the server keeps the sessions of {} for {grace} (--link-grace)",
                        counted(*clients, "client", "clients")
                    ),
                };
                format!("{} of {links}{addr} {has} been away for {away}{why}{holds}", the_link(links))
            }
            Self::LinkLost { links, clients, grace } => {
                let clients = counted(*clients, "client is", "clients are");
                let was = if links.count() == 1 { "was" } else { "were" };
                format!(
                    "{} of {links} {was} away for longer than {grace} (--link-grace): {clients} disconnected",
                    the_link(links)
                )
            }
            Self::RelayRefused { relay, from, other } => {
                format!(
                    "a relay named {relay} at {from} was turned away: another of that name, at {other}, is connected"
                )
            }
            Self::NodeRemoved { nodes, by, silent, not_back, left } => {
                let not_back = if *not_back { ", before the server was restarted" } else { "" };
                let left = if *left == 0 { "no node".to_owned() } else { Unit::Node.count(*left) };
                format!(
                    "{nodes}: last heartbeat {silent} ago{not_back}, taken out of the round by {by}; {left} left"
                )
            }
            Self::NoHeartbeat { nodes, silent, taken_out } => {
                let out = match taken_out {
                    None => "",
                    Some(TakenOut::Now) => "; others have taken them out of the round",
                    Some(TakenOut::Before) => "; others had taken them out of the round before",
                };
                format!("{nodes}: connected, last heartbeat {silent} ago{out}")
            }
            Self::RankLost { ranks, then, unseen, joined, world_size, gave_up, times, go_on } => {
                let how = if ranks.count() == 1 { "connection closed" } else { "connections closed" };
                let why = after_giving_up(*gave_up, ranks);
                let again = in_a_loop(*times);
                let (then, unseen) =
                    (if_any(", and then: ", then), if_any("; of their nodes not published: ", unseen));
                let met = if *go_on { ", and had met before" } else { "" };
                let there = of_whole(*joined, *world_size);
                format!(
                    "{ranks}: {how} before all ranks had published{why}{again}{then}{unseen}; {there} left{met}"
                )
            }
            Self::WorkersRestarted { nodes, times, first_ended } => {
                let (again, first) = (in_a_loop(*times), ended_first(first_ended.as_ref()));
                format!("{nodes}: all workers ended and started again{again}{first}")
            }
            Self::AddressesDropped { ranks } => {
                let addresses = if ranks.count() == 1 { "the address" } else { "the addresses" };
                let are = are(ranks.count());
                format!(
                    "an operator reset the store before all ranks had met: {addresses} of {ranks} {are} gone"
                )
            }
            Self::EndedUnpublished { processes, port } => format!(
                "{processes} connected to the store on port {port}, counted {} there, and closed without publishing an \
                 address",
                if processes.count() == 1 { "itself" } else { "themselves" }
            ),
            Self::RanksEnded { ranks, left, since, soon } => {
                // A program may go on without its process group.
                let closed = match ranks.count() {
                    1 => "closed its connection",
                    _ => "closed their connections, the first of them",
                };
                let soon = soon.map(|soon| format!(", {soon} after all had published their addresses,"));
                let (soon, are) = (soon.unwrap_or_default(), are(*left as usize));
                let left = Unit::Process.count(*left);
                format!("{ranks} {closed} {since} ago{soon} while {left} {are} still connected")
            }
            Self::RanksMissing { came, world_size, missing, beside, waited } => {
                let came = of_ranks(*came, Some(*world_size));
                let missing = if_any("; missing: ", missing);
                let beside = if_any("; connected, and not asking for it: ", beside);
                format!("{came} come for the NCCL id, which rank 0 published {waited} ago{missing}{beside}")
            }
            Self::AllLeft { members, unit, finished, at_once, first } => {
                let first = first.as_ref().map_or_else(String::new, |first| format!("; first: {first}"));
                let everyone = all(*members, unit.many());
                let closed = match members {
                    1 => format!(
                        "the connection of its only {} closed",
                        unit.count(1).trim_start_matches("1 ")
                    ),
                    _ => format!("the connections of {everyone} closed"),
                };
                let had_finished = match (unit, finished) {
                    (Unit::Process, _) => String::new(),
                    (Unit::Node, 0) => ", and none had finished".to_owned(),
                    (Unit::Node, _) => format!(", and only {finished} had finished"),
                };
                let at_once = at_once.map_or_else(String::new, |(within, waiting)| match waiting {
                    0 => format!(" within {within}"),
                    1 => format!(" within {within}, one of them while it waited"),
                    some => format!(" within {within}, {some} of them while they waited"),
                });
                format!("{closed}{at_once}{had_finished}{first}")
            }
            Self::NotBack { who, restarted, .. } => format!(
                "{who} {} connected to the last server, and {} not come back since this one was started {restarted} ago",
                if who.count() == 1 { "was" } else { "were" },
                has(who.count()),
            ),
            Self::WatchdogFired { who } => format!("{who} reported that a collective timed out or failed"),
            _ => return None,
        })
    }

    /// What processes wait for.
    fn waits(&self) -> Option<String> {
        Some(match self {
            Self::Waiting { who, what, published, awaited, .. } => {
                let published = published.as_ref().map_or_else(String::new, |it| {
                    format!("{} published; ", of_ranks(it.joined, it.world_size))
                });
                format!("{published}{}", awaited.sentence(who, what))
            }
            Self::WaitingForProcesses {
                host,
                connected,
                ended,
                reset,
                expected,
                gone,
                missing,
                silent,
                passed,
                elsewhere,
                waiters,
                waited,
                of_agents: _,
            } => {
                let others = match waiters {
                    0 => String::new(),
                    1 => "; 1 other process waits for it".to_owned(),
                    _ => format!("; {waiters} other processes wait for it"),
                };
                let connected = match expected {
                    Some(expected) if connected >= expected => {
                        let connected = have(*connected as usize, "process", "processes");
                        format!("{connected}, as many as the others count on, so it counts on more")
                    }
                    _ => format!("{} {}", of_whole(*connected, *expected), has(*connected as usize)),
                };
                let ended = match ended {
                    0 => String::new(),
                    _ => format!(", of which {ended} {} ended", has(*ended as usize)),
                };
                let reset = reset.map_or_else(String::new, |ago| {
                    format!(
                        "; an operator reset the store {ago} ago, and who had connected before is not counted"
                    )
                });
                let gone = if_any("; gone: ", gone);
                let missing =
                    if_any(if silent.is_empty() { "; missing: " } else { "; not published: " }, missing);
                let silent = if_any("; connected, and told no rank: ", silent);
                let passed = if_any("; connected and ended without publishing anything: ", passed);
                let elsewhere = if_any("; in another store: ", elsewhere);
                format!(
                    "{host} has waited {waited} until all processes of the job have connected: {connected}{ended}\
                     {reset}{gone}{missing}{silent}{passed}{elsewhere}{others}"
                )
            }
            Self::WaitingForGroup { what, waiters, others, ended, waited, disagree: _ } => {
                format!("{} {waited} for {what}{}", clients(*waiters), not_there(others, ended))
            }
            Self::WaitingForKey { key, who, besides, similar, others, ended, absence, waited } => {
                let have_waited = have_waited(who.count());
                let similar = similar.as_ref().map_or_else(String::new, |key| format!("; `{key}` exists"));
                let others = not_there(others, ended);
                let besides = if_any(", and also for ", besides);
                format!("{who} {have_waited} {waited} for `{key}`, {absence}{besides}{similar}{others}")
            }
            Self::WaitingAtBarrier { barrier, who, size, too_large, others, ended, waited } => {
                let of = size.map_or_else(String::new, |size| format!(" of {size}"));
                let waits =
                    format!("{who} {} {waited} at the barrier `{barrier}`{of}", have_waited(who.count()));
                let are_all = if *too_large { "; no other process of the run is there" } else { "" };
                format!("{waits}{}{are_all}", not_there(others, ended))
            }
            Self::WaitCycle { members, waited, .. } => {
                format!("deadlock for {waited}: each waits for the next: {members}")
            }
            Self::StateDropped { run_id, waiters, waited } => format!(
                "{} {waited} for the rendezvous state of run {run_id}, which was dropped: an operator reset the store, or \
                 had the run forgotten",
                clients(*waiters)
            ),
            Self::StoreClosed { round, met, since } => {
                let met = match met {
                    Some(true) => ", after its ranks had met",
                    Some(false) => ", before its ranks had met",
                    None => "",
                };
                format!("an operator's reset closed the store of round {round} {since} ago{met}")
            }
            Self::GaveUp { who, key, waited, writer, missing, similar, others, ended, reset, again } => {
                let again = match (*again, who.count()) {
                    (false, _) => "",
                    (true, 1) => " and tries again",
                    (true, _) => " and try again",
                };
                let writer = match reset {
                    _ if writer.is_empty() => String::new(),
                    Some(ago) => {
                        format!("; {writer} had written it, and an operator reset the store {ago} ago")
                    }
                    None => format!("; {writer} should have written it"),
                };
                // The one that should have written it is named already.
                let is_writer = missing.count() == 1 && !writer.is_empty();
                let missing = if is_writer { String::new() } else { if_any("; missing: ", missing) };
                let similar = similar.as_ref().map_or_else(String::new, |key| format!("; `{key}` exists"));
                let others = not_there(others, ended);
                format!("{who} gave up on `{key}` after {waited}{again}{writer}{missing}{similar}{others}")
            }
            _ => return None,
        })
    }

    /// Processes that contradict each other, and what should not be there.
    fn conflicts(&self) -> Option<String> {
        Some(match self {
            Self::TorchVersionsDiffer { versions } => {
                format!("the pods have different versions of PyTorch: {versions}")
            }
            Self::DuplicateRank { what, first, second, more, others } => {
                let all = Names::of([first, second].into_iter().chain(&more.shown).cloned());
                let n = match more.count() {
                    0 => "two".to_owned(),
                    more => more.saturating_add(2).to_string(),
                };
                let others =
                    if others.is_empty() { String::new() } else { format!("; the same is so of {others}") };
                format!(
                    "{n} live processes have claimed {what}: {all}{others}; two jobs on one store, two nodes with one rank, or a process \
                     of an earlier round that was not ended"
                )
            }
            Self::TwoJobs { first, second, evidence } => {
                format!("two jobs on one store: {first} and {second} ({evidence})")
            }
            Self::TwoBackends { first, second } => {
                format!(
                    "nodes of this run use two rendezvous backends, and never meet: {first}, and {second}"
                )
            }
            Self::WorldSizesDiffer { says, ranks, other_says, others, have_met, .. } => {
                let are = are(ranks.count());
                let met = match (have_met, ranks.count()) {
                    (false, _) => "",
                    (true, 1) => " and has met",
                    (true, _) => " and have met",
                };
                format!(
                    "the ranks disagree on the world size: {ranks} {are} prepared for {}{met}, {others} for {other_says}",
                    counted(*says, "rank", "ranks")
                )
            }
            Self::NodeRankBeyond { node, rank, nodes } => {
                let nodes = Unit::Node.count(*nodes);
                format!("{node} came as node rank {rank}, but rank 0 counts on {nodes}")
            }
            Self::AnnouncementsDiffer { pod, says, other_pod, other_says } => format!(
                "the pods disagree on the number of nodes: {pod} expects {says}, {other_pod} expects {other_says}"
            ),
            Self::WrongPort { peer, protocol, port, stores, times, ago } => {
                let times = counted(usize::try_from(*times).unwrap_or(usize::MAX), "time", "times");
                let stores = if_any("; stores have ports: ", stores);
                format!(
                    "a {protocol} client at {peer} came to port {port} {times}, the last {ago} ago{stores}"
                )
            }
            Self::NnodesDiffer { newcomers, group, other } => {
                let (group, asks) =
                    (Unit::Node.count(*group), if newcomers.count() == 1 { "asks" } else { "ask" });
                format!(
                    "{newcomers} came to a complete round of {group} and {asks} for more, while {other} asks for no more: \
                     their --nnodes differ"
                )
            }
            Self::AddressUnreachable { ranks, may } => {
                let (can, it) =
                    (if *may { "may not" } else { "cannot" }, if ranks.count() == 1 { "it" } else { "them" });
                format!("{ranks}: ranks on other hosts {can} reach {it} there")
            }
            Self::UnreadableState { detail } => format!("the rendezvous state cannot be read: {detail}"),
            _ => return None,
        })
    }

    /// Runs that are closed, and nodes at the exit barrier.
    fn endings(&self) -> Option<String> {
        Some(match self {
            Self::RunIsClosed { newcomers, closed_for, by, finished } => {
                let closed = if *finished { "finished and was closed" } else { "was closed" };
                let by = by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
                format!("{newcomers} cannot join: the run {closed}{by} {closed_for} ago")
            }
            Self::ClosedIncomplete { joined, expected, missing, present, by } => {
                let was = if present.count() == 1 { "; there was " } else { "; there were " };
                let (joined, present) = (of_expected(*joined, *expected), if_any(was, present));
                let missing = if_any("; missing: ", missing);
                format!("closed by {by} at {joined} and never complete{missing}{present}")
            }
            Self::ClosedUnfinished { finished, nodes, by, running } => {
                let finished = match finished {
                    0 if *nodes == 1 => "its only node had not".to_owned(),
                    0 => format!("none of {} had", Unit::Node.count(*nodes)),
                    finished => format!("only {finished} of {} had", Unit::Node.count(*nodes)),
                };
                let running = if_any("; still in the round: ", running);
                format!("closed by {by} although {finished} finished{running}")
            }
            Self::ExitBarrier { arrived, nodes, running, taken_out, dead, not_back, silent, waited } => {
                let arrived_of = |nodes: u32| {
                    format!("{arrived} of {} {}", Unit::Node.count(nodes), has(*arrived as usize))
                };
                let have = nodes.map_or_else(|| have(*arrived as usize, "node", "nodes"), arrived_of);
                let (running, dead) =
                    (if_any("; connected, not finished: ", running), if_any("; connection closed: ", dead));
                let taken_out = if_any("; taken out of the round: ", taken_out);
                let not_back = if_any("; not back since the server was restarted: ", not_back);
                let silent = if_any("; nothing heard: ", silent);
                let others = format!("{running}{silent}{taken_out}{dead}{not_back}");
                format!("{have} finished and waited {waited} at the exit barrier{others}")
            }
            _ => return None,
        })
    }
}
