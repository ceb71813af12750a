//! The growth curves as a picture.

use std::path::Path;

use plotters::prelude::*;

use crate::growth::{Many, Point};
use crate::servers::Kind;

const PANEL: (u32, u32) = (360, 260);
const FONT: (&str, i32) = ("sans-serif", 15);

/// Draws one panel for CPU and one for memory, for each quantity.
pub(crate) fn draw(points: &[Point], path: &Path) -> anyhow::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let columns = Many::ALL.len();
    let area = SVGBackend::new(path, (PANEL.0 * columns as u32, PANEL.1 * 2)).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.split_evenly((2, columns));
    for (column, many) in Many::ALL.into_iter().enumerate() {
        let of = |value: fn(&Point) -> f64, kind: Kind| -> Vec<(f64, f64)> {
            let chosen = points.iter().filter(|point| point.many == many && point.server == kind);
            chosen.map(|point| (point.count as f64, value(point))).collect()
        };
        let name = many.name();
        let both = |value: fn(&Point) -> f64| [of(value, Kind::Libuv), of(value, Kind::Rallypoint)];
        panel(&panels[column], &format!("CPU of a {name}, us"), name, &both(|point| point.cpu_us_each))?;
        panel(
            &panels[column + columns],
            &format!("memory of a {name}, bytes"),
            name,
            &both(|point| point.bytes_each),
        )?;
    }
    area.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(area: &Area<'_>, title: &str, unit: &str, lines: &[Vec<(f64, f64)>; 2]) -> anyhow::Result<()> {
    let all = || lines.iter().flatten();
    let most = all().map(|(count, _)| *count).fold(1.0, f64::max);
    let highest = all().map(|(_, value)| *value).fold(0.1, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, FONT)
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..most * 1.05, 0.0..highest * 1.5)?;
    chart
        .configure_mesh()
        .x_labels(5)
        .y_labels(6)
        .x_desc(format!("{unit}s"))
        .x_label_formatter(&|count| format!("{count:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    let styles = [("PyTorch libuv", RGBColor(214, 96, 40)), ("rallypoint", RGBColor(24, 90, 168))];
    for (line, (name, colour)) in lines.iter().zip(styles) {
        chart
            .draw_series(LineSeries::new(line.iter().copied(), colour.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(WHITE)
        .draw()?;
    Ok(())
}
