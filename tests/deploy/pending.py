"""What the manifests, rules and the dashboard use and the program does not have yet.

A test fails as soon as the program has one of them: then take it out here, and its checks begin.
"""

from __future__ import annotations

COMMANDS: set[str] = {"run", "join", "barrier"}
FLAGS: set[tuple[str, str]] = {("wait", "--nodes")}
VARIABLES: set[str] = {"RALLYPOINT_RUN_ID", "RALLYPOINT_NODES"}
METRICS: set[str] = {
    "rallypoint_barrier_arrived",
    "rallypoint_barrier_expected",
    "rallypoint_node_deaths_total",
    "rallypoint_observations_lost_total",
    "rallypoint_ranks_expected",
    "rallypoint_ranks_joined",
    "rallypoint_rendezvous_complete",
    "rallypoint_rendezvous_expected_nodes",
    "rallypoint_rendezvous_join_duration_seconds",
    "rallypoint_rendezvous_joined_nodes",
    "rallypoint_rendezvous_kind",
    "rallypoint_rendezvous_missing_nodes",
    "rallypoint_rendezvous_round",
    "rallypoint_rendezvous_rounds_total",
    "rallypoint_rendezvous_waiting_nodes",
}
