mod classes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::checks::{CHAPTERS, Find, Rule};
use super::*;
use crate::Verdict;
use rallypoint_node::launch::Tool;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn rules() -> impl Iterator<Item = &'static &'static Rule> {
    CHAPTERS.iter().flat_map(|(_, rules)| *rules)
}

fn check_file(path: &Path) -> Vec<Check> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    check_manifests(&[(path.display().to_string(), text)], &[], &[])
}

fn example(name: &str) -> Vec<Check> {
    check_file(&Path::new(ROOT).join("tests/data/manifests").join(name))
}

#[test]
fn each_check_finds_its_mistake_and_nothing_in_the_right_file() {
    let mut wrong = Vec::new();
    for Rule { id, examples: [fails, passes], .. } in rules() {
        let has = |name: &str| example(name).iter().any(|check| check.id == *id);
        if !has(fails) || has(passes) {
            wrong.push(format!("{id}: {fails} {}, {passes} {}", has(fails), has(passes)));
        }
    }
    assert!(wrong.is_empty(), "an example does not show its check: {wrong:#?}");
}

/// The first line of each file names its mistakes; `doctor` must find exactly these. `# says:` has a text of
/// one of them, in parts with ` … ` between them.
#[test]
fn each_manifest_shows_exactly_the_mistakes_that_it_names() {
    let folder = Path::new(ROOT).join("tests/data/manifests");
    let entries = std::fs::read_dir(folder).expect("the folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let mut wrong = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("text");
        let said = text.lines().find_map(|line| line.strip_prefix("# expect: ")).expect("what to expect");
        let expected: BTreeSet<String> =
            said.split(", ").filter(|expected| *expected != "nothing").map(str::to_owned).collect();
        let checks = check_file(file);
        let bad = || checks.iter().filter(|check| check.verdict != Verdict::Pass);
        let found: BTreeSet<String> =
            bad().map(|check| format!("{} {}", check.verdict.name(), check.id)).collect();
        if found != expected {
            wrong.push(format!("{}: expected {expected:?}, found {checks:#?}", file.display()));
        }
        for says in text.lines().filter_map(|line| line.strip_prefix("# says: ")) {
            let has = |check: &Check| says.split(" … ").all(|part| check.to_string().contains(part));
            assert!(bad().any(has), "{}: nothing says {says}: {checks:#?}", file.display());
        }
        for check in bad() {
            let place = check.place.as_ref().expect("a place");
            let whole = [&place.file, &place.object, &place.field].iter().all(|part| !part.is_empty());
            assert!(whole && check.remedy.is_some(), "{check:#?}");
        }
    }
    assert!(files.len() >= 150 && wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_lists_the_checks_as_they_say_themselves() {
    let path = Path::new(ROOT).join("docs/doctor.md");
    // Another test writes other parts of it.
    let lock = std::fs::File::open(&path).expect("docs/doctor.md");
    lock.lock().expect("a lock");
    let mut page = std::fs::read_to_string(&path).expect("docs/doctor.md");
    let before = page.clone();
    for (heading, rules) in CHAPTERS {
        let heading = format!("## Checks of manifests: {heading}\n\n");
        let start = page.find(&heading).expect("the heading") + heading.len();
        let end = page[start..].find("\n\n").map_or(page.len(), |end| start + end + 1);
        let mut table = "| check | what it sees, for example |\n|---|---|\n".to_owned();
        for Rule { id, sees, .. } in *rules {
            writeln!(table, "| `{id}` | {sees} |").expect("a text");
        }
        page.replace_range(start..end, &table);
    }
    let start = page.find("Which launchers").expect("the paragraph");
    let end = page[start..].find("\n\n").map_or(page.len(), |end| start + end);
    page.replace_range(start..end, &launchers());
    if std::env::var_os("RALLYPOINT_UPDATE_DOCS").is_some() {
        return std::fs::write(path, page).expect("docs/doctor.md is written");
    }
    assert!(
        page == before,
        "RALLYPOINT_UPDATE_DOCS=1 cargo nextest run -p rallypoint-doctor writes docs/doctor.md anew"
    );
}

/// Which checks of launches do not know every launcher.
fn launchers() -> String {
    let mut known: BTreeMap<Vec<&str>, Vec<String>> = BTreeMap::new();
    for rule in rules() {
        let tools = match rule.find {
            Find::Launch(tools, _) => tools,
            Find::Torchrun(_) => &[Tool::Torchrun],
            _ => continue,
        };
        let names = tools.iter().map(|tool| match tool {
            Tool::Torchrun => "torchrun",
            Tool::Accelerate => "accelerate launch",
            Tool::DeepSpeed => "deepspeed",
            Tool::Lightning => "Lightning",
            Tool::Other => "others with flags like torchrun's",
            Tool::Program => "programs that read `MASTER_ADDR`",
        });
        let names: Vec<&str> = names.collect();
        if tools.len() < Tool::ALL.len() {
            known.entry(names).or_default().push(format!("`{}`", rule.id));
        }
    }
    let parts = known.iter().map(|(names, ids)| format!("{}: {}", names.join(", "), ids.join(", ")));
    let text =
        format!("Which launchers a check knows, if not all: {}.", parts.collect::<Vec<_>>().join("; "));
    wrapped(&text)
}

/// A paragraph in lines of at most 110 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("a line");
        if line.len() + word.len() >= 110 {
            lines.push(word.to_owned());
        } else {
            let space = if line.is_empty() { "" } else { " " };
            line.extend([space, word]);
        }
    }
    lines.join("\n")
}

fn check(text: &str) -> Vec<Check> {
    check_manifests(&[("f.yaml".into(), text.into())], &[], &[])
}

fn ids(text: &str) -> Vec<(&'static str, Verdict)> {
    check(text).iter().map(|check| (check.id, check.verdict)).collect()
}

#[test]
fn files_that_are_no_manifests_are_said_to_be_none() {
    assert_eq!(ids("a: [1"), [("yaml", Verdict::Fail)]);
    assert_eq!(ids("just text")[0], ("yaml", Verdict::Fail));
    assert_eq!(ids(""), [("pods", Verdict::Warn)]);
    assert_eq!(ids("# only a comment\n---\n---\n"), [("pods", Verdict::Warn)]);
    let skipped = check("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n");
    assert!(
        skipped[0].to_string().contains("ConfigMap/x") && skipped[0].verdict == Verdict::Pass,
        "{skipped:?}"
    );
    assert_eq!(skipped[1].verdict, Verdict::Warn, "nothing was looked at");
    assert_eq!(ids("apiVersion: v2\nname: chart\nversion: 1.0.0\n"), [("yaml", Verdict::Warn)]);
    let rule = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: r}\n\
                spec: {groups: [{summary: '{{ $labels.run }} waits'}]}\n";
    assert!(!ids(rule).iter().any(|(id, _)| *id == "template"), "{:?}", ids(rule));
    assert_eq!(check_manifests(&[], &[], &[])[0].verdict, Verdict::Warn, "an empty folder is no PASS");
}

#[test]
fn one_broken_document_hides_no_other() {
    let pod = "apiVersion: v1\nmetadata: {name: a_b}\nspec: {containers: [{name: c}]}\n";
    let text = format!("kind: Pod\n{pod}---\na: [1\n---\nkind: Pod\n{pod}");
    let found = check(&text);
    assert!(
        found.iter().any(|check| check.id == "yaml" && check.to_string().contains("document 2")),
        "{found:?}"
    );
    assert!(found.iter().any(|check| check.id == "api-rejects"), "{found:?}");
    let twice = ids(&format!("kind: Pod\nkind: Pod\n{pod}"));
    assert_eq!(twice.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ["api-rejects", "yaml"]);
}

/// The configurations of other tools in a folder are no mistakes of its manifests.
#[test]
fn files_beside_manifests_are_counted_and_no_mistakes() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let pod =
        file("p.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n");
    let found =
        check_manifests(&[pod, file("a.yaml", "lr: 1\n"), file("b.yaml", "- hosts: all\n")], &[], &[]);
    assert!(found.iter().all(|check| check.verdict == Verdict::Pass), "{found:?}");
    assert!(found.iter().any(|check| check.to_string().contains("2 documents are no")), "{found:?}");
}

#[test]
fn what_must_be_filled_in_first_is_said() {
    for text in [
        "kind: Pod\nmetadata: {name: {{ .Values.name }}}\n",
        "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{image: \"${IMAGE}\"}]}\n",
    ] {
        let found = check(text);
        assert!(
            found.iter().any(|check| check.id == "template" && check.verdict == Verdict::Warn),
            "{found:?}"
        );
        assert!(found.iter().all(|check| check.verdict != Verdict::Pass), "{found:?}");
    }
}

#[test]
fn odd_shapes_do_not_make_it_panic() {
    for text in [
        "kind: Job\nspec: 3",
        "kind: Job\nmetadata: []\nspec: {template: {spec: {containers: {a: 1}}}}",
        "kind: List\nitems: {a: b}",
        "kind: Service\nspec: {selector: [1], ports: x}",
        "kind: NetworkPolicy\nspec: {podSelector: 1, ingress: [3, {ports: 1}]}",
        "kind: Pod\nspec: {containers: [{command: torchrun, args: [1, {a: b}], env: [{name: 3}, 4]}]}",
        "kind: JobSet\nspec: {replicatedJobs: [{template: 1}]}",
        "kind: PyTorchJob\nspec: {pytorchReplicaSpecs: {Worker: 1}}",
        "kind: Job\nspec: {template: {spec: {containers: [{command: [sh, -c, 'if then $( ((']}]}}}",
        "kind: Job\n\
         spec: {template: {spec: {containers: [{command: [sh, -c, 'f() { f; }; f; eval \"f\"']}]}}}",
        "kind: RayJob\nspec: {entrypoint: '$('}",
        "kind: AppWrapper\nspec: {components: [{template: 3}]}",
        "kind: LeaderWorkerSet\n\
         spec: {leaderWorkerTemplate: {size: 0, workerTemplate: {spec: {containers: [1]}}}}",
    ] {
        check(text);
    }
}

/// A script that `srun` starts is read if it is among the files.
#[test]
fn the_scripts_of_a_script_are_read_together() {
    let batch = "#!/bin/bash\n#SBATCH -N 5\n#SBATCH --ntasks-per-node=4\nsrun --nodes=5 bash inner.sh\n";
    let inner = "torchrun --nnodes=5 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:1 t.py\n";
    let files = |names: &[(&str, &str)]| {
        let files: Vec<(String, String)> =
            names.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        check_manifests(&files, &[], &[]).iter().map(|check| check.id).collect::<Vec<_>>()
    };
    assert_eq!(files(&[("a.sbatch", batch)]), ["not-read"]);
    assert_eq!(files(&[("a.sbatch", batch), ("inner.sh", &format!("#!/bin/sh\n{inner}"))]), ["node-count"]);
    assert_eq!(files(&[("inner.sh", &format!("#!/bin/sh\n{inner}"))]), ["not-read"]);
    // Its name says that it is a script.
    assert_eq!(files(&[("a.sbatch", batch), ("inner.sh", inner)]), ["node-count"]);
    assert_eq!(files(&[("inner.sh", inner)]), ["not-read"]);
    let pod = "kind: Pod\nmetadata: {name: t}\n\
               spec: {containers: [{image: \"i:1\", command: [/app/inner.sh]}]}\n";
    assert_eq!(files(&[("t.yaml", pod), ("inner.sh", inner)])[0], "node-count");
}

/// What the flags of a program mean, its source says.
#[test]
fn a_program_takes_its_rank_from_a_flag_if_its_source_says_so() {
    let batch = "#!/bin/bash\n#SBATCH -N 3\n#SBATCH --ntasks-per-node=1\n\
                 srun python t.py --num-nodes 3 --master-addr node1\n";
    let ids = |source: &str| {
        let beside = [("t.py".to_owned(), source.to_owned())];
        let found = check_manifests(&[("a.sbatch".into(), batch.into())], &beside, &[]);
        found.iter().map(|check| check.id).collect::<Vec<_>>()
    };
    assert_eq!(ids("p.add_argument('--node-rank', default=0)\n"), ["node-rank"]);
    assert_eq!(ids("p.add_argument('--node-rank', default=os.environ['SLURM_NODEID'])\n"), ["manifests"]);
    assert_eq!(ids("p.add_argument('--num-nodes')\n"), ["manifests"]);
}

/// srun executes a script itself, and bash reads one.
#[test]
fn a_script_that_nobody_may_execute_is_started_by_a_shell_alone() {
    let of = |start: &str, inner: &str, locked: &[String]| {
        let batch = format!("#!/bin/bash\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=1\n{start}\n");
        let files = [("d/a.sbatch".to_owned(), batch), ("d/inner.sh".to_owned(), inner.to_owned())];
        let found = check_manifests(&files, &[], locked);
        found.iter().map(|check| check.id).collect::<Vec<_>>()
    };
    let ids = |start: &str, locked: &[String]| of(start, "#!/bin/sh\necho $1\n", locked);
    let locked = ["d/inner.sh".to_owned()];
    assert_eq!(of("srun ./inner.sh x", "echo $1\n", &[]), ["never-starts"], "no #!");
    assert_eq!(of("srun sh inner.sh x", "echo $1\n", &[]), ["manifests"]);
    assert_eq!(ids("srun ./inner.sh x", &locked), ["never-starts"]);
    assert_eq!(ids("mpirun -n 2 ./inner.sh x", &locked), ["never-starts"]);
    assert_eq!(ids("srun ./inner.sh x", &[]), ["manifests"]);
    assert_eq!(ids("srun bash ./inner.sh x", &locked), ["manifests"]);
    assert_eq!(ids("chmod +x inner.sh\nsrun ./inner.sh x", &locked), ["manifests"]);
}

/// The scripts of two nodes of one job, of which only one is given.
#[test]
fn two_nodes_of_one_job_choose_one_transport() {
    let script = |rank: u8, disable: u8| {
        format!(
            "docker run --net host --env NCCL_IB_DISABLE={disable} sglang python -m sglang.launch_server \
             --nnodes 2 --node-rank {rank} --dist-init-addr 10.0.0.1:50000\n"
        )
    };
    let ids = |beside: String| {
        let (own, beside) = (("a.sh".to_owned(), script(0, 0)), ("b.sh".to_owned(), beside));
        let found = check_manifests(&[own], &[beside], &[]);
        found.iter().map(|check| check.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(script(1, 1)), ["agreement", "not-read"]);
    assert_eq!(ids(script(1, 0)), ["not-read"]);
    assert_eq!(ids(script(0, 1)), ["not-read"]);
}

/// The scripts of two nodes are told the same, and a rank each.
#[test]
fn two_nodes_of_one_job_are_told_the_same() {
    let script = |rank: u8, port: u16| {
        format!(
            "#!/bin/bash\ntorchrun --nnodes=2 --nproc-per-node=8 --node-rank={rank} --master-addr=10.0.0.1 \
             --master-port={port} train.py\n"
        )
    };
    let ids = |own: &str, other: &str, beside: String| {
        let files = [(own.to_owned(), script(0, 29500)), (other.to_owned(), beside)];
        let found = check_manifests(&files, &[], &[]);
        let ids: BTreeSet<&str> = found.iter().map(|check| check.id).collect();
        let alone = check_manifests(&files[..1], &files[1..], &[]);
        assert_eq!(ids, alone.iter().map(|check| check.id).collect::<BTreeSet<_>>());
        ids.contains("agreement")
    };
    let (one, other) = ("run_node0.sh", "run_node1.sh");
    assert!(!ids(one, other, script(1, 29500)));
    assert!(ids(one, other, script(0, 29500)), "one rank");
    assert!(ids(one, other, script(1, 29501)), "two ports");
    assert!(ids("master.sh", "slave.sh", script(1, 29501)), "two ports, by their roles");
    assert!(!ids("run_a.sh", "run_b.sh", script(0, 29501)), "two jobs");
    assert!(!ids("a_node0.sh", "b_node0.sh", script(0, 29501)), "a node of two jobs");
    assert!(!ids("main.sh", "main_2.sh", script(0, 29501)), "two programs");
    assert!(!ids("run_2_node0.sh", "run_4_node0.sh", script(0, 29501)), "numbers of nodes");
    let all = [("head_1.sh", 0, 1), ("worker_1.sh", 1, 1), ("head_2.sh", 0, 2), ("worker_2.sh", 1, 2)];
    let files = all.map(|(name, rank, port)| (name.to_owned(), script(rank, port)));
    let found = check_manifests(&files, &[], &[]);
    assert!(found.iter().all(|check| check.id != "agreement"), "two whole jobs: {found:?}");
}

/// A patch has only what differs.
#[test]
fn a_patch_of_kustomize_is_no_whole_object() {
    let objects = "\
        {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: LoadBalancer}}\n---\n\
        {apiVersion: apps/v1, kind: StatefulSet, metadata: {name: b}, spec: {volumeClaimTemplates: \
        [{metadata: {name: c}, spec: {storageClassName: d}}]}}\n---\n\
        {apiVersion: batch/v1, kind: Job, metadata: {labels: {e: f}}, spec: {template: {spec: {volumes: \
        [{name: g, configMap: {defaultMode: 420}}]}}}}\n---\n\
        {apiVersion: ray.io/v1, kind: RayJob, metadata: {name: h}, spec: {shutdownAfterJobFinishes: true}}\n";
    let rejected = |file: &str, kustomization: &str| {
        let files = [(file.to_owned(), objects.to_owned())];
        let beside = [("d/kustomization.yaml".to_owned(), kustomization.to_owned())];
        check_manifests(&files, &beside, &[]).iter().filter(|check| check.id == "api-rejects").count()
    };
    assert!(rejected("d/a.yaml", "resources: [a.yaml]") > 3);
    assert_eq!(rejected("d/a.yaml", "patches: [{path: ./a.yaml}]"), 0);
    assert_eq!(rejected("./d/a.yaml", "patchesStrategicMerge: [a.yaml]"), 0);
    assert_eq!(rejected("d/patches/a.yaml", "resources: [b.yaml]"), 0);
}

/// A script may wait itself for what it starts.
#[test]
fn a_called_script_waits() {
    let batch = "#!/bin/bash\n#SBATCH --nodes=1\nbash wl.sh\n";
    let ends = |inner: &str| {
        let files = [("a.sbatch".to_owned(), batch.to_owned()), ("wl.sh".to_owned(), inner.to_owned())];
        check_manifests(&files, &[], &[]).iter().any(|check| check.id == "script-ends")
    };
    assert!(ends("torchrun --standalone --nproc_per_node=2 a.py &\n"));
    assert!(!ends("torchrun --standalone --nproc_per_node=2 a.py &\nwait\necho done\n"));
}
