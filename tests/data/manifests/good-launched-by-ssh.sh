#!/bin/bash
# expect: nothing
i=0
for host in node1 node2; do
    ssh -p 22 root@$host "cd /work && torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$i --master-addr=node1 train.py" &
    i=$((i + 1))
done
wait
