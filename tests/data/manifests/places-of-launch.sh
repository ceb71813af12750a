#!/bin/bash
# expect: WARN template, WARN not-read
# says: the number of nodes (--nnodes) is `YOUR_NUM_NODES`
NUM_NODES=YOUR_NUM_NODES
torchrun --nnodes=$NUM_NODES --nproc-per-node=8 --node-rank=$1 --master-addr=$2 --master-port=29500 train.py
