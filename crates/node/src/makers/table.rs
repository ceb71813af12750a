//! The rows of the table. Each names the sources that were read.

use super::Holds::{
    Backend, Endpoint, Hosts, Index as NodeIndex, IndexInRole, Master, Nodes, Other, Port, Processes, World,
};
use super::LabelValue::{Group, Index as PodIndex, Later, Name, PodName, Role, Word};
use super::{Facts, Holds, Index, Label, LabelValue, Maker, Service, Variable, When};

const fn variable(name: &'static str, holds: Holds) -> Variable {
    Variable { name, holds, when: When::Always }
}

const fn when(when: When, name: &'static str, holds: Holds) -> Variable {
    Variable { name, holds, when }
}

const fn label(key: &'static str, value: LabelValue) -> Label {
    Label { key, value }
}

/// Joins the labels of the lower maker and a maker's own labels.
#[expect(clippy::arithmetic_side_effects, reason = "worked out when this is compiled")]
const fn and<const N: usize, const M: usize, const ALL: usize>(
    below: [Label; N],
    own: [Label; M],
) -> [Label; ALL] {
    assert!(N + M == ALL, "as many labels as there are");
    let mut all = [label("", Later); ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < N { below[at] } else { own[at - N] };
        at += 1;
    }
    all
}

/// The defaults: a maker that gives nothing. Each row sets only its differences.
const NOTHING: Facts = Facts {
    maker: Maker::Unknown,
    name: "unknown kind",
    source: "",
    variables: &[],
    prefixes: &[],
    labels: &[],
    hosts: &[],
    subdomain: "",
    master: "",
    services: &[],
    index: None,
    run_id: None,
    is_known: true,
};

pub(crate) const UNKNOWN: Facts = Facts { is_known: false, ..NOTHING };

const JOB_UID: &str = "metadata.labels['batch.kubernetes.io/controller-uid']";
const JOB_SOURCE: &str = "Kubernetes 1.33, pkg/controller/job/{job_controller,indexed_job_utils}.go";
const JOB_LABELS: [Label; 4] = [
    label("job-name", Name),
    label("batch.kubernetes.io/job-name", Name),
    label("controller-uid", Later),
    label("batch.kubernetes.io/controller-uid", Later),
];
const INDEXED_JOB_LABELS: [Label; 5] =
    and(JOB_LABELS, [label("batch.kubernetes.io/job-completion-index", PodIndex)]);

const JOB_SET_LABELS: [Label; 20] = and(
    INDEXED_JOB_LABELS,
    [
        label("jobset.sigs.k8s.io/jobset-name", Name),
        label("jobset.sigs.k8s.io/jobset-uid", Later),
        label("jobset.sigs.k8s.io/replicatedjob-name", Role),
        label("jobset.sigs.k8s.io/replicatedjob-replicas", Later),
        label("jobset.sigs.k8s.io/global-replicas", Later),
        label("jobset.sigs.k8s.io/restart-attempt", Later),
        label("jobset.sigs.k8s.io/job-restart-attempt", Later),
        label("jobset.sigs.k8s.io/in-place-restart-attempt", Later),
        label("jobset.sigs.k8s.io/job-index", Group),
        label("jobset.sigs.k8s.io/job-global-index", Group),
        label("jobset.sigs.k8s.io/job-group-index", Group),
        label("jobset.sigs.k8s.io/job-key", Later),
        label("jobset.sigs.k8s.io/group-name", Later),
        label("jobset.sigs.k8s.io/group-replicas", Later),
        label("jobset.sigs.k8s.io/coordinator", Later),
    ],
);

/// Its pods belong to Indexed Jobs.
const JOB_SET: Facts = Facts {
    maker: Maker::JobSet,
    name: "JobSet",
    source: "kubernetes-sigs/jobset v0.12.0, pkg/controllers/jobset_controller.go, \
             api/jobset/v1alpha2/jobset_types.go, pkg/webhooks/jobset_webhook.go (Indexed by default; \
             jobset-uid from v0.9.0 on), cmd/in-place-restart-agent/main.go",
    variables: &[variable("JOB_COMPLETION_INDEX", IndexInRole)],
    labels: &JOB_SET_LABELS,
    hosts: &["{name}-{role}-{job}-{index}"],
    subdomain: "{name}",
    services: &[Service { name: "{name}", of_all: true, not_ready: true, when: When::Always }],
    index: Some(Index::Variable("JOB_COMPLETION_INDEX")),
    run_id: Some("metadata.labels['jobset.sigs.k8s.io/jobset-uid']"),
    ..NOTHING
};

const TRAIN_JOB_LABELS: [Label; 21] =
    and(JOB_SET_LABELS, [label("trainer.kubeflow.org/trainjob-ancestor-step", Later)]);

/// A Service per pod, with the name of the pod. It resolves only once the pod is Ready.
const SERVICE_PER_POD: [Service; 1] =
    [Service { name: "{name}-{role}-{index}", of_all: false, not_ready: false, when: When::Always }];
const KUBEFLOW_LABELS: [Label; 5] = [
    label("training.kubeflow.org/job-name", Name),
    label("training.kubeflow.org/operator-name", Later),
    label("training.kubeflow.org/replica-type", Role),
    label("training.kubeflow.org/replica-index", PodIndex),
    label("training.kubeflow.org/job-role", Later),
];

pub(crate) static TABLE: [Facts; 16] = [
    Facts { maker: Maker::Pod, name: "Pod", source: "Kubernetes 1.33", hosts: &["{name}"], ..NOTHING },
    Facts {
        maker: Maker::Slurm,
        name: "Slurm job",
        source: "slurm.schedmd.com: srun and sbatch, output environment variables",
        prefixes: &["SLURM_"],
        index: Some(Index::Variable("SLURM_NODEID")),
        ..NOTHING
    },
    Facts {
        maker: Maker::Job,
        name: "Job",
        source: JOB_SOURCE,
        labels: &JOB_LABELS,
        run_id: Some(JOB_UID),
        ..NOTHING
    },
    Facts {
        maker: Maker::IndexedJob,
        name: "Indexed Job",
        source: JOB_SOURCE,
        variables: &[variable("JOB_COMPLETION_INDEX", NodeIndex)],
        labels: &INDEXED_JOB_LABELS,
        hosts: &["{name}-{index}"],
        index: Some(Index::Variable("JOB_COMPLETION_INDEX")),
        run_id: Some(JOB_UID),
        ..NOTHING
    },
    Facts {
        maker: Maker::StatefulSet,
        name: "StatefulSet",
        source: "Kubernetes 1.33, pkg/controller/statefulset/stateful_set_utils.go",
        labels: &[
            label("statefulset.kubernetes.io/pod-name", PodName),
            label("apps.kubernetes.io/pod-index", PodIndex),
            label("controller-revision-hash", Later),
        ],
        hosts: &["{name}-{index}"],
        index: Some(Index::Field("metadata.labels['apps.kubernetes.io/pod-index']")),
        ..NOTHING
    },
    Facts {
        maker: Maker::Deployment,
        name: "Deployment",
        source: "Kubernetes 1.33, pkg/controller/{deployment,daemon}",
        labels: &[label("pod-template-hash", Later), label("controller-revision-hash", Later)],
        ..NOTHING
    },
    Facts {
        maker: Maker::LeaderWorkerSet,
        name: "LeaderWorkerSet",
        source: "kubernetes-sigs/lws v0.10.0, pkg/utils/pod/pod_utils.go, pkg/webhooks/pod_webhook.go, \
                 pkg/controllers/leaderworkerset_controller.go (LWS_WORKER_INDEX from v0.6.0 on)",
        variables: &[
            variable("LWS_LEADER_ADDRESS", Master),
            variable("LWS_GROUP_SIZE", Nodes),
            variable("LWS_WORKER_INDEX", NodeIndex),
        ],
        prefixes: &["TPU_"],
        labels: &[
            label("leaderworkerset.sigs.k8s.io/name", Name),
            label("leaderworkerset.sigs.k8s.io/group-index", Group),
            label("leaderworkerset.sigs.k8s.io/worker-index", PodIndex),
            label("leaderworkerset.sigs.k8s.io/group-key", Later),
            label("leaderworkerset.sigs.k8s.io/subgroup-index", Later),
            label("leaderworkerset.sigs.k8s.io/subgroup-key", Later),
            label("leaderworkerset.sigs.k8s.io/template-revision-hash", Later),
            label("statefulset.kubernetes.io/pod-name", PodName),
            label("apps.kubernetes.io/pod-index", Later),
        ],
        hosts: &["{name}-{group}", "{name}-{group}-{index}"],
        subdomain: "{name}",
        services: &[Service { name: "{name}", of_all: true, not_ready: true, when: When::Always }],
        index: Some(Index::Variable("LWS_WORKER_INDEX")),
        ..NOTHING
    },
    JOB_SET,
    Facts {
        maker: Maker::PyTorchJob,
        name: "PyTorchJob",
        source: "kubeflow/training-operator v1.9.0, pkg/controller.v1/pytorch/{envvar,master,elastic}.go, \
                 pkg/controller.v1/common/service.go, pkg/apis/kubeflow.org/v1/common_types.go (PET_* from \
                 v1.7.0 on)",
        variables: &[
            variable("PYTHONUNBUFFERED", Other),
            when(When::Master, "MASTER_ADDR", Master),
            when(When::Master, "MASTER_PORT", Port(23456)),
            when(When::Master, "PET_MASTER_ADDR", Master),
            when(When::Master, "PET_MASTER_PORT", Port(23456)),
            when(When::Master, "WORLD_SIZE", World),
            when(When::Master, "RANK", NodeIndex),
            when(When::Master, "PET_NODE_RANK", NodeIndex),
            when(When::Fixed, "PET_NNODES", Nodes),
            variable("PET_NPROC_PER_NODE", Processes),
            when(When::Elastic, "PET_RDZV_ENDPOINT", Endpoint),
            when(When::Elastic, "PET_RDZV_BACKEND", Backend("c10d")),
            when(When::Elastic, "PET_NNODES", Nodes),
            when(When::Elastic, "PET_MAX_RESTARTS", Other),
            when(When::Elastic, "PET_RDZV_CONF", Other),
        ],
        labels: &KUBEFLOW_LABELS,
        hosts: &["{name}-{role}-{index}"],
        master: "{name}-master-0",
        services: &SERVICE_PER_POD,
        index: Some(Index::Field("metadata.labels['training.kubeflow.org/replica-index']")),
        ..NOTHING
    },
    Facts {
        maker: Maker::TrainJob,
        name: "TrainJob",
        source: "kubeflow/trainer v2.3.0-rc.3, pkg/runtime/framework/plugins/{torch,jax,mpi,jobset}, \
                 pkg/constants/constants.go",
        variables: &[
            variable("PET_NNODES", Nodes),
            variable("PET_NPROC_PER_NODE", Processes),
            variable("PET_NODE_RANK", NodeIndex),
            variable("PET_MASTER_ADDR", Master),
            variable("PET_MASTER_PORT", Port(29500)),
            variable("JOB_COMPLETION_INDEX", NodeIndex),
        ],
        prefixes: &["JAX_", "OMPI_", "XGBOOST_", "DMLC_", "FLUX_"],
        labels: &TRAIN_JOB_LABELS,
        hosts: &["{name}-node-0-{index}"],
        master: "{name}-node-0-0.{name}",
        ..JOB_SET
    },
    Facts {
        maker: Maker::MpiJob,
        name: "MPIJob",
        source: "kubeflow/mpi-operator v0.8.0, pkg/controller/mpi_job_controller.go, \
                 pkg/apis/kubeflow/v2beta1/constants.go",
        variables: &[variable("K_MPI_JOB_ROLE", Other)],
        // NVIDIA_*: the launcher gets no GPU.
        prefixes: &["OMPI_", "I_MPI_", "HYDRA_", "PMI_", "PMIX_", "MPI_", "NVIDIA_"],
        labels: &[
            label("training.kubeflow.org/job-name", Name),
            label("training.kubeflow.org/operator-name", Word("mpi-operator")),
            label("training.kubeflow.org/job-role", Role),
            label("training.kubeflow.org/replica-type", Role),
            label("training.kubeflow.org/replica-index", PodIndex),
            label("mpi-job-name", Name),
            label("mpi-job-role", Role),
            label("job-name", Later),
        ],
        hosts: &["{name}-launcher", "{name}-worker-{index}"],
        subdomain: "{name}",
        services: &[Service { name: "{name}", of_all: true, not_ready: false, when: When::Always }],
        ..NOTHING
    },
    Facts {
        maker: Maker::JaxJob,
        name: "JAXJob",
        source: "kubeflow/training-operator v1.9.0, pkg/controller.v1/jax/envvar.go",
        variables: &[
            variable("PYTHONUNBUFFERED", Other),
            variable("COORDINATOR_ADDRESS", Master),
            variable("COORDINATOR_PORT", Port(6666)),
            variable("NUM_PROCESSES", Nodes),
            variable("PROCESS_ID", NodeIndex),
        ],
        labels: &KUBEFLOW_LABELS,
        hosts: &["{name}-{role}-{index}"],
        master: "{name}-worker-0",
        services: &SERVICE_PER_POD,
        index: Some(Index::Variable("PROCESS_ID")),
        ..NOTHING
    },
    Facts {
        maker: Maker::KubeflowJob,
        name: "Kubeflow Job",
        source: "kubeflow/training-operator v1.9.0, pkg/controller.v1/{tensorflow,xgboost,paddlepaddle}",
        variables: &[
            variable("TF_CONFIG", Other),
            variable("MASTER_ADDR", Master),
            variable("MASTER_PORT", Other),
        ],
        prefixes: &["TF_", "PADDLE_", "TRAINER_", "WORKER_", "RANK", "WORLD_SIZE"],
        labels: &KUBEFLOW_LABELS,
        hosts: &["{name}-{role}-{index}"],
        services: &SERVICE_PER_POD,
        index: Some(Index::Field("metadata.labels['training.kubeflow.org/replica-index']")),
        is_known: false,
        ..NOTHING
    },
    Facts {
        maker: Maker::VolcanoJob,
        name: "Volcano Job",
        source: "volcano-sh/volcano v1.15.1, pkg/controllers/job/plugins/{svc,env,distributed-framework}, \
                 pkg/controllers/job/job_controller_util.go, staging/.../batch/v1alpha1/labels.go",
        variables: &[
            when(When::Plugin("env"), "VC_TASK_INDEX", IndexInRole),
            when(When::Plugin("env"), "VK_TASK_INDEX", IndexInRole),
            when(When::Plugin("svc"), "VC_{role}_HOSTS", Hosts),
            when(When::Plugin("svc"), "VC_{role}_NUM", Other),
            when(When::Plugin("pytorch"), "MASTER_ADDR", Master),
            when(When::Plugin("pytorch"), "MASTER_PORT", Port(23456)),
            when(When::Plugin("pytorch"), "WORLD_SIZE", World),
            when(When::Plugin("pytorch"), "RANK", NodeIndex),
            when(When::Plugin("tensorflow"), "TF_CONFIG", Other),
            when(When::Plugin("mpi"), "MPI_HOST", Hosts),
        ],
        labels: &[
            label("volcano.sh/job-name", Name),
            label("volcano.sh/task-spec", Role),
            label("volcano.sh/task-index", PodIndex),
            label("volcano.sh/job-namespace", Later),
            label("volcano.sh/queue-name", Later),
            label("volcano.sh/partition-id", Later),
            label("volcano.sh/job-version", Later),
            label("volcano.sh/job-retry-count", Later),
            label("scheduling.k8s.io/group-name", Later),
        ],
        hosts: &["{name}-{role}-{index}"],
        master: "{name}-master-0.{name}",
        subdomain: "{name}",
        services: &[Service { name: "{name}", of_all: true, not_ready: false, when: When::Plugin("svc") }],
        index: Some(Index::Field("metadata.labels['volcano.sh/task-index']")),
        run_id: Some("metadata.annotations['scheduling.k8s.io/group-name']"),
        ..NOTHING
    },
    Facts {
        maker: Maker::Ray,
        name: "RayCluster",
        source: "ray-project/kuberay v1.7.0, ray-operator/controllers/ray/utils/{constant,util}.go",
        prefixes: &["RAY_", "FQ_RAY_", "KUBERAY_", "REDIS_", "TPU_"],
        labels: &[
            label("ray.io/cluster", Later),
            label("ray.io/node-type", Role),
            label("ray.io/group", Later),
            label("ray.io/is-ray-node", Word("yes")),
            label("ray.io/identifier", Later),
            label("ray.io/serve", Later),
            label("ray.io/originated-from-cr-name", Later),
            label("ray.io/originated-from-crd", Later),
            label("ray.io/worker-group-replica-index", Group),
            label("ray.io/worker-group-replica-name", Later),
            label("ray.io/replica-host-index", PodIndex),
            label("app.kubernetes.io/name", Word("kuberay")),
            label("app.kubernetes.io/created-by", Word("kuberay-operator")),
        ],
        services: &[Service { name: "{name}-head-svc", of_all: false, not_ready: false, when: When::Always }],
        ..NOTHING
    },
    Facts {
        maker: Maker::HyperPod,
        name: "HyperPodPyTorchJob",
        source: "aws/sagemaker-hyperpod-cli v3.9.0, hyperpod-pytorch-job-template; the operator's source is \
                 not public",
        is_known: false,
        ..NOTHING
    },
];
