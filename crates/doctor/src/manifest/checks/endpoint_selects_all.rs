//! Behind a Service over all pods each connection meets another pod, and only one has the store. With c10d
//! each pod finds its own address behind the name, and hosts a store.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "endpoint-selects-all",
    sees: "FAIL: the endpoint is a Service over all pods of the job",
    fails: "endpoint-selects-all.yaml",
    passes: "good-service-of-one-pod.yaml",
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let of_rallypoint = |(pods, container): (&Pods, &Container)| {
        let (host, _) = container.rallypoint_endpoint()?;
        let Target::Service(service) = resolve(&host, pods, manifests) else { return None };
        let (name, object) = (&service.name, &pods.place.object);
        let evidence =
            format!("the endpoint `{name}` is a Service over all pods of {object}: each meets another store");
        let check = Check::fail(evidence, first_pod(pods, "RALLYPOINT_ENDPOINT"));
        let all = takes(service, pods) == Taken::All && pods.are_several();
        all.then(|| check.at(pods.at(&container.at("env"))))
    };
    let of_launches = manifests.calls().filter_map(|call| of_launch(&call));
    of_launches.chain(manifests.containers().filter_map(of_rallypoint)).collect()
}

fn of_launch(call: &Call<'_>) -> Option<Check> {
    let (told, target) = call.meeting()?;
    let of_pods = |own: &Pods| match &target {
        Target::Service(service) => match takes(service, own) {
            Taken::None => Some(0),
            Taken::One => Some(1),
            Taken::All => own.count,
        },
        Target::Governing => own.count.filter(|_| own.subdomain == call.pods.subdomain),
        _ => Some(0),
    };
    // A Service that selects a single pod is a good endpoint.
    if call.manifests.together(call.pods).map(of_pods).sum::<Option<u64>>()? < 2 {
        return None;
    }
    let (name, object) = (&told.text, &call.pods.place.object);
    let headless = !matches!(&target, Target::Service(service) if !is_headless(service));
    let (headless, then) = match (headless, &call.launch.backend) {
        (true, Backend::C10d) => (
            "headless ",
            "each finds its own address behind the name and hosts a store of its own; with --nnodes=1:N each \
             trains alone, and all exit 0",
        ),
        (true, _) => ("headless ", "each connection goes to any of them, and only one has the store"),
        (false, _) => ("", "each connection goes to another pod"),
    };
    let evidence = format!("the endpoint `{name}` is a {headless}Service over all pods of {object}: {then}");
    Some(Check::fail(evidence, first_pod(call.pods, &told.by)).at(call.at("command")))
}
