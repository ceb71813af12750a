//! What makes pods in Kubernetes, and what each maker gives to its pods: variables, labels, names, Services, an index.
//!
//! One table (`table`) for everybody who needs such a fact: `doctor --manifest` judges files by it, and `env` reads the
//! variables that it names. Each row says where it was read. Pure data.
//!
//! In names, `{name}` is the object's name, `{role}` the replica type, task or replicated Job, `{job}` the number of the
//! replicated Job, `{group}` that of the group, `{index}` that of the pod.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

mod table;

/// What makes pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// Kubeflow's MPIJob, of the MPI operator (v2beta1) and of the training operator (v1).
    MpiJob,
    /// Kubeflow's JAXJob (v1).
    JaxJob,
    /// Kubeflow's other Jobs of version 1: TFJob, XGBoostJob, PaddleJob.
    KubeflowJob,
    /// Volcano's Job.
    VolcanoJob,
    /// KubeRay's RayCluster, RayJob and RayService.
    Ray,
    /// SageMaker HyperPod's HyperPodPyTorchJob.
    HyperPod,
    /// Another kind that has a pod template.
    Unknown,
}

/// What a maker gives to its pods.
#[derive(Debug)]
pub struct Facts {
    /// The maker.
    pub maker: Maker,
    /// Its name in messages.
    pub name: &'static str,
    /// Project, release and files where this was read.
    pub source: &'static str,
    /// What it puts into the containers' environment.
    pub variables: &'static [Variable],
    /// Variables that begin like this are its own as well.
    pub prefixes: &'static [&'static str],
    /// The labels that it puts on the pods.
    pub labels: &'static [Label],
    /// The pods' host names; empty if they are random.
    pub hosts: &'static [&'static str],
    /// What follows a host name and a dot; empty if the pod template says it.
    pub subdomain: &'static str,
    /// The host that it names as master, with placeholders; empty if it names none, or one that is known only later.
    pub master: &'static str,
    /// The Services that it makes.
    pub services: &'static [Service],
    /// How a container learns its pod's index, in the form for a manifest.
    pub index: Option<Index>,
    /// The field with an id that all pods of a run share, and no other run has.
    pub run_id: Option<&'static str>,
    /// Whether all that it injects is known.
    pub is_known: bool,
}

/// When a maker does something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum When {
    /// In any case.
    Always,
    /// PyTorchJob: there is a Master.
    Master,
    /// PyTorchJob: there is no elastic policy.
    Fixed,
    /// PyTorchJob: there is an elastic policy.
    Elastic,
    /// PyTorchJob, TrainJob: the number of processes is given.
    Processes,
    /// Volcano: the plugin of this name is on.
    Plugin(&'static str),
}

/// A variable that a maker injects.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub holds: Holds,
    /// When it is there.
    pub when: When,
}

/// What a variable holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// The pod's index among the nodes, from 0 on.
    Index,
    /// The pod's index in its role, which begins at 0 in each role.
    IndexInRole,
    /// The number of pods that train.
    Nodes,
    /// The number of processes of all pods.
    World,
    /// The number of processes of one pod.
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

/// What a label says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelValue {
    /// The object's name.
    Name,
    /// The replica type, task or replicated Job.
    Role,
    /// A number that only one pod of its role has.
    Index,
    /// A number that the pods of one group or replicated Job share.
    Group,
    /// The pod's own name.
    PodName,
    /// This word.
    Word(&'static str),
    /// Something that is known only when the object is made.
    Later,
}

/// A Service that a maker makes.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    /// Its name, with placeholders.
    pub name: &'static str,
    /// Whether it names pods, each by its host name; else it stands for one pod.
    pub of_all: bool,
    /// Whether it names pods before they are Ready.
    pub not_ready: bool,
    /// When it is made.
    pub when: When,
}

/// How a container learns its pod's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// A variable that is injected.
    Variable(&'static str),
    /// A field for `valueFrom.fieldRef`.
    Field(&'static str),
}

impl Index {
    /// What to write into a shell command.
    pub fn in_shell(self) -> String {
        match self {
            Self::Variable(name) => format!("${name}"),
            Self::Field(_) => "$POD_INDEX".into(),
        }
    }

    /// What must be in `env` for it.
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
    /// What it gives to its pods.
    pub fn facts(self) -> &'static Facts {
        let known = table::TABLE.iter().find(|facts| facts.maker == self);
        known.unwrap_or(&table::UNKNOWN)
    }

    /// The maker of a kind. A Job's spec says if it is indexed.
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
            _ => Self::Unknown,
        }
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
