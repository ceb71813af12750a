#!/bin/bash
# expect: FAIL misread-word, WARN not-read
# says: `--master_addr` stands twice, with train-0 and 29500
torchrun --nnodes=2 --nproc-per-node=4 --node-rank=$1 --master_addr train-0 --master_addr 29500 train.py
