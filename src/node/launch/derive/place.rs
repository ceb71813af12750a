//! Where the nodes meet, and what their run is called.

use super::sources::Sources;
use super::{Derivation, Derived, GIVEN, OF_COMMAND};
use crate::node::endpoint::{Endpoint, EndpointError, parse_port};
use crate::node::launch::names::{first_label, ordinal};
use crate::node::launch::slurm::first_host;
use crate::node::launch::{LaunchError, Platform};

impl Derivation<'_> {
    pub(super) fn endpoint(&self) -> Result<Option<Derived<Endpoint>>, LaunchError> {
        /// Where torchrun's c10d backend goes if its endpoint names no port.
        const TORCHRUN_PORT: u16 = 29400;

        let found = |value, from: &str, why: &str| {
            Ok(Some(Derived { value, from: from.to_owned(), why: why.to_owned() }))
        };
        let wrong = |name: &str| {
            let name = name.to_owned();
            move |error| LaunchError::Endpoint { name, error }
        };
        if let Some(endpoint) = &self.given.endpoint {
            return found(endpoint.clone(), "RALLYPOINT_ENDPOINT", GIVEN);
        }
        if let Some((text, from)) = self.flag("rdzv-endpoint") {
            return found(Endpoint::parse(text, TORCHRUN_PORT).map_err(wrong(&from))?, &from, OF_COMMAND);
        }
        if let Some((host, from)) = self.flag("master-addr") {
            let port = match self.flag("master-port") {
                Some((port, from)) => parse_port(port, port).map_err(wrong(&from))?,
                None => self.port("PET_MASTER_PORT")?.unwrap_or(Endpoint::DEFAULT_PORT),
            };
            return found(Endpoint::new(host, port).map_err(wrong(&from))?, &from, OF_COMMAND);
        }
        let name = "PET_RDZV_ENDPOINT";
        if let Some(text) = self.env.get(name) {
            let endpoint = Endpoint::parse(text, TORCHRUN_PORT).map_err(wrong(name))?;
            return found(endpoint, name, "torchrun's own variable");
        }
        let mut sources = Sources::of("the master's address", "--endpoint (RALLYPOINT_ENDPOINT)");
        for (name, port_name) in [("PET_MASTER_ADDR", "PET_MASTER_PORT"), ("MASTER_ADDR", "MASTER_PORT")] {
            let Some(host) = self.env.get(name) else { continue };
            let port = self.port(port_name)?.unwrap_or(Endpoint::DEFAULT_PORT);
            sources.add(
                Some(Endpoint::new(host, port).map_err(wrong(name))?),
                name,
                "the address of the store",
            );
        }
        if sources.found.is_empty() {
            self.add_platforms_master(&mut sources)?;
        }
        sources.settle(PartialEq::eq)
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

    /// The address of pod 0, where the platform says how it is called.
    fn add_platforms_master(&self, sources: &mut Sources<Endpoint>) -> Result<(), LaunchError> {
        let default = Endpoint::DEFAULT_PORT;
        let at = |host: &str, port: u16, name: &str| {
            Endpoint::new(host, port)
                .map(Some)
                .map_err(|error| LaunchError::Endpoint { name: name.to_owned(), error })
        };
        match self.platform {
            Platform::LeaderWorkerSet => {
                if let Some(leader) = self.env.get("LWS_LEADER_ADDRESS") {
                    let name = "LWS_LEADER_ADDRESS";
                    sources.add(
                        at(leader, default, name)?,
                        name,
                        "the group's leader, with torch's usual port",
                    );
                }
            }
            Platform::Slurm => {
                let list = self.env.get("SLURM_STEP_NODELIST").or_else(|| self.env.get("SLURM_JOB_NODELIST"));
                if let Some(list) = list {
                    let host = first_host(list).ok_or_else(|| LaunchError::NodeList(list.into()))?;
                    let name = "SLURM_JOB_NODELIST";
                    sources.add(at(&host, default, name)?, name, "the first node, with torch's usual port");
                }
            }
            Platform::InjectedStatefulSet | Platform::InjectedJob => {
                let (host, why) = self.first_injected_pod()?;
                let port = self.port("POD_PORT")?.unwrap_or(default);
                let name = "SVC_NAME, POD_NAMESPACE and POD_PORT";
                sources.add(at(&host, port, name)?, name, why);
            }
            _ => {}
        }
        Ok(())
    }

    /// `JOB-0.SVC.NAMESPACE`, to which the resolver adds the cluster's domain.
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

    pub(super) fn run_id(&self) -> Option<Derived<String>> {
        let found = |value: &str, from: &str, why: &str| {
            Some(Derived { value: value.to_owned(), from: from.to_owned(), why: why.to_owned() })
        };
        if let Some(run_id) = &self.given.run_id {
            return found(run_id, "--run-id (RALLYPOINT_RUN_ID)", GIVEN);
        }
        if let Some((run_id, from)) = self.flag("rdzv-id") {
            return found(run_id, &from, OF_COMMAND);
        }
        for (name, why) in [
            ("PET_RDZV_ID", "torchrun's own variable"),
            ("JOB_UID", "the Job's UID, another one for each run"),
            ("SLURM_JOB_ID", "another one for each job"),
            ("RDZV_ID", "torchrun does not read it, rallypoint does"),
            ("JOB_ID", "another one for each job, by its name"),
        ] {
            // torchrun's own default is no id.
            if let Some(run_id) = self.env.get(name).filter(|&id| id != "none") {
                return found(run_id, name, why);
            }
        }
        let namespace = self.env.get("POD_NAMESPACE").map(|name| format!("{name}.")).unwrap_or_default();
        for name in ["JOBSET_NAME", "JOB_NAME"] {
            if let Some(job) = self.env.get(name) {
                return found(
                    &format!("{namespace}{job}"),
                    name,
                    "the job's name, the same for each run of it",
                );
            }
        }
        let (from, pod) = match self.env.get("JOB_COMPLETION_INDEX") {
            // A Job's pod has the index at the end of its host name, not of its own name.
            Some(_) => ("the host's name", first_label(&self.given.hostname)),
            None => self.pod_name(),
        };
        let numbered = self.env.in_kubernetes() && self.platform != Platform::Kubetorch;
        let (set, _) = ordinal(pod).filter(|_| numbered)?;
        // The leader of a LeaderWorkerSet has one number less than its workers.
        let set = match (self.platform, self.env.get("LWS_LEADER_ADDRESS")) {
            (Platform::LeaderWorkerSet, Some(leader)) => first_label(leader),
            (Platform::PyTorchJob, _) => set.trim_end_matches("-master").trim_end_matches("-worker"),
            _ => set,
        };
        found(&format!("{namespace}{set}"), from, "the name that all its pods share, the same for each run")
    }
}
