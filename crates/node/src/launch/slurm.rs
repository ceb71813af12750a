//! Slurm's variables: the first host of a host list (`node[01-04,07],gpu3` begins with `node01`), the tasks
//! of each node (`8(x2),4`), and the place of a process in its job step.

use super::{Environment, LaunchError};

/// The job step of this process.
#[derive(Debug)]
pub(crate) struct Step {
    /// Whether `srun` started this process. The script of the job runs once, on the first node, with the
    /// numbers of a first task.
    pub started_by_srun: bool,
    /// The number of nodes of the step, or else of the job, and its variable.
    pub nodes: Option<(u32, &'static str)>,
    /// The number of nodes of the job.
    pub nodes_of_job: Option<u32>,
    /// `SLURM_NODEID`.
    pub node: Option<u32>,
    /// `SLURM_PROCID`.
    pub rank: Option<u32>,
    /// The number of tasks of the step, and its variable.
    pub tasks: Option<(u32, &'static str)>,
    /// `SLURM_LOCALID`.
    pub local_rank: Option<u32>,
    /// The tasks of each node.
    pub per_node: Option<PerNode>,
}

/// The number of tasks on each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PerNode {
    pub counts: Vec<(u32, u32)>,
    pub from: &'static str,
}

impl Step {
    /// Reads the variables. `None` without a job.
    pub(crate) fn read(env: &Environment) -> Result<Option<Self>, LaunchError> {
        if !env.has_any(&["SLURM_JOB_ID", "SLURM_JOBID"]) {
            return Ok(None);
        }
        let first = |names: &[&'static str]| -> Result<Option<(u32, &'static str)>, LaunchError> {
            let Some(name) = names.iter().find(|name| env.get(name).is_some()) else { return Ok(None) };
            Ok(env.number(name)?.map(|number| (number, *name)))
        };
        let number = |name| env.number(name);
        let (node, rank) = (number("SLURM_NODEID")?, number("SLURM_PROCID")?);
        let nodes = first(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"])?;
        let tasks = first(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"])?;
        let by_srun = env.matching("SLURM_STEP*").next().is_some()
            || env.has_any(&["SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"])
            || [node, rank].into_iter().flatten().any(|index| index > 0);
        let list = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]
            .into_iter()
            .find_map(|name| env.get(name).map(|text| (text, name)));
        let per_node = match list {
            Some((text, from)) => {
                let counts = tasks_per_node(text);
                let bad = || LaunchError::TasksPerNode { name: from.into(), value: text.into() };
                Some(PerNode { counts: counts.ok_or_else(bad)?, from })
            }
            None => None,
        };
        Ok(Some(Self {
            started_by_srun: by_srun || nodes.is_some_and(|(nodes, _)| nodes == 1),
            nodes,
            nodes_of_job: number("SLURM_JOB_NUM_NODES")?,
            node,
            rank,
            tasks,
            local_rank: number("SLURM_LOCALID")?,
            per_node,
        }))
    }

    /// The number of tasks on each node, if all nodes have the same number, and its variable.
    pub(crate) fn even(&self) -> Option<(u32, &'static str)> {
        if let Some(per_node) = &self.per_node {
            let (first, _) = *per_node.counts.first()?;
            let even = per_node.counts.iter().all(|(count, _)| *count == first);
            return even.then_some((first, per_node.from));
        }
        let ((tasks, from), (nodes, _)) = self.tasks.zip(self.nodes)?;
        let each = tasks.checked_div(nodes)?;
        (tasks.is_multiple_of(nodes)).then_some((each, from))
    }

    /// Whether nodes have several tasks.
    pub(crate) fn has_several_tasks_on_a_node(&self) -> bool {
        let even = self.even().map(|(tasks, _)| tasks);
        self.started_by_srun
            && (even.is_some_and(|tasks| tasks > 1) || even.is_none() && self.per_node.is_some())
    }

    /// The number of tasks on this node.
    pub(crate) fn on_this_node(&self) -> Option<u32> {
        let Some(per_node) = &self.per_node else { return self.even().map(|(tasks, _)| tasks) };
        let mut node = self.node?;
        for (count, times) in &per_node.counts {
            match node.checked_sub(*times) {
                Some(rest) => node = rest,
                None => return Some(*count),
            }
        }
        None
    }
}

/// Parses `8(x2),4` into pairs: a number of tasks, and how many successive nodes have it.
fn tasks_per_node(text: &str) -> Option<Vec<(u32, u32)>> {
    text.split(',')
        .map(|part| {
            let part = part.trim();
            let (count, times) = match part.split_once("(x") {
                Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
                None => (part, 1),
            };
            Some((count.parse().ok()?, times)).filter(|(_, times)| *times > 0)
        })
        .collect()
}

/// The first host of a list. Nested or unclosed brackets are not a list.
pub(crate) fn first_host(list: &str) -> Option<String> {
    let list = list.trim();
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    if !rest.starts_with('[') {
        return Some(prefix.to_owned()).filter(|host| !host.is_empty());
    }
    let (numbers, rest) = rest[1..].split_once(']')?;
    let first = numbers.split([',', '-']).next()?;
    if first.is_empty() || !first.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // `rack[1-2]node[1-8]` has a second part after the first bracket.
    let tail = match rest.find(',') {
        Some(0) => "",
        Some(end) => &rest[..end.max(rest.find(']').map_or(0, |at| at.saturating_add(1)))],
        None => rest,
    };
    let tail = if tail.is_empty() { String::new() } else { first_host(tail)? };
    Some(format!("{prefix}{first}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::{first_host, tasks_per_node};

    #[test]
    fn the_first_host_of_a_list() {
        for (list, first) in [
            ("node1", Some("node1")),
            ("node1,node2", Some("node1")),
            ("node[01-04,07],gpu3", Some("node01")),
            ("gpu-a[3,5]", Some("gpu-a3")),
            ("rack[1-2]node[1-8]", Some("rack1node1")),
            ("rack[1-2]node[1,8],x", Some("rack1node1")),
            ("node[1-4].cluster", Some("node1.cluster")),
            ("node[", None),
            ("node[x]", None),
            ("", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }

    #[test]
    fn the_tasks_of_each_node() {
        for (text, counts) in [
            ("8(x2),4", Some(vec![(8, 2), (4, 1)])),
            ("1", Some(vec![(1, 1)])),
            ("1,2(x3)", Some(vec![(1, 1), (2, 3)])),
            ("8(x0)", None),
            ("8(x", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(tasks_per_node(text), counts, "{text}");
        }
    }
}
