#!/bin/bash
# expect: FAIL endpoint, WARN not-read
torchrun --nnodes=$SLURM_NNODES --nproc-per-node=8 --node-rank=$SLURM_NODEID --rdzv-backend=c10d --rdzv-endpoint=localhost:0 train.py
