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
C10D = "        - name: PET_RDZV_BACKEND\n          value: c10d\n        - name: PET_RDZV_ENDPOINT\n          value: 127.0.0.1:29500\n"
WORKER_ENV = "        - name: MASTER_PORT\n          value: \"29500\"\n"
MISTAKES = [
    # problem, overlay, text, what it becomes
    ("selector-matches-none", "indexed-job", "    app: colossalai-training\n---", "    app: colossalai-training\n    role: master\n---"),
    ("endpoint-selects-all", "indexed-job", "value: colossalai-training-0.training-master-service", "value: training-master-service"),
    ("endpoint-selects-all", "statefulset", "--rdzv_endpoint=127.0.0.1:29500", "--rdzv_endpoint=train-rdzv:29500"),
    ("no-store", "indexed-job", "value: colossalai-training-0.training-master", "value: colossalai-training-1.training-master"),
    ("name-resolves-to-none", "indexed-job", "      subdomain: training-master-service\n", ""),
    ("no-subdomain", "driver", LOCAL_ADDR, ""),
    ("not-ready-names", "indexed-job", "  publishNotReadyAddresses: true\n", ""),
    ("service-links", "statefulset", "      enableServiceLinks: false\n", ""),
    ("ignored-rdzv-conf", "indexed-job", CONF, "--rdzv_conf=is_host=0,timeout=1800,read_timeout=120"),
    ("hosts-a-store", "indexed-job", CONF, "--rdzv_conf=join_timeout=1800"),
    ("ignored-flag", "indexed-job", TRAIN, "        - --node_rank=$(JOB_COMPLETION_INDEX)\n" + TRAIN),
    ("set-by-torchrun", "indexed-job", WORKER_ENV, WORKER_ENV + "        - name: WORLD_SIZE\n          value: \"32\"\n"),
    ("old-addresses", "statefulset", "        - name: TORCH_DISABLE_SHARE_RDZV_TCP_STORE\n          value: \"1\"\n", ""),
    ("old-addresses", "driver", "        - name: TORCH_DISABLE_SHARE_RDZV_TCP_STORE\n          value: \"1\"\n", ""),
    ("unread-variable", "indexed-job", "        - name: PET_RDZV_ID\n", "        - name: RDZV_ID\n"),
    ("constant-run-id", "indexed-job", "        - name: PET_RDZV_ID\n", "        - name: RDZV_ID\n"),
    ("unset-variable", "indexed-job", CONF, CONF + "\n        - --rdzv_id=$(JOB_ID)"),
    ("guessed-setting", "indexed-job", WORKER_ENV, WORKER_ENV + "        - name: NCCL_SOCKET_IFNAME\n          value: eth0\n"),
    ("node-count", "indexed-job", "  parallelism: 4", "  parallelism: 3"),
    ("node-count", "statefulset", "  replicas: 4", "  replicas: 3"),
    ("backoff-limit", "indexed-job", "  backoffLimit: 0\n", ""),
    ("not-indexed", "indexed-job", "  completionMode: Indexed\n", ""),
    ("ordered-ready", "statefulset", "  podManagementPolicy: Parallel\n", ""),
    ("no-endpoint", "driver", C10D, ""),
    ("address-in-use", "platform-statefulset", "        - name: TORCHELASTIC_USE_AGENT_STORE\n          value: \"True\"\n", ""),
    ("invalid-name", "platform-statefulset", "        - name: SVC_NAME\n          value: mytrain-svc\n", "        - name: SVC_NAME\n          value: \"\"\n"),
    ("cluster-domain", "platform-statefulset", "-0.$SVC_NAME ", "-0.$SVC_NAME.$POD_NAMESPACE.svc.cluster.local "),
    ("rank-from-pod-name", "platform-job", "exec python train.py", "exec python train.py --rank ${POD_NAME##*-}"),
    ("sleep", "driver", "- torchrun --nnodes=4", "- sleep $((RANDOM % 30 + 30)); torchrun --nnodes=4"),
    ("image-not-pinned", "indexed-job", "open-sora:1.3.0", "open-sora:latest"),
    ("image-not-pinned", "indexed-job", "open-sora:1.3.0", "open-sora"),
    ("not-a-sidecar", "indexed-job", "        restartPolicy: Always\n", ""),
    ("every-pod-serves", "indexed-job", "        - --only-on-index=0\n", ""),
    ("no-index", "platform-statefulset", "        - name: RALLYPOINT_POD_INDEX\n", "        - name: POD_INDEX\n"),
    ("startup-probe", "indexed-job", "            path: /readyz\n", "            path: /livez\n"),
    ("grace-period", "indexed-job", "      terminationGracePeriodSeconds: 660\n", ""),
    ("loopback", "indexed-job", "        - --drain=10m\n", "        - --drain=10m\n        - --admin=127.0.0.1:29501\n"),
    ("security-context", "indexed-job", "          readOnlyRootFilesystem: true\n", ""),
    ("resources", "indexed-job", "          requests:\n            cpu: 100m\n            memory: 64Mi\n", ""),
    ("two-stores", "standalone", "  strategy:\n    type: Recreate\n", ""),
    ("journal-not-kept", "statefulset-journal", "        - mountPath: /data\n", "        - mountPath: /journal\n"),
    ("journal-not-kept", "helm-journal", "persistentVolumeClaim: {claimName: rallypoint-journal}", "emptyDir: {}"),
    ("no-relay", "indexed-job", "--rdzv_endpoint=$(MASTER_ADDR):$(MASTER_PORT)", "--rdzv_endpoint=127.0.0.1:29500"),
    ("journal-not-writable", "statefulset-journal", "        fsGroup: 65532\n", ""),
    ("no-store", "statefulset-journal", "--server=rallypoint:29501", "--server=train-llm-0.train-rdzv:29501"),
    ("port", "statefulset-journal", "--server=rallypoint:29501", "--server=rallypoint:29500"),
    ("not-a-sidecar", "statefulset-journal", "        restartPolicy: Always\n", ""),
    ("relay-name", "statefulset-journal", "        - name: POD_NAME\n          valueFrom:\n            fieldRef:\n              fieldPath: metadata.name\n        image", "        - name: NAME\n          value: x\n        image"),
    ("network-policy", "statefulset", "        rallypoint-client: \"true\"\n    spec:", "    spec:"),
    ("network-policy", "statefulset", "    - endPort: 29599\n      port: 29510\n", ""),
    ("port", "kubeflow-elastic", "value: rallypoint:29501", "value: rallypoint:29500"),
    ("node-count", "kubeflow-elastic", "--nnodes=1:4", "--nnodes=1:3"),
    ("backoff-limit", "kubeflow-elastic", "--nnodes=1:4", "--nnodes=4"),
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
