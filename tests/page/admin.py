"""An admin port that says what a test tells it to: the real page, made-up documents, events when the test wants them."""

from __future__ import annotations

import copy
import json
import queue
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from documents import NOW, REPOSITORY, Document, summary

EXPLANATIONS = REPOSITORY / "docs" / "explanations.md"
HEALTH: Document = {
    "version": "0.1.0",
    "up_seconds": 7260.0,
    "ready": True,
    "endpoint": "rally.example:29500",
    "stores": 1,
    "connections": 12,
    "max_connections": 1000,
    "memory_bytes": 3_500_000,
    "max_memory_bytes": 1 << 30,
    "waiters": 3,
    "journal": None,
}

END = None
"""In a subscriber's queue: close the connection."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection is no error."""


class Admin:
    """The fake admin port. `start` and `stop` may be called again and again; the port stays."""

    def __init__(self, page: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.page = page
        self.headers = dict(headers or {})
        self.runs: dict[str, Document] = {}
        self.explanations: list[Document] = []
        self.health: Document = copy.deepcopy(HEALTH)
        self.events_status = 200
        self.requests: list[str] = []
        self.lock = threading.RLock()
        self.subscribers: list[queue.Queue[bytes | None]] = []
        self.number = 0
        self.port = 0
        self.server: Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        admin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                admin.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Ends every connection and stops listening."""
        if self.server is None:
            return
        with self.lock:
            for subscriber in self.subscribers:
                subscriber.put(END)
        self.server.shutdown()
        self.server.server_close()
        self.server = None

    # ----- what it says

    def list(self) -> Document:
        runs = [summary(run) for run in self.runs.values()]
        return {"now": NOW, "lost_observations": 0, "runs": runs, "explanations": self.explanations}

    def set(self, run: Document) -> None:
        """A run is new or has changed."""
        with self.lock:
            old = self.runs.get(run["run_id"])
            run["version"] = old["version"] + 1 if old else run["version"]
            self.runs[run["run_id"]] = run
            self.send("run", summary(run))

    def remove(self, run_id: str) -> None:
        with self.lock:
            run = self.runs.pop(run_id)
            self.send("run_gone", {"run_id": run_id, "store": run["store"]})

    def send(self, name: str, data: Any) -> None:
        with self.lock:
            self.number += 1
            self.raw(f"id: {self.number}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode())

    def raw(self, text: bytes) -> None:
        with self.lock:
            for subscriber in self.subscribers:
                subscriber.put(text)

    # ----- how it answers

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append(request.path)
        if request.path == "/":
            return self.reply(request, 200, self.page, self.headers)
        if request.path == "/api/v1/runs":
            with self.lock:
                return self.json(request, self.list())
        if request.path == "/api/v1/server":
            return self.json(request, self.health)
        if request.path == "/docs/explanations.md":
            return self.reply(request, 200, EXPLANATIONS.read_bytes(), {"Content-Type": "text/plain; charset=utf-8"})
        if request.path == "/api/v1/events":
            if self.events_status != 200:
                return self.reply(request, self.events_status, b"", {})
            return self.events(request)
        if request.path.startswith("/api/v1/runs/"):
            path, _, query = request.path.partition("?")
            run_id = urllib.parse.unquote(path.removeprefix("/api/v1/runs/"))
            store = urllib.parse.parse_qs(query).get("store")
            with self.lock:
                run = self.runs.get(run_id)
            if run is not None and store in (None, [str(run["store"])]):
                return self.json(request, run)
        problem = json.dumps({"title": "Not Found", "status": 404, "detail": "no such run"}).encode()
        self.reply(request, 404, problem, {"Content-Type": "application/problem+json"})

    def json(self, request: BaseHTTPRequestHandler, document: Document) -> None:
        self.reply(request, 200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    @staticmethod
    def reply(request: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Connection", "close")
        request.close_connection = True
        request.end_headers()
        request.wfile.write(body)

    def events(self, request: BaseHTTPRequestHandler) -> None:
        subscriber: queue.Queue[bytes | None] = queue.Queue()
        with self.lock:
            snapshot = {**self.list(), "version": "0.1.0"}
            self.number += 1
            subscriber.put(f"id: {self.number}\nevent: snapshot\ndata: {json.dumps(snapshot)}\n\n".encode())
            self.subscribers.append(subscriber)
        request.close_connection = True
        request.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Connection", "close")
        request.end_headers()
        try:
            while (text := subscriber.get()) is not END:
                request.wfile.write(text)
        finally:
            with self.lock:
                self.subscribers.remove(subscriber)


def page_of(admin_url: str) -> tuple[bytes, dict[str, str]]:
    """The page that a real server gives, with the headers that a browser obeys."""
    with urllib.request.urlopen(f"{admin_url}/", timeout=10) as answer:
        kept = ("content-type", "content-security-policy", "x-content-type-options", "referrer-policy", "cache-control")
        return answer.read(), {name: value for name, value in answer.headers.items() if name.lower() in kept}
