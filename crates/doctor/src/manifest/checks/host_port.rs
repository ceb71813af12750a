//! With `hostNetwork` the pods of a node share its ports. The second job cannot listen, or its nodes meet the
//! store of the first.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "host-port",
    sees: "WARN: two jobs with `hostNetwork` whose stores listen on one port. FAIL: two launchers side by side \
           on one node, `torchrun a.py & torchrun b.py &`, with one port",
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
    found.extend(side_by_side(manifests));
    found
}

/// Launchers that a script starts in the background.
fn side_by_side(manifests: &Manifests) -> Option<Check> {
    let on_one_node = |call: &Call<'_>| {
        let is_here = call.pods.step.as_ref().is_none_or(|step| step.by.is_none());
        let program = call.launch.command.words.first().is_some_and(|word| is_launcher(&word.to_string()));
        is_here && program && !call.launch.is_configured
    };
    let mut before: Vec<Call<'_>> = Vec::new();
    manifests.calls().filter(on_one_node).find_map(|call| {
        let (launch, port) = (call.launch, call.launch.own_port()?);
        let is_beside = |other: &Call<'_>| {
            let is_same = other.pods.object == call.pods.object
                && (std::ptr::eq(other.container, call.container) || call.pods.step.is_some());
            is_same
                && other.launch.command.moment == launch.command.moment
                && other.launch.own_port() == Some(port)
        };
        let found = before.iter().any(is_beside).then(|| {
            let name = launch.tool.name();
            let evidence =
                format!("{name} runs beside another one on the same node, and both have port {port}");
            Check::fail(evidence, "another --master-port for each, or --standalone").at(call.at("command"))
        });
        before.push(call);
        found
    })
}
