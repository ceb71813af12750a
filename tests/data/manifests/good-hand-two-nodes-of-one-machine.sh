#!/bin/bash
# expect: WARN not-read
torchrun --nnodes=2 --node-rank=0 --nproc-per-node=1 --master-addr=localhost --master-port=29500 main.py &
torchrun --nnodes=2 --node-rank=1 --nproc-per-node=1 --master-addr=localhost --master-port=29500 main.py
