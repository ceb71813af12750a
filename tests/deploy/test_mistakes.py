"""The mistakes of real manifests, put one at a time into good ones: checks.py finds each.

The texts are those of the rendered overlays. Without these tests, checks that never fail would look like good manifests.
"""

from __future__ import annotations

import pytest
import yaml
from checks import problems
from render import text

CONF = "--rdzv_conf=is_host=0,join_timeout=1800,read_timeout=120"
LOCAL_ADDR = "        - name: PET_LOCAL_ADDR\n          valueFrom:\n            fieldRef:\n              fieldPath: status.podIP\n"
TRAIN = "        - scripts/diffusion/train.py"
C10D = "        - name: PET_RDZV_BACKEND\n          value: c10d\n        - name: PET_RDZV_ENDPOINT\n          value: rallypoint:29500\n"
WORKER_ENV = "        - name: MASTER_PORT\n          value: \"29500\"\n"
MISTAKES = [
    # problem, overlay, text, what it becomes
    ("selector-matches-none", "s1", "    app: colossalai-training\n---", "    app: colossalai-training\n    role: master\n---"),
    ("endpoint-selects-all", "s1", "value: colossalai-training-0.training-master-service", "value: training-master-service"),
    ("endpoint-selects-all", "s3", "--rdzv_endpoint=rallypoint:29500", "--rdzv_endpoint=train-rdzv:29500"),
    ("no-store", "s1", "value: colossalai-training-0.training-master", "value: colossalai-training-1.training-master"),
    ("name-resolves-to-none", "s1", "      subdomain: training-master-service\n", ""),
    ("no-subdomain", "s4", LOCAL_ADDR, ""),
    ("not-ready-names", "s1", "  publishNotReadyAddresses: true\n", ""),
    ("service-links", "s3", "      enableServiceLinks: false\n", ""),
    ("ignored-rdzv-conf", "s1", CONF, "--rdzv_conf=is_host=0,timeout=1800,read_timeout=120"),
    ("hosts-a-store", "s1", CONF, "--rdzv_conf=join_timeout=1800"),
    ("ignored-flag", "s1", TRAIN, "        - --node_rank=$(JOB_COMPLETION_INDEX)\n" + TRAIN),
    ("set-by-torchrun", "s1", WORKER_ENV, WORKER_ENV + "        - name: WORLD_SIZE\n          value: \"32\"\n"),
    ("unread-variable", "s1", "        - name: PET_RDZV_ID\n", "        - name: RDZV_ID\n"),
    ("constant-run-id", "s1", "        - name: PET_RDZV_ID\n", "        - name: RDZV_ID\n"),
    ("unset-variable", "s1", CONF, CONF + "\n        - --rdzv_id=$(JOB_ID)"),
    ("guessed-setting", "s1", WORKER_ENV, WORKER_ENV + "        - name: NCCL_SOCKET_IFNAME\n          value: eth0\n"),
    ("node-count", "s1", "  parallelism: 4", "  parallelism: 3"),
    ("node-count", "s3", "  replicas: 4", "  replicas: 3"),
    ("backoff-limit", "s1", "  backoffLimit: 0\n", ""),
    ("not-indexed", "s1", "  completionMode: Indexed\n", ""),
    ("ordered-ready", "s3", "  podManagementPolicy: Parallel\n", ""),
    ("no-endpoint", "s4", C10D, ""),
    ("address-in-use", "s6", "        - name: TORCHELASTIC_USE_AGENT_STORE\n          value: \"True\"\n", ""),
    ("invalid-name", "s6", "        - name: SVC_NAME\n          value: mytrain-svc\n", "        - name: SVC_NAME\n          value: \"\"\n"),
    ("cluster-domain", "s6", "-0.$SVC_NAME ", "-0.$SVC_NAME.$POD_NAMESPACE.svc.cluster.local "),
    ("rank-from-pod-name", "s6-job", "exec python train.py", "exec python train.py --rank ${POD_NAME##*-}"),
    ("sleep", "s4", "- torchrun --nnodes=4", "- sleep $((RANDOM % 30 + 30)); torchrun --nnodes=4"),
    ("image-not-pinned", "s1", "open-sora:1.3.0", "open-sora:latest"),
    ("image-not-pinned", "s1", "open-sora:1.3.0", "open-sora"),
    ("not-a-sidecar", "s1", "        restartPolicy: Always\n", ""),
    ("every-pod-serves", "s1", "        - --only-on-index=0\n", ""),
    ("no-index", "s6", "        - name: RALLYPOINT_POD_INDEX\n", "        - name: POD_INDEX\n"),
    ("startup-probe", "s1", "            path: /readyz\n", "            path: /livez\n"),
    ("grace-period", "s1", "      terminationGracePeriodSeconds: 660\n", ""),
    ("loopback", "s1", "        - --drain=10m\n", "        - --drain=10m\n        - --admin=127.0.0.1:29501\n"),
    ("security-context", "s1", "          readOnlyRootFilesystem: true\n", ""),
    ("resources", "s1", "          requests:\n            cpu: 100m\n            memory: 64Mi\n", ""),
    ("two-stores", "standalone", "  strategy:\n    type: Recreate\n", ""),
    ("network-policy", "s3", "        rallypoint-client: \"true\"\n    spec:", "    spec:"),
    ("network-policy", "s3", "    - endPort: 29599\n      port: 29510\n", ""),
    ("target-port", "helm-sidecar", "port: 29500}\n", "port: 29500, targetPort: tcpstore}\n"),
    ("target-port", "standalone", "    targetPort: store\n", "    targetPort: tcp\n"),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "overlay", "good", "bad"), MISTAKES, ids=[f"{m[0]}-{m[1]}-{n}" for n, m in enumerate(MISTAKES)])
def test_mistake_is_found(problem: str, overlay: str, good: str, bad: str) -> None:
    manifest = text(overlay)
    assert good in manifest, "the overlay no longer has this text"
    documents = [document for document in yaml.safe_load_all(manifest.replace(good, bad)) if document]
    found = problems(documents)
    assert problem in {text.partition(":")[0] for text in found}, found
