//! The variables that follow from a [`LaunchEnv`], and their output formats.

use super::plan::{NEW_STORE_EACH_ROUND, SAVE_BY_STORE};
use super::{Backend, Derived, Environment, LaunchEnv, Meeting, restarts_workers};

/// The output format of the variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `export NAME='value'`, for `eval` or a file that is sourced.
    Shell,
    /// One JSON object.
    Json,
    /// `NAME=value`, for `docker run --env-file`.
    Docker,
}

/// The variables of torchrun and `env://` that have a value, each with its origin.
pub fn variables(launch: &LaunchEnv) -> Vec<(&'static str, String, String)> {
    let mut all = Vec::new();
    let mut put = |name, value: String, from: &str, why: &str| {
        all.push((name, value, format!("{from}: {why}")));
    };
    if let Some(run_id) = &launch.run_id {
        put("PET_RDZV_ID", run_id.value.clone(), &run_id.from, &run_id.why);
    }
    if let Some(Derived { value: meeting, from, why }) = &launch.endpoint {
        put("PET_RDZV_ENDPOINT", meeting.to_string(), from, why);
    }
    // With the plugin, each round has its own master.
    if let Some(Derived { value: Meeting::Store(store), from, why }) = &launch.endpoint {
        let (host, port) = (store.host().to_owned(), store.port().to_string());
        put("PET_MASTER_ADDR", host.clone(), from, why);
        put("PET_MASTER_PORT", port.clone(), from, why);
        put("MASTER_ADDR", host, from, why);
        put("MASTER_PORT", port, from, why);
    }
    if let Some(nodes) = &launch.nodes {
        put("PET_NNODES", nodes.value.to_string(), &nodes.from, &nodes.why);
    }
    if let Some(processes) = &launch.nproc_per_node {
        put("PET_NPROC_PER_NODE", processes.value.to_string(), &processes.from, &processes.why);
    }
    if let Some(rank) = &launch.node_rank {
        put("PET_NODE_RANK", rank.value.to_string(), &rank.from, &rank.why);
    }
    // A world size without a rank would only mislead.
    if let (Some(rank), Some(world)) = (&launch.rank, &launch.world_size) {
        put("RANK", rank.value.to_string(), &rank.from, &rank.why);
        put("WORLD_SIZE", world.value.to_string(), &world.from, &world.why);
        if let Some(local) = &launch.local_rank {
            put("LOCAL_RANK", local.value.to_string(), &local.from, &local.why);
        }
    }
    all
}

/// More variables that torch needs if no rank runs at `MASTER_ADDR`, unless the environment has them. Each
/// has its reason.
pub fn for_torch(launch: &LaunchEnv, env: &Environment) -> Vec<(&'static str, String, String)> {
    let nodes = launch.nodes.as_ref().map(|nodes| nodes.value);
    let is_c10d = env.get("PET_RDZV_BACKEND").map(Backend::parse) == Some(Backend::C10d);
    // The command is not visible here, and it may have --max-restarts.
    let restarts = restarts_workers(None, env, nodes) || env.get("PET_MAX_RESTARTS").is_none();
    let needed = [
        (SAVE_BY_STORE, launch.endpoint.is_some(), "dcp.async_save in processes meets in the job's store"),
        (NEW_STORE_EACH_ROUND, is_c10d && restarts, "ranks that c10d starts again meet in a new store"),
    ];
    let missing =
        needed.into_iter().filter(|((name, _), is_needed, _)| *is_needed && env.get(name).is_none());
    missing.map(|((name, value), _, why)| (name, value.to_owned(), format!("rallypoint: {why}"))).collect()
}

impl Format {
    /// The variables as text.
    pub fn render(self, variables: &[(&'static str, String, String)]) -> String {
        let lines = |line: &dyn Fn(&str, &str) -> String| {
            variables.iter().map(|(name, value, _)| line(name, value)).collect::<Vec<_>>().concat()
        };
        match self {
            Self::Shell => {
                lines(&|name, value| format!("export {name}='{}'\n", value.replace('\'', "'\\''")))
            }
            // An env file has no quotes, and a line end would begin another variable.
            Self::Docker => lines(&|name, value| format!("{name}={}\n", value.replace(['\n', '\r'], " "))),
            Self::Json => {
                let object: serde_json::Map<_, _> = variables
                    .iter()
                    .map(|(name, value, _)| ((*name).to_owned(), value.clone().into()))
                    .collect();
                format!("{:#}\n", serde_json::Value::Object(object))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Given, derive};

    #[test]
    fn torch_is_told_what_it_needs_where_no_rank_is_at_the_master_address() {
        let names = |vars: &[(&str, &str)]| {
            let env: Environment = vars.iter().copied().collect();
            let launch = derive(&env, &Given::default(), None).expect("consistent");
            let needed = for_torch(&launch, &env).into_iter();
            needed.map(|(name, value, _)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let (save, new_store) = ("DCP_USE_PREFIX_STORE=1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1");
        let (master, c10d) = (("MASTER_ADDR", "rally"), ("PET_RDZV_BACKEND", "c10d"));
        assert_eq!(names(&[master]), [save]);
        assert_eq!(names(&[("RANK", "0")]), [""; 0], "nothing is known of a store");
        assert_eq!(names(&[master, ("DCP_USE_PREFIX_STORE", "0")]), [""; 0], "the user's word stays");
        assert_eq!(names(&[master, c10d]), [save, new_store]);
        assert_eq!(names(&[master, c10d, ("PET_MAX_RESTARTS", "0"), ("PET_NNODES", "2")]), [save]);
        assert_eq!(
            names(&[master, c10d, ("PET_MAX_RESTARTS", "0"), ("PET_NNODES", "1:2")]),
            [save, new_store]
        );
        let said = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0");
        assert_eq!(names(&[master, c10d, said]), [save], "the user's word stays");
        assert_eq!(names(&[master, ("PET_RDZV_BACKEND", "static"), ("PET_MAX_RESTARTS", "3")]), [save]);
    }

    #[test]
    fn every_format_survives_odd_values() {
        let odd = [("PET_RDZV_ID", "it's\n$HOME".to_owned(), String::new())];
        assert_eq!(Format::Shell.render(&odd), "export PET_RDZV_ID='it'\\''s\n$HOME'\n");
        assert_eq!(Format::Docker.render(&odd), "PET_RDZV_ID=it's $HOME\n");
        let json: serde_json::Value = serde_json::from_str(&Format::Json.render(&odd)).expect("JSON");
        assert_eq!(json["PET_RDZV_ID"], "it's\n$HOME");
    }
}
