//! The makers of pods in Kubernetes, and the values that each maker gives to its pods: variables, labels,
//! names, Services, an index.
//!
//! One table (`table`) serves everybody who needs such a fact: `doctor --manifest` checks files by it, and
//! `env` reads the variables that it names. Each row names its sources. Pure data.
//!
//! In names, `{name}` is the object's name, `{role}` the replica type, task or replicated Job, `{job}` the
//! number of the replicated Job, `{group}` the number of the group, and `{index}` the number of the pod.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

mod table;

/// A maker of pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Maker {
    /// A bare pod.
    Pod,
    /// A Job without indexes.
    Job,
    /// A Job with `completionMode: Indexed`.
    IndexedJob,
    /// A StatefulSet.
    StatefulSet,
    /// Deployments, ReplicaSets and DaemonSets, whose pods have random names.
    Deployment,
    /// LeaderWorkerSet.
    LeaderWorkerSet,
    /// JobSet.
    JobSet,
    /// Kubeflow's PyTorchJob (v1).
    PyTorchJob,
    /// Kubeflow's TrainJob and its runtimes (v2), on top of a JobSet.
    TrainJob,
    /// Kubeflow's MPIJob, from the MPI operator (v2beta1) and from the training operator (v1).
    MpiJob,
    /// Kubeflow's JAXJob (v1).
    JaxJob,
    /// Kubeflow's other Jobs of version 1: TFJob, XGBoostJob, PaddleJob.
    KubeflowJob,
    /// Volcano's Job.
    VolcanoJob,
    /// KubeRay's RayCluster, RayJob and RayService.
    Ray,
    /// A script for Slurm's sbatch.
    Slurm,
    /// SageMaker HyperPod's HyperPodPyTorchJob.
    HyperPod,
    /// Another kind with a pod template.
    #[default]
    Unknown,
}

/// The facts about a maker, and about the pods that it makes.
#[derive(Debug)]
pub struct Facts {
    /// The maker.
    pub maker: Maker,
    /// Its name in messages.
    pub name: &'static str,
    /// The project, release and files that the facts come from.
    pub source: &'static str,
    /// The variables that it injects into the containers.
    pub variables: &'static [Variable],
    /// Prefixes of further variables that it sets.
    pub prefixes: &'static [&'static str],
    /// The labels that it puts on the pods, and the annotations that a run's id may come from.
    pub labels: &'static [Label],
    /// The host names of the pods; empty if they are random.
    pub hosts: &'static [&'static str],
    /// The domain after a host name; empty if the pod template sets it.
    pub subdomain: &'static str,
    /// The host that it names as the master, with placeholders. Empty if it names none, or only at run time.
    pub master: &'static str,
    /// The Services that it creates.
    pub services: &'static [Service],
    /// How a container can get its pod's index, in the form for a manifest.
    pub index: Option<Index>,
    /// The field with an id that all pods of a run share, and that differs between runs.
    pub run_id: Option<&'static str>,
    /// Whether everything that it injects is known.
    pub is_known: bool,
}

/// The condition of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum When {
    /// Always.
    Always,
    /// PyTorchJob with a Master.
    Master,
    /// PyTorchJob without an elastic policy.
    Fixed,
    /// PyTorchJob with an elastic policy.
    Elastic,
    /// PyTorchJob or TrainJob with a number of processes.
    Processes,
    /// Volcano with the plugin of this name.
    Plugin(&'static str),
}

/// A variable that a maker injects.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The meaning of its value.
    pub holds: Holds,
    /// The condition under which it is set.
    pub when: When,
}

/// The meaning of a variable's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// The pod's index among the nodes, from 0 on.
    Index,
    /// The pod's index in its role; each role begins at 0.
    IndexInRole,
    /// The number of pods that train.
    Nodes,
    /// The number of processes in all pods.
    World,
    /// The number of processes in one pod.
    Processes,
    /// The host of rank 0.
    Master,
    /// `HOST:PORT` of rank 0.
    Endpoint,
    /// The port where rank 0 listens.
    Port(u16),
    /// The name of the rendezvous backend.
    Backend(&'static str),
    /// A list of the pods' host names.
    Hosts,
    /// Something else.
    Other,
}

/// A label that a maker puts on its pods.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// Its key.
    pub key: &'static str,
    /// Its value.
    pub value: LabelValue,
}

/// The value of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelValue {
    /// The object's name.
    Name,
    /// The replica type, task or replicated Job.
    Role,
    /// A number that is unique among the pods of a role.
    Index,
    /// A number that the pods of one group or replicated Job share.
    Group,
    /// The pod's own name.
    PodName,
    /// This word.
    Word(&'static str),
    /// A value that is known only when the object exists.
    Later,
}

/// A Service that a maker creates.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    /// Its name, with placeholders.
    pub name: &'static str,
    /// Whether it gives each pod a name, by its host name. Otherwise it stands for one pod.
    pub of_all: bool,
    /// Whether it names pods before they are Ready.
    pub not_ready: bool,
    /// The condition under which it is created.
    pub when: When,
}

/// How a container can get its pod's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// An injected variable.
    Variable(&'static str),
    /// A field for `valueFrom.fieldRef`.
    Field(&'static str),
}

impl Index {
    /// The text for a shell command.
    pub fn in_shell(self) -> String {
        match self {
            Self::Variable(name) => format!("${name}"),
            Self::Field(_) => "$POD_INDEX".into(),
        }
    }

    /// The item that `env` needs for it.
    pub fn in_env(self) -> Option<String> {
        match self {
            Self::Variable(_) => None,
            Self::Field(path) => Some(env_of_field("POD_INDEX", path)),
        }
    }
}

/// An item of `env` that reads a field of the pod.
pub fn env_of_field(name: &str, path: &str) -> String {
    format!("{{name: {name}, valueFrom: {{fieldRef: {{fieldPath: \"{path}\"}}}}}}")
}

impl Maker {
    /// The facts about it.
    pub fn facts(self) -> &'static Facts {
        let known = table::TABLE.iter().find(|facts| facts.maker == self);
        known.unwrap_or(&table::UNKNOWN)
    }

    /// The maker of a kind. Every Job counts as unindexed here: its spec says whether it is indexed.
    pub fn of_kind(api_version: &str, kind: &str) -> Self {
        let group = api_version.split('/').next().unwrap_or_default();
        match (group, kind) {
            ("batch.volcano.sh", "Job") => Self::VolcanoJob,
            ("batch.volcano.sh", _) => Self::Unknown,
            (_, "Pod" | "PodTemplate") => Self::Pod,
            (_, "Job" | "CronJob") => Self::Job,
            (_, "StatefulSet") => Self::StatefulSet,
            (_, "Deployment" | "ReplicaSet" | "DaemonSet" | "ReplicationController") => Self::Deployment,
            (_, "LeaderWorkerSet") => Self::LeaderWorkerSet,
            (_, "JobSet") => Self::JobSet,
            (_, "PyTorchJob") => Self::PyTorchJob,
            (_, "TrainJob" | "TrainingRuntime" | "ClusterTrainingRuntime") => Self::TrainJob,
            (_, "MPIJob") => Self::MpiJob,
            (_, "JAXJob") => Self::JaxJob,
            (_, "TFJob" | "XGBoostJob" | "PaddleJob") => Self::KubeflowJob,
            (_, "RayCluster" | "RayJob" | "RayService" | "RayCronJob") => Self::Ray,
            (_, "HyperPodPyTorchJob") => Self::HyperPod,
            ("slurm", _) => Self::Slurm,
            _ => Self::Unknown,
        }
    }

    /// The API group of its kinds.
    pub const fn group(self) -> Option<&'static str> {
        Some(match self {
            Self::LeaderWorkerSet => "leaderworkerset.x-k8s.io",
            Self::JobSet => "jobset.x-k8s.io",
            Self::TrainJob => "trainer.kubeflow.org",
            Self::PyTorchJob | Self::MpiJob | Self::JaxJob | Self::KubeflowJob => "kubeflow.org",
            Self::VolcanoJob => "batch.volcano.sh",
            Self::Ray => "ray.io",
            Self::HyperPod => "sagemaker.amazonaws.com",
            Self::Job | Self::IndexedJob => "batch",
            Self::Pod | Self::StatefulSet | Self::Deployment | Self::Slurm | Self::Unknown => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_maker_has_one_row_and_says_where_it_was_read() {
        for (n, facts) in table::TABLE.iter().enumerate() {
            assert!(!facts.source.is_empty() && !facts.name.is_empty(), "{:?}", facts.maker);
            assert!(
                table::TABLE[n + 1..].iter().all(|other| other.maker != facts.maker),
                "{:?}",
                facts.maker
            );
            for (n, label) in facts.labels.iter().enumerate() {
                let again = facts.labels[n + 1..].iter().any(|other| other.key == label.key);
                assert!(!again, "{:?}: {}", facts.maker, label.key);
            }
        }
        assert_eq!(Maker::Unknown.facts().maker, Maker::Unknown);
        assert_eq!(Maker::of_kind("batch.volcano.sh/v1alpha1", "Job"), Maker::VolcanoJob);
        assert_eq!(Maker::of_kind("batch/v1", "Job"), Maker::Job);
        assert_eq!(Maker::of_kind("example.org/v1", "Train"), Maker::Unknown);
    }
}
