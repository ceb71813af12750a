"""Entry point of a worker that is forked from fork_server.py: `forked_worker.py SOCKET SCRIPT [ARGUMENT...]`.

For the agent that starts it this process is the worker: it has its environment and its output, ends as it ends, and takes it along when it is
killed. It starts without torch.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from dying import die_with_parent


def main() -> int:
    die_with_parent()
    request = {"start": sys.argv[2:], "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [1, 2])
        answer = server.makefile().readline()
    code = int(answer) if answer else 1
    if code < 0:
        os.kill(os.getpid(), -code)  # as it was killed
    return code


if __name__ == "__main__":
    sys.exit(main())
