//! A progress bar: `[######x.]`.

use super::text_writer::{BAD, FAINT, GOOD, Span};

/// The present share (`#`), the share that is gone again (`x`), and the missing share (`.`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bar {
    there: usize,
    gone: usize,
    missing: usize,
    known: bool,
}

impl Bar {
    /// A bar for a line of `line` columns. `gone` is a part of `joined`. Without a total, the missing share
    /// is unknown.
    ///
    /// Rounding never hides a present, gone or missing rank, as long as the bar has room.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "products of a u32 and 24 fit, and no part is more than the whole that it is taken from"
    )]
    pub(super) fn new(joined: u32, gone: u32, total: Option<u32>, line: usize) -> Self {
        let cells = (line / 5).clamp(8, 24);
        let Some(total) = total.map(|total| total.max(joined)).filter(|&total| total > 0) else {
            return Self { there: 0, gone: 0, missing: cells, known: false };
        };
        let gone = gone.min(joined);
        let alive = joined - gone;
        let part = |n: u32| u64::from(n) * cells as u64 / u64::from(total);
        // A number of cells.
        let share = |n: u32| if n == 0 { 0 } else { usize::try_from(part(n)).unwrap_or(cells).max(1) };
        let (mut gone, mut missing) = (share(gone), share(total - joined));
        if alive == 0 {
            // The cells lost by rounding down go to the states that occur.
            if missing > 0 { missing = cells - gone } else { gone = cells }
        } else if gone + missing >= cells {
            missing = cells - gone - 1;
        }
        let there = cells - gone - missing;
        Self { there, gone, missing, known: true }
    }

    pub(super) fn spans(self) -> Vec<Span> {
        let missing = if self.known { "." } else { "?" };
        vec![
            Span::plain("["),
            Span::new(GOOD, "#".repeat(self.there)),
            Span::new(BAD, "x".repeat(self.gone)),
            Span::new(FAINT, missing.repeat(self.missing)),
            Span::plain("]"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(joined: u32, gone: u32, total: Option<u32>) -> String {
        Bar::new(joined, gone, total, 40).spans().into_iter().map(|span| span.text).collect()
    }

    #[test]
    fn nothing_is_rounded_away() {
        assert_eq!(shown(3, 0, Some(4)), "[######..]");
        assert_eq!(shown(0, 0, Some(4)), "[........]");
        assert_eq!(shown(4, 0, Some(4)), "[########]");
        assert_eq!(shown(4095, 0, Some(4096)), "[#######.]");
        assert_eq!(shown(4096, 1, Some(4096)), "[#######x]");
        assert_eq!(shown(1, 0, Some(u32::MAX)), "[#.......]");
        assert_eq!(shown(2, 1, Some(1000)), "[#x......]");
        assert_eq!(shown(1, 1, Some(1)), "[xxxxxxxx]");
        assert_eq!(shown(5, 0, Some(4)), "[########]");
        assert_eq!(shown(3, 0, None), "[????????]");
    }

    #[test]
    fn a_bar_has_one_width_whatever_is_in_it() {
        for total in [1, 2, 3, 7, 64, u32::MAX] {
            for joined in [0, 1, 2, total / 2, total - 1, total, u32::MAX] {
                for gone in [0, 1, joined / 2, joined, u32::MAX] {
                    let bar = shown(joined, gone, Some(total));
                    assert_eq!(bar.len(), 10, "{joined} {gone} {total}");
                    assert_eq!(bar.contains('x'), joined.min(gone) > 0, "{joined} {gone} {total}: {bar}");
                    assert_eq!(bar.contains('.'), joined < total, "{joined} {gone} {total}: {bar}");
                }
            }
        }
    }
}
