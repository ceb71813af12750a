//! The results as text: for the terminal, and for the generated part of `docs/performance.md`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;

use crate::growth::{Many, Point};
use crate::results::{Results, median};
use crate::runs::{Mark, RUNS, Row};
use crate::servers::Kind;

/// The path of the picture in the repository.
pub(crate) const PICTURE: &str = "docs/img/growth.svg";

const BEGIN: &str = "<!-- begin: written by benches/compare -->";
const END: &str = "<!-- end: written by benches/compare -->";

const MISSED: &str = "**no**";
const NOT_MEASURED: &str = "–";

/// The number of ranks for which the page extrapolates the measurements.
const MANY_RANKS: f64 = 100_000.0;

/// Writes the results between the marks of a page.
pub(crate) fn rewrite(results: &Results, path: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let (before, rest) =
        text.split_once(BEGIN).with_context(|| format!("{} lacks {BEGIN}", path.display()))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{} lacks {END}", path.display()))?;
    let meta = &results.meta;
    let circumstances = format!(
        "Commit {}, PyTorch {}, {} shared virtual cores, Linux; medians of {} (long runs once), {:.0} \
         minutes in all.{}",
        meta.commit,
        meta.torch,
        meta.cores,
        meta.repeat,
        meta.minutes,
        if meta.quick { " A quick run: the numbers mean little." } else { "" }
    );
    let (short, marks, growth) = (short_table(results), marks_in_words(results), growth(results));
    let page = format!("{before}{BEGIN}\n{circumstances}\n\n{short}\n{marks}\n{growth}{END}{after}");
    Ok(std::fs::write(path, page)?)
}

/// The page's table: what a user compares.
fn short_table(results: &Results) -> String {
    let mut text =
        String::from("| | unit | PyTorch | rallypoint | PyTorch / rallypoint |\n|---|---|---|---|---|\n");
    for row in RUNS.iter().flat_map(|run| run.rows).filter(|row| results.rows.contains_key(row.id)) {
        let value = |kind| results.median(row.id, kind).map_or("not done".to_owned(), number);
        let ratio = ratio(results, row).map_or("–".to_owned(), |ratio| format!("{}x", number(ratio)));
        let (theirs, ours) = (value(Kind::Libuv), value(Kind::Rallypoint));
        let _written = writeln!(text, "| {} | {} | {theirs} | {ours} | {ratio} |", row.title, row.unit);
    }
    text
}

/// How many of the project's own marks are reached, and which are not.
fn marks_in_words(results: &Results) -> String {
    let rows: Vec<&Row> = RUNS.iter().flat_map(|run| run.rows).collect();
    let found = |wanted: &str| rows.iter().filter(|row| reached(results, row) == wanted).collect::<Vec<_>>();
    let (missed, open) = (found(MISSED), found(NOT_MEASURED).len());
    let mut text = format!("Marks of this project: of {} rows ", rows.len());
    let _written = write!(text, "{} reach theirs", rows.len() - missed.len() - open);
    for row in missed {
        let (title, mark) = (row.title, words(row.must).unwrap_or_default());
        let _written = write!(text, "; missed: \"{title}\" ({mark}; {})", measured(results, row));
    }
    if open > 0 {
        let _written = write!(text, "; {open} with a mark beside the floor were not measured with it");
    }
    text + ".\n"
}

/// What a row's mark is compared with: the ratio to the floor, where the mark is one.
fn measured(results: &Results, row: &Row) -> String {
    match (row.must, floors(results, row), results.median(row.id, Kind::Rallypoint)) {
        (Mark::Floor(_), Some(floors), _) => format!("{}x", number(floors)),
        (Mark::Floor(_), None, _) | (_, _, None) => "–".into(),
        (_, _, Some(ours)) => format!("{} {}", number(ours), row.unit),
    }
}

/// The table of the comparison, with all that was measured.
pub(crate) fn table(results: &Results) -> String {
    let mut text = String::from(
        "| | unit | PyTorch libuv | rallypoint | libuv / rallypoint | must, aim | reached | floor | PyTorch \
         legacy |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in RUNS.iter().flat_map(|run| run.rows) {
        let Some(measured) = results.rows.get(row.id) else { continue };
        let cell = |kind: Kind| {
            let Some(of) = measured.get(&kind) else { return "not run".to_owned() };
            let value = of.median().map_or("not done".to_owned(), number);
            match median(&of.also) {
                Some(also) => format!("{value} ({} {})", number(also), row.also.0),
                None => value,
            }
        };
        let ratio = ratio(results, row).map_or("–".to_owned(), |ratio| format!("{}x", number(ratio)));
        let _written = writeln!(
            text,
            "| {} | {} | {} | {} | {ratio} | {} | {} | {} | {} |",
            row.title,
            row.unit,
            cell(Kind::Libuv),
            cell(Kind::Rallypoint),
            marks(row),
            reached(results, row),
            cell(Kind::Floor),
            cell(Kind::Legacy),
        );
    }
    text
}

/// The table of growth, and the extrapolation to very many ranks.
pub(crate) fn growth(results: &Results) -> String {
    let mut text = String::from(
        "\n| rallypoint, each | fewest | most measured | CPU, fewest → most | memory, fewest → most | of \
         100,000 |\n|---|---|---|---|---|---|\n",
    );
    for many in Many::ALL {
        let of = |kind: Kind| -> Vec<&Point> {
            results.growth.iter().filter(|point| point.many == many && point.server == kind).collect()
        };
        let ours = of(Kind::Rallypoint);
        let (Some(least), Some(most)) = (ours.first(), ours.last()) else { continue };
        let _written = writeln!(
            text,
            "| {} | {} | {} | {} → {} us | {} → {} B | {} s CPU, {} MiB |",
            many.name(),
            least.count,
            most.count,
            number(least.cpu_us_each),
            number(most.cpu_us_each),
            number(least.bytes_each),
            number(most.bytes_each),
            number(most.cpu_us_each * MANY_RANKS / 1e6),
            number(most.bytes_each * MANY_RANKS / 1_048_576.0),
        );
    }
    text
}

fn ratio(results: &Results, row: &Row) -> Option<f64> {
    Some(results.median(row.id, Kind::Libuv)? / results.median(row.id, Kind::Rallypoint)?)
}

/// How many times the floor's value rallypoint's is.
fn floors(results: &Results, row: &Row) -> Option<f64> {
    Some(results.median(row.id, Kind::Rallypoint)? / results.median(row.id, Kind::Floor)?)
}

/// A mark, for people.
fn words(mark: Mark) -> Option<String> {
    match mark {
        Mark::None => None,
        Mark::AtMost(most) => Some(format!("≤ {}", number(most))),
        Mark::Times(times) => Some(format!("{}x", number(times))),
        Mark::Flat(other, factor) => {
            let rows = RUNS.iter().flat_map(|run| run.rows);
            let title = rows.into_iter().find(|row| row.id == other).map_or(other, |row| row.title);
            Some(format!("≤ {}x of \"{title}\"", number(factor)))
        }
        Mark::Floor(times) => Some(format!("≤ {}x of the floor", number(times))),
    }
}

fn marks(row: &Row) -> String {
    [words(row.must), words(row.aim)].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn reached(results: &Results, row: &Row) -> &'static str {
    match (fulfils(results, row, row.must), fulfils(results, row, row.aim)) {
        (Some(false), _) => MISSED,
        (_, Some(true)) => "aim",
        (Some(true), _) => "must",
        (None, _) => NOT_MEASURED,
    }
}

fn fulfils(results: &Results, row: &Row, mark: Mark) -> Option<bool> {
    let ours = results.median(row.id, Kind::Rallypoint);
    match mark {
        Mark::None => None,
        // A run that did not finish in the given time has no value, and missed its mark.
        Mark::AtMost(most) => Some(ours.is_some_and(|ours| ours <= most)),
        Mark::Times(times) => Some(ratio(results, row)? >= times),
        Mark::Flat(other, factor) => Some(ours? <= results.median(other, Kind::Rallypoint)? * factor),
        Mark::Floor(times) => Some(floors(results, row)? <= times),
    }
}

/// A number with three digits.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 1.0 => format!("{value:.2}"),
        size if size < 10.0 => format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
        size if size < 100.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        _ => format!("{value:.0}"),
    }
}
