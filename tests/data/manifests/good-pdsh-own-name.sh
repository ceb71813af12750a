#!/bin/bash
# expect: nothing
pdsh -R ssh -w a,b "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=$(hostname):29500 train.py"
