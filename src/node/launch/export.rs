//! The variables that follow from a [`LaunchEnv`], and the ways to print them.

use super::{Derived, LaunchEnv, Meeting};

/// How variables are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `export NAME='value'`, for `eval` or a file that is sourced.
    Shell,
    /// One JSON object.
    Json,
    /// `NAME=value`, for `docker run --env-file`.
    Docker,
}

/// The variables that torchrun and `env://` read, as far as they follow, each with the origin of its value.
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
    // With the plugin each round has a master of its own.
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
            // An env file has no quotes; a line end would begin another variable.
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

    #[test]
    fn every_format_survives_odd_values() {
        let odd = [("PET_RDZV_ID", "it's\n$HOME".to_owned(), String::new())];
        assert_eq!(Format::Shell.render(&odd), "export PET_RDZV_ID='it'\\''s\n$HOME'\n");
        assert_eq!(Format::Docker.render(&odd), "PET_RDZV_ID=it's $HOME\n");
        let json: serde_json::Value = serde_json::from_str(&Format::Json.render(&odd)).expect("JSON");
        assert_eq!(json["PET_RDZV_ID"], "it's\n$HOME");
    }
}
