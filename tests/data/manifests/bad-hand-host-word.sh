#!/bin/bash
# expect: FAIL unset-variable, WARN not-read
head_node=$1
torchrun --nnodes=2 --nproc-per-node=4 --node-rank=$2 --master-addr=head_node --master-port=29500 train.py
