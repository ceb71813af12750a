//! What each object starts: how many, on which nodes, with which names and values. The pods of a template and
//! the tasks of a step of a script have one form, so that each check is for both.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Location;
use super::container::Container;
use super::launch::{Launch, Told};
use super::objects::{Object, is_localhost, list, texts};
use rallypoint_node::makers::{Facts, LabelValue, Maker, When, env_of_field};
use rallypoint_shell::{Source, Text};

/// Host names with a common start and a number at the end.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    pub(super) begin: String,
    pub(super) count: Option<u64>,
    /// Whether number 0 of them is the first of all pods.
    pub(super) has_first: bool,
}

impl Hosts {
    pub(crate) fn first(&self) -> String {
        if self.count == Some(0) { self.begin.clone() } else { format!("{}0", self.begin) }
    }
}

/// On how many nodes something runs, how often, and how often on each.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Size {
    pub(super) nodes: Option<u64>,
    pub(super) tasks: Option<u64>,
    pub(super) each: Option<u64>,
}

impl Size {
    /// On how many nodes a task runs.
    pub(crate) fn on_nodes(self) -> Option<u64> {
        Some(self.nodes?.min(self.tasks.unwrap_or(u64::MAX)))
    }

    /// The tasks of a node.
    pub(crate) fn tasks_each(self) -> Option<u64> {
        self.each.or_else(|| self.tasks?.checked_div(self.nodes?))
    }

    /// The tasks that are asked for, or that the nodes have together.
    pub(crate) fn all_tasks(self) -> Option<u64> {
        self.tasks.or_else(|| Some(self.nodes?.saturating_mul(self.each?)))
    }
}

/// How a part of a script runs. Pods are one part.
#[derive(Debug, Clone, Default)]
pub(crate) struct Step {
    /// Its place among the commands of the script.
    pub(super) number: usize,
    /// The steps of one moment run side by side.
    pub(super) moment: usize,
    pub(super) size: Size,
    /// The program that starts it on other nodes: `srun`, `mpirun`, …
    pub(super) by: Option<String>,
    /// What starts programs on all nodes of such a job; `None` for a script of no batch system.
    pub(super) usual: Option<&'static str>,
}

/// The pods of one template, or the tasks of one step of a script, or those of them that do the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pods {
    /// The number of the object.
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
    /// The index of the one for which their scripts are read.
    pub(super) index: u64,
    /// The number of all pods of the template, if these are a part of them.
    pub(super) part_of: Option<u64>,
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
    /// Whether another file has the rest of the object.
    pub(super) is_patch: bool,
    /// Whether the place is the container itself.
    pub(super) is_container: bool,
    pub(super) step: Step,
    pub(super) containers: Vec<Container>,
    pub(super) init_containers: Vec<Container>,
}

impl Pods {
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

    /// Whether one start makes these and the others: one object, or one step of a script.
    pub(crate) fn is_same_start(&self, other: &Self) -> bool {
        self.object == other.object && self.step.number == other.step.number
    }

    /// Whether they are tasks of a script.
    pub(crate) fn are_tasks(&self) -> bool {
        self.maker == Maker::Slurm
    }

    /// Whether something that is not in the files starts their script on each node.
    pub(crate) fn are_by_hand(&self) -> bool {
        self.are_tasks() && self.step.by.is_none() && self.step.usual.is_none()
    }

    /// How often the program of a batch script runs that starts none on other nodes.
    pub(crate) fn runs_once(&self) -> Option<String> {
        let Step { by: None, usual: Some(usual), size, .. } = &self.step else { return None };
        let several = |number: Option<u64>| number.filter(|number| *number > 1);
        let nodes = several(size.nodes).map(|nodes| format!("{nodes} nodes"));
        let all = nodes.or_else(|| Some(format!("{} tasks", several(size.all_tasks())?)))?;
        Some(format!("runs once, without {usual}, in a job of {all}: it is alone, unless it starts others"))
    }

    pub(crate) fn are_several(&self) -> bool {
        self.part_of.or(self.count).is_some_and(|count| count > 1)
    }

    /// Whether several of them do the same.
    pub(crate) fn are_alike(&self) -> bool {
        self.count.is_some_and(|count| count > 1)
    }

    /// Every container, also those of the start.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().chain(&self.containers)
    }

    /// Whether it is the first one of them, which is the main one for many operators.
    pub(crate) fn is_first(&self, container: &Container) -> bool {
        self.containers.first().is_some_and(|first| std::ptr::eq(first, container))
    }

    /// What their containers launch.
    pub(crate) fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.containers.iter().flat_map(|container| &container.launches)
    }

    /// Whether a container launches a training.
    pub(crate) fn train(&self) -> bool {
        self.containers.iter().any(Container::trains)
    }

    /// Whether a container is a rallypoint server.
    pub(crate) fn serve(&self) -> bool {
        self.all().any(Container::serves)
    }

    /// Whether a relay listens at this address.
    pub(crate) fn relays(&self, name: &Text) -> bool {
        is_localhost(name) && self.all().any(Container::relays)
    }

    /// Whether they have the network, and the names, of their nodes.
    pub(crate) fn on_host(&self) -> bool {
        self.spec.get("hostNetwork") == Some(&Value::Bool(true))
    }

    pub(crate) fn are_probed(&self) -> bool {
        self.containers.iter().any(|container| container.value.get("readinessProbe").is_some())
    }

    /// Whether this part of their names is random.
    pub(crate) fn are_random(&self, end: Source) -> bool {
        match end {
            Source::EndOfPodName => matches!(
                self.maker,
                Maker::Job | Maker::IndexedJob | Maker::Deployment | Maker::JobSet | Maker::TrainJob
            ),
            Source::EndOfHostName => matches!(self.maker, Maker::Job | Maker::Deployment),
            _ => false,
        }
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

    /// Whether Kubernetes itself makes them, not an operator.
    pub(crate) fn are_of_kubernetes(&self) -> bool {
        matches!(self.maker, Maker::Job | Maker::IndexedJob | Maker::StatefulSet | Maker::Deployment)
    }

    /// Whether each of them is made only when the one before is Ready.
    pub(crate) fn are_ordered(&self) -> bool {
        let policy = self.owner.get("podManagementPolicy").and_then(Value::as_str);
        self.maker == Maker::StatefulSet && policy != Some("Parallel") && self.are_several()
    }

    /// Whether they train together, and have names for each other only by a Service that the user creates.
    /// Pods that meet at another Service need no names.
    pub(crate) fn need_own_service(&self) -> bool {
        let is_name = |told: &Told| told.text.literal().is_none_or(|host| host.contains('.'));
        let need = |launch: &Launch| launch.has_a_leader() || launch.host.as_ref().is_none_or(is_name);
        let by_maker = self.facts().services.iter().any(|service| service.of_all && self.has(service.when));
        self.are_of_kubernetes()
            && self.are_several()
            && self.train()
            && self.launches().any(need)
            && !(by_maker && self.subdomain.is_some())
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
        let host = first.first();
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

impl Pods {
    /// The values in the pod for which their scripts are read. By them conditions are decided.
    pub(crate) fn here(&self) -> Vec<(Source, String)> {
        let index = self.index;
        let mut here = vec![(Source::Index, index.to_string())];
        if let Some(Hosts { begin, .. }) =
            self.hosts.first().filter(|hosts| hosts.has_first && hosts.count != Some(0))
        {
            here.push((Source::HostName, format!("{begin}{index}")));
            if self.maker == Maker::StatefulSet {
                here.push((Source::PodName, format!("{begin}{index}")));
            }
            let ends = [Source::EndOfHostName, Source::EndOfPodName];
            let known = ends.into_iter().filter(|end| !self.are_random(*end));
            here.extend(known.map(|end| (end, index.to_string())));
        }
        here
    }

    /// The pods with their containers: the first pod apart, if its script does something else there.
    pub(crate) fn read(self, objects: &[Object], choice: usize) -> Vec<Self> {
        let with = |pods: Self, index: u64| {
            let pods = Self { index, ..pods };
            let all = |role| Container::all(&pods, objects, role, choice);
            let (containers, init_containers) = (all("containers"), all("initContainers"));
            Self { containers, init_containers, ..pods }
        };
        let is_first = self.hosts.iter().any(|hosts| hosts.has_first);
        let first = with(self.clone(), u64::from(!is_first));
        first.apart(|others| with(others, 1), is_first)
    }

    /// These pods, or the first of them and the others.
    pub(crate) fn apart(self, read: impl Fn(Self) -> Self, is_first: bool) -> Vec<Self> {
        let Some(count) = self.count.filter(|count| *count > 1 && is_first) else { return vec![self] };
        if !self.containers.iter().any(|own| own.is_by_pod) {
            return vec![self];
        }
        let part_of = self.count;
        let others = Self { count: Some(count.saturating_sub(1)), part_of, ..self.clone() };
        vec![Self { count: Some(1), part_of, ..self }, read(others)]
    }

    /// Pods of an object, before their template is read.
    pub(crate) fn bare(object: &Object, maker: Maker, role: &str, count: Option<u64>) -> Self {
        Self {
            object: object.number,
            place: object.place("spec"),
            maker,
            name: object.name.clone(),
            namespace: object.namespace.clone(),
            role: role.to_owned(),
            owner_at: "spec".into(),
            count,
            in_unit: count,
            is_alone: true,
            is_patch: object.is_patch,
            is_open: object.has_blanks || !maker.facts().is_known,
            ..Self::default()
        }
    }

    /// The pods with the template at this place of their object.
    fn with_template(self, object: &Object, base: &str) -> Option<Self> {
        let template = object.value.pointer(base)?;
        let field = dotted(base);
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
        let owner = match self.owner_at.as_str() {
            "" => object.value.clone(),
            at => object.value.pointer(&format!("/{}", at.replace('.', "/"))).cloned().unwrap_or(Value::Null),
        };
        let is_container = container.is_some();
        let is_patch = self.is_patch || !is_container && is_patch(&spec);
        let is_open = self.is_open || is_patch;
        Some(Self {
            place: object.place(&field),
            is_container,
            is_open,
            is_patch,
            labels: texts(template.pointer("/metadata/labels")),
            annotations: texts(template.pointer("/metadata/annotations")),
            ..self.with_spec(object, spec, owner)
        })
    }

    fn with_spec(self, object: &Object, spec: Value, owner: Value) -> Self {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let by_maker = || match self.maker {
            Maker::StatefulSet => text(owner.get("serviceName")),
            Maker::JobSet => match object.value.pointer("/spec/network") {
                Some(network) if network.get("enableDNSHostnames") == Some(&Value::Bool(false)) => None,
                network => {
                    text(network.and_then(|it| it.get("subdomain"))).or_else(|| Some(object.name.clone()))
                }
            },
            Maker::LeaderWorkerSet => {
                let policy = text(object.value.pointer("/spec/networkConfig/subdomainPolicy"));
                (policy.as_deref() != Some("UniquePerReplica")).then(|| object.name.clone())
            }
            Maker::VolcanoJob if !self.features.contains(&When::Plugin("svc")) => None,
            maker => {
                Some(maker.facts().subdomain.replace("{name}", &object.name)).filter(|name| !name.is_empty())
            }
        };
        let subdomain = text(spec.get("subdomain")).or_else(by_maker);
        let hosts = match text(spec.get("hostname")) {
            Some(begin) => vec![Hosts { begin, count: Some(0), has_first: true }],
            None if object.name.is_empty() => Vec::new(),
            None => self.hosts,
        };
        let owner_at = format!("{}{}", object.at, self.owner_at);
        Self { owner, owner_at, spec, hosts, subdomain, ..self }
    }
}

/// Whether the spec is a patch for that of another file, which has the rest.
fn is_patch(spec: &Value) -> bool {
    let containers = list(spec, "/containers");
    containers.is_empty() || containers.iter().any(|container| container.get("image").is_none())
}

/// The pods of an object, without their containers.
pub(crate) fn of(object: &Object, objects: &[Object]) -> Vec<Pods> {
    let maker = Maker::of_kind(&object.api, &object.kind);
    let mut drafts = drafts(object, maker);
    if drafts.is_empty() && (maker == Maker::Unknown || maker.facts().is_known) {
        let unknown = |base| (base, Pods::bare(object, Maker::Unknown, "", None));
        drafts = anywhere(&object.value, "").into_iter().map(unknown).collect();
    }
    let is_one = drafts.len() == 1;
    let roles: Vec<String> = drafts.iter().map(|(_, pods)| pods.role.clone()).collect();
    let made = |(base, pods): (String, Pods)| {
        let is_alone = is_one && pods.in_unit == pods.count;
        Pods { is_alone, roles: roles.clone(), ..pods }.with_template(object, &base)
    };
    let made = drafts.into_iter().filter_map(made);
    made.chain(trainer(object, objects)).chain(entrypoint(object)).collect()
}

/// Pods, and the place of their template in the object.
type Draft = (String, Pods);

fn hosts(begin: String, count: Option<u64>, has_first: bool) -> Vec<Hosts> {
    vec![Hosts { begin, count, has_first }]
}

/// A number that is 1 if nothing says it; `None` if it is no number.
fn or_one(value: Option<&Value>) -> Option<u64> {
    value.filter(|value| !value.is_null()).map_or(Some(1), Value::as_u64)
}

fn drafts(object: &Object, maker: Maker) -> Vec<Draft> {
    let Object { value, name, kind, .. } = object;
    let count = |pointer: &str| or_one(value.pointer(pointer));
    let one = |base: &str, count: Option<u64>| vec![(base.to_owned(), Pods::bare(object, maker, "", count))];
    match maker {
        Maker::Pod if kind == "PodTemplate" => one("/template", Some(1)),
        Maker::Pod => {
            let (hosts, owner_at) = (hosts(name.clone(), Some(0), true), String::new());
            vec![(String::new(), Pods { owner_at, hosts, ..Pods::bare(object, maker, "", Some(1)) })]
        }
        Maker::Job | Maker::IndexedJob => {
            let owner_at = if kind == "CronJob" { "spec.jobTemplate.spec" } else { "spec" };
            let base = format!("/{}", owner_at.replace('.', "/"));
            let mode = value.pointer(&format!("{base}/completionMode")).and_then(Value::as_str);
            let maker = if mode == Some("Indexed") { Maker::IndexedJob } else { Maker::Job };
            let count = count(&format!("{base}/parallelism"));
            // The Jobs of a CronJob have their own names.
            let is_named = maker == Maker::IndexedJob && kind == "Job";
            let hosts = if is_named { hosts(format!("{name}-"), count, true) } else { Vec::new() };
            let pods = Pods { owner_at: owner_at.into(), hosts, ..Pods::bare(object, maker, "", count) };
            vec![(format!("{base}/template"), pods)]
        }
        Maker::StatefulSet => {
            let count = count("/spec/replicas");
            let hosts = hosts(format!("{name}-"), count, true);
            vec![("/spec/template".into(), Pods { hosts, ..Pods::bare(object, maker, "", count) })]
        }
        Maker::Deployment if kind == "DaemonSet" => one("/spec/template", None),
        Maker::Deployment => one("/spec/template", count("/spec/replicas")),
        Maker::LeaderWorkerSet => leader_worker_set(object),
        Maker::JobSet => job_set(object, maker, "/spec/replicatedJobs"),
        Maker::TrainJob => {
            let nodes = value.pointer("/spec/mlPolicy/numNodes").and_then(Value::as_u64);
            let of_runtime = |(base, job): Draft| {
                let trains = job.role == "node" || job.role == "trainer";
                let count = if trains { nodes } else { job.count };
                (base, Pods { count, in_unit: count, nodes: count, hosts: Vec::new(), ..job })
            };
            let jobs = job_set(object, maker, "/spec/template/spec/replicatedJobs");
            jobs.into_iter().map(of_runtime).collect()
        }
        Maker::PyTorchJob | Maker::JaxJob | Maker::KubeflowJob | Maker::MpiJob => kubeflow(object, maker),
        Maker::VolcanoJob => volcano(object),
        Maker::Ray => ray(object),
        Maker::HyperPod => roles(object, "/spec/replicaSpecs")
            .map(|(base, role, count, _)| (base, Pods::bare(object, maker, &role, count)))
            .collect(),
        Maker::Slurm | Maker::Unknown => Vec::new(),
    }
}

/// The items of a list of roles: the place of the template, the name, the replicas, and the item.
fn roles<'o>(
    object: &'o Object,
    at: &'o str,
) -> impl Iterator<Item = (String, String, Option<u64>, &'o Value)> {
    list(&object.value, at).iter().enumerate().map(move |(n, item)| {
        let name = item.get("name").and_then(Value::as_str).unwrap_or_default();
        (format!("{at}/{n}/template"), name.to_owned(), or_one(item.get("replicas")), item)
    })
}

fn leader_worker_set(object: &Object) -> Vec<Draft> {
    let name = &object.name;
    let template = object.value.pointer("/spec/leaderWorkerTemplate");
    let template = |field: &str| template.and_then(|template| template.get(field));
    let (size, groups) = (or_one(template("size")), or_one(object.value.pointer("/spec/replicas")));
    let has_leader = template("leaderTemplate").is_some_and(Value::is_object);
    let groups = groups.unwrap_or(1).clamp(1, 64);
    let leaders = || Hosts { begin: format!("{name}-"), count: Some(groups), has_first: true };
    let group = |group| Hosts { begin: format!("{name}-{group}-"), count: size, has_first: false };
    let made = |role: &str, count: Option<u64>, hosts: Vec<Hosts>| {
        let owner_at = "spec.leaderWorkerTemplate".into();
        let pods =
            Pods { hosts, nodes: size, owner_at, ..Pods::bare(object, Maker::LeaderWorkerSet, role, count) };
        (format!("/spec/leaderWorkerTemplate/{role}"), pods)
    };
    let workers = (0..groups).map(group);
    if has_leader {
        let others = size.map(|size| size.saturating_sub(1));
        vec![
            made("leaderTemplate", Some(1), vec![leaders()]),
            made("workerTemplate", others, workers.collect()),
        ]
    } else {
        vec![made("workerTemplate", size, std::iter::once(leaders()).chain(workers).collect())]
    }
}

fn job_set(object: &Object, maker: Maker, at: &str) -> Vec<Draft> {
    let made = |(base, role, jobs, job): (String, String, Option<u64>, &Value)| {
        let pods = or_one(job.pointer("/template/spec/parallelism"));
        let of_unit = |unit| {
            let begin = format!("{}-{role}-{unit}-", object.name);
            Hosts { begin, count: pods, has_first: unit == 0 }
        };
        let mode = job.pointer("/template/spec/completionMode").and_then(Value::as_str);
        let units = if mode == Some("NonIndexed") { 0 } else { jobs.unwrap_or(1).clamp(1, 256) };
        let hosts = (0..units).map(of_unit).collect();
        let count = pods.zip(jobs).map(|(pods, jobs)| pods.saturating_mul(jobs));
        let pods = Pods { hosts, in_unit: pods, ..Pods::bare(object, maker, &role, count) };
        (format!("{base}/spec/template"), pods)
    };
    roles(object, at).map(made).collect()
}

fn kubeflow(object: &Object, maker: Maker) -> Vec<Draft> {
    let value = &object.value;
    let specs = value.get("spec").and_then(Value::as_object).into_iter().flatten();
    let mut specs = specs.filter(|(key, _)| key.ends_with("ReplicaSpecs"));
    let Some((field, roles)) = specs.find_map(|(key, value)| Some((key, value.as_object()?))) else {
        return Vec::new();
    };
    let replicas = |spec: &Value| or_one(spec.get("replicas"));
    let nodes = roles.values().map(replicas).sum::<Option<u64>>();
    let has_master = roles.keys().any(|role| role.eq_ignore_ascii_case("master"));
    let elastic = value.pointer("/spec/elasticPolicy").filter(|policy| policy.is_object());
    let mut features = vec![if elastic.is_some() { When::Elastic } else { When::Fixed }];
    features.extend(has_master.then_some(When::Master));
    let said = value.pointer("/spec/nprocPerNode").or_else(|| elastic?.get("nProcPerNode"));
    let auto = || (maker == Maker::PyTorchJob).then(|| "auto".into());
    let processes = said.and_then(super::objects::scalar).or_else(auto);
    let made = |(name, spec): (&String, &Value)| {
        let role = name.to_lowercase();
        let count = replicas(spec);
        let has_first = role == if has_master { "master" } else { "worker" };
        let hosts = match (maker, role.as_str()) {
            (Maker::MpiJob, "launcher") => hosts(format!("{}-launcher", object.name), Some(0), false),
            _ => hosts(format!("{}-{role}-", object.name), count, has_first),
        };
        let (processes, features) = (processes.clone(), features.clone());
        let pods = Pods { nodes, processes, hosts, features, ..Pods::bare(object, maker, &role, count) };
        (format!("/spec/{field}/{name}/template"), pods)
    };
    let mut drafts: Vec<Draft> = roles.iter().map(made).collect();
    drafts.sort_by_key(|(_, pods)| pods.role != "master" && pods.role != "launcher");
    drafts
}

fn volcano(object: &Object) -> Vec<Draft> {
    const NAMES: [&str; 6] = ["svc", "env", "ssh", "pytorch", "tensorflow", "mpi"];
    let plugins = object.value.pointer("/spec/plugins").and_then(Value::as_object);
    let on = |name: &str| plugins.is_some_and(|plugins| plugins.contains_key(name));
    let mut features: Vec<When> = NAMES.into_iter().filter(|name| on(name)).map(When::Plugin).collect();
    // The distributed plugins switch on the svc plugin.
    if ["pytorch", "tensorflow", "mpi"].into_iter().any(on) && !on("svc") {
        features.push(When::Plugin("svc"));
    }
    let tasks = || roles(object, "/spec/tasks").enumerate();
    let nodes = tasks().map(|(_, (_, _, count, _))| count).sum::<Option<u64>>();
    let made = |(n, (base, name, count, _)): (usize, (String, String, Option<u64>, &Value))| {
        let role = if name.is_empty() { format!("default{n}") } else { name };
        let hosts = hosts(format!("{}-{role}-", object.name), count, n == 0 || role == "master");
        let features = features.clone();
        (base, Pods { nodes, hosts, features, ..Pods::bare(object, Maker::VolcanoJob, &role, count) })
    };
    tasks().map(made).collect()
}

fn ray(object: &Object) -> Vec<Draft> {
    let base = match object.kind.as_str() {
        "RayCluster" => "/spec",
        "RayService" => "/spec/rayClusterConfig",
        "RayCronJob" => "/spec/jobTemplate/rayClusterSpec",
        _ => "/spec/rayClusterSpec",
    };
    let pods = |role, count| Pods::bare(object, Maker::Ray, role, count);
    let groups = format!("{base}/workerGroupSpecs");
    let workers = roles(object, &groups).map(|(base, _, count, _)| (base, pods("worker", count)));
    let head = (format!("{base}/headGroupSpec/template"), pods("head", Some(1)));
    std::iter::once(head).chain(workers).collect()
}

/// A TrainJob has no template of its own, but a runtime, and a command and variables that replace those of
/// the runtime. Without either there is nothing to look at.
fn trainer(object: &Object, objects: &[Object]) -> Option<Pods> {
    let runtime = runtime(object, objects);
    let own = object.value.pointer("/spec/trainer").filter(|_| object.kind == "TrainJob");
    (object.kind == "TrainJob" && (own.is_some() || runtime.is_some())).then_some(())?;
    let nothing = json!({});
    let own = own.unwrap_or(&nothing);
    let policy =
        |field: &str| runtime.and_then(|runtime| runtime.value.pointer(&format!("/spec/mlPolicy/{field}")));
    let count = own.get("numNodes").or_else(|| policy("numNodes")).map_or(Some(1), Value::as_u64);
    let processes =
        own.get("numProcPerNode").or_else(|| policy("torch/numProcPerNode")).and_then(super::objects::scalar);
    let trainer = |runtime: &'_ Object| {
        let jobs = list(&runtime.value, "/spec/template/spec/replicatedJobs");
        let step = "/template/metadata/labels/trainer.kubeflow.org~1trainjob-ancestor-step";
        let is_node = |job: &&Value| {
            let text = |at: &str| job.pointer(at).and_then(Value::as_str);
            text("/name") == Some("node") || text(step) == Some("trainer")
        };
        jobs.iter().find(is_node)?.pointer("/template/spec/template/spec").cloned()
    };
    let template = runtime.and_then(trainer);
    // Trainer gives the command to the Job with this label only. Without it the runtime's own command runs.
    (runtime.is_none() || template.is_some()).then_some(())?;
    let mut spec = template.unwrap_or_else(|| json!({ "containers": [{}] }));
    let container = spec.pointer_mut("/containers/0")?.as_object_mut()?;
    let mut env = own.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
    let below = container.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
    env.splice(0..0, below);
    container.extend(own.as_object().cloned().unwrap_or_default());
    container.insert("env".into(), env.into());
    if let Some(resources) = own.get("resourcesPerNode") {
        container.insert("resources".into(), resources.clone());
    }
    let pods = Pods {
        nodes: count,
        processes: Some(processes.unwrap_or_else(|| "auto".into())),
        hosts: hosts(format!("{}-node-0-", object.name), count, true),
        place: object.place("spec.trainer"),
        is_container: true,
        ..Pods::bare(object, Maker::TrainJob, "node", count)
    };
    Some(pods.with_spec(object, spec, object.value.clone()))
}

/// The runtime of a TrainJob, if these files have it.
pub(crate) fn runtime<'o>(object: &Object, objects: &'o [Object]) -> Option<&'o Object> {
    let name = object.value.pointer("/spec/runtimeRef/name").and_then(Value::as_str)?;
    objects.iter().find(|other| other.kind.ends_with("TrainingRuntime") && other.name == name)
}

/// The entry point of a RayJob runs once, on the head or beside it.
fn entrypoint(object: &Object) -> Option<Pods> {
    let command = object
        .value
        .pointer("/spec/entrypoint")
        .and_then(Value::as_str)
        .filter(|_| object.kind == "RayJob")?;
    let spec = json!({ "containers": [{ "name": "entrypoint", "command": ["sh", "-c", command] }] });
    let pods = Pods {
        place: object.place("spec.entrypoint"),
        is_container: true,
        is_open: true,
        ..Pods::bare(object, Maker::Ray, "head", Some(1))
    };
    Some(pods.with_spec(object, spec, object.value.clone()))
}

/// A pointer as `kubectl explain` and people write it: `spec.tasks[0].template`.
pub(crate) fn dotted(pointer: &str) -> String {
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
