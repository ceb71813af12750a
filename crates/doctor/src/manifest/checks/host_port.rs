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
    let mut hosts: Vec<(Call<'_>, String)> = Vec::new();
    let mut found = Vec::new();
    for call in manifests.calls().filter(|call| call.pods.on_host() && call.hosts_store()) {
        let Some(port) = port(&call) else { continue };
        let same = |(other, own): &&(Call<'_>, String)| {
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

/// The port on which the store listens.
fn port(call: &Call<'_>) -> Option<String> {
    match (&call.launch.port, &call.launch.backend) {
        (Some(told), _) => told.text.literal().map(str::to_owned),
        (None, Backend::C10d) => Some("29400".into()),
        (None, Backend::Static) if call.launch.tool != Tool::Program => Some("29500".into()),
        (None, _) => None,
    }
}
