"""Fixtures of tests/pytorch: a rallypoint server, or as many as a test wants, and PyTorch's own server beside it.

    rallypoint            one running server with default flags: .port, .admin_port, .endpoint, .log_text(), .client()
    rallypoint_factory    call it with extra flags of `rallypoint serve`, as often as needed; returns such a server
    store_server          the test runs twice, once with each kind of server: .kind is "rallypoint" or "torch"
    connect               call it for a connection to `store_server` that sends hand-made requests

Every server ends with its test. When a test fails, the logs of its rallypoint servers are in the report.
Run them with `"$(scripts/venv)/bin/pytest" tests/pytorch`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

# What several tests share, and the programs that they start. Each test module imports it by its name.
sys.path.insert(0, str(Path(__file__).with_name("support")))
from servers import TORCH_VERSION, Server, StoreServer, TorchHost, TorchServer  # noqa: E402
from wire import HELLO, WireClient  # noqa: E402

TEST_TIMEOUT = 120
# Each torch client looks up the name of its server's address. Where a name server answers late or never, that costs 5 s
# a client; nothing here depends on the answer.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

SERVERS = pytest.StashKey[list[Server]]()
# The bytes of a 2.0 client do not tell it from a 2.1 client (proto-notes), so the server has to be told.
DIALECT = ("--legacy-dialect", "2.0") if TORCH_VERSION < (2, 1) else ()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store-server",
        choices=("rallypoint", "torch", "both"),
        default="both",
        help="the server that tests with `store_server` run against (default: both, one after the other)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "requires(*methods): skip, and say so, where this torch's TCPStore lacks one of the methods"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_server" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--store-server")
        metafunc.parametrize("store_server", ["rallypoint", "torch"] if chosen == "both" else [chosen], indirect=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("requires"):
        missing = [method for method in marker.args if not hasattr(dist.TCPStore, method)]
        if missing:
            pytest.skip(f"TCPStore of torch {torch.__version__} has no {', '.join(missing)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the logs of the test's servers to the report of a failure."""
    report = yield
    nothing: list[Server] = []
    if report.failed and report.when != "teardown":
        for number, server in enumerate(item.stash.get(SERVERS, nothing), 1):
            report.sections.append((f"log of rallypoint server {number} (port {server.port})", server.log_text()))
    return report


@pytest.fixture(autouse=True)
def variables() -> Iterator[None]:
    """Each test begins with the variables of the first: the plugin sets some for the ranks of its process, which may be this one."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def rallypoint_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Server]]:
    """Starts rallypoint servers: `rallypoint_factory("--max-value", "1MiB")`. All of them end with the test."""
    started: list[Server] = []
    request.node.stash[SERVERS] = started

    def start(*arguments: str) -> Server:
        folder: Path = tmp_path_factory.mktemp("rallypoint")
        failure = ""
        try:
            started.append(Server.start(folder, *DIALECT, *arguments))
        except (FileNotFoundError, RuntimeError, TimeoutError) as error:
            failure = str(error)
        if failure:
            pytest.fail(failure, pytrace=False)
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def rallypoint(rallypoint_factory: Callable[..., Server]) -> Server:
    """A running rallypoint server with default flags."""
    return rallypoint_factory()


@pytest.fixture(scope="session")
def torch_host() -> Iterator[TorchHost]:
    """The child process in which PyTorch's servers run."""
    host = TorchHost()
    yield host
    host.stop()


@pytest.fixture
def torch_server(torch_host: TorchHost) -> Iterator[TorchServer]:
    """A fresh, empty store of PyTorch's own server."""
    server = TorchServer(torch_host)
    yield server
    server.stop()


@pytest.fixture
def store_server(request: pytest.FixtureRequest) -> StoreServer:
    """A fresh, empty store: of rallypoint, or of PyTorch's own server."""
    server: StoreServer = request.getfixturevalue("rallypoint" if request.param == "rallypoint" else "torch_server")
    return server


@pytest.fixture
def connect(store_server: StoreServer) -> Iterator[Callable[..., WireClient]]:
    """Opens connections to the server, and closes them with the test."""
    opened: list[WireClient] = []

    def connect(hello: bytes = HELLO) -> WireClient:
        opened.append(WireClient(store_server.host, store_server.port, hello))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()
