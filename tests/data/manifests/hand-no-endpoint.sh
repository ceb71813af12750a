#!/bin/bash
# expect: WARN command-endpoint, WARN not-read
torchrun --nnodes=2 --nproc-per-node=4 train.py
