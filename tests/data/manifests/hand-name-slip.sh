#!/bin/bash
# expect: WARN unset-variable, WARN not-read
# says: is made of $NODES … -> $NNODES
NNODES=2
torchrun --nnodes=$NODES --nproc-per-node=4 --node-rank=$1 --master-addr=train-0 train.py
