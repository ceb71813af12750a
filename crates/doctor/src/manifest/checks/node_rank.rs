//! Two nodes with one number: the other numbers never come, and everybody waits for them.

use super::prelude::*;
use crate::manifest::identity::{self, Rank};
use rallypoint_shell::Part;

pub(super) const RULE: Rule = Rule {
    id: "node-rank",
    sees: "FAIL: `--node-rank=0` in every pod, none at all, the pod's name, a word without `$`, an index \
           that repeats, the index and one, `--node-rank=2` of 2. WARN: no `RANK`; a rank that is wrong \
           unless a config file says `c10d`",
    fails: "bad-job-rank-constant.yaml",
    passes: "good-job-static.yaml",
    find: Find::Launch(Tool::ALL, find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, .. } = call;
    let remedy = identity::remedy(call);
    if let Some((rank, by, of)) = too_high(launch) {
        let evidence = format!("rank {rank} ({by}) of {of}: ranks begin at 0, so one below it is missing");
        return Some(Check::fail(evidence, remedy).at(call.at(identity::field(launch))));
    }
    if let Some((word, by)) = no_number(launch) {
        let evidence = format!("the rank ({by}) is `{word}`, not a number");
        return Some(Check::fail(evidence, remedy).at(call.at(identity::field(launch))));
    }
    let all = call.total().unwrap_or(1);
    if let Some((index, rank)) = shifted(call) {
        let evidence = format!(
            "the pod with index {index} computes rank {rank}: the ranks of {all} pods begin at 0, so one is \
             missing"
        );
        return Some(Check::fail(evidence, remedy).at(call.at(identity::field(launch))));
    }
    let wrong = |evidence: String| {
        if !launch.is_configured {
            return Check::fail(evidence, remedy.clone());
        }
        Check::warn(format!("{evidence}, unless its config file has `rdzv_backend: c10d`"), remedy.clone())
    };
    let check = match identity::rank(call)? {
        Rank::Constant(rank, by) => {
            let who = match pods.count {
                Some(count) if count > 1 => format!("every one of {count} pods is"),
                _ => "several pods of the job are".into(),
            };
            wrong(format!("{who} rank {rank} ({by}): the others wait for ranks that never come"))
        }
        Rank::Of(source, by) => {
            let why = unfit(call, source)?;
            wrong(format!("the rank ({by}) is {why}"))
        }
        Rank::Missing if launch.tool == Tool::Program && pods.has_index() => {
            let evidence = format!(
                "WORLD_SIZE and MASTER_ADDR are set, but nothing tells {all} pods which RANK each has, \
                 unless the program finds it out by itself"
            );
            Check::warn(evidence, remedy)
        }
        Rank::Missing
            if launch.tool != Tool::Program
                && (pods.has_index() || matches!(pods.maker, Maker::Unknown | Maker::Slurm)) =>
        {
            let count = pods.count.unwrap_or(all);
            let evidence = format!(
                "{count} pods use the static backend without --node-rank: each takes itself for node 0"
            );
            Check::fail(evidence, remedy)
        }
        Rank::Missing | Rank::WithoutIndex(_) => return None,
    };
    Some(check.at(call.at(identity::field(launch))))
}

/// The index and the rank of a pod whose script computes another rank than its index, although there are no
/// other pods.
fn shifted(call: &Call<'_>) -> Option<(u64, u64)> {
    let Call { pods, launch, .. } = call;
    let is_all = pods.part_of.or(pods.count) == call.total() && pods.are_several();
    let by_node = launch.tool != Tool::Program && launch.needs_rank();
    let [Part::Computed { here, .. }] = launch.node_rank.as_ref()?.text.parts() else { return None };
    let rank = here.parse().ok()?;
    (is_all && by_node && pods.index != rank).then_some((pods.index, rank))
}

/// The rank that a launch is given, if it needs one.
fn written(launch: &Launch) -> Option<&Told> {
    launch.node_rank.as_ref().filter(|_| launch.needs_rank() && !launch.by_rallypoint)
}

/// A rank that is a word: perhaps its `$` is missing.
fn no_number(launch: &Launch) -> Option<(&str, &str)> {
    let told = written(launch)?;
    // Capital letters stand for what is to be filled in.
    let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '_') && word.len() > 1;
    told.text.literal().filter(is_word).map(|word| (word, told.by.as_str()))
}

/// A rank that is none of the expected ones: the rank, who gives it, and how many are expected.
fn too_high(launch: &Launch) -> Option<(u32, &str, u32)> {
    let told = written(launch)?;
    let rank = told.text.literal()?.parse().ok()?;
    let of = if launch.tool == Tool::Program { launch.number("WORLD_SIZE") } else { launch.most_nodes() };
    of.filter(|of| rank >= *of).map(|of| (rank, told.by.as_str(), of))
}

/// Why a rank from this source cannot be right.
fn unfit(call: &Call<'_>, source: Source) -> Option<String> {
    let Call { pods, launch, .. } = call;
    match source {
        Source::FirstNode if pods.are_several() => {
            Some("filled in by the script's own shell, on the first node: it is 0 on each node".into())
        }
        Source::PodName | Source::HostName => Some(format!("{}, not a number", source.name())),
        Source::IndexInRole | Source::EndOfPodName | Source::EndOfHostName if !pods.is_alone => {
            let others = call.manifests.training(pods.object).count() > 1 || pods.in_unit != pods.count;
            let most_nodes = launch.most_nodes().filter(|_| launch.tool != Tool::Program);
            let spans =
                most_nodes.is_some_and(|most| pods.in_unit.is_some_and(|unit| u64::from(most) > unit));
            // The host name of a leader ends in the number of its group.
            let of_group = pods.maker == Maker::LeaderWorkerSet && source != Source::IndexInRole;
            (others && spans && !of_group && !pods.are_random(source)).then(|| {
                format!(
                    "{}, which begins at 0 in each part of {}: two pods have the same",
                    source.name(),
                    pods.place.object
                )
            })
        }
        Source::PodUid | Source::PodIp | Source::Drawn | Source::ChildJobUid | Source::RunUid => {
            Some(format!("{}, not a number from 0 on", source.name()))
        }
        _ => None,
    }
}
