"""JSON over HTTP/1.1 to a server's admin port. It goes on when the server is away for a while.

Every request of the API may be sent again (joins carry an id). So a request is repeated until the server answers, or until the caller
will not wait any longer. One `Client` is one connection, for one thread. Only `interrupt` may be called from another thread.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import NotRallypointError, ProblemError, UnreachableError, problem

DEFAULT_PORT = 29501
"""The server's admin port, unless the endpoint names another one."""
CONNECT_SECONDS = 5.0
"""How long one attempt to connect may take."""
ANSWER_SECONDS = 10.0
"""How much later than the end of the request's own wait an answer may come."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts. They double each time. Each pause is shortened at random, by up to a half."""
MAX_BODY = 64 << 20
HELLO = (0x3C85F7CE).to_bytes(4, "little")
"""The number that a client of a TCPStore says first."""
AWAY = (502, 503, 504)
"""Status codes of a server, or of a proxy before it, that may give another answer a moment later."""


class Interrupted(Exception):
    """`Client.interrupt` was called."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server's admin port is."""

    host: str
    port: int = DEFAULT_PORT
    encrypted: bool | None = None
    """What the scheme says, if there is one."""

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Reads `HOST`, `HOST:PORT` or `[IPV6]:PORT`, each also with `http://` or `https://` before it. A ValueError says what is wrong."""
        rest = text.strip()
        encrypted = True if rest.startswith("https://") else False if rest.startswith("http://") else None
        rest = rest.removeprefix("https://").removeprefix("http://").rstrip("/")
        bracketed = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?", rest)
        if bracketed:
            host, port = bracketed.groups()
        elif rest.count(":") > 1:  # an IPv6 address without brackets has no port
            host, port = rest, None
        else:
            host, _, port = rest.partition(":")
        if not host or not re.fullmatch(r"[\w.:%-]+", host):
            raise ValueError(f"endpoint {text!r} names no host; expected HOST:PORT, such as rallypoint:{DEFAULT_PORT}")
        if port is None or port == "":
            return cls(host, encrypted=encrypted)
        if not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"endpoint {text!r}: {port!r} is not a port; expected 1 to 65535")
        return cls(host, int(port), encrypted)

    @property
    def is_encrypted(self) -> bool:
        """Without a scheme: where RALLYPOINT_TLS_CA names an authority, but not on loopback, where a relay is plain."""
        if self.encrypted is not None:
            return self.encrypted
        return "RALLYPOINT_TLS_CA" in os.environ and not self._is_loopback()

    def _is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_store(endpoint: Endpoint) -> bool:
    """Whether a TCPStore answers there: to the hello and the ping of PyTorch 2.5 and newer."""
    nonce = os.urandom(4)
    try:
        with socket.create_connection((endpoint.host, endpoint.port), CONNECT_SECONDS) as connection:
            connection.sendall(b"\x00" + HELLO + b"\x0d" + nonce)
            return connection.recv(4) == nonce
    except OSError:
        return False


def _is_admin(endpoint: Endpoint) -> bool:
    """Whether a rallypoint server answers there. It has an error of its own for whoever asks for a link and is no relay."""
    try:
        with contextlib.closing(_connection(endpoint)) as connection:
            connection.request("GET", "/api/v1/link", headers=token_header())
            return "code" in json.loads(connection.getresponse().read(MAX_BODY))
    except (OSError, ValueError, TypeError, http.client.HTTPException):
        return False


def _connection(endpoint: Endpoint) -> http.client.HTTPConnection:
    """A connection that is not open yet."""
    if endpoint.is_encrypted:
        return http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=CONNECT_SECONDS, context=tls_context())
    return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=CONNECT_SECONDS)


def tls_context() -> ssl.SSLContext:
    """Whom this process trusts, and what it shows of itself.

    The variables are those of the program: RALLYPOINT_TLS_CA, RALLYPOINT_TLS_CLIENT_CERT and RALLYPOINT_TLS_CLIENT_KEY. The files are
    read for each connection, so new ones hold at once.
    """
    authority = os.environ.get("RALLYPOINT_TLS_CA")
    if not authority:
        raise ValueError("https:// needs the authority of the server's certificate: set RALLYPOINT_TLS_CA to its file")
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    certificate = os.environ.get("RALLYPOINT_TLS_CLIENT_CERT")
    if certificate:
        context.load_cert_chain(certificate, os.environ.get("RALLYPOINT_TLS_CLIENT_KEY"))
    return context


def token_header() -> dict[str, str]:
    """The header with the token of RALLYPOINT_TOKEN_FILE, the first in it. It is read for each request, so a new one holds at once."""
    file = os.environ.get("RALLYPOINT_TOKEN_FILE")
    if not file:
        return {}
    with open(file, encoding="utf-8") as text:
        lines = (line.split() for line in text)
        token = next((words[0] for words in lines if words and not words[0].startswith("#")), "")
    if not (token.isascii() and token.isprintable() and token):
        raise ValueError(f"RALLYPOINT_TOKEN_FILE: {file} holds no token, which is one word of printable ASCII characters")
    return {"Authorization": f"Bearer {token}"}


@dataclass(frozen=True)
class Answer:
    """An answer that is not an error. The status says whether the round is `complete` or still `waiting`."""

    status: int
    body: dict[str, Any]


OnTrouble = Callable[[str, float], None]
"""Is called with what is wrong, in words, and for how many seconds. When all is well again, the words are `""`."""


class Client:
    """One connection to a server. It is opened when needed, and opened again when it breaks."""

    def __init__(self, endpoint: Endpoint, longest_pause: float = LONGEST_PAUSE) -> None:
        self.endpoint = endpoint
        self._longest_pause = longest_pause
        self.has_sent = False
        """Whether a server may have seen a request."""
        self._connection: http.client.HTTPConnection | None = None
        self._has_answered = False
        self._interrupted = threading.Event()

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        *,
        patience: float,
        late: float = ANSWER_SECONDS,
        on_trouble: OnTrouble | None = None,
    ) -> Answer:
        """Sends `body` again and again until the server answers, but for at most `patience` seconds.

        Raises a ProblemError if the server refuses, an UnreachableError if it has not answered after `patience` seconds, and a
        NotRallypointError at once if what answers there cannot become the server's admin port by waiting. An answer may take as long as
        the body's `wait_seconds`, and `late` seconds more. Give a body that changes with time as a function.
        """
        started = time.monotonic()
        pause = FIRST_PAUSE
        troubled = False
        while True:
            reused = self._connection is not None
            said = body() if callable(body) else body
            payload, allowed = json.dumps(said).encode(), float(said.get("wait_seconds", 0.0)) + late
            try:
                answer = self._exchange(path, payload, allowed)
            except (OSError, http.client.HTTPException) as error:
                if reused and isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                    continue  # the server had closed an idle connection; a new one shows whether it is well
                lasting = None if self._has_answered else self._lasting(error)
                if lasting:
                    raise NotRallypointError(lasting) from error
                cause: Exception = error
            except ProblemError as refusal:
                if refusal.status not in AWAY:
                    raise
                cause = refusal
            else:
                if troubled and on_trouble:
                    on_trouble("", time.monotonic() - started)
                return answer
            lasted = time.monotonic() - started
            if lasted + pause > patience:
                if isinstance(cause, ProblemError):
                    raise cause
                raise UnreachableError(f"no answer from {self.endpoint} for {lasted:.0f} s: {self._explain(cause)}") from cause
            if on_trouble:
                on_trouble(self._explain(cause), lasted)
            troubled = True
            self.pause(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, self._longest_pause)

    def pause(self, seconds: float) -> None:
        """Sleeps, unless interrupted."""
        if self._interrupted.wait(seconds):
            raise Interrupted

    def interrupt(self) -> None:
        """Stops another thread that uses this client, now and in future: it gets an Interrupted."""
        self._interrupted.set()
        connection = self._connection
        sock = connection.sock if connection else None
        if sock:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection. The next request makes a new one."""
        connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def _exchange(self, path: str, payload: bytes, allowed: float) -> Answer:
        try:
            connection = self._connected()
            assert connection.sock is not None
            connection.sock.settimeout(allowed)
            self.has_sent = True
            connection.request("POST", path, payload, {"Content-Type": "application/json", **token_header()})
            response = connection.getresponse()
            self._has_answered = True
            raw = response.read(MAX_BODY)
            self._check_interrupted()
        except BaseException as error:
            # Also when a signal raised it: otherwise the rest of this answer would be read as the next one.
            self.close()
            if isinstance(error, Exception):
                self._check_interrupted()
            raise
        if response.will_close:
            self.close()
        return self._understand(response, raw)

    def _connected(self) -> http.client.HTTPConnection:
        self._check_interrupted()
        if self._connection is None:
            self._connection = _connection(self.endpoint)
            self._connection.connect()  # sets TCP_NODELAY
            self._check_interrupted()
        return self._connection

    def _check_interrupted(self) -> None:
        if self._interrupted.is_set():
            raise Interrupted

    def _understand(self, response: http.client.HTTPResponse, raw: bytes) -> Answer:
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            body = None
        if response.status < 300 and isinstance(body, dict):
            return Answer(response.status, body)
        if response.status in AWAY or (isinstance(body, dict) and "code" in body):
            raise problem(response.status, body if isinstance(body, dict) else {"detail": f"{response.status} {response.reason}"})
        self.close()
        raise NotRallypointError(
            f"{self.endpoint} answers HTTP {response.status} and not as a rallypoint server does: check host and port "
            f"(it must be the admin port, by default {DEFAULT_PORT}), and that the server is as new as this package"
        )

    def _lasting(self, error: Exception) -> str | None:
        """Why another try is worth nothing, if it is not. Only of a port that has not answered before."""
        if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return f"{self.endpoint} speaks no TLS: take https:// away, or unset RALLYPOINT_TLS_CA, or name the port that speaks it"
        if isinstance(error, (http.client.HTTPException, ConnectionResetError, ssl.SSLError)) and _is_store(self.endpoint):
            beside = replace(self.endpoint, port=DEFAULT_PORT)
            right = f"its admin port is {beside}" if _is_admin(beside) else f"name its admin port, by default {DEFAULT_PORT}"
            return f"{self.endpoint} is the port of a store, and not the server's admin port; {right}"
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
            return f"{self.endpoint}: {self._explain(error)}"
        return None

    def _explain(self, error: Exception) -> str:
        host, port = self.endpoint.host, self.endpoint.port
        if isinstance(error, ProblemError):
            return f"the server says: {error}"
        if isinstance(error, socket.gaierror):
            return f"the name {host!r} does not resolve ({error.strerror}): check the Service's name and namespace"
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"the server's certificate is not good for {host!r}: {error.verify_message}; is RALLYPOINT_TLS_CA its authority?"
        if isinstance(error, ssl.SSLError):
            return f"no TLS connection ({error.reason}): is the scheme right, and does the server take this client's certificate?"
        if isinstance(error, (http.client.HTTPException, ConnectionResetError)):
            return (
                f"what listens there does not speak HTTP, or went away ({type(error).__name__}): the endpoint must be the "
                f"server's admin port (by default {DEFAULT_PORT}), not its store port"
            )
        if isinstance(error, ConnectionRefusedError):
            return f"nothing listens on port {port} there: is the server up, and is this its admin port (by default {DEFAULT_PORT})?"
        if isinstance(error, TimeoutError):
            return "the connection or the answer took too long: check network policies, and that the server is healthy"
        return str(error) or type(error).__name__
