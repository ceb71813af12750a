#!/bin/bash
# expect: WARN not-read
export HEAD=10.0.0.1
if [ "$(hostname)" = first ]; then
    torchrun --nnodes=2 --nproc-per-node=8 --node-rank=0 --master-addr=$HEAD train.py
else
    torchrun --nnodes=2 --nproc-per-node=8 --node-rank=1 --master-addr=$HEAD train.py
fi
