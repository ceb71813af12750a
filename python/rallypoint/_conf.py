"""What torchrun's command line and the environment say about a node: `--rdzv-conf`, and where its rank comes from.

Every key that torchrun's c10d and static backends know is accepted. So on a command line, only `--rdzv-backend` has to change. Keys
that no backend knows are refused, because they are spelling mistakes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TORCHRUN_TIMEOUT = 900
"""torchrun adds `timeout=900` to every `--rdzv-conf` that has no timeout. So this value does not say what the user wants."""

KEYS = {
    "join_timeout": "how long a round may gather, in seconds",
    "last_call_timeout": "how long a round that has enough nodes waits for more, in seconds",
    "close_timeout": "how long closing the run may take at the end, in seconds",
    "heartbeat_timeout": "how late the answer to a keep-alive may be, in seconds",
    "keep_alive_interval": "a node must be heard from this often, in seconds",
    "keep_alive_max_attempt": "a node not heard from for this many intervals is lost",
    "read_timeout": "how long an operation of the agent on the round's store may take, in seconds",
    "node_rank": "the rank that this node must get; `none` to ask for none",
    "rank": "the same (the static backend's name for it)",
    "timeout": f"join_timeout, unless it is {TORCHRUN_TIMEOUT}",
    "store_type": "accepted, and without effect: the store is the server's",
    "is_host": "accepted, and without effect: no node hosts anything",
    "cas_backoff_max_seconds": "accepted, and without effect: nodes do not compete here",
}
"""Every key of `--rdzv-conf`, and what it does."""

POD_INDEX = ("RALLYPOINT_POD_INDEX", "POD_INDEX", "JOB_COMPLETION_INDEX")
"""Variables with the pod's index. The first one that is set counts."""


@dataclass(frozen=True)
class Settings:
    """What a node asks for. None means that the run or the server decides."""

    join_timeout: float | None = None
    last_call: float | None = None
    keep_alive: float | None = None
    keep_alive_misses: int | None = None
    close_timeout: float = 30.0
    heartbeat_timeout: float = 5.0
    read_timeout: float = 60.0
    node_rank: int | None = None
    node_rank_from: str = ""
    """Where the node rank comes from, in words."""
    notes: tuple[str, ...] = field(default=())
    """Says which given settings have no effect, or another effect than their name says."""


def parse(config: Mapping[str, Any], environment: Mapping[str, str], max_nodes: int) -> Settings:
    """Reads `--rdzv-conf` and the environment. A ValueError names the wrong key, and says what would be right."""
    conf = _Conf(config)
    notes: list[str] = []
    join_timeout = conf.seconds("join_timeout")
    timeout = conf.seconds("timeout")
    if timeout is not None and timeout != TORCHRUN_TIMEOUT:
        if join_timeout is None:
            join_timeout = timeout
            notes.append(f"timeout={timeout:g} is taken as join_timeout")
        elif join_timeout != timeout:
            notes.append(f"timeout={timeout:g} has no effect beside join_timeout={join_timeout:g}")
    if conf.text("store_type") not in (None, "tcp"):
        notes.append(f"store_type={conf.text('store_type')} has no effect: the store is the server's")
    if str(conf.text("is_host")).lower() in ("1", "true", "t", "yes", "y"):
        notes.append("is_host has no effect: no node hosts a store with this backend")
    rank, rank_from = _node_rank(conf, environment, max_nodes, notes)
    return Settings(
        join_timeout=join_timeout,
        last_call=conf.seconds("last_call_timeout"),
        keep_alive=conf.seconds("keep_alive_interval"),
        keep_alive_misses=conf.whole("keep_alive_max_attempt", least=1),
        close_timeout=conf.seconds("close_timeout") or Settings.close_timeout,
        heartbeat_timeout=conf.seconds("heartbeat_timeout") or Settings.heartbeat_timeout,
        read_timeout=conf.seconds("read_timeout") or Settings.read_timeout,
        node_rank=rank,
        node_rank_from=rank_from,
        notes=tuple(notes),
    )


class _Conf:
    """The keys and values, with errors that name them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        unknown = sorted(set(config) - set(KEYS))
        if unknown:
            near = difflib.get_close_matches(unknown[0], KEYS, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(KEYS)}"
            raise ValueError(f"--rdzv-conf: no key {unknown[0]!r}; {meant}")
        self.config = config

    def text(self, key: str) -> str | None:
        value = self.config.get(key)
        return None if value is None else str(value).strip()

    def seconds(self, key: str) -> float | None:
        text = self.text(key)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise ValueError(f"--rdzv-conf: {key}={text} must be seconds, more than 0")
        return value

    def whole(self, key: str, least: int) -> int | None:
        text = self.text(key)
        if text is None:
            return None
        if not text.isdigit() or int(text) < least:
            raise ValueError(f"--rdzv-conf: {key}={text} must be a whole number, at least {least}")
        return int(text)


def _node_rank(conf: _Conf, environment: Mapping[str, str], max_nodes: int, notes: list[str]) -> tuple[int | None, str]:
    """A rank that a user gave must be valid. The pod's index from the platform is used only if it can be a node rank."""
    for key in ("node_rank", "rank"):
        if conf.text(key) in ("none", "any"):
            return None, ""
        rank = conf.whole(key, least=0)
        if rank is not None:
            return _must_fit(rank, f"--rdzv-conf {key}", max_nodes)
    given = environment.get("PET_NODE_RANK", "").strip()
    if given:
        if not given.isdigit():
            raise ValueError(f"PET_NODE_RANK={given} must be a whole number, at least 0")
        return _must_fit(int(given), "PET_NODE_RANK", max_nodes)
    for name in POD_INDEX:
        index = environment.get(name, "").strip()
        if not index.isdigit():
            continue
        if name == "JOB_COMPLETION_INDEX" and not _is_alone(environment):
            notes.append("JOB_COMPLETION_INDEX is not taken as node rank: the JobSet has several jobs, each counts from 0")
            return None, ""
        if int(index) >= max_nodes:
            notes.append(f"{name}={index} is not taken as node rank: there are at most {max_nodes} nodes")
            return None, ""
        return int(index), name
    return None, ""


def _must_fit(rank: int, name: str, max_nodes: int) -> tuple[int, str]:
    if rank >= max_nodes:
        raise ValueError(f"{name}={rank}, but there are at most {max_nodes} nodes: it must be 0 to {max_nodes - 1}, or check --nnodes")
    return rank, name


def _is_alone(environment: Mapping[str, str]) -> bool:
    """Whether the pod's Job is the only one of its JobSet."""
    replicas = environment.get("REPLICATED_JOB_REPLICAS", "1").strip() or "1"
    return replicas == "1" and (environment.get("JOB_INDEX", "0").strip() or "0") == "0"
