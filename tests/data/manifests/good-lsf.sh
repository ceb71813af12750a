#!/bin/bash
# expect: nothing
#BSUB -n 16
#BSUB -R "span[ptile=8]"
blaunch -z "$(sort -u $LSB_DJOB_HOSTFILE)" torchrun --nnodes=2 --nproc-per-node=2 --rdzv-id=$LSB_JOBID --rdzv-backend=c10d --rdzv-endpoint=$HOSTNAME:29400 train.py
