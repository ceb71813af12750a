#!/bin/bash
# expect: WARN run-id, WARN not-read
RUN=${RUN:-train-$(date +%s)}
torchrun --nnodes=2 --nproc-per-node=8 --rdzv-id=$RUN --rdzv-backend=c10d --rdzv-endpoint=$1:29500 train.py
