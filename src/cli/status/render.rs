//! The text of `rallypoint status`: a pure function of the documents.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use anstyle::Style;

use super::bar::Bar;
use super::text_writer::{BAD, FAINT, STRONG, Span, TextWriter, WARN, clean};
use super::words::{after_first, elapsed, names, ranges};
use super::{Details, RunKey};
use rallypoint_api::{
    Certainty, ExpectedFrom, Explanation, LinkCounts, MissingNode, Node, NodeState, RankCounts, Run, RunKind,
    RunList, RunState, RunSummary, Severity, Wait,
};
use rallypoint_protocol::ids::{Elapsed, count, counted};

/// Most names in one list; the rest is a number.
const NAMES: usize = 5;
/// Names that take more columns than this are left out of a run's first line, where ranks say as much.
const NAMES_COLUMNS: usize = 48;

/// How much is shown of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// One of several runs.
    Overview,
    /// The requested run.
    Whole,
}

impl Depth {
    const fn explanations(self) -> usize {
        if matches!(self, Self::Overview) { 3 } else { 50 }
    }

    const fn waits(self) -> usize {
        if matches!(self, Self::Overview) { 3 } else { 30 }
    }
}

/// All runs. `details` has the runs whose details were fetched.
pub(super) fn runs(list: &RunList, details: &Details, mut out: TextWriter) -> TextWriter {
    if list.runs.is_empty() {
        let clients = match list.connections {
            0 => "no client is connected to a store".to_owned(),
            n => counted(count(n), "client is connected", "clients are connected"),
        };
        let is_explained = |said: &Explanation| {
            // These are of links and ports, and tell nothing of jobs.
            const CODES: [&str; 3] = ["link_away", "lost", "wrong_port"];
            !CODES.contains(&said.code.as_str())
        };
        let mut text = format!("no runs: {clients}");
        // Some runs may have ended, or their keys have a prefix of their own; the explanations say so.
        if list.connections > 0 && !list.explanations.iter().any(is_explained) {
            text += ", and no keys show a job: the exchange of a process group has not begun, its keys have \
                     a prefix of the program's own (PrefixStore), or the run was forgotten";
        }
        out.sentence(0, 0, Style::new(), &text);
    }
    let label = list.runs.iter().map(|run| name(run).chars().count()).max().unwrap_or(0);
    for run in &list.runs {
        if !out.is_empty() {
            out.gap();
        }
        let whole = details.get(&RunKey::of(run)).map(Rc::as_ref);
        let sheet = Sheet { now: list.now, label: label.clamp(8, 32), depth: Depth::Overview };
        sheet.run(&mut out, whole.map_or(run, |whole| &whole.summary), whole);
    }
    if !list.explanations.is_empty() {
        out.gap();
        let sheet = Sheet { now: list.now, label: 8, depth: Depth::Whole };
        sheet.explanations(&mut out, &list.explanations, None);
    }
    if !list.links.is_none() {
        out.gap();
        out.sentence(0, 2, FAINT, &relays(&list.links));
    }
    if let Some(age) = age(list) {
        out.gap();
        let text =
            format!("this server was started {age} ago, without a journal: who was here before is not known");
        out.sentence(0, 2, FAINT, &text);
    }
    if list.lost_observations > 0 {
        out.gap();
        let lost = format!(
            "{} were lost because too many came at once: what is shown may be incomplete",
            counted(list.lost_observations, "observation", "observations")
        );
        out.sentence(0, 2, WARN, &lost);
    }
    out
}

/// How long ago a server without a journal was started, where that is short and somebody is missing: those
/// may have met before.
fn age(list: &RunList) -> Option<Elapsed> {
    const YOUNG: f64 = 600.0;
    let age = list.now - list.knows_since?;
    let joins = list.runs.iter().any(|run| run.state == RunState::Joining);
    (joins && (0.0..YOUNG).contains(&age)).then(|| Elapsed(Duration::from_secs_f64(age)))
}

/// The number of relays and of their clients. An explanation names the relays that are away.
fn relays(links: &LinkCounts) -> String {
    let all = links.connected.saturating_add(links.away);
    let away = match links.away {
        0 => String::new(),
        1 if all == 1 => ", which is away".to_owned(),
        away => format!(", {away} of them {} away", if away == 1 { "is" } else { "are" }),
    };
    let back = match links.resumes {
        0 => String::new(),
        times => format!("; links came back {}", counted(times, "time", "times")),
    };
    format!(
        "{} with {}{away}{back}",
        counted(all, "relay", "relays"),
        counted(links.clients, "client", "clients")
    )
}

/// One run, with all its details.
pub(super) fn run(run: &Run, mut out: TextWriter) -> TextWriter {
    let label = name(&run.summary).chars().count().clamp(8, 32);
    Sheet { now: run.now, label, depth: Depth::Whole }.run(&mut out, &run.summary, Some(run));
    out
}

/// The name of a run: `train-llm round 0`. Only torchrun's c10d and the native rendezvous have rounds.
pub(super) fn name(run: &RunSummary) -> String {
    let id = clean(&run.run_id);
    match run.kind {
        RunKind::Static | RunKind::Env | RunKind::Announced if run.round == 0 => id,
        _ => format!("{id} round {}", run.round),
    }
}

/// The state of a run in a few words.
pub(super) fn state(run: &RunSummary, now: f64) -> String {
    let (since, ago) = (elapsed(now - run.state_since), elapsed(now - run.state_since));
    let closes = run.deadline.map(|at| format!(", closes in {}", elapsed(at - now))).unwrap_or_default();
    match run.state {
        RunState::Joining if run.kind == RunKind::Announced && run.nodes.missing == Some(0) => {
            "all announced, no process has connected".to_owned()
        }
        // They may all have come: nobody has said how many there are.
        RunState::Joining if run.kind == RunKind::Env && !expects_ranks(run) => {
            format!("first seen {} ago", elapsed(now - run.started_at))
        }
        RunState::Joining => format!("joining for {}{closes}", elapsed(now - run.started_at)),
        RunState::LastCall => format!("last call for {since}{closes}"),
        RunState::Exchanging => format!("exchanging roles and addresses for {since}"),
        RunState::Running if has_lost_all(run) => "all its connections have closed".to_owned(),
        RunState::Running => published(run, since).unwrap_or_else(|| {
            let unseen = if has_unseen_workers(run, now) { ", its workers are not seen here" } else { "" };
            format!("running for {since}{unseen}")
        }),
        RunState::Restarting => format!("restarting for {since}"),
        RunState::Exiting => format!("finishing for {since}"),
        RunState::Finished => format!("finished {ago} ago"),
        RunState::Ended => format!("all its connections closed {ago} ago"),
        RunState::Closed if run.completed_at.is_none() => {
            format!("closed {ago} ago, its round was never complete")
        }
        RunState::Closed => format!("closed {ago} ago, not all nodes had finished"),
        RunState::Gone if run.kind == RunKind::Native => format!("without nodes for {since}"),
        RunState::Gone => format!("all its connections have been gone for {since}"),
    }
}

/// Whether none of the workers that the agents have started has come here: they meet in another store.
fn has_unseen_workers(run: &RunSummary, now: f64) -> bool {
    const COME_WITHIN: f64 = 10.0;
    let is_torchrun = matches!(run.kind, RunKind::C10d | RunKind::Static);
    is_torchrun && run.ranks.is_none() && now - run.state_since >= COME_WITHIN
}

/// Whether it is known how many ranks there are to be.
fn expects_ranks(run: &RunSummary) -> bool {
    run.ranks.as_ref().is_some_and(|ranks| ranks.expected.is_some())
}

/// Whether ranks without agents have all left: a moment later their run has ended.
fn has_lost_all(run: &RunSummary) -> bool {
    let gone = |ranks: &RankCounts| present_ranks(ranks) == 0 && ranks.connected == 0 && ranks.gone > 0;
    run.kind == RunKind::Env && run.ranks.as_ref().is_some_and(gone)
}

/// Ranks that have published, and have not been seen to go.
const fn present_ranks(ranks: &RankCounts) -> u32 {
    ranks.joined.saturating_add(ranks.away)
}

/// Ranks without agents, known only because all have published their addresses; or some have who tell no
/// rank, with NCCL's id for all, or each for itself for RPC.
fn published(run: &RunSummary, since: Elapsed) -> Option<String> {
    let ranks = run.ranks.as_ref().filter(|ranks| run.kind == RunKind::Env && !ranks.have_met)?;
    let present = present_ranks(ranks);
    let is_short = |expected: &u32| present > 0 && present.saturating_add(ranks.gone) < *expected;
    if ranks.expected.as_ref().is_some_and(is_short) {
        return None;
    }
    let who = if present > 0 { "all" } else { "the first" };
    Some(format!("{who} published {since} ago, whether they have met is not visible here"))
}

/// Whether no node of the complete round sends heartbeats: `rallypoint join` exits when the round is
/// complete.
fn is_without_heartbeats(run: &RunSummary, whole: Option<&Run>) -> bool {
    let nodes = || whole.iter().flat_map(|whole| &whole.participants);
    let mut joined = nodes().filter(|node| node.state == NodeState::Joined).peekable();
    let is_group = run.kind == RunKind::Native && run.state == RunState::Running && joined.peek().is_some();
    is_group && joined.all(|node| node.last_heartbeat.is_none())
}

/// The number of nodes: `3/4 nodes`, `50/48:64 nodes`, `3/? nodes`.
pub(super) fn nodes(run: &RunSummary) -> String {
    let joined = present(run);
    match run.nodes.expected {
        Some(n) if n.min == n.max => format!("{joined}/{} nodes", n.min),
        Some(n) => format!("{joined}/{}:{} nodes", n.min, n.max),
        None => format!("{joined}/? nodes"),
    }
}

/// The nodes in the round, and the nodes that left it to wait for the next round, as far as there are places.
fn present(run: &RunSummary) -> u32 {
    let nodes = &run.nodes;
    let places = nodes.expected.map_or(u32::MAX, |it| it.max.saturating_sub(nodes.joined));
    let again = if run.state == RunState::Restarting { nodes.waiting.min(places) } else { 0 };
    nodes.joined.saturating_add(again)
}

/// The layout for the runs of one text.
struct Sheet {
    now: f64,
    /// The width of the label before a bar.
    label: usize,
    depth: Depth,
}

impl Sheet {
    fn run(&self, out: &mut TextWriter, run: &RunSummary, whole: Option<&Run>) {
        self.head(out, run, whole);
        if run.kind != RunKind::Env {
            self.ranks(out, run, whole);
        }
        self.exit(out, run, whole);
        let explanations = whole.map_or(run.explanation.as_slice(), |whole| &whole.explanations);
        self.explanations(out, explanations, Some(run));
        let Some(whole) = whole else { return };
        self.waits(out, &whole.waits);
        if let Some(store) = &whole.workers_store {
            out.sentence(2, 4, FAINT, &format!("its workers were told to meet at {}", clean(store)));
        }
        if let Some(server) = &whole.debug_server {
            out.sentence(2, 4, FAINT, &format!("stacks of its ranks: http://{}", clean(server)));
        }
        if self.depth == Depth::Whole {
            last_to_come(out, &whole.participants);
            timeline(out, whole);
        }
    }

    fn head(&self, out: &mut TextWriter, run: &RunSummary, whole: Option<&Run>) {
        let name_style = if run.state.is_over() { FAINT } else { STRONG };
        let name = name(run);
        let pad = " ".repeat(self.label.saturating_sub(name.chars().count()));
        let mut pieces = vec![vec![Span::new(name_style, name + &pad)]];
        if run.kind == RunKind::Env {
            pieces.extend(rank_bar(run, out.width()));
        } else {
            let had = present(run).saturating_add(run.nodes.gone);
            let total = match (run.nodes.expected, run.state) {
                (Some(n), RunState::Joining) => Some(n.min),
                (Some(n), RunState::LastCall) => Some(n.max),
                (Some(n), _) => Some(n.min.max(had)),
                (None, _) => None,
            };
            let mut bar = Bar::new(had, run.nodes.gone, total, out.width()).spans();
            bar.push(Span::plain(format!(" {}", nodes(run))));
            pieces.push(bar);
        }
        match self.missing(run, whole) {
            Some(missing) => pieces.push(vec![Span::new(WARN, missing)]),
            None if is_without_heartbeats(run, whole) => {
                let since = elapsed(self.now - run.state_since);
                let text = format!("complete for {since}, whether its nodes are there is not known");
                pieces.push(vec![Span::plain(text)]);
            }
            None => pieces.push(vec![Span::plain(state(run, self.now))]),
        }
        for (n, style, what) in [
            (run.nodes.gone, BAD, "gone"),
            (run.nodes.waiting, Style::new(), "waiting for the next round"),
            (run.nodes.earlier, Style::new(), "not joined again"),
            (run.nodes.redundant, Style::new(), "beyond the maximum"),
            (run.nodes.finished, Style::new(), "finished in the round before"),
        ] {
            if n > 0 {
                pieces.push(vec![Span::new(style, format!("{what}: {n}"))]);
            }
        }
        if run.kind == RunKind::Env {
            pieces.extend(ranks_by_state(run, whole));
        }
        if run.nodes.expected.is_none() && !expects_ranks(run) && run.state == RunState::Joining {
            pieces.push(vec![Span::new(FAINT, "how many are expected is not known")]);
        }
        out.pieces(4, pieces);
    }

    /// `missing: node 2 (train-llm-2), 41 s`, while nodes are missing.
    fn missing(&self, run: &RunSummary, whole: Option<&Run>) -> Option<String> {
        let missing = run.nodes.missing.filter(|&n| n > 0 && !run.state.is_over())?;
        let nodes = whole.map_or(&[][..], |whole| &whole.missing);
        let known: Vec<String> = nodes
            .iter()
            .filter_map(|node| match (node.rank, node.name.as_deref().map(clean)) {
                // Without a better name, the rank is the name.
                (Some(rank), Some(name)) if name != format!("node {rank}") => {
                    Some(format!("node {rank} ({name})"))
                }
                (Some(rank), _) => Some(format!("node {rank}")),
                (None, name) => name,
            })
            .collect();
        let is_long = known.iter().map(String::len).sum::<usize>() > NAMES_COLUMNS;
        let ranks: Vec<u64> = nodes.iter().filter_map(|node| Some(node.rank?.into())).collect();
        let who = if known.is_empty() {
            counted(missing, "node", "nodes")
        } else if ranks.len() == missing as usize && (known.len() > NAMES || is_long) {
            let nodes = if ranks.len() == 1 { "node" } else { "nodes" };
            format!("{nodes} {}", ranges(ranks, NAMES))
        } else {
            names(&known, NAMES, missing as usize)
        };
        let how_long = self.missing_for(run, nodes, missing as usize > nodes.len());
        Some(format!(
            "missing: {who}{}",
            how_long.map_or_else(String::new, |how_long| format!(", {how_long}"))
        ))
    }

    /// `41 s`, or `5 s to 41 s` if some have been missing for longer. `None` if the time is not known for
    /// all.
    fn missing_for(&self, run: &RunSummary, nodes: &[MissingNode], are_more: bool) -> Option<String> {
        // A node that was there has been missing since it was last seen; any other one since the round began.
        let mut since: Vec<f64> =
            nodes.iter().map(|node| node.last_seen.unwrap_or_default().max(run.started_at)).collect();
        if are_more {
            let from_outside = [ExpectedFrom::Api, ExpectedFrom::Announced, ExpectedFrom::Flag];
            let is_from_outside = run.nodes.expected.is_some_and(|it| from_outside.contains(&it.source));
            // The nodes of a complete round had come, and nobody knows when they left.
            if run.completed_at.is_some() && !is_from_outside {
                return None;
            }
            since.push(run.started_at);
        }
        let last = since.iter().copied().reduce(f64::max)?;
        let first = since.into_iter().reduce(f64::min)?;
        let [shortest, longest] = [last, first].map(|at| elapsed(self.now - at).to_string());
        Some(if shortest == longest { longest } else { format!("{shortest} to {longest}") })
    }

    fn ranks(&self, out: &mut TextWriter, run: &RunSummary, whole: Option<&Run>) {
        let Some(ranks) = &run.ranks else { return };
        let mut pieces = vec![self.label("  ranks")];
        pieces.extend(rank_bar(run, out.width()));
        let by_state = ranks_by_state(run, whole);
        if by_state.is_empty() && ranks.gone > 0 && !run.state.is_over() {
            pieces.push(vec![Span::new(BAD, format!("{GONE}: {}", ranks.gone))]);
        }
        pieces.extend(by_state);
        out.pieces(4, pieces);
    }

    fn exit(&self, out: &mut TextWriter, run: &RunSummary, whole: Option<&Run>) {
        let Some(exit) = &run.exit else { return };
        let mut bar = Bar::new(exit.arrived, 0, exit.expected, out.width()).spans();
        let of = exit.expected.map_or_else(|| "?".into(), |n| n.to_string());
        bar.push(Span::plain(format!(" {}/{of} nodes finished", exit.arrived)));
        let mut pieces = vec![self.label("  exit"), bar];
        let still: Vec<String> = whole
            .iter()
            .flat_map(|whole| &whole.participants)
            .filter(|node| node.state == NodeState::Joined)
            .map(node_name)
            .collect();
        if !still.is_empty() && run.state == RunState::Exiting {
            pieces.push(vec![Span::plain(format!("not finished: {}", names(&still, NAMES, still.len())))]);
        }
        out.pieces(4, pieces);
    }

    fn label(&self, text: &str) -> Vec<Span> {
        vec![Span::new(FAINT, format!("{text:<width$}", width = self.label))]
    }

    /// What is said: the headline, and below it what a reader would act on as well.
    fn explanations(&self, out: &mut TextWriter, explanations: &[Explanation], run: Option<&RunSummary>) {
        let is_alarm = |said: &Explanation| said.severity > Severity::Info;
        // An overview omits past events that need nobody's attention, and notes beside an alarm, unless they
        // tell a wait: that may be its cause.
        let has_alarm = explanations.first().is_some_and(|first| first.holds && is_alarm(first));
        let is_closed = run.is_some_and(|run| run.state == RunState::Closed);
        let is_told = |said: &&Explanation| {
            let is_note_to_tell = said.holds && (!has_alarm || said.code.starts_with("waiting"));
            let is_close = is_closed && said.code == "run_closed";
            self.depth == Depth::Whole || is_alarm(said) || is_note_to_tell || is_close
        };
        let explanations: Vec<_> = explanations.iter().filter(is_told).collect();
        for (at, explanation) in explanations.iter().take(self.depth.explanations()).enumerate() {
            let (word, style) = match explanation.severity {
                Severity::Error => ("error", BAD),
                Severity::Warning => ("warning", WARN),
                Severity::Info => ("note", Style::new()),
            };
            let how = match explanation.certainty {
                Certainty::Seen => "",
                Certainty::Eliminated => ", by elimination",
            };
            let when = if explanation.holds {
                String::new()
            } else {
                format!(", {} ago", elapsed(self.now - explanation.since))
            };
            let style = if explanation.holds { style } else { style.dimmed() };
            let text = clean(&explanation.text);
            let text = run.map_or(text.as_str(), |run| without_subject(&text, run));
            out.sentence(2, 4, style, &format!("{word}{how}{when}: {text}"));
            // What has happened has a remedy as well, where nothing else is more important.
            if explanation.holds || self.depth == Depth::Whole || at == 0 && is_alarm(explanation) {
                let remedy = clean(&explanation.remedy);
                if !remedy.is_empty() {
                    out.sentence(4, 6, Style::new(), &format!("remedy: {remedy}"));
                }
            }
        }
        let more = explanations.len().saturating_sub(self.depth.explanations());
        if more > 0 {
            out.sentence(2, 4, FAINT, &format!("{more} more of these: see --run"));
        }
    }

    fn waits(&self, out: &mut TextWriter, waits: &[Wait]) {
        let groups = group(waits);
        for (wait, waiters) in groups.iter().take(self.depth.waits()) {
            let verb = if waiters.len() == 1 { "waits" } else { "wait" };
            let (first, more) = (wait.missing.first(), wait.missing.len().saturating_sub(1));
            let key = first.map_or_else(|| counted(wait.keys, "key", "keys"), |key| clean(key));
            let and = if more > 0 { format!(" and {more} more") } else { String::new() };
            let of = if more > 0 && wait.keys > wait.missing.len() {
                format!(" (of {} keys)", wait.keys)
            } else {
                String::new()
            };
            let at = match (wait.op.as_str(), wait.world_size) {
                ("barrier", Some(size)) => format!("at the barrier {key}, for {size} arrivals"),
                _ => format!("for {key}{and}{of}"),
            };
            let which = if more > 0 { "the first of which" } else { "which" };
            let writer = wait.writer.as_deref().map(|who| format!(", {which} {} writes", clean(who)));
            let line = format!(
                "{}: {} {verb} {at}{}",
                elapsed(wait.waited_seconds),
                names(waiters, NAMES, waiters.len()),
                writer.unwrap_or_default()
            );
            out.sentence(2, 4, Style::new(), &line);
            if let Some(reason) = &wait.reason {
                out.sentence(4, 6, FAINT, &clean(reason));
            }
        }
        let more = groups.len().saturating_sub(self.depth.waits());
        if more > 0 {
            out.sentence(2, 4, FAINT, &counted(more, "more kind of wait", "more kinds of waits"));
        }
    }
}

/// What is said of a run without its name, which stands above.
fn without_subject<'t>(text: &'t str, run: &RunSummary) -> &'t str {
    let without = |subject: String, end| text.strip_prefix(&subject)?.strip_prefix(end);
    let (round, run) = (name(run), clean(&run.run_id));
    // What is said of another round keeps that round's number.
    let said = without(round, ": ").or_else(|| without(run.clone(), ": ")).or_else(|| without(run, " "));
    said.unwrap_or(text)
}

/// What ranks are that are gone: their processes may go on.
pub(super) const GONE: &str = "disconnected";

/// `missing: ranks 2, 5-7`, `disconnected: rank 3`. A bare number could be taken for how many.
fn ranks_by_state(run: &RunSummary, whole: Option<&Run>) -> Vec<Vec<Span>> {
    let grid = whole.and_then(|whole| whole.rank_grid.as_ref()).filter(|_| !run.state.is_over());
    let Some(grid) = grid else { return Vec::new() };
    let those = |state: char| {
        let numbers = (0_u64..).zip(grid.states.chars());
        ranges(numbers.filter(|&(_, c)| c == state).map(|(rank, _)| rank), NAMES)
    };
    // Before a rank has published its number, nobody knows which ranks are present.
    let has_untold = run.ranks.as_ref().is_some_and(|ranks| ranks.joined == 0 && ranks.connected > 0);
    let missing = if has_untold { "not published" } else { "missing" };
    [('.', WARN, missing), ('o', WARN, "without an address"), ('a', WARN, "link away"), ('x', BAD, GONE)]
        .into_iter()
        .map(|(state, style, what)| (those(state), style, what))
        .filter(|(numbers, ..)| !numbers.is_empty())
        .map(|(numbers, style, what)| {
            let ranks = if numbers.contains([',', '-']) { "ranks" } else { "rank" };
            vec![Span::new(style, format!("{what}: {ranks} {numbers}"))]
        })
        .collect()
}

/// The bar of the ranks, with its numbers.
fn rank_bar(run: &RunSummary, width: usize) -> Option<Vec<Span>> {
    let ranks = run.ranks.as_ref()?;
    let published = ranks.joined.saturating_add(ranks.gone);
    // In a run that has ended all ranks are gone; the number of its ranks is what counts.
    let has_ended = matches!(run.state, RunState::Finished | RunState::Ended);
    let (shown, gone) = if has_ended { (published, 0) } else { (ranks.joined, ranks.gone) };
    let mut bar = Bar::new(published, gone, ranks.expected, width).spans();
    let of = ranks.expected.map_or_else(|| "?".into(), |n| n.to_string());
    // NCCL ranks above 0 do not publish their number, so only their connections can be counted.
    let connected = if ranks.connected > ranks.joined {
        format!(", {}", counted(ranks.connected, "process", "processes"))
    } else {
        String::new()
    };
    bar.push(Span::plain(format!(" {shown}/{of} ranks{connected}")));
    Some(bar)
}

fn node_name(node: &Node) -> String {
    let name = clean(&node.name);
    match node.rank {
        Some(rank) if name != format!("node {rank}") => format!("node {rank} ({name})"),
        _ => name,
    }
}

fn last_to_come(out: &mut TextWriter, participants: &[Node]) {
    let mut late: Vec<(&Node, f64)> =
        participants.iter().filter_map(|node| Some((node, node.after_seconds?))).collect();
    late.sort_by(|a, b| b.1.total_cmp(&a.1));
    let late: Vec<String> = late
        .iter()
        .take(NAMES)
        .map(|(node, after)| format!("{} {}", node_name(node), after_first(*after)))
        .collect();
    if late.len() > 1 {
        out.sentence(2, 4, Style::new(), &format!("last to join: {}", late.join(", ")));
    }
}

fn timeline(out: &mut TextWriter, run: &Run) {
    const SHOWN: usize = 15;
    if run.timeline.is_empty() {
        return;
    }
    out.sentence(2, 4, FAINT, "timeline (UTC)");
    for moment in &run.timeline[run.timeline.len().saturating_sub(SHOWN)..] {
        out.sentence(4, 13, Style::new(), &format!("{} {}", time_of_day(moment.at), clean(&moment.text)));
    }
}

/// A time of day in UTC: `10:12:03`.
pub(super) fn time_of_day(unix: f64) -> String {
    /// A day in the year 9999; a later time is certainly a mistake.
    const LATEST: f64 = 253_370_764_800.0;
    let since = Duration::from_secs_f64(if unix.is_finite() { unix.clamp(0.0, LATEST) } else { 0.0 });
    let at = std::time::UNIX_EPOCH.checked_add(since).unwrap_or(std::time::UNIX_EPOCH);
    humantime::format_rfc3339_seconds(at).to_string()[11..19].to_owned()
}

/// Groups the waits for one key and one reason into one line that names all waiters.
fn group(waits: &[Wait]) -> Vec<(&Wait, Vec<String>)> {
    let mut groups: Vec<(&Wait, Vec<String>)> = Vec::new();
    let mut known = HashMap::new();
    for wait in waits {
        let who = wait.who.as_deref().or(wait.peer.as_deref()).map_or_else(|| "somebody".into(), clean);
        let same = (wait.store, &wait.op, &wait.missing, &wait.writer, &wait.reason);
        let at = *known.entry(same).or_insert(groups.len());
        match groups.get_mut(at) {
            Some((_, waiters)) => waiters.push(who),
            None => groups.push((wait, vec![who])),
        }
    }
    groups
}

#[cfg(test)]
mod tests;
