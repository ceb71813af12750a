"""Stands for `python` and `torchrun` in the containers of emulated pods: the program runs in a fork of a process that has torch imported (fork_server.py).

The fork enters this process's namespaces and has its files, variables and working folder. This process is to its parent what the program would be: it hands
signals on, ends as the program ends, and the program does not outlive it.
"""

import array
import ctypes
import json
import os
import signal
import socket
import sys

NAMESPACES = ("pid", "net", "uts", "ipc", "mnt")

ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
arguments = sys.argv[1:]
if os.path.basename(sys.argv[0]) == "torchrun":
    arguments = ["-m", "torch.distributed.run", *arguments]
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.connect(os.environ["FORK_SERVER"])
request = json.dumps({"start": arguments, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
files = array.array("i", [0, 1, 2, *(os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES)])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: server.sendall(bytes([number])))
server.sendmsg([len(request).to_bytes(4, "big") + request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
code = int(server.recv(16) or b"1")
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -code)
os._exit(code)
