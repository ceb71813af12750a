#!/bin/bash
# expect: nothing
#PBS -l select=2:ncpus=8:mpiprocs=4
HEAD=$(head -n 1 $PBS_NODEFILE)
mpirun -np 2 --map-by node torchrun --nnodes=2 --nproc-per-node=4 --rdzv-id=$PBS_JOBID --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py
