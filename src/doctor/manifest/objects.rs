//! Files to objects, and the pods that each object makes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::Check;
use super::Place;
use super::containers::Container;

/// An object of a file.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) file: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) value: Value,
}

impl Object {
    pub(super) fn place(&self, field: impl Into<String>) -> Place {
        Place { file: self.file.clone(), object: format!("{}/{}", self.kind, self.name), field: field.into() }
    }
}

/// What makes pods, as far as it matters for the mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Maker {
    Pod,
    Job {
        indexed: bool,
    },
    StatefulSet,
    /// Deployments and other sets whose pods have random names.
    Random,
    /// JobSet, PyTorchJob, TrainJob, Volcano, LeaderWorkerSet: they name pods, and inject what torch needs.
    Operator,
}

/// The pods of one template.
#[derive(Debug)]
pub(super) struct Pods {
    pub(super) place: Place,
    pub(super) maker: Maker,
    pub(super) owner: Value,
    pub(super) spec: Value,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) count: Option<u64>,
    pub(super) containers: Vec<Container>,
    pub(super) init_containers: Vec<Container>,
}

impl Pods {
    /// A field below the pod template's spec.
    pub(super) fn at(&self, field: &str) -> Place {
        let joined =
            if field.is_empty() { self.place.field.clone() } else { format!("{}.{field}", self.place.field) };
        Place { field: joined, ..self.place.clone() }
    }

    /// A field of the object itself.
    pub(super) fn of_owner(&self, field: &str) -> Place {
        Place { field: field.into(), ..self.place.clone() }
    }

    pub(super) fn are_several(&self) -> bool {
        self.count.is_some_and(|count| count > 1)
    }

    /// Whether a container launches a training.
    pub(super) fn train(&self) -> bool {
        self.containers.iter().any(Container::trains)
    }

    /// The name that others can put before a dot.
    pub(super) fn subdomain(&self) -> Option<&str> {
        let of_set = || self.owner.pointer("/spec/serviceName").filter(|_| self.maker == Maker::StatefulSet);
        self.spec.get("subdomain").or_else(of_set).and_then(Value::as_str)
    }
}

/// Everything in the files.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    pub(super) objects: Vec<Object>,
    pub(super) pods: Vec<Pods>,
}

impl Manifests {
    pub(super) fn read(files: &[(String, String)], checks: &mut Vec<Check>) -> Self {
        let mut manifests = Self::default();
        for (file, text) in files {
            match serde_saphyr::from_multiple::<Value>(text) {
                Ok(documents) => {
                    for document in documents {
                        manifests.take(file, document, checks);
                    }
                }
                Err(error) => {
                    let place = Place { file: file.clone(), object: "-".into(), field: "-".into() };
                    let words = error.to_string();
                    let first = words.lines().next().unwrap_or_default();
                    let check = Check::fail(
                        "yaml",
                        format!("the file cannot be read: {first}"),
                        "correct it, and try again",
                    );
                    checks.push(check.at(place));
                }
            }
        }
        manifests
    }

    fn take(&mut self, file: &str, document: Value, checks: &mut Vec<Check>) {
        if document.is_null() {
            return;
        }
        let text =
            |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (kind, name) = (text("/kind"), text("/metadata/name"));
        if kind.ends_with("List") && document.get("items").is_some() {
            let items = document.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
            for item in items {
                self.take(file, item, checks);
            }
            return;
        }
        let object = Object { file: file.to_owned(), kind, name, value: document };
        if object.kind.is_empty() {
            let check = Check::fail(
                "yaml",
                "a document without a kind",
                "every manifest has apiVersion, kind and metadata.name",
            );
            checks.push(check.at(object.place("kind")));
            return;
        }
        let pods = pods_of(&object);
        if pods.is_empty() && !matches!(object.kind.as_str(), "Service" | "NetworkPolicy") {
            let check = Check::pass("skipped", "a kind without pods or names; nothing to check");
            checks.push(check.at(object.place("kind")));
        }
        self.pods.extend(pods);
        self.objects.push(object);
    }

    pub(super) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Object> {
        self.objects.iter().filter(move |object| object.kind == kind)
    }
}

/// Text values of a map such as labels or a selector.
pub(super) fn texts(value: Option<&Value>) -> BTreeMap<String, String> {
    let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    value.and_then(Value::as_object).into_iter().flatten().filter_map(text).collect()
}

pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn pods_of(object: &Object) -> Vec<Pods> {
    let value = &object.value;
    let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_u64);
    let api = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let one = |maker, base: &str, count| template(object, maker, base, count).into_iter().collect();
    let each = |at: &str, below: &str| {
        let templates = list(value, at).iter().enumerate().map(|(n, item)| {
            let count = item.get("replicas").and_then(Value::as_u64);
            template(object, Maker::Operator, &format!("{at}/{n}{below}"), count)
        });
        templates.flatten().collect()
    };
    match object.kind.as_str() {
        "Pod" => one(Maker::Pod, "", Some(1)),
        "Job" if api.starts_with("batch.volcano.sh") => each("/spec/tasks", "/template"),
        "Job" | "CronJob" => {
            let base = if object.kind == "Job" { "/spec" } else { "/spec/jobTemplate/spec" };
            let mode = value.pointer(&format!("{base}/completionMode")).and_then(Value::as_str);
            let count = number(&format!("{base}/parallelism")).or(Some(1));
            one(Maker::Job { indexed: mode == Some("Indexed") }, &format!("{base}/template"), count)
        }
        "StatefulSet" => one(Maker::StatefulSet, "/spec/template", number("/spec/replicas").or(Some(1))),
        "Deployment" | "ReplicaSet" => {
            one(Maker::Random, "/spec/template", number("/spec/replicas").or(Some(1)))
        }
        "DaemonSet" => one(Maker::Random, "/spec/template", None),
        "JobSet" => {
            let jobs = list(value, "/spec/replicatedJobs").iter().enumerate();
            jobs.filter_map(|(n, job)| {
                let pods = job.pointer("/template/spec/parallelism").and_then(Value::as_u64).unwrap_or(1);
                let jobs = job.get("replicas").and_then(Value::as_u64).unwrap_or(1);
                let at = format!("/spec/replicatedJobs/{n}/template/spec/template");
                template(object, Maker::Operator, &at, Some(pods.saturating_mul(jobs)))
            })
            .collect()
        }
        "PyTorchJob" => ["Master", "Worker"]
            .into_iter()
            .filter_map(|role| {
                let base = format!("/spec/pytorchReplicaSpecs/{role}");
                let count = number(&format!("{base}/replicas"));
                template(object, Maker::Operator, &format!("{base}/template"), count)
            })
            .collect(),
        "LeaderWorkerSet" => ["leaderTemplate", "workerTemplate"]
            .into_iter()
            .filter_map(|role| {
                let base = format!("/spec/leaderWorkerTemplate/{role}");
                template(object, Maker::Operator, &base, number("/spec/leaderWorkerTemplate/size"))
            })
            .collect(),
        "TrainJob" => trainer(object).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The pods of a template at a JSON pointer.
fn template(object: &Object, maker: Maker, base: &str, count: Option<u64>) -> Option<Pods> {
    let template = object.value.pointer(base)?;
    let spec = template.get("spec")?.clone();
    let field = format!("{base}/spec").trim_start_matches('/').replace('/', ".");
    let mut labels = texts(template.pointer("/metadata/labels"));
    // Set by the controllers.
    if matches!(maker, Maker::Job { .. }) {
        for label in ["job-name", "batch.kubernetes.io/job-name"] {
            labels.insert(label.into(), object.name.clone());
        }
    }
    Some(Pods {
        place: object.place(field),
        maker,
        owner: object.value.clone(),
        containers: Container::all(&spec, "containers"),
        init_containers: Container::all(&spec, "initContainers"),
        spec,
        labels,
        count,
    })
}

/// A TrainJob has no template of its own, but a command and variables.
fn trainer(object: &Object) -> Option<Pods> {
    let trainer = object.value.pointer("/spec/trainer")?.clone();
    let spec = serde_json::json!({ "containers": [trainer] });
    Some(Pods {
        place: object.place("spec.trainer"),
        maker: Maker::Operator,
        owner: object.value.clone(),
        count: trainer.get("numNodes").and_then(Value::as_u64),
        containers: Container::all(&spec, "containers"),
        init_containers: Vec::new(),
        spec: Value::Null,
        labels: BTreeMap::new(),
    })
}
