//! The pods that each object makes: their number, their names, and their values.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Location;
use super::container::Container;
use super::objects::{Object, list, texts};
use rallypoint_node::makers::{Facts, LabelValue, Maker, When, env_of_field};
use rallypoint_shell::Text;

/// Host names with a common start and a number at the end.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    pub(super) begin: String,
    pub(super) count: Option<u64>,
    /// Whether number 0 of them is the first of all pods.
    pub(super) has_first: bool,
}

/// How a part of a script runs.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(super) nodes: Option<u64>,
    pub(super) tasks: Option<u64>,
    pub(super) by_srun: bool,
}

/// The pods of one template.
#[derive(Debug)]
pub(crate) struct Pods {
    /// The object's index among all objects.
    pub(super) object: usize,
    pub(super) place: Location,
    pub(super) maker: Maker,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    /// The replica type, task or replicated Job.
    pub(super) role: String,
    /// The part below the Job's own `spec`.
    pub(super) owner: Value,
    pub(super) owner_at: String,
    pub(super) spec: Value,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) count: Option<u64>,
    /// The number of pods in one child Job or group, if there can be several.
    pub(super) in_unit: Option<u64>,
    /// The number of nodes that the maker itself counts.
    pub(super) nodes: Option<u64>,
    /// The number of processes of a pod, if the maker knows it.
    pub(super) processes: Option<String>,
    pub(super) hosts: Vec<Hosts>,
    pub(super) subdomain: Option<String>,
    pub(super) features: Vec<When>,
    /// Whether the object has only this template, in one unit.
    pub(super) is_alone: bool,
    /// Other roles of the object.
    pub(super) roles: Vec<String>,
    pub(super) is_open: bool,
    /// Whether the place is the container itself.
    pub(super) is_container: bool,
    /// How they run, if a script for Slurm starts them.
    pub(super) step: Option<Step>,
    pub(super) containers: Vec<Container>,
    pub(super) init_containers: Vec<Container>,
}

impl Pods {
    /// Pods of an object about which nothing is known but their maker.
    pub(crate) fn bare(object: &Object, number: usize, maker: Maker) -> Self {
        let draft = draft(object, number, maker, "", String::new(), None);
        draft.made(Value::Null, Value::Null, BTreeMap::new(), 1, &[])
    }

    pub(crate) fn facts(&self) -> &'static Facts {
        self.maker.facts()
    }

    /// A field below the spec of the pod template.
    pub(crate) fn at(&self, field: &str) -> Location {
        let joined =
            if field.is_empty() { self.place.field.clone() } else { format!("{}.{field}", self.place.field) };
        Location { field: joined, ..self.place.clone() }
    }

    /// A field of the object itself.
    pub(crate) fn of_owner(&self, field: &str) -> Location {
        let joined =
            if self.owner_at.is_empty() { field.into() } else { format!("{}.{field}", self.owner_at) };
        Location { field: joined, ..self.place.clone() }
    }

    pub(crate) fn owner_number(&self, field: &str) -> Option<u64> {
        self.owner.get(field).and_then(Value::as_u64)
    }

    pub(crate) fn are_several(&self) -> bool {
        self.count.is_some_and(|count| count > 1)
    }

    /// Whether a container launches a training.
    pub(crate) fn train(&self) -> bool {
        self.containers.iter().any(Container::trains)
    }

    /// Whether a container is a rallypoint server.
    pub(crate) fn serve(&self) -> bool {
        self.init_containers.iter().chain(&self.containers).any(Container::serves)
    }

    /// Whether a relay listens at this address.
    pub(crate) fn relays(&self, name: &Text) -> bool {
        let is_loopback = matches!(name.literal(), Some("127.0.0.1" | "localhost"));
        is_loopback && self.init_containers.iter().chain(&self.containers).any(Container::relays)
    }

    /// Whether they have the network, and the names, of their nodes.
    pub(crate) fn on_host(&self) -> bool {
        self.spec.get("hostNetwork") == Some(&Value::Bool(true))
    }

    pub(crate) fn are_probed(&self) -> bool {
        self.containers.iter().any(|container| container.value.get("readinessProbe").is_some())
    }

    /// Whether their maker has an index for each of them.
    pub(crate) fn has_index(&self) -> bool {
        self.facts().index.is_some()
    }

    /// Whether they are of a TrainJob whose runtime is for PyTorch: it sets the variables of torchrun.
    pub(crate) fn has_torch_runtime(&self) -> bool {
        let named = self.owner.pointer("/spec/runtimeRef/name").and_then(Value::as_str);
        named.is_some_and(|name| name.contains("torch")) || self.owner.pointer("/mlPolicy/torch").is_some()
    }

    /// Whether they train together, and have names for each other only by a Service that the user creates.
    pub(crate) fn need_own_service(&self) -> bool {
        let by_maker = self.facts().services.iter().any(|service| service.of_all && self.has(service.when));
        let kubernetes =
            matches!(self.maker, Maker::Job | Maker::IndexedJob | Maker::StatefulSet | Maker::Deployment);
        kubernetes && self.are_several() && self.train() && !(by_maker && self.subdomain.is_some())
    }

    /// How they get an id of the run: the line to change.
    pub(crate) fn run_id_remedy(&self) -> String {
        let facts = self.facts();
        match facts.run_id {
            Some(path) => {
                format!("--rdzv-id=$(RUN_UID), with this in env: {}", env_of_field("RUN_UID", path))
            }
            None => format!(
                "--rdzv-id with a name that you change for each run (`{}-1`, …): a {} gives its pods no id \
                 of the run",
                if self.name.is_empty() { "train" } else { &self.name },
                facts.name
            ),
        }
    }

    pub(crate) fn has(&self, when: When) -> bool {
        when == When::Always || self.features.contains(&when)
    }

    /// The name of the first pod with its subdomain, as other pods would write it.
    pub(crate) fn first_host(&self) -> Option<String> {
        let first = self.hosts.iter().find(|hosts| hosts.has_first)?;
        let host = if first.count == Some(0) { first.begin.clone() } else { format!("{}0", first.begin) };
        match &self.subdomain {
            Some(subdomain) => Some(format!("{host}.{subdomain}")),
            None if self.facts().services.iter().any(|service| !service.of_all) => Some(host),
            None => None,
        }
    }

    /// The value of a label on these pods; `None` if they do not have it.
    pub(crate) fn label(&self, key: &str) -> Option<LabelIs<'_>> {
        if let Some(value) = self.labels.get(key).or_else(|| self.annotations.get(key)) {
            return Some(LabelIs::Text(value));
        }
        let label = self.facts().labels.iter().find(|label| label.key == key)?;
        Some(match label.value {
            LabelValue::Name if self.name.is_empty() => LabelIs::Later,
            LabelValue::Name => LabelIs::Text(&self.name),
            LabelValue::Role => LabelIs::Text(&self.role),
            LabelValue::Word(word) => LabelIs::Text(word),
            LabelValue::Index => LabelIs::Index,
            LabelValue::PodName => LabelIs::PodName,
            LabelValue::Group | LabelValue::Later => LabelIs::Later,
        })
    }
}

/// The value of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LabelIs<'p> {
    Text(&'p str),
    Index,
    PodName,
    Later,
}

/// A template before its containers are read.
struct Draft<'o> {
    object: &'o Object,
    number: usize,
    maker: Maker,
    role: String,
    base: String,
    owner_at: &'static str,
    count: Option<u64>,
    in_unit: Option<u64>,
    nodes: Option<u64>,
    processes: Option<String>,
    hosts: Vec<Hosts>,
    features: Vec<When>,
}

impl Draft<'_> {
    fn build(self, drafts: usize, roles: &[String]) -> Option<Pods> {
        let template = self.object.value.pointer(&self.base)?;
        let field = dotted(&self.base);
        // Some kinds have the spec of a pod, or a container, where others have a template.
        let is_spec = template.get("containers").is_some();
        let container = template.get("container").or_else(|| template.get("script"));
        let container = container.filter(|container| container.get("image").is_some());
        let (spec, field) = match container {
            Some(container) => (json!({ "containers": [container] }), format!("{field}.container")),
            None if is_spec => (template.clone(), field),
            None if field.is_empty() => (template.get("spec")?.clone(), "spec".into()),
            None => (template.get("spec")?.clone(), format!("{field}.spec")),
        };
        spec.is_object().then_some(())?;
        let owner = if self.owner_at.is_empty() {
            self.object.value.clone()
        } else {
            let at = format!("/{}", self.owner_at.replace('.', "/"));
            self.object.value.pointer(&at).cloned().unwrap_or(Value::Null)
        };
        let annotations = texts(template.pointer("/metadata/annotations"));
        Some(Pods {
            place: self.object.place(&field),
            is_container: container.is_some(),
            annotations,
            ..self.made(spec, owner, texts(template.pointer("/metadata/labels")), drafts, roles)
        })
    }

    fn made(
        self,
        spec: Value,
        owner: Value,
        labels: BTreeMap<String, String>,
        drafts: usize,
        roles: &[String],
    ) -> Pods {
        let object = self.object;
        let facts = self.maker.facts();
        let own_subdomain = spec.get("subdomain").and_then(Value::as_str).map(str::to_owned);
        let subdomain = match self.maker {
            Maker::StatefulSet => owner.get("serviceName").and_then(Value::as_str).map(str::to_owned),
            Maker::JobSet => match object.value.pointer("/spec/network") {
                Some(network) if network.get("enableDNSHostnames") == Some(&Value::Bool(false)) => None,
                network => network
                    .and_then(|network| network.get("subdomain")?.as_str())
                    .map(str::to_owned)
                    .or_else(|| Some(object.name.clone())),
            },
            Maker::LeaderWorkerSet => {
                let policy =
                    object.value.pointer("/spec/networkConfig/subdomainPolicy").and_then(Value::as_str);
                (policy != Some("UniquePerReplica")).then(|| object.name.clone())
            }
            Maker::VolcanoJob if !self.features.contains(&When::Plugin("svc")) => None,
            _ => Some(facts.subdomain.replace("{name}", &object.name)).filter(|name| !name.is_empty()),
        };
        let host = spec.get("hostname").and_then(Value::as_str);
        let hosts = match host {
            Some(host) => vec![Hosts { begin: host.to_owned(), count: Some(0), has_first: true }],
            None if object.name.is_empty() => Vec::new(),
            None => self.hosts,
        };
        let mut pods = Pods {
            object: self.number,
            place: object.place("spec"),
            maker: self.maker,
            name: object.name.clone(),
            namespace: object.namespace.clone(),
            role: self.role,
            owner,
            owner_at: self.owner_at.to_owned(),
            spec,
            labels,
            annotations: BTreeMap::new(),
            count: self.count,
            in_unit: self.in_unit.or(self.count),
            nodes: self.nodes,
            processes: self.processes,
            hosts,
            subdomain: own_subdomain.or(subdomain),
            features: self.features,
            is_alone: drafts == 1 && (self.in_unit.is_none() || self.in_unit == self.count),
            roles: roles.to_vec(),
            is_open: object.has_blanks || !facts.is_known,
            is_container: false,
            step: None,
            containers: Vec::new(),
            init_containers: Vec::new(),
        };
        pods.owner_at = format!("{}{}", object.at, pods.owner_at);
        pods
    }
}

/// The pods of an object, without their containers.
pub(crate) fn of(object: &Object, number: usize, objects: &[Object]) -> Vec<Pods> {
    let maker = Maker::of_kind(&object.api, &object.kind);
    let mut drafts = drafts(object, number, maker);
    if drafts.is_empty() && (maker == Maker::Unknown || maker.facts().is_known) {
        drafts = anywhere(&object.value, "")
            .into_iter()
            .map(|base| draft(object, number, Maker::Unknown, "", base, None))
            .collect();
    }
    let count = drafts.len();
    let roles: Vec<String> = drafts.iter().map(|draft| draft.role.clone()).collect();
    let mut pods: Vec<Pods> = drafts.into_iter().filter_map(|draft| draft.build(count, &roles)).collect();
    pods.extend(trainer(object, number, objects));
    pods.extend(entrypoint(object, number));
    pods
}

fn draft<'o>(
    object: &'o Object,
    number: usize,
    maker: Maker,
    role: &str,
    base: String,
    count: Option<u64>,
) -> Draft<'o> {
    Draft {
        object,
        number,
        maker,
        role: role.to_owned(),
        base,
        owner_at: "spec",
        count,
        in_unit: None,
        nodes: None,
        processes: None,
        hosts: Vec::new(),
        features: Vec::new(),
    }
}

fn drafts(object: &Object, number: usize, maker: Maker) -> Vec<Draft<'_>> {
    let value = &object.value;
    let name = &object.name;
    let count = |pointer: &str| match value.pointer(pointer) {
        None | Some(Value::Null) => Some(1),
        Some(count) => count.as_u64(),
    };
    let numbered = |begin: String, count: Option<u64>| vec![Hosts { begin, count, has_first: true }];
    let one =
        |maker: Maker, base: &str, count: Option<u64>| draft(object, number, maker, "", base.into(), count);
    match maker {
        Maker::Pod if object.kind == "PodTemplate" => vec![one(maker, "/template", Some(1))],
        Maker::Pod => {
            let hosts = vec![Hosts { begin: name.clone(), count: Some(0), has_first: true }];
            vec![Draft { hosts, owner_at: "", ..one(maker, "", Some(1)) }]
        }
        Maker::Job | Maker::IndexedJob => {
            let (base, owner_at) = match object.kind.as_str() {
                "CronJob" => ("/spec/jobTemplate/spec", "spec.jobTemplate.spec"),
                _ => ("/spec", "spec"),
            };
            let indexed =
                value.pointer(&format!("{base}/completionMode")).and_then(Value::as_str) == Some("Indexed");
            let maker = if indexed { Maker::IndexedJob } else { Maker::Job };
            let count = count(&format!("{base}/parallelism"));
            // The Jobs of a CronJob have their own names.
            let hosts = if indexed && object.kind == "Job" {
                numbered(format!("{name}-"), count)
            } else {
                Vec::new()
            };
            vec![Draft { owner_at, hosts, ..one(maker, &format!("{base}/template"), count) }]
        }
        Maker::StatefulSet => {
            let count = count("/spec/replicas");
            vec![Draft { hosts: numbered(format!("{name}-"), count), ..one(maker, "/spec/template", count) }]
        }
        Maker::Deployment if object.kind == "DaemonSet" => vec![one(maker, "/spec/template", None)],
        Maker::Deployment => vec![one(maker, "/spec/template", count("/spec/replicas"))],
        Maker::LeaderWorkerSet => leader_worker_set(
            object,
            number,
            count("/spec/leaderWorkerTemplate/size"),
            count("/spec/replicas"),
        ),
        Maker::JobSet => job_set(object, number, "/spec/replicatedJobs", name),
        Maker::TrainJob => {
            let nodes = value.pointer("/spec/mlPolicy/numNodes").and_then(Value::as_u64);
            let mut jobs = job_set(object, number, "/spec/template/spec/replicatedJobs", name);
            for job in &mut jobs {
                job.maker = Maker::TrainJob;
                let trains = job.role == "node" || job.role == "trainer";
                job.count = if trains { nodes } else { job.count };
                (job.in_unit, job.nodes) = (job.count, job.count);
                job.hosts = Vec::new();
            }
            jobs
        }
        Maker::PyTorchJob | Maker::JaxJob | Maker::KubeflowJob | Maker::MpiJob => {
            kubeflow(object, number, maker)
        }
        Maker::VolcanoJob => volcano(object, number),
        Maker::Ray => ray(object, number),
        Maker::HyperPod => list(value, "/spec/replicaSpecs")
            .iter()
            .enumerate()
            .map(|(n, spec)| {
                let role = spec.get("name").and_then(Value::as_str).unwrap_or_default();
                let count = spec.get("replicas").map_or(Some(1), Value::as_u64);
                draft(object, number, maker, role, format!("/spec/replicaSpecs/{n}/template"), count)
            })
            .collect(),
        Maker::Slurm | Maker::Unknown => Vec::new(),
    }
}

fn leader_worker_set(
    object: &Object,
    number: usize,
    size: Option<u64>,
    groups: Option<u64>,
) -> Vec<Draft<'_>> {
    let (name, value) = (&object.name, &object.value);
    let has_leader = value.pointer("/spec/leaderWorkerTemplate/leaderTemplate").is_some_and(Value::is_object);
    let group_hosts = |workers: bool| {
        let groups = groups.unwrap_or(1).clamp(1, 64);
        let mut hosts: Vec<Hosts> = Vec::new();
        if !workers || !has_leader {
            hosts.push(Hosts { begin: format!("{name}-"), count: Some(groups), has_first: true });
        }
        if workers {
            hosts.extend((0..groups).map(|group| Hosts {
                begin: format!("{name}-{group}-"),
                count: size,
                has_first: false,
            }));
        }
        hosts
    };
    let made = |role: &str, workers: bool, count: Option<u64>| Draft {
        hosts: group_hosts(workers),
        nodes: size,
        in_unit: count,
        owner_at: "spec.leaderWorkerTemplate",
        ..draft(
            object,
            number,
            Maker::LeaderWorkerSet,
            role,
            format!("/spec/leaderWorkerTemplate/{role}"),
            count,
        )
    };
    if has_leader {
        vec![
            made("leaderTemplate", false, Some(1)),
            made("workerTemplate", true, size.map(|size| size.saturating_sub(1))),
        ]
    } else {
        vec![made("workerTemplate", true, size)]
    }
}

fn job_set<'o>(object: &'o Object, number: usize, at: &str, name: &str) -> Vec<Draft<'o>> {
    let jobs = list(&object.value, at).iter().enumerate();
    jobs.map(|(n, job)| {
        let role = job.get("name").and_then(Value::as_str).unwrap_or_default();
        let or_one = |value: Option<&Value>| value.map_or(Some(1), Value::as_u64);
        let pods = or_one(job.pointer("/template/spec/parallelism"));
        let jobs = or_one(job.get("replicas"));
        let base = format!("{at}/{n}/template/spec/template");
        let units = jobs.unwrap_or(1).clamp(1, 256);
        let hosts = (0..units)
            .map(|unit| Hosts { begin: format!("{name}-{role}-{unit}-"), count: pods, has_first: unit == 0 })
            .collect();
        let indexed =
            job.pointer("/template/spec/completionMode").and_then(Value::as_str) != Some("NonIndexed");
        Draft {
            hosts: if indexed { hosts } else { Vec::new() },
            in_unit: pods,
            ..draft(
                object,
                number,
                Maker::JobSet,
                role,
                base,
                pods.zip(jobs).map(|(pods, jobs)| pods.saturating_mul(jobs)),
            )
        }
    })
    .collect()
}

fn kubeflow(object: &Object, number: usize, maker: Maker) -> Vec<Draft<'_>> {
    let value = &object.value;
    let specs = value.get("spec").and_then(Value::as_object).into_iter().flatten();
    let Some((field, roles)) = specs
        .filter(|(key, _)| key.ends_with("ReplicaSpecs"))
        .find_map(|(key, value)| Some((key, value.as_object()?)))
    else {
        return Vec::new();
    };
    let replicas = |spec: &Value| spec.get("replicas").map_or(Some(1), Value::as_u64);
    let total = roles.values().map(replicas).sum::<Option<u64>>();
    let has_master = roles.keys().any(|role| role.eq_ignore_ascii_case("master"));
    let elastic = value.pointer("/spec/elasticPolicy").filter(|policy| policy.is_object());
    let mut features = vec![if elastic.is_some() { When::Elastic } else { When::Fixed }];
    if has_master {
        features.push(When::Master);
    }
    let processes = value
        .pointer("/spec/nprocPerNode")
        .or_else(|| elastic?.get("nProcPerNode"))
        .and_then(super::objects::scalar);
    let mut drafts: Vec<Draft<'_>> = roles
        .iter()
        .map(|(role, spec)| {
            let role_name = role.to_lowercase();
            let begin = format!("{}-{role_name}-", object.name);
            let has_first = if has_master { role_name == "master" } else { role_name == "worker" };
            let hosts = match (maker, role_name.as_str()) {
                (Maker::MpiJob, "launcher") => {
                    vec![Hosts {
                        begin: format!("{}-launcher", object.name),
                        count: Some(0),
                        has_first: false,
                    }]
                }
                _ => vec![Hosts { begin, count: replicas(spec), has_first }],
            };
            Draft {
                nodes: total,
                processes: processes.clone().or_else(|| (maker == Maker::PyTorchJob).then(|| "auto".into())),
                hosts,
                features: features.clone(),
                ..draft(
                    object,
                    number,
                    maker,
                    &role_name,
                    format!("/spec/{field}/{role}/template"),
                    replicas(spec),
                )
            }
        })
        .collect();
    drafts.sort_by_key(|draft| draft.role != "master" && draft.role != "launcher");
    drafts
}

fn volcano(object: &Object, number: usize) -> Vec<Draft<'_>> {
    const NAMES: [&str; 6] = ["svc", "env", "ssh", "pytorch", "tensorflow", "mpi"];
    let plugins = object.value.pointer("/spec/plugins").and_then(Value::as_object);
    let on = |name: &str| plugins.is_some_and(|plugins| plugins.contains_key(name));
    let mut features: Vec<When> = NAMES.into_iter().filter(|name| on(name)).map(When::Plugin).collect();
    // The distributed plugins switch on the svc plugin.
    if ["pytorch", "tensorflow", "mpi"].into_iter().any(on) && !on("svc") {
        features.push(When::Plugin("svc"));
    }
    let tasks = list(&object.value, "/spec/tasks");
    let replicas = |task: &Value| task.get("replicas").map_or(Some(1), Value::as_u64);
    let total = tasks.iter().map(replicas).sum::<Option<u64>>();
    tasks
        .iter()
        .enumerate()
        .map(|(n, task)| {
            let role =
                task.get("name").and_then(Value::as_str).map_or_else(|| format!("default{n}"), str::to_owned);
            let begin = format!("{}-{role}-", object.name);
            let has_first = n == 0 || role == "master";
            Draft {
                nodes: total,
                hosts: vec![Hosts { begin, count: replicas(task), has_first }],
                features: features.clone(),
                ..draft(
                    object,
                    number,
                    Maker::VolcanoJob,
                    &role,
                    format!("/spec/tasks/{n}/template"),
                    replicas(task),
                )
            }
        })
        .collect()
}

fn ray(object: &Object, number: usize) -> Vec<Draft<'_>> {
    let base = match object.kind.as_str() {
        "RayCluster" => "/spec",
        "RayService" => "/spec/rayClusterConfig",
        "RayCronJob" => "/spec/jobTemplate/rayClusterSpec",
        _ => "/spec/rayClusterSpec",
    };
    let head = draft(object, number, Maker::Ray, "head", format!("{base}/headGroupSpec/template"), Some(1));
    let groups =
        list(&object.value, &format!("{base}/workerGroupSpecs")).iter().enumerate().map(|(n, group)| {
            let count = group.get("replicas").map_or(Some(1), Value::as_u64);
            draft(
                object,
                number,
                Maker::Ray,
                "worker",
                format!("{base}/workerGroupSpecs/{n}/template"),
                count,
            )
        });
    std::iter::once(head).chain(groups).collect()
}

/// A TrainJob has no template of its own, but a runtime, and a command and variables that replace those of
/// the runtime. Without either there is nothing to look at.
fn trainer(object: &Object, number: usize, objects: &[Object]) -> Option<Pods> {
    let runtime = runtime(object, objects);
    let own = object.value.pointer("/spec/trainer").filter(|_| object.kind == "TrainJob");
    (object.kind == "TrainJob" && (own.is_some() || runtime.is_some())).then_some(())?;
    let nothing = json!({});
    let own = own.unwrap_or(&nothing);
    let policy =
        |field: &str| runtime.and_then(|runtime| runtime.value.pointer(&format!("/spec/mlPolicy/{field}")));
    let count = own.get("numNodes").or_else(|| policy("numNodes")).map_or(Some(1), Value::as_u64);
    let hosts = vec![Hosts { begin: format!("{}-node-0-", object.name), count, has_first: true }];
    let processes =
        own.get("numProcPerNode").or_else(|| policy("torch/numProcPerNode")).and_then(super::objects::scalar);
    let draft = Draft {
        nodes: count,
        processes: Some(processes.unwrap_or_else(|| "auto".into())),
        hosts,
        ..draft(object, number, Maker::TrainJob, "node", String::new(), count)
    };
    let template = runtime.and_then(|runtime| {
        let jobs = list(&runtime.value, "/spec/template/spec/replicatedJobs");
        let is_node = |job: &&Value| job.get("name").and_then(Value::as_str) == Some("node");
        jobs.iter().find(is_node)?.pointer("/template/spec/template/spec")
    });
    let mut spec = template.cloned().unwrap_or_else(|| json!({ "containers": [{}] }));
    let container = spec.pointer_mut("/containers/0")?.as_object_mut()?;
    let mut env = own.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
    let below = container.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
    env.splice(0..0, below);
    container.extend(own.as_object().cloned().unwrap_or_default());
    container.insert("env".into(), env.into());
    let pods = draft.made(spec, object.value.clone(), BTreeMap::new(), 1, &[]);
    Some(Pods { place: object.place("spec.trainer"), is_container: true, ..pods })
}

/// The runtime of a TrainJob, if these files have it.
pub(crate) fn runtime<'o>(object: &Object, objects: &'o [Object]) -> Option<&'o Object> {
    let name = object.value.pointer("/spec/runtimeRef/name").and_then(Value::as_str)?;
    objects.iter().find(|other| other.kind.ends_with("TrainingRuntime") && other.name == name)
}

/// The entry point of a RayJob runs once, on the head or beside it.
fn entrypoint(object: &Object, number: usize) -> Option<Pods> {
    let command = object
        .value
        .pointer("/spec/entrypoint")
        .and_then(Value::as_str)
        .filter(|_| object.kind == "RayJob")?;
    let spec = json!({ "containers": [{ "name": "entrypoint", "command": ["sh", "-c", command] }] });
    let draft = draft(object, number, Maker::Ray, "head", String::new(), Some(1));
    let pods = draft.made(spec, object.value.clone(), BTreeMap::new(), 1, &[]);
    Some(Pods { place: object.place("spec.entrypoint"), is_container: true, is_open: true, ..pods })
}

/// A pointer as `kubectl explain` and people write it: `spec.tasks[0].template`.
fn dotted(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').filter(|part| !part.is_empty()) {
        match part.parse::<usize>() {
            Ok(_) => path.extend(["[", part, "]"]),
            Err(_) if path.is_empty() => path.push_str(part),
            Err(_) => path.extend([".", part]),
        }
    }
    path
}

/// The paths of the pod templates, the specs of pods and the containers in an object of any kind.
fn anywhere(value: &Value, at: &str) -> Vec<String> {
    let runs = |item: &Value| item.get("image").is_some() || item.get("command").is_some();
    let has_pods = |pointer: &str| list(value, pointer).iter().any(runs);
    let is_container = ["/container", "/script"].iter().any(|at| value.pointer(at).is_some_and(runs));
    if has_pods("/spec/containers") || has_pods("/containers") || is_container {
        return vec![at.to_owned()];
    }
    match value {
        Value::Object(map) => {
            let below = |(key, inner): (&String, &Value)| {
                anywhere(inner, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")))
            };
            map.iter().flat_map(below).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().flat_map(|(n, inner)| anywhere(inner, &format!("{at}/{n}"))).collect()
        }
        _ => Vec::new(),
    }
}
