#!/bin/bash
# expect: WARN node-count
#BSUB -nnodes 8
#BSUB -W 2:00
torchrun --nproc-per-node=4 train.py
