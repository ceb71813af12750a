#!/bin/bash
# expect: FAIL unknown-flag, FAIL misread-word, FAIL endpoint, FAIL command-endpoint
# says: `--nproc-per-gpu` is no flag of torchrun
# says: torchrun takes `python` for a script
# says: the endpoint `localhost`
# says: no endpoint: each node waits alone
i=0
for host in node1 node2; do
    ssh -p 22 root@$host "cd /work && torchrun --nnodes=2 --nproc-per-gpu=8 --node-rank=$i --master-addr=node1 train.py" &
    i=$((i + 1))
done
wait
pdsh -w node1,node2 torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-id=7 --rdzv-endpoint=node1:29500 python train.py
clush -w node1,node2 'torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-id=8 --rdzv-endpoint=localhost:29500 train.py'
kubectl exec train-0 -n team -- torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-id=9 train.py
