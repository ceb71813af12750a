#!/bin/bash
# expect: FAIL endpoint, WARN not-read
torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$1 --rdzv-backend=c10d --rdzv-endpoint=$(hostname):29500 train.py
