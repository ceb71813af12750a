#!/bin/bash
# expect: FAIL ssh-waits
# says: which waits for the nodes that the script starts after it
NODES=(a b c)
for i in "${!NODES[@]}"; do
  ssh ${NODES[$i]} "cd work; torchrun --nnodes=3 --nproc_per_node=8 --node_rank=$i --master_addr=${NODES[0]} train.py"
done
