#!/bin/bash
# expect: nothing
rank=0
while read -r host; do
  ssh -n -f "$host" "cd $PWD && torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$rank --master-addr=$(hostname -i) --master-port=29500 train.py"
  rank=$((rank + 1))
done < hosts
