#!/bin/sh
# Runs `flstudy ARGUMENTS`. A driver can join a Ray cluster only from one of its nodes, so where RAY_ADDRESS names a
# cluster this container becomes a node first, one without cores or GPUs: no trial runs beside the driver.
set -eu
if [ -n "${RAY_ADDRESS:-}" ]; then
    if ! told=$(ray start --address="$RAY_ADDRESS" --num-cpus=0 --num-gpus=0 --disable-usage-stats 2>&1); then
        echo "$told" >&2
        echo "RAY_ADDRESS must name the head of a Ray cluster, got $RAY_ADDRESS: start the profile cluster first" >&2
        exit 1
    fi
fi
exec flstudy "$@"
