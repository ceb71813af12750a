//! Lists of hosts, as platforms write them.

use serde::Deserialize;

/// The hosts of a JSON list, or the words of a text.
pub(crate) fn hosts(text: &str) -> Option<Vec<String>> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text).ok().filter(|hosts: &Vec<String>| !hosts.is_empty());
    }
    let words = text.split([',', ';', ' ', '\t', '\n', '\r']).filter(|word| !word.is_empty());
    Some(words.map(str::to_owned).collect()).filter(|hosts: &Vec<String>| !hosts.is_empty())
}

/// The hosts of `HOST SLOTS HOST SLOTS …`, and whether all have the same number of slots. A host with another
/// number is often one that only runs the job's script.
pub(crate) fn slots(text: &str) -> Option<(Vec<String>, bool)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs: Option<Vec<(&str, u32)>> =
        words.chunks(2).map(|pair| Some((*pair.first()?, pair.get(1)?.parse().ok()?))).collect();
    let pairs = pairs.filter(|pairs| !pairs.is_empty())?;
    let even = pairs.iter().all(|(_, slots)| *slots == pairs[0].1);
    Some((pairs.into_iter().map(|(host, _)| host.to_owned()).collect(), even))
}

/// `CLUSTER_SPEC` and `TF_CONFIG`: all nodes, and this node's place among them.
#[derive(Debug, Deserialize)]
pub(crate) struct ClusterSpec {
    #[serde(default)]
    cluster: std::collections::BTreeMap<String, Vec<String>>,
    task: Task,
}

#[derive(Debug, Deserialize)]
struct Task {
    #[serde(rename = "type")]
    role: String,
    index: Index,
}

/// A number; some platforms write it as text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Index {
    Number(u32),
    Text(String),
}

/// The place of a node in a cluster.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its rank among the nodes that train; other nodes have none.
    pub rank: Option<u32>,
    /// How many nodes train.
    pub nodes: u32,
    /// The host of rank 0.
    pub master: String,
}

impl ClusterSpec {
    /// The groups that train, in the order of their ranks. Parameter servers and evaluators do not train.
    const TRAINING: [&'static [&'static str]; 2] =
        [&["chief", "master", "workerpool0"], &["worker", "workerpool1"]];

    pub(crate) fn parse(text: &str) -> Option<Member> {
        let spec: Self = serde_json::from_str(text).ok()?;
        let index = match spec.task.index {
            Index::Number(index) => index,
            Index::Text(text) => text.parse().ok()?,
        };
        let (mut all, mut rank) = (Vec::new(), None);
        for role in Self::TRAINING.concat() {
            let hosts = spec.cluster.get(role).map_or(&[][..], Vec::as_slice);
            if role == spec.task.role {
                hosts.get(usize::try_from(index).ok()?)?;
                rank = Some(u32::try_from(all.len()).ok()?.checked_add(index)?);
            }
            all.extend(hosts);
        }
        let master = all.first()?.rsplit_once(':').map_or(all[0].as_str(), |(host, _)| host);
        Some(Member { rank, nodes: u32::try_from(all.len()).ok()?, master: master.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_platforms_write_them() {
        let names = |list: &[&str]| Some(list.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        assert_eq!(hosts("10.0.0.1\n10.0.0.2\n"), names(&["10.0.0.1", "10.0.0.2"]));
        assert_eq!(hosts("a,b"), names(&["a", "b"]));
        assert_eq!(hosts(r#"["algo-1", "algo-2"]"#), names(&["algo-1", "algo-2"]));
        assert_eq!((hosts("[algo-1"), hosts("[]"), hosts(" ")), (None, None, None));
        assert_eq!(slots("a 8 b 8"), Some((names(&["a", "b"]).expect("names"), true)));
        assert_eq!(slots("batch 1 a 8"), Some((names(&["batch", "a"]).expect("names"), false)));
        assert_eq!((slots("a"), slots("a x"), slots("")), (None, None, None));
    }

    #[test]
    fn a_cluster_tells_who_trains() {
        let spec = |task: &str| {
            let cluster = r#"{
                "workerpool0": ["w0:2222"], "workerpool1": ["w1:2222", "w2:2222"], "workerpool2": ["ps:2222"]
            }"#;
            ClusterSpec::parse(&format!(r#"{{"cluster":{cluster},"task":{task},"environment":"cloud"}}"#))
        };
        let at = |rank| Some(Member { rank, nodes: 3, master: "w0".into() });
        assert_eq!(spec(r#"{"type":"workerpool0","index":0}"#), at(Some(0)));
        assert_eq!(spec(r#"{"type":"workerpool1","index":"1"}"#), at(Some(2)));
        assert_eq!(spec(r#"{"type":"workerpool2","index":0}"#), at(None));
        assert_eq!(spec(r#"{"type":"workerpool1","index":7}"#), None);
        assert_eq!(ClusterSpec::parse("{}"), None);
        assert_eq!(ClusterSpec::parse(r#"{"cluster":{},"task":{"type":"worker","index":0}}"#), None);
    }
}
