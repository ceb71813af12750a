#!/bin/bash
# expect: nothing
HEAD=$(hostname)
srun -N 4 --ntasks-per-node=1 torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py
