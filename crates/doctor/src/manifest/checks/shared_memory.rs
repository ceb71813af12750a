//! Processes of one pod communicate through `/dev/shm`, which has 64 MiB unless a volume is mounted there.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "shared-memory",
    sees: "WARN: several processes in a pod, and nothing mounted at `/dev/shm`",
    examples: ["bad-job-no-shm.yaml", "good-job-static.yaml"],
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    if !container.trains() {
        return None;
    }
    let by_flag = |launch: &Launch| {
        // The GPUs say how many processes another program has.
        let is_launcher = launch.tool() != Tool::Other;
        let told = launch.processes.as_ref().filter(|told| is_launcher && told.by.starts_with("--"))?;
        told.text.literal()?.parse::<u64>().ok()
    };
    let said = container.launches.iter().find_map(by_flag);
    // A program without a launcher is one process.
    let is_launched = container.launches.iter().any(|launch| launch.tool() != Tool::Program);
    // Processes on CPUs communicate over TCP.
    let on_cpus = container.argv.iter().any(|text| text.contains("gloo"));
    let processes = said.or_else(|| container.gpus().filter(|_| is_launched)).unwrap_or(1);
    let mounted = list(&container.value, "/volumeMounts").iter().any(|mount| {
        let at = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
        matches!(at.trim_end_matches('/'), "/dev/shm" | "/dev")
    });
    let by_host = pods.spec.get("hostIPC") == Some(&Value::Bool(true));
    // A TrainJob has the volumes of its runtime, and what mpirun starts runs in the Workers.
    let elsewhere = matches!(pods.maker, Maker::TrainJob | Maker::MpiJob)
        || container.launches.iter().all(|launch| launch.command.conditional);
    (processes > 1 && !on_cpus && !mounted && !by_host && !elsewhere && !pods.is_open).then(|| {
        let evidence =
            format!("{processes} processes share the 64 MiB of /dev/shm; NCCL and data loaders need more");
        let remedy = "a volume {name: shm, emptyDir: {medium: Memory}}, mounted at /dev/shm";
        Check::warn(evidence, remedy).at(pods.at(&container.at("volumeMounts")))
    })
}
