#!/bin/bash
# expect: FAIL node-count
#PBS -N train
#PBS -l select=4:ncpus=64:ngpus=4:mpiprocs=1
HEAD=$(head -n 1 $PBS_NODEFILE)
torchrun --nnodes=4 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py
