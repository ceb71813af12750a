#!/bin/bash
# expect: FAIL endpoint, WARN not-read
# says: MASTER_ADDR=[10.0.0.4]: no host has brackets
export MASTER_ADDR=[10.0.0.4]
export MASTER_PORT=29500
export WORLD_SIZE=2
export RANK=0
python3 train.py
