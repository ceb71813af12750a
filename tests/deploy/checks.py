"""What must hold for the manifests of deploy/, as functions that return the problems they find.

The names in front of the problems are those of the mistakes that users' manifests really have. test_mistakes.py puts each one
into a good manifest and sees it found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cluster import Cluster
from workload import VARIABLE, Call, Object, Pod, Workload, is_rallypoint, matches, relays, serves

STORE, ADMIN, RUN_STORES = 29500, 29501, (29510, 29599)
TORCH_EXIT_BARRIER_SECONDS = 300
RDZV_CONF_OF_C10D = {
    "join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt",
    "cas_backoff_max_seconds", "is_host", "read_timeout", "store_type",
}  # fmt: skip
SET_BY_TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"}
NODE_COUNTS = {"NNODES", "POD_NUMS", "PET_NNODES"}
JOBS = ("Job", "JobSet", "TrainJob")
GUESSES = {"NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}


def problems(documents: list[Object]) -> list[str]:
    """Everything that is wrong with the rendered objects."""
    cluster = Cluster(documents)
    found = [*services(cluster), *policies(cluster)]
    for workload in cluster.workloads:
        of_this = [*pods(workload), *containers(workload), *launches(cluster, workload)]
        found += [f"{problem} ({workload})" for problem in of_this]
    return found


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from strings(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def seconds(text: str) -> int:
    units = {"s": 1, "m": 60, "h": 3600}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([smh])", text))


def services(cluster: Cluster) -> Iterator[str]:
    for service in (document for document in cluster.given if document["kind"] == "Service"):
        name, spec = service["metadata"]["name"], service["spec"]
        selected = cluster.selected(service)
        if not selected:
            yield f"selector-matches-none: Service {name} selects no pod"
        for port in spec["ports"]:
            target = port.get("targetPort", port["port"])
            # Not every Kubernetes finds the ports of sidecars by their names.
            names = [{p["name"] for c in pod.spec["containers"] for p in c.get("ports", [])} for pod in selected]
            if isinstance(target, str) and not all(target in ports for ports in names):
                yield f"target-port: Service {name} wants the port {target}, which its pods do not name"
        if spec.get("clusterIP") == "None" and spec.get("publishNotReadyAddresses") is not True:
            yield f"not-ready-names: headless Service {name} hides pods that are not Ready yet"


def has_no_store_port(container: Object) -> bool:
    return serves(container) and "--listen=none" in container["args"]


def policies(cluster: Cluster) -> Iterator[str]:
    servers = [pod for pod in cluster.pods if pod.workload.kind == "Deployment" and any(map(serves, pod.workload.containers))]
    for budget in cluster.of_kind("PodDisruptionBudget"):
        if not any(matches(budget["spec"]["selector"]["matchLabels"], pod.labels) for pod in servers):
            yield f"selector-matches-none: PodDisruptionBudget {budget['metadata']['name']}"
    clients = [pod for pod in cluster.pods if pod not in servers]
    is_closed = any(has_no_store_port(container) for pod in servers for container in pod.workload.containers)
    used = [(ADMIN, ADMIN)] if is_closed else [(STORE, STORE), (ADMIN, ADMIN), RUN_STORES]
    for policy in cluster.of_kind("NetworkPolicy"):
        if not any(matches(policy["spec"]["podSelector"]["matchLabels"], pod.labels) for pod in servers):
            yield f"selector-matches-none: NetworkPolicy {policy['metadata']['name']}"
        for pod in clients:
            ports = [
                port
                for rule in policy["spec"]["ingress"]
                if any(matches(peer.get("podSelector", {}).get("matchLabels", {}), pod.labels) for peer in rule["from"])
                for port in rule["ports"]
            ]
            for first, last in used:
                if not any(p["port"] <= first and last <= p.get("endPort", p["port"]) for p in ports):
                    yield f"network-policy: {pod.workload} may not connect to ports {first}-{last}"
                    break


def pods(workload: Workload) -> Iterator[str]:
    """Checks of a workload's spec and its pod template as a whole."""
    spec, pod = workload.document["spec"], workload.template["spec"]
    labels = workload.template["metadata"]["labels"]
    has_server = any(map(serves, workload.containers))
    if "selector" in spec and not matches(spec["selector"]["matchLabels"], labels):
        yield "selector-matches-none: the selector does not match the pod template"
    if pod.get("enableServiceLinks") is not False:
        yield "service-links: enableServiceLinks is not false"
    if pod.get("hostNetwork"):
        yield "host-network: the ports of rallypoint would be the machine's"
    if workload.kind in JOBS:
        if spec.get("completions", 1) != spec.get("parallelism", 1):
            yield f"node-count: {spec.get('completions')} completions, parallelism {spec.get('parallelism')}"
        if spec.get("backoffLimit") != 0 and not is_elastic(workload):
            yield "backoff-limit: a pod that is tried again alone waits for a job that is over"
        if has_server and not workload.indexed:
            yield "not-indexed: a Job's pods have no index without completionMode Indexed"
    if workload.kind == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel":
        yield "ordered-ready: pod 1 is started when pod 0 is Ready, which waits for pod 1"
    alone = (spec["replicas"], spec.get("strategy")) == (1, {"type": "Recreate"}) if workload.kind == "Deployment" else True
    if has_server and not alone and not any(map(is_at_etcd, workload.containers)):
        yield "two-stores: a store in memory needs replicas 1 and strategy Recreate"
    for text in strings(workload.document):
        if "cluster.local" in text:
            yield f"cluster-domain: cluster.local is written out in {text!r}"
        if re.search(r"\bsleep +[\d$]", text):
            yield f"sleep: a fixed or random sleep as synchronization in {text!r}"
        if workload.kind in JOBS and re.search(r"\$\{(POD_NAME|HOSTNAME)##", text):
            yield f"rank-from-pod-name: a Job's pod name ends in random characters: {text!r}"


def is_elastic(workload: Workload) -> bool:
    """Whether a pod that is tried again alone may join the others."""
    return any(re.fullmatch(r"--nnodes=\d+:\d+", word) for c in workload.containers for word in c.get("command", []))


def containers(workload: Workload) -> Iterator[str]:
    """Checks of single containers, and of where rallypoint's stand."""
    pod = workload.template["spec"]
    for container in workload.pods[0].containers:
        where = f"container {container['name']}"
        if ":" not in container["image"].rpartition("/")[2] or container["image"].endswith(":latest"):
            yield f"image-not-pinned: {container['image']}"
        names = [entry["name"] for entry in container.get("env", [])]
        if len(names) != len(set(names)):
            yield f"duplicate-variable: {where} sets one twice"
        known: set[str] = set()
        for entry in container.get("env", []):
            if entry["name"].startswith(("RALLYPOINT_PORT", "RALLYPOINT_SERVICE_")):
                yield f"service-links: {entry['name']} is a name that Kubernetes injects"
            if entry["name"] in NODE_COUNTS and entry["value"] != str(workload.count):
                yield f"node-count: {entry['name']} is {entry['value']}, but there are {workload.count} pods"
            for text in [entry.get("value", "")]:
                yield from (f"unset-variable: {where} uses $({n})" for n in VARIABLE.findall(text) if n not in known)
            known.add(entry["name"])
        for text in container.get("command", []) + container.get("args", []):
            yield from (f"unset-variable: {where} uses $({n})" for n in VARIABLE.findall(text) if n not in known)
        yield from (f"guessed-setting: {name}" for name in names if name in GUESSES)
        if is_rallypoint(container):
            yield from (f"{problem} in {where}" for problem in rallypoint_container(pod, container))
    for container in pod.get("initContainers", []):
        if serves(container):
            yield from sidecar(workload, container)
        if relays(container):
            yield from relay(workload, container)


def rallypoint_container(pod: Object, container: Object) -> Iterator[str]:
    inherited = pod.get("securityContext", {})
    security = inherited | container.get("securityContext", {})
    wanted = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for key, value in wanted.items():
        if security.get(key) != value:
            yield f"security-context: {key} is {security.get(key)}"
    resources = container.get("resources", {})
    if not {"cpu", "memory"} <= resources.get("requests", {}).keys() or "memory" not in resources.get("limits", {}):
        yield "resources: no requests, or no memory limit"
    if not serves(container):
        return
    arguments = container["args"]
    if any(a.startswith(("--admin=127.", "--admin=localhost", "--listen=127.")) for a in arguments):
        yield "loopback: the kubelet and the ranks dial the pod's address"
    drain = next((seconds(a.removeprefix("--drain=")) for a in arguments if a.startswith("--drain=")), 0)
    if drain == 0 or pod.get("terminationGracePeriodSeconds", 30) <= drain:
        yield f"grace-period: {pod.get('terminationGracePeriodSeconds', 30)} s is not longer than --drain ({drain} s)"
    if not is_at_etcd(container):
        yield from journal(pod, container)
    probe = container.get("startupProbe", {}).get("httpGet", {})
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    if probe.get("path") != ("/livez" if is_at_etcd(container) else "/readyz") or ports.get(probe.get("port")) != ADMIN:
        yield "startup-probe: what comes after the store must not start before it"
    wanted_ports = {ADMIN} if has_no_store_port(container) else {STORE, ADMIN}
    if not wanted_ports <= set(ports.values()):
        yield "ports: those of store and admin are not named"


def is_at_etcd(container: Object) -> bool:
    """Whether several pods may have this server: of those at one etcd one leads, and the others wait without being Ready."""
    return any(a.startswith("--journal=etcd://") for a in container.get("args", []))


def journal(pod: Object, container: Object) -> Iterator[str]:
    folder = next((a.removeprefix("--journal=") for a in container["args"] if a.startswith("--journal=")), None)
    if folder is None:
        return
    mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    if "persistentVolumeClaim" not in volumes.get(mounts.get(folder, ""), {}):
        yield f"journal-not-kept: {folder} is gone with the pod"
    if pod.get("securityContext", {}).get("fsGroup") != 65532:
        yield f"journal-not-writable: the program's user may not write to {folder}"


def relay(workload: Workload, container: Object) -> Iterator[str]:
    if container.get("restartPolicy") != "Always":
        yield "not-a-sidecar: an init container that never ends holds the pod for ever"
    if "exec" not in container.get("startupProbe", {}):
        yield "startup-probe: what comes after the relay must not start before it, and the kubelet does not reach its loopback"
    if not any(entry["name"] == "POD_NAME" for entry in container.get("env", [])):
        yield "relay-name: without POD_NAME the server cannot tell the relays of pods apart"


def sidecar(workload: Workload, container: Object) -> Iterator[str]:
    if container.get("restartPolicy") != "Always":
        yield "not-a-sidecar: an init container that never ends holds the pod for ever"
    if workload.template["spec"]["initContainers"][0] is not container:
        yield "sidecar-order: the store has to be first, because the others wait for it"
    if "--only-on-index=0" not in container["args"]:
        yield "every-pod-serves: without --only-on-index each pod has a store of its own"
    if workload.template["spec"].get("terminationGracePeriodSeconds", 30) <= TORCH_EXIT_BARRIER_SECONDS:
        yield "grace-period: shorter than torch's exit barrier"
    if workload.kind == "StatefulSet" and not any(e["name"] == "RALLYPOINT_POD_INDEX" for e in container.get("env", [])):
        yield "no-index: a StatefulSet's index comes from its label"


def launches(cluster: Cluster, workload: Workload) -> Iterator[str]:
    """Checks of what each pod ends up running."""
    for pod in workload.pods:
        beside_store = any(serves(c) for c in workload.template["spec"].get("initContainers", []))
        for container in pod.containers:
            for call in pod.calls(container):
                program = call.argv[0]
                arguments = call.argv[call.argv.index("--") + 1 :] if "--" in call.argv else call.argv
                if program == "torchrun":
                    yield from torchrun(cluster, pod, call, beside_store)
                elif program == "rallypoint":
                    yield from rallypoint(cluster, pod, call)
                if "torchrun" in arguments:
                    # What an operator sets beside torchrun nobody can change; torchrun replaces it.
                    own = {e["name"] for c in workload.containers if c["name"] == container["name"] for e in c.get("env", [])}
                    for name in SET_BY_TORCHRUN & own:
                        yield f"set-by-torchrun: {name} is set beside torchrun"
                    if "RDZV_ID" in call.environment:
                        yield "unread-variable: torchrun reads PET_RDZV_ID, not RDZV_ID"
                    nodes = Call(arguments, call.environment).option("nnodes")
                    # `run` gives torchrun the number of nodes that the operator says.
                    most = nodes and nodes.rpartition(":")[2]
                    if most != str(workload.count) and not (nodes is None and program == "rallypoint"):
                        yield f"node-count: --nnodes is {nodes}, but there are {workload.count} pods"


def torchrun(cluster: Cluster, pod: Pod, call: Call, beside_store: bool) -> Iterator[str]:
    endpoint, master = call.option("rdzv_endpoint"), call.option("master_addr")
    if call.option("rdzv_backend") is None:
        if master is None:
            yield "no-endpoint: without one each node waits alone for itself"
            return
        port = call.option("master_port")
        yield from leads_to_one_store(cluster, f"{master}:{port}", pod=pod)
        if call.option("node_rank") != str(pod.index):
            yield f"node-rank: {call.option('node_rank')} in pod {pod.index}"
        clients_only = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": master, "MASTER_PORT": port}
        if beside_store and not clients_only.items() <= call.environment.items():
            yield "address-in-use: rank 0 would host the store where the sidecar has the port"
        return
    if endpoint is None:
        yield "no-endpoint: without one each node waits alone for itself"
        return
    run_id = call.option("rdzv_id")
    metadata = pod.labels | pod.template["metadata"].get("annotations", {})
    if not any(value in (run_id or "") for key, value in metadata.items() if "uid" in key or "hash" in key):
        yield f"constant-run-id: {run_id}"
    if call.option("rdzv_backend") == "rallypoint":
        # The server tells the nodes where their workers meet.
        yield from leads_to_one_store(cluster, endpoint, ADMIN)
        return
    yield from leads_to_one_store(cluster, endpoint, pod=pod)
    if pod.workload.kind != "TrainJob" and any(call.option(name) is not None for name in ("master_addr", "master_port", "node_rank")):
        yield "ignored-flag: c10d ignores master_addr, master_port and node_rank"
    conf = dict(pair.partition("=")[::2] for pair in (call.option("rdzv_conf") or "").split(",") if pair)
    for key in conf.keys() - RDZV_CONF_OF_C10D:
        yield f"ignored-rdzv-conf: c10d ignores {key}"
    if conf.get("is_host") != "0":
        yield "hosts-a-store: without is_host=0 a node that finds its own address behind the name hosts a store"
    if call.environment.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1":
        yield "old-addresses: with --max-restarts, ranks that are started again wait for ever"
    has_name = cluster.resolve(f"{pod.hostname}.{pod.subdomain}")[0] == [pod]
    if not has_name and call.option("local_addr") != pod.address:
        yield "no-subdomain: other pods cannot resolve this pod's name, which torchrun gives to the workers"


def rallypoint(cluster: Cluster, pod: Pod, call: Call) -> Iterator[str]:
    arguments = call.argv[1:]
    endpoint = call.environment.get("RALLYPOINT_ENDPOINT")
    if arguments[0] == "wait":
        endpoint = arguments[1]
    if arguments[0] == "relay":
        server = next(a.removeprefix("--server=") for a in arguments if a.startswith("--server="))
        yield from leads_to_one_store(cluster, server, ADMIN)
    if arguments[0] in ("wait", "run") and endpoint:
        yield from leads_to_one_store(cluster, endpoint, pod=pod)
    if arguments[0] == "wait" and f"--nodes={pod.workload.count}" not in arguments:
        yield f"node-count: {' '.join(arguments)}, but there are {pod.workload.count} pods"
    if arguments[0] == "serve" and "--only-on-index=0" in arguments:
        index = call.environment.get("RALLYPOINT_POD_INDEX") or call.environment.get("JOB_COMPLETION_INDEX")
        if index != str(pod.index):
            yield f"no-index: the sidecar of pod {pod.index} is told {index!r}"
    admin = call.environment.get("RALLYPOINT_ADMIN")
    if admin and arguments[0] != "serve":
        yield from leads_to_one_store(cluster, admin, ADMIN)


def leads_to_one_store(cluster: Cluster, endpoint: str, port: int = STORE, pod: Pod | None = None) -> Iterator[str]:
    """The name has to lead to the one pod where the store is, on the right port; on loopback to the relay of the same `pod`."""
    host, _, given = endpoint.rpartition(":")
    if host == "127.0.0.1" and pod is not None:
        if not any(map(relays, pod.workload.containers)):
            yield f"no-relay: nobody brings a store to {endpoint}"
        elif given != str(port):
            yield f"port: {endpoint} is not port {port}"
        return
    targets, service = cluster.resolve(host)
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", host):
        yield f"invalid-name: {host!r}"
    elif given != str(port):
        yield f"port: {endpoint} is not port {port}"
    elif not targets:
        yield f"name-resolves-to-none: {host}"
    elif len(targets) > 1 and not any(is_at_etcd(c) for c in targets[0].workload.containers):
        yield f"endpoint-selects-all: {host} leads to {len(targets)} pods"
    elif not any(serves(c) for c in targets[0].workload.containers):
        yield f"no-store: nothing serves at {endpoint}"
    elif targets[0].index != 0:
        yield f"no-store: {endpoint} is pod {targets[0].index}, but pod 0 serves"
    elif service is not None and port not in [p["port"] for p in service["spec"]["ports"]]:
        yield f"port: Service {host} has no port {port}"
