#!/bin/bash
# expect: WARN ssh-waits, WARN not-read
# says: the launch of node 0 waits for that of node 1
torchrun --nnodes=2 --nproc-per-node=8 --node-rank=0 --master-addr=node0 train.py
torchrun --nnodes=2 --nproc-per-node=8 --node-rank=1 --master-addr=node0 train.py
