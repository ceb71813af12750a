#!/bin/sh
# Entry point for `torchrun --no-python idle_worker.sh FOLDER`: a worker without torch, for tests that are about agents.
# It leaves the mark `training-RANK-ATTEMPT` like train.py, and ends well when FOLDER has `go-on` or `go-on-NODE`;
# the first attempt ends badly when it has `fail`. It ends with its agent, too: torch gives it a session of its own, so
# that whoever kills the agent's group does not reach it.
printf %s "$NODE_INDEX" >"$1/training-$RANK-$TORCHELASTIC_RESTART_COUNT.new"
mv "$1/training-$RANK-$TORCHELASTIC_RESTART_COUNT.new" "$1/training-$RANK-$TORCHELASTIC_RESTART_COUNT"
until [ -e "$1/go-on" ] || [ -e "$1/go-on-$NODE_INDEX" ]; do
    if [ -e "$1/fail" ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then exit 1; fi
    kill -0 "$PPID" 2>/dev/null || exit 1
    sleep 0.1
done
