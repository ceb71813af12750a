"""The package's HTTP client against servers that are away, slow, wrong, or say no."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import installed  # noqa: F401  (puts the package on the path)
import pytest
import rallypoint
from rallypoint import ClosedError, NotRallypointError, ProblemError, UnreachableError, Waiting
from rallypoint._http import Client, Endpoint, Interrupted
from rallypoint.rendezvous import Identity, KeepAlive, Round, Terms
from servers import Server

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"done": 42}'


def refusal(status: int, code: str) -> bytes:
    body = json.dumps({"title": "no", "status": status, "detail": "because", "code": code, "missing": ["b"]}).encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class Peer:
    """Listens, and answers one request after the other from a script. `None` closes the connection without an answer."""

    def __init__(self, script: list[bytes | None], port: int = 0) -> None:
        self.script = script
        self.requests = 0
        self.bodies: list[dict[str, object]] = []
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        while self.script:
            data = b""
            while b"\r\n\r\n" not in data or not data.endswith(b"}"):
                more = connection.recv(4096)
                if not more:
                    return
                data += more
            self.requests += 1
            self.bodies.append(json.loads(data.partition(b"\r\n\r\n")[2]))
            reply = self.script.pop(0)
            if reply is None:
                return
            connection.sendall(reply)

    def stop(self) -> None:
        self.listener.close()


@pytest.fixture
def peers() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def start(*script: bytes | None, port: int = 0) -> Peer:
        made.append(Peer(list(script), port))
        return made[-1]

    yield start
    for peer in made:
        peer.stop()


def client(peer: Peer) -> Client:
    return Client(Endpoint("127.0.0.1", peer.port))


def test_one_connection_serves_many_requests(peers: Callable[..., Peer]) -> None:
    peer = peers(OK, OK, OK)
    asking = client(peer)
    for _ in range(3):
        assert asking.post("/x", {"a": 1}, patience=5).body == {"done": 42}
    assert (peer.requests, peer.connections) == (3, 1)


def test_a_broken_connection_is_made_again(peers: Callable[..., Peer]) -> None:
    peer = peers(OK, None, None, OK)
    asking = client(peer)
    troubles: list[str] = []
    for _ in range(2):
        asking.post("/x", {"a": 1}, patience=10, on_trouble=lambda cause, _: troubles.append(cause))
    assert peer.requests == 4
    assert troubles and troubles[-1] == "", "it is told when it is over"
    assert "admin port" in troubles[0]


def test_a_server_that_comes_late_is_waited_for(peers: Callable[..., Peer]) -> None:
    port = socket.create_server(("127.0.0.1", 0)).getsockname()[1]
    causes: list[str] = []
    started: list[Peer] = []

    def on_trouble(cause: str, _: float) -> None:
        causes.append(cause)
        if len(causes) == 3:
            started.append(peers(OK, port=port))

    answer = Client(Endpoint("127.0.0.1", port)).post("/x", {}, patience=30, on_trouble=on_trouble)
    assert answer.body == {"done": 42}
    assert "nothing listens on port" in causes[0]


def test_patience_ends() -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 for .* nothing listens on port 1 .*admin port"):
        Client(Endpoint("127.0.0.1", 1)).post("/x", {}, patience=0.3)


def test_no_pause_between_attempts_is_longer_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(client: Client, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            raise Interrupted

    monkeypatch.setattr(Client, "pause", pause)
    for longest in (Client(Endpoint("127.0.0.1", 1)), Client(Endpoint("127.0.0.1", 1), 0.4)):
        pauses.clear()
        with pytest.raises(Interrupted):
            longest.post("/", {}, patience=float("inf"))
        assert (max(pauses) > 0.4) == (longest._longest_pause > 0.4), pauses


def test_what_a_server_says_neither_ends_a_line_nor_steers_a_terminal(peers: Callable[..., Peer]) -> None:
    hostile = "no\n2026 INFO forged \x1b]0;x\x07\u202e\u200b \ud800 caf\u00e9"
    body = json.dumps({"detail": hostile, "code": "closed"}).encode()
    answer = b"HTTP/1.1 410 X\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with pytest.raises(ClosedError) as refused:
        client(peers(answer)).post("/x", {}, patience=5)
    waiting = Waiting.read({"state": "waiting", "reason": hostile} | dict.fromkeys(("round", "joined", "min_nodes", "max_nodes", "waited_seconds"), 1))
    check = rallypoint.Check("name", "FAIL", hostile, hostile)
    said = [str(refused.value), waiting.reason, *str(check).split("\n     -> ")]
    assert len(said) == 4 and all(text.isprintable() and "forged" in text and "caf\u00e9" in text for text in said), said


def test_a_name_that_does_not_resolve_is_said() -> None:
    with pytest.raises(UnreachableError, match="'no-such-host.invalid' does not resolve"):
        Client(Endpoint("no-such-host.invalid", 1)).post("/x", {}, patience=0)


def test_a_silent_server_is_no_hang(peers: Callable[..., Peer]) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(UnreachableError, match="took too long"):
        Client(Endpoint("127.0.0.1", silent.getsockname()[1])).post("/x", {"wait_seconds": 0.1}, patience=0, late=0.2)
    silent.close()


def test_what_speaks_another_protocol_is_not_waited_for(peers: Callable[..., Peer]) -> None:
    peer = peers(b"\x00\x01\x02 not http\r\n\r\n")
    with pytest.raises(NotRallypointError, match="does not speak HTTP.*not its store port"):
        client(peer).post("/x", {}, patience=600)


def test_a_store_port_is_told_from_an_admin_port(rallypoint: Server) -> None:
    words = f":{rallypoint.port} is the port of a store, and not the server's admin port; name its admin port"
    with pytest.raises(NotRallypointError, match=words):
        Client(Endpoint(rallypoint.host, rallypoint.port)).post("/x", {}, patience=600)


def test_a_server_that_closes_without_an_answer_may_come_again(peers: Callable[..., Peer]) -> None:
    assert client(peers(None, OK)).post("/x", {}, patience=60).body == {"done": 42}


def test_another_http_server_is_told_from_ours(peers: Callable[..., Peer]) -> None:
    peer = peers(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n<html/>}}")
    with pytest.raises(NotRallypointError, match="HTTP 404.*admin port"):
        client(peer).post("/x", {}, patience=60)


def test_a_refusal_is_typed_and_final(peers: Callable[..., Peer]) -> None:
    peer = peers(refusal(410, "closed"))
    with pytest.raises(ClosedError, match="because") as caught:
        client(peer).post("/x", {}, patience=60)
    assert (caught.value.status, caught.value.code, caught.value.extra) == (410, "closed", {"missing": ["b"]})


def test_an_unknown_code_is_a_plain_problem(peers: Callable[..., Peer]) -> None:
    with pytest.raises(ProblemError) as caught:
        client(peers(refusal(409, "of_the_future"))).post("/x", {}, patience=60)
    assert type(caught.value) is ProblemError


def test_a_server_that_is_busy_is_asked_again(peers: Callable[..., Peer]) -> None:
    peer = peers(refusal(503, "stopping"), b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\n{}", OK)
    assert client(peer).post("/x", {}, patience=60).body == {"done": 42}
    with pytest.raises(ProblemError, match="because"):
        client(peers(refusal(503, "no_store"))).post("/x", {}, patience=0)


def test_interrupt_ends_a_long_poll(peers: Callable[..., Peer]) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    asking = Client(Endpoint("127.0.0.1", silent.getsockname()[1]))
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            asking.post("/x", {"wait_seconds": 60}, patience=float("inf"))
        except Interrupted as interrupted:
            ended.append(interrupted)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)  # so that it waits; earlier would only test less
    asking.interrupt()
    thread.join(10)
    assert ended and not thread.is_alive()
    silent.close()


def test_a_barriers_time_goes_on_while_the_server_is_away(peers: Callable[..., Peer]) -> None:
    waiting = b'HTTP/1.1 202 X\r\nContent-Length: 20\r\n\r\n{"state": "waiting"}'
    released = b'HTTP/1.1 200 X\r\nContent-Length: 17\r\n\r\n{"generation": 1}'
    peer = peers(waiting, None, None, waiting, released)
    assert rallypoint.barrier("b", 2, timeout=30, endpoint=f"127.0.0.1:{peer.port}") == 1
    left = [float(str(body["timeout_seconds"])) for body in peer.bodies]
    assert len(left) == 5 and 30 >= left[0], left
    assert all(after < before for before, after in pairwise(left)), "a server that has lost the arrival would count anew"


class Held(ThreadingHTTPServer):
    """Holds each heartbeat until a later one comes, or for `hold` seconds. Counts how often none waited."""

    daemon_threads = True

    def __init__(self, hold: float) -> None:
        self.changed = threading.Condition()
        self.came = self.waiting = self.gaps = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler) -> None:
                handler.rfile.read(int(handler.headers["Content-Length"]))
                with self.changed:
                    self.came += 1
                    self.waiting += 1
                    self.changed.notify_all()
                    mine = self.came
                    self.changed.wait_for(lambda: self.came > mine, hold)
                    self.waiting -= 1
                    self.gaps += not self.waiting
                body = b'{"action": "continue", "reason": "", "num_nodes_waiting": 0}'
                with contextlib.suppress(ConnectionError):  # the client has ended
                    handler.send_response(200)
                    handler.send_header("Content-Length", str(len(body)))
                    handler.end_headers()
                    handler.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.mark.parametrize("grace", [1.0, None])
def test_with_a_grace_one_heartbeat_waits_at_the_server_at_any_time(grace: float | None) -> None:
    server = Held(0.1 if grace is None else 3)
    round = Round("run", 1, 0, 1, None, keep_alive=0.4, keep_alive_misses=5, gathered_seconds=0)
    endpoint = Endpoint("127.0.0.1", server.server_port)
    node = KeepAlive(endpoint, "run", Identity("a", "a"), Terms(1, 1, grace=grace), round, "1", 5.0)
    try:
        with server.changed:
            assert server.changed.wait_for(lambda: server.came > 5, 60)
            # A process that dies while none waits is noticed as late as one whose host is gone.
            assert (server.gaps > 0) == (grace is None)
    finally:
        node.stop()
        server.shutdown()
        server.server_close()
