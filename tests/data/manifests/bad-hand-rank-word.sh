#!/bin/bash
# expect: FAIL node-rank, WARN not-read
master=$1
node_rank=$2
torchrun --nnodes=2 --nproc-per-node=8 --node-rank=node_rank --master-addr=$master --master-port=29500 train.py
