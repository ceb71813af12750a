#!/bin/bash
# expect: FAIL node-count
srun -N 4 -n4 --gpus-per-task=8 torchrun --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=node7:29500 train.py
