"""`rallypoint status` on a terminal and beside one, with a server that comes and goes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from admin import Admin
from documents import example, run_of


@pytest.fixture
def silent_admin() -> Iterator[Admin]:
    """One without a page: no browser comes here."""
    admin = Admin()
    admin.start()
    yield admin
    admin.stop()


class Output:
    """What a program has written so far, from a file descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.text = ""

    def until(self, words: str, patience: float = 15) -> str:
        """Everything up to and with `words`; what comes behind is left for the next call."""
        deadline = time.monotonic() + patience
        while words not in self.text:
            assert time.monotonic() < deadline, f"`{words}` was not written, but:\n{self.text!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                self.text += os.read(self.fd, 65536).decode()
        before, after = self.text.split(words, 1)
        self.text = after
        return before + words


@contextmanager
def watching(command: list[str | Path], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RALLYPOINT_", "NO_COLOR"))}
    process = subprocess.Popen(command, env={**environment, "TERM": "xterm"}, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_on_a_terminal_the_picture_is_redrawn_in_place(binary: Path, silent_admin: Admin) -> None:
    admin = silent_admin
    admin.set(example("run_4_nodes_one_missing"))
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [binary, "status", admin.url, "--watch", "--interval", "50ms"]
    with watching(command, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        output = Output(main)
        first = output.until("missing: node 2 (train-llm-2)")
        assert f"{admin.url}, 22:15:00 UTC" in first
        assert "\x1b[32m####" in first, "a terminal gets colour"
        # Title, gap, run, explanation in one line, remedy in two.
        assert output.until("\x1b[J").endswith("\x1b[7F\x1b[J")
        admin.set(run_of(4, 4))
        output.until("4/4 nodes")
        assert "running for" in output.until("\x1b[J")

        admin.stop()
        output.until("no answer for ")
        gone = output.until("\x1b[J")
        assert "trying again: " in gone and "refused" in gone
        assert "what was there at 22:15:00 UTC:" in gone and "4/4 nodes" in gone
        admin.set(run_of(4, 2))
        admin.start()
        output.until("2/4 nodes")
        assert process.poll() is None
    os.close(main)


def test_no_color_is_obeyed(binary: Path, silent_admin: Admin) -> None:
    silent_admin.set(example("run_4_nodes_one_missing"))
    main, terminal = pty.openpty()
    for environment, colored in [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]:
        base = {"PATH": os.environ["PATH"], "TERM": "xterm"}
        subprocess.run([binary, "status", silent_admin.url], stdout=terminal, check=True, env={**base, **environment}, timeout=20)
        assert ("\x1b[" in Output(main).until("server?")) == colored, environment
    os.close(terminal)
    os.close(main)


def test_without_a_terminal_each_change_is_a_line(binary: Path, silent_admin: Admin) -> None:
    admin = silent_admin
    admin.set(example("run_4_nodes_one_missing"))
    command = [binary, "status", admin.url, "--watch", "--interval", "50ms"]
    with watching(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        out, err = Output(process.stdout.fileno()), Output(process.stderr.fileno())
        assert out.until("\n") == "22:15:00 train-llm round 0: joining, 3/4 nodes\n"
        assert out.until("\n").startswith("22:15:00 warning: train-llm round 0: 3 of 4 nodes have joined, the first 41 s ago; announced")
        admin.stop()
        assert "trying again until it answers" in err.until("\n")
        admin.set(run_of(4, 4))
        admin.start()
        assert "answers again after" in err.until("\n")
        assert out.until("\n") == "22:15:00 train-llm round 0: running, 4/4 nodes\n"
        admin.remove("train-llm")
        assert out.until("\n") == "22:15:00 train-llm round 0: no longer shown\n"


def test_documents_are_one_on_a_line_and_only_when_something_changes(binary: Path, silent_admin: Admin) -> None:
    admin = silent_admin
    admin.set(run_of(4, 3))
    command = [binary, "status", admin.url, "--watch", "--json", "--interval", "20ms"]
    with watching(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        out = Output(process.stdout.fileno())
        assert '"joined":3' in out.until("\n")
        asked = len(admin.requests)
        while len(admin.requests) < asked + 5:
            time.sleep(0.01)
        admin.set(run_of(4, 4))
        assert '"joined":4' in out.until("\n")
        assert out.text == ""
