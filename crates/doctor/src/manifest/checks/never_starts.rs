//! A pod that waits for what never comes to it does not start, and the others wait for it.

use super::prelude::*;
use crate::manifest::beside::is_at;
use crate::manifest::images::{self, Image};
use crate::manifest::scripts::started;

pub(super) const RULE: Rule = Rule {
    id: "never-starts",
    sees: "FAIL: an image whose name is none, `python:3.13` for `ray start`, or `pytorch/pytorch:1.9.0` \
           for `torchrun`; `memory: 512m` in limits; a key that the ConfigMap has not; `claimName: \
           $(NAME)`; `srun ./x.py` without `#!`. WARN: `python /app/x.py` in `pytorch/pytorch` without \
           volumes, or of a ConfigMap mounted elsewhere; a claim that is `ReadWriteOnce`, of several pods; \
           a group of Ray without `replicas` and autoscaling, or two of one name; `srun ./x.sh` without \
           mode +x; `virtualenv $SLURM_TMPDIR/env` without `srun`",
    examples: ["never-starts.yaml", "good-claim.yaml"],
    find: Find::Files(|manifests| {
        let of_pods = manifests.pods.iter().filter(|pods| !pods.are_tasks()).flat_map(|pods| {
            let of_containers = pods.all().flat_map(|own| {
                let key = key(manifests, pods, own);
                let found = [
                    (image(pods, own).or_else(|| program(own)), "image"),
                    (memory(own), "resources"),
                    (key, "env"),
                    (mounted(manifests, pods, own).or_else(|| missing(manifests, pods, own)), "command"),
                ];
                found.into_iter().filter_map(|(check, field)| Some(check?.at(pods.at(&own.at(field)))))
            });
            let of_pods =
                [claim(manifests, pods), name(manifests, pods), item(manifests, pods)].into_iter().flatten();
            of_containers.chain(of_pods.map(|check| check.at(pods.at("volumes")))).collect::<Vec<_>>()
        });
        let of_tasks = manifests.containers().filter_map(|(pods, own)| {
            let check = without_shebang(manifests, own).or_else(|| locked(manifests, own));
            Some(check.or_else(|| on_first_node(pods, own))?.at(pods.at(&own.at("command"))))
        });
        of_pods.chain(of_tasks).chain(manifests.objects.iter().filter_map(no_workers)).collect()
    }),
};

/// A script that srun or mpirun executes, and that nobody may.
fn locked(manifests: &Manifests, container: &Container) -> Option<Check> {
    let is_mended =
        container.script.iter().any(|it| it.words.first().and_then(Text::literal) == Some("chmod"));
    let words = container.script.iter().filter(|_| !is_mended).map(Command::written);
    let name = words.filter_map(|words| started(&words).map(str::to_owned)).find(|name| {
        let path = name.trim_start_matches("./");
        let is_it = |it: &Object| it.is_locked && is_at(&it.file, path);
        !path.starts_with(['/', '$']) && manifests.objects.iter().any(is_it)
    })?;
    let evidence = format!("`{name}` is started without a shell, and nobody may execute its file here");
    // A copy may have lost the mode.
    Some(Check::warn(evidence, format!("chmod +x {name}")))
}

/// An environment of Python in a folder that each node has for itself.
fn on_first_node(pods: &Pods, container: &Container) -> Option<Check> {
    let several = pods.step.by.is_some() && pods.step.size.nodes > Some(1);
    let makes = |words: &Vec<String>| {
        let is_made = words.iter().any(|word| matches!(basename(word), "virtualenv" | "venv"));
        is_made && words.last().is_some_and(|word| word.starts_with("$SLURM_TMPDIR"))
    };
    let words = container.script.iter().filter(|_| several).map(Command::written).find(makes)?;
    let evidence =
        format!("`{}` makes it on the first node only: the others have no such folder", words.join(" "));
    Some(Check::warn(evidence, "srun --ntasks-per-node=1 in front of a script that makes it"))
}

/// A script that srun executes itself, and that names nobody who reads it.
fn without_shebang(manifests: &Manifests, container: &Container) -> Option<Check> {
    let text = |name: &str| {
        let is_it = |it: &&Object| is_at(&it.file, name.trim_start_matches("./"));
        let script = manifests.objects.iter().find(is_it).and_then(Object::script);
        script.or_else(|| manifests.beside.program(name)).map(|text| text.starts_with("#!"))
    };
    let name = container.script.iter().find_map(|command| {
        let words = command.written();
        let name = started(&words)?;
        let is_path = name.contains('.') && !name.starts_with(['/', '$', '~']);
        let is_srun = words.iter().any(|word| basename(word) == "srun");
        (is_path && is_srun && text(name) == Some(false)).then(|| name.to_owned())
    })?;
    let evidence = format!("`{name}` has no `#!` in its first line: srun cannot execute it");
    Some(Check::fail(evidence, format!("bash or python in front of {name}, or a first line with `#!`")))
}

/// A group of Ray's workers that begins with none, and that nobody makes larger.
fn no_workers(object: &Object) -> Option<Check> {
    let below = ["/spec", "/spec/rayClusterSpec", "/spec/rayClusterConfig"];
    let (at, cluster) = below.iter().find_map(|at| {
        let cluster = object.value.pointer(at).filter(|it| it.get("workerGroupSpecs").is_some())?;
        Some((at.trim_start_matches('/').replace('/', "."), cluster))
    })?;
    let number = |group: &Value, name: &str| group.get(name).map_or(Some(0), Value::as_u64);
    let is_empty = |group: &&Value| {
        let least = [number(group, "replicas"), number(group, "minReplicas")];
        least == [Some(0), Some(0)] && number(group, "maxReplicas") > Some(0)
    };
    let is_scaled = cluster.get("enableInTreeAutoscaling").is_some_and(|it| *it != Value::Bool(false));
    let groups = list(cluster, "/workerGroupSpecs");
    let names: Vec<&str> = groups.iter().filter_map(|group| text(group, "/groupName")).collect();
    if let Some(twice) =
        names.iter().enumerate().find_map(|(n, name)| names[..n].contains(name).then_some(name))
    {
        let evidence =
            format!("two groups are called `{twice}`: KubeRay counts the pods of both as those of one");
        return Some(
            Check::warn(evidence, "another name").at(object.place(&format!("{at}.workerGroupSpecs"))),
        );
    }
    let group = groups.iter().find(is_empty).filter(|_| !is_scaled && object.api.starts_with("ray.io/"))?;
    let name = group.get("groupName").and_then(Value::as_str).unwrap_or("workers");
    let evidence = format!("the group `{name}` begins with no worker, and without autoscaling gets none");
    let remedy = "enableInTreeAutoscaling: true, or its replicas";
    Some(Check::warn(evidence, remedy).at(object.place(&format!("{at}.workerGroupSpecs"))))
}

fn text<'v>(value: &'v Value, at: &str) -> Option<&'v str> {
    value.pointer(at)?.as_str().filter(|text| !text.is_empty() && !is_placeholder(text))
}

fn image(pods: &Pods, container: &Container) -> Option<Check> {
    let image = container.value.get("image")?.as_str().filter(|image| !image.trim().is_empty())?;
    if image.contains(['$', '{', '%']) || images::is_name(image) {
        return None;
    }
    let evidence = format!("`{image}` is no name of an image: the pod stays in InvalidImageName");
    let is_open = image.contains('<') || is_placeholder(image) && !image.contains(' ');
    // `template` says it once.
    if is_open && pods.is_open || is_unfilled(image) {
        return None;
    }
    let tell = if is_open { Check::warn } else { Check::fail };
    Some(tell(evidence, "HOST/PATH:TAG, each part once, the path in small letters".to_owned()))
}

/// What the image certainly lacks, and nothing here brings.
fn program(container: &Container) -> Option<Check> {
    const BRING: [&str; 8] = ["install", "apk ", "conda", "curl", "wget", "source ", "PATH", " . "];
    const WRITE: [&str; 5] = ["git", "cp ", "cat ", ">", "cd "];
    let name = text(&container.value, "/image")?;
    let image = Image::of(name);
    let has = |words: &[&str]| container.texts().any(|text| words.iter().any(|it| text.contains(it)));
    let mounts: Vec<&str> = list(&container.value, "/volumeMounts")
        .iter()
        .filter_map(|it| it.get("mountPath")?.as_str())
        .collect();
    let is_brought =
        has(&BRING) || container.own.iter().any(|name| name == "PATH") || !container.unread.is_empty();
    let first = container.commands.iter().find(|command| !Container::is_small(command))?;
    let program = first.words.first()?.literal().filter(|_| !is_brought)?;
    if image.lacks(program) && mounts.iter().all(|path| *path == "/dev/shm") {
        let evidence = format!("the image `{name}` has no `{program}`: the container cannot start");
        return Some(Check::fail(evidence, "an image with it"));
    }
    let starts = Grammar::is_program(program) || basename(program).starts_with("python");
    let file = first.words.iter().skip(1).filter_map(Text::literal).find(|word| is_python_file(word))?;
    let is_own = starts && image.is_bare() && file.starts_with('/');
    let mut others = ["/opt/", "/usr/", "/workspace/"].into_iter().chain(mounts);
    let is_known = others.any(|path| file.starts_with(path));
    let evidence = format!("the image `{name}` has no `{file}`, and nothing is mounted there");
    (is_own && !is_known && !has(&WRITE)).then(|| Check::warn(evidence, "an image with it, or a volume"))
}

/// A file of a ConfigMap that a command looks for elsewhere.
fn mounted(manifests: &Manifests, pods: &Pods, container: &Container) -> Option<Check> {
    const WORKING: [&str; 9] = ["work", "app", "home", "root", "code", "src", "project", "train", "repo"];
    let is_moved = container.value.get("workingDir").is_some()
        || container
            .commands
            .iter()
            .any(|it| matches!(it.words.first().and_then(Text::literal), Some("cd" | "pushd")));
    let name_of = |command: &Command| {
        let [program, file, ..] = command.words.as_slice() else { return None };
        let program = basename(program.literal()?);
        let is_read = program.starts_with("python") || rallypoint_shell::is_shell(program);
        file.literal().filter(|file| is_read && file.contains('.') && !file.contains('/')).map(str::to_owned)
    };
    let mut mounts = list(&container.value, "/volumeMounts").iter().filter_map(|mount| {
        let path = text(mount, "/mountPath").filter(|_| mount.get("subPath").is_none())?;
        let is_mounted = |volume: &&Value| volume.get("name") == mount.get("name");
        let volume = list(&pods.spec, "/volumes").iter().find(is_mounted)?;
        Some((path, config_map(manifests, pods, text(volume, "/configMap/name")?)?))
    });
    let (name, path) = mounts.find_map(|(path, map)| {
        let has = |name: &String| map.value["data"].get(name).is_some();
        let name = container.commands.iter().filter_map(name_of).find(has)?;
        (path.len() > 1 && !WORKING.iter().any(|it| path.contains(it))).then_some((name, path))
    })?;
    let evidence = format!("`{name}` is in {path}, and looked for in the image's own working folder");
    (!is_moved).then(|| Check::warn(evidence, format!("{path}/{name}, or workingDir: {path}")))
}

/// Without a unit it counts bytes, and with `m` thousandths of them.
fn memory(container: &Container) -> Option<Check> {
    let limits = texts(container.value.pointer("/resources/limits"));
    let wanted = limits.get("memory").filter(|wanted| !is_placeholder(wanted))?;
    let bytes = quantity(wanted).filter(|bytes| (0.0..1e5).contains(bytes) && *bytes > 0.0)?;
    let evidence =
        format!("`memory: {wanted}` is a limit of {} bytes: no container starts in it", bytes.ceil());
    Some(Check::fail(evidence, "a number with Gi or Mi"))
}

fn key(manifests: &Manifests, pods: &Pods, container: &Container) -> Option<Check> {
    let missing = |entry: &Value| {
        let from =
            entry.pointer("/valueFrom/configMapKeyRef").filter(|from| from.get("optional").is_none())?;
        let (map, key) = (text(from, "/name")?, text(from, "/key")?);
        let map = config_map(manifests, pods, map)?;
        (!has_key(map, key)).then(|| (map.name.clone(), key.to_owned()))
    };
    let (map, key) = list(&container.value, "/env").iter().find_map(missing)?;
    let evidence =
        format!("the ConfigMap `{map}` has no `{key}`: the pod stays in CreateContainerConfigError");
    Some(Check::fail(evidence, format!("{key} in its data, or the key that stands there")))
}

/// A name with a variable, which Kubernetes fills in only in commands, arguments and env.
fn name(manifests: &Manifests, pods: &Pods) -> Option<Check> {
    const NAMES: [&str; 3] = ["/persistentVolumeClaim/claimName", "/configMap/name", "/secret/secretName"];
    let of_volume = |volume: &Value| {
        let mut names = NAMES.iter().filter_map(|at| volume.pointer(at)?.as_str());
        names.find(|name| name.contains("$(") && !name.contains(['.', ' '])).map(str::to_owned)
    };
    // Kustomize has variables of this form, for any field.
    let is_plain = manifests.of_kind("Kustomization").next().is_none();
    let name = list(&pods.spec, "/volumes").iter().find_map(of_volume).filter(|_| is_plain)?;
    let evidence = format!("`{name}` stays as it is written: the pods wait for a volume of this very name");
    Some(Check::fail(evidence, "the name itself"))
}

/// The ConfigMap of a name, if it is in these files, once and whole.
fn config_map<'m>(manifests: &'m Manifests, pods: &Pods, name: &str) -> Option<&'m Object> {
    let is_it = |it: &&Object| it.name == name && it.shares_namespace(pods.namespace.as_deref());
    let mut all = manifests.of_kind("ConfigMap").filter(is_it);
    all.next().filter(|map| all.next().is_none() && !map.is_patch && !map.has_blanks)
}

fn has_key(map: &Object, key: &str) -> bool {
    ["data", "binaryData"].iter().any(|data| map.value.get(data).is_some_and(|data| data.get(key).is_some()))
}

/// A script in the folder of a ConfigMap that has none of that name. Nothing can write there.
fn missing(manifests: &Manifests, pods: &Pods, container: &Container) -> Option<Check> {
    let is_end = |c: char| c.is_whitespace() || matches!(c, ';' | '&' | '|' | ')' | '"' | '\'' | '`');
    let is_mount = |word: &&str| {
        list(&container.value, "/volumeMounts").iter().any(|it| text(it, "/mountPath") == Some(*word))
    };
    let words = || container.texts().flat_map(|text| text.split(is_end)).filter(|word| !is_mount(word));
    let mut mounts = list(&container.value, "/volumeMounts").iter().filter(|it| it.get("subPath").is_none());
    let (path, map) = mounts.find_map(|mount| {
        let at = text(mount, "/mountPath")?;
        let is_mounted = |volume: &&Value| volume.get("name") == mount.get("name");
        let volume = list(&pods.spec, "/volumes").iter().find(is_mounted)?;
        let is_whole = list(volume, "/configMap/items").is_empty();
        let map = config_map(manifests, pods, text(volume, "/configMap/name")?).filter(|_| is_whole)?;
        let name = |word: &str| {
            let name = word.strip_prefix(at.trim_end_matches('/'))?.strip_prefix('/')?;
            let is_script = rallypoint_shell::is_script(name) || is_python_file(name);
            (is_script && !name.contains(['/', '$', '*'])).then(|| name.to_owned())
        };
        let path = words().find(|word| name(word).is_some_and(|name| !has_key(map, &name)))?;
        Some((path.to_owned(), map))
    })?;
    let evidence = format!("nothing is at `{path}`: the ConfigMap `{}` has no such key", map.name);
    Some(Check::fail(evidence, "the name as it stands in its data"))
}

/// A key that no ConfigMap and no Secret can have.
fn item(manifests: &Manifests, pods: &Pods) -> Option<Check> {
    let lacks = |volume: &Value| {
        let needed = volume.get("configMap").filter(|it| it.get("optional").is_none())?;
        let map = config_map(manifests, pods, text(volume, "/configMap/name")?)?;
        let mut keys = list(needed, "/items").iter().filter_map(|item| text(item, "/key"));
        Some((map.name.clone(), keys.find(|key| !has_key(map, key))?.to_owned()))
    };
    if let Some((map, key)) = list(&pods.spec, "/volumes").iter().find_map(lacks) {
        let evidence = format!("the ConfigMap `{map}` has no `{key}`: the pods wait for it for ever");
        return Some(Check::fail(evidence, format!("{key} in its data, or a key that it has")));
    }
    let of_volume = |volume: &Value| {
        let maps = ["/configMap", "/secret"].iter().filter_map(|at| volume.pointer(at));
        let needed = maps.filter(|map| map.get("optional") != Some(&Value::Bool(true)));
        let mut keys = needed.flat_map(|map| list(map, "/items")).filter_map(|item| text(item, "/key"));
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        keys.find(|key| !key.chars().all(allowed) && !key.starts_with('@') && !is_placeholder(key))
            .map(str::to_owned)
    };
    let key = list(&pods.spec, "/volumes").iter().find_map(of_volume)?;
    let evidence =
        format!("no ConfigMap and no Secret can have a key `{key}`: the pods wait for it for ever");
    Some(Check::fail(evidence, "letters, digits, `-`, `_` and `.`; `path` may have a `/`"))
}

/// Pods on other nodes than the first cannot mount such a volume.
fn claim(manifests: &Manifests, pods: &Pods) -> Option<Check> {
    fn claims(pods: &Pods) -> impl Iterator<Item = &str> {
        list(&pods.spec, "/volumes").iter().filter_map(|it| text(it, "/persistentVolumeClaim/claimName"))
    }
    // One pod of a job may have it for itself.
    let mounts = |name: &str| -> u64 {
        let all = manifests.of_object(pods.object).filter(|own| claims(own).any(|other| other == name));
        all.filter_map(|own| own.count).sum()
    };
    let several = |name: &str| pods.train() && mounts(name) > 1;
    let mut claims = claims(pods);
    let is_once = |name: &str| {
        let is_it = |it: &&Object| it.name == name && it.shares_namespace(pods.namespace.as_deref());
        let claim = manifests.of_kind("PersistentVolumeClaim").find(is_it);
        // A folder of its node is mounted everywhere.
        let is_folder = |volume: &Object| volume.value.pointer("/spec/hostPath").is_some();
        claim.is_some_and(|it| it.value["spec"]["accessModes"] == serde_json::json!(["ReadWriteOnce"]))
            && !manifests.of_kind("PersistentVolume").any(is_folder)
    };
    let name = claims.find(|name| is_once(name) && several(name))?;
    let evidence =
        format!("the claim `{name}` is ReadWriteOnce: pods on other nodes than the first cannot mount it");
    Some(Check::warn(evidence, "accessModes: [ReadWriteMany] and a storage class that has it"))
}
