#!/bin/sh
# Entry point for `torchrun --rdzv-backend=c10d --no-python workers_use_endpoint.sh PYTHON train.py ...`.
# torchrun tells the workers to use a store on rank 0's node; this sends them to STORE_ADDR:STORE_PORT instead.
export MASTER_ADDR="$STORE_ADDR" MASTER_PORT="$STORE_PORT" TORCHELASTIC_USE_AGENT_STORE=True
exec "$@"
