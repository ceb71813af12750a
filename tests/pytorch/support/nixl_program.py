"""The program of the overlay `nixl`: an agent with the name of its pod, which publishes itself and finds all others (TRAIN_OPTIONS)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from nixl_cu12._api import nixl_agent, nixl_agent_config

name = os.environ["POD_NAME"]
agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
agent.send_local_metadata()
for other in set(os.environ["TRAIN_OPTIONS"].split()) - {name}:
    agent.fetch_remote_metadata(other)
    while not agent.check_remote_metadata(other):
        time.sleep(0.05)
    print(f"{name} has found {other}", flush=True)
# An agent that has ended cannot be connected to.
while not (Path(os.environ["TRAIN_OUT"]) / "go-on").exists():
    time.sleep(0.05)
