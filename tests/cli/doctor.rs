//! `doctor` from outside: the manifests of `tests/data/manifests`, a real server, and servers that are no
//! store.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::TestServer;
use serde_json::Value;

fn doctor(args: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rallypoint"))
        .arg("doctor")
        .args(args)
        .env_clear()
        .envs(env.iter().copied())
        .output()
        .expect("the binary starts")
}

/// The checks of a call with `--json`, and its exit code.
fn checks(args: &[&str], env: &[(&str, &str)]) -> (Vec<Value>, Option<i32>) {
    read(&doctor(&[&["--json"], args].concat(), env))
}

fn read(output: &Output) -> (Vec<Value>, Option<i32>) {
    let json: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (json["checks"].as_array().expect("checks").clone(), output.status.code())
}

fn verdict<'c>(checks: &'c [Value], id: &str) -> &'c str {
    let check =
        checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no {id} in {checks:#?}"));
    check["verdict"].as_str().expect("a verdict")
}

fn evidence(checks: &[Value], id: &str) -> String {
    checks
        .iter()
        .find(|check| check["id"] == id)
        .map(|check| check["evidence"].to_string())
        .unwrap_or_default()
}

fn manifests() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/manifests");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// The ways in which a script, a pipe or a person gives manifests.
#[test]
fn manifests_come_from_stdin_from_folders_and_from_files_of_any_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = |name: &str| {
        std::fs::read_to_string(manifests().into_iter().find(|file| file.ends_with(name)).expect("there"))
            .expect("text")
    };
    std::fs::create_dir(folder.path().join("below")).expect("a folder");
    std::fs::write(folder.path().join("below/a,b.yaml"), text("bad-job-rank-constant.yaml"))
        .expect("written");
    std::fs::write(folder.path().join("notes.txt"), "no manifest").expect("written");
    std::fs::write(folder.path().join("install.sh"), b"pip install torch # \xe9").expect("written");
    let path = folder.path().to_str().expect("a path");
    let (of_folder, code) = checks(&["--manifest", path], &[]);
    assert_eq!((verdict(&of_folder, "node-rank"), code), ("FAIL", Some(1)), "{of_folder:#?}");
    assert_eq!(of_folder.len(), 1, "only the manifest is read: {of_folder:#?}");
    // What a batch system starts, and what that starts.
    let job = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=8\nsrun bash below/launch.sh\n";
    std::fs::write(folder.path().join("job.sh"), job).expect("written");
    std::fs::write(
        folder.path().join("below/launch.sh"),
        "torchrun --nnodes=2 --nproc-per-node=8 train.py\n",
    )
    .expect("written");
    assert_eq!(verdict(&checks(&["--manifest", path], &[]).0, "node-count"), "FAIL");
    // The script of a job brings its own, as it is started in a folder above it as well.
    std::fs::write(folder.path().join("below/other.sh"), job).expect("written");
    for file in ["job.sh", "below/other.sh"] {
        let (of_file, _) = checks(&["--manifest", &format!("{path}/{file}")], &[]);
        assert_eq!(verdict(&of_file, "node-count"), "FAIL", "{file}: {of_file:#?}");
    }
    // In a container, from a folder of the job's own; the job's file has any name.
    let other = tempfile::tempdir().expect("a folder");
    let job = job.replace("bash below", "apptainer exec i.sif /scratch/$SLURM_JOB_ID");
    std::fs::write(other.path().join("job"), job).expect("written");
    let launch = "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d train.py\n";
    std::fs::write(other.path().join("launch.sh"), launch).expect("written");
    let path_of_other = other.path().to_str().expect("a path");
    let in_container = || checks(&["--manifest", path_of_other], &[]).0;
    assert_eq!(verdict(&in_container(), "node-count"), "FAIL");
    // A script that somebody starts on each node is one of a job, too.
    std::fs::remove_file(other.path().join("job")).expect("removed");
    assert_eq!(verdict(&in_container(), "command-endpoint"), "WARN");
    // Where there is nothing else, any script is meant.
    let launch = "torchrun --nnodes=1 --node-rank=3 --master-addr=train-0 train.py\n";
    std::fs::write(other.path().join("launch.sh"), launch).expect("written");
    assert_eq!(verdict(&in_container(), "node-rank"), "FAIL");
    let of_file = format!("{path}/below/a,b.yaml");
    assert_eq!(verdict(&checks(&["--manifest", &of_file], &[]).0, "node-rank"), "FAIL");
    let mut child = Command::new(env!("CARGO_BIN_EXE_rallypoint"))
        .args(["doctor", "--json", "--manifest", "-"])
        .env_clear()
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let manifest = text("bad-job-rank-constant.yaml");
    child.stdin.take().expect("a pipe").write_all(manifest.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("an end");
    assert_eq!(verdict(&read(&output).0, "node-rank"), "FAIL");
}

/// `docs/doctor.md` lists every check of manifests and of a pod, and nothing else.
#[test]
fn the_document_lists_every_check() {
    fn literals(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
        {
            if entry.is_dir() {
                literals(&entry, found);
                continue;
            }
            let text = std::fs::read_to_string(&entry).expect("text");
            let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
            if entry.ends_with("tests.rs") {
                continue;
            }
            for mark in ["\n    id: ", ".called("] {
                for (at, _) in code.match_indices(mark) {
                    let rest = code[at + mark.len()..].trim_start();
                    if let Some((id, _)) = rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
                        found.insert(id.to_owned());
                    }
                }
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut in_code = BTreeSet::new();
    literals(&root.join("crates/doctor/src"), &mut in_code);
    let document = std::fs::read_to_string(root.join("docs/doctor.md")).expect("the document");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let in_document: BTreeSet<String> = rows.map(|(id, _)| id.to_owned()).collect();
    assert_eq!(in_document, in_code);
}

#[test]
fn verdicts_have_colours_only_where_they_are_wanted() {
    let verdicts = |env: &[(&str, &str)]| {
        let text = String::from_utf8(doctor(&["--manifest", "deploy/kustomize"], env).stdout).expect("text");
        assert!(text.contains("PASS"), "{text}");
        text.contains("\x1b[")
    };
    assert!(!verdicts(&[]), "a pipe is no terminal");
    assert!(verdicts(&[("CLICOLOR_FORCE", "1")]));
    assert!(!verdicts(&[("CLICOLOR_FORCE", "0"), ("NO_COLOR", "1")]));
}

#[test]
fn a_finding_names_file_object_and_field() {
    let file =
        manifests().into_iter().find(|file| file.ends_with("endpoint-selects-all.yaml")).expect("there");
    let output = doctor(&["--manifest", file.to_str().expect("a path")], &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("FAIL")).expect("a finding");
    assert!(
        line.contains(
            "endpoint-selects-all.yaml: Job/train spec.template.spec.containers[0].command: the \
             endpoint `train`"
        ),
        "{text}"
    );
    let remedy = "-> name the first pod, `--rdzv-endpoint=train-0.train:29500`, or a rallypoint server";
    assert!(text.contains(remedy), "{text}");
    assert!(text.ends_with("0 passed, 0 warned, 1 failed: endpoint\n"), "{text}");
}

#[test]
fn strictness_and_usage_decide_the_exit_code() {
    let file = manifests().into_iter().find(|file| file.ends_with("sleep.yaml")).expect("there");
    let file = file.to_str().expect("a path");
    assert_eq!(doctor(&["--manifest", file], &[]).status.code(), Some(0));
    assert_eq!(doctor(&["--strict", "--manifest", file], &[]).status.code(), Some(1));
    assert_eq!(doctor(&["--manifest", "/no/such/file"], &[]).status.code(), Some(2));
    let of_the_pod = [("RALLYPOINT_ENDPOINT", "host:1")];
    assert_eq!(doctor(&["--manifest", file], &of_the_pod).status.code(), Some(0), "offline all the same");
}

fn against(server: &TestServer, args: &[&str], env: &[(&str, &str)]) -> (Vec<Value>, Option<i32>) {
    let (store, admin) = (server.store.to_string(), server.admin.to_string());
    let base = ["--step-timeout=20s", "--admin", admin.as_str(), store.as_str()];
    checks(&[&base, args].concat(), env)
}

#[test]
fn a_healthy_pod_passes_and_looking_changes_nothing() {
    let server = TestServer::start(&[]);
    let env = [("PET_NODE_RANK", "0"), ("PET_NNODES", "2"), ("JOB_UID", "run")];
    let (checks, code) = against(&server, &[], &env);
    assert_eq!(code, Some(0), "{checks:#?}");
    for id in [
        "environment-consistent",
        "name-resolves",
        "one-address",
        "port-open",
        "store-answers",
        "admin-port",
        "server-version",
        "clock-skew",
        "stale-keys",
        "run-name",
    ] {
        assert_eq!(verdict(&checks, id), "PASS", "{id}: {}", evidence(&checks, id));
    }
    assert!(evidence(&checks, "latency").contains("one round trip takes"), "slow or not: {checks:#?}");
    let stores = crate::common::http(server.admin, "GET /api/v1/stores", "", "").json();
    assert_eq!(stores["stores"][0]["keys"], 0);
}

#[test]
fn versions_that_differ_among_announced_pods_fail() {
    let server = TestServer::start(&[]);
    for (pod, torch) in [("t-0", "2.15.0"), ("t-1", "2.4.1")] {
        let body = format!("{{\"pod\": \"{pod}\", \"nodes\": \"3\", \"torch\": \"{torch}\"}}");
        let json = "Content-Type: application/json\r\n";
        assert_eq!(
            crate::common::http(server.admin, "POST /api/v1/runs/run/announce", json, &body).status,
            202
        );
    }
    let (checks, code) = against(&server, &["--run-id=run"], &[]);
    assert_eq!((verdict(&checks, "torch-versions"), code), ("FAIL", Some(1)));
    assert!(evidence(&checks, "torch-versions").contains("2.4.1 (t-1)"), "{checks:#?}");
}

#[test]
fn the_commands_flags_and_the_environment_are_checked_together() {
    let server = TestServer::start(&[]);
    let command = ["--", "torchrun", "--rdzv-backend=c10d", "--rdzv_conf=timeout=5", "--node_rank=1", "t.py"];
    let env = [("PET_NNODES", "2"), ("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("RANK", "1")];
    let (checks, code) = against(&server, &command, &env);
    assert_eq!(verdict(&checks, "rdzv-conf-keys"), "WARN");
    assert_eq!(verdict(&checks, "flags-of-other-backend"), "WARN");
    assert_eq!(verdict(&checks, "ranks-beside-torchrun"), "WARN");
    assert_eq!(
        (verdict(&checks, "command-endpoint"), code),
        ("FAIL", Some(1)),
        "torchrun does not read RALLYPOINT_ENDPOINT"
    );
    let (checks, _) = against(&server, &["--node-rank=0"], &[("PET_NNODES", "2:1")]);
    assert_eq!(verdict(&checks, "environment-consistent"), "FAIL");
    assert_eq!(verdict(&checks, "store-answers"), "PASS", "the rest is looked at all the same");
}

/// A script's endpoint is the one that its variables give, and no other.
#[test]
fn the_endpoint_of_a_script_is_the_one_that_is_looked_at() {
    let script = "exec torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:$PORT t.py";
    let command = ["--step-timeout=1s", "--", "sh", "-c", script];
    let env = [("HEAD", "127.0.0.1"), ("PORT", "40001"), ("MASTER_ADDR", "elsewhere.invalid")];
    let (found, code) = checks(&command, &env);
    assert_eq!((verdict(&found, "port-open"), code), ("FAIL", Some(1)), "{found:#?}");
    assert!(evidence(&found, "port-open").contains("127.0.0.1:40001"), "{found:#?}");
    assert_eq!(verdict(&found, "command-endpoint"), "WARN", "a loopback address");
    assert_eq!(verdict(&found, "ephemeral-port"), "WARN");
    let (ports, _) = checks(&command, &[("HEAD", "127.0.0.1"), ("PORT", "29500"), ("MASTER_PORT", "40002")]);
    assert!(evidence(&ports, "ephemeral-port").contains("port 40002 (MASTER_PORT)"), "{ports:#?}");
    let (found, _) = checks(&command, &[("MASTER_ADDR", "elsewhere.invalid")]);
    assert_eq!(verdict(&found, "command-endpoint"), "FAIL", "HEAD and PORT are not set: {found:#?}");
    let asked = |found: &[Value]| found.iter().any(|check| check["id"] == "name-resolves");
    assert!(!asked(&found), "another host than the command's was looked at: {found:#?}");
}

/// What a script sets counts, and what a command prints is not known.
#[test]
fn a_script_is_evaluated_before_its_endpoint_is_looked_at() {
    let look = |script: &str| {
        let flags = "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:40001";
        let torchrun = format!("{script}; torchrun {flags} t.py");
        let env = [("HEAD", "elsewhere.invalid"), ("MASTER_ADDR", "elsewhere.invalid")];
        checks(&["--step-timeout=1s", "--", "sh", "-c", &torchrun], &env).0
    };
    let found = look("HEAD=127.0.0.1");
    assert!(evidence(&found, "port-open").contains("127.0.0.1:40001"), "{found:#?}");
    assert_eq!(verdict(&found, "loopback-endpoint"), "FAIL", "{found:#?}");
    let found = look("HEAD=$(cat /nowhere)");
    assert_eq!(verdict(&found, "command-endpoint"), "WARN", "{found:#?}");
    assert!(!found.iter().any(|check| check["id"] == "name-resolves"), "{found:#?}");
}

/// A server that gives every connection one answer.
fn impostor(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut heard = [0; 64];
                let _heard = stream.read(&mut heard);
                let _sent = stream.write_all(answer);
                // The connection stays open as long as the peer wants.
                while stream.read(&mut heard).is_ok_and(|n| n > 0) {}
            });
        }
    });
    addr
}

#[test]
fn what_is_no_store_is_named() {
    for (answer, word) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "HTTP server"),
        (b"-ERR unknown command\r\n", "Redis"),
        (&[0x15, 3, 1, 0, 2, 2, 70], "TLS"),
        (b"", "did not answer"),
    ] {
        let addr = impostor(answer).to_string();
        // Only a silent server makes the test wait for the time-out.
        let step = if answer.is_empty() { "--step-timeout=2s" } else { "--step-timeout=20s" };
        let (checks, code) = checks(&[step, &addr], &[]);
        assert_eq!((verdict(&checks, "store-answers"), code), ("FAIL", Some(1)), "{word}");
        assert!(
            evidence(&checks, "store-answers").contains(word),
            "{word}: {}",
            evidence(&checks, "store-answers")
        );
        assert_eq!(verdict(&checks, "port-open"), "PASS");
    }
}

#[test]
fn a_closed_port_and_an_unknown_name_fail_at_their_step() {
    let (closed, code) = checks(&["--step-timeout=1s", "127.0.0.1:1"], &[]);
    assert_eq!((verdict(&closed, "port-open"), code), ("FAIL", Some(1)));
    let (unknown, _) = checks(&["--step-timeout=2s", "no-such-name.invalid:29500"], &[]);
    assert_eq!(verdict(&unknown, "name-resolves"), "FAIL");
    assert!(!unknown.iter().any(|check| check["id"] == "port-open"), "{unknown:#?}");
}

#[test]
fn what_another_job_uses_is_found_in_the_store() {
    use rallypoint_node::client::{Client, Endpoint, Options};
    let server = TestServer::start(&["--reset-when-idle=off", "--forget-run-after=off"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let endpoint: Endpoint = server.store.to_string().parse().expect("an endpoint");
    let job = runtime.block_on(async {
        let mut job = Client::connect(&endpoint, &Options::default()).await.expect("connected");
        job.set(b"/default_pg/0//cpu//0/0", b"10.0.0.1:1").await.expect("set");
        job.sync().await.expect("there");
        job
    });
    let (found, _) = against(&server, &["--run-id=run"], &[]);
    assert_eq!(verdict(&found, "stale-keys"), "WARN", "{}", evidence(&found, "stale-keys"));
    drop(job);
    crate::common::eventually("nobody is connected", || {
        crate::common::http(server.admin, "GET /api/v1/stores", "", "").json()["stores"][0]["connections"]
            == 0
    });
    let (found, _) = against(&server, &["--run-id=run"], &[]);
    assert_eq!(verdict(&found, "stale-keys"), "PASS", "an address goes with its writer");
}

/// The findings if the name `train` means two pods, and a store is in the first one, or in both.
#[test]
fn a_name_of_every_pod_is_a_risk_and_with_several_stores_a_failure() {
    let (first, hosts) = (TestServer::start(&[]), crate::common::hosts::train_is_two_pods());
    let (endpoint, admin) = (format!("train:{}", first.store.port()), first.admin.to_string());
    let look = |own_ip: &str| {
        let args = ["doctor", "--json", "--admin", &admin, &endpoint];
        let mut doctor = crate::common::hosts::rallypoint(hosts.path(), &args);
        let (checks, code) = read(&doctor.env("POD_IP", own_ip).output().expect("unshare is installed"));
        assert!(evidence(&checks, "one-address").contains("127.0.0.1, 127.0.0.2"), "{checks:#?}");
        assert!(evidence(&checks, "store-answers").contains("answers on 127.0.0.1:"), "{checks:#?}");
        (verdict(&checks, "one-address").to_owned(), evidence(&checks, "one-address"), code)
    };
    let (verdict, said, _) = look("10.0.0.1");
    assert!(verdict == "WARN" && said.contains("if these are all pods of the job"), "{said}");
    // PyTorch hosts a store in every pod whose own address the name includes, even if another pod has one.
    let (verdict, said, code) = look("127.0.0.2");
    assert!(
        verdict == "FAIL" && said.contains("127.0.0.2 is this host: a headless Service over all pods"),
        "{said}"
    );
    assert_eq!(code, Some(1));
    let _second = crate::common::hosts::second_store(&first);
    let (verdict, said, code) = look("10.0.0.1");
    assert!(verdict == "FAIL" && said.contains("a store answers on 2 of them"), "{said}");
    assert_eq!(code, Some(1));
}

/// What code scanning reads: each result has a rule, a level, and the line of its object in the file.
#[test]
fn sarif_names_the_line_of_each_object() {
    let file = "tests/data/manifests/endpoint-selects-all.yaml";
    let output = doctor(&["--sarif", "--manifest", file], &[]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["version"], "2.1.0");
    let results = report["runs"][0]["results"].as_array().expect("results");
    let found = results.iter().find(|result| result["ruleId"] == "endpoint").expect("there");
    let place = &found["locations"][0];
    assert_eq!(
        (&found["level"], &place["physicalLocation"]["artifactLocation"]["uri"]),
        (&"error".into(), &file.into())
    );
    let line = place["physicalLocation"]["region"]["startLine"].as_u64().expect("a line");
    let object = place["logicalLocations"][0]["fullyQualifiedName"].as_str().expect("a name");
    let name = object.split(['/', ' ']).nth(1).expect("KIND/NAME FIELD");
    let text = std::fs::read_to_string(file).expect("text");
    let named = text.lines().nth(usize::try_from(line).expect("small") - 1).expect("a line");
    assert!(named.contains(&format!("name: {name}")), "{object} at {line}: {named}");

    let healthy =
        doctor(&["--sarif", "--manifest", "deploy/kustomize/overlays/indexed-job/training.yaml"], &[]);
    let report: Value = serde_json::from_slice(&healthy.stdout).expect("JSON");
    let rules: Vec<&Value> =
        report["runs"][0]["results"].as_array().expect("results").iter().map(|it| &it["level"]).collect();
    assert!(!rules.contains(&&"error".into()), "{report:#}");
    assert_eq!(doctor(&["--sarif"], &[]).status.code(), Some(2), "of this pod there are no files");
}

/// The exit codes that Kubeflow Trainer proposes for init containers.
#[test]
fn exit_codes_of_kep_3416() {
    let code = |args: &[&str]| doctor(&[&["--exit-codes=kep-3416"], args].concat(), &[]).status.code();
    let all = manifests();
    let file = |verdict: Option<&str>| {
        let says = |file: &&PathBuf| {
            let worst = serde_json::from_slice::<Value>(
                &doctor(&["--json", "--manifest", file.to_str().expect("a path")], &[]).stdout,
            );
            worst.expect("JSON")["verdict"].as_str() == verdict
        };
        all.iter().find(says).and_then(|file| file.to_str()).expect("one of this verdict")
    };
    assert_eq!(code(&["--manifest", file(Some("PASS"))]), Some(0));
    assert_eq!(code(&["--manifest", file(Some("WARN"))]), Some(10));
    assert_eq!(code(&["--manifest", file(Some("FAIL"))]), Some(30));

    let wait = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.args(["wait", "--exit-codes=kep-3416"]).args(args).env_clear();
        command.output().expect("the binary starts").status.code()
    };
    let server = TestServer::start(&[]);
    assert_eq!(wait(&[&server.store.to_string()]), Some(0));
    assert_eq!(wait(&["127.0.0.1:1", "--timeout=10ms"]), Some(20), "it may come later");
    for wrong in [&["no port"][..], &["--timeout=soon"], &["--nodes"], &["--bogus"]] {
        assert_eq!(wait(wrong), Some(30), "a wrong call stays wrong: {wrong:?}");
    }
    assert_eq!(wait(&["--help"]), Some(0));
    assert_eq!(code(&["--bogus"]), Some(30));
    assert_eq!(code(&["--sarif"]), Some(30), "of this pod there are no files");
    assert_eq!(code(&["--manifest", "there-is-no-such-file.yaml"]), Some(30));
    let env = ("RALLYPOINT_EXIT_CODES", "kep-3416");
    assert_eq!(doctor(&["--bogus"], &[env]).status.code(), Some(30));
    assert_eq!(doctor(&["--bogus", "--", "--exit-codes=kep-3416"], &[]).status.code(), Some(2));
    let mut serve = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    serve.args(["serve", "--bogus"]).env_clear().envs([env]);
    assert_eq!(serve.output().expect("the binary starts").status.code(), Some(2), "another command");
}

/// An image is made of the repository in which its manifest lies, and one job may be in several files.
#[test]
fn a_script_and_a_service_that_lie_beside_a_manifest_are_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    std::fs::create_dir_all(folder.path().join("scripts")).expect("a folder");
    write(
        "scripts/train.sh",
        "torchrun --nnodes=4 --node-rank=$JOB_COMPLETION_INDEX --master-addr=head train.py\n",
    );
    write(
        "job.yaml",
        "{apiVersion: batch/v1, kind: Job, metadata: {name: train}, spec: {completions: 2, parallelism: 2, \
         completionMode: Indexed, template: {spec: {restartPolicy: Never, containers: [{name: t, image: i, \
         command: [bash, /app/scripts/train.sh]}]}}}}",
    );
    let path = folder.path().join("job.yaml");
    let said = || {
        let shown = doctor(&["--manifest", path.to_str().expect("a path")], &[]).stdout;
        String::from_utf8(shown).expect("text")
    };
    let alone = said();
    assert!(
        alone.contains("FAIL node-count") && alone.contains("`head` (--master-addr) is no Service"),
        "{alone}"
    );
    write("head.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: head}\nspec: {selector: {a: b}}\n");
    let beside = said();
    assert!(beside.contains("FAIL node-count") && !beside.contains("is no Service"), "{beside}");
    write("job.yaml", "apiVersion: example.org/v1\nkind: Train\nmetadata: {name: t}\nspec: {nodes: 2}\n");
    std::fs::create_dir_all(folder.path().join("config/crd/bases")).expect("a folder");
    let definition = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {}, \
                      spec: {group: example.org, names: {kind: Train}, versions: [{name: v1, schema: \
                      {openAPIV3Schema: {properties: {spec: {required: [queue]}}}}}]}}";
    assert!(said().contains("it was not looked at"));
    write("config/crd/bases/example.org_trains.yaml", definition);
    let defined = said();
    assert!(defined.contains("`queue` is missing, which its CustomResourceDefinition requires"), "{defined}");
}

/// What a script hands to its launcher may lie beside it: a configuration, or the program.
#[test]
fn a_configuration_and_a_program_that_lie_beside_a_script_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    let job = |command: &str| {
        let head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n";
        write("job.sbatch", &format!("{head}{command}\n"));
        let path = folder.path().join("job.sbatch");
        let shown = doctor(&["--manifest", path.to_str().expect("a path")], &[]).stdout;
        String::from_utf8(shown).expect("text")
    };
    write("fsdp.yaml", "compute_environment: LOCAL_MACHINE\nnum_machines: 2\nnum_processes: 1\n");
    let launch = "HEAD=$(scontrol show hostnames | head -1)\nsrun accelerate launch --config_file fsdp.yaml \
                  --machine_rank $SLURM_NODEID --main_process_ip $HEAD --main_process_port 29500 train.py";
    let said = job(&launch.replace("$SLURM_NODEID", "\\$SLURM_NODEID"));
    assert!(
        said.contains("FAIL more-processes") && said.contains("num_processes of --config_file"),
        "{said}"
    );
    write("train.py", "import torch.distributed as dist\ndist.init_process_group('gloo')\n");
    assert!(job("srun python train.py").contains("FAIL no-launch"));
    write(
        "train.py",
        "import os, torch.distributed as dist\nos.environ['RANK'] = os.environ['SLURM_PROCID']\n\
                       dist.init_process_group('gloo')\n",
    );
    assert!(!job("srun python train.py").contains("FAIL"));
}
