"""TCP proxies that write down what clients of a TCPStore ask for: one JSON line a request, in the form of `tests/data/samples`, or all bytes of both
directions, in the form of `tests/data/transcripts`.

    with Recorder(port_of_the_server, file) as recorder: ...  # clients connect to recorder.port

The first one reads dialect C (PyTorch 2.2 and later). A request that it does not know is written down by its number, and the rest of that connection is passed on unread.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from servers import HOST

OPERATIONS = {
    0: ("VALIDATE", "m"),
    1: ("SET", "kv"),
    2: ("COMPARE_SET", "kvv"),
    3: ("GET", "k"),
    4: ("ADD", "kn"),
    5: ("CHECK", "K"),
    6: ("WAIT", "K"),
    7: ("NUM_KEYS", ""),
    8: ("DELETE", "k"),
    9: ("APPEND", "kv"),
    10: ("MULTI_GET", "K"),
    11: ("MULTI_SET", "P"),
    12: ("CANCEL_WAIT", ""),
    13: ("PING", "m"),
    14: ("QUEUE_PUSH", "kv"),
    15: ("QUEUE_POP", "k"),
    16: ("QUEUE_LEN", "k"),
    17: ("LIST_KEYS", ""),
    18: ("BARRIER", "kn"),
}
"""By its number: name and arguments. m: 4 bytes, n: 8 bytes, k: key, v: value, K: keys, P: pairs of key and value."""


class Stream:
    """Bytes that a client sends, handed on as they are read."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server

    def take(self, count: int) -> bytes:
        taken = b""
        while len(taken) < count:
            piece = self.client.recv(min(count - len(taken), 1 << 16))
            if not piece:
                raise EOFError
            self.server.sendall(piece)
            taken += piece
        return taken

    def number(self) -> int:
        return int(struct.unpack("<q", self.take(8))[0])

    def text(self) -> str:
        return self.take(self.number()).decode(errors="backslashreplace")

    def request(self) -> dict[str, Any] | None:
        """The next request; None if its operation is not known."""
        code = self.take(1)[0]
        if code not in OPERATIONS:
            return None
        name, arguments = OPERATIONS[code]
        found: dict[str, Any] = {"op": name}
        for argument in arguments:
            match argument:
                case "m":
                    self.take(4)
                case "n":
                    found["n"] = self.number()
                case "k":
                    found["k"] = self.text()
                case "v":
                    self.take(self.number())
                case "K":
                    found["ks"] = [self.text() for _ in range(self.number())]
                case "P":
                    found["ks"] = []
                    for _ in range(self.number()):
                        found["ks"].append(self.text())
                        self.take(self.number())
        return found

    def pass_on(self) -> None:
        while piece := self.client.recv(1 << 16):
            self.server.sendall(piece)


class Recorder:
    """The proxy. It ends with its `with` block, and its connections with it."""

    def __init__(self, port: int, file: Path) -> None:
        self.server_port, self.file = port, file
        self.lock, self.numbers = threading.Lock(), itertools.count(1)

    def __enter__(self) -> Recorder:
        self.rows: TextIO = self.file.open("w")
        self.listener = socket.create_server((HOST, 0), backlog=512)
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.listener.close()
        with self.lock:
            self.rows.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection((HOST, self.server_port))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._replies, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        number, stream, before = next(self.numbers), Stream(client, server), ""
        try:
            while (request := stream.request()) is not None:
                before = request["op"]
                self._write(c=number, ev="req", **request)
            self._write(c=number, ev="unknown", after=before)
            stream.pass_on()
        except (EOFError, OSError):
            pass
        finally:
            self._close(server)

    def _replies(self, server: socket.socket, client: socket.socket) -> None:
        try:
            Stream(server, client).pass_on()
        except OSError:
            pass
        finally:
            self._close(client)

    @staticmethod
    def _close(end: socket.socket) -> None:
        try:
            end.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _write(self, **row: Any) -> None:
        with self.lock:
            if not self.rows.closed:
                print(json.dumps(row), file=self.rows, flush=True)


class Transcript(Recorder):
    """Bytes as they are, in both directions: `[direction, connection, hex]` in time order."""

    def __init__(self, port: int, file: Path, release: str, name: str) -> None:
        super().__init__(port, file)
        self.release, self.name = release, name
        self.chunks: list[tuple[str, int, str]] = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self.lock:
            call = {"api_call": self.name, "outcome": {"ok": kind is None}, "chunks": self.chunks}
            json.dump({"torch": self.release, "backend": "libuv", "calls": [call]}, self.rows)
        super().__exit__(kind, error, trace)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        number = next(self.numbers)
        self._add("open", number)
        # Nothing is answered before it was asked for: the replies begin behind the opening.
        replies = threading.Thread(target=self._pass_on, args=("s", number, server, client), daemon=True)
        replies.start()
        self._pass_on("c", number, client, server)

    def _replies(self, server: socket.socket, client: socket.socket) -> None:
        """Begun by `_requests`."""

    def _pass_on(self, direction: str, number: int, source: socket.socket, sink: socket.socket) -> None:
        """Each piece is written down before it is passed on, so that what it causes comes behind it."""
        try:
            while piece := source.recv(1 << 16):
                self._add(direction, number, piece)
                sink.sendall(piece)
        except OSError:
            pass
        self._add(direction + "_eof", number)
        self._close(sink)

    def _add(self, what: str, number: int, piece: bytes = b"") -> None:
        with self.lock:
            self.chunks.append((what, number, piece.hex()))
