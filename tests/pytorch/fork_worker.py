"""Entry point for `torchrun --no-python python -S -E fork_worker.py SCRIPT …`: stands for a worker that the fork server starts with torch imported.

It hands on its output, its environment, and signals; ends as the worker ends; and the worker ends with it.
"""

import json
import os
import signal
import socket
import sys

from parent import die_with_parent

die_with_parent()
server = socket.socket(socket.AF_UNIX)
server.connect(os.environ["FORK_SERVER"])
request = json.dumps({"start": sys.argv[1:], "environment": dict(os.environ)}).encode() + b"\n"
sent = socket.send_fds(server, [request], [1, 2])
server.sendall(request[sent:])
answers = server.makefile()
worker = int(answers.readline())
HANDED_ON = (signal.SIGTERM, signal.SIGINT)
for number in HANDED_ON:
    signal.signal(number, lambda number, _: os.kill(worker, number))
code = int(answers.readline() or 1)
if code < 0:
    for number in HANDED_ON:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
