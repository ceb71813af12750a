#!/bin/bash
# expect: WARN more-processes, WARN misread-word, WARN not-read
GPUS=$1
NODES=$2
ALL=$((GPUS * NODES))
rates=(5e-4, 1e-4)
for rate in "${rates[@]}"; do
  deepspeed --hostfile=hosts --num_nodes=$NODES --num_gpus=$ALL train.py --lr=$rate
done
