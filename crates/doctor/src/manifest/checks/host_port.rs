//! With `hostNetwork` the pods of a node share its ports. The second job cannot listen, or its nodes meet the
//! store of the first.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "host-port",
    sees: "WARN: two jobs with `hostNetwork` whose stores listen on one port",
    fails: "host-port.yaml",
    passes: "good-jobsets-host-ports.yaml",
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let mut hosts: Vec<(Call<'_>, &str)> = Vec::new();
    let mut found = Vec::new();
    for call in manifests.calls().filter(|call| call.pods.on_host() && call.hosts_store()) {
        let Some(port) = call.launch.known_port() else { continue };
        let same = |(other, own): &&(Call<'_>, &str)| {
            *own == port && other.pods.object != call.pods.object && !call.is_together(other.pods)
        };
        if let Some((other, _)) = hosts.iter().find(same) {
            let object = &other.pods.place.object;
            let evidence =
                format!("hostNetwork, and port {port} is that of {object}, too: one of them can listen");
            let remedy = "another port for each job, or pods that never share a node (podAntiAffinity)";
            found.push(Check::warn(evidence, remedy).at(call.at("command")));
        }
        hosts.push((call, port));
    }
    found
}
