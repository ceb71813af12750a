//! Finds mistakes in Kubernetes manifests that make training jobs hang, before the manifests are applied. It
//! works offline: it knows the contents of the files and the makers (`rallypoint_node::makers`). It says when
//! another file could hold a missing part. It reports every part that it cannot read.
//!
//! | module | what it is for |
//! |---|---|
//! | `objects` | files to documents and objects |
//! | `pods` | what each object starts: the pods of its templates |
//! | `scripts` | what each launch script starts: its steps, in the form of pods |
//! | `given` | the values of their variables and fields |
//! | `images` | what the name of an image says |
//! | `containers` | a container's variables and commands |
//! | `launches` | how a container launches a training |
//! | `names` | the meaning of a host name; selectors |
//! | `jobs` | which of them train together |
//! | `meeting` | where the nodes of a launch meet |
//! | `schemas` | what the published schemas reject |
//! | `validation` | what the API server rejects besides |
//! | `beside` | what files have that were not given |
//! | `checks` | the checks, one a file |

mod beside;
mod checks;
mod container;
mod containers;
mod given;
mod images;
mod jobs;
pub(crate) mod launch;
pub(crate) mod launches;
mod meeting;
mod names;
mod objects;
mod pods;
mod remote;
mod schemas;
mod scripts;
mod validation;

use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::Value;

use super::{Check, Location};
use beside::Beside;
use container::Container;
use meeting::Call;
use objects::Object;
use pods::Pods;
use rallypoint_node::makers::Maker;

/// Everything in the files, in one reading of their scripts.
#[derive(Clone)]
pub(crate) struct Manifests {
    files: Vec<String>,
    objects: Rc<[Object]>,
    pods: Vec<Pods>,
    /// The number of the job of each template.
    jobs: Vec<usize>,
    /// What other files have that were not given.
    beside: Rc<Beside>,
    /// What was found while the files were read.
    unreadable: Vec<Check>,
    /// How many readings of their scripts there are, by the branches that they take.
    ways: usize,
}

impl Manifests {
    /// The objects in the files. Their scripts are not read yet.
    fn parse(files: &[(String, String)], beside: &[(String, String)], locked: &[String]) -> Self {
        let mut unreadable = Vec::new();
        let mut objects = objects::read(files, &mut unreadable);
        for object in objects.iter_mut().filter(|object| locked.contains(&object.file)) {
            object.is_locked = true;
        }
        let patches = beside::patches(files.iter().chain(beside));
        for object in &mut objects {
            object.is_patch = beside::is_patch(&object.file, &patches);
        }
        let objects = objects.into();
        let beside = Rc::new(Beside::of(beside));
        let files = files.iter().map(|(file, _)| file.clone()).collect();
        Self { files, objects, pods: Vec::new(), jobs: Vec::new(), beside, unreadable, ways: 1 }
    }

    /// One reading of the scripts, by its number.
    fn reading(&self, choice: usize) -> Self {
        let mut read = self.clone();
        for object in &*self.objects {
            if Maker::of_kind(&object.api, &object.kind) == Maker::Slurm {
                let (pods, ways) = scripts::of(object, &self.objects, choice);
                read.pods.extend(pods);
                read.ways = read.ways.max(ways);
            } else {
                let made = pods::of(object, &self.objects).into_iter();
                read.pods.extend(made.flat_map(|pods| pods.read(&self.objects, choice)));
            }
        }
        let launches = read.pods.iter_mut().flat_map(|pods| &mut pods.containers);
        for launch in launches.flat_map(|container| &mut container.launches) {
            let told = launches::configuration(launch).and_then(|path| self.beside.configuration(&path));
            if let Some(told) = told {
                launches::configure(launch, told);
            }
        }
        let of_containers = read.pods.iter().flat_map(|pods| &pods.containers).map(|own| own.ways);
        read.ways = of_containers.fold(read.ways, usize::max);
        read.jobs = jobs::group(&read);
        read
    }

    fn while_reading(&self, id: &str) -> Vec<Check> {
        self.unreadable.iter().filter(|check| check.id == id).cloned().collect()
    }

    fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Object> {
        self.objects.iter().filter(move |object| object.kind == kind)
    }

    /// The Service with this name that these pods can reach.
    fn service(&self, name: &str, pods: &Pods) -> Option<&Object> {
        self.of_kind("Service")
            .find(|service| service.name == name && service.shares_namespace(pods.namespace.as_deref()))
    }

    /// The schema of an object's kind, of a CustomResourceDefinition in these files or their repository.
    fn definition(&self, object: &Object) -> Option<&Value> {
        let (group, version) = object.api.split_once('/')?;
        let all = self.of_kind("CustomResourceDefinition").chain(&self.beside.definitions);
        let text = |value: &Value, at: &str| value.pointer(at).and_then(Value::as_str).map(str::to_owned);
        let is_it = |it: &&Object| {
            text(&it.value, "/spec/group").as_deref() == Some(group)
                && text(&it.value, "/spec/names/kind").as_deref() == Some(&object.kind)
        };
        let versions = all.filter(is_it).flat_map(|it| objects::list(&it.value, "/spec/versions"));
        let found = versions.filter(|it| text(it, "/name").as_deref() == Some(version));
        // It is not known which of several releases is installed.
        let mut schemas = found.filter_map(|it| it.pointer("/schema/openAPIV3Schema"));
        let first = schemas.next()?;
        schemas.all(|other| other == first).then_some(first)
    }

    /// Whether a file that was not given, in the folder of one that was, has the Service of this name.
    fn is_beside(&self, host: &str) -> bool {
        self.beside.services.contains(host.split('.').next().unwrap_or_default())
    }

    /// The pods of an object, by its number.
    fn of_object(&self, object: usize) -> impl Iterator<Item = &Pods> {
        self.pods.iter().filter(move |pods| pods.object == object)
    }

    /// The pods of an object that train.
    fn training(&self, object: usize) -> impl Iterator<Item = &Pods> {
        self.of_object(object).filter(|pods| pods.train())
    }

    /// Every container but init containers.
    fn containers(&self) -> impl Iterator<Item = (&Pods, &Container)> {
        self.pods.iter().flat_map(|pods| pods.containers.iter().map(move |container| (pods, container)))
    }

    /// Every launch of a training that certainly runs in each pod.
    fn calls(&self) -> impl Iterator<Item = Call<'_>> {
        self.all_calls().filter(|call| !call.launch.command.conditional)
    }

    /// Every launch of a training, also in a branch or a loop.
    fn all_calls(&self) -> impl Iterator<Item = Call<'_>> {
        self.containers().flat_map(move |(pods, container)| {
            let call = move |launch| Call { manifests: self, pods, container, launch };
            container.launches.iter().map(call)
        })
    }

    /// What trains together with these, themselves included.
    fn together<'a>(&'a self, pods: &'a Pods) -> impl Iterator<Item = &'a Pods> {
        let all = || self.pods.iter().zip(&self.jobs);
        let job = all().find(|(own, _)| own.is_same_start(pods)).map(|(_, job)| *job);
        all().filter(move |(own, it)| Some(**it) == job && own.train()).map(|(own, _)| own)
    }

    /// How many nodes have to meet: those of all starts of the job.
    fn nodes(&self, pods: &Pods) -> Option<u64> {
        let others = self.together(pods).filter(|other| !other.is_same_start(pods));
        let others: Option<u64> = others.map(|other| other.count).sum();
        Some(self.own_nodes(pods)?.saturating_add(others?))
    }

    /// The training pods of the object, or the number that the maker counts.
    fn own_nodes(&self, pods: &Pods) -> Option<u64> {
        // The pods of a RayCluster are workers of Ray. They are no training by themselves.
        if matches!(pods.maker, Maker::Ray | Maker::Slurm) {
            return pods.part_of.or(pods.count);
        }
        // The Launcher starts all in the Workers.
        let leads = self.objects[pods.object].value.pointer("/spec/runLauncherAsWorker").is_none();
        if pods.maker == Maker::MpiJob && leads {
            let workers = self.of_object(pods.object).filter(|own| own.role == "worker");
            return workers.map(|own| own.count).sum();
        }
        // Pods that only wait, such as in `sleep infinity`, never join the others.
        let waits = |own: &&Pods| !own.train() && own.containers.iter().all(Container::only_waits);
        let idle: u64 = self.of_object(pods.object).filter(waits).filter_map(|own| own.count).sum();
        let by_maker = pods.nodes.map(|nodes| nodes.saturating_sub(idle));
        by_maker.max(self.training(pods.object).map(|own| own.count).sum())
    }
}

/// How many readings of scripts are looked at, each with other branches.
const READINGS: usize = 16;

/// Checks all files of a job together. Each file is a name and a text. Of those `beside` them only the names
/// of their Services, configurations of accelerate, programs in Python and scripts are read. Those files that
/// nobody may execute are `locked`.
pub fn check_manifests(
    files: &[(String, String)],
    beside: &[(String, String)],
    locked: &[String],
) -> Vec<Check> {
    let parsed = Manifests::parse(files, beside, locked);
    let mut readings = vec![parsed.reading(0)];
    let most = |readings: &[Manifests]| readings.iter().map(|it| it.ways).max().unwrap_or(1).min(READINGS);
    while readings.len() < most(&readings) {
        readings.push(parsed.reading(readings.len()));
    }
    checks::in_all(&readings)
}

/// How scripts end of which a folder may have others than those of its jobs.
pub const SCRIPTS: [&str; 4] = ["sh", "bash", "pbs", "lsf"];

/// Whether a text begins as a script for a batch system, whatever its file is called.
pub fn is_batch_script(text: &str) -> bool {
    let is_header = |line: &&str| line.trim().is_empty() || line.starts_with('#');
    let header: Vec<&str> = text.lines().take_while(is_header).collect();
    objects::batch_system(&header.join("\n")).is_some()
}

/// Takes the files of the jobs in a folder: not a script that trains on one node or starts nothing, and no
/// other file.
pub fn of_jobs(files: Vec<(String, String)>) -> Vec<(String, String)> {
    let is_script = |(name, _): &(String, String)| {
        name.rsplit_once('.').is_some_and(|(_, ending)| SCRIPTS.contains(&ending))
    };
    let scripts: Vec<_> = files.iter().filter(|file| is_script(file)).cloned().collect();
    let objects = objects::read(&scripts, &mut Vec::new());
    let of_nodes: BTreeSet<&String> =
        objects.iter().filter(|it| is_of_nodes(it, &objects)).map(|it| &it.file).collect();
    let is_beside = |file: &(String, String)| {
        is_script(file) && objects::batch_system(&file.1).is_none() && !of_nodes.contains(&file.0)
    };
    let (mut beside, mut kept): (Vec<_>, Vec<_>) = files.into_iter().partition(is_beside);
    // Where there is no job else, these are what is meant.
    let is_job = |file: &(String, String)| {
        is_script(file) || objects::batch_system(&file.1).is_some() || file.1.contains("apiVersion")
    };
    if !kept.iter().any(is_job) {
        kept.append(&mut beside);
    }
    loop {
        let is_named = |(name, _): &(String, String)| {
            kept.iter().any(|(_, text)| text.contains(rallypoint_shell::basename(name)))
        };
        let (named, others): (Vec<_>, Vec<_>) = beside.into_iter().partition(is_named);
        if named.is_empty() {
            return kept;
        }
        kept.extend(named);
        beside = others;
    }
}

/// Whether a script launches a training of several nodes.
fn is_of_nodes(script: &Object, scripts: &[Object]) -> bool {
    scripts::of(script, scripts, 0).0.into_iter().any(|pods| {
        let is_told = pods.launches().any(|launch| launch.nodes.is_some()) && pods.count != Some(1);
        pods.train() && (pods.step.by.is_some() || is_told)
    })
}

#[cfg(test)]
mod tests;
