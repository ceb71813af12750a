#!/bin/bash
# expect: FAIL broken-line, WARN not-read
# says: line 10 has no backslash … --shm-size
flags=(
    --gpus all
    --rm)
start="ray start --block"
docker run -d \
    --network host \
    --ulimit memlock=-1
    --shm-size 10g \
    "${flags[@]}" image -c "$start"
