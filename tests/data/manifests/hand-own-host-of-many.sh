#!/bin/bash
# expect: FAIL endpoint, WARN not-read
torchrun --nnodes=$WORLD_SIZE --nproc-per-node=8 --node-rank=$RANK --rdzv-endpoint=$HOSTNAME:29500 train.py
