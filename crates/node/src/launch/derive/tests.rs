//! Every platform flavour, and every contradiction.

mod platforms;
mod table;
mod worlds;

use super::*;

type Vars<'a> = &'a [(&'a str, &'a str)];

const K8S: (&str, &str) = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");

fn launched(hostname: &str, vars: &[(&str, &str)]) -> Result<LaunchEnv, LaunchError> {
    let env: Environment = vars.iter().copied().collect();
    derive(&env, &Given { hostname: hostname.into(), ..Given::default() }, None)
}

fn run_by(command: &str, vars: &[(&str, &str)]) -> Result<LaunchEnv, LaunchError> {
    let env: Environment = vars.iter().copied().collect();
    let words = shlex::split(command).expect("words");
    derive(&env, &Given::default(), Some(&Torchrun::parse(&words).expect("torchrun")))
}

/// platform, node rank, nodes, processes, endpoint, run id
fn summary(launch: &LaunchEnv) -> [String; 6] {
    fn shown<T: std::fmt::Display>(value: Option<&Derived<T>>) -> String {
        value.map_or_else(|| "-".into(), |value| value.value.to_string())
    }
    [
        launch.platform.name.into(),
        shown(launch.node_rank.as_ref()),
        shown(launch.nodes.as_ref()),
        shown(launch.nproc_per_node.as_ref()),
        shown(launch.endpoint.as_ref()),
        shown(launch.run_id.as_ref()),
    ]
}

#[test]
fn each_platform_says_who_its_pods_are() {
    #[rustfmt::skip]
    let rows: [(&str, Vars, [&str; 6]); 27] = [
        // An Indexed Job whose pods were given torch's variables.
        ("train-2", &[K8S, ("JOB_COMPLETION_INDEX", "2"), ("NODE_RANK", "2"),
            ("MASTER_ADDR", "training-master-service"),
            ("MASTER_PORT", "29500"), ("NNODES", "4"), ("WORLD_SIZE", "32"), ("RANK", "16")],
            ["Indexed Job", "2", "4", "8", "training-master-service:29500", "train"]),
        // Without the number of nodes, which then stands in torchrun's flags alone: the same on each pod.
        ("train-0", &[K8S, ("JOB_COMPLETION_INDEX", "0"), ("WORLD_SIZE", "32"), ("RANK", "0")],
            ["Indexed Job", "0", "-", "-", "-", "train"]),
        ("train-2", &[K8S, ("JOB_COMPLETION_INDEX", "2"), ("WORLD_SIZE", "32"), ("RANK", "16")],
            ["Indexed Job", "2", "-", "-", "-", "train"]),
        ("train-1", &[K8S, ("JOB_COMPLETION_INDEX", "1"), ("POD_NAME", "train-1-24568"), ("JOB_UID", "u-1")],
            ["Indexed Job", "1", "-", "-", "-", "u-1"]),
        // A StatefulSet, by ordinal and by label; an empty label is as none.
        ("train-llm-3", &[K8S, ("NNODES", "4"), ("NPROC_PER_NODE", "1"), ("POD_NAMESPACE", "ml")],
            ["StatefulSet", "3", "4", "1", "-", "ml.train-llm"]),
        ("x", &[("POD_INDEX", "3"), ("NNODES", "4")], ["StatefulSet", "3", "4", "-", "-", "-"]),
        ("x", &[("RALLYPOINT_POD_INDEX", "0")], ["StatefulSet", "0", "-", "-", "-", "-"]),
        ("train-llm-3", &[K8S, ("POD_INDEX", ""), ("POD_NAME", "train-llm-3")],
            ["StatefulSet", "3", "-", "-", "-", "train-llm"]),
        // JobSet: one job, and two jobs of two pods.
        ("js-workers-0-1", &[K8S, ("JOBSET_NAME", "js"), ("JOB_COMPLETION_INDEX", "1"), ("NNODES", "2"),
            ("MASTER_ADDR", "js-workers-0-0.js")],
            ["JobSet", "1", "2", "-", "js-workers-0-0.js:29500", "js"]),
        ("js-workers-1-1", &[K8S, ("JOBSET_NAME", "js"), ("JOB_INDEX", "1"), ("REPLICATED_JOB_REPLICAS", "2"),
            ("JOB_COMPLETION_INDEX", "1"), ("NNODES", "4")],
            ["JobSet", "3", "4", "-", "-", "js"]),
        // Kubeflow: TrainJob, PyTorchJob with a master, and elastic without one.
        ("job-node-0-1", &[K8S, ("JOB_COMPLETION_INDEX", "1"), ("PET_NNODES", "2"),
            ("PET_NPROC_PER_NODE", "8"), ("PET_NODE_RANK", "1"),
            ("PET_MASTER_ADDR", "job-node-0-0.job"), ("PET_MASTER_PORT", "29500")],
            ["Kubeflow TrainJob (v2)", "1", "2", "8", "job-node-0-0.job:29500", "job-node-0"]),
        ("job-worker-0", &[K8S, ("MASTER_ADDR", "job-master-0"), ("MASTER_PORT", "23456"),
            ("WORLD_SIZE", "3"), ("RANK", "1")],
            ["Kubeflow PyTorchJob (v1)", "1", "3", "-", "job-master-0:23456", "job"]),
        ("job-master-0", &[K8S, ("MASTER_ADDR", "job-master-0"), ("MASTER_PORT", "23456"),
            ("WORLD_SIZE", "3"), ("RANK", "0"),
            ("PET_NPROC_PER_NODE", "8")],
            ["Kubeflow PyTorchJob (v1)", "0", "3", "8", "job-master-0:23456", "job"]),
        // PAI-DLC: RANK and WORLD_SIZE count nodes, and nothing tells of Kubernetes.
        ("dlc18-worker-7", &[("MASTER_ADDR", "dlc18-master-0"), ("MASTER_PORT", "23456"),
            ("WORLD_SIZE", "16"), ("RANK", "8"), ("NPROC_PER_NODE", "8")],
            ["Kubeflow PyTorchJob (v1)", "8", "16", "8", "dlc18-master-0:23456", "-"]),
        ("job-worker-2", &[K8S, ("PET_RDZV_BACKEND", "c10d"), ("PET_RDZV_ENDPOINT", "job-worker-0:23456"),
            ("PET_RDZV_ID", "job"), ("PET_NNODES", "1:3")],
            ["Kubeflow PyTorchJob (v1)", "2", "1:3", "-", "job-worker-0:23456", "job"]),
        // Volcano with the pytorch plugin, and with the env plugin alone.
        ("vj-worker-0", &[K8S, ("VC_WORKER_HOSTS", "vj-worker-0.vj"), ("VC_TASK_INDEX", "0"),
            ("MASTER_ADDR", "vj-master-0.vj"),
            ("MASTER_PORT", "23456"), ("WORLD_SIZE", "2"), ("RANK", "1")],
            ["Volcano", "1", "2", "-", "vj-master-0.vj:23456", "vj"]),
        ("vj-worker-1", &[K8S, ("VC_TASK_INDEX", "1"), ("NNODES", "2")],
            ["Volcano", "1", "2", "-", "-", "vj-worker"]),
        // LeaderWorkerSet: with the index, and before 0.6 leader and worker by name.
        ("lws-0-2", &[K8S, ("LWS_LEADER_ADDRESS", "lws-0.lws.ns"), ("LWS_GROUP_SIZE", "3"),
            ("LWS_WORKER_INDEX", "2")],
            ["LeaderWorkerSet", "2", "3", "-", "lws-0.lws.ns:29500", "lws-0"]),
        ("lws-0", &[K8S, ("LWS_LEADER_ADDRESS", "lws-0.lws.ns"), ("LWS_GROUP_SIZE", "3")],
            ["LeaderWorkerSet", "0", "3", "-", "lws-0.lws.ns:29500", "lws-0"]),
        ("lws-0-1", &[K8S, ("LWS_LEADER_ADDRESS", "lws-0.lws.ns"), ("LWS_GROUP_SIZE", "3")],
            ["LeaderWorkerSet", "1", "3", "-", "lws-0.lws.ns:29500", "lws-0"]),
        // Slurm with a launcher on each node, and with a task for each process.
        ("n03", &[("SLURM_JOB_ID", "77"), ("SLURM_NODEID", "2"), ("SLURM_NNODES", "4"), ("SLURM_NTASKS", "4"),
            ("SLURM_JOB_NODELIST", "n[01-04]")],
            ["Slurm", "2", "4", "-", "n01:29500", "77"]),
        ("n02", &[("SLURM_JOB_ID", "77"), ("SLURM_NODEID", "1"), ("SLURM_NNODES", "2"),
            ("SLURM_NTASKS", "16"), ("SLURM_PROCID", "9"),
            ("SLURM_LOCALID", "1"), ("MASTER_ADDR", "n01"), ("MASTER_PORT", "3000")],
            ["Slurm", "1", "2", "8", "n01:3000", "77"]),
        // Kubetorch: each process has its own variables; the pod is a Deployment's.
        ("svc-7d9f8b6c5d-x7k2p", &[K8S, ("KT_SERVICE", "svc"), ("POD_NAME", "svc-7d9f8b6c5d-24568"),
            ("MASTER_ADDR", "10.0.0.9"), ("MASTER_PORT", "12345"),
            ("RANK", "9"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "32"), ("NODE_RANK", "1"),
                ("LOCAL_WORLD_SIZE", "8")],
            ["Kubetorch", "1", "4", "8", "10.0.0.9:12345", "-"]),
        // A platform of its own names, StatefulSet and Job.
        ("demo-1", &[("POD_NAME", "demo-1"), ("SVC_NAME", "demo-svc"), ("POD_NUMS", "2"),
            ("POD_PORT", "29501"), ("POD_NAMESPACE", "ns"),
            ("WORLD_SIZE", "2"), ("RANK", "1"), ("PET_NPROC_PER_NODE", "auto")],
            ["platform with POD_NUMS, StatefulSet", "1", "2", "auto", "demo-0.demo-svc.ns:29501", "ns.demo"]),
        ("myjob-0", &[("POD_NAME", "myjob-0-E5F86S4"), ("JOB_NAME", "myjob"), ("JOB_COMPLETION_INDEX", "0"),
            ("SVC_NAME", "myjob-svc"),
            ("POD_NUMS", "2"), ("POD_PORT", "23456"), ("POD_NAMESPACE", "ns")],
            ["platform with POD_NUMS, Job", "0", "2", "-", "myjob-0.myjob-svc.ns:23456", "ns.myjob"]),
        ("laptop", &[("MASTER_ADDR", "head"), ("RANK", "1"), ("WORLD_SIZE", "2")],
            ["variables set by hand", "1", "2", "-", "head:29500", "-"]),
        // Outside Kubernetes a number in the host's name means nothing.
        ("gpu-3", &[], ["unknown", "-", "-", "-", "-", "-"]),
    ];
    for (hostname, vars, expected) in rows {
        let launch = launched(hostname, vars).unwrap_or_else(|error| panic!("{hostname} {vars:?}: {error}"));
        assert_eq!(summary(&launch), expected, "{hostname} {vars:?}");
    }
}

#[test]
fn ranks_of_processes_follow_only_where_they_must() {
    let ranks = |launch: &LaunchEnv| {
        let value = |value: &Option<Derived<u32>>| value.as_ref().map(|value| value.value);
        (value(&launch.rank), value(&launch.world_size), value(&launch.local_rank))
    };
    let one = launched("", &[("PET_NODE_RANK", "1"), ("PET_NNODES", "4")]).expect("one a node");
    assert_eq!(ranks(&one), (Some(1), Some(4), Some(0)));
    let many = [("PET_NODE_RANK", "1"), ("PET_NNODES", "4"), ("PET_NPROC_PER_NODE", "8")];
    assert_eq!(ranks(&launched("", &many).expect("eight a node")), (None, Some(32), None));
    let process = [("RANK", "9"), ("WORLD_SIZE", "32"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "8")];
    let process = launched("", &process).expect("a process");
    assert_eq!(
        (ranks(&process), process.node_rank.expect("its node").value),
        ((Some(9), Some(32), Some(1)), 1)
    );
    let auto = [("PET_NODE_RANK", "1"), ("PET_NNODES", "4"), ("PET_NPROC_PER_NODE", "auto")];
    assert_eq!(ranks(&launched("", &auto).expect("auto")), (None, None, None));
}

#[test]
fn the_commands_flags_are_a_source() {
    let command = "torchrun --nnodes 4 --nproc_per_node 8 --master_addr head --master_port 29500 --node-rank \
                   1 train.py";
    let indexed = [("WORLD_SIZE", "32"), ("RANK", "8"), ("JOB_COMPLETION_INDEX", "1"), ("LOCAL_RANK", "0")];
    let launch = run_by(command, &indexed).expect("an Indexed Job");
    assert_eq!(summary(&launch), ["Indexed Job", "1", "4", "8", "head:29500", "-"]);
    assert_eq!(launch.nodes.expect("nodes").from, "--nnodes of the command");
    // The flag wins over its own variable in torchrun, so they do not contradict each other.
    let launch = run_by("torchrun --nnodes=2 t.py", &[("PET_NNODES", "4")]).expect("the flag");
    assert_eq!(launch.nodes.expect("nodes").value, Nodes::exactly(2));
    // A variable in a script is not known here.
    assert_eq!(run_by("torchrun --nnodes=$N t.py", &[]).expect("unknown").nodes, None);
}

#[test]
fn what_the_user_says_ends_every_contradiction() {
    let env: Environment =
        [("PET_NODE_RANK", "1"), ("JOB_COMPLETION_INDEX", "2"), ("PET_NNODES", "4")].into_iter().collect();
    let given = Given { node_rank: Some(3), run_id: Some("mine".into()), ..Given::default() };
    let launch = derive(&env, &given, None).expect("decided");
    assert_eq!(launch.node_rank.expect("given").value, 3);
    assert_eq!(launch.run_id.expect("given").value, "mine");
}

#[test]
fn contradictions_are_refused_by_name() {
    #[rustfmt::skip]
    let rows: [(&str, Vars, &[&str]); 19] = [
        ("two sources differ", &[("PET_NODE_RANK", "1"), ("JOB_COMPLETION_INDEX", "2")],
            &["PET_NODE_RANK and JOB_COMPLETION_INDEX differ", "1 by the one and 2 by the other",
                "--node-rank"]),
        ("label and name differ", &[("POD_INDEX", "1"), ("POD_NAME", "train-2")],
            &["POD_INDEX and POD_NAME differ"]),
        ("numbers of nodes differ", &[("NNODES", "4"), ("POD_NUMS", "2"), ("POD_NAME", "a-0")],
            &["POD_NUMS and NNODES differ", "--nodes"]),
        ("outside the range", &[("PET_NNODES", "2:4"), ("NNODES", "8")], &["PET_NNODES and NNODES differ"]),
        ("masters differ", &[("PET_MASTER_ADDR", "a"), ("MASTER_ADDR", "b")],
            &["PET_MASTER_ADDR and MASTER_ADDR differ", "--endpoint"]),
        ("ordinal beyond the nodes", &[("POD_NAME", "train-llm-3"), ("NNODES", "3")],
            &["node rank 3 (from POD_NAME)", "3 nodes (from NNODES)", "0 to 2"]),
        ("rank beyond the world", &[("RANK", "4"), ("WORLD_SIZE", "4"), ("PET_NNODES", "8")],
            &["RANK=4 does not fit WORLD_SIZE=4"]),
        ("world fits nothing", &[("PET_NNODES", "4"), ("PET_NPROC_PER_NODE", "8"), ("WORLD_SIZE", "16")],
            &["WORLD_SIZE=16 fits neither 4 nodes (from PET_NNODES)",
            "(32, processes from PET_NPROC_PER_NODE)"]),
        ("world is uneven", &[("PET_NPROC_PER_NODE", "8"), ("WORLD_SIZE", "12")],
            &["no multiple of 8", "--nodes"]),
        ("rank inside a node", &[("PET_NPROC_PER_NODE", "8"), ("RANK", "3"), ("WORLD_SIZE", "32")],
            &["RANK=3 is not the first rank"]),
        ("random suffix", &[("POD_NAME", "job-3-24568"), ("JOB_COMPLETION_INDEX", "3"),
            ("NODE_RANK", "24568")],
            &["NODE_RANK=24568 is the random end", "`job-3-24568`", "JOB_COMPLETION_INDEX", "(here 3)"]),
        ("random suffix with letters", &[("POD_NAME", "job-0-x7k2p"), ("RANK", "x7k2p"), ("WORLD_SIZE", "2")],
            &["RANK=x7k2p is the random end"]),
        ("a deployment's pod", &[("POD_NAME", "train-5d8f7c9b4f-24568"), ("POD_NUMS", "2"),
            ("SVC_NAME", "s")], &["ends in random characters"]),
        ("service link", &[("MASTER_ADDR", "master"), ("MASTER_PORT", "tcp://10.96.0.7:29500")],
            &["Service `master`", "enableServiceLinks: false"]),
        ("service link as endpoint", &[("PET_RDZV_ENDPOINT", "tcp://10.96.0.7:29500")],
            &["PET_RDZV_ENDPOINT: ", "Kubernetes injects"]),
        ("a hole in a name", &[("MASTER_ADDR", "job-0..ns.svc")], &["MASTER_ADDR: ", "empty part"]),
        ("a part was never injected", &[("POD_NAME", "demo-1"), ("POD_NUMS", "2"), ("SVC_NAME", "")],
            &["SVC_NAME is set but empty", "demo-0.SVC_NAME"]),
        ("not a number", &[("PET_NODE_RANK", "two")], &["PET_NODE_RANK is `two`"]),
        ("no range", &[("PET_NNODES", "4:2")], &["PET_NNODES is `4:2`", "MIN:MAX"]),
    ];
    for (what, vars, words) in rows {
        let error = launched("host", vars).map(|launch| summary(&launch)).expect_err(what).to_string();
        for word in words {
            assert!(error.contains(word), "{what}: {word:?} is not in: {error}");
        }
    }
}

#[test]
fn a_job_set_of_several_jobs_needs_their_number() {
    let vars = [("JOB_INDEX", "1"), ("JOB_COMPLETION_INDEX", "0"), ("NNODES", "4")];
    let error = launched("h", &vars).expect_err("unknown").to_string();
    assert!(error.contains("REPLICATED_JOB_REPLICAS"), "{error}");
}

#[test]
fn the_endpoint_comes_from_the_environment_in_this_order() {
    let all = [("PET_RDZV_ENDPOINT", "r:1"), ("PET_MASTER_ADDR", "::1"), ("PET_MASTER_PORT", "3")];
    let found = |vars: &[(&str, &str)]| {
        let env: Environment = vars.iter().copied().collect();
        endpoint(&env, &Given::default())
            .map(|found| found.map(|found| (found.value.to_string(), found.from)))
    };
    assert_eq!(found(&all), Ok(Some(("r:1".into(), "PET_RDZV_ENDPOINT".into()))));
    assert_eq!(found(&all[1..]), Ok(Some(("[::1]:3".into(), "PET_MASTER_ADDR and PET_MASTER_PORT".into()))));
    assert_eq!(found(&[("MASTER_ADDR", "m")]), Ok(Some(("m:29500".into(), "MASTER_ADDR".into()))));
    // As in torchrun.
    assert_eq!(
        found(&[("PET_RDZV_ENDPOINT", "r")]),
        Ok(Some(("r:29400".into(), "PET_RDZV_ENDPOINT".into())))
    );
    assert_eq!(found(&[("MASTER_ADDR", "")]), Ok(None));
}

#[test]
fn an_endpoint_is_read_with_its_backend() {
    let meeting = |vars: &[(&str, &str)], command: &str| {
        let env: Environment = vars.iter().copied().collect();
        let command = Torchrun::parse(&shlex::split(command).expect("words"));
        derive(&env, &Given::default(), command.as_ref()).expect("consistent").endpoint.expect("one").value
    };
    let at = |text: &str| text.parse::<Endpoint>().expect("an endpoint");
    let plugin = ("PET_RDZV_BACKEND", "rallypoint");
    for text in ["rally:8080", "http://rally:8080/", "https://rally:8080"] {
        let it = meeting(&[plugin, ("PET_RDZV_ENDPOINT", text), ("MASTER_ADDR", "other")], "");
        assert_eq!(it, Meeting::Admin(at("rally:8080")), "{text}");
        assert_eq!(it.store(), at("rally:29500"));
    }
    assert_eq!(meeting(&[plugin, ("PET_RDZV_ENDPOINT", "rally")], ""), Meeting::Admin(at("rally:29501")));
    let flags = "torchrun --rdzv-backend=rallypoint --rdzv-endpoint=rally:29501 t.py";
    assert_eq!(meeting(&[], flags), Meeting::Admin(at("rally:29501")));
    // The command's backend wins, and an address that no rendezvous has is a store.
    let c10d = "torchrun --rdzv-backend=c10d --rdzv-endpoint=rally:1 t.py";
    assert_eq!(meeting(&[plugin], c10d), Meeting::Store(at("rally:1")));
    assert_eq!(meeting(&[plugin, ("MASTER_ADDR", "m")], ""), Meeting::Store(at("m:29500")));
}
