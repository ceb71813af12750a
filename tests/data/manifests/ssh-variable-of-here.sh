#!/bin/bash
# expect: FAIL unset-variable
# says: made of $rank
rank=0
for host in node0 node1; do
    ssh $host 'torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$rank --master-addr=node0 train.py' &
    rank=$((rank + 1))
done
wait
