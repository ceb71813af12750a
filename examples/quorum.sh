#!/bin/sh
# Peer discovery with a quorum: the addresses of all pods that are there, as soon as QUORUM of them are and no more came
# for 5 seconds, or failure after 60 seconds with the reason. Prints one address a line, by rank.
#
# Every pod runs this script. rallypoint has to be reachable as RALLYPOINT_ADMIN (http://HOST:29501).
#   SERVICE    the name under which the pods meet
#   QUORUM     how many must be there
#   MOST       how many there may be
set -eu
: "${SERVICE:?the name under which the pods meet}" "${QUORUM:=4}" "${MOST:=64}"

exec rallypoint join --run-id "$SERVICE" --nodes "$QUORUM:$MOST" --node "${POD_NAME:-$(hostname)}" \
    ${POD_IP:+--addr "$POD_IP"} --last-call "${LAST_CALL:-5s}" --timeout "${PATIENCE:-60s}" --format hosts
