#!/bin/bash
# expect: FAIL broken-line, WARN not-read
# says: line 4: `<<<<<<< ours` is the mark of a merge
<<<<<<< ours
torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$1 --master-addr=node-0 train.py
=======
torchrun --nnodes=2 --nproc-per-node=4 --node-rank=$1 --master-addr=node-0 train.py
>>>>>>> theirs
