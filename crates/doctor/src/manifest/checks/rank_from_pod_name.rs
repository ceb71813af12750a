//! The names of some makers' pods end in five random characters, which are no number.

use super::prelude::*;
use crate::manifest::identity::{self, Rank};

pub(super) const RULE: Rule = Rule {
    id: "rank-from-pod-name",
    sees: "FAIL: `${POD_NAME##*-}` of a Job's pod is five random characters",
    fails: "rank-from-pod-name.yaml",
    passes: "good-job-host-end.yaml",
    find: Find::Launch(Tool::ALL, find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Rank::Of(source, by) = identity::rank(call)? else { return None };
    let what = match source {
        Source::EndOfPodName => "the end of the pod's name, which is random here (`job-3-x7k2p`)",
        _ => "the end of the host name, which is random here (`job-x7k2p`)",
    };
    call.pods.are_random(source).then(|| {
        let check = Check::fail(format!("the rank ({by}) is {what}"), identity::remedy(call));
        check.at(call.at(identity::field(call.launch)))
    })
}
