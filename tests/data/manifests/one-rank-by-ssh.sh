#!/bin/bash
# expect: FAIL node-rank
# says: every one of 2 pods is rank 0
for host in node1 node2; do
    ssh $host torchrun --nnodes=2 --nproc-per-node=8 --node-rank=0 --master-addr=node1 train.py &
done
for host in $(cat hosts); do
    ssh $host torchrun --nnodes=2 --nproc-per-node=8 --node-rank=1 --master-addr=node1 train.py &
done
wait
