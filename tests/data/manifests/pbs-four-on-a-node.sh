#!/bin/bash
# expect: FAIL node-count
#PBS -l nodes=2:ppn=4
HEAD=$(head -n 1 $PBS_NODEFILE)
mpirun -np 8 --bind-to none torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py
