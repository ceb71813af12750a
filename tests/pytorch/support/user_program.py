"""What manifests call their training program: train.py with the options of the test. Copied to where a command line expects it."""

from __future__ import annotations

import os
import runpy
import shlex
import sys

given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
for flag, variable in (
    ("--master-addr", "MASTER_ADDR"),
    ("--master-port", "MASTER_PORT"),
    ("--rank", "RANK"),
    ("--world-size", "WORLD_SIZE"),
):
    if flag in given:
        os.environ[variable] = given[flag]

sys.argv = [os.environ["TRAIN"], "--out", os.environ["TRAIN_OUT"], *shlex.split(os.environ.get("TRAIN_OPTIONS", ""))]
runpy.run_path(os.environ["TRAIN"], run_name="__main__")
