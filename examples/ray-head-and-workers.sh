#!/bin/sh
# A Ray cluster whose pods start in any order: workers find the head, and the head waits for all.
#
# Every pod runs this script. rallypoint has to be reachable as RALLYPOINT_ADMIN (http://HOST:29501).
#   ROLE=head|worker   what this pod is
#   CLUSTER            the name of the cluster; a new one for each attempt, because all its pods meet once
#   PODS               how many pods it has, the head included
#   RAY                the ray command; tests put a stand-in here
set -eu
: "${ROLE:?head or worker}" "${CLUSTER:?the name of the cluster}" "${PODS:=5}" "${RAY:=ray}"
POD=${POD_NAME:-$(hostname)}

# The head must have rank 0; the others get what is left.
rank=
if [ "$ROLE" = head ]; then rank=--node-rank=0; fi

# All pods wait here for each other, at most 30 minutes; who is missing is said meanwhile.
met=$(rallypoint join --run-id "$CLUSTER" --nodes "$PODS" --node "$POD" --role "$ROLE" ${rank:+"$rank"} \
    ${POD_IP:+--addr "$POD_IP"} --timeout 30m --format env)
eval "$met"    # NNODES, NODE_RANK, PEERS, PEERS_HEAD, PEERS_WORKER

if [ "$ROLE" = head ]; then
    $RAY start --head --port=6379 --dashboard-host=0.0.0.0
else
    $RAY start --address="$PEERS_HEAD:6379"
fi

# Nobody goes on before every pod's Ray is up: then the driver can count on all of them.
rallypoint barrier "$CLUSTER/started" --nodes "$NNODES" --node "$POD" --timeout 10m
echo "$POD: all $NNODES pods are in; the head is $PEERS_HEAD"
