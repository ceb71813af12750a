use super::*;

fn check(text: &str) -> Vec<Check> {
    check_manifests(&[("f.yaml".into(), text.into())])
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
}

#[test]
fn one_broken_document_hides_no_other() {
    let text = "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{image: x}]}\n---\na: [1\n---\n\
                kind: Pod\nmetadata: {name: b}\nspec: {containers: [{image: z}]}\n";
    let found = check(text);
    assert!(
        found.iter().any(|check| check.id == "yaml" && check.to_string().contains("document 2")),
        "{found:?}"
    );
    assert_eq!(found.iter().filter(|check| check.id == "image-not-pinned").count(), 2, "{found:?}");
    let twice = check("kind: Pod\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{image: x}]}\n");
    assert!(twice.iter().any(|check| check.id == "duplicate-key"), "{twice:?}");
    assert!(twice.iter().any(|check| check.id == "image-not-pinned"), "{twice:?}");
}

/// The examples of JobSet run `sleep` in busybox and bash.
#[test]
fn the_image_of_a_container_that_only_waits_may_be_any() {
    let pod = |image: &str, command: &str| {
        let text = format!(
            "kind: Pod\nmetadata: {{name: a}}\n\
             spec: {{containers: [{{image: {image}, command: {command}}}]}}\n"
        );
        check(&text).iter().any(|check| check.id == "image-not-pinned")
    };
    assert!(!pod("busybox", "[sleep, 100s]"));
    assert!(!pod("bash:latest", "[bash, -xc, 'echo hello; sleep 10; exit 1']"));
    assert!(!pod("'<CHANGE ME>'", "[python, train.py]"));
    assert!(pod("busybox", "[bash, -c, 'sleep 10; python train.py']"));
    assert!(pod("train", "[/entrypoint]"));
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
