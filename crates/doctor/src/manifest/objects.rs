//! Splits files into documents, and documents into objects, also inside lists and wrappers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, options};

use super::super::Check;
use super::Location;
use rallypoint_node::makers::Maker;
use rallypoint_shell::Text;

/// An object of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Object {
    /// Its place among all objects.
    pub(super) number: usize,
    pub(super) file: String,
    pub(super) api: String,
    pub(super) kind: String,
    /// Empty if the object has only `generateName`.
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) value: Value,
    /// The path of the object in the document, if something wraps it.
    pub(super) at: String,
    /// Whether the file has placeholders, such as `${IMAGE}`.
    pub(super) has_blanks: bool,
    /// Whether it is a patch of another object, as Kustomize has them.
    pub(super) is_patch: bool,
    /// Whether nobody may execute its file.
    pub(super) is_locked: bool,
    /// The template of Katib's trials, if it is such a trial.
    pub(super) trial: Value,
}

impl Object {
    pub(crate) fn place(&self, field: &str) -> Location {
        let object = format!("{}/{}", self.kind, if self.name.is_empty() { "-" } else { &self.name });
        Location { file: self.file.clone(), object, field: format!("{}{field}", self.at) }
    }

    /// Whether it is of Argo: it may have pods of its own beside objects that are written as texts.
    fn is_workflow(&self) -> bool {
        self.api.starts_with("argoproj.io/")
    }

    /// The text, if it is a script.
    pub(crate) fn script(&self) -> Option<&str> {
        self.value.get("script")?.as_str()
    }

    /// Whether it is a script whose lines end as in DOS.
    pub(crate) fn is_dos(&self) -> bool {
        self.value.get("dos") == Some(&Value::Bool(true))
    }

    /// Whether it is a script that another file starts.
    pub(crate) fn is_called(&self) -> bool {
        self.value.get("called") == Some(&Value::Bool(true))
    }

    /// Whether its kind is known to make no pods.
    pub(crate) fn has_no_pods(&self) -> bool {
        #[rustfmt::skip]
        const GROUPS: [&str; 19] = [
            "policy", "autoscaling", "kueue.x-k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io",
            "monitoring.coreos.com", "cert-manager.io", "external-secrets.io", "networking.istio.io",
            "k8s.cni.cncf.io", "keda.sh", "karpenter.sh", "resource.nvidia.com", "networking.gke.io",
            "route.openshift.io", "traefik.io", "security.istio.io", "monitoring.googleapis.com",
            "bitnami.com",
        ];
        let group = self.api.split_once('/').map_or("", |(group, _)| group);
        let of_kubernetes = group.is_empty() || group.ends_with(".k8s.io") && !group.ends_with("x-k8s.io");
        let known = Maker::of_kind(&self.api, &self.kind) != Maker::Unknown;
        !known && (of_kubernetes || GROUPS.contains(&group))
    }

    /// Whether another object may be in the same namespace, as far as the files say.
    pub(crate) fn shares_namespace(&self, other: Option<&str>) -> bool {
        match (self.namespace.as_deref(), other) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        }
    }
}

/// Reads every file.
pub(crate) fn read(files: &[(String, String)], checks: &mut Vec<Check>) -> Vec<Object> {
    let mut objects = Vec::new();
    for (file, text) in files {
        let place = |object: &str| Location { file: file.clone(), object: object.into(), field: "-".into() };
        if text.starts_with("#!") || rallypoint_shell::is_script(file) || batch_system(text).is_some() {
            let is_named = |(_, other): &(String, String)| other.contains(rallypoint_shell::basename(file));
            let is_called = files.iter().filter(|(other, _)| other != file).any(is_named);
            objects.push(script(file, text, is_called, objects.len()));
            continue;
        }
        let is_template = |document: &&str| has_braces(document) && parse(document).is_err();
        if documents(text).iter().any(is_template) {
            let check = Check::warn(
                "a Helm or Jinja template; it was not looked at",
                "render it first: `helm template . | rallypoint doctor --manifest -`",
            );
            checks.push(check.called("template").at(place("-")));
            continue;
        }
        let before = objects.len();
        for (n, document) in (1..).zip(documents(text)) {
            let name = format!("document {n}");
            match parse(document) {
                Ok((value, duplicate)) => {
                    let twice = duplicate.map(|words| {
                        let evidence = format!("{words}; the last one counts, the others have no effect");
                        Check::warn(evidence, "leave one of them").called("yaml").at(place(&name))
                    });
                    checks.extend(twice);
                    take(file, value, "", &mut objects, checks);
                }
                Err(_) if document.contains("${") || document.contains(": $") => {
                    let check = Check::warn(
                        "it is no YAML before its places such as ${NAME} are filled in; it was not looked at",
                        "fill them in first: `envsubst < FILE | rallypoint doctor --manifest -`",
                    );
                    checks.push(check.called("template").at(place(&name)));
                }
                Err(words) => {
                    let check = Check::fail(
                        format!("the document cannot be read: {words}"),
                        "correct it, and try again; the other documents were looked at",
                    );
                    checks.push(check.called("yaml").at(place(&name)));
                    if let Ok((value, _)) = parse(&without_merge(document)) {
                        take(file, value, "", &mut objects, checks);
                    }
                }
            }
        }
        // Alerts, dashboards and workflows have braces of their own.
        let matters =
            |object: &&Object| !object.is_workflow() && (object.kind == "Service" || !object.has_no_pods());
        let blanks = objects[before..].iter().filter(matters).any(|object| has_blanks(&object.value));
        for object in &mut objects[before..] {
            object.has_blanks = blanks;
        }
        if blanks {
            let check = Check::warn(
                "the file has places to be filled in, such as ${NAME} or {{ name }}; what depends on them \
                 was not looked at",
                "fill them in first: `envsubst < FILE | rallypoint doctor --manifest -`",
            );
            checks.push(check.called("template").at(place("-")));
        }
        let place_of = |object: &Object| place_in(&object.value, &is_unfilled, &|_| false).map(str::to_owned);
        if let Some(text) = objects[before..].iter().filter(matters).find_map(place_of) {
            let evidence = format!("`{text}` is to be filled in: it stands for another name");
            let check = Check::warn(evidence, "the name that is meant");
            checks.push(check.called("template").at(place("-")));
        }
    }
    objects
}

/// The documents of a stream. A line that begins with three dashes always begins a document.
fn documents(text: &str) -> Vec<&str> {
    let mut starts = vec![0];
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with("---") && line[3..].chars().next().is_none_or(char::is_whitespace) {
            starts.push(at);
        }
        at = usize::saturating_add(at, line.len());
    }
    starts.push(text.len());
    starts
        .windows(2)
        .map(|pair| &text[pair[0]..pair[1]])
        .filter(|document| !document.trim().is_empty())
        .collect()
}

/// Parses a document. Also returns the message about a duplicate key.
pub(crate) fn parse(document: &str) -> Result<(Value, Option<String>), String> {
    let first_line = |error: &serde_saphyr::Error| {
        let words = error.to_string();
        let first = words.lines().next().unwrap_or_default();
        // Without the parser's advice, which is for programmers.
        first.split(", set ").next().unwrap_or_default().to_owned()
    };
    let strict = serde_saphyr::from_multiple::<Value>(document);
    let (found, duplicate) = match strict {
        Ok(found) => (found, None),
        Err(error) => {
            let lenient = options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
            match serde_saphyr::from_multiple_with_options::<Value>(document, lenient) {
                Ok(found) => (found, Some(first_line(&error))),
                Err(_) => return Err(first_line(&error)),
            }
        }
    };
    Ok((found.into_iter().next().unwrap_or(Value::Null), duplicate))
}

/// The batch system for which a script is written: how its lines begin, and what starts programs on all nodes
/// of a job.
pub(crate) fn batch_system(text: &str) -> Option<(&'static str, &'static str)> {
    const SYSTEMS: [(&str, &str); 5] = [
        ("#SBATCH", "srun"),
        ("#PBS", "mpiexec"),
        ("#BSUB", "jsrun"),
        ("#COBALT", "mpiexec"),
        ("#$ -", "mpirun"),
    ];
    let has = |mark: &str| text.lines().any(|line| line.starts_with(mark));
    let (mark, usual) = SYSTEMS.into_iter().find(|(mark, _)| has(mark))?;
    own_lines(text).any(|line| line.starts_with(mark)).then_some((mark, usual))
}

/// The lines of a script but those of its here-documents, which may be other scripts.
fn own_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut end: Option<&str> = None;
    text.lines().filter(move |line| {
        if let Some(word) = end {
            end = end.filter(|_| line.trim() != word);
            return false;
        }
        let begin = line.split_once("<<").filter(|(before, behind)| {
            !line.trim_start().starts_with('#') && !before.contains("((") && !behind.starts_with('<')
        });
        let word = begin.map(|(_, behind)| behind.trim_start_matches(['-', ' ', '\'', '"', '\\']));
        let is_other = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        end = word.and_then(|word| word.split(is_other).next()).filter(|word| !word.is_empty());
        true
    })
}

fn has_braces(text: &str) -> bool {
    text.contains("{{") && text.contains("}}") || text.contains("{%")
}

/// A shell script. `is_called`: another file starts it. Lines that end as in DOS are read as if they ended
/// right: that they do not is told once.
fn script(file: &str, text: &str, is_called: bool, number: usize) -> Object {
    let (dos, others): (Vec<&str>, Vec<&str>) =
        text.split('\n').filter(|line| !line.is_empty()).partition(|line| line.ends_with('\r'));
    let is_dos = dos.len() > 2 && others.len() < 2;
    let text = if is_dos { Cow::Owned(text.replace("\r\n", "\n")) } else { Cow::Borrowed(text) };
    Object {
        number,
        file: file.to_owned(),
        api: "slurm".into(),
        kind: "Script".into(),
        name: rallypoint_shell::basename(file).to_owned(),
        value: serde_json::json!({ "script": text, "called": is_called, "dos": is_dos }),
        ..Object::default()
    }
}

/// A text of a value that is a place to be filled in: of a field that no container expands, or of any.
fn place_in<'v>(
    value: &'v Value,
    of_field: &dyn Fn(&str) -> bool,
    of_any: &dyn Fn(&str) -> bool,
) -> Option<&'v str> {
    #[rustfmt::skip]
    const NEVER: [&str; 12] = [
        "image", "name", "namespace", "replicas", "parallelism", "completions", "numNodes", "size",
        "nvidia.com/gpu", "vpc.amazonaws.com/efa", "minReplicas", "nprocPerNode",
    ];
    match value {
        Value::Object(map) => map.iter().find_map(|(key, value)| {
            let own = value.as_str().filter(|text| NEVER.contains(&key.as_str()) && of_field(text));
            let own = own.or_else(|| of_field(key).then_some(key.as_str()));
            own.or_else(|| place_in(value, of_field, of_any).filter(|_| key != "data"))
        }),
        Value::Array(items) => items.iter().find_map(|item| place_in(item, of_field, of_any)),
        Value::String(text) => Some(text.as_str()).filter(|text| of_any(text)),
        _ => None,
    }
}

/// Whether a field that no container expands has a `$` in it.
fn has_blanks(value: &Value) -> bool {
    let blank = |text: &str| text.contains("${") || text.starts_with('$') || is_underlined(text);
    let in_braces = |text: &str| has_braces(text) && !text.contains('\n');
    place_in(value, &blank, &in_braces).is_some()
}

/// Whether a text is surely to be filled in, which is then said: `<your-namespace>`, `{USER}`, `YOUR_NAME`,
/// `REPLACE_ME`, `xxx.xxx`. What [may be](is_placeholder) is only left unjudged.
pub(crate) fn is_unfilled(text: &str) -> bool {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_ ".contains(c));
    let in_marks = |open: char, close: char| {
        let mut behind = text.split(open).skip(1);
        let is_plain = !text.contains(['$', '\n']) && !text.contains("{{");
        is_plain && behind.any(|rest| rest.split_once(close).is_some_and(|(name, _)| is_name(name)))
    };
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let says = |word: &&str| {
        matches!(*word, "your" | "replaceme" | "changeme")
            || word.len() > 2 && word.bytes().all(|b| b == b'x')
    };
    text.ends_with("...")
        || in_marks('<', '>')
        || in_marks('{', '}')
        || words.iter().any(says)
        || words.windows(2).any(|two| matches!(two, ["replace" | "change", "me"]))
}

/// Whether a text has a place such as `__NAME__`.
fn is_underlined(text: &str) -> bool {
    let name = text.split("__").nth(1).unwrap_or_default();
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
}

/// Whether a text is the usual name or address of the pod or node itself.
pub(crate) fn is_localhost(text: &Text) -> bool {
    matches!(text.literal(), Some("localhost" | "127.0.0.1"))
}

/// Whether a text may have a place to be filled in: `${NAME}`, `<NAME>`, `{{ name }}`, `__NAME__`,
/// `YOUR_NAME`, `job_ID_`.
pub(crate) fn is_placeholder(text: &str) -> bool {
    let is_blank = |word: &str| {
        let letters = word.bytes().filter(u8::is_ascii_uppercase).count();
        let in_capitals = word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        let is_last = || {
            let last = word.strip_suffix('_').and_then(|word| word.rsplit('_').next());
            last.is_some_and(|last| last.len() > 1 && last.bytes().all(|b| b.is_ascii_uppercase()))
        };
        in_capitals && (letters > 3 || letters > 0 && word.contains('_')) || is_last()
    };
    text == "..."
        || text.contains(['$', '{', '<', '%', ' '])
        || text.split(['-', '.', '/', ':']).any(is_blank)
}

fn take(file: &str, document: Value, at: &str, objects: &mut Vec<Object>, checks: &mut Vec<Check>) {
    if document.is_null() {
        return;
    }
    let text =
        |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let namespace = Some(text("/metadata/namespace")).filter(|name| !name.is_empty() && !name.contains('$'));
    let object = Object {
        number: objects.len(),
        file: file.to_owned(),
        api: text("/apiVersion"),
        kind: text("/kind"),
        name: text("/metadata/name"),
        namespace,
        value: document,
        at: at.to_owned(),
        ..Object::default()
    };
    let is_object = ["metadata", "spec"].iter().any(|key| object.value.get(key).is_some());
    // A list may be of Ansible, or of Helm's values.
    let is_other = object.value.is_array() || object.value.is_object() && !is_object;
    if object.kind.is_empty() && is_other {
        let check = Check::warn("no Kubernetes object; it was not looked at", "leave the file out");
        checks.push(check.called("skipped").at(object.place("kind")));
        return;
    }
    if object.kind.is_empty() {
        let check =
            Check::fail("a document without a kind", "every manifest has apiVersion, kind and metadata.name");
        checks.push(check.called("yaml").at(object.place("kind")));
        return;
    }
    let mut inner = Vec::new();
    let known = Maker::of_kind(&object.api, &object.kind) != Maker::Unknown;
    if !known && !matches!(object.kind.as_str(), "ConfigMap" | "Secret" | "CustomResourceDefinition") {
        embedded(&object.value, at, &mut inner);
    }
    // An object of another kind may have pods of its own beside, say, a ConfigMap.
    let is_list = object.kind.ends_with("List") || object.kind == "Template";
    let word =
        |inner: &Value, key: &str| inner.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let makes_pods = |(_, inner): &(String, Value)| {
        Maker::of_kind(&word(inner, "apiVersion"), &word(inner, "kind")) != Maker::Unknown
    };
    if !is_list && !inner.iter().any(makes_pods) {
        inner.clear();
    }
    let mut trial = object.value.pointer("/spec/trialTemplate").cloned();
    if let Some(Value::Object(trial)) = &mut trial {
        trial.insert("apiVersion".into(), object.api.clone().into());
        let parameters = object.value.pointer("/spec/parameters").cloned();
        trial.insert("parameters".into(), parameters.unwrap_or_default());
    }
    if inner.is_empty() || object.is_workflow() {
        objects.push(object);
    }
    let before = objects.len();
    for (at, document) in inner {
        take(file, document, &at, objects, checks);
    }
    if let Some(trial) = trial {
        objects[before..].iter_mut().for_each(|object| object.trial.clone_from(&trial));
    }
}

/// The objects inside another one, such as a List, a Template, an AppWrapper, an Experiment of Katib.
fn embedded(value: &Value, at: &str, found: &mut Vec<(String, Value)>) {
    let below: Vec<(String, Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, inner)| (format!("{at}{key}"), inner.clone())).collect(),
        Value::Array(items) => {
            let at = at.trim_end_matches('.');
            items.iter().enumerate().map(|(n, inner)| (format!("{at}[{n}]"), inner.clone())).collect()
        }
        _ => Vec::new(),
    };
    for (at, inner) in below {
        // A workflow of Argo has manifests as texts.
        let parsed =
            inner.as_str().filter(|text| text.contains("kind:")).and_then(|text| Some(parse(text).ok()?.0));
        let inner = parsed.unwrap_or(inner);
        // A template of pods is no object, although some say so.
        let is_template =
            at.to_lowercase().ends_with("template") && inner.get("kind").is_some_and(|kind| kind == "Pod");
        let is_object = !is_template
            && inner.get("kind").is_some_and(Value::is_string)
            && ["spec", "metadata", "data"].iter().any(|key| inner.get(key).is_some_and(Value::is_object));
        if is_object {
            found.push((format!("{at}."), inner));
        } else {
            embedded(&inner, &format!("{at}."), found);
        }
    }
}

/// Text values of a map such as labels or a selector.
pub(crate) fn texts(value: Option<&Value>) -> BTreeMap<String, String> {
    let text = |(name, value): (&String, &Value)| Some((name.clone(), scalar(value)?));
    value.and_then(Value::as_object).into_iter().flatten().filter_map(text).collect()
}

/// A scalar as text.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A document with the first part alone of each merge that nobody has ended.
fn without_merge(document: &str) -> String {
    let mut side = 0;
    let mut kept = String::new();
    for line in document.lines() {
        side = match line.split(' ').next() {
            Some("<<<<<<<") => 1,
            Some("=======") if side == 1 => 2,
            Some(">>>>>>>") => 0,
            _ => {
                if side < 2 {
                    kept.extend([line, "\n"]);
                }
                continue;
            }
        };
    }
    kept
}

/// A number with a unit, such as `500m` or `64Gi`.
pub(crate) fn quantity(text: &str) -> Option<f64> {
    let number = text.trim_end_matches(char::is_alphabetic);
    let unit = &text[number.len()..];
    let power = ["m", "", "k", "M", "G", "T"]
        .iter()
        .position(|own| *own == unit.trim_end_matches('i').replace('K', "k"))?;
    let base: f64 = if unit.ends_with('i') { 1024.0 } else { 1000.0 };
    Some(number.parse::<f64>().ok()? * base.powi(i32::try_from(power).ok()?.saturating_sub(1)))
}
