#!/bin/bash
# expect: WARN not-read
docker run --rm --gpus all --net=host --ipc=host registry.example/train:1 \
  torchrun --nnodes=2 --node-rank=$1 --nproc-per-node=8 --master-addr=node0 --master-port=29500 train.py
