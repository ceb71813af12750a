"""Fixtures of tests/page: a real headless Chromium, and an admin port that says what a test wants.

    server       one `rallypoint serve` for all tests, with its log: .url, .store_port
    admin        a fake admin port that serves the real server's page: see admin.Admin
    open_page    call it for a browser page of an admin URL: see browser.Page

A test fails if the page's script failed or broke its own content policy. RALLYPOINT_BIN names the binary
(default: target/release/rallypoint); run by `scripts/test page`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from admin import Admin, page_of
from browser import Browser, Page
from documents import REPOSITORY


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(60))


@dataclass
class RealServer:
    url: str
    store_port: int


@pytest.fixture(scope="session")
def binary() -> Path:
    path = Path(os.environ.get("RALLYPOINT_BIN") or REPOSITORY / "target" / "release" / "rallypoint")
    if not os.access(path, os.X_OK):
        pytest.fail(f"no rallypoint binary at {path}: run `cargo build --release`, or name one in RALLYPOINT_BIN")
    return path


@pytest.fixture(scope="session")
def server(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("server")
    ports_file, log = folder / "ports.json", folder / "log"
    command = [binary, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ports-file", ports_file]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_")}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            deadline = time.monotonic() + 20
            while not ports_file.exists():
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.01)
            ports = json.loads(ports_file.read_text())
            yield RealServer(f"http://127.0.0.1:{ports['admin']}", ports["stores"][0])
        finally:
            process.kill()


@pytest.fixture
def admin(server: RealServer) -> Iterator[Admin]:
    admin = Admin(*page_of(server.url))
    admin.start()
    yield admin
    admin.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.quit()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[[str], Page]]:
    browser.reset()
    yield browser.open
    assert browser.complaints() == []
