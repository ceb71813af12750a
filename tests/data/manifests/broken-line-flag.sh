#!/bin/bash
# expect: FAIL broken-line, WARN not-read
# says: `--shm-size` stands … the line before has no backslash
flags=(
    --gpus all
    --rm)
docker run --ipc=host \
    --ulimit memlock=-1
    --shm-size 10g \
    "${flags[@]}" image torchrun --nnodes=1 --nproc-per-node=2 train.py
