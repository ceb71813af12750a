//! Stories: each is its name after `= `, and what happens, step by step.
//!
//! Steps are parted by `;` or stand on lines of their own. `5x` before a line plays it five times,
//! `for 0..3:` once with each number in the place of `%`. Clients are `2`, `0..3` or `0,2`; `12:2` is client
//! 12 as rank 2. In keys and addresses `#` is the rank and `^` the client; keys may begin with `pg/`,
//! `c10d/`, `round1/` and `static/`. A verb with `@run` is of that run instead of `job`. In brackets after
//! the name: `soon` (waits are told after 3 s), `nodes 2..4` (how many are expected), `free` (the yardstick
//! does not hold it).

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::time::Duration;

use serde_json::Value;

use super::lab::{Lab, PORT, announcement, gloo};
use super::yardstick;
pub(super) use crate::testing::Checked;
use crate::{AwayLink, Expectation, LinkEvent, LinkNews, StoreOwner};
use rallypoint_api::{Explanation, LinkCounts, Severity};
use rallypoint_protocol::ids::ConnId;
use rallypoint_protocol::{PROBE, Request};
use rallypoint_rendezvous::gate::{Contact, Gates};
use rallypoint_store::Observed;

/// Seconds in which a fault is told, with the time that a wait has to last.
const WITHIN: f64 = 3.0 + 2.5;

/// These follow from the traffic of a run as a whole.
const WITHOUT_EVIDENCE: [&str; 5] =
    ["run_ended", "run_finished", "run_started", "round_complete", "two_jobs"];

/// Plays all stories of a table, whose scenes are in this file of the yardstick.
pub(super) fn stories(file: &str, table: &str) {
    stories_with(file, "", table);
}

/// With these options where a story has none.
pub(super) fn stories_with(file: &str, options: &str, table: &str) {
    stage_all(file, options, table, |lab| lab);
}

/// On this stage, around a laboratory.
pub(super) fn stage_all<S: Stage>(file: &str, options: &str, table: &str, stage: fn(Lab) -> S) {
    let stories = all(table, options);
    let failed: Vec<String> = stories.filter_map(|story| story.check(file, stage).err()).collect();
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

struct Story<'t> {
    name: &'t str,
    options: &'t str,
    lines: Vec<&'t str>,
}

fn all<'t>(table: &'t str, options: &'t str) -> impl Iterator<Item = Story<'t>> {
    table.split("\n= ").skip(1).map(move |story| {
        let mut lines = story.lines();
        let head = lines.next().expect("a name");
        let (name, options) = head.split_once(" [").unwrap_or((head, options));
        Story { name, options: options.trim_end_matches(']'), lines: lines.collect() }
    })
}

impl Story<'_> {
    fn check<S: Stage>(&self, file: &str, stage: fn(Lab) -> S) -> Checked {
        let mut lab = match self.options {
            options if options.contains("soon") => Lab::soon(),
            options => options.split_once("nodes ").map_or_else(Lab::new, |(_, nodes)| {
                let Range { start, end } = range(nodes.trim_end_matches(" free"));
                Lab::expecting(start, end)
            }),
        };
        lab.scene.is_row(file, self.name);
        let mut stage = stage(lab);
        let mut never = Vec::new();
        for line in &self.lines {
            if let Some(words) = line.strip_prefix("never ") {
                never.extend(words.split(" | "));
            } else {
                let played =
                    stage.line(line).map_err(|why| self.fail(stage.lab(), &format!("{line}: {why}")));
                if played.is_err() {
                    stage.lab().scene.is_free();
                }
                played?;
            }
        }
        let lab = stage.lab();
        let scene = lab.scene.take();
        if let Some(word) = never.into_iter().find(|word| lab.says(word)) {
            return Err(self.fail(lab, &format!("says \"{word}\"")));
        }
        if self.options.contains("free") { Ok(()) } else { yardstick::hold(&scene) }
    }

    fn fail(&self, lab: &Lab, why: &str) -> String {
        let said = lab.said.iter().map(|(at, said)| format!("\n  {at:.1} {}: {}", said.code, said.text));
        format!("{}: {why}{}", self.name, said.collect::<String>())
    }
}

/// A number, or a sum of some.
pub(super) fn number(text: &str) -> u32 {
    let one = |text: &str| text.trim().parse::<u32>().unwrap_or_else(|_| panic!("not a number: {text}"));
    text.split('+').map(one).sum()
}

/// `2..4`, or `2` alone.
fn range(text: &str) -> Range<u32> {
    match text.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(text)..number(text) + 1,
    }
}

/// Clients with their ranks.
fn those(text: &str) -> Vec<(u32, u32)> {
    let part = |part: &str| {
        let (clients, first) = part.split_once(':').unwrap_or((part, ""));
        let clients = range(clients);
        let first = if first.is_empty() { clients.start } else { number(first) };
        clients.zip(first..).collect::<Vec<_>>()
    };
    text.split(',').flat_map(part).collect()
}

/// What a path of fields leads to: through lists to all their parts.
fn look_up(value: &Value, path: &str) -> String {
    match (value, path.split_once('.').unwrap_or((path, ""))) {
        (Value::Array(all), _) => all.iter().map(|one| look_up(one, path)).collect::<Vec<_>>().join(","),
        (Value::String(text), ("", _)) => text.clone(),
        (value, ("", _)) => value.to_string(),
        (value, (field, rest)) => look_up(&value[field], rest),
    }
}

fn same(what: &str, is: &str, expected: &str) -> Checked {
    if is == expected { Ok(()) } else { Err(format!("{what} is {is}")) }
}

/// These stand on lines of their own: `says a | b` is one sentence, with its remedy, `nowhere a | b` none.
const JUDGES: [&str; 3] = ["tells ", "says ", "nowhere "];

/// What plays a story.
pub(super) trait Stage {
    fn lab(&mut self) -> &mut Lab;

    fn step(&mut self, step: &str) -> Checked;

    /// What happens in such a story.
    fn play(&mut self, steps: &str) {
        steps.lines().for_each(|line| self.line(line).unwrap_or_else(|why| panic!("{line}: {why}")));
    }

    fn line(&mut self, line: &str) -> Checked {
        let line = line.trim();
        if let Some((numbers, rest)) = line.strip_prefix("for ").and_then(|line| line.split_once(": ")) {
            let numbers = those(numbers);
            return numbers.iter().try_for_each(|(n, _)| self.line(&rest.replace('%', &n.to_string())));
        }
        if let Some((times, rest)) = line.split_once("x ")
            && let Ok(times) = times.parse::<u32>()
        {
            return (0..times).try_for_each(|_| self.line(rest));
        }
        if JUDGES.iter().any(|verb| line.starts_with(verb)) {
            return self.step(line);
        }
        line.split(';').map(str::trim).filter(|step| !step.is_empty()).try_for_each(|step| self.step(step))
    }
}

impl Stage for Lab {
    fn lab(&mut self) -> &mut Lab {
        self
    }

    #[expect(clippy::too_many_lines, reason = "one line a verb")]
    fn step(&mut self, step: &str) -> Checked {
        let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
        let (verb, run) = verb.split_once('@').unwrap_or((verb, "job"));
        let (first, words) = rest.split_once(' ').unwrap_or((rest, ""));
        let (words, place) = words.rsplit_once("at ").map_or((words, None), |(words, at)| (words, Some(at)));
        let words = words.trim();
        let last = || words.rsplit(' ').next().unwrap_or_default();
        let of = || number(last());
        let seconds = || first.parse::<f64>().unwrap_or_else(|_| panic!("seconds? {step}"));
        let fill = |text: &str, n: u32, rank: u32| {
            let text = text.replace('#', &rank.to_string()).replace('^', &n.to_string());
            let prefixes = [
                ("pg/", "/default_pg/0//".to_owned()),
                ("c10d/", format!("/torch.rendezvous.{run}.0/")),
                ("round1/", format!("/torch.rendezvous.{run}.1/")),
                ("static/", format!("/{run}/torchelastic/")),
            ];
            let long =
                prefixes.iter().find_map(|(short, long)| Some(long.clone() + text.strip_prefix(short)?));
            long.unwrap_or(text)
        };
        let keys = |n, rank| words.split(' ').map(|key| fill(key, n, rank)).collect::<Vec<_>>();
        match verb {
            "pass" => self.pass(seconds()),
            "until" => self.until(seconds()),
            "reset" => self.reset(),
            "restart" => {
                let go = if words.is_empty() { Vec::new() } else { clients(words) };
                self.restart(seconds(), &go);
            }
            "forget" => _ = self.states.remove(run),
            "own" => self.insight.own_store(PORT, StoreOwner::Run(run.into())),
            "expect" => {
                let nodes = range(first);
                let names = words.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect();
                self.insight.expect(run, Expectation { min: nodes.start, max: nodes.end, names });
            }
            "gate" => {
                let (pods, away) = rest.split_once(" away ").unwrap_or((rest, ""));
                self.gates = Gates::new(Duration::from_secs(30), 1000);
                self.play(&format!("announce@{run} {pods} {away}"));
                let snapshot = self.look_at_gate(run);
                assert_eq!(snapshot.map_or(0, |it| it.turned_away.len()), pods_of(away).len());
            }
            "runs" => {
                let runs = self.insight.documents(self.now).list(0).runs.len();
                return same("the number of runs", &runs.to_string(), rest);
            }
            "foreign" => {
                let admin = (PORT + 1, Some(vec![PORT]), "TCPStore");
                let (port, of, what) = if first == "admin" { admin } else { (PORT, None, "HTTP") };
                self.insight.foreign(port, of, [10, 0, 0, 9].into(), what, self.now);
            }
            // Client 0 hosts a store of its own, and looks so often how many have counted themselves here.
            "counts" => (0..number(first)).for_each(|_| {
                self.get(0, "init/");
                self.pass(0.2);
            }),
            "looks" => self.pauses = vec![number(first).into()],
            "announce" | "parks" | "unparks" => {
                for (pod, rank, nodes) in pods_of(rest) {
                    let said = announcement(pod, rank, nodes);
                    match verb {
                        "announce" => _ = self.gates.announce(run, &said, None, self.now),
                        "parks" => self.gates.park(run, &said, 1),
                        _ => _ = self.gates.cut(run, &said, 1, self.now),
                    }
                }
                self.look_at_gate(run);
            }
            // Time passes, while pods with these ranks are connected.
            "attended" => {
                let there = if words.is_empty() { Vec::new() } else { clients(words) };
                let is_there = |addr| there.iter().any(|&rank| announcement("", rank, 1).address == addr);
                for _ in 0..number(first) {
                    let contact = |addr| if is_there(addr) { Contact::Connected } else { Contact::None };
                    self.gates.tick(self.now, contact);
                    self.look_at_gate(run);
                    self.pass(1.0);
                }
            }
            "nogate" => self.insight.gate(run, None, self.now),
            "deaths" => return same("deaths", &self.insight.totals().node_deaths.to_string(), rest),
            "run" => self.complete_run(run, number(first)),
            // The last of them completes the round.
            "all" => {
                let Range { start, end } = range(first);
                self.join(run, start..end - 1);
                self.joins(end - 1, run, "join complete");
            }
            "exchange" => {
                self.exchange(run, number(first), number(words.split(' ').next().unwrap_or_default()), of());
            }
            // Agents with their ranks, two for each.
            "staticrun" => {
                let nodes = number(first);
                (0..nodes).rev().for_each(|n| self.static_node(n, run, n, nodes));
                self.play(&format!("pass 0.1; assign@{run} 0 {nodes}x2; pass 2"));
            }
            "gather" => self.play(&format!("rank {first} of {0}; reads {first} of {0}", of())),
            "reads" => self.read_each_other(&clients(first), of()),
            "see" => return self.see(run, rest),
            "said" => {
                return rest
                    .split(' ')
                    .try_for_each(|it| self.counts(it, |lab: &Self, code: &str| lab.texts(code).len()));
            }
            "holds" => {
                let held = |lab: &Self, code: &str| {
                    let is_it = |said: &&Explanation| said.code == code && said.holds;
                    lab.shown().iter().filter(is_it).count()
                };
                return rest.split(' ').try_for_each(|it| self.counts(it, held));
            }
            "recent" => {
                let run = serde_json::to_value(self.run(&self.only_run(run))).expect("JSON");
                let age =
                    |field: &str| run["now"].as_f64().zip(run[field].as_f64()).map(|(now, at)| now - at);
                let old: Vec<_> = rest.split(' ').filter(|it| age(it).is_none_or(|age| age >= 3.0)).collect();
                return same("old", &old.concat(), "");
            }
            "moments" => return rest.split(' ').try_for_each(|it| self.counts(it, Self::moments)),
            "errors" => {
                let errors = self.said.iter().filter(|(_, said)| said.severity == Severity::Error).count();
                return same("errors", &errors.to_string(), rest);
            }
            "away" => {
                let addr: IpAddr = first.parse().expect("an address");
                let its = self.clients.iter().filter(|(_, (_, of, _))| *of == addr).take(8);
                let its: Vec<_> = its.map(|(n, _)| (addr, 40000 + *n as u16).into()).collect();
                let link = |name: &str| AwayLink {
                    name: name.into(),
                    addr,
                    clients: its.clone(),
                    since: self.now,
                    why: Some("the relay closed the connection".into()),
                };
                let many = |name: &str| match name.split_once('#') {
                    Some((name, many)) => (0..number(many)).map(|n| link(&format!("{name}{n}"))).collect(),
                    None => vec![link(name)],
                };
                let away = words.split(' ').flat_map(many).collect();
                self.insight.links(LinkCounts::default(), away, Vec::new(), self.now);
            }
            "back" => self.insight.links(LinkCounts::default(), Vec::new(), Vec::new(), self.now),
            "link" => self.link(
                first,
                match words {
                    "left" => LinkEvent::Left,
                    "came" => LinkEvent::Came,
                    "lost" => LinkEvent::Lost { clients: 0 },
                    "lost 2" => LinkEvent::Lost { clients: 2 },
                    _ => LinkEvent::Namesake { from: [10, 0, 0, 7].into(), other: [10, 0, 0, 5].into() },
                },
            ),
            "says" | "nowhere" => {
                let has = |said: &Explanation, word| format!("{}; {}", said.text, said.remedy).contains(word);
                let is_said = match verb {
                    "says" => self.said.iter().any(|(_, said)| rest.split(" | ").all(|word| has(said, word))),
                    _ => !self.said.iter().any(|(_, said)| rest.split(" | ").any(|word| has(said, word))),
                };
                return same("that", &is_said.to_string(), "true");
            }
            "closes" => {
                let run = self.run(&self.only_run(run));
                let left = run.summary.deadline.map(|at| (at - run.now).round());
                return same("what is left", &format!("{left:?}"), &format!("Some({rest}.0)"));
            }
            // A wait of the run is shown with what holds it up.
            "explained" => {
                let is_one = self.run(&self.only_run(run)).waits.iter().any(|wait| wait.reason.is_some());
                return same("explained", &is_one.to_string(), "true");
            }
            "complains" => return same("complains", &(!self.complaints().is_empty()).to_string(), "true"),
            "quiet" => {
                let is_wait =
                    |said: &Explanation| said.severity > Severity::Info || said.code.starts_with("waiting");
                let waits = self.said.iter().filter(|(_, said)| is_wait(said)).count();
                return same("waits told", &waits.to_string(), "0");
            }
            "silent" => return same("what is complained of", &self.complaints().join("; "), ""),
            "tells" => return self.tells(rest),
            _ => {
                for (n, rank) in those(first) {
                    let at = || fill(place.unwrap_or("10.0.0.#"), n, rank);
                    match verb {
                        "leave" => self.leave(n),
                        "cut" => self.cut_off(n, Some(words).filter(|link| !link.is_empty())),
                        "cancel" => self.cancel(n),
                        "freeze" => _ = self.frozen.insert(n),
                        "join" => self.joins(n, run, "join"),
                        "agent" if place.is_some() => {
                            self.come(n, &at(), 1000 + n);
                            self.first_cas(n, run);
                        }
                        "agent" => self.agent(n, run),
                        "first" => self.first_cas(n, run),
                        "joins" => self.joins(n, run, words),
                        "cas" => self.cas(n, run, words),
                        "lock" => self.lock(n, words),
                        "exit" => self.reach_exit(n, &format!("/torch.rendezvous.{run}.0"), words == "last"),
                        "static" => self.static_node(n, run, rank, of()),
                        "assign" => {
                            let (nodes, local) = last().split_once('x').expect("nodes x local");
                            self.hand_out_ranks(n, &format!("/{run}"), number(nodes), number(local));
                        }
                        "sexit" => self.reach_exit(n, &format!("/{run}"), words == "last"),
                        "restarts" => self.restart_workers(n, run, rank),
                        "workers" => self.rank(100 + n, &format!("10.77.0.{}", 10 + n / 2), n, of() as usize),
                        "rank" => self.rank(n, &at(), rank, of() as usize),
                        "worker" => self.worker(n, &at()),
                        "publish" => self.publish(n, rank, of() as usize),
                        "elsewhere" => self.rank_elsewhere(n, of() as usize),
                        "await" => self.wait_for_rank(n, of()),
                        "met" => {
                            (0..of())
                                .for_each(|other| self.get(n, &format!("/default_pg/0//cpu//0/{other}")));
                        }
                        "come" if words.is_empty() => self.come(n, &at(), 800 + n),
                        "come" => self.come(n, &at(), of()),
                        "conn" => self.connect(n, &at(), of()),
                        "probe" => {
                            let pid = 9001;
                            self.connect(n, &at(), pid);
                            self.apply(n, &Request::Ping { nonce: pid | PROBE });
                        }
                        "listens" => {
                            let [host, ip, world] = words.split(' ').collect::<Vec<_>>()[..] else {
                                panic!("host, address and number? {step}")
                            };
                            self.worker(n, &at());
                            let value = listening(&gloo(host, number(world) as usize), host, ip);
                            self.set(n, &format!("/default_pg/0//cpu//0/{rank}"), &value);
                        }
                        "ping" => self.ping(n),
                        "as" => {
                            let (_, addr, pid) = self.clients[&of()];
                            self.come(n, &addr.to_string(), pid);
                        }
                        "wait" => {
                            let keys = keys(n, rank);
                            self.wait(n, &keys.iter().map(String::as_str).collect::<Vec<_>>());
                        }
                        "get" => self.get(n, &keys(n, rank)[0]),
                        "ask" => _ = self.asks(n, &keys(n, rank)[0]),
                        "set" => {
                            let keys = keys(n, rank);
                            let value = match keys.get(1).map(String::as_str) {
                                Some("gloo") => gloo(&format!("host{n}"), 2),
                                Some("gloo3") => gloo(&format!("host{n}"), 3),
                                Some("old") => old_gloo(),
                                Some("lazy") => gloo(&format!("host{n}"), 0),
                                Some("nccl") => vec![7; 128],
                                Some(id) if id.starts_with("nccl:") => nccl_id(&id[5..]),
                                value => value.unwrap_or("1").as_bytes().to_vec(),
                            };
                            self.set(n, &keys[0], &value);
                        }
                        "del" => self.apply(n, &Request::Delete { key: keys(n, rank)[0].as_bytes() }),
                        "add" => self.add(n, &keys(n, rank)[0], 1),
                        "take" => self.add(n, &keys(n, rank)[0], -1),
                        "count" => self.add(n, &keys(n, rank)[0], 0),
                        "barrier" => self.barrier(n, &keys(n, rank)[0], i64::from(of())),
                        _ => panic!("not a step: {step}"),
                    }
                }
            }
        }
        Ok(())
    }
}

impl Lab {
    /// The only run, or this.
    fn only_run(&self, run: &str) -> String {
        match &self.insight.documents(self.now).list(0).runs[..] {
            [only] => only.run_id.clone(),
            _ => run.to_owned(),
        }
    }

    /// Looks at fields of a run, as the API has them: of the only one, or of this.
    fn see(&self, run: &str, what: &str) -> Checked {
        let document = serde_json::to_value(self.run(&self.only_run(run))).expect("JSON");
        // A value may have spaces in it.
        let mut pairs: Vec<(&str, String)> = Vec::new();
        for word in what.split(' ') {
            match (word.split_once('='), pairs.last_mut()) {
                (Some((path, value)), _) => pairs.push((path, value.to_owned())),
                (None, Some((_, value))) => *value = format!("{value} {word}"),
                (None, None) => panic!("not a value: {word}"),
            }
        }
        pairs.iter().try_for_each(|(path, expected)| same(path, &look_up(&document, path), expected))
    }

    /// How many there are: at least one, if no number is given.
    fn counts(&self, what: &str, of: impl Fn(&Self, &str) -> usize) -> Checked {
        let (code, expected) = what.split_once('=').unwrap_or((what, ""));
        let is = of(self, code);
        match expected {
            "" if is > 0 => Ok(()),
            _ => same(code, &is.to_string(), expected),
        }
    }

    /// Each of these reads the addresses of all others, and waits for the first that is not there.
    fn read_each_other(&mut self, ranks: &[u32], world: u32) {
        for &reader in ranks {
            for other in (0..world).filter(|&other| other != reader) {
                if !ranks.contains(&other) {
                    self.wait_for_rank(reader, other);
                    break;
                }
                self.get(reader, &format!("/default_pg/0//cpu//0/{other}"));
            }
        }
    }

    /// What happens to the link of this relay.
    pub(super) fn link(&mut self, name: &str, what: LinkEvent) {
        let news = LinkNews { name: name.into(), what, at: self.now };
        self.insight.links(LinkCounts::default(), Vec::new(), vec![news], self.now);
    }

    /// A rank publishes its address in the store on the next port.
    fn rank_elsewhere(&mut self, rank: u32, world: usize) {
        let (conn, peer) = (ConnId::new(70, 70), ([10, 0, 0, rank as u8], 40000).into());
        let key = |key: &str| key.as_bytes().into();
        let came = Observed::Client { conn, peer, pid: Some(rank), key: key("init/") };
        let (key, value) =
            (key(&format!("/default_pg/0//cpu//0/{rank}")), gloo(&format!("host{rank}"), world));
        for observed in [came, Observed::Wrote { conn, key, value: value.into() }] {
            self.insight.observe(PORT + 1, self.now, observed);
        }
    }

    /// Whether a sentence has this word.
    fn says(&self, word: &str) -> bool {
        self.said.iter().any(|(_, said)| format!("{}: {}", said.code, said.text).contains(word))
    }

    /// From now on it can be known: it is told with these names in time, and shown with its evidence.
    fn tells(&mut self, what: &str) -> Checked {
        let (what, never) = what.split_once(" never ").unwrap_or((what, ""));
        let (head, names) = what.split_once(':').unwrap_or((what, ""));
        let (code, within) = head.split_once(" within ").unwrap_or((head, ""));
        let within = within.parse().unwrap_or(WITHIN);
        let known = self.seconds();
        self.scene.begins(known);
        self.pass(12.0);
        let is_it = |said: &Explanation| {
            let told = yardstick::names_in(&said.text, said.run_id.as_deref());
            let mut names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
            said.code == code && names.all(|name| told.contains(name))
        };
        let told = self.said.iter().find(|(_, said)| is_it(said)).map(|(at, _)| at - known);
        let never = never.split(" | ").filter(|word| !word.is_empty());
        if let Some(word) = never.into_iter().find(|word| self.says(word)) {
            return Err(format!("says \"{word}\""));
        }
        match told {
            None => return Err("it is not said".into()),
            Some(after) if after > within => return Err(format!("it is said after {after:.1} s")),
            Some(_) => {}
        }
        let shown = self.shown().into_iter().find(is_it).ok_or("the API does not have it")?;
        let has_none = !shown.evidence.iter().any(|evidence| evidence.peer.is_some());
        same("without evidence", &has_none.to_string(), &WITHOUT_EVIDENCE.contains(&code).to_string())
    }
}

/// A gloo address whose process listens at `ip`.
fn listening(address: &[u8], host: &str, ip: &str) -> Vec<u8> {
    let mut value = address.to_vec();
    let at = 8 + host.len() + 8;
    let (family, start, octets) = match ip.parse().expect("an address") {
        IpAddr::V4(ip) => (2, 4, ip.octets().to_vec()),
        IpAddr::V6(ip) => (10, 8, ip.octets().to_vec()),
    };
    value[at] = family;
    value[at + start..at + start + octets.len()].copy_from_slice(&octets);
    value
}

/// The id of all ranks as NCCL makes it, where rank 0 listens at `ip`.
fn nccl_id(ip: &str) -> Vec<u8> {
    let ip: Ipv4Addr = ip.parse().expect("an address");
    let mut id = [&[7; 8][..], &[2, 0, 0xa6, 0x9d], &ip.octets()].concat();
    id.resize(128, 0);
    id
}

/// What gloo of 2.1 writes for one other rank: a socket address of 128 bytes and a number.
fn old_gloo() -> Vec<u8> {
    let mut old = vec![0; 136];
    old[..8].copy_from_slice(&[2, 0, 0xa5, 0xcb, 127, 0, 0, 1]);
    old
}

/// Pods at a gate: name, node rank and number of nodes, as `a:0/2`.
fn pods_of(text: &str) -> Vec<(&str, u32, u32)> {
    let pod = |pod: &'_ str| -> Option<(usize, u32, u32)> {
        let (name, rank) = pod.rsplit_once(':')?;
        let (rank, nodes) = rank.split_once('/')?;
        Some((name.len(), rank.parse().ok()?, nodes.parse().ok()?))
    };
    let of = |text| pod(text).unwrap_or_else(|| panic!("not a pod: {text}"));
    let pods = text.split(' ').filter(|pod| !pod.is_empty());
    pods.map(|text| (of(text), text)).map(|((end, rank, nodes), text)| (&text[..end], rank, nodes)).collect()
}

fn clients(text: &str) -> Vec<u32> {
    those(text).into_iter().map(|(n, _)| n).collect()
}
