#!/bin/bash
# expect: WARN network-guess, WARN not-read
# says: gives the launcher a network of its own
docker run --rm --gpus all --ipc=host registry.example/train:1 \
  torchrun --nnodes=2 --node-rank=$1 --nproc-per-node=8 --master-addr=node0 --master-port=29500 train.py
