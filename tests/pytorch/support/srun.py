"""What `srun` does, for emulated pods: starts a command once for each task on each node, with Slurm's variables. Options are passed over.

`SRUN_NODES` is a file with the nodes: for each its name and how a command is started there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

command = sys.argv[1:]
while command[0].startswith("-"):
    del command[0]
nodes = json.loads(Path(os.environ["SRUN_NODES"]).read_text())
each = int(os.environ["SLURM_NTASKS_PER_NODE"])
tasks = str(each * len(nodes))
step = {
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_STEP_NODELIST": os.environ["SLURM_JOB_NODELIST"],
    "SLURM_STEP_NUM_NODES": str(len(nodes)),
    "SLURM_STEP_NUM_TASKS": tasks,
    "SLURM_STEP_TASKS_PER_NODE": f"{each}(x{len(nodes)})",
    "SLURM_NTASKS": tasks,
    "SLURM_NPROCS": tasks,
    "SLURM_SRUN_COMM_HOST": nodes[0]["name"],
}
started = [
    subprocess.Popen(
        [*node["start"], *command],
        env=os.environ
        | step
        | {
            "SLURM_NODEID": str(number),
            "SLURM_PROCID": str(number * each + local),
            "SLURM_LOCALID": str(local),
            "SLURMD_NODENAME": node["name"],
            "NODE_INDEX": str(number),
        },
    )
    for number, node in enumerate(nodes)
    for local in range(each)
]
sys.exit(max(abs(task.wait()) for task in started))
