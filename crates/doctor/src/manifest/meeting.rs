//! Where the nodes of a launch meet.

use super::super::{Check, check_command};
use super::container::Container;
use super::launch::{Launch, Told};
use super::names::{Taken, Target, resolve, takes};
use super::objects::list;
use super::pods::Pods;
use super::{Location, Manifests};
use rallypoint_node::launch::{Backend, Tool};
use rallypoint_node::makers::Maker;
use rallypoint_shell::Text;

/// A launch, with everything around it.
pub(crate) struct Call<'m> {
    pub(super) manifests: &'m Manifests,
    pub(super) pods: &'m Pods,
    pub(super) container: &'m Container,
    pub(super) launch: &'m Launch,
}

impl<'m> Call<'m> {
    /// A field of the container.
    pub(crate) fn at(&self, field: &str) -> Location {
        self.pods.at(&self.container.at(field))
    }

    /// How many pods have to meet.
    pub(crate) fn total(&self) -> Option<u64> {
        self.manifests.nodes(self.pods)
    }

    /// Whether some of these pods train together with the pods of this call.
    pub(crate) fn is_together(&self, other: &Pods) -> bool {
        self.manifests.together(self.pods).any(|own| own.object == other.object)
    }

    /// Whether variables that are not in the files may say what no flag does. Nobody sets PET_* for a script.
    pub(crate) fn may_be_told(&self) -> bool {
        self.launch.command.open && !self.pods.are_tasks()
    }

    /// Whether deepspeed finds a host file at /job/hostfile, where it looks by itself.
    pub(crate) fn has_usual_hosts(&self) -> bool {
        let is_it = |path: &str| path.starts_with("/job");
        let mounts = list(&self.container.value, "/volumeMounts").iter();
        mounts.filter_map(|mount| mount.get("mountPath")?.as_str()).any(is_it)
            || self.container.texts().any(|text| text.contains("/job/hostfile"))
    }

    /// Whether deepspeed is to reach several nodes, and no file names them: it does not start then.
    pub(crate) fn lacks_hosts(&self) -> bool {
        self.launch.tool() == Tool::DeepSpeed
            && self.launch.grammar.refuses
            && self.launch.most_nodes() > Some(1)
            && !self.launch.has_hosts()
            && !self.has_usual_hosts()
    }

    /// The text of a variable that the launcher gets.
    pub(crate) fn variable(&self, name: &str) -> Option<&'m Text> {
        self.launch.command.variable(name)
    }

    /// Whether the manifest itself sets a variable, in `env` or in the script.
    pub(crate) fn sets(&self, name: &str) -> bool {
        self.container.own.iter().any(|own| own == name)
            || self.variable(name) != self.container.variable(name)
    }

    /// Whether a script with the number of one node is for that node: its own address may be the right one
    /// there. A script that finds out its node's number, and does not use it, is for all nodes.
    pub(crate) fn is_of_one_node(&self) -> bool {
        const FOUND: [&str; 4] = ["NODE_RANK", "MACHINE_RANK", "GROUP_RANK", "NODEID"];
        let has_number = self.launch.node_rank.as_ref().is_some_and(|told| told.text.literal().is_some());
        let of_script = |name: &&str| rallypoint_shell::text(&self.launch.command.variables, name);
        let finds_out = FOUND.iter().filter_map(of_script).any(|text| text.literal().is_none());
        self.pods.are_by_hand() && has_number && !finds_out
    }

    /// Whether several pods have to meet, as far as it is known.
    pub(crate) fn are_to_meet(&self) -> bool {
        let total = self.total().unwrap_or(1);
        match self.launch.tool() {
            // A Pod that stands alone knows from its variables how many others there are.
            Tool::Program if self.pods.maker == Maker::Pod && self.sets("RANK") => {
                self.launch.number("WORLD_SIZE") > Some(1)
            }
            Tool::Torchrun | Tool::Accelerate if self.launch.nodes.is_none() => {
                total > 1 && self.launch.host.is_some()
            }
            _ => self.launch.most_nodes().map_or(total > 1, |nodes| nodes > 1),
        }
    }

    /// The host at which several pods are to meet, and what it means.
    pub(crate) fn meeting(&self) -> Option<(&'m Told, Target<'m>)> {
        let told = self.launch.host.as_ref().filter(|told| told.text.literal() != Some(""))?;
        self.are_to_meet().then(|| (told, resolve(&told.text, self.pods, self.manifests)))
    }

    /// Whether the store is in the pod itself.
    pub(crate) fn hosts_store(&self) -> bool {
        self.launch.host.as_ref().is_some_and(|told| match resolve(&told.text, self.pods, self.manifests) {
            Target::Own => true,
            Target::Pod { pods, .. } => pods.object == self.pods.object,
            Target::Service(service) => takes(service, self.pods) != Taken::None,
            _ => false,
        })
    }

    /// Whether the nodes must agree on the run's id.
    pub(crate) fn uses_run_id(&self) -> bool {
        let Launch { backend, nodes, .. } = self.launch;
        (self.launch.has_a_leader() || *backend == Backend::Rallypoint)
            && nodes.is_some()
            && self.launch.most_nodes().is_none_or(|nodes| nodes > 1)
            && !self.launch.is_told_elsewhere
            && !self.launch.by_rallypoint
    }

    /// Whether the store outlives the run: it is not in one of the run's own pods.
    pub(crate) fn store_outlives_run(&self) -> bool {
        let Some(host) = &self.launch.host else { return false };
        match resolve(&host.text, self.pods, self.manifests) {
            Target::Pod { pods: other, .. } => other.object != self.pods.object && !self.is_together(other),
            Target::Service(service) => {
                let is_own = |own: &Pods| takes(service, own) != Taken::None;
                !self.manifests.together(self.pods).any(is_own)
            }
            // The node of a batch system hosts the store of its own run.
            Target::Absent => !self.pods.are_tasks() && host.text.split_once('.').is_none(),
            Target::Own | Target::Governing | Target::Nothing(_) | Target::Elsewhere => false,
        }
    }

    /// A mistake in torchrun's flags that any pod can have.
    pub(crate) fn in_command(&self, id: &str) -> Option<Check> {
        let torchrun = self.launch.torchrun().filter(|_| !self.launch.is_told_elsewhere)?;
        let found = check_command(&torchrun, &self.launch.environment()).into_iter();
        let check = found.filter(|check| check.remedy.is_some()).find(|check| check.id == id)?;
        Some(check.at(self.at("command")))
    }
}

/// The remedy: the line to change. `by` is the flag or the variable that names the host now.
pub(crate) fn first_pod(pods: &Pods, by: &str) -> String {
    let server = match by {
        "--rdzv-endpoint" => "a rallypoint server's Service with --rdzv-conf=is_host=0",
        _ => "a rallypoint server's Service",
    };
    match pods.first_host() {
        Some(host) if by.to_lowercase().ends_with("endpoint") => {
            format!("name the first pod, `{by}={host}:29500`, or {server}")
        }
        Some(host) => format!("name the first pod, `{by}={host}`, or {server}"),
        None => format!(
            "{by} with the name of pod 0 (spec.subdomain and a headless Service of that name give pods \
             names), or {server}"
        ),
    }
}
