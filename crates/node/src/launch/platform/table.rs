//! The platforms in the order of the search, with the meaning of each variable and its documentation.

use super::Says::{
    AttemptFrom, ClusterSpec, Gpus, GroupIndex, Groups, HostSlots, Hosts, LocalTaskRank, LocalTasks, Master,
    MasterPort, NodeRank, Nodes, OwnHost, Processes, RunId, RunIdPart, TaskRank, Tasks,
};
use super::{Kind, Platform, Value};
use crate::makers::Maker;

/// The defaults of a row.
const ROW: Platform =
    Platform { id: "", name: "", kind: Kind::Plain, mark: &[], says: &[], hints: &[], source: "" };

pub(crate) const UNKNOWN: Platform = Platform { id: "unknown", name: "unknown", kind: Kind::Unknown, ..ROW };

pub(crate) const PLATFORMS: &[Platform] = &[
    Platform {
        id: "leader-worker-set",
        name: "LeaderWorkerSet",
        kind: Kind::Maker(Maker::LeaderWorkerSet),
        mark: &["LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"],
        ..ROW
    },
    Platform {
        id: "volcano",
        name: "Volcano",
        kind: Kind::Maker(Maker::VolcanoJob),
        mark: &["VC_TASK_INDEX", "VK_TASK_INDEX", "VC_*_HOSTS"],
        ..ROW
    },
    Platform {
        id: "model-arts",
        name: "ModelArts",
        mark: &["MA_NUM_HOSTS", "MA_NUM_GPUS"],
        says: &[("MA_NUM_HOSTS", Nodes), ("MA_NUM_GPUS", Gpus)],
        source: "support.huaweicloud.com: ModelArts, environment variables of a training container",
        ..ROW
    },
    Platform {
        id: "grove",
        name: "Grove",
        mark: &["GROVE_PCS_NAME", "GROVE_PCLQ_NAME"],
        hints: &[(
            Value::NodeRank,
            "Grove counts the pods of each clique from 0, leaders and workers apart; with one leader set \
             RALLYPOINT_NODE_RANK to 0 in the leader, and in a worker to \"$((GROVE_PCLQ_POD_INDEX + 1))\"",
        )],
        source: "ai-dynamo/grove, operator/api/common/constants",
        ..ROW
    },
    Platform {
        id: "flux",
        name: "Flux",
        mark: &["FLUX_JOB_ID", "FLUX_TASK_RANK"],
        says: &[
            ("FLUX_TASK_RANK", TaskRank),
            ("FLUX_JOB_SIZE", Tasks),
            ("FLUX_TASK_LOCAL_ID", LocalTaskRank),
            ("FLUX_JOB_NNODES", Nodes),
            ("FLUX_JOB_ID", RunId),
        ],
        source: "flux-framework/flux-core, src/shell/task.c and doc/man7/flux-environment.rst",
        ..ROW
    },
    Platform {
        id: "slurm",
        name: "Slurm",
        kind: Kind::Slurm,
        mark: &["SLURM_JOB_ID", "SLURM_JOBID"],
        says: &[
            ("SLURM_JOB_ID", RunId),
            ("SLURM_JOBID", RunId),
            ("SLURM_RESTART_COUNT", AttemptFrom(0)),
            ("SLURM_HET_SIZE", Groups),
        ],
        source: "slurm.schedmd.com: srun and sbatch, output environment variables; heterogeneous_jobs",
        ..ROW
    },
    Platform {
        id: "injected-job",
        name: "platform with POD_NUMS, Job",
        kind: Kind::InjectedJob,
        mark: &["POD_NUMS & JOB_COMPLETION_INDEX"],
        source: "its users' manifests",
        ..ROW
    },
    Platform {
        id: "injected-stateful-set",
        name: "platform with POD_NUMS, StatefulSet",
        kind: Kind::InjectedStatefulSet,
        mark: &["POD_NUMS"],
        says: &[("POD_NUMS", Nodes)],
        source: "its users' manifests",
        ..ROW
    },
    Platform {
        id: "kubetorch",
        name: "Kubetorch",
        kind: Kind::Kubetorch,
        mark: &["KT_SERVICE", "KT_SERVICE_NAME"],
        source: "its pod template; KT_SERVICE_NAME is remembered from later versions",
        ..ROW
    },
    Platform {
        id: "job-set",
        name: "JobSet",
        kind: Kind::Maker(Maker::JobSet),
        // JobSet does not inject these; its examples give these names to labels that users pass on.
        mark: &["JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_INDEX", "JOB_GLOBAL_INDEX"],
        ..ROW
    },
    Platform {
        id: "train-job",
        name: "Kubeflow TrainJob (v2)",
        kind: Kind::Maker(Maker::TrainJob),
        mark: &["JOB_COMPLETION_INDEX & PET_MASTER_ADDR"],
        ..ROW
    },
    Platform {
        id: "py-torch-job",
        name: "Kubeflow PyTorchJob (v1)",
        kind: Kind::Maker(Maker::PyTorchJob),
        mark: &["MASTER_ADDR", "PET_RDZV_ENDPOINT"],
        ..ROW
    },
    Platform {
        id: "jax-job",
        name: "Kubeflow JAXJob (v1)",
        kind: Kind::Maker(Maker::JaxJob),
        mark: &["COORDINATOR_ADDRESS & PROCESS_ID"],
        ..ROW
    },
    Platform {
        id: "sky-pilot",
        name: "SkyPilot",
        mark: &["SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS", "SKYPILOT_TASK_ID"],
        says: &[
            ("SKYPILOT_NODE_RANK", NodeRank),
            ("SKYPILOT_NUM_NODES", Nodes),
            ("SKYPILOT_NODE_IPS", Hosts),
            ("SKYPILOT_NUM_GPUS_PER_NODE", Gpus),
            ("SKYPILOT_TASK_ID", RunId),
        ],
        source: "docs.skypilot.co: running-jobs/environment-variables, distributed-jobs",
        ..ROW
    },
    Platform {
        id: "dstack",
        name: "dstack",
        mark: &["DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_RUN_NAME", "DSTACK_RUN_ID"],
        says: &[
            ("DSTACK_NODE_RANK", NodeRank),
            ("DSTACK_NODES_NUM", Nodes),
            ("DSTACK_NODES_IPS", Hosts),
            ("DSTACK_GPUS_PER_NODE", Gpus),
            ("DSTACK_MASTER_NODE_IP", Master),
            ("DSTACK_RUN_ID", RunId),
            ("DSTACK_RUN_NAME", RunId),
        ],
        source: "dstackai/dstack, runner/internal/executor/executor.go",
        ..ROW
    },
    Platform {
        id: "aws-batch",
        name: "AWS Batch",
        mark: &["AWS_BATCH_JOB_ID", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"],
        says: &[
            ("AWS_BATCH_JOB_NODE_INDEX", NodeRank),
            ("AWS_BATCH_JOB_NUM_NODES", Nodes),
            ("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", Master),
            ("AWS_BATCH_JOB_ID", RunId),
            ("AWS_BATCH_JOB_ATTEMPT", AttemptFrom(1)),
        ],
        hints: &[(
            Value::Endpoint,
            "AWS Batch names the main node only to the others; there set RALLYPOINT_ENDPOINT=\"$(hostname \
             -i):29500\"",
        )],
        source: "docs.aws.amazon.com: batch/latest/userguide, job_env_vars and mnp-env-vars",
        ..ROW
    },
    Platform {
        id: "sage-maker",
        name: "SageMaker",
        mark: &["SM_HOSTS", "SM_CURRENT_HOST"],
        says: &[
            ("SM_HOSTS", Hosts),
            ("SM_CURRENT_HOST", OwnHost),
            ("SM_NUM_GPUS", Gpus),
            ("SM_IS_HETERO", Groups),
            ("SM_INSTANCE_GROUPS", Groups),
            ("TRAINING_JOB_NAME", RunId),
        ],
        source: "aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md",
        ..ROW
    },
    Platform {
        id: "vertex",
        name: "Vertex AI",
        mark: &["CLUSTER_SPEC", "CLOUD_ML_JOB_ID", "AIP_MODEL_DIR"],
        says: &[("CLUSTER_SPEC", ClusterSpec), ("CLOUD_ML_JOB_ID", RunId), ("CLOUD_ML_TRIAL_ID", RunIdPart)],
        source: "cloud.google.com: vertex-ai/docs/training/distributed-training",
        ..ROW
    },
    Platform {
        id: "tf-config",
        name: "TF_CONFIG (TFJob and others)",
        mark: &["TF_CONFIG"],
        says: &[("TF_CONFIG", ClusterSpec)],
        source: "tensorflow.org: guide/distributed_training, TF_CONFIG",
        ..ROW
    },
    Platform {
        id: "torch-x",
        name: "TorchX",
        mark: &["TORCHX_JOB_ID", "TORCHX_REPLICA_IDX"],
        says: &[
            ("TORCHX_REPLICA_IDX", NodeRank),
            ("TORCHX_ROLE_IDX", GroupIndex),
            ("TORCHX_RANK0_HOST", Master),
            ("TORCHX_JOB_ID", RunId),
        ],
        source: "pytorch/torchx, torchx/schedulers/{kubernetes,aws_batch,slurm}_scheduler.py",
        ..ROW
    },
    Platform {
        id: "azure-ml",
        name: "Azure ML",
        mark: &["AZUREML_RUN_ID", "AZUREML_NODE_COUNT"],
        says: &[("AZUREML_NODE_COUNT", Nodes), ("AZUREML_RUN_ID", RunId)],
        source: "learn.microsoft.com: azure/machine-learning, distributed GPU training",
        ..ROW
    },
    Platform {
        id: "azure-batch",
        name: "Azure Batch",
        mark: &["AZ_BATCH_HOST_LIST", "AZ_BATCH_MASTER_NODE"],
        says: &[("AZ_BATCH_HOST_LIST", Hosts), ("AZ_BATCH_JOB_ID", RunId)],
        hints: &[(
            Value::Endpoint,
            "the port in AZ_BATCH_MASTER_NODE is Batch's own: set \
             RALLYPOINT_ENDPOINT=\"${AZ_BATCH_MASTER_NODE%:*}:29500\"",
        )],
        source: "learn.microsoft.com: azure/batch, compute node environment variables",
        ..ROW
    },
    Platform {
        id: "tpu-slices",
        name: "TPU slices",
        mark: &["MEGASCALE_NUM_SLICES"],
        says: &[("MEGASCALE_NUM_SLICES", Groups), ("MEGASCALE_SLICE_ID", GroupIndex)],
        source: "docs.cloud.google.com: tpu/docs/multislice-introduction",
        ..ROW
    },
    Platform {
        id: "lepton",
        name: "Lepton",
        mark: &["LEPTON_JOB_WORKER_INDEX", "LEPTON_JOB_NAME"],
        says: &[
            ("LEPTON_JOB_WORKER_INDEX", NodeRank),
            ("LEPTON_JOB_TOTAL_WORKERS", Nodes),
            ("LEPTON_JOB_NAME", RunId),
            ("LEPTON_RESOURCE_ACCELERATOR_NUM", Gpus),
        ],
        hints: &[(
            Value::Endpoint,
            "Lepton names the first worker in two parts: set \
             RALLYPOINT_ENDPOINT=\"$LEPTON_JOB_WORKER_PREFIX-0.$LEPTON_SUBDOMAIN:29500\"",
        )],
        source: "docs.nvidia.com: dgx-cloud/lepton, batch jobs, environment variables",
        ..ROW
    },
    Platform {
        id: "ngc",
        name: "NGC Base Command",
        mark: &["NGC_ARRAY_INDEX", "NGC_JOB_ID"],
        says: &[
            ("NGC_ARRAY_INDEX", NodeRank),
            ("NGC_ARRAY_SIZE", Nodes),
            ("NGC_MASTER_ADDR", Master),
            ("NGC_GPUS_PER_NODE", Gpus),
            ("NGC_JOB_ID", RunId),
        ],
        source: "docs.nvidia.com: base-command-platform, multi-node jobs",
        ..ROW
    },
    Platform {
        id: "beaker",
        name: "Beaker",
        mark: &["BEAKER_REPLICA_RANK", "BEAKER_REPLICA_COUNT"],
        says: &[
            ("BEAKER_REPLICA_RANK", NodeRank),
            ("BEAKER_REPLICA_COUNT", Nodes),
            ("BEAKER_LEADER_REPLICA_HOSTNAME", Master),
            ("BEAKER_ASSIGNED_GPU_COUNT", Gpus),
        ],
        source: "github.com/allenai/beaker-gantry: --replicas, --leader-selection",
        ..ROW
    },
    Platform {
        id: "volcengine",
        name: "Volcengine ML Platform",
        mark: &["MLP_ROLE_INDEX", "MLP_WORKER_NUM"],
        says: &[
            ("MLP_ROLE_INDEX", NodeRank),
            ("MLP_WORKER_NUM", Nodes),
            ("MLP_WORKER_GPU", Gpus),
            ("MLP_WORKER_0_HOST", Master),
            ("MLP_WORKER_0_PORT", MasterPort),
            ("MLP_TASK_ID", RunId),
        ],
        source: "volcengine.com/docs: ML platform, environment variables of PyTorchDDP tasks",
        ..ROW
    },
    Platform {
        id: "determined",
        name: "Determined",
        mark: &["DET_ALLOCATION_ID", "DET_CLUSTER_ID"],
        says: &[("DET_CHIEF_IP", Master), ("DET_ALLOCATION_ID", RunId)],
        hints: &[
            (
                Value::NodeRank,
                "Determined tells it in Python: set RALLYPOINT_NODE_RANK=\"$(python -c 'import determined as \
                 d; print(d.get_cluster_info().container_rank)')\"",
            ),
            (
                Value::Nodes,
                "Determined tells it in Python: set RALLYPOINT_NODES=\"$(python -c 'import determined as d; \
                 print(len(d.get_cluster_info().container_addrs))')\"",
            ),
        ],
        source: "determined-ai/determined, harness/determined/launch/torch_distributed.py",
        ..ROW
    },
    Platform {
        id: "modal",
        name: "Modal",
        mark: &["MODAL_TASK_ID"],
        hints: &[
            (
                Value::NodeRank,
                "Modal tells it in Python: set RALLYPOINT_NODE_RANK to \
                 modal.experimental.get_cluster_info().rank",
            ),
            (
                Value::Nodes,
                "Modal tells it in Python: set RALLYPOINT_NODES to the length of \
                 modal.experimental.get_cluster_info().container_ips",
            ),
        ],
        source: "modal.com/docs: multi-node training",
        ..ROW
    },
    Platform {
        id: "lsf",
        name: "LSF",
        mark: &["LSB_JOBID", "JSM_NAMESPACE_RANK"],
        says: &[
            ("LSB_MCPU_HOSTS", HostSlots),
            ("LSB_JOBID", RunId),
            ("LSB_JOBINDEX", RunIdPart),
            ("JSM_NAMESPACE_RANK", TaskRank),
            ("JSM_NAMESPACE_SIZE", Tasks),
            ("JSM_NAMESPACE_LOCAL_RANK", LocalTaskRank),
            ("JSM_NAMESPACE_LOCAL_SIZE", LocalTasks),
        ],
        source: "ibm.com/docs: Spectrum LSF, environment variable reference; jsrun",
        ..ROW
    },
    Platform {
        id: "pbs",
        name: "PBS",
        mark: &["PBS_JOBID", "PALS_RANKID"],
        says: &[
            ("PBS_NUM_NODES", Nodes),
            ("PALS_NODEID", NodeRank),
            ("PALS_RANKID", TaskRank),
            ("PALS_LOCAL_RANKID", LocalTaskRank),
            ("PBS_JOBID", RunId),
        ],
        hints: &[
            (
                Value::NodeRank,
                "PBS_NODENUM is 0 in the job's script too, and mpiexec hands that on, so it is not taken for \
                 a rank; in a command that pbsdsh started set RALLYPOINT_NODE_RANK=\"$PBS_NODENUM\"",
            ),
            (
                Value::Nodes,
                "PBS names the nodes in a file: set RALLYPOINT_NODES=\"$(sort -u \"$PBS_NODEFILE\" | wc \
                 -l)\"",
            ),
            (
                Value::Endpoint,
                "PBS names the nodes in a file: set RALLYPOINT_ENDPOINT=\"$(head -n \
                 1 \"$PBS_NODEFILE\"):29500\"",
            ),
        ],
        source: "PBS Professional user's guide, environment variables; Cray PALS, PALS_*",
        ..ROW
    },
    Platform {
        id: "grid-engine",
        name: "Grid Engine (SGE, UGE)",
        mark: &["PE_HOSTFILE"],
        says: &[("NHOSTS", Nodes), ("JOB_ID", RunId)],
        hints: &[
            (
                Value::NodeRank,
                "Grid Engine starts the script on the first host only: give RALLYPOINT_NODE_RANK=N to what \
                 it starts on the host of line N + 1 of $PE_HOSTFILE",
            ),
            (
                Value::Endpoint,
                "Grid Engine names the nodes in a file: set RALLYPOINT_ENDPOINT=\"$(awk 'NR == 1 {print $1}' \
                 \"$PE_HOSTFILE\"):29500\"",
            ),
        ],
        source: "Grid Engine manual, qsub(1), sge_pe(5): $pe_hostfile",
        ..ROW
    },
    Platform {
        id: "oar",
        name: "OAR",
        mark: &["OAR_JOB_ID", "OAR_NODEFILE"],
        says: &[("OAR_JOB_ID", RunId)],
        hints: &[
            (
                Value::NodeRank,
                "OAR starts the script on the first node only: give RALLYPOINT_NODE_RANK=N to what it \
                 starts on the node of line N + 1 of `sort -u $OAR_NODEFILE`",
            ),
            (
                Value::Nodes,
                "OAR names the nodes in a file: set RALLYPOINT_NODES=\"$(sort -u \"$OAR_NODEFILE\" | wc \
                 -l)\"",
            ),
            (
                Value::Endpoint,
                "OAR names the nodes in a file: set RALLYPOINT_ENDPOINT=\"$(sort -u \
                 \"$OAR_NODEFILE\" | head -n 1):29500\"",
            ),
        ],
        source: "oar.imag.fr: oarsub, environment of a job",
        ..ROW
    },
    Platform {
        id: "htcondor",
        name: "HTCondor, parallel universe",
        mark: &["_CONDOR_PROCNO", "_CONDOR_NPROCS"],
        says: &[("_CONDOR_PROCNO", NodeRank), ("_CONDOR_NPROCS", Nodes)],
        source: "htcondor.readthedocs.io: parallel applications",
        ..ROW
    },
    Platform {
        id: "gcp-batch",
        name: "Google Cloud Batch",
        mark: &["BATCH_TASK_INDEX & BATCH_TASK_COUNT"],
        says: &[("BATCH_TASK_INDEX", NodeRank), ("BATCH_TASK_COUNT", Nodes), ("BATCH_JOB_UID", RunId)],
        hints: &[(
            Value::Endpoint,
            "Batch names the nodes in a file, with requireHostsFile: set RALLYPOINT_ENDPOINT=\"$(head -n 1 \
             \"$BATCH_HOSTS_FILE\"):29500\"",
        )],
        source: "cloud.google.com/batch/docs: predefined environment variables",
        ..ROW
    },
    Platform {
        id: "arnold",
        name: "Arnold",
        mark: &["ARNOLD_ID & ARNOLD_WORKER_NUM"],
        says: &[
            ("ARNOLD_ID", NodeRank),
            ("ARNOLD_WORKER_NUM", Nodes),
            ("ARNOLD_WORKER_GPU", Gpus),
            ("ARNOLD_WORKER_0_HOST", Master),
        ],
        source: "github.com/bytedance, launch scripts",
        ..ROW
    },
    Platform {
        id: "open-mpi",
        name: "Open MPI",
        mark: &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
        // OMPI_COMM_WORLD_NODE_RANK is not the rank of a node, but of a process on its node.
        says: &[
            ("OMPI_COMM_WORLD_RANK", TaskRank),
            ("OMPI_COMM_WORLD_SIZE", Tasks),
            ("OMPI_COMM_WORLD_LOCAL_RANK", LocalTaskRank),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", LocalTasks),
        ],
        hints: &[(
            Value::NodeRank,
            "Open MPI may deal its ranks out to the nodes in turn; with ranks in blocks set \
             RALLYPOINT_NODE_RANK=\"$((OMPI_COMM_WORLD_RANK / OMPI_COMM_WORLD_LOCAL_SIZE))\"",
        )],
        source: "docs.open-mpi.org: tuning-apps/environment-var",
        ..ROW
    },
    Platform {
        id: "mpich",
        name: "MPICH, Intel MPI, MVAPICH (PMI)",
        mark: &["PMI_RANK", "PMI_SIZE", "MV2_COMM_WORLD_RANK"],
        says: &[
            ("PMI_RANK", TaskRank),
            ("PMI_SIZE", Tasks),
            ("MPI_LOCALRANKID", LocalTaskRank),
            ("MPI_LOCALNRANKS", LocalTasks),
            ("PMI_LOCAL_RANK", LocalTaskRank),
            ("PMI_LOCAL_SIZE", LocalTasks),
            ("MV2_COMM_WORLD_RANK", TaskRank),
            ("MV2_COMM_WORLD_SIZE", Tasks),
            ("MV2_COMM_WORLD_LOCAL_RANK", LocalTaskRank),
            ("MV2_COMM_WORLD_LOCAL_SIZE", LocalTasks),
        ],
        // Only the formula whose variables are set is shown.
        hints: &[
            (
                Value::NodeRank,
                "MPI may deal its ranks out to the nodes in turn; with ranks in blocks set \
                 RALLYPOINT_NODE_RANK=\"$((PMI_RANK / MPI_LOCALNRANKS))\"",
            ),
            (
                Value::NodeRank,
                "MPI may deal its ranks out to the nodes in turn; with ranks in blocks set \
                 RALLYPOINT_NODE_RANK=\"$((PMI_RANK / PMI_LOCAL_SIZE))\"",
            ),
            (
                Value::NodeRank,
                "MVAPICH may deal its ranks out to the nodes in turn; with ranks in blocks set \
                 RALLYPOINT_NODE_RANK=\"$((MV2_COMM_WORLD_RANK / MV2_COMM_WORLD_LOCAL_SIZE))\"",
            ),
        ],
        source: "pmodels/mpich, src/pm/hydra; MVAPICH2 user guide",
        ..ROW
    },
    Platform {
        id: "pmix",
        name: "PMIx",
        mark: &["PMIX_RANK"],
        says: &[("PMIX_RANK", TaskRank), ("PMIX_NAMESPACE", RunId)],
        hints: &[(
            Value::World,
            "a process asks the PMIx server for the number of processes and for its place among those of its \
             node, and no variable has them: start the job with srun, mpirun or mpiexec, whose own variables \
             say it, or set RALLYPOINT_NODE_RANK, RALLYPOINT_NODES and RALLYPOINT_ENDPOINT",
        )],
        source: "openpmix/openpmix, src/server/pmix_server.c, PMIx_server_setup_fork",
        ..ROW
    },
    Platform {
        id: "horovod",
        name: "Horovod",
        mark: &["HOROVOD_RANK"],
        says: &[
            ("HOROVOD_RANK", TaskRank),
            ("HOROVOD_SIZE", Tasks),
            ("HOROVOD_LOCAL_RANK", LocalTaskRank),
            ("HOROVOD_LOCAL_SIZE", LocalTasks),
        ],
        source: "horovod/horovod, horovod/runner/gloo_run.py",
        ..ROW
    },
    Platform {
        id: "indexed-job",
        name: "Indexed Job",
        kind: Kind::Maker(Maker::IndexedJob),
        mark: &["JOB_COMPLETION_INDEX"],
        ..ROW
    },
    Platform {
        id: "stateful-set",
        name: "StatefulSet",
        kind: Kind::Maker(Maker::StatefulSet),
        mark: &["RALLYPOINT_POD_INDEX", "POD_INDEX"],
        says: &[("RALLYPOINT_POD_INDEX", NodeRank), ("POD_INDEX", NodeRank)],
        ..ROW
    },
    Platform {
        id: "variables",
        name: "variables set by hand",
        kind: Kind::Variables,
        mark: &[
            "MASTER_ADDR",
            "PET_MASTER_ADDR",
            "PET_RDZV_ENDPOINT",
            "PET_NODE_RANK",
            "PET_NNODES",
            "NODE_RANK",
            "RANK",
        ],
        says: &[
            ("NODE_RANK", NodeRank),
            ("NNODES", Nodes),
            ("NUM_NODES", Nodes),
            ("NPROC_PER_NODE", Processes),
            ("LOCAL_WORLD_SIZE", Processes),
        ],
        source: "docs.pytorch.org: distributed, elastic/run",
        ..ROW
    },
    UNKNOWN,
];
