//! Volcano's tasks. Its svc plugin lists the hosts of each task in `VC_<TASK>_HOSTS`. Its env plugin gives
//! the index of a pod within its task, so two tasks have two pods with the index 0.

use super::Derivation;
use crate::launch::LaunchError;
use crate::launch::hosts::hosts;
use crate::launch::names::{first_label, ordinal};

/// A task of the job.
#[derive(Debug)]
pub(crate) struct VolcanoTask<'a> {
    /// The variable `VC_<TASK>_HOSTS`.
    pub variable: &'a str,
    pub hosts: Vec<String>,
    /// The index of this pod, if it belongs to the task.
    pub own: Option<u32>,
}

/// The place of a pod among all pods of its job.
#[derive(Debug)]
pub(crate) struct VolcanoPlace {
    pub index: Option<u32>,
    /// The number of pods.
    pub pods: Option<u32>,
    /// The variables that tell it.
    pub from: String,
}

/// An error that matters only if no other source gives the value.
pub(crate) fn refused_if<T>(nothing_else: bool, error: LaunchError) -> Result<Option<T>, LaunchError> {
    if nothing_else { Err(error) } else { Ok(None) }
}

impl Derivation<'_> {
    /// The tasks in the order of their ranks. As in Volcano's pytorch plugin, a master precedes its workers.
    pub(crate) fn volcano_tasks(&self) -> Vec<VolcanoTask<'_>> {
        let own = first_label(&self.given.hostname);
        let named = self.env.get("POD_NAME").unwrap_or(own);
        let mut tasks: Vec<_> = self
            .env
            .matching("VC_*_HOSTS")
            .filter_map(|(variable, list)| {
                let hosts = hosts(list)?;
                let own = hosts.iter().position(|host| [own, named].contains(&first_label(host)));
                Some(VolcanoTask { variable, hosts, own: own.and_then(|at| u32::try_from(at).ok()) })
            })
            .collect();
        tasks.sort_by_key(|task| task.variable != "VC_MASTER_HOSTS");
        tasks
    }

    /// The place of this pod among all pods of the job.
    pub(crate) fn volcano_place(&self) -> Result<Option<VolcanoPlace>, LaunchError> {
        let tasks = self.volcano_tasks();
        let name = if self.env.get("VC_TASK_INDEX").is_some() { "VC_TASK_INDEX" } else { "VK_TASK_INDEX" };
        let index = self.number(name)?;
        let count = |task: &VolcanoTask<'_>| u32::try_from(task.hosts.len()).ok();
        match &tasks[..] {
            [] => Ok(index.map(|_| VolcanoPlace { index, pods: None, from: name.into() })),
            [only] => {
                let from = match index {
                    Some(_) => name.to_owned(),
                    None => format!("this pod's name in {}", only.variable),
                };
                Ok(Some(VolcanoPlace { index: index.or(only.own), pods: count(only), from }))
            }
            [master, workers]
                if master.variable == "VC_MASTER_HOSTS"
                    && workers.variable == "VC_WORKER_HOSTS"
                    && master.hosts.len() == 1 =>
            {
                let from = "this pod's name in VC_MASTER_HOSTS and VC_WORKER_HOSTS".to_owned();
                let index = master.own.or_else(|| workers.own?.checked_add(1));
                Ok(Some(VolcanoPlace {
                    index,
                    pods: count(workers).and_then(|workers| workers.checked_add(1)),
                    from,
                }))
            }
            several => {
                let variables: Vec<&str> = several.iter().map(|task| task.variable).collect();
                Err(LaunchError::VolcanoTasks(variables.join(", ")))
            }
        }
    }

    /// The job's name, which is the domain of its pods.
    pub(crate) fn volcano_job(&self) -> Option<(String, String)> {
        let tasks = self.volcano_tasks();
        let task = tasks.iter().find(|task| task.own.is_some()).or(tasks.first())?;
        let host = task.hosts.first()?;
        let job = if let Some((_, domain)) = host.split_once('.') {
            first_label(domain).to_owned()
        } else {
            // Without a domain, the name of the task follows the job's name.
            let (set, _) = ordinal(host)?;
            let task_name = task.variable.strip_prefix("VC_")?.strip_suffix("_HOSTS")?;
            let task_name = task_name.to_ascii_lowercase().replace('_', "-");
            set.strip_suffix(&task_name)?.strip_suffix('-')?.to_owned()
        };
        Some((job, task.variable.to_owned())).filter(|(job, _)| !job.is_empty())
    }
}
