//! Which platform made this pod. What each of them injects was read in its source or documentation, or, where a comment
//! says so, is only remembered; `docs/env.md` is the table for users.

use serde::Serialize;

use super::Environment;
use super::names::{first_label, ordinal};

/// The platforms that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// `LWS_LEADER_ADDRESS`, `LWS_GROUP_SIZE`, and from 0.6 on `LWS_WORKER_INDEX`.
    LeaderWorkerSet,
    /// Volcano: `VC_*` from its svc and env plugins; `RANK` and `WORLD_SIZE` of its pytorch plugin count pods.
    Volcano,
    /// Slurm's `SLURM_*` in a job step.
    Slurm,
    /// A platform that injects `POD_NAME`, `POD_NUMS`, `POD_PORT`, `SVC_NAME` into StatefulSets.
    InjectedStatefulSet,
    /// The same platform's Jobs, which have `JOB_COMPLETION_INDEX` besides.
    InjectedJob,
    /// Kubetorch: `KT_*`; torch's variables are set for each process.
    Kubetorch,
    /// A JobSet whose labels the pod was given as variables.
    JobSet,
    /// Kubeflow Trainer v2: `PET_*`, on top of a JobSet.
    TrainJob,
    /// Kubeflow PyTorchJob v1: `MASTER_*`; `RANK` and `WORLD_SIZE` count pods; `PET_RDZV_*` with an elastic policy.
    PyTorchJob,
    /// An Indexed Job: `JOB_COMPLETION_INDEX`.
    IndexedJob,
    /// A StatefulSet: the ordinal in the pod's name, or the pod-index label as a variable.
    StatefulSet,
    /// Variables of torch or torchrun that somebody set.
    Variables,
    /// Nothing that says anything.
    Unknown,
}

impl Platform {
    /// Every platform, in the order in which they are looked for.
    pub const ALL: [Self; 13] = [
        Self::LeaderWorkerSet,
        Self::Volcano,
        Self::Slurm,
        Self::InjectedJob,
        Self::InjectedStatefulSet,
        Self::Kubetorch,
        Self::JobSet,
        Self::TrainJob,
        Self::PyTorchJob,
        Self::IndexedJob,
        Self::StatefulSet,
        Self::Variables,
        Self::Unknown,
    ];

    /// The first platform whose mark is in the environment.
    pub(super) fn recognize(env: &Environment, hostname: &str) -> Self {
        Self::ALL
            .into_iter()
            .find(|platform| platform.has_left_its_mark(env, hostname))
            .unwrap_or(Self::Unknown)
    }

    fn has_left_its_mark(self, env: &Environment, hostname: &str) -> bool {
        let has = |name| env.get(name).is_some();
        let host = first_label(hostname);
        match self {
            Self::LeaderWorkerSet => env.has_any(&["LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE"]),
            Self::Volcano => {
                let host_list = |(name, _): (&str, &str)| name.starts_with("VC_") && name.ends_with("_HOSTS");
                env.has_any(&["VC_TASK_INDEX", "VK_TASK_INDEX"]) || env.iter().any(host_list)
            }
            Self::Slurm => has("SLURM_JOB_ID") && env.has_any(&["SLURM_NODEID", "SLURM_PROCID"]),
            Self::InjectedJob => has("POD_NUMS") && has("JOB_COMPLETION_INDEX"),
            Self::InjectedStatefulSet => has("POD_NUMS"),
            // `KT_SERVICE` is in its pod template; `KT_SERVICE_NAME` is remembered from later versions.
            Self::Kubetorch => env.has_any(&["KT_SERVICE", "KT_SERVICE_NAME"]),
            // Not injected by JobSet, but what its examples name the labels that they hand in.
            Self::JobSet => env.has_any(&["JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_INDEX"]),
            Self::TrainJob => {
                has("JOB_COMPLETION_INDEX")
                    && env.get("PET_MASTER_ADDR").is_some_and(|master| master.contains("-node-0-0."))
            }
            Self::PyTorchJob => {
                let replica = ordinal(host)
                    .is_some_and(|(name, _)| name.ends_with("-master") || name.ends_with("-worker"));
                replica && env.in_kubernetes() && env.has_any(&["MASTER_ADDR", "PET_RDZV_ENDPOINT"])
            }
            Self::IndexedJob => has("JOB_COMPLETION_INDEX"),
            Self::StatefulSet => {
                let name = env.get("POD_NAME").unwrap_or(host);
                env.has_any(&["RALLYPOINT_POD_INDEX", "POD_INDEX"])
                    || env.in_kubernetes() && ordinal(name).is_some()
            }
            Self::Variables => env.has_any(&[
                "MASTER_ADDR",
                "PET_MASTER_ADDR",
                "PET_RDZV_ENDPOINT",
                "PET_NODE_RANK",
                "PET_NNODES",
                "NODE_RANK",
                "RANK",
            ]),
            Self::Unknown => true,
        }
    }

    /// The name in messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LeaderWorkerSet => "LeaderWorkerSet",
            Self::Volcano => "Volcano",
            Self::Slurm => "Slurm",
            Self::InjectedStatefulSet => "platform with POD_NUMS, StatefulSet",
            Self::InjectedJob => "platform with POD_NUMS, Job",
            Self::Kubetorch => "Kubetorch",
            Self::JobSet => "JobSet",
            Self::TrainJob => "Kubeflow TrainJob (v2)",
            Self::PyTorchJob => "Kubeflow PyTorchJob (v1)",
            Self::IndexedJob => "Indexed Job",
            Self::StatefulSet => "StatefulSet",
            Self::Variables => "variables set by hand",
            Self::Unknown => "unknown",
        }
    }

    /// Whether its `RANK` and `WORLD_SIZE` count pods and not processes.
    pub const fn counts_pods(self) -> bool {
        matches!(self, Self::PyTorchJob | Self::Volcano | Self::InjectedStatefulSet | Self::InjectedJob)
    }

    /// Whether its pods are numbered by name.
    pub const fn numbers_names(self) -> bool {
        matches!(self, Self::StatefulSet | Self::InjectedStatefulSet)
    }
}
