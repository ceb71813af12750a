"""Stands for Python where a program shall run in a fork of a process that has torch imported (fork_server.py, at FORK_SERVER).

    forked_python.py SCRIPT [ARGUMENT...]
    forked_python.py -m MODULE [ARGUMENT...]

The fork gets this process's namespaces, standard files, variables and working folder. To the process that starts it this one is the program: it hands signals
on, ends as the program ends, and takes it along when it is killed. It starts without torch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from dying import die_with_parent

NAMESPACES = ("pid", "net", "uts", "ipc", "mnt")
STANDARD_FILES = (0, 1, 2)


def main(arguments: list[str]) -> int:
    die_with_parent()
    request = {"start": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    namespaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    handed_on = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["FORK_SERVER"])
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [*STANDARD_FILES, *namespaces])
        for number in handed_on:
            signal.signal(number, lambda number, _: server.sendall(bytes([number])))
        answer = server.makefile().readline()
    code = int(answer) if answer else 1
    if code < 0:
        if -code in handed_on:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)  # as it was killed
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
