#!/bin/bash
# expect: FAIL node-count
# says: --nnodes is -2: torchrun does not start
NUM_NODES=-2
head=$(head -n 1 hosts.txt)
mpirun -N 1 -np $NUM_NODES -hostfile hosts.txt \
  torchrun --nnodes=$NUM_NODES --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=a --rdzv-endpoint=$head:29500 train.py
