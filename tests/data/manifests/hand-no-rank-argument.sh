#!/bin/bash
# expect: WARN node-rank, WARN not-read
MASTER=${1:-localhost}
NODES=${2:-1}
torchrun --nnodes=$NODES --nproc-per-node=8 --rdzv-endpoint=$MASTER:29500 train.py "${@:3}"
