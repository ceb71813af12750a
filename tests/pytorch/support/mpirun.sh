#!/bin/sh
# Stands for Open MPI's mpirun, `mpirun -np N COMMAND...`, and for the sshd in the workers' pods: containers share their folder. As over
# ssh, the processes have none of the launcher's variables; as in Open MPI, each learns its rank from its environment.
case $0 in
*mpirun)
    size=$2
    shift 2
    printf '%s\n' "$size" "$@" >mpi-command.new
    mv mpi-command.new mpi-command
    rank=0
    while [ "$rank" -lt "$size" ]; do
        until [ -e "mpi-exit-$rank" ]; do /bin/sleep 0.2; done
        [ "$(cat "mpi-exit-$rank")" = 0 ] || exit 1
        rank=$((rank + 1))
    done
    ;;
*)
    until [ -e mpi-command ]; do /bin/sleep 0.2; done
    set --
    while IFS= read -r word; do set -- "$@" "$word"; done <mpi-command
    size=$1
    shift
    export OMPI_COMM_WORLD_RANK="$NODE_INDEX" OMPI_COMM_WORLD_SIZE="$size" OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1
    code=0
    "$@" || code=$?
    echo "$code" >mpi-exit-"$NODE_INDEX".new
    mv mpi-exit-"$NODE_INDEX".new mpi-exit-"$NODE_INDEX"
    exit "$code"
    ;;
esac
