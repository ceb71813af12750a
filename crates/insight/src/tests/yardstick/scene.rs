//! What was told in one scene.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use crate::testing::names_in;
use rallypoint_api::{Explanation, Severity};

/// One finding that was told.
#[derive(Debug, Clone)]
pub(in super::super) struct Telling {
    at: f64,
    is_alarm: bool,
    severity: String,
    /// When it began to hold.
    since: f64,
    /// When it was over.
    until: f64,
    id: u64,
    code: String,
    names: BTreeSet<String>,
}

impl Telling {
    pub(super) fn code(&self) -> &str {
        &self.code
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

impl Display for Telling {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { at, severity, since, code, names, .. } = self;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        write!(f, "{at:.1} {severity} since {since:.1} {code}: {}", names.join(", "))
    }
}

/// Everything that was told in a scene.
#[derive(Debug)]
pub(in super::super) struct Scene {
    /// The file and the name of the scene; none: it is not compared.
    place: Option<(String, String)>,
    /// From this second on it can be known.
    begins: f64,
    told: Vec<Telling>,
}

impl Scene {
    pub(in super::super) fn of_test() -> Self {
        Self { place: Some(super::name_of_test()), begins: 0.0, told: Vec::new() }
    }

    /// It is a row of a table.
    pub(in super::super) fn is_row(&mut self, file: &str, name: &str) {
        self.place = Some((file.into(), name.into()));
    }

    /// It is one of many random schedules, of which the alarms are kept.
    pub(in super::super) fn is_schedule(&mut self, kind: &str, number: u32) {
        self.place = Some((format!("truth_{kind}"), number.to_string()));
        self.told.retain(|told| told.is_alarm);
    }

    /// What was told so far; the rest has another judge.
    pub(in super::super) fn take(&mut self) -> Self {
        Self { place: self.place.take(), begins: self.begins, told: std::mem::take(&mut self.told) }
    }

    /// It has another judge.
    pub(in super::super) fn is_free(&mut self) {
        self.place = None;
    }

    pub(in super::super) fn is_held(&self) -> bool {
        self.place.is_some()
    }

    /// Seconds are counted from here.
    pub(in super::super) fn begins(&mut self, at: f64) {
        self.begins = at;
    }

    pub(super) fn place(&self) -> (&str, &str) {
        self.place.as_ref().map(|(file, name)| (file.as_str(), name.as_str())).expect("it is held")
    }

    /// Takes in what is told at this second; Unix time was zero at second `epoch`.
    pub(in super::super) fn tell(&mut self, at: f64, epoch: f64, said: &Explanation, aloud: bool) {
        if !said.holds && !aloud {
            let same = self.told.iter_mut().filter(|told| told.id == said.id);
            same.for_each(|told| told.until = told.until.min(at));
            return;
        }
        let names = names_in(&said.text, said.run_id.as_deref());
        let severity = format!("{:?}", said.severity).to_lowercase();
        let is_same = |told: &&Telling| told.id == said.id && told.severity == severity;
        // What is said again is told once.
        if aloud && !self.told.iter().filter(is_same).any(|told| names.is_subset(&told.names)) {
            self.told.push(Telling {
                at,
                is_alarm: said.severity > Severity::Info,
                severity,
                since: said.since + epoch,
                until: if said.holds { f64::INFINITY } else { at },
                id: said.id,
                code: said.code.clone(),
                names,
            });
        }
    }

    /// A server was restarted: what the last one said is told anew.
    pub(in super::super) fn restarts(&mut self, at: f64) {
        self.told.iter_mut().for_each(|told| (told.until, told.id) = (told.until.min(at), u64::MAX));
    }

    /// What is more than good to know.
    pub(super) fn alarms(&self) -> impl Iterator<Item = &Telling> {
        self.told.iter().filter(|told| told.is_alarm)
    }

    /// Whether this name is told as early and as loud as `before` did: since it began to hold, or in what
    /// still held.
    pub(super) fn still_tells(&self, before: &Telling, name: &str, slack: f64) -> bool {
        let (at, since) = (before.at + self.begins, before.since + self.begins);
        self.told.iter().any(|told| {
            let in_time = told.at <= at + slack && (told.at >= since.min(at) - slack || told.until >= at);
            in_time && told.is_alarm >= before.is_alarm && told.names.contains(name)
        })
    }

    pub(super) fn read(lines: &str) -> Vec<Telling> {
        lines.lines().map(|line| read(line).unwrap_or_else(|| panic!("not a finding: {line}"))).collect()
    }
}

fn read(line: &str) -> Option<Telling> {
    let (head, names) = line.split_once(": ").or_else(|| Some((line.strip_suffix(':')?, "")))?;
    let [at, severity, "since", since, code] = head.split(' ').collect::<Vec<_>>()[..] else { return None };
    Some(Telling {
        at: at.parse().ok()?,
        is_alarm: severity != "info",
        severity: severity.into(),
        since: since.parse().ok()?,
        until: f64::INFINITY,
        id: 0,
        code: code.into(),
        names: names.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect(),
    })
}

impl Display for Scene {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let begins = self.begins;
        let line =
            |told: &Telling| Telling { at: told.at - begins, since: told.since - begins, ..told.clone() };
        let mut lines: Vec<Telling> = self.told.iter().map(line).collect();
        let key = |told: &Telling| ((told.at * 10.0).round() as i64, told.to_string());
        lines.sort_by_key(key);
        lines.iter().try_for_each(|told| writeln!(f, "{}", told.to_string().trim_end()))
    }
}

#[test]
fn a_name_that_is_lost_or_late_or_only_mentioned_is_seen() {
    let said = |at, line: &str| Telling { at, ..read(line).expect("a finding") };
    let before = said(5.0, "5.0 error since 3.0 node_died: node 1");
    let tells = |told: Telling| {
        let mut scene = Scene { place: None, begins: 0.0, told: Vec::new() };
        scene.told.push(told);
        scene.still_tells(&before, "node 1", 0.3)
    };
    assert!(tells(said(5.2, "5.2 warning since 3.0 lost: node 0, node 1")), "with other words");
    assert!(tells(said(1.0, "1.0 warning since 1.0 waits: node 1")), "it still holds");
    let ended = Telling { until: 2.0, ..said(1.0, "1.0 warning since 1.0 waits: node 1") };
    assert!(!tells(ended), "it was over before");
    assert!(!tells(said(6.0, "6.0 error since 3.0 node_died: node 1")), "late");
    assert!(!tells(said(5.0, "5.0 info since 3.0 node_died: node 1")), "not as a warning");
    assert!(!tells(said(5.0, "5.0 error since 3.0 node_died: node 2")), "of another");
}
