#!/bin/bash
# expect: FAIL node-count
# says: mpirun starts torchrun 4 times on 1 node
#PBS -l nodes=4:ppn=4:gpus=1
HEAD=$(head -n 1 $PBS_NODEFILE)
mpirun -np $PBS_NUM_NODES -hostfile $PBS_NODEFILE torchrun --nnodes=4 --nproc-per-node=1 --rdzv-id=$PBS_JOBID --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py
