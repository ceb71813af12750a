"""A client that sends requests byte by byte as the test says, for what a torch client cannot do or cannot show.

It speaks the dialect of torch 2.2 and later. Where torch's own client hides when a request reaches the server, `fence`
tells: both servers answer a PING even while a wait is outstanding, and only after everything that was sent before it.
So a test can assert that something did *not* happen without sleeping.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType

HELLO = bytes.fromhex("00cef7853c")
SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE = 1, 2, 3, 4, 5, 6, 7, 8
CANCEL, PING, QUEUE_PUSH, QUEUE_POP, BARRIER = 12, 13, 14, 15, 18
WOKEN, CANCELLED = b"\x00", b"\x01"
NONCE = 0x5EED5EED


def blob(data: bytes) -> bytes:
    """A key or a value: its length, then its bytes."""
    return struct.pack("<Q", len(data)) + data


def keys_request(opcode: int, *keys: bytes) -> bytes:
    """CHECK, WAIT and their like: a count, then the keys."""
    return bytes([opcode]) + struct.pack("<Q", len(keys)) + b"".join(map(blob, keys))


class WireClient:
    """One connection. Each method returns when the server has handled the request, unless it says otherwise."""

    def __init__(self, host: str, port: int, hello: bytes = HELLO) -> None:
        self.socket = socket.create_connection((host, port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(hello)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Sends, and does not wait."""
        if data:
            self.socket.sendall(data)

    def receive(self, count: int) -> bytes:
        """Exactly `count` bytes; fewer if the server closes before."""
        received = b""
        while len(received) < count:
            try:
                part = self.socket.recv(count - len(received))
            except ConnectionResetError:
                break
            if not part:
                break
            received += part
        return received

    def receive_integer(self) -> int:
        return int(struct.unpack("<q", self.receive(8))[0])

    def receive_blob(self) -> bytes:
        return self.receive(self.receive_integer())

    def is_closed(self) -> bool:
        """Waits until the server closes this connection; whatever it sends instead makes this False."""
        return self.receive(1) == b""

    def fence(self) -> bytes:
        """What the server sent unasked (wake-ups) until it had handled everything that this client sent."""
        echo = struct.pack("<I", NONCE)
        self.send(bytes([PING]) + echo)
        received = self.receive(4)
        while received and not received.endswith(echo):
            more = self.receive(1)
            assert more, f"closed after {received.hex()} instead of answering a PING"
            received += more
        return received[:-4]

    def settle(self) -> bytes:
        """Two fences: what had reached a single-threaded server before, on any connection, is handled by now."""
        return self.fence() + self.fence()

    def set(self, key: bytes, value: bytes) -> None:
        self.send(bytes([SET]) + blob(key) + blob(value))
        assert self.fence() == b""

    def add(self, key: bytes, delta: int) -> int:
        self.send(bytes([ADD]) + blob(key) + struct.pack("<q", delta))
        return self.receive_integer()

    def get(self, key: bytes) -> bytes:
        self.send(bytes([GET]) + blob(key))
        return self.receive_blob()

    def compare_set(self, key: bytes, expected: bytes, new: bytes) -> bytes:
        self.send(bytes([COMPARE_SET]) + blob(key) + blob(expected) + blob(new))
        return self.receive_blob()

    def delete(self, key: bytes) -> int:
        self.send(bytes([DELETE]) + blob(key))
        return self.receive_integer()

    def check(self, *keys: bytes) -> bool:
        self.send(keys_request(CHECK, *keys))
        return self.receive(1) == b"\x00"

    def park(self, *keys: bytes) -> None:
        """Starts a WAIT that is not satisfied yet."""
        self.send(keys_request(WAIT, *keys))
        assert self.fence() == b"", f"the wait for {keys} was over at once"

    def arrive(self, key: bytes, world_size: int) -> None:
        """Arrives at a barrier; sends only, for the answer may be the release."""
        self.send(bytes([BARRIER]) + blob(key) + struct.pack("<q", world_size))

    def cancel(self) -> bytes:
        """Cancels the wait; returns all that came up to and including the answer."""
        self.send(bytes([CANCEL]))
        received = self.receive(1)
        return received if received != WOKEN else received + self.receive(1)

    def push(self, queue: bytes, item: bytes) -> None:
        self.send(bytes([QUEUE_PUSH]) + blob(queue) + blob(item))
        assert self.fence() == b""

    def pop(self, queue: bytes) -> bytes | None:
        """Takes the first item; None if there is none."""
        self.send(bytes([QUEUE_POP]) + blob(queue))
        return self.receive_blob() if self.receive_integer() > 0 else None
