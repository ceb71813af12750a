#!/bin/bash
# expect: WARN not-read
# Only the first one goes on, and torchtune looks for free ports.
tensorboard --logdir x &
torchrun --nproc-per-node 8 pretrain.py
torchrun --nproc-per-node 8 finetune.py
CUDA_VISIBLE_DEVICES=0,1 tune run --nproc_per_node 2 lora_finetune_distributed --config a &
CUDA_VISIBLE_DEVICES=2,3 tune run --nproc_per_node 2 lora_finetune_distributed --config b &
wait
