#!/bin/bash
# expect: nothing
rank=0
for host in node1 node2 node3; do
  ssh $host "cd /work && torchrun --nnodes=3 --nproc-per-node=8 --node-rank=$rank --master-addr=node1 --master-port=29500 train.py" &
  : $((rank++))
done
wait
