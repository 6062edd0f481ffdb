#!/usr/bin/env bash
# A Ray over several nodes for launch.sh. On the first: bash recipes/verl/ray.sh head; on the others, with the address that
# it prints: bash recipes/verl/ray.sh HOST:6379. Under Slurm: srun --ntasks-per-node=1 bash recipes/verl/ray.sh slurm
set -euo pipefail

port=6379
case ${1:?"head, HOST:PORT or slurm"} in
  head) exec ray start --head --port=$port --block ;;
  slurm)
    first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    if [[ $SLURM_NODEID == 0 ]]; then exec ray start --head --port=$port --block; fi
    sleep 20 # until the head is up
    exec ray start --address="$first:$port" --block ;;
  *) exec ray start --address="$1" --block ;;
esac
