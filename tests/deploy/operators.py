"""What operators make of their objects: pods with names, labels and variables, Jobs and Services.

Only as much as the manifests of deploy/ use. Each function names the source that it was read from. The variables and labels are those of
the table in crates/node/src/makers, which was read from these sources too (test_operators.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from workload import NAMESPACE, Object, Workload, built_in, containers_of, with_metadata

Made = tuple[list[Workload], list[Object]]


def apply(documents: list[Object]) -> Made:
    """The workloads of some objects, and the Services that operators add to them."""
    workloads: list[Workload] = []
    services: list[Object] = []
    for document in documents:
        if maker := makers(documents).get((document["apiVersion"].partition("/")[0], document["kind"])):
            made = maker(document)
            workloads += made[0]
            services += made[1]
    return workloads, services


def makers(documents: list[Object]) -> dict[tuple[str, str], Callable[[Object], Made]]:
    return {
        ("batch", "Job"): lambda document: ([built_in(document)], []),
        ("apps", "StatefulSet"): lambda document: ([built_in(document)], []),
        ("apps", "Deployment"): lambda document: ([built_in(document)], []),
        ("jobset.x-k8s.io", "JobSet"): job_set,
        ("trainer.kubeflow.org", "TrainJob"): lambda document: train_job(document, documents),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): leader_worker_set,
        ("batch.volcano.sh", "Job"): volcano_job,
        ("kubeflow.org", "PyTorchJob"): pytorch_job,
        ("kubeflow.org", "MPIJob"): mpi_job,
        ("ray.io", "RayJob"): ray_job,
    }


def job_set(document: Object) -> Made:
    """kubernetes-sigs/jobset v0.12.0, pkg/controllers/jobset_controller.go."""
    name, roles = document["metadata"]["name"], document["spec"]["replicatedJobs"]
    count = sum(role.get("replicas", 1) * role["template"]["spec"]["parallelism"] for role in roles)
    workloads, above = [], 0
    for role in roles:
        for number in range(role.get("replicas", 1)):
            job = f"{name}-{role['name']}-{number}"
            own = {
                "jobset-name": name,
                "jobset-uid": f"uid-of-{name}",
                "replicatedjob-name": role["name"],
                "replicatedjob-replicas": str(role.get("replicas", 1)),
                "global-replicas": str(sum(r.get("replicas", 1) for r in roles)),
                "restart-attempt": "0",
                "job-index": str(number),
                "job-global-index": str(above),
                "job-key": f"key-of-{job}",
            }
            labels = {f"jobset.sigs.k8s.io/{key}": value for key, value in own.items()}
            template = with_metadata(role["template"]["spec"]["template"], labels, labels)
            template["spec"].setdefault("subdomain", name)
            spec = {"completionMode": "Indexed"} | role["template"]["spec"] | {"template": template}
            made = built_in({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job}, "spec": spec})
            made.document = document | {"spec": spec}
            made.count, made.role, made.kind = count, role["name"], "JobSet"
            for pod in made.pods:
                pod.index += above * spec["parallelism"]
            workloads.append(made)
            above += 1
    return workloads, [headless(name, {"jobset.sigs.k8s.io/jobset-name": name}, not_ready=True)]


def train_job(document: Object, documents: list[Object]) -> Made:
    """kubeflow/trainer v2.3.0, pkg/runtime/framework/plugins/{torch,jobset}. The runtime is one of the documents."""
    name, trainer = document["metadata"]["name"], document["spec"]["trainer"]
    wanted = document["spec"]["runtimeRef"]["name"]
    (runtime,) = (d for d in documents if d["kind"] == "ClusterTrainingRuntime" and d["metadata"]["name"] == wanted)
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    policy = runtime["spec"]["mlPolicy"]
    (role,) = (role for role in spec["replicatedJobs"] if is_trainer(role))
    job = role["template"]["spec"]
    nodes = trainer.get("numNodes", policy.get("numNodes", 1))
    job["parallelism"] = job["completions"] = nodes
    injected = [
        {"name": "PET_NNODES", "value": str(nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": str(trainer["numProcPerNode"])},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": "29500"},
    ]
    targets = {c for target in policy["torch"].get("envInjection", {}).get("targets", []) if target["jobName"] == role["name"] for c in target["containerNames"]}
    assert targets <= {c["name"] for c in containers_of(job["template"])}, "the webhook refuses this"
    for container in containers_of(job["template"]):
        if container["name"] == "node":
            given = {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
            container |= given
            container["env"] = upsert(container.get("env", []), trainer.get("env", []))
        if container["name"] in targets | {"node"}:
            container["env"] = upsert(container.get("env", []), injected)
    made, services = job_set({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": spec})
    for workload in made:
        workload.kind = "TrainJob"
    return made, services


def is_trainer(role: Object) -> bool:
    return bool(role["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer")


def upsert(env: list[Object], more: list[Object]) -> list[Object]:
    """Replaces the variables that are there, and puts the others behind them."""
    new = {entry["name"]: entry for entry in more}
    return [new.pop(entry["name"], entry) for entry in env] + list(new.values())


def leader_worker_set(document: Object) -> Made:
    """kubernetes-sigs/lws v0.10.0, pkg/webhooks/pod_webhook.go, pkg/utils/pod/pod_utils.go."""
    name, spec = document["metadata"]["name"], document["spec"]
    group_template, size = spec["leaderWorkerTemplate"], spec["leaderWorkerTemplate"]["size"]
    workloads = []
    for group in range(spec.get("replicas", 1)):
        leader = f"{name}-{group}"
        made = Workload(document, group_template["workerTemplate"], size, "LeaderWorkerSet", f"group {group}")
        for index in range(size):
            template = group_template.get("leaderTemplate", group_template["workerTemplate"]) if index == 0 else group_template["workerTemplate"]
            pod = f"{leader}-{index}" if index else leader
            own = with_metadata(
                template,
                {
                    "leaderworkerset.sigs.k8s.io/name": name,
                    "leaderworkerset.sigs.k8s.io/group-index": str(group),
                    "leaderworkerset.sigs.k8s.io/worker-index": str(index),
                    "leaderworkerset.sigs.k8s.io/group-key": f"hash-of-{leader}",
                    "leaderworkerset.sigs.k8s.io/template-revision-hash": "revision-1",
                    "statefulset.kubernetes.io/pod-name": pod,
                },
                {"leaderworkerset.sigs.k8s.io/size": str(size)},
            )
            own["spec"]["subdomain"] = name
            variables = {"LWS_LEADER_ADDRESS": f"{leader}.{name}.{NAMESPACE}", "LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": str(index)}
            for container in containers_of(own):
                container["env"] = [*literal(variables), *(e for e in container.get("env", []) if e["name"] not in variables)]
            made.add(pod, pod, own)
        workloads.append(made)
    return workloads, [headless(name, {"leaderworkerset.sigs.k8s.io/name": name}, not_ready=True)]


def volcano_job(document: Object) -> Made:
    """volcano-sh/volcano v1.15.1, pkg/controllers/job/job_controller_util.go and plugins/{svc,env,distributed-framework/pytorch}."""
    name, tasks, plugins = document["metadata"]["name"], document["spec"]["tasks"], document["spec"]["plugins"]
    hosts = {task["name"]: [f"{name}-{task['name']}-{n}.{name}" for n in range(task["replicas"])] for task in tasks}
    count = sum(len(names) for names in hosts.values())
    by_svc = {f"VC_{task.upper().replace('-', '_')}_HOSTS": ",".join(names) for task, names in hosts.items()}
    by_svc |= {f"VC_{task.upper().replace('-', '_')}_NUM": str(len(names)) for task, names in hosts.items()}
    workloads, rank = [], 0
    for task in sorted(tasks, key=lambda task: task["name"] != "master"):
        made = Workload(document, task["template"], count, "VolcanoJob", task["name"])
        for number in range(task["replicas"]):
            pod = f"{name}-{task['name']}-{number}"
            keys = {"task-index": str(number), "job-name": name, "task-spec": task["name"]}
            annotations = keys | {"job-version": "0", "job-retry-count": "0"}
            own = with_metadata(
                task["template"],
                prefixed("volcano.sh/", keys | {"job-namespace": NAMESPACE, "queue-name": document["spec"].get("queue", "default")}),
                prefixed("volcano.sh/", annotations) | {"scheduling.k8s.io/group-name": f"{name}-uid-of-{name}"},
            )
            own["spec"] |= {"hostname": pod, "subdomain": name}
            for container in containers_of(own):
                container.setdefault("env", [])
                if "svc" in plugins:
                    container["env"] += literal(by_svc)
                if "env" in plugins:
                    container["env"] += literal({"VK_TASK_INDEX": str(number), "VC_TASK_INDEX": str(number)})
            if "pytorch" in plugins:
                for container in own["spec"]["containers"]:
                    address = {"MASTER_ADDR": hosts["master"][0], "MASTER_PORT": "23456"}
                    container["env"] += literal(address | {"WORLD_SIZE": str(count), "RANK": str(rank)})
            made.add(pod, pod, own)
            made.pods[-1].index = rank
            rank += 1
        workloads.append(made)
    selector = {"volcano.sh/job-name": name, "volcano.sh/job-namespace": NAMESPACE}
    return workloads, [headless(name, selector, not_ready=False)] if "svc" in plugins else []


def pytorch_job(document: Object) -> Made:
    """kubeflow/training-operator v1.9.0, pkg/controller.v1/pytorch/{envvar,master,elastic,initcontainer}.go, common/service.go."""
    name, spec = document["metadata"]["name"], document["spec"]
    roles = spec["pytorchReplicaSpecs"]
    count = sum(role["replicas"] for role in roles.values())
    processes = spec.get("nprocPerNode", "auto")
    world = count * (int(processes) if processes.isdigit() else 1)
    workloads, services = [], []
    for role in ("Master", "Worker"):
        made = Workload(document, roles[role]["template"], count, "PyTorchJob", role)
        for number in range(roles[role]["replicas"]):
            pod, rank = f"{name}-{role.lower()}-{number}", str(number + (role == "Worker"))
            labels = {"job-name": name, "operator-name": "pytorchjob-controller", "replica-type": role.lower(), "replica-index": str(number)}
            own = with_metadata(roles[role]["template"], prefixed("training.kubeflow.org/", labels))
            address = {"MASTER_PORT": "23456", "PET_MASTER_PORT": "23456", "MASTER_ADDR": f"{name}-master-0", "PET_MASTER_ADDR": f"{name}-master-0"}
            variables = {"PYTHONUNBUFFERED": "1"} | address | {"WORLD_SIZE": str(world), "RANK": rank, "PET_NODE_RANK": rank}
            variables |= {"PET_NPROC_PER_NODE": processes, "PET_NNODES": str(count)}
            for container in own["spec"]["containers"]:
                container["env"] = container.get("env", []) + literal(variables)
            if role == "Worker":
                waits = f"err=1;for i in $(seq 100); do if nslookup {name}-master-0; then err=0 && break; fi;echo waiting for master; sleep 2; done; exit $err"
                waiter = {"name": "init-pytorch", "image": "alpine:3.10", "command": ["sh", "-c", waits], "env": []}
                own["spec"]["initContainers"] = [*own["spec"].get("initContainers", []), waiter]
            made.add(pod, None, own)
            made.pods[-1].index = int(rank)
            services.append(headless(pod, prefixed("training.kubeflow.org/", labels), not_ready=False))
        workloads.append(made)
    return workloads, services


def mpi_job(document: Object) -> Made:
    """kubeflow/mpi-operator v0.8.0, pkg/controller/mpi_job_controller.go. (The Secret with the keys of ssh is left out.)"""
    name, spec = document["metadata"]["name"], document["spec"]
    roles = spec["mpiReplicaSpecs"]
    workers = roles["Worker"]["replicas"]
    workloads = []
    for role, replicas in (("Worker", workers), ("Launcher", 1)):
        made = Workload(document, roles[role]["template"], workers, "MPIJob", role)
        for number in range(replicas):
            pod = f"{name}-worker-{number}" if role == "Worker" else f"{name}-launcher"
            labels = {"job-name": name, "operator-name": "mpi-operator", "job-role": role.lower()}
            labels |= {"replica-index": str(number)} if role == "Worker" else {}
            # A Job makes the launcher's pod.
            by_job = {} if role == "Worker" else {"batch.kubernetes.io/controller-uid": "uid-of-job", "batch.kubernetes.io/job-name": pod}
            own = with_metadata(roles[role]["template"], prefixed("training.kubeflow.org/", labels) | by_job)
            own["spec"] |= {"hostname": pod, "subdomain": name}
            (container,) = own["spec"]["containers"]
            variables = {"K_MPI_JOB_ROLE": role.lower()}
            if role == "Worker":
                if not container.keys() & {"command", "args"}:
                    container["command"] = ["/usr/sbin/sshd", "-De"]
            else:
                variables |= {
                    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
                    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
                    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
                    "OMPI_MCA_orte_set_default_slots": str(spec.get("slotsPerWorker", 1)),
                    "NVIDIA_VISIBLE_DEVICES": "",
                    "NVIDIA_DRIVER_CAPABILITIES": "",
                }
            container["env"] = container.get("env", []) + literal(variables)
            made.add(pod if role == "Worker" else f"{pod}-zq8hj", pod, own)
        workloads.append(made)
    selector = {"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-name": name}
    return workloads, [headless(name, selector, not_ready=False)]


def ray_job(document: Object) -> Made:
    """ray-project/kuberay v1.7.0, ray-operator/controllers/ray/common/{pod,service}.go; without the pod that submits the entrypoint, and without probes."""
    job, cluster = document["metadata"]["name"], document["spec"]["rayClusterSpec"]
    name = f"{job}-x7k2p"
    head_service = f"{name}-head-svc"
    fqdn = f"{head_service}.{NAMESPACE}.svc.cluster.local"
    groups = [("head", "headgroup", 1, cluster["headGroupSpec"])]
    groups += [("worker", group["groupName"], group["replicas"], group) for group in cluster["workerGroupSpecs"]]
    count = sum(replicas for _, _, replicas, _ in groups)
    workloads = []
    for node, group, replicas, spec in groups:
        made = Workload(document, spec["template"], count, "RayJob", group)
        for number in range(replicas):
            keys = {"cluster": name, "node-type": node, "group": group, "is-ray-node": "yes", "identifier": f"{name}-{node}"}
            keys |= {"originated-from-cr-name": job, "originated-from-crd": "RayJob"}
            common = {"app.kubernetes.io/name": "kuberay", "app.kubernetes.io/created-by": "kuberay-operator"}
            own = with_metadata(spec["template"], prefixed("ray.io/", keys) | common)
            ray = own["spec"]["containers"][0]
            given = dict(ray)
            defaults = {"dashboard-host": "0.0.0.0"} if node == "head" else {}
            flags = "".join(f" --{key}={value} " for key, value in (defaults | spec.get("rayStartParams", {})).items())
            start = f"ray start --head {flags} --block" if node == "head" else f"ray start {flags} --address={fqdn}:6379 --block"
            ray |= {"command": ["/bin/bash", "-c", "--"], "args": [f"ulimit -n 65536; {start}"]}
            variables = {} if node == "head" else {"FQ_RAY_IP": fqdn, "RAY_IP": head_service}
            variables |= {"RAY_CLUSTER_NAME": name, "RAY_CLUSTER_NAMESPACE": NAMESPACE, "RAY_NODE_TYPE_NAME": group}
            variables |= {"KUBERAY_GEN_RAY_START_CMD": start, "RAY_PORT": "6379", "RAY_USAGE_STATS_KUBERAY_IN_USE": "1"}
            variables |= {"RAY_ADDRESS": "127.0.0.1:6379" if node == "head" else f"{fqdn}:6379"}
            ray["env"] = ray.get("env", []) + literal(variables)
            if node == "worker":
                waits = f"until ray health-check --address {fqdn}:6379; do sleep 5; done"
                waiter = {"name": "wait-gcs-ready", "image": given["image"], "command": ["/bin/bash", "-c", "--"], "args": [waits]}
                own["spec"].setdefault("initContainers", []).append(waiter | {"env": list(given.get("env", []))})
            for container in own["spec"].get("initContainers", []):
                container["env"] = container.get("env", []) + literal({"FQ_RAY_IP": fqdn, "RAY_IP": head_service})
            made.add(f"{name}-{group}-{number}x2lq" if node == "worker" else f"{name}-head", None, own)
            made.pods[-1].index = number + (node == "worker")
        workloads.append(made)
    ports = [{"name": "gcs-server", "port": 6379}, {"name": "dashboard", "port": 8265}]
    selector = prefixed("ray.io/", {"cluster": name, "identifier": f"{name}-head", "node-type": "head"})
    service = headless(head_service, selector, not_ready=False)
    service["spec"]["ports"] = ports
    return workloads, [service]


def literal(variables: dict[str, str]) -> list[Object]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def prefixed(prefix: str, values: dict[str, str]) -> dict[str, str]:
    return {prefix + key: value for key, value in values.items()}


def headless(name: str, selector: dict[str, str], *, not_ready: bool) -> Object:
    spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": not_ready, "ports": []}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
