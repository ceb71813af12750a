"""An agent of NIXL without a GPU. It does what the lines of stdin say, and answers each with one line `> ANSWER`. NIXL logs to stdout too."""

from __future__ import annotations

import sys
import time

from nixl_cu12._api import nixl_agent, nixl_agent_config

name = sys.argv[1]
agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
print("> ready", flush=True)
for line in sys.stdin:
    match line.split():
        case ["publish"]:
            agent.send_local_metadata()
            print("> published", flush=True)
        case ["invalidate"]:
            agent.invalidate_local_metadata()
            print("> invalidated", flush=True)
        case ["fetch", other, seconds]:
            agent.fetch_remote_metadata(other)
            end = time.monotonic() + float(seconds)
            while not (found := agent.check_remote_metadata(other)) and time.monotonic() < end:
                time.sleep(0.05)
            print("> found" if found else "> absent", flush=True)
        case ["forget", other]:
            agent.remove_remote_agent(other)
            print("> forgotten", flush=True)
