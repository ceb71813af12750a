//! For each platform: the values that its variables give, and the values that they leave open.

use super::*;

fn ranks(launch: &LaunchEnv) -> [String; 3] {
    [&launch.rank, &launch.world_size, &launch.local_rank]
        .map(|value| value.as_ref().map_or_else(|| "-".into(), |value| value.value.to_string()))
}

#[test]
fn each_row_of_the_table_says_who_its_nodes_are() {
    const TWO_POOLS: &str = r#"{"cluster":{"workerpool0":["w0:2222"],"workerpool1":["w1:2222","w2:2222"]},
        "environment":"cloud","task":{"type":"workerpool1","index":1}}"#;
    #[rustfmt::skip]
    let rows: [(&str, Vars, [&str; 6]); 29] = [
        ("b", &[("BEAKER_REPLICA_RANK", "1"), ("BEAKER_REPLICA_COUNT", "4"),
            ("BEAKER_ASSIGNED_GPU_COUNT", "8"), ("BEAKER_LEADER_REPLICA_HOSTNAME", "cs-1")],
            ["Beaker", "1", "4", "-", "cs-1:29500", "-"]),
        ("sky-1", &[("SKYPILOT_NODE_RANK", "1"), ("SKYPILOT_NUM_NODES", "2"),
            ("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2"),
            ("SKYPILOT_NUM_GPUS_PER_NODE", "8"), ("SKYPILOT_TASK_ID", "sky-1_c_1")],
            ["SkyPilot", "1", "2", "-", "10.0.0.1:29500", "sky-1_c_1"]),
        ("d", &[("DSTACK_NODE_RANK", "1"), ("DSTACK_NODES_NUM", "2"), ("DSTACK_MASTER_NODE_IP", "10.0.0.1"),
            ("DSTACK_NODES_IPS", "10.0.0.1\n10.0.0.2"), ("DSTACK_RUN_NAME", "wet-mangust-1"),
                ("DSTACK_RUN_ID", "5e7c"), ("DSTACK_GPUS_PER_NODE", "1")],
            ["dstack", "1", "2", "-", "10.0.0.1:29500", "5e7c"]),
        ("b", &[("AWS_BATCH_JOB_ID", "1234#1"), ("AWS_BATCH_JOB_NODE_INDEX", "1"),
            ("AWS_BATCH_JOB_NUM_NODES", "4"), ("AWS_BATCH_JOB_MAIN_NODE_INDEX", "0"),
            ("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "10.0.0.7"), ("AWS_BATCH_JOB_ATTEMPT", "2")],
            ["AWS Batch", "1", "4", "-", "10.0.0.7:29500", "1234-retry1"]),
        ("algo-2", &[("SM_HOSTS", r#"["algo-1","algo-2"]"#), ("SM_CURRENT_HOST", "algo-2"),
            ("SM_NUM_GPUS", "8"), ("TRAINING_JOB_NAME", "t-1")],
            ["SageMaker", "1", "2", "-", "algo-1:29500", "t-1"]),
        ("w2", &[("CLUSTER_SPEC", TWO_POOLS), ("CLOUD_ML_JOB_ID", "77"), ("CLOUD_ML_TRIAL_ID", "3")],
            ["Vertex AI", "2", "3", "-", "w0:29500", "77-3"]),
        ("j", &[("TF_CONFIG",
            r#"{"cluster":{"worker":["j-worker-0.ns.svc:2222","b:1"]},"task":{"type":"worker","index":0}}"#)],
            ["TF_CONFIG (TFJob and others)", "0", "2", "-", "j-worker-0.ns.svc:29500", "-"]),
        ("x", &[("TORCHX_JOB_ID", "slurm://s/app"), ("TORCHX_REPLICA_IDX", "1"), ("TORCHX_ROLE_IDX", "0"),
            ("TORCHX_RANK0_HOST", "n1")],
            ["TorchX", "1", "-", "-", "n1:29500", "slurm://s/app"]),
        // TorchX makes each replica a Volcano task of one pod, so every pod has the task index 0.
        ("app-trainer-1-0", &[K8S, ("VC_TASK_INDEX", "0"), ("VC_TRAINER_0_HOSTS", "app-trainer-0-0.app"),
            ("VC_TRAINER_1_HOSTS", "app-trainer-1-0.app"),
            ("TORCHX_REPLICA_IDX", "1"), ("TORCHX_ROLE_IDX", "0"), ("NNODES", "2")],
            ["Volcano", "1", "2", "-", "-", "app"]),
        ("app-trainer-1-0", &[K8S, ("VC_TASK_INDEX", "0"), ("VC_TRAINER_0_HOSTS", "app-trainer-0-0.app"),
            ("VC_TRAINER_1_HOSTS", "app-trainer-1-0.app"),
            ("TORCHX_REPLICA_IDX", "1"), ("TORCHX_ROLE_IDX", "0")],
            ["Volcano", "1", "-", "-", "-", "app"]),
        ("z", &[("MASTER_ADDR", "10.0.0.4"), ("MASTER_PORT", "6105"), ("RANK", "8"), ("LOCAL_RANK", "0"),
            ("WORLD_SIZE", "16"), ("NODE_RANK", "1"),
            ("AZUREML_NODE_COUNT", "2"), ("AZUREML_RUN_ID", "run_1")],
                ["Azure ML", "1", "2", "8", "10.0.0.4:6105", "run_1"]),
        ("job-1", &[("LEPTON_JOB_WORKER_INDEX", "1"), ("LEPTON_JOB_TOTAL_WORKERS", "2"),
            ("LEPTON_JOB_NAME", "job")], ["Lepton", "1", "2", "-", "-", "job"]),
        ("n", &[("NGC_ARRAY_INDEX", "1"), ("NGC_ARRAY_SIZE", "2"), ("NGC_MASTER_ADDR", "launcher"),
            ("NGC_JOB_ID", "9")],
            ["NGC Base Command", "1", "2", "-", "launcher:29500", "9"]),
        ("v", &[("MLP_ROLE_INDEX", "1"), ("MLP_WORKER_NUM", "2"), ("MLP_WORKER_0_HOST", "h0"),
            ("MLP_WORKER_0_PORT", "2222")],
            ["Volcengine ML Platform", "1", "2", "-", "h0:2222", "-"]),
        ("jax", &[K8S, ("PROCESS_ID", "1"), ("NUM_PROCESSES", "2"), ("COORDINATOR_ADDRESS", "job-worker-0"),
            ("COORDINATOR_PORT", "6666")],
            ["Kubeflow JAXJob (v1)", "1", "2", "-", "job-worker-0:6666", "-"]),
        ("det", &[("DET_ALLOCATION_ID", "a.1"), ("DET_CHIEF_IP", "10.0.0.9")],
            ["Determined", "-", "-", "-", "10.0.0.9:29500", "a.1"]),
        ("m", &[("MODAL_TASK_ID", "ta-1")], ["Modal", "-", "-", "-", "-", "-"]),
        // A single task on a node is the node; several tasks are processes.
        ("f1", &[("FLUX_JOB_ID", "f1"), ("FLUX_TASK_RANK", "1"), ("FLUX_JOB_SIZE", "2"),
            ("FLUX_JOB_NNODES", "2"), ("FLUX_TASK_LOCAL_ID", "0")],
            ["Flux", "1", "2", "-", "-", "f1"]),
        ("h2.site", &[("LSB_JOBID", "5"), ("LSB_JOBINDEX", "0"), ("LSB_MCPU_HOSTS", "h1 8 h2 8")],
            ["LSF", "1", "2", "-", "h1:29500", "5"]),
        ("batch1", &[("LSB_JOBID", "5"), ("LSB_MCPU_HOSTS", "batch1 1 h1 42 h2 42")],
            ["LSF", "-", "-", "-", "-", "5"]),
        ("p", &[("PBS_JOBID", "6.srv"), ("PBS_NODENUM", "0"), ("PBS_NUM_NODES", "2")],
            ["PBS", "-", "2", "-", "-", "6.srv"]),
        ("g", &[("PE_HOSTFILE", "/spool/pe"), ("NHOSTS", "2"), ("NSLOTS", "16"), ("JOB_ID", "12")],
            ["Grid Engine (SGE, UGE)", "-", "2", "-", "-", "12"]),
        ("o", &[("OAR_JOB_ID", "8"), ("OAR_NODEFILE", "/var/lib/oar/8")], ["OAR", "-", "-", "-", "-", "8"]),
        ("c", &[("_CONDOR_PROCNO", "1"), ("_CONDOR_NPROCS", "2")],
            ["HTCondor, parallel universe", "1", "2", "-", "-", "-"]),
        ("b", &[("BATCH_TASK_INDEX", "1"), ("BATCH_TASK_COUNT", "2"), ("BATCH_JOB_UID", "j-1")],
            ["Google Cloud Batch", "1", "2", "-", "-", "j-1"]),
        ("a", &[("ARNOLD_ID", "1"), ("ARNOLD_WORKER_NUM", "2"), ("ARNOLD_WORKER_GPU", "8"),
            ("ARNOLD_WORKER_0_HOST", "10.0.0.3"), ("ARNOLD_WORKER_0_PORT", "9000,9001")],
            ["Arnold", "1", "2", "-", "10.0.0.3:29500", "-"]),
        ("o", &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
            ("OMPI_COMM_WORLD_NODE_RANK", "0")], ["Open MPI", "1", "2", "-", "-", "-"]),
        ("o", &[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "3"), ("MPI_LOCALNRANKS", "4")],
            ["MPICH, Intel MPI, MVAPICH (PMI)", "0", "1", "4", "-", "-"]),
        ("h", &[("HOROVOD_RANK", "9"), ("HOROVOD_SIZE", "16"), ("HOROVOD_LOCAL_RANK", "1"),
            ("HOROVOD_LOCAL_SIZE", "8"), ("NNODES", "2")],
            ["Horovod", "-", "2", "8", "-", "-"]),
    ];
    for (hostname, vars, expected) in rows {
        let launch = launched(hostname, vars).unwrap_or_else(|error| panic!("{hostname} {vars:?}: {error}"));
        assert_eq!(summary(&launch), expected, "{hostname} {vars:?}");
    }
}

#[test]
fn a_launcher_of_processes_says_their_ranks() {
    let ompi = [
        ("OMPI_COMM_WORLD_RANK", "9"),
        ("OMPI_COMM_WORLD_SIZE", "16"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "8"),
        ("OMPI_COMM_WORLD_NODE_RANK", "1"),
    ];
    let launch = launched("o", &ompi).expect("Open MPI");
    assert_eq!(ranks(&launch), ["9", "16", "1"]);
    // Ranks may be assigned round robin, so the node's rank does not follow.
    assert_eq!(summary(&launch)[1..4], ["-", "-", "8"]);
    assert!(
        launch.notes.iter().any(|note| note.contains("RALLYPOINT_NODE_RANK=\"$((OMPI_COMM")),
        "{launch:?}"
    );
    // mpirun inside a Slurm job: Slurm's variables describe mpirun's daemon, or the script of the job.
    let slurm = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_NNODES", "2"),
        ("SLURM_NODEID", "1"),
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "2"),
    ];
    let launch = launched("o", &[&ompi[..], &slurm].concat()).expect("in Slurm");
    assert_eq!(ranks(&launch), ["9", "16", "1"]);
    assert_eq!(summary(&launch)[1..], ["-", "-", "8", "-", "7"]);
    // A script made torch's variables from these numbers. Other numbers are a contradiction.
    let torch = [("RANK", "9"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "1")];
    assert_eq!(ranks(&launched("o", &[&ompi[..], &torch].concat()).expect("the same")), ["9", "16", "1"]);
    let error = launched("o", &[&ompi[..], &[("RANK", "3")]].concat()).expect_err("another").to_string();
    assert!(error.contains("OMPI_COMM_WORLD_RANK and RANK differ"), "{error}");
    // Eight torchruns on one node would all have one node rank.
    let env: Environment = ompi.into_iter().collect();
    let command = Torchrun::parse(&["torchrun".into(), "t.py".into()]).expect("torchrun");
    let error = derive(&env, &Given::default(), Some(&command)).expect_err("eight launchers").to_string();
    assert!(
        error.contains("OMPI_COMM_WORLD_LOCAL_SIZE says that 8") && error.contains("--npernode 1"),
        "{error}"
    );
}

#[test]
fn slurm_counts_tasks_as_it_started_them() {
    const JOB: [(&str, &str); 5] = [
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NNODES", "2"),
        ("SLURM_JOB_NUM_NODES", "2"),
        ("SLURM_STEP_NODELIST", "n[1-2]"),
    ];
    let job = |more: Vars<'static>| launched("n2", &[&JOB, more].concat());
    // Uneven tasks: each knows its own rank, but there is no number of processes per node.
    let uneven = job(&[
        ("SLURM_NTASKS", "12"),
        ("SLURM_TASKS_PER_NODE", "8,4"),
        ("SLURM_PROCID", "9"),
        ("SLURM_NODEID", "1"),
        ("SLURM_LOCALID", "1"),
    ]);
    let uneven = uneven.expect("uneven");
    assert_eq!(
        (ranks(&uneven), &summary(&uneven)[1..4]),
        (["9", "12", "1"].map(String::from), &["1", "2", "-"].map(String::from)[..])
    );
    // 13 tasks on 2 nodes, and no variable tells their places.
    let odd =
        job(&[("SLURM_NTASKS", "13"), ("SLURM_PROCID", "12"), ("SLURM_NODEID", "1"), ("SLURM_LOCALID", "5")])
            .expect("odd");
    assert_eq!((ranks(&odd), &summary(&odd)[3][..]), (["12", "13", "5"].map(String::from), "-"));
    // One task per node, with eight processes: the processes are not Slurm's tasks.
    let one = job(&[
        ("SLURM_NTASKS", "2"),
        ("SLURM_TASKS_PER_NODE", "1(x2)"),
        ("SLURM_PROCID", "1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_LOCALID", "0"),
        ("PET_NPROC_PER_NODE", "8"),
    ])
    .expect("one a node");
    assert_eq!(
        (ranks(&one), &summary(&one)[1..5]),
        (["-", "16", "-"].map(String::from), &["1", "2", "8", "n1:29500"].map(String::from)[..])
    );
    assert_eq!(one.endpoint.expect("the first node").from, "SLURM_STEP_NODELIST");
    // The script of the job, on the first node: it has the variables of a first task, but it starts no other
    // one.
    let script = [
        ("SLURM_JOB_ID", "77"),
        ("SLURM_NNODES", "2"),
        ("SLURM_NODEID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
    ];
    let batch = launched("n1", &script).expect("a script");
    assert_eq!(summary(&batch), ["Slurm", "-", "2", "-", "n1:29500", "77"]);
    assert!(batch.notes.iter().any(|note| note.contains("srun --ntasks-per-node=1")), "{:?}", batch.notes);
    // A requeued job, and one of several steps of a job.
    let again = job(&[("SLURM_RESTART_COUNT", "1"), ("SLURM_NODEID", "1")]).expect("requeued");
    assert_eq!(summary(&again)[5], "77-retry1");
    let part = [
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "3"),
        ("SLURM_STEP_NUM_NODES", "1"),
        ("SLURM_JOB_NUM_NODES", "4"),
        ("SLURM_NODEID", "0"),
    ];
    let part = launched("n4", &part).expect("a step of one node");
    assert_eq!(summary(&part)[1..], ["0", "1", "-", "-", "77.3"]);
    assert!(part.notes.iter().any(|note| note.contains("1 of the 4 nodes")), "{:?}", part.notes);
    // A heterogeneous job counts the nodes of each component separately.
    let error = job(&[("SLURM_HET_SIZE", "2"), ("SLURM_NODEID", "0")]).expect_err("components").to_string();
    assert!(error.contains("SLURM_HET_SIZE=2") && error.contains("--node-rank"), "{error}");
    let error = job(&[("SLURM_TASKS_PER_NODE", "8(x")]).expect_err("no number").to_string();
    assert!(error.contains("SLURM_TASKS_PER_NODE=`8(x`"), "{error}");
}

#[test]
fn world_size_is_not_the_nodes_where_another_rank_disproves_it() {
    let place = |vars| launched("h", vars).map(|launch| summary(&launch)[1..4].to_vec());
    // Process 8 is number 0 on node 1. Node 0 cannot derive the number of processes, so no node gets it.
    let process: Vars = &[("RANK", "8"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "16"), ("NODE_RANK", "1")];
    assert_eq!(place(process), Ok(["1", "-", "-"].map(String::from).to_vec()));
    let first: Vars = &[("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "16"), ("NODE_RANK", "0")];
    assert_eq!(place(first), Ok(["0", "-", "-"].map(String::from).to_vec()));
    let impossible: Vars = &[("RANK", "9"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "16"), ("NODE_RANK", "2")];
    let error = place(impossible).expect_err("no number of processes").to_string();
    assert!(error.contains("NODE_RANK and RANK differ"), "{error}");
    let lightning: Vars = &[("NODE_RANK", "1"), ("WORLD_SIZE", "16"), ("MASTER_ADDR", "a")];
    assert_eq!(place(lightning), Ok(["1", "-", "-"].map(String::from).to_vec()));
    let note = launched("h", lightning).expect("derived").notes.concat();
    assert!(
        note.contains("WORLD_SIZE=16 may count nodes or processes") && note.contains("RALLYPOINT_NODES"),
        "{note}"
    );
    let no_node: Vars = &[("RANK", "8"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "16")];
    assert_eq!(place(no_node), Ok(["-", "-", "-"].map(String::from).to_vec()));
    let local: Vars = &[("RANK", "8"), ("LOCAL_RANK", "3"), ("WORLD_SIZE", "16"), ("LOCAL_WORLD_SIZE", "8")];
    let error = place(local).expect_err("no rank of a node").to_string();
    assert!(error.contains("RANK=8 and LOCAL_RANK=3") && error.contains("LOCAL_WORLD_SIZE"), "{error}");
    // GPUs are not processes, but beside eight GPUs one process per node is only a guess.
    let gpus = launched(
        "h",
        &[("SKYPILOT_NODE_RANK", "1"), ("SKYPILOT_NUM_NODES", "2"), ("SKYPILOT_NUM_GPUS_PER_NODE", "8")],
    )
    .expect("SkyPilot");
    assert_eq!(ranks(&gpus), ["-", "-", "-"]);
    assert!(
        gpus.notes.concat().contains("RALLYPOINT_NPROC_PER_NODE=\"$SKYPILOT_NUM_GPUS_PER_NODE\""),
        "{:?}",
        gpus.notes
    );
}

#[test]
fn torchruns_own_variables_are_enough() {
    // A PyTorchJob with hostNetwork: the host's name says nothing, RANK counts pods, and WORLD_SIZE counts
    // processes.
    let vars = [
        K8S,
        ("MASTER_ADDR", "job-master-0"),
        ("MASTER_PORT", "23456"),
        ("PET_MASTER_ADDR", "job-master-0"),
        ("PET_MASTER_PORT", "23456"),
        ("RANK", "1"),
        ("WORLD_SIZE", "32"),
        ("PET_NODE_RANK", "1"),
        ("PET_NNODES", "4"),
        ("PET_NPROC_PER_NODE", "8"),
    ];
    let launch = launched("gpu-host-17", &vars).expect("on the host's network");
    assert_eq!(summary(&launch)[1..5], ["1", "4", "8", "job-master-0:23456"]);
}

#[test]
fn two_names_of_one_master_are_no_contradiction() {
    let found = |vars| endpoint(&Environment::from_iter::<[(&str, &str); 4]>(vars), &Given::default());
    let both = found([
        ("PET_MASTER_ADDR", "head"),
        ("MASTER_ADDR", "head.ns.svc.cluster.local"),
        ("MASTER_PORT", "1234"),
        ("X", ""),
    ]);
    let both = both.expect("one host").expect("an endpoint");
    assert_eq!(
        (both.value.to_string(), &both.from[..]),
        ("head:1234".into(), "PET_MASTER_ADDR and MASTER_ADDR and MASTER_PORT")
    );
    let ports = [
        ("PET_MASTER_ADDR", "head"),
        ("PET_MASTER_PORT", "1"),
        ("MASTER_ADDR", "head"),
        ("MASTER_PORT", "2"),
    ];
    let error = found(ports).expect_err("two ports").to_string();
    assert!(
        error.contains("PET_MASTER_ADDR and PET_MASTER_PORT and MASTER_ADDR and MASTER_PORT differ"),
        "{error}"
    );
}

#[test]
fn volcanos_tasks_are_counted_together_or_refused() {
    let job = |host: &'static str, task: &'static str| {
        launched(
            host,
            &[
                K8S,
                ("VC_MASTER_HOSTS", "vj-master-0.vj"),
                ("VC_MASTER_NUM", "1"),
                ("VC_WORKER_HOSTS", "vj-worker-0.vj,vj-worker-1.vj"),
                ("VC_WORKER_NUM", "2"),
                ("VC_TASK_INDEX", task),
            ],
        )
        .expect("a job of two tasks")
    };
    for (host, task, rank) in
        [("vj-master-0", "0", "0"), ("vj-worker-0", "0", "1"), ("vj-worker-1", "1", "2")]
    {
        assert_eq!(
            summary(&job(host, task)),
            ["Volcano", rank, "3", "-", "vj-master-0.vj:29500", "vj"],
            "{host}"
        );
    }
    let others =
        [K8S, ("VC_PS_HOSTS", "vj-ps-0.vj"), ("VC_WORKER_HOSTS", "vj-worker-0.vj"), ("VC_TASK_INDEX", "0")];
    let error = launched("vj-worker-0", &others).expect_err("who trains?").to_string();
    assert!(
        error.contains("VC_PS_HOSTS, VC_WORKER_HOSTS") && error.contains("RALLYPOINT_NODE_RANK="),
        "{error}"
    );
    let said = [&others[..], &[("PET_NODE_RANK", "1"), ("PET_NNODES", "2")]].concat();
    assert_eq!(summary(&launched("vj-worker-0", &said).expect("said"))[1..3], ["1", "2"]);
}

#[test]
fn groups_of_pods_that_count_for_themselves_do_not_get_one_rank_twice() {
    let refused = |host: &str, vars: Vars| launched(host, vars).expect_err(host).to_string();
    // Two jobs of one kind, known by the host's name alone; the second kind of a JobSet; a role of TorchX.
    let error = refused("js-w-1-0", &[K8S, ("JOBSET_NAME", "js"), ("JOB_COMPLETION_INDEX", "0")]);
    assert!(error.contains("the host's name=1") && error.contains("RALLYPOINT_NODE_RANK"), "{error}");
    let error = refused(
        "js-w-0-0",
        &[
            K8S,
            ("JOBSET_NAME", "js"),
            ("JOB_INDEX", "0"),
            ("JOB_GLOBAL_INDEX", "1"),
            ("JOB_COMPLETION_INDEX", "0"),
            ("NNODES", "3"),
        ],
    );
    assert!(error.contains("JOB_GLOBAL_INDEX=1"), "{error}");
    let error = refused(
        "js-w-0-0",
        &[K8S, ("JOBSET_NAME", "js"), ("JOB_COMPLETION_INDEX", "0"), ("MASTER_ADDR", "js-driver-0-0.js")],
    );
    assert!(
        error.contains("`js-w-0-0` has node rank 0") && error.contains("`js-driver-0-0` (from MASTER_ADDR)"),
        "{error}"
    );
    let error = refused("js-w-1-0", &[K8S, ("JOB_COMPLETION_INDEX", "0"), ("MASTER_ADDR", "js-w-0-0.js")]);
    assert!(error.contains("`js-w-0-0` (from MASTER_ADDR)"), "{error}");
    let error =
        refused("x", &[("TORCHX_JOB_ID", "a"), ("TORCHX_REPLICA_IDX", "0"), ("TORCHX_ROLE_IDX", "1")]);
    assert!(error.contains("TORCHX_ROLE_IDX=1"), "{error}");
    // An unknown operator: its master has the same number as worker 0.
    let unknown = launched("job-worker-0", &[K8S]).expect("nothing is wrong");
    assert_eq!(summary(&unknown)[1], "-");
    let slices = [K8S, ("MEGASCALE_NUM_SLICES", "2"), ("TPU_WORKER_ID", "1"), ("JOB_COMPLETION_INDEX", "1")];
    assert!(refused("w-1", &slices).contains("MEGASCALE_NUM_SLICES"));
    let groups =
        |groups| [("SM_HOSTS", "[\"a\", \"b\"]"), ("SM_CURRENT_HOST", "b"), ("SM_INSTANCE_GROUPS", groups)];
    assert!(refused("b", &groups("[\"train\", \"data\"]")).contains("SM_INSTANCE_GROUPS"));
    assert_eq!(summary(&launched("b", &groups("[\"train\"]")).expect("one group"))[1], "1");
}

#[test]
fn what_is_seen_and_not_used_is_named_with_the_line_that_would_say_it() {
    let notes = |vars| launched("h", vars).expect("nothing is wrong").notes;
    let notes_of_foreign = notes(&[
        ("ACME_NODE_RANK", "3"),
        ("ACME_NUM_NODES", "4"),
        ("ACME_MASTER_ADDR", "10.0.0.1"),
        ("ACME_NODE_RANK_FILE", "/x"),
    ]);
    assert_eq!(
        notes_of_foreign,
        [
            "ACME_NODE_RANK=3 is not used; if it says this, set RALLYPOINT_NODE_RANK=\"$ACME_NODE_RANK\"",
            "ACME_NUM_NODES=4 is not used; if it says this, set RALLYPOINT_NODES=\"$ACME_NUM_NODES\"",
            "ACME_MASTER_ADDR=10.0.0.1 is not used; if it says this, set \
             RALLYPOINT_ENDPOINT=\"$ACME_MASTER_ADDR\"",
        ]
    );
    assert_eq!(
        notes(&[("PET_NODE_RANK", "0"), ("PET_NNODES", "1"), ("MASTER_ADDR", "a"), ("ACME_NODE_RANK", "0")]),
        [""; 0]
    );
    assert!(notes(&[("PBS_JOBID", "1")]).iter().any(|note| note.contains("$PBS_NODEFILE")));
    assert!(notes(&[("MODAL_TASK_ID", "1")]).iter().any(|note| note.contains("get_cluster_info().rank")));
}

/// With the host's network the name is the node's: its number is neither a rank nor a part of the run's name.
#[test]
fn a_nodes_name_gives_no_rank_and_no_run() {
    let vars: Vars =
        &[K8S, ("PET_RDZV_BACKEND", "c10d"), ("PET_RDZV_ENDPOINT", "head:1"), ("PET_NNODES", "8")];
    let derived = |hostname: &str, host_network: Option<bool>| {
        let given = Given { hostname: hostname.into(), host_network, ..Given::default() };
        let launch = derive(&vars.iter().copied().collect(), &given, None).expect("no contradiction");
        (launch.node_rank.map(|it| it.value), launch.run_id.map(|it| it.value))
    };
    assert_eq!(derived("compute-3", Some(false)).0, Some(3), "the kubelet says that it is a pod");
    assert_eq!(derived("train-3", None), (Some(3), Some("train".into())));
    for (host, host_network) in
        [("gpu-node-7", None), ("ip-10-1-2-3", None), ("dgx-01", None), ("train-3", Some(true))]
    {
        assert_eq!(derived(host, host_network), (None, None), "{host}");
    }
}

#[test]
fn pmi_beside_slurm_counts_the_tasks_of_slurm() {
    let slurm = [
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NNODES", "2"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_NTASKS_PER_NODE", "4"),
        ("SLURM_TASKS_PER_NODE", "4(x2)"),
        ("SLURM_NODEID", "1"),
        ("SLURM_PROCID", "6"),
        ("SLURM_LOCALID", "2"),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
    ];
    for pmi in [[("PMI_RANK", "6"), ("PMI_SIZE", "8")], [("PMIX_RANK", "6"), ("PMIX_NAMESPACE", "s")]] {
        let env = slurm.into_iter().chain(pmi).collect();
        let launch = derive(&env, &Given::default(), None).expect("no contradiction");
        assert_eq!(ranks(&launch), ["6", "8", "2"], "{pmi:?}");
        assert_eq!(launch.node_rank.map(|rank| rank.value), Some(1), "{pmi:?}");
    }
}

/// PMIx has a rank and a name of the job in variables, and everything else in its server.
#[test]
fn who_has_pmix_alone_is_told_what_it_does_not_say() {
    let pmix = [("PMIX_RANK", "3"), ("PMIX_NAMESPACE", "prterun-n1-77@1")];
    let open_mpi = [
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    let derived = |vars: Vars| {
        derive(&vars.iter().copied().collect(), &Given::default(), None).expect("no contradiction")
    };
    let alone = derived(&pmix);
    assert!(alone.notes.join("\n").contains("no variable has them"), "{:?}", alone.notes);
    assert_eq!(alone.run_id.map(|id| id.value).as_deref(), Some("prterun-n1-77@1"));
    let both = derived(&[&pmix[..], &open_mpi[..]].concat());
    assert_eq!(ranks(&both), ["3", "8", "1"]);
    assert!(!both.notes.join("\n").contains("PMIx"), "{:?}", both.notes);
}

#[test]
fn the_endpoint_of_etcd_is_no_store() {
    let endpoint = |backend: &str| {
        let vars = [("PET_RDZV_BACKEND", backend), ("PET_RDZV_ENDPOINT", "etcd:2379"), ("PET_NNODES", "2")];
        let launch = derive(&vars.into_iter().collect(), &Given::default(), None).expect("no contradiction");
        launch.endpoint.map(|endpoint| endpoint.value.to_string())
    };
    assert_eq!(endpoint("etcd-v2"), None);
    assert_eq!(endpoint("c10d").as_deref(), Some("etcd:2379"));
}

#[test]
fn a_hint_calculates_with_variables_that_are_set() {
    let notes = |vars: Vars| {
        let launch =
            derive(&vars.iter().copied().collect(), &Given::default(), None).expect("no contradiction");
        launch.notes.join("\n")
    };
    let mvapich = notes(&[
        ("MV2_COMM_WORLD_RANK", "5"),
        ("MV2_COMM_WORLD_SIZE", "8"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "1"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "4"),
    ]);
    assert!(mvapich.contains("MV2_COMM_WORLD_RANK / MV2_COMM_WORLD_LOCAL_SIZE"), "{mvapich}");
    assert!(!mvapich.contains("MPI_LOCALNRANKS"), "{mvapich}");
    let ngc = notes(&[
        ("NGC_JOB_ID", "4"),
        ("NGC_ARRAY_INDEX", "1"),
        ("NGC_ARRAY_SIZE", "2"),
        ("NGC_MASTER_ADDR", "a"),
        ("NGC_GPUS_PER_NODE", "8"),
    ]);
    assert!(ngc.contains("RALLYPOINT_NPROC_PER_NODE=\"$NGC_GPUS_PER_NODE\""), "{ngc}");
    let lepton = notes(&[
        ("LEPTON_JOB_NAME", "j"),
        ("LEPTON_JOB_WORKER_INDEX", "1"),
        ("LEPTON_JOB_TOTAL_WORKERS", "2"),
        ("LEPTON_RESOURCE_ACCELERATOR_NUM", "8"),
    ]);
    assert!(lepton.contains("=\"$LEPTON_RESOURCE_ACCELERATOR_NUM\""), "{lepton}");
    let batch =
        notes(&[("AZ_BATCH_HOST_LIST", "10.0.0.4,10.0.0.5"), ("AZ_BATCH_MASTER_NODE", "10.0.0.5:6000")]);
    assert!(!batch.contains(":6000"), "{batch}");
}
