#!/bin/sh
# expect: FAIL endpoint, WARN not-read
torchrun --standalone --nnodes=2 --nproc-per-node=8 train.py
