#!/bin/bash
# expect: FAIL ssh-waits
i=0
for node in node-0 node-1; do
  ssh "$node" "cd /work && nohup torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$i --master-addr=node-0 train.py > log 2>&1 &"
  i=$((i + 1))
done
