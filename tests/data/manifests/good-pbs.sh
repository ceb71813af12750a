#!/bin/bash
# expect: nothing
#PBS -N train
#PBS -l select=2:ncpus=64:ngpus=4
HEAD=$(head -n 1 $PBS_NODEFILE)
mpiexec -n 2 --ppn 1 --hostfile $PBS_NODEFILE bash -c "torchrun --nnodes=2 --nproc-per-node=4 --node-rank=\$PMI_RANK --master-addr=$HEAD train.py"
