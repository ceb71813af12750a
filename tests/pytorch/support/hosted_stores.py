"""A plugin of pytest for suites of other projects: where a test would host a TCPStore, `rallypoint serve` hosts it, and the test is its client."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from servers import Server

hosted: list[Server] = []


class Hosted(dist.TCPStore):
    def __init__(self, host_name: str, port: int = 0, world_size: int | None = None, is_master: bool = False, **options: Any) -> None:
        if is_master:
            where = ["--listen", f"127.0.0.1:{port}"] if port else []
            hosted.append(Server.start(Path(tempfile.mkdtemp()), *where))
            host_name, port = hosted[-1].host, hosted[-1].port
        super().__init__(host_name, port, world_size, False, **options)


dist.TCPStore = Hosted  # type: ignore[misc]


@pytest.hookimpl(tryfirst=True)  # NVRx's suite ends its process there
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.pluginmanager.get_plugin("terminalreporter").write_line(
        f"\n{len(hosted)} stores were hosted by rallypoint, for {session.testscollected} tests; {session.testsfailed} failed"
    )
