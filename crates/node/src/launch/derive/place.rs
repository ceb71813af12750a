//! The endpoint where the nodes meet, and the name of their run.

use super::facts::said;
use super::sources::Sources;
use super::{Derivation, Derived, Meeting, OF_COMMAND};
use crate::endpoint::{Endpoint, EndpointError, parse_port};
use crate::launch::names::{first_label, ordinal, role_of, same_host};
use crate::launch::platform::{Kind, Says};
use crate::launch::slurm::first_host;
use crate::launch::{Backend, LaunchError, Torchrun};
use crate::makers::Maker;

/// An address; its port may be absent.
#[derive(Debug, Clone, PartialEq)]
struct Address {
    host: String,
    port: Option<u16>,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

impl Derivation<'_> {
    /// The endpoint where the nodes meet. The meaning of torchrun's rendezvous endpoint depends on the
    /// backend: with the plugin it is the admin port.
    pub(crate) fn endpoint(&self) -> Result<Option<Derived<Meeting>>, LaunchError> {
        let said = self.given.endpoint.as_ref();
        let read = |text: &str| text.parse().ok();
        if let Some(said) = self.said(said, "--endpoint", "RALLYPOINT_ENDPOINT", read) {
            return Ok(Some(said.map(Meeting::Store)));
        }
        // With etcd the endpoint of the rendezvous is no store.
        let is_store = !matches!(self.backend(), Some(Backend::Other(_)));
        if let Some((text, from)) = self.flag("rdzv-endpoint").filter(|_| is_store) {
            return self.rendezvous(text, &from, OF_COMMAND).map(Some);
        }
        if let Some(master) = self.master_of_command()? {
            return Ok(Some(master.map(Meeting::Store)));
        }
        let name = "PET_RDZV_ENDPOINT";
        if let Some(text) = self.env.get(name).filter(|_| is_store) {
            return self.rendezvous(text, name, "torchrun's own variable").map(Some);
        }
        Ok(self.master()?.map(|master| master.map(Meeting::Store)))
    }

    /// The endpoint of torchrun's rendezvous, by torchrun's own rules.
    fn rendezvous(&self, text: &str, from: &str, why: &str) -> Result<Derived<Meeting>, LaunchError> {
        /// The port that torchrun's c10d backend uses if the endpoint has none.
        const TORCHRUN_PORT: u16 = 29400;
        /// The port that the plugin uses in this case.
        const PLUGIN_PORT: u16 = 29501;

        let wrong = |error| LaunchError::Endpoint { name: from.to_owned(), error };
        let (value, why) = if self.backend() == Some(Backend::Rallypoint) {
            let plain =
                text.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
            let admin = Endpoint::parse(plain, PLUGIN_PORT).map_err(wrong)?;
            (Meeting::Admin(admin), format!("{why}; with the backend rallypoint it is the admin port"))
        } else {
            (Meeting::Store(Endpoint::parse(text, TORCHRUN_PORT).map_err(wrong)?), why.to_owned())
        };
        Ok(Derived { value, from: from.to_owned(), why })
    }

    /// The rendezvous backend in torchrun's flags or variables.
    fn backend(&self) -> Option<Backend> {
        let of_command = self.command.and_then(Torchrun::backend);
        of_command.or_else(|| self.env.get("PET_RDZV_BACKEND").map(Backend::parse))
    }

    /// `--master-addr` of the command.
    fn master_of_command(&self) -> Result<Option<Derived<Endpoint>>, LaunchError> {
        let Some((host, from)) = self.flag("master-addr") else { return Ok(None) };
        let wrong = |name: &str| {
            let name = name.to_owned();
            move |error| LaunchError::Endpoint { name, error }
        };
        let (port, port_from) = match self.flag("master-port") {
            Some((port, from)) => (Some(parse_port(port, port).map_err(wrong(&from))?), from),
            None => (self.port("PET_MASTER_PORT")?, "PET_MASTER_PORT".to_owned()),
        };
        let from = if port.is_some() { format!("{from} and {port_from}") } else { from };
        let value = Endpoint::new(host, port.unwrap_or(Endpoint::DEFAULT_PORT)).map_err(wrong(&from))?;
        Ok(Some(Derived { value, from, why: OF_COMMAND.to_owned() }))
    }

    /// The master's address, from torch's or the platform's variables.
    fn master(&self) -> Result<Option<Derived<Endpoint>>, LaunchError> {
        let wrong = |name: &str| {
            let name = name.to_owned();
            move |error| LaunchError::Endpoint { name, error }
        };
        let mut sources = Sources::of("the master's address", "--endpoint (RALLYPOINT_ENDPOINT)");
        for (name, port_name) in [("PET_MASTER_ADDR", "PET_MASTER_PORT"), ("MASTER_ADDR", "MASTER_PORT")] {
            let Some(host) = self.env.get(name) else { continue };
            let port = self.port(port_name)?;
            // An invalid address must be reported, not compared.
            let checked = Endpoint::new(host, port.unwrap_or(Endpoint::DEFAULT_PORT)).map_err(wrong(name))?;
            let from = if port.is_some() { format!("{name} and {port_name}") } else { name.to_owned() };
            let address = Address { host: checked.host().to_owned(), port };
            sources.add(Some(address), from, "the address of the store");
        }
        if sources.found.is_empty() {
            return self.platforms_master();
        }
        // An absent port contradicts nothing, and the short name of a host means that host.
        let with_port = sources.found.iter().find(|address| address.value.port.is_some()).cloned();
        let agree = |a: &Address, b: &Address| {
            same_host(&a.host, &b.host) && a.port.zip(b.port).is_none_or(|(a, b)| a == b)
        };
        let Some(first) = sources.settle(agree)? else { return Ok(None) };
        let port = with_port.as_ref().and_then(|address| address.value.port);
        let from = match with_port {
            Some(other) if first.value.port.is_none() => format!("{} and {}", first.from, other.from),
            _ => first.from,
        };
        let endpoint = Endpoint::new(&first.value.host, port.unwrap_or(Endpoint::DEFAULT_PORT));
        let why = if port.is_some() { first.why } else { format!("{}, with torch's usual port", first.why) };
        Ok(Some(Derived { value: endpoint.map_err(wrong(&from))?, from, why }))
    }

    fn port(&self, name: &'static str) -> Result<Option<u16>, LaunchError> {
        match self.env.get(name) {
            None => Ok(None),
            Some(value) if value.starts_with("tcp://") => {
                Err(LaunchError::ServiceLink { name: name.into(), value: value.into() })
            }
            Some(port) => {
                let wrong = |error: EndpointError| LaunchError::Endpoint { name: name.into(), error };
                parse_port(port, port).map(Some).map_err(wrong)
            }
        }
    }

    /// The address of rank 0, if the platform names it.
    fn platforms_master(&self) -> Result<Option<Derived<Endpoint>>, LaunchError> {
        const USUAL: &str = "with torch's usual port";
        let at = |host: &str, port: Option<u16>, from: &str, why: &str| {
            let endpoint = Endpoint::new(host, port.unwrap_or(Endpoint::DEFAULT_PORT))
                .map_err(|error| LaunchError::Endpoint { name: from.to_owned(), error })?;
            Ok(Some(Derived { value: endpoint, from: from.to_owned(), why: why.to_owned() }))
        };
        match self.platform.kind {
            Kind::InjectedStatefulSet | Kind::InjectedJob => {
                let (host, why) = self.first_injected_pod()?;
                let mut from = vec!["SVC_NAME"];
                from.extend(
                    ["JOB_NAME", "POD_NAMESPACE", "POD_PORT"]
                        .into_iter()
                        .filter(|name| self.env.get(name).is_some()),
                );
                let port = self.port("POD_PORT")?;
                return at(&host, port, &from.join(", "), &why);
            }
            // The order of a SLURM_HOSTFILE is arbitrary: rank 0 may be on any node of the list.
            Kind::Slurm if self.env.get("SLURM_HOSTFILE").is_some() => return Ok(None),
            Kind::Slurm => {
                let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
                if let Some((name, list)) =
                    lists.into_iter().find_map(|name| Some((name, self.env.get(name)?)))
                {
                    let bad = || LaunchError::HostList { name: name.into(), value: list.into() };
                    let host = first_host(list).ok_or_else(bad)?;
                    return at(&host, None, name, &format!("the first node, {USUAL}"));
                }
            }
            _ => {}
        }
        // TorchX names rank 0 `localhost`, which is wrong on every other node.
        let local = |host: &str| host == "localhost" || host.starts_with("127.");
        if let Some((platform, name, host)) = said(self.env, Says::Master).find(|(_, _, host)| !local(host)) {
            let port_name = platform.says().find(|(_, says)| *says == Says::MasterPort);
            let port = match port_name {
                Some((port, _)) => self.port(port)?.map(|number| (number, port)),
                None => None,
            };
            let why = format!("set by {}", platform.name);
            return match port {
                Some((number, port)) => at(host, Some(number), &format!("{name} and {port}"), &why),
                None => at(host, None, name, &format!("{why}, {USUAL}")),
            };
        }
        let members = self.members().unwrap_or_default();
        if let Some((name, member)) = members.first() {
            return at(&member.master, None, name, &format!("the first node that trains, {USUAL}"));
        }
        let lists = self.host_lists()?;
        if let Some(list) = lists.iter().find(|list| list.is_even)
            && let Some(host) = list.hosts.first()
        {
            return at(host, None, list.from, &format!("the first node of the list, {USUAL}"));
        }
        if self.platform.kind == Kind::Maker(Maker::VolcanoJob)
            && let Some(task) = self.volcano_tasks().first()
            && let Ok(Some(_)) = self.volcano_place()
            && let Some(host) = task.hosts.first()
        {
            return at(host, None, task.variable, &format!("the job's first pod, {USUAL}"));
        }
        Ok(None)
    }

    /// `JOB-0.SVC.NAMESPACE`; the resolver adds the cluster's domain.
    fn first_injected_pod(&self) -> Result<(String, String), LaunchError> {
        let (_, pod) = self.pod_name();
        let of_the_name = ordinal(pod).map(|(name, _)| name);
        let job = self.env.get("JOB_NAME").or(of_the_name).ok_or(LaunchError::NamePart {
            variable: "JOB_NAME",
            blank: self.env.is_blank("JOB_NAME"),
            made: "JOB_NAME-0.SVC_NAME.POD_NAMESPACE".into(),
        })?;
        let mut host = format!("{job}-0");
        for (variable, needed) in [("SVC_NAME", true), ("POD_NAMESPACE", false)] {
            match self.env.get(variable) {
                Some(part) => host = format!("{host}.{part}"),
                None if needed => {
                    let (blank, made) = (self.env.is_blank(variable), format!("{host}.{variable}"));
                    return Err(LaunchError::NamePart { variable, blank, made });
                }
                None => {}
            }
        }
        let why = format!("pod 0 of `{job}` behind its headless Service");
        Ok((host, why))
    }

    pub(crate) fn run_id(&self) -> Option<Derived<String>> {
        let found = |value: &str, from: &str, why: &str| {
            Some(Derived { value: value.to_owned(), from: from.to_owned(), why: why.to_owned() })
        };
        let said = self.given.run_id.as_ref();
        if let Some(said) = self.said(said, "--run-id", "RALLYPOINT_RUN_ID", |text| Some(text.to_owned())) {
            return Some(said);
        }
        if let Some((run_id, from)) = self.flag("rdzv-id") {
            return found(run_id, &from, OF_COMMAND);
        }
        // "none" is torchrun's default, not an id.
        let value = |name| self.env.get(name).filter(|&id| id != "none");
        for (name, why) in [
            ("PET_RDZV_ID", "torchrun's own variable"),
            ("JOB_UID", "the Job's UID, another one for each run"),
        ] {
            if let Some(run_id) = value(name) {
                return found(run_id, name, why);
            }
        }
        if let Some(run_id) = self.run_id_of_the_platform() {
            return Some(run_id);
        }
        for (name, why) in [
            ("RDZV_ID", "torchrun does not read it, rallypoint does"),
            ("JOB_ID", "another one for each job, by its name"),
        ] {
            if let Some(run_id) = value(name) {
                return found(run_id, name, why);
            }
        }
        let (namespace, and) = match self.env.get("POD_NAMESPACE") {
            Some(name) => (format!("{name}."), " and POD_NAMESPACE"),
            None => (String::new(), ""),
        };
        let shared = "the job's name, the same for each run of it";
        for name in ["JOBSET_NAME", "JOB_NAME"] {
            if let Some(job) = self.env.get(name) {
                return found(&format!("{namespace}{job}"), &format!("{name}{and}"), shared);
            }
        }
        if self.platform.kind == Kind::Maker(Maker::VolcanoJob)
            && let Some((job, from)) = self.volcano_job()
        {
            return found(&format!("{namespace}{job}"), &format!("{from}{and}"), shared);
        }
        let (from, pod) = match self.env.get("JOB_COMPLETION_INDEX") {
            // The host name of a Job's pod ends in the index; the pod's own name does not.
            Some(_) => ("the host's name", first_label(self.given.pods_hostname())),
            None => self.pod_name(),
        };
        let numbered = self.env.in_kubernetes()
            && !matches!(self.platform.kind, Kind::Kubetorch | Kind::Variables | Kind::Unknown);
        let (set, _) = ordinal(pod).filter(|_| numbered)?;
        // The name of a LeaderWorkerSet's leader has one number fewer than the names of its workers.
        let (set, from) = match (self.platform.kind, self.env.get("LWS_LEADER_ADDRESS")) {
            (Kind::Maker(Maker::LeaderWorkerSet), Some(leader)) => {
                (first_label(leader), "LWS_LEADER_ADDRESS")
            }
            // Pods of other groups have another name before the number, but belong to the same job.
            (Kind::Maker(Maker::VolcanoJob), _) => (set, from),
            _ => (role_of(set).map_or(set, |(job, _)| job), from),
        };
        let from = &format!("{from}{and}");
        found(&format!("{namespace}{set}"), from, "the name that all its pods share, the same for each run")
    }

    /// The id that a scheduler gives to a job, with the part that distinguishes its attempts.
    fn run_id_of_the_platform(&self) -> Option<Derived<String>> {
        let (platform, name, id) = said(self.env, Says::RunId).next()?;
        // AWS Batch appends the node's index to the id of the job.
        let mut value = id.split('#').next().unwrap_or(id).to_owned();
        let mut from = vec![name];
        for (part, says) in platform.says() {
            let Some(text) = self.env.get(part) else { continue };
            match says {
                Says::RunIdPart if text != "0" => value = format!("{value}-{text}"),
                Says::AttemptFrom(first) => match text.parse::<u32>().ok()?.checked_sub(first) {
                    None | Some(0) => continue,
                    Some(retry) => value = format!("{value}-retry{retry}"),
                },
                _ => continue,
            }
            from.push(part);
        }
        // A step on a part of the job's nodes is a run of its own: another step also counts its nodes from 0.
        if let Some(step) = &self.slurm
            && let (Some((nodes, _)), Some(all)) = (step.nodes, step.nodes_of_job)
            && let (true, Some(id)) =
                (name.starts_with("SLURM") && nodes < all, self.env.get("SLURM_STEP_ID"))
        {
            value = format!("{value}.{id}");
            from.push("SLURM_STEP_ID");
        }
        let why = format!("another one for each job of {}", platform.name);
        Some(Derived { value, from: from.join(" and "), why })
    }
}
