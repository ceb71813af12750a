#!/bin/bash
# expect: WARN not-read
# Who sets the number of nodes may set PET_NODE_RANK as well.
torchrun --nnodes=$NNODES --nproc-per-node=8 --master-addr=${1:-localhost} train.py
