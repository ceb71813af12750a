//! Explains a wait, but does not repeat one line each second.

use std::time::Duration;

use rallypoint_node::client::ConnectError;
use rallypoint_protocol::ids::Elapsed;

/// Why it is not done yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reason {
    pub(super) step: &'static str,
    pub(super) text: String,
}

impl Reason {
    pub(super) fn of(error: &ConnectError) -> Self {
        Self { step: error.step().name(), text: error.to_string() }
    }
}

/// The last reason. A new reason is reported at once, and an unchanged one after growing pauses.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) last: Option<Reason>,
    /// When an unchanged reason is reported again, counted from the start.
    again_at: Duration,
    pause: Duration,
}

impl News {
    const FIRST_PAUSE: Duration = Duration::from_secs(10);
    const LONGEST_PAUSE: Duration = Duration::from_mins(5);

    /// The line to report now, if there is one.
    pub(super) fn line(&mut self, reason: &Reason, waited: Duration, left: Duration) -> Option<String> {
        if self.last.as_ref() != Some(reason) {
            self.last = Some(reason.clone());
            self.pause = Self::FIRST_PAUSE;
        } else if waited >= self.again_at {
            self.pause = self.pause.saturating_mul(2).min(Self::LONGEST_PAUSE);
        } else {
            return None;
        }
        self.again_at = waited.saturating_add(self.pause);
        Some(format!("{} ({} so far, {} left)", reason.text, Elapsed(waited), Elapsed(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_news_is_said() {
        let mut news = News::default();
        let reason = |text: &str| Reason { step: "connect", text: text.into() };
        let mut said = Vec::new();
        for second in 0..600 {
            let now = if second < 5 { reason("no name") } else { reason("refused") };
            let at = Duration::from_secs(second);
            if news.line(&now, at, Duration::ZERO).is_some() {
                said.push(second);
            }
        }
        assert_eq!(said, [0, 5, 15, 35, 75, 155, 315]);
        let last = news.line(&reason("no name"), Duration::from_secs(12), Duration::from_secs(588));
        assert_eq!(last.as_deref(), Some("no name (12 s so far, 9 min 48 s left)"));
    }
}
