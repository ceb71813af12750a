#!/bin/bash
# expect: FAIL ssh-waits, WARN not-read
# says: the other host gets `cd /work` alone, and `torchrun` runs here
rank=0
for host in $(cat hosts); do
    ssh $host cd /work; torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$rank --master-addr=$(head -n 1 hosts) train.py &
    rank=$((rank + 1))
done
wait
