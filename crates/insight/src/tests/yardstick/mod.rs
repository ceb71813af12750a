//! The yardstick: what was said in each scene, and may not be lost: who is named, when, and how severe.
//! Wording and codes are free.
//!
//! Each [`Lab`](super::lab::Lab) of a test is a scene, under the name of the test or of the row of its table;
//! it is compared with the `.txt` file of its module when it is dropped. One line is one finding: seconds
//! since the beginning (of a fault: since it can be known), severity, since when it holds, the code, and the
//! names. `RALLYPOINT_YARDSTICK=write` writes the scenes anew: a name that is gone in the diff is a name that
//! is lost.

mod scene;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};

pub(super) use self::scene::Scene;
use self::scene::Telling;
pub(super) use crate::testing::names_in;
use crate::testing::oracle::Tally;

/// Names that were told and are not told any more, or later, and names that an alarm tells now: the scene,
/// the code that the finding had or has, the name (`*` for whatever follows), and why that is right.
const GIVEN_UP: [(&str, &str, &str, &str); 8] = [
    (
        "a rank is the first ones again when the second that claimed it has ended",
        "waiting_for_rank",
        "rank 1",
        "that it is claimed twice is said by `duplicate_rank`, in time",
    ),
    ("truth_static 31", "rank_zero_slow", "*", "`lost` and `nodes_missing` name node 0 about a second later"),
    ("truth_static 58", "rank_zero_slow", "*", "`lost` and `nodes_missing` name node 0 about a second later"),
    ("truth_static 94", "rank_zero_slow", "*", "`lost` and `nodes_missing` name node 0 about a second later"),
    (
        "truth_ranks 75",
        "waiting",
        "*",
        "rank 3 may be one of those that have told no rank: they are named as that",
    ),
    ("case *", "round_complete", "node1", "node 2 came last, with the write that completed the round"),
    (
        "*",
        "node_came_late",
        "*",
        "what is missing still is said by what holds, and who came last by `round_complete`",
    ),
    ("truth_ranks *", "ranks_ended", "*", "it is no alarm any more: whether they failed cannot be seen"),
];

/// A finding may be told so much later, in seconds: what is seen is looked at once a second.
const SLACK: f64 = 0.3;

thread_local! {
    static SCENES: RefCell<BTreeMap<String, usize>> = const { RefCell::new(BTreeMap::new()) };
}

/// The file and the name of the scene that begins in this test.
fn name_of_test() -> (String, String) {
    let thread = std::thread::current();
    let path = thread.name().and_then(|name| name.strip_prefix("tests::"));
    let path = path.expect("a test runs in a thread that has its name");
    let (module, test) = path.split_once("::").expect("a test of a module");
    let number = SCENES.with_borrow_mut(|scenes| {
        let number = scenes.entry(path.to_owned()).or_default();
        *number += 1;
        *number
    });
    let name = if number == 1 { test.to_owned() } else { format!("{test} ({number})") };
    (module.to_owned(), name)
}

/// All scenes of a file, by name.
fn scenes_of(text: &str) -> BTreeMap<&str, &str> {
    let scenes = text.split("== ").skip(1);
    scenes.map(|scene| scene.split_once('\n').expect("a scene has a line with its name")).collect()
}

/// Compares a scene with what is written of it, or writes it.
pub(super) fn hold(scene: &Scene) -> Result<(), String> {
    let (file, name) = scene.place();
    let path = format!("{}/src/tests/yardstick/{file}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("RALLYPOINT_YARDSTICK").is_some() {
        write(&path, name, &scene.to_string());
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let scenes = scenes_of(&text);
    // What is a row now may have been a test of its own.
    let test = name.replace(' ', "_").replace("_(", " (");
    let of_test = || scenes.iter().find(|(of, _)| of.rsplit("::").next() == Some(&*test)).map(|(_, it)| it);
    let before = scenes.get(name).or_else(of_test).map(|before| Scene::read(before));
    let before = before.ok_or(format!("{file}.txt has no scene {name}: RALLYPOINT_YARDSTICK=write"))?;
    let mut lost: Vec<String> = before
        .iter()
        .flat_map(|told| told.names().map(move |name| (told, name)))
        .filter(|(told, name)| !scene.still_tells(told, name, SLACK) && !is_given_up(scene, told, name))
        .map(|(told, name)| format!("  {name}: {told}"))
        .collect();
    // Nobody is blamed of whom nothing was said before.
    let news = scene.alarms().flat_map(|told| told.names().map(move |name| (told, name)));
    let known = |name: &str| before.iter().any(|told| told.names().any(|other| other == name));
    let news = news.filter(|(told, name)| !known(name) && !is_given_up(scene, told, name));
    lost.extend(news.map(|(told, name)| format!("  {name} is new: {told}")));
    if lost.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{name}: not told any more, or later, or not as a warning:\n{}\nbut\n{scene}",
        lost.join("\n")
    ))
}

/// Compares how often it was not said who is waited for, or was lost, in random schedules of this kind.
pub(super) fn hold_unsaid(kind: &str, tally: &Tally) -> Result<(), String> {
    let path = format!("{}/src/tests/yardstick/unsaid.txt", env!("CARGO_MANIFEST_DIR"));
    let counts = tally.to_string();
    if std::env::var_os("RALLYPOINT_YARDSTICK").is_some() {
        write(&path, kind, &counts);
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let before = scenes_of(&text).get(kind).copied().unwrap_or_default().to_owned();
    let allowed = |what: &str| {
        let mut lines = before.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(_, of)| *of == what)
            .and_then(|(count, _)| count.split(' ').next()?.parse().ok())
            .unwrap_or(0)
    };
    let is_more = tally.0.iter().any(|(what, (_, unsaid))| *unsaid > allowed(what));
    if is_more { Err(format!("{kind}: not said:\n{counts}before:\n{before}")) } else { Ok(()) }
}

fn is_given_up(scene: &Scene, told: &Telling, name: &str) -> bool {
    let (file, scene) = scene.place();
    // Schedules have numbers, which begin anew in each file. Beside a c10d run they are the same ones.
    let schedule = format!("{} {scene}", file.trim_end_matches("_beside"));
    let scene = if file.starts_with("truth_") { schedule.as_str() } else { scene };
    let is_it = |pattern: &str, word: &str| match pattern.strip_suffix('*') {
        Some(start) => word.starts_with(start),
        None => word == pattern,
    };
    GIVEN_UP.iter().any(|(of, code, who, _)| is_it(of, scene) && is_it(code, told.code()) && is_it(who, name))
}

/// Tests of several processes write at the same time.
fn write(path: &str, name: &str, lines: &str) {
    let mut options = File::options();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(path).expect(path);
    file.lock().expect("a lock");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("text");
    let mut scenes = scenes_of(&text);
    scenes.insert(name, lines);
    let all: String = scenes.iter().flat_map(|(name, lines)| ["== ", *name, "\n", *lines]).collect();
    file.set_len(0).expect("an empty file");
    file.rewind().expect("its start");
    file.write_all(all.as_bytes()).expect("written");
}

/// A scene that nobody plays any more holds nothing.
#[test]
fn every_scene_is_played() {
    fn sources(folder: &std::path::Path, ending: &str) -> String {
        let files = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let of_file = |path: std::path::PathBuf| match path.extension() {
            None => sources(&path, ending),
            Some(its) if its == ending => std::fs::read_to_string(&path).expect("text"),
            Some(_) => String::new(),
        };
        files.map(of_file).collect()
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests");
    let (code, yardstick) = (sources(&folder, "rs"), sources(&folder, "txt"));
    let scenes = scenes_of(&yardstick);
    let is_played = |name: &str| {
        let test = name.split(" (").next().and_then(|test| test.split("::").last()).unwrap_or(name);
        let is_schedule = name.parse::<u32>().is_ok();
        is_schedule
            || code.contains(&format!("\"{name}\""))
            || code.contains(&format!("\n= {name}"))
            || code.contains(&format!("\n= {}", test.replace('_', " ")))
            || code.contains(&format!("fn {test}()"))
    };
    let lost: Vec<_> = scenes.keys().filter(|name| !is_played(name)).collect();
    assert!(!scenes.is_empty() && lost.is_empty(), "nobody plays {lost:?}");
}
