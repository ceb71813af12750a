#!/bin/bash
# expect: WARN node-rank, WARN not-read
torchrun --nnodes=2 --nproc-per-node=8 --master-addr=10.0.0.1 --master-port=29500 train.py
