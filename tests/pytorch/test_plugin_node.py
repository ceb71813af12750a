"""The package against a real server, without torch: join, keep-alive, leave, close, barriers, peers, and servers that restart."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import installed
import pytest
import rallypoint
import rallypoint.rendezvous
from rallypoint import Action, ClosedError, GracefulExitError, Membership, MismatchError, TimedOutError
from rallypoint._http import Endpoint
from rallypoint.rendezvous import Identity, Node, Round, Terms, Waiting, node_id
from servers import Server, poll

pytest_plugins = ["plugin_fixtures"]


class Nodes:
    """Nodes of one run, each with a thread, since a join waits for the others."""

    def __init__(self, server: Server, run_id: str = "run", **terms: Any) -> None:
        self.endpoint = Endpoint("127.0.0.1", server.admin_port)
        self.run_id = run_id
        self.terms = {"last_call": 0.5, "keep_alive": 2, "keep_alive_misses": 3} | terms
        self.pool = ThreadPoolExecutor(16)
        self.made: list[Node] = []

    def node(self, name: str, nodes: tuple[int, int] = (2, 2), rank: int | None = None) -> Node:
        terms = Terms(*nodes, **self.terms)
        self.made.append(Node(self.endpoint, self.run_id, terms, Identity(node_id(), name, node_rank=rank)))
        return self.made[-1]

    def join(self, *nodes: Node) -> list[Future[Round]]:
        return [self.pool.submit(node.join) for node in nodes]

    def waiting(self, node: Node) -> Future[Round]:
        """Joins, and returns once the server has said that the node waits."""
        heard: list[Waiting] = []
        joined = self.pool.submit(node.join, on_waiting=heard.append)
        poll(lambda: heard, f"{node.identity.name} waits", 20)
        return joined

    def stop(self) -> None:
        """Whoever still waits gives up."""
        for node in self.made:
            node._client.interrupt()
        self.pool.shutdown()

    def together(self, *nodes: Node) -> list[Round]:
        return [joined.result(30) for joined in self.join(*nodes)]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that waits hears so several times a second, so that a test can know that it waits."""
    monkeypatch.setattr(rallypoint.rendezvous, "WAIT_SECONDS", 0.2)


@pytest.fixture
def nodes(meeting: Server) -> Iterator[Nodes]:
    made = Nodes(meeting)
    yield made
    made.stop()


@pytest.fixture
def slow_nodes(meeting: Server) -> Iterator[Nodes]:
    """Nodes whose loss would not be noticed within a test."""
    made = Nodes(meeting, keep_alive=60)
    yield made
    made.stop()


def ranks(rounds: list[Round]) -> list[int]:
    return [round.group_rank for round in rounds]


def hears(node: Node, action: Action) -> None:
    poll(lambda: node.news.action is action, f"{node.identity.name} hears {action}", 20)


def test_a_round_has_ranks_and_a_store_of_its_own(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    first = nodes.together(a, b)
    assert sorted(ranks(first)) == [0, 1]
    assert {(round.number, round.group_world_size) for round in first} == {(1, 2)}
    assert first[0].store == first[1].store and first[0].store
    again = nodes.together(b, a)
    assert again[0].number == again[1].number == 2
    assert again[0].store != first[0].store
    assert ranks(again) == ranks(first)[::-1], "nodes keep their ranks"


def test_requested_ranks_are_given(nodes: Nodes) -> None:
    assert ranks(nodes.together(nodes.node("a", rank=1), nodes.node("b", rank=0))) == [1, 0]


def test_a_rank_that_is_taken_names_both_nodes(nodes: Nodes) -> None:
    a = nodes.node("a", rank=1)
    waiting = nodes.waiting(a)
    with pytest.raises(MismatchError, match=r"(?s)a.*b") as caught:
        nodes.node("b", rank=1).join()
    assert caught.value.code == "duplicate_rank"
    a.close("end of the test")
    with pytest.raises(ClosedError):
        waiting.result(20)


def test_other_parameters_are_refused_and_named(nodes: Nodes) -> None:
    a = nodes.node("a", (3, 3))
    waiting = nodes.waiting(a)
    with pytest.raises(MismatchError, match=r"a \(127.0.0.1\).*min_nodes is 3 there and 2 here"):
        nodes.node("b", (2, 2)).join()
    a.close("end of the test")
    with pytest.raises(ClosedError):
        waiting.result(20)


def test_a_late_node_and_a_lost_one_make_the_others_join_again(nodes: Nodes) -> None:
    a, b, c = (nodes.node(name, (2, 3)) for name in "abc")
    nodes.together(a, b)
    assert a.news.action is Action.CONTINUE
    late = nodes.join(c)
    hears(a, Action.REJOIN)
    hears(b, Action.REJOIN)
    assert a.news.num_nodes_waiting == 1
    assert sorted(ranks([*nodes.together(a, b), late[0].result(30)])) == [0, 1, 2]
    c._presence.keep_alive.stop()  # as if its machine were gone
    hears(a, Action.REJOIN)
    assert "c" in a.news.reason
    assert a.news.num_nodes_waiting == 0
    assert sorted(ranks(nodes.together(a, b))) == [0, 1]


def test_leaving_is_heard_at_once(slow_nodes: Nodes) -> None:
    a, b = slow_nodes.node("a"), slow_nodes.node("b")
    slow_nodes.together(a, b)
    assert b.leave("maintenance")
    hears(a, Action.REJOIN)
    assert "maintenance" in a.news.reason


def test_a_node_that_nobody_refers_to_leaves(slow_nodes: Nodes) -> None:
    a, b = slow_nodes.node("a"), slow_nodes.node("b")
    slow_nodes.together(a, b)
    slow_nodes.made.remove(b)
    del b
    gc.collect()
    hears(a, Action.REJOIN)


def test_a_process_that_ends_leaves_and_its_keep_alive_does_not_hold_it(meeting: Server) -> None:
    program = f"""
import rallypoint
me = rallypoint.join("run", 2, endpoint="127.0.0.1:{meeting.admin_port}", name="child")
print(me.rank, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", program], env={"PYTHONPATH": str(installed.PACKAGE)})
    with rallypoint.join("run", 2, endpoint=f"127.0.0.1:{meeting.admin_port}") as me:
        assert child.wait(30) == 0
        poll(lambda: me.news.action is Action.REJOIN, "the child left", 20)
        assert "its process ended" in me.news.reason


def test_redundant_nodes_take_free_places_or_exit_gracefully(nodes: Nodes) -> None:
    a, b = nodes.node("a", (1, 1)), nodes.node("b", (1, 1))
    nodes.together(a)
    spare = nodes.waiting(b)
    a.leave("done")
    assert spare.result(20).number == 2
    standby = nodes.waiting(nodes.node("c", (1, 1)))
    b.close("finished")
    with pytest.raises(GracefulExitError, match="finished"):
        standby.result(20)
    hears(b, Action.CLOSED)
    with pytest.raises(ClosedError):
        nodes.node("d", (1, 1)).join()


def test_a_round_that_nobody_else_joins_times_out(meeting: Server) -> None:
    with pytest.raises(TimedOutError, match="1 more node"):
        rallypoint.join("run", 2, timeout=1, endpoint=f"127.0.0.1:{meeting.admin_port}")


def test_nodes_wait_through_a_restart_of_the_server(nodes: Nodes, meeting: Server, meetings: Callable[..., Server]) -> None:
    waiting = nodes.waiting(nodes.node("a"))
    meeting.stop()
    meetings(again=meeting)
    assert sorted(ranks([*nodes.together(nodes.node("b")), waiting.result(30)])) == [0, 1]


def test_a_restarted_server_adopts_the_round(nodes: Nodes, meeting: Server, meetings: Callable[..., Server]) -> None:
    a, b = nodes.node("a", (2, 3)), nodes.node("b", (2, 3))
    first = nodes.together(a, b)
    meeting.stop()
    server = meetings(again=meeting)
    server.await_log("goes on after a restart of the server", 20)
    assert a.news.action is Action.CONTINUE
    late = nodes.join(nodes.node("c", (2, 3)))
    hears(a, Action.REJOIN)
    hears(b, Action.REJOIN)
    second = [*nodes.together(a, b), late[0].result(30)]
    assert {round.number for round in second} == {first[0].number + 1}
    assert ranks(second)[:2] == ranks(first)


def test_peers_meet_once(meeting: Server) -> None:
    endpoint = f"127.0.0.1:{meeting.admin_port}"
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(rallypoint.peers, "ray", 3, endpoint=endpoint, name=f"node-{rank}", role="head" if rank == 0 else "worker", node_rank=rank)
            for rank in range(3)
        ]
        found = [future.result(30) for future in asked]
    assert found[0] == found[1] == found[2]
    assert [(peer.group_rank, peer.name, peer.role) for peer in found[0]] == [(0, "node-0", "head"), (1, "node-1", "worker"), (2, "node-2", "worker")]
    assert {peer.address for peer in found[0]} == {"127.0.0.1"}


def test_peers_read_the_payload_of_each_join(meeting: Server) -> None:
    def meet(member: str) -> list[list[str | None]]:
        me = rallypoint.join("run", 2, endpoint=endpoint, name=member, payload=f"{member} 1", keep_alive=1.5, keep_alive_misses=4)
        assert (me.round.keep_alive, me.round.keep_alive_misses) == (1.5, 4)
        read = [[peer.payload for peer in me.peers]]
        for payload in (f"{member} 2", None):
            me.rejoin(payload)
            read.append([peer.payload for peer in me.peers])
        rallypoint.barrier("read", 2, endpoint=endpoint)
        me.leave()
        return [sorted(payload or "" for payload in round) for round in read]

    endpoint = f"127.0.0.1:{meeting.admin_port}"
    with ThreadPoolExecutor(2) as pool:
        read = [future.result(60) for future in [pool.submit(meet, "a"), pool.submit(meet, "b")]]
    assert read == 2 * [[["a 1", "b 1"], ["a 2", "b 2"], ["", ""]]]


def test_membership_joins_again(meeting: Server) -> None:
    endpoint = f"127.0.0.1:{meeting.admin_port}"
    with ThreadPoolExecutor(2) as pool:
        members: list[Membership] = [
            future.result(30) for future in [pool.submit(rallypoint.join, "run", "2:2", endpoint=endpoint, store=True) for _ in range(2)]
        ]
        assert sorted(member.rank for member in members) == [0, 1]
        assert members[0].world_size == len(members[0].peers) == 2
        rounds = [future.result(30) for future in [pool.submit(member.rejoin) for member in members]]
    assert [round.number for round in rounds] == [2, 2]
    members[0].close()
    poll(lambda: members[1].news.action is Action.CLOSED, "it is closed", 20)


def test_barrier_releases_all_and_can_be_used_again(meeting: Server) -> None:
    endpoint = f"127.0.0.1:{meeting.admin_port}"
    with ThreadPoolExecutor(3) as pool:
        for use in (1, 2):
            arrived = [pool.submit(rallypoint.barrier, "epoch", 3, endpoint=endpoint) for _ in range(3)]
            assert [future.result(30) for future in arrived] == [use] * 3


def test_barrier_names_who_is_missing(meeting: Server) -> None:
    with pytest.raises(TimedOutError) as caught:
        rallypoint.barrier("b", members=["x", "y"], participant="x", timeout=0.5, endpoint=f"127.0.0.1:{meeting.admin_port}")
    assert caught.value.extra["missing"] == ["y"]


def test_wrong_use_is_a_value_error() -> None:
    for call in (
        lambda: rallypoint.barrier("b"),
        lambda: rallypoint.barrier("b", members=["x"], participant="z"),
        lambda: rallypoint.join("run", 0),
        lambda: rallypoint.join("run", "4:2"),
        lambda: rallypoint.join("run", "many"),
    ):
        with pytest.raises(ValueError, match="barrier|nodes"):
            call()
