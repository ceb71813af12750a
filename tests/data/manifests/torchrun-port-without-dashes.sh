#!/bin/bash
# expect: FAIL misread-word, WARN not-read
# says: torchrun takes `master_port=29500` for its script
torchrun --nproc_per_node=4 --nnodes=2 --node_rank=$1 --master_addr=$2 master_port=29500 train.py
