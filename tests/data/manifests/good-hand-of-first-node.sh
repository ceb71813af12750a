#!/bin/bash
# expect: WARN not-read
# says: leads no other there
NNODES=2
NODE_RANK=0
torchrun --nnodes=$NNODES --nproc-per-node=8 --node-rank=$NODE_RANK --master-addr=127.0.0.1 --master-port=29500 train.py
