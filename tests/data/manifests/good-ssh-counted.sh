#!/bin/bash
# expect: nothing
rank=0
for host in node1 node2; do
  ssh $host "torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$rank --master-addr=node1 --master-port=29500 train.py" &
  ((rank++))
done
wait
