//! A host that is not in these files may be in others, or nowhere.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "endpoint-not-found",
    sees: "WARN: the host is no Service of these files, and no pod's name for others",
    fails: "endpoint-not-found.yaml",
    passes: "good-job-static.yaml",
    find: Find::Launch(Tool::ALL, find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let (told, target) = call.meeting().filter(|_| call.pods.step.is_none())?;
    let name = &told.text;
    let check = match target {
        // A standalone store is usually in other files.
        Target::Absent
            if matches!(call.launch.backend, Backend::Other(_))
                || name.to_string().contains("rallypoint") =>
        {
            return None;
        }
        Target::Absent => {
            let by = &told.by;
            let evidence = format!(
                "the endpoint `{name}` ({by}) is no Service of these files, and no pod has this name for \
                 others"
            );
            let remedy = format!(
                "give the file with the Service `{name}` as well; or {}",
                first_pod(call.pods, &told.by)
            );
            Check::warn(evidence, remedy)
        }
        Target::Pod { pods: other, .. }
            if other.object != call.pods.object
                && !other.serve()
                && call.manifests.training(other.object).next().is_none()
                && other.maker != Maker::Unknown
                && !call.is_together(other) =>
        {
            let evidence = format!(
                "the endpoint `{name}` ({}) is a pod of {}, which launches no training",
                told.by, other.place.object
            );
            Check::warn(evidence, first_pod(call.pods, &told.by))
        }
        _ => return None,
    };
    Some(check.at(call.at("command")))
}
