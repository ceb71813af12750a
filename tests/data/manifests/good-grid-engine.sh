#!/bin/bash
# expect: nothing
#$ -cwd
#$ -l rt_F=2
module load openmpi
MASTER_ADDR=$(hostname)
mpirun -npernode 1 -n "$NHOSTS" \
    torchrun --nnodes="$NHOSTS" --nproc-per-node=4 --rdzv-backend=c10d --rdzv-id="$JOB_ID" \
      --rdzv-endpoint="$MASTER_ADDR:29500" train.py
