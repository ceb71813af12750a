//! Whole jobs, as platforms make them: with variables missing, with variables of two platforms, or with
//! nonsense values. In every case, each value is correct or absent, no two nodes get one rank, a refusal
//! names its variables, each value has its true source, and nothing panics.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

use super::*;

const NODES: u32 = 3;
const EACH: u32 = 2;

/// A process, or the one launcher of a node.
#[derive(Debug, Clone)]
struct Member {
    host: String,
    node: u32,
    /// Its rank and its rank on the node, if the platform starts each process.
    process: Option<(u32, u32)>,
    vars: BTreeMap<String, String>,
}

/// A job of a platform.
#[derive(Debug, Clone)]
struct World {
    name: &'static str,
    members: Vec<Member>,
}

/// A job with a launcher on each node. In the values, `{r}` is the node's rank, and `{r1}` is the number from
/// 1 on.
fn launchers(name: &'static str, host: &str, vars: &[(&str, &str)]) -> World {
    let fill = |text: &str, rank: u32| {
        text.replace("{r}", &rank.to_string())
            .replace("{r1}", &(rank + 1).to_string())
            .replace("{n}", &NODES.to_string())
    };
    let member = |node| Member {
        host: fill(host, node),
        node,
        process: None,
        vars: vars.iter().map(|(name, value)| ((*name).to_owned(), fill(value, node))).collect(),
    };
    World { name, members: (0..NODES).map(member).collect() }
}

/// A job whose processes all have variables: `{g}` rank, `{l}` rank on the node, `{w}` all processes, `{e}`
/// processes per node.
fn processes(name: &'static str, host: &str, vars: &[(&str, &str)]) -> World {
    let nodes = launchers(name, host, vars);
    let member = |node: &Member, local: u32| {
        let rank = node.node * EACH + local;
        let fill = |text: &String| {
            let text = text.replace("{g}", &rank.to_string()).replace("{l}", &local.to_string());
            text.replace("{w}", &(NODES * EACH).to_string()).replace("{e}", &EACH.to_string())
        };
        Member {
            process: Some((rank, local)),
            vars: node.vars.iter().map(|(name, value)| (name.clone(), fill(value))).collect(),
            ..node.clone()
        }
    };
    let members = nodes.members.iter().flat_map(|node| (0..EACH).map(move |local| member(node, local)));
    World { name, members: members.collect() }
}

#[rustfmt::skip]
fn worlds() -> Vec<World> {
    let k8s = K8S;
    let mut all = vec![
        launchers("torchrun", "h{r}", &[("PET_NODE_RANK", "{r}"), ("PET_NNODES", "{n}"),
            ("PET_NPROC_PER_NODE", "2"), ("PET_MASTER_ADDR", "h0"), ("PET_RDZV_ID", "run")]),
        launchers("by hand", "h{r}", &[("NODE_RANK", "{r}"), ("NNODES", "{n}"), ("MASTER_ADDR", "h0"),
            ("MASTER_PORT", "29500")]),
        launchers("indexed job", "t-{r}", &[k8s, ("JOB_COMPLETION_INDEX", "{r}"), ("NNODES", "{n}"),
            ("MASTER_ADDR", "t-0.t")]),
        launchers("stateful set", "t-{r}", &[k8s, ("POD_INDEX", "{r}"), ("POD_NAME", "t-{r}"),
            ("NNODES", "{n}")]),
        launchers("job set of one job", "js-w-0-{r}", &[k8s, ("JOBSET_NAME", "js"),
            ("REPLICATED_JOB_NAME", "w"), ("JOB_INDEX", "0"), ("JOB_COMPLETION_INDEX", "{r}"),
            ("NNODES", "{n}"), ("MASTER_ADDR", "js-w-0-0.js")]),
        launchers("job set of single pods", "js-w-{r}-0", &[k8s, ("JOBSET_NAME", "js"), ("JOB_INDEX", "{r}"),
            ("JOB_GLOBAL_INDEX", "{r}"), ("REPLICATED_JOB_REPLICAS", "{n}"), ("JOB_COMPLETION_INDEX", "0"),
            ("NNODES", "{n}"), ("MASTER_ADDR", "js-w-0-0.js")]),
        launchers("train job", "j-node-0-{r}", &[k8s, ("JOB_COMPLETION_INDEX", "{r}"), ("PET_NNODES", "{n}"),
            ("PET_NODE_RANK", "{r}"), ("PET_NPROC_PER_NODE", "auto"), ("PET_MASTER_ADDR", "j-node-0-0.j"),
            ("PET_MASTER_PORT", "29500")]),
        launchers("py torch job on the host's network", "gpu{r}", &[k8s, ("MASTER_ADDR", "j-master-0"),
            ("MASTER_PORT", "23456"), ("RANK", "{r}"), ("WORLD_SIZE", "6"), ("PET_NODE_RANK", "{r}"),
            ("PET_NNODES", "{n}"), ("PET_NPROC_PER_NODE", "2")]),
        launchers("leader worker set", "l-0-{r}", &[k8s, ("LWS_LEADER_ADDRESS", "l-0.l.ns"),
            ("LWS_GROUP_SIZE", "{n}"), ("LWS_WORKER_INDEX", "{r}")]),
        launchers("volcano of one task", "v-w-{r}", &[k8s, ("VC_W_HOSTS", "v-w-0.v,v-w-1.v,v-w-2.v"),
            ("VC_W_NUM", "{n}"), ("VC_TASK_INDEX", "{r}")]),
        launchers("torchx on volcano", "a-t-{r}-0", &[k8s, ("VC_T_0_HOSTS", "a-t-0-0.a"),
            ("VC_T_1_HOSTS", "a-t-1-0.a"), ("VC_T_2_HOSTS", "a-t-2-0.a"), ("VC_TASK_INDEX", "0"),
            ("TORCHX_REPLICA_IDX", "{r}"), ("TORCHX_ROLE_IDX", "0"), ("TORCHX_JOB_ID", "kubernetes://q/a")]),
        launchers("sky pilot", "s{r}", &[("SKYPILOT_NODE_RANK", "{r}"), ("SKYPILOT_NUM_NODES", "{n}"),
            ("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2\n10.0.0.3"), ("SKYPILOT_NUM_GPUS_PER_NODE", "2"),
            ("SKYPILOT_TASK_ID", "s-1")]),
        launchers("dstack", "d{r}", &[("DSTACK_NODE_RANK", "{r}"), ("DSTACK_NODES_NUM", "{n}"),
            ("DSTACK_MASTER_NODE_IP", "10.0.0.1"), ("DSTACK_RUN_ID", "d")]),
        launchers("aws batch", "b{r}", &[("AWS_BATCH_JOB_ID", "id#{r}"), ("AWS_BATCH_JOB_NODE_INDEX", "{r}"),
            ("AWS_BATCH_JOB_NUM_NODES", "{n}"), ("AWS_BATCH_JOB_MAIN_NODE_INDEX", "0"),
            ("AWS_BATCH_JOB_ATTEMPT", "1")]),
        launchers("sage maker", "algo-{r1}", &[("SM_HOSTS", r#"["algo-1","algo-2","algo-3"]"#),
            ("SM_CURRENT_HOST", "algo-{r1}"), ("TRAINING_JOB_NAME", "t")]),
        launchers("lsf", "h{r}.site", &[("LSB_JOBID", "5"), ("LSB_MCPU_HOSTS", "h0 4 h1 4 h2 4")]),
        launchers("pbs", "p{r}", &[("PBS_JOBID", "5"), ("PBS_NUM_NODES", "{n}"), ("PBS_NODENUM", "0")]),
        launchers("slurm, one task a node", "n{r}", &[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"),
            ("SLURM_NNODES", "{n}"), ("SLURM_NODEID", "{r}"), ("SLURM_PROCID", "{r}"),
            ("SLURM_NTASKS", "{n}"), ("SLURM_LOCALID", "0"), ("SLURM_TASKS_PER_NODE", "1(x3)"),
            ("SLURM_JOB_NODELIST", "n[0-2]")]),
        launchers("mpirun, one process a node", "m{r}", &[("OMPI_COMM_WORLD_RANK", "{r}"),
            ("OMPI_COMM_WORLD_SIZE", "{n}"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"), ("OMPI_COMM_WORLD_NODE_RANK", "0")]),
        launchers("lepton", "j-{r}", &[k8s, ("LEPTON_JOB_WORKER_INDEX", "{r}"),
            ("LEPTON_JOB_TOTAL_WORKERS", "{n}"), ("LEPTON_JOB_NAME", "j")]),
        launchers("parallel universe of condor", "c{r}", &[("_CONDOR_PROCNO", "{r}"),
            ("_CONDOR_NPROCS", "{n}")]),
        launchers("arnold", "a{r}", &[("ARNOLD_ID", "{r}"), ("ARNOLD_WORKER_NUM", "{n}"),
            ("ARNOLD_WORKER_GPU", "2"), ("ARNOLD_WORKER_0_HOST", "a0")]),
        launchers("grid engine", "g{r}", &[("PE_HOSTFILE", "/spool/pe"), ("NHOSTS", "{n}"), ("JOB_ID", "5")]),
        launchers("modal", "x", &[("MODAL_TASK_ID", "ta-{r}")]),
        launchers("nobody's", "x{r}", &[("ACME_NODE_RANK", "{r}"), ("ACME_NUM_NODES", "{n}")]),
        processes("azure ml", "z{r}", &[("MASTER_ADDR", "10.0.0.4"), ("MASTER_PORT", "6105"), ("RANK", "{g}"),
            ("LOCAL_RANK", "{l}"), ("WORLD_SIZE", "{w}"), ("NODE_RANK", "{r}"), ("AZUREML_NODE_COUNT", "{n}"),
            ("AZUREML_RUN_ID", "z")]),
        processes("torchrun's workers", "h{r}", &[("RANK", "{g}"), ("LOCAL_RANK", "{l}"),
            ("WORLD_SIZE", "{w}"), ("LOCAL_WORLD_SIZE", "{e}"), ("MASTER_ADDR", "h0")]),
        processes("lightning", "h{r}", &[("LOCAL_RANK", "{l}"), ("WORLD_SIZE", "{w}"), ("NODE_RANK", "{r}"),
            ("MASTER_ADDR", "h0")]),
        processes("kubetorch", "s-7d9f8b6c5d-x7k2p", &[k8s, ("KT_SERVICE", "s"), ("RANK", "{g}"),
            ("LOCAL_RANK", "{l}"), ("WORLD_SIZE", "{w}"), ("NODE_RANK", "{r}"), ("LOCAL_WORLD_SIZE", "{e}")]),
        processes("slurm", "n{r}", &[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_NNODES", "{n}"),
            ("SLURM_NODEID", "{r}"), ("SLURM_PROCID", "{g}"), ("SLURM_NTASKS", "{w}"),
            ("SLURM_LOCALID", "{l}"), ("SLURM_TASKS_PER_NODE", "2(x3)"), ("SLURM_JOB_NODELIST", "n[0-2]")]),
        processes("mpirun", "m{r}", &[("OMPI_COMM_WORLD_RANK", "{g}"), ("OMPI_COMM_WORLD_SIZE", "{w}"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "{l}"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "{e}"),
            ("OMPI_COMM_WORLD_NODE_RANK", "{l}")]),
        processes("mpiexec, which hands on what the job's script has", "m{r}", &[("PMI_RANK", "{g}"),
            ("PMI_SIZE", "{w}"), ("MPI_LOCALRANKID", "{l}"), ("MPI_LOCALNRANKS", "{e}"), ("PBS_JOBID", "5"),
            ("PBS_NODENUM", "0"), ("SLURM_JOB_ID", "7"), ("SLURM_NNODES", "{n}"), ("SLURM_NODEID", "0"),
            ("SLURM_PROCID", "0")]),
        processes("flux", "f{r}", &[("FLUX_JOB_ID", "f"), ("FLUX_TASK_RANK", "{g}"),
            ("FLUX_TASK_LOCAL_ID", "{l}"), ("FLUX_JOB_SIZE", "{w}"), ("FLUX_JOB_NNODES", "{n}")]),
        processes("horovod", "h{r}", &[("HOROVOD_RANK", "{g}"), ("HOROVOD_SIZE", "{w}"),
            ("HOROVOD_LOCAL_RANK", "{l}"), ("HOROVOD_LOCAL_SIZE", "{e}"), ("HOROVOD_CROSS_RANK", "{r}")]),
    ];
    let mut task = launchers("volcano with a master", "", &[k8s, ("VC_MASTER_HOSTS", "v-master-0.v"),
        ("VC_WORKER_HOSTS", "v-worker-0.v,v-worker-1.v"), ("VC_MASTER_NUM", "1"), ("VC_WORKER_NUM", "2")]);
    let mut spec = launchers("vertex", "w{r}", &[("CLOUD_ML_JOB_ID", "7")]);
    for rank in 0..3 {
        let (of, index) = if rank == 0 { (0, 0) } else { (1, rank - 1) };
        let (task, spec) = (&mut task.members[rank], &mut spec.members[rank]);
        task.host = format!("v-{}-{index}", ["master", "worker"][of]);
        task.vars.insert("VC_TASK_INDEX".into(), index.to_string());
        let cluster = r#"{"workerpool0":["w0:2222"],"workerpool1":["w1:2222","w2:2222"]}"#;
        spec.vars.insert("CLUSTER_SPEC".into(),
            format!(r#"{{"cluster":{cluster},"task":{{"type":"workerpool{of}","index":{index}}}}}"#));
    }
    all.extend([task, spec]);
    all
}

fn derived(host: &str, vars: &BTreeMap<String, String>) -> Result<LaunchEnv, LaunchError> {
    let env: Environment = vars.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    derive(&env, &Given { hostname: host.into(), ..Given::default() }, None)
}

fn value<T: Copy>(derived: Option<&Derived<T>>) -> Option<T> {
    derived.map(|derived| derived.value)
}

/// The names of variables in a text.
fn names(text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c| !is_name(c));
    words.filter(|word| word.len() > 3 && word.contains(|c: char| c.is_ascii_uppercase())).collect()
}

/// Each value has a source in the environment, and each refusal names one.
fn check_words(world: &str, vars: &BTreeMap<String, String>, launch: &Result<LaunchEnv, LaunchError>) {
    match launch {
        Ok(launch) => {
            let mut sources: Vec<&str> = Vec::new();
            sources.extend(
                [&launch.node_rank, &launch.rank, &launch.world_size, &launch.local_rank]
                    .into_iter()
                    .flatten()
                    .map(|it| &*it.from),
            );
            sources.extend(launch.nodes.iter().map(|it| &*it.from));
            sources.extend(launch.nproc_per_node.iter().map(|it| &*it.from));
            sources.extend(launch.endpoint.iter().map(|it| &*it.from));
            sources.extend(launch.run_id.iter().map(|it| &*it.from));
            for source in sources {
                assert!(!source.is_empty(), "{world}: {launch:?}");
                let of_the_host = source.contains("the host's name");
                let named = names(source);
                assert!(of_the_host || !named.is_empty(), "{world}: {source}: {launch:?}");
                for name in named {
                    assert!(vars.contains_key(name), "{world}: {source} is not in {vars:?}");
                }
            }
        }
        Err(error) => {
            let text = error.to_string();
            let named = names(&text).into_iter().any(|name| vars.contains_key(name));
            assert!(
                named || text.contains("the host's name") || text.contains("is not set"),
                "{world}: {text} names nothing of {vars:?}"
            );
        }
    }
}

/// Each value is correct or absent, and no two members share a rank.
fn check_truth(world: &World, changed: &[BTreeMap<String, String>]) {
    let mut place_of_rank = BTreeMap::new();
    let mut runs = Vec::new();
    for (member, vars) in world.members.iter().zip(changed) {
        let launch = derived(&member.host, vars);
        check_words(world.name, vars, &launch);
        let Ok(launch) = launch else { continue };
        let context = format!("{}: {vars:?}: {launch:?}", world.name);
        if let Some(rank) = value(launch.node_rank.as_ref()) {
            assert_eq!(rank, member.node, "{context}");
            assert_eq!(*place_of_rank.entry(rank).or_insert(member.node), member.node, "{context}");
        }
        if let Some(nodes) = value(launch.nodes.as_ref()) {
            assert_eq!(nodes, Nodes::exactly(NODES), "{context}");
        }
        // Without any variable of a process, it is the only process of its node.
        let process = member.process.filter(|_| vars.keys().any(|name| of_a_process(name)));
        if let (Some(rank), Some((process, local))) = (value(launch.rank.as_ref()), process) {
            assert_eq!(rank, process, "{context}");
            assert!(value(launch.local_rank.as_ref()).is_none_or(|said| said == local), "{context}");
            assert!(value(launch.world_size.as_ref()).is_none_or(|said| said == NODES * EACH), "{context}");
        }
        runs.extend(launch.run_id.map(|run_id| run_id.value));
    }
    runs.dedup();
    assert!(runs.len() < 2, "{}: {runs:?}", world.name);
}

fn of_a_process(name: &str) -> bool {
    let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"];
    let starts =
        ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_TASKS", "OMPI_", "PMI_", "MPI_", "HOROVOD_"];
    names.contains(&name) || starts.iter().any(|start| name.starts_with(start))
}

#[test]
fn whole_jobs_of_every_platform_are_counted_once() {
    for world in worlds() {
        let full: Vec<_> = world.members.iter().map(|member| member.vars.clone()).collect();
        check_truth(&world, &full);
    }
}

/// Without `LOCAL_RANK` of its environment, a process looks like one process per pod: torch's variables have
/// this meaning if there are no others.
fn looks_like_one_process_a_pod(vars: &BTreeMap<String, String>) -> bool {
    let env: Environment = vars.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    vars.contains_key("RANK")
        && !vars.contains_key("LOCAL_RANK")
        && Platform::recognize(&env, "h").id == "variables"
        || vars.contains_key("WORLD_SIZE")
            && !vars.contains_key("LOCAL_RANK")
            && !vars.contains_key("NODE_RANK")
}

/// Variables that give others their meaning: without them, a platform's variables mean something else.
const NEVER_MISSING: [&str; 10] = [
    "KUBERNETES_SERVICE_HOST",
    "VC_MASTER_HOSTS",
    "VC_WORKER_HOSTS",
    "VC_T_0_HOSTS",
    "VC_T_1_HOSTS",
    "JOBSET_NAME",
    "JOB_INDEX",
    "SLURM_NNODES",
    "SLURM_TASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
];

const NEARER: [&str; 4] = ["OMPI_", "PMI_", "FLUX_", "HOROVOD_"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn with_variables_missing_a_job_is_told_the_truth_or_nothing(
        at in any::<Index>(),
        missing in any::<[bool; 16]>(),
    ) {
        let all = worlds();
        let world = at.get(&all);
        let names: Vec<&String> = world.members[0].vars.keys().collect();
        let gone = |name: &String| {
            let at = names.iter().position(|known| *known == name).unwrap_or(0);
            missing[at % missing.len()] && !NEVER_MISSING.contains(&name.as_str())
        };
        let left: Vec<BTreeMap<String, String>> = world.members.iter().map(|member| {
            member.vars.iter().filter(|(name, _)| !gone(name)).map(|(name, value)| (name.clone(),
                value.clone())).collect()
        }).collect();
        if !looks_like_one_process_a_pod(&left[0]) {
            check_truth(world, &left);
        }
    }

    #[test]
    fn two_platforms_that_disagree_are_not_both_right(
        (one, two) in (any::<Index>(), any::<Index>()),
        (first, second) in (any::<Index>(), any::<Index>()),
        host_of_first in any::<bool>(),
    ) {
        let all = worlds();
        let (one, two) = (one.get(&all), two.get(&all));
        let (a, b) = (first.get(&one.members), second.get(&two.members));
        let mut vars = a.vars.clone();
        // If both set a variable, only one value remains, and the other platform did not set it.
        let shared = b.vars.iter().any(|(name, value)| vars.get(name).is_some_and(|other| other != value));
        prop_assume!(!shared);
        vars.extend(b.vars.clone());
        let host = if host_of_first { &a.host } else { &b.host };
        let launch = derived(host, &vars);
        let context = format!("{} and {} on {host}: {vars:?}: {launch:?}", one.name, two.name);
        check_words(&context, &vars, &launch);
        let Ok(launch) = launch else { return Ok(()) };
        // Inside a Slurm job, a launcher of processes is nearer: Slurm counts the processes that started the
        // launcher.
        let is_nearer = |name: &String| NEARER.iter().any(|nearer| name.starts_with(nearer));
        let launcher = |member: &Member| member.vars.keys().any(is_nearer);
        let nearer = launcher(a) || launcher(b);
        for (member, other) in [(a, b), (b, a)] {
            if nearer && member.vars.contains_key("SLURM_JOB_ID") && !launcher(member) {
                continue;
            }
            // With more tasks, or with the RANK of a pod, Volcano's index within a task is not the pod's
            // index.
            let of_a_pod = vars.contains_key("RANK") && !vars.contains_key("LOCAL_RANK");
            let is_volcano = |member: &Member| member.vars.contains_key("VC_TASK_INDEX");
            if is_volcano(member) && (of_a_pod || is_volcano(other)) {
                continue;
            }
            let Ok(alone) = derived(host, &member.vars) else { continue };
            if let (Some(said), Some(alone)) = (value(launch.node_rank.as_ref()),
                value(alone.node_rank.as_ref())) {
                prop_assert_eq!(said, alone, "{}", context);
            }
            // A launcher of nodes says nothing about processes.
            let process = alone.rank.as_ref().filter(|_| member.process.is_some());
            if let (Some(said), Some(alone)) = (value(launch.rank.as_ref()), value(process)) {
                prop_assert_eq!(said, alone, "{}", context);
            }
            if let (Some(said), Some(alone)) = (value(launch.nodes.as_ref()), value(alone.nodes.as_ref())) {
                prop_assert_eq!(said, alone, "{}", context);
            }
        }
    }

    #[test]
    fn nonsense_is_refused_or_left_out(
        host in "[a-z]{1,3}(-[a-z]{1,6})?(-[0-9]{1,2}){0,2}",
        at in subsequence((0..120_usize).collect::<Vec<_>>(), 0..12),
        values in proptest::collection::vec(
            prop_oneof![
                "[0-9]{1,2}", "[0-9]{1,11}", "", "[a-z]{1,4}", "[0-9]:[0-9]", "auto",
                    "[0-9]\\(x[0-9]\\)(,[0-9])?", "[a-z]\\[[0-9-]{1,4}\\]?",
                "\\[\"[a-z]\"\\]", "[a-z] [0-9] [a-z] [0-9]", "[a-z]-0.[a-z],[a-z]-1.[a-z]",
                    "\\{\"cluster\":\\{\\},\"task\":[0-9]\\}", "\\PC{0,8}",
            ], 12),
        torchrun in any::<bool>(),
    ) {
        let mut known: Vec<&str> = Platform::ALL.iter().flat_map(|platform| platform.says().map(|(name,
            _)| name)).collect();
        known.extend(["RANK", "WORLD_SIZE", "LOCAL_RANK", "PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE",
            "MASTER_ADDR", "MASTER_PORT",
            "PET_RDZV_ENDPOINT", "SLURM_NODEID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NNODES",
                "SLURM_STEP_ID", "SLURM_TASKS_PER_NODE",
            "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "VC_A_HOSTS", "VC_B_HOSTS", "VC_TASK_INDEX",
                "JOB_COMPLETION_INDEX", "JOB_INDEX",
            "JOBSET_NAME", "REPLICATED_JOB_REPLICAS", "KUBERNETES_SERVICE_HOST", "POD_NAME",
                "LWS_LEADER_ADDRESS", "POD_NUMS", "SVC_NAME"]);
        known.sort_unstable();
        known.dedup();
        let vars: BTreeMap<String, String> = at.iter().zip(values)
            .filter_map(|(at, value)| Some(((*known.get(*at)?).to_owned(), value)))
            .collect();
        let env: Environment = vars.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let command = Torchrun::parse(&["torchrun".into(), "t.py".into()]);
        let given = Given { hostname: host, ..Given::default() };
        let launch = derive(&env, &given, command.as_ref().filter(|_| torchrun));
        check_words("nonsense", &vars, &launch);
        let _ = (endpoint(&env, &given), node_rank(&env, &given));
    }
}
