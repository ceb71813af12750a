#!/bin/bash
# expect: nothing
#PBS -l nodes=4:ppn=4:gpus=1
HEAD=$(head -n 1 $PBS_NODEFILE)
sort -u $PBS_NODEFILE > nodes.txt
mpirun -np $PBS_NUM_NODES -hostfile nodes.txt torchrun --nnodes=4 --nproc-per-node=1 --rdzv-id=$PBS_JOBID --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py
