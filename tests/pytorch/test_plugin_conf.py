"""What the plugin reads of torchrun's command line and of the environment."""

from __future__ import annotations

from typing import Any

import installed  # noqa: F401  (puts the package on the path)
import pytest
from rallypoint._conf import KEYS, parse
from rallypoint._http import Endpoint


def test_the_keys_of_torchs_own_backends_are_accepted() -> None:
    """Every key that the installed torch reads, found in its source."""
    import inspect
    import re

    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous, static_tcp_rendezvous

    text = "".join(map(inspect.getsource, (c10d_rendezvous_backend, dynamic_rendezvous, static_tcp_rendezvous)))
    keys = set(re.findall(r'params\.(?:get|get_as_int|get_as_bool|config\.get)\(\s*"(\w+)"', text))
    keys |= {f"{name}_timeout" for name in re.findall(r'_get_timeout\(params, "(\w+)"\)', text)}
    assert {"join_timeout", "last_call_timeout", "is_host", "read_timeout", "keep_alive_interval"} <= keys
    assert keys <= set(KEYS)


def test_seconds_and_counts_arrive() -> None:
    conf = {"join_timeout": "60", "last_call_timeout": "1.5", "keep_alive_interval": "2", "keep_alive_max_attempt": "4", "read_timeout": "9"}
    settings = parse(conf, {}, max_nodes=2)
    assert (settings.join_timeout, settings.last_call, settings.keep_alive, settings.keep_alive_misses) == (60.0, 1.5, 2.0, 4)
    assert settings.read_timeout == 9.0
    assert settings.notes == ()


@pytest.mark.parametrize(
    ("conf", "join_timeout", "noted"),
    [
        ({"timeout": 900}, None, False),  # torchrun's own
        ({"timeout": "1800"}, 1800.0, True),
        ({"timeout": "1800", "join_timeout": "60"}, 60.0, True),
        ({"timeout": 900, "join_timeout": "60"}, 60.0, False),
    ],
)
def test_timeout_means_join_timeout_unless_torchrun_put_it_there(conf: dict[str, Any], join_timeout: float | None, noted: bool) -> None:
    settings = parse(conf, {}, max_nodes=2)
    assert settings.join_timeout == join_timeout
    assert bool(settings.notes) == noted


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"join_timout": "60"}, "did you mean 'join_timeout'"),
        ({"colour": "red"}, "known are join_timeout"),
        ({"join_timeout": "soon"}, "join_timeout=soon must be seconds"),
        ({"join_timeout": "0"}, "more than 0"),
        ({"join_timeout": "inf"}, "join_timeout=inf"),
        ({"keep_alive_max_attempt": "2.5"}, "whole number"),
        ({"node_rank": "-1"}, "whole number"),
        ({"node_rank": "4"}, "at most 4 nodes"),
    ],
)
def test_what_is_wrong_is_said(conf: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(conf, {}, max_nodes=4)


@pytest.mark.parametrize(
    ("conf", "environment", "rank", "source"),
    [
        ({}, {}, None, ""),
        ({"node_rank": "3"}, {"PET_NODE_RANK": "1"}, 3, "--rdzv-conf node_rank"),
        ({"rank": "2"}, {}, 2, "--rdzv-conf rank"),
        ({}, {"PET_NODE_RANK": "1", "JOB_COMPLETION_INDEX": "2"}, 1, "PET_NODE_RANK"),
        ({}, {"RALLYPOINT_POD_INDEX": "2", "JOB_COMPLETION_INDEX": "3"}, 2, "RALLYPOINT_POD_INDEX"),
        ({}, {"JOB_COMPLETION_INDEX": "3"}, 3, "JOB_COMPLETION_INDEX"),
        ({"node_rank": "none"}, {"JOB_COMPLETION_INDEX": "3"}, None, ""),
        # No node rank: a pod of a greater set, and pods that several Jobs count from 0.
        ({}, {"JOB_COMPLETION_INDEX": "4"}, None, ""),
        ({}, {"JOB_COMPLETION_INDEX": "1", "JOB_INDEX": "1"}, None, ""),
        ({}, {"JOB_COMPLETION_INDEX": "1", "REPLICATED_JOB_REPLICAS": "2"}, None, ""),
    ],
)
def test_node_rank(conf: dict[str, str], environment: dict[str, str], rank: int | None, source: str) -> None:
    settings = parse(conf, environment, max_nodes=4)
    assert (settings.node_rank, settings.node_rank_from) == (rank, source)


def test_a_rank_of_torchrun_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="PET_NODE_RANK=4.*0 to 3.*--nnodes"):
        parse({}, {"PET_NODE_RANK": "4"}, max_nodes=4)


@pytest.mark.parametrize(
    ("text", "host", "port", "encrypted"),
    [
        ("server", "server", 29501, None),
        ("server:80", "server", 80, None),
        ("http://server.ns.svc:80/", "server.ns.svc", 80, False),
        ("https://server", "server", 29501, True),
        ("[::1]:80", "::1", 80, None),
        ("[::1]", "::1", 29501, None),
        ("fe80::1%eth0", "fe80::1%eth0", 29501, None),
    ],
)
def test_endpoint(text: str, host: str, port: int, encrypted: bool | None) -> None:
    assert Endpoint.parse(text) == Endpoint(host, port, encrypted)


def test_without_a_scheme_an_authority_decides_but_not_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    places = ["server", "http://server", "https://server", "127.0.0.1", "[::1]:80", "localhost", "https://127.0.0.1"]
    said = [text.startswith("https://") for text in places]
    monkeypatch.delenv("RALLYPOINT_TLS_CA", raising=False)
    assert [Endpoint.parse(text).is_encrypted for text in places] == said
    monkeypatch.setenv("RALLYPOINT_TLS_CA", "ca.pem")
    assert [Endpoint.parse(text).is_encrypted for text in places] == [True, *said[1:]]


@pytest.mark.parametrize("text", ["", ":80", "server:port", "server:0", "server:70000", "https://", "a b:1"])
def test_bad_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        Endpoint.parse(text)
