#!/usr/bin/env -S python3 -IS
"""Stands for `ray`: the head counts the workers that register with it, as far as launching and submitting need it."""

import http.server
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request

GCS, DASHBOARD = 6379, 8265
workers = 0


class Head(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        global workers
        workers += self.path == "/register"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(workers).encode())


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def serve() -> None:
    gcs, dashboard = (http.server.HTTPServer(("0.0.0.0", port), Head) for port in (GCS, DASHBOARD))
    threading.Thread(target=gcs.serve_forever, daemon=True).start()
    dashboard.serve_forever()


match sys.argv[1:3]:
    case ["serve"]:
        serve()
    case ["start", "--head"]:
        subprocess.Popen([sys.executable, "-IS", __file__, "serve"], stdin=subprocess.DEVNULL)
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", DASHBOARD)) != 0:
                time.sleep(0.05)
    case ["start", address]:
        get(f"http://{address.removeprefix('--address=')}/register")
    case ["job", "submit"]:
        print(f"submitted to a cluster of {get(os.environ['RAY_ADDRESS'] + '/nodes')} workers", flush=True)
    case other:
        sys.exit(f"fake_ray.py does not know {other}")
