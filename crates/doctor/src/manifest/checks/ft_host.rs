//! The rendezvous of `ft_launcher` is led by the one node with `is_host=1`. Without it nobody closes a round,
//! and all wait; with two each closes its own.

use super::prelude::*;
use rallypoint_node::launch::Torchrun;

pub(super) const RULE: Rule = Rule {
    id: "ft-host",
    sees: "FAIL: `ft_launcher` with `--rdzv-conf=is_host=0` on every node, or `is_host=1` on several",
    examples: ["ft-host.yaml", "good-jobset-ft.yaml"],
    find: Find::Launch(&[Tool::Torchrun], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let total = call.total().filter(|total| *total > 1)?;
    let own = leads(call.launch).filter(|_| !call.launch.by_rallypoint)?;
    let all = || {
        let pods = call.manifests.together(call.pods);
        pods.flat_map(|pods| pods.launches().map(|launch| (leads(launch), pods.count.unwrap_or(2))))
    };
    let leaders: u64 = all().filter(|(leads, _)| *leads == Some(true)).map(|(_, count)| count).sum();
    let evidence = match own {
        false if all().all(|(leads, _)| leads == Some(false)) => {
            format!("is_host=0 on all {total} nodes: nobody leads the rendezvous of ft_launcher")
        }
        true if leaders > 1 => {
            format!("is_host=1 on {leaders} nodes: each leads a rendezvous of its own")
        }
        _ => return None,
    };
    let remedy = "--rdzv-conf=is_host=1 on the first node alone, and is_host=0 on the others; `rallypoint \
                  run` does so";
    Some(Check::fail(evidence, remedy).at(call.at("command")))
}

/// Whether a node of `ft_launcher` leads the rendezvous, as far as it says so.
fn leads(launch: &Launch) -> Option<bool> {
    let conf = launch.torchrun().filter(Torchrun::is_ft_launcher)?.conf()?;
    match conf.get("is_host")?.to_lowercase().as_str() {
        "0" | "false" | "f" | "no" | "n" => Some(false),
        "1" | "true" | "t" | "yes" | "y" => Some(true),
        _ => None,
    }
}
