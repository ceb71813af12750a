//! Who gave up on what.

use crate::facts::{GivenUp, RunKey, Waiting};
use crate::identity::processes::Graph;
use crate::reason::{But, Code, Finding, Names, Place, Presence, if_some};
use rallypoint_api::Severity;
use rallypoint_protocol::ids::{ConnId, Elapsed, ShownKey, Timestamp};
use rallypoint_protocol::keys::{ExpectedWriter, classify, own_member, wanted};

const POLLS: &str =
    "nothing, if the program means to poll; else look at the process that should write the key";

/// Clients gave up on `key`. `restarted`: they may have waited since before that.
pub(crate) fn gave_up(key: &[u8], known: GivenUp, restarted: Option<Timestamp>) -> Finding {
    let GivenUp { at, waited, who, more, again, is_of_program, writer, missing, others, ended } = known;
    let shown = who.iter().map(|(_, gave_up)| gave_up.who.clone()).collect();
    let evidence = who.into_iter().map(|(_, gave_up)| gave_up);
    let who = Names { shown, more, ..Names::default() };
    let (about, waited) = (ShownKey(key).to_string(), Elapsed(waited));
    let or_longer = if restarted.is_some() { " or longer" } else { "" };
    let goes_on = if again { " and goes on" } else { "" };
    // The one that must write it is named already.
    let missing = if missing.count() == 1 { Names::default() } else { missing };
    let writer = if_some(writer, |writer| format!("; it must come from {writer}"));
    let reason = Code::GaveUp
        .says(format!("{who} gave up on `{about}` after {waited}{or_longer}{goes_on}{writer}"))
        .held(&who)
        .lacks("missing", Place::Rank, &missing, Presence::Unknown)
        .ended(Place::Rank, &ended)
        .others(Place::Rank, &others)
        .when(is_of_program, |reason| reason.severe(Severity::Info))
        .when(again, |reason| reason.severe(Severity::Info).look_at(POLLS));
    Finding::new(reason, about, at).seen(evidence).in_round(wanted(key).round)
}

/// A rank reported that a collective timed out or failed.
pub(crate) fn reported(who: &str, at: Timestamp) -> Finding {
    let reason = Code::GaveUp
        .says(format!("{who} reported that a collective timed out or failed"))
        .look_at("look at that rank's log for the collective that timed out")
        .held(&Names::of([who.to_owned()]));
    Finding::new(reason, who, at)
}

impl Graph<'_> {
    /// What is known of a key on which a client gives up: who must write it, and who of its run is not there.
    pub(crate) fn beside(&self, run: Option<&RunKey>, conn: ConnId, key: &[u8]) -> GivenUp {
        let (run, wanted) = (run.and_then(|run| self.jobs.runs.get(run)), wanted(key));
        let is_of_group = own_member(key).is_some_and(|(group, ..)| self.published().contains_key(group));
        let is_of_program = classify(key).is_none() && !is_of_group;
        let known = GivenUp { writer: self.writer(run, conn, &wanted), is_of_program, ..GivenUp::default() };
        let Some(run) = run else { return known };
        let meeting = self.meeting(conn, run);
        let is_for_it = |wait: &&Waiting| wait.view.missing.first().is_some_and(|missing| **missing == *key);
        match wanted.writer {
            ExpectedWriter::Rank(rank) => {
                let never_came = |rank: &u32| run.world.holder(meeting, *rank).is_none();
                let absent = run.world.absent(meeting).filter(|other| never_came(&rank) && never_came(other));
                let missing = Names::of_some(absent, |rank| run.rank_label_in(meeting, rank));
                let holder = run.world.holder(meeting, rank);
                let is_dropped = holder.is_some_and(|info| info.is_dropped() && info.gone.is_none());
                let dropped = But::Dropped { replaced: Names::default() };
                let writer = known.writer.map(|it| if is_dropped { format!("{it}: {dropped}") } else { it });
                GivenUp { writer, missing, ..known }
            }
            ExpectedWriter::Group(_) | ExpectedWriter::Unknown
                if self.store.waits.get(&conn).as_ref().is_some_and(is_for_it) =>
            {
                let waits: Vec<_> = self.store.waits.values().filter(is_for_it).collect();
                let others =
                    self.not_among(Some((run, meeting)), &waits, &self.published_for(&waits), |_| true);
                GivenUp { others, ended: self.ended_ranks(run, meeting), ..known }
            }
            _ => known,
        }
    }
}
