"""The job scripts of docs/slurm.md, as they are, with Slurm's variables on two emulated nodes. `srun` is support/srun.py; all else is real."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from jobs import TRAIN, Jobs
from pods import Pods
from servers import REPOSITORY, binary

pytest_plugins = ["job_fixtures"]

PAGE = REPOSITORY / "docs" / "slurm.md"
EXAMPLES = REPOSITORY / "examples" / "slurm"
HERE = Path(__file__).with_name("support")


@pytest.mark.parametrize(("script", "tasks", "shared"), [("torchrun", 1, False), ("torchrun", 1, True), ("one-task-per-gpu", 2, False)])
def test_a_job_script_trains(script: str, tasks: int, shared: bool, pods: Pods, jobs: Jobs, tmp_path: Path) -> None:
    """Two nodes with two processes each; the server is in the script, on the first node. With `shared` its ports are those that the page has for nodes that
    several jobs share."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "rallypoint").symlink_to(binary().resolve())
    for name, line in {
        "srun": f'{sys.executable} -IS {HERE / "srun.py"} "$@"',
        "torchrun": f'{sys.executable} -m torch.distributed.run "$@"',
        "python": f'{sys.executable} "$@"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\nexec {line}\n")
        (programs / name).chmod(0o755)
    shutil.copy(TRAIN, tmp_path / "train.py")
    text = (EXAMPLES / f"{script}.sbatch").read_text()
    if shared:
        serve = "rallypoint serve &\n"
        (own_ports,) = [block for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) if "PORT=" in block]
        assert serve in text
        text = text.replace(serve, own_ports)
    (tmp_path / "job.sbatch").write_text(text)
    nodes = tmp_path / "nodes.json"
    nodes.write_text(json.dumps([{"name": pod.name, "start": pod.command([])} for pod in pods.nodes]))
    (job_folder := tmp_path / "out").mkdir()
    variables = {
        "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin",
        "SRUN_NODES": nodes,
        "NPROC_PER_NODE": "2",
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "node-[0-1]",
        "SLURM_NODELIST": "node-[0-1]",
        "SLURM_TASKS_PER_NODE": f"{tasks}(x2)",
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": "node-0",
    }
    settings = [f"{name}={value}" for name, value in variables.items()]
    batch = ["env", "--chdir", str(tmp_path), *settings, "bash", "job.sbatch", "--out", str(job_folder), "--no-ddp"]
    job = jobs.planned([pods.nodes[0]], lambda _: batch, 4)
    job.start(0)
    job.finish()
    results = [json.loads(file.read_text()) for file in sorted(job_folder.glob("rank-*.json"))]
    assert [(result["rank"], result["world_size"]) for result in results] == [(rank, 4) for rank in range(4)]
    assert [(job_folder / f"training-{rank}-0").read_text() for rank in range(4)] == ["0", "0", "1", "1"]
    said = job.nodes[0].output
    # The run's name is Slurm's job id with torchrun; plain ranks name none, and the server counts them.
    assert "77 finished: 2 nodes" in said if tasks == 1 else "4 ranks" in said
    assert ("[::]:20770" in said) == shared
    assert " INFO stopped" in said, "the server ends with the script"
