#!/bin/bash
# expect: WARN not-read
NODE_RANK=${1:?the number of this node}
torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$NODE_RANK --master-addr=10.0.0.1 --master-port=29500 train.py
