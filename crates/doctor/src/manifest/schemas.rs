//! What the published schemas of Kubernetes and of the operators say of an object. `scripts/schemas` makes
//! their table.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::objects::{Object, is_placeholder, list};
use super::pods::Pods;
use super::{Location, Manifests};
use crate::Check;
use rallypoint_node::makers::Maker;

const TABLE: &str = include_str!("schemas/table.txt");

/// The fields of each part of an object.
static PARTS: LazyLock<HashMap<&str, &str>> =
    LazyLock::new(|| TABLE.lines().filter_map(|line| line.split_once(' ')).collect());

/// A field: its name, its kind (with a `!` if it is needed), its values, and the release that has it no more.
type Field = (&'static str, &'static str, &'static str, &'static str);

fn fields(part: &str) -> impl Iterator<Item = Field> {
    PARTS.get(part).into_iter().flat_map(|line| line.split(' ')).filter_map(|word| {
        let (name, kind) = word.split_once(':')?;
        let (kind, gone) = kind.split_once('@').unwrap_or((kind, ""));
        let (kind, values) = kind.split_once('=').unwrap_or((kind, ""));
        Some((name, kind, values, gone))
    })
}

/// The way from a part down to a field of this name: straight below, or in its template.
fn below(part: &str, wanted: &str) -> Option<String> {
    let inner = |kind: &'static str| kind.trim_end_matches(['!', '[', ']']);
    let has = |kind| fields(inner(kind)).any(|(name, ..)| name == wanted);
    let mut all: Vec<Field> = fields(part).collect();
    all.sort_by_key(|(_, kind, ..)| !kind.ends_with('!'));
    let straight = all.iter().find(|(_, kind, ..)| has(kind)).map(|(name, ..)| format!(".{name}"));
    let mut templates = all.iter().filter(|(name, ..)| matches!(*name, "template" | "spec"));
    let further = |(name, kind, ..): &Field| Some(format!(".{name}{}", below(inner(kind), wanted)?));
    straight.or_else(|| templates.find_map(further))
}

/// What is rejected in all objects. Of another kind the pods are looked at.
pub(crate) fn rejected(manifests: &Manifests) -> Vec<Check> {
    let mut found = Vec::new();
    for object in manifests.objects.iter() {
        let pods = || manifests.of_object(object.number);
        let is_filled_in = |pods: &Pods| pods.containers.iter().any(|own| own.value.get("image").is_some());
        let is_lone = matches!(Maker::of_kind(&object.api, &object.kind), Maker::Unknown | Maker::TrainJob);
        // A patch for another file lacks what that has.
        let is_whole = !object.has_blanks && (is_lone || pods().any(is_filled_in));
        let mut walk = |value: &Value, part, place: Location| {
            let at = place.field.trim_end_matches('.').to_owned();
            let mut walk = Walk { place, is_whole, ..Walk::default() };
            walk.value(value, (part, ""), &at);
            found.extend(walk.found);
        };
        let others = [Maker::Unknown, Maker::Slurm, Maker::Ray];
        match (root(object), manifests.definition(object)) {
            (Some(part), _) => walk(&object.value, part, object.place("")),
            (None, Some(schema)) => {
                let mut walk =
                    Walk { place: object.place(""), is_whole: !object.has_blanks, ..Walk::default() };
                walk.defined(&object.value, schema, "");
                found.extend(walk.found);
            }
            (None, None) => pods()
                .filter(|pods| !pods.is_container && !others.contains(&pods.maker))
                .for_each(|pods| walk(&pods.spec, "PodSpec", pods.at(""))),
        }
    }
    found
}

fn root(object: &Object) -> Option<&'static str> {
    let wanted = format!("{}/{}", object.api, object.kind);
    let mut roots = TABLE.lines().filter_map(|line| line.strip_prefix("= ")?.split_once(' '));
    roots.find(|(name, _)| *name == wanted).map(|(_, part)| part)
}

/// The versions in which the published schemas have a kind.
pub(crate) fn versions(kind: &str) -> impl Iterator<Item = &'static str> {
    let roots = TABLE.lines().filter_map(|line| line.strip_prefix("= ")?.split(' ').next()?.rsplit_once('/'));
    roots.filter(move |(_, own)| *own == kind).map(|(version, _)| version)
}

/// A kind as it is spelled, if this is one of its group in other letters.
pub(crate) fn spelled(api: &str, kind: &str) -> Option<&'static str> {
    let roots = TABLE.lines().filter_map(|line| line.strip_prefix("= ")?.split(' ').next()?.rsplit_once('/'));
    let mut roots = roots.filter(|(version, _)| *version == api);
    roots.find(|(_, own)| *own != kind && own.eq_ignore_ascii_case(kind)).map(|(_, own)| own)
}

/// The way through an object.
#[derive(Default)]
struct Walk {
    found: Vec<Check>,
    /// Where a value is wrong, without the numbers of items: once is enough.
    seen: BTreeSet<String>,
    /// The parts around, and where they begin.
    way: Vec<(&'static str, String)>,
    place: Location,
    is_whole: bool,
}

impl Walk {
    fn value(&mut self, value: &Value, (kind, values): (&'static str, &str), at: &str) {
        let text = value.as_str();
        let kind = kind.trim_end_matches('!');
        let (is_list, is_map) = (kind.strip_suffix("[]"), kind.strip_suffix("{}"));
        // A command in one text has blanks, and is no list.
        let is_command = |text: &str| last(at) == "command" && !text.contains(['$', '{', '<', '%']);
        if value.is_null() || text.is_some_and(|text| is_placeholder(text) && !is_command(text)) {
            return;
        }
        let is_old_number = || text.is_some_and(|it| it.len() > 1 && it.starts_with('0') || it.contains('_'));
        let is_whole = || value.as_f64().is_some_and(|number| number.fract() == 0.0);
        let (is_right, wants, remedy) = match kind {
            "any" => return,
            // A name such as `n` is a text to some readers of YAML.
            "text" if value.is_boolean() && last(at) == "name" => return,
            "text" => (value.is_string(), "a text", format!("\"{value}\", in quotes")),
            "whole" => (is_whole() || is_old_number(), "a whole number", "it without quotes".into()),
            "number" => (value.is_number() || is_old_number(), "a number", "it without quotes".into()),
            "yes" => (value.is_boolean(), "true or false", "it without quotes".into()),
            "scalar" => (value.is_string() || value.is_number(), "a text or a number", "one value".into()),
            _ if is_list.is_some() => (value.is_array(), "a list", "- in front of each item".into()),
            _ => (value.is_object(), "a map", "names and values below it".into()),
        };
        let name = last(at);
        let is = match value {
            Value::Array(_) => "a list".into(),
            Value::Object(_) => "a map".into(),
            _ => value.to_string(),
        };
        let is_known = values.is_empty() || text.is_none_or(|text| values.split('|').any(|it| it == text));
        match (value, is_list, is_map) {
            _ if !is_right => {
                let evidence =
                    format!("`{name}` is {is}, and must be {wants}: the API server rejects the object");
                self.wrong(Check::fail(evidence, remedy), at);
            }
            (Value::Array(items), Some(kind), _) => {
                (0..)
                    .zip(items)
                    .for_each(|(n, item): (u32, _)| self.value(item, (kind, values), &format!("{at}[{n}]")));
            }
            (Value::Object(map), _, Some(kind)) => {
                map.iter().for_each(|(name, item)| self.value(item, (kind, ""), &below_map(at, name)));
            }
            (Value::Object(map), ..) => self.part(map, kind, at),
            _ if !is_known && text != Some("") => {
                let evidence = format!("`{name}` cannot be {is}: the API server rejects the object");
                self.wrong(Check::fail(evidence, values.replace('|', ", ")), at);
            }
            _ => {}
        }
    }

    fn part(&mut self, map: &Map<String, Value>, part: &'static str, at: &str) {
        self.way.push((part, at.to_owned()));
        // Other names may come from a merge of YAML, or from a tool that fills the file in.
        let is_plain = |name: &&String| name.bytes().all(|b| b.is_ascii_alphanumeric());
        let is_unknown = |name: &&String| fields(part).all(|(field, ..)| field != name.as_str());
        let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        let whose = if part.contains('.') { format!("`{}`", last(at)) } else { part.to_owned() };
        for (name, kind, values, gone) in fields(part) {
            let value = map.get(name).unwrap_or(&Value::Null);
            let place = format!("{at}.{name}");
            self.value(value, (kind, values), place.trim_start_matches('.'));
            if !gone.is_empty() && !value.is_null() {
                let release = if gone.starts_with('v') { "the operator's release" } else { "Kubernetes" };
                let evidence = format!(
                    "{release} {gone} has no `{name}` in {whose} any more, as others before it had: kubectl \
                     then rejects the object, or it has no effect"
                );
                let remedy = "what that release has instead, or take it out";
                self.found.push(Check::warn(evidence, remedy).at(self.at(&place)));
            }
        }
        let unknown: Vec<&str> = map.keys().filter(is_plain).filter(is_unknown).map(String::as_str).collect();
        if let [first, others @ ..] = unknown.as_slice()
            && PARTS.get(part).is_some_and(|line| !line.ends_with('*'))
        {
            let are = if others.is_empty() { "is no field" } else { "are no fields" };
            let names = unknown.join("`, `");
            let evidence =
                format!("`{names}` {are} of {whose}: kubectl rejects the object, or it has no effect");
            let check = Check::fail(evidence, self.right_place(first));
            self.found.push(check.at(self.at(&format!("{at}.{first}"))));
        }
        let mut missing = fields(part)
            .filter(|(name, kind, ..)| kind.ends_with('!') && map.get(*name).is_none_or(is_empty));
        if let Some((name, ..)) = missing
            .next()
            .filter(|_| self.is_whole && unknown.is_empty() && map.keys().all(|it| is_plain(&it)))
        {
            let evidence = format!("{whose} needs a `{name}`: the API server rejects the object");
            self.wrong(Check::fail(evidence, format!("{name}: with its value")), at);
        }
        self.way.pop();
    }

    /// Holds a value against the schema of a CustomResourceDefinition.
    fn defined(&mut self, value: &Value, schema: &Value, at: &str) {
        let says = |mark: &str| schema.get(mark) == Some(&Value::Bool(true));
        let is_any = says("x-kubernetes-int-or-string") || says("x-kubernetes-embedded-resource");
        if value.is_null() || is_any || value.as_str().is_some_and(is_placeholder) {
            return;
        }
        let wants = schema.get("type").and_then(Value::as_str).unwrap_or_default();
        let is_right = match wants {
            "string" => value.is_string(),
            "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            _ => true,
        };
        let among = schema.get("enum").and_then(Value::as_array);
        let place = at.trim_start_matches('.');
        if !is_right || among.is_some_and(|among| !among.contains(value)) {
            let among = among.map_or_else(|| format!("of the type {wants}"), |all| json!(all).to_string());
            let evidence = format!("`{place}` must be {among}, by its CustomResourceDefinition");
            return self.wrong(Check::fail(evidence, "a value that it allows"), place);
        }
        for (n, item) in value.as_array().into_iter().flatten().enumerate() {
            let items = schema.get("items").unwrap_or(&Value::Null);
            self.defined(item, items, &format!("{at}[{n}]"));
        }
        let Some(map) = value.as_object() else { return };
        let known = schema.get("properties").unwrap_or(&Value::Null);
        let is_closed = known.is_object()
            && !says("x-kubernetes-preserve-unknown-fields")
            && schema.get("additionalProperties").is_none();
        let is_of_all = |name: &str| at.is_empty() && matches!(name, "apiVersion" | "kind" | "metadata");
        for (name, value) in map.iter().filter(|(name, _)| !is_of_all(name)) {
            let place = format!("{at}.{name}");
            match known.get(name) {
                Some(schema) => self.defined(value, schema, &place),
                None if is_closed => {
                    let evidence = format!(
                        "`{name}` is no field that its CustomResourceDefinition has: kubectl rejects it"
                    );
                    self.wrong(Check::fail(evidence, "take it out, or the name that stands there"), &place);
                }
                None => {}
            }
        }
        let lacks = |name: &&str| {
            map.get(*name).is_none_or(Value::is_null)
                && known.get(*name).is_none_or(|it| it.get("default").is_none())
        };
        let needed = list(schema, "/required").iter().filter_map(Value::as_str).filter(lacks);
        let needed: Vec<&str> = needed.filter(|_| self.is_whole).collect();
        if !needed.is_empty() {
            let names = needed.join("`, `");
            let evidence = format!("`{names}` is missing, which its CustomResourceDefinition requires");
            self.wrong(Check::fail(evidence, format!("{}: with its value", needed[0])), place);
        }
    }

    /// Where a field belongs, or how it is spelled.
    fn right_place(&self, wanted: &str) -> String {
        let mut around = self.way.iter().rev();
        let Some((part, at)) = around.next() else { return String::new() };
        if let Some((name, ..)) = fields(part).find(|(name, ..)| name.eq_ignore_ascii_case(wanted)) {
            return format!("{name}, as it is spelled");
        }
        let mut around = around.filter(|(part, _)| fields(part).any(|(name, ..)| name == wanted));
        let place = below(part, wanted).map(|way| format!("{at}{way}"));
        match place.or_else(|| around.next().map(|(_, at)| at.clone())).filter(|place| !place.is_empty()) {
            Some(place) => format!("put it where it belongs, into `{}`", place.trim_start_matches('.')),
            None => "put it where it belongs".into(),
        }
    }

    fn wrong(&mut self, check: Check, at: &str) {
        if self.seen.insert(at.chars().filter(|c| !c.is_ascii_digit()).collect()) {
            self.found.push(check.at(self.at(at)));
        }
    }

    fn at(&self, field: &str) -> Location {
        Location { field: field.trim_start_matches('.').into(), ..self.place.clone() }
    }
}

/// The path of an entry of a map, whose name may have dots.
fn below_map(at: &str, name: &str) -> String {
    if name.contains('.') { format!("{at}['{name}']") } else { format!("{at}.{name}") }
}

/// The last name of a path, without the number of an item, or the name of an entry with dots.
fn last(at: &str) -> &str {
    let at = at.split("['").next().unwrap_or_default();
    at.rsplit('.').next().unwrap_or_default().split('[').next().unwrap_or_default()
}
