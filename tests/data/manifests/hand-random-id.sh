#!/bin/bash
# expect: FAIL run-id, WARN not-read
torchrun --nnodes=2 --nproc-per-node=8 --rdzv-id=$RANDOM --rdzv-backend=c10d --rdzv-endpoint=$1:29500 train.py
