#!/bin/bash
# expect: FAIL misread-word, WARN not-read
# says: `--nproc-per-node` stands twice, with 8 and 4
torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$1 --master_addr train-0 --nproc-per-node=4 train.py
