#!/bin/bash
# expect: FAIL node-rank, WARN not-read
NODE_RANK=${RANK}
torchrun --nnodes=4 --nproc-per-node=8 --node-rank=0 --master-addr=$MASTER_ADDR train.py
