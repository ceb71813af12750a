#!/bin/bash
# expect: FAIL unknown-flag, WARN not-read
# says: `--deepspeed_config` is no flag of deepspeed
deepspeed --num_gpus=8 --log_level=info --deepspeed_config=ds.json train.py --epochs 3
