#!/usr/bin/env bash
# hydra/OmegaConf configurations of RL trainers (verl, and recipes for it) say `nnodes: ${oc.decode:${oc.env:NODES,1}}`, and
# people start them with `NODES=8 python -m …`. One would guess that the value is settled when the command reads it: the
# driver prints 8. But an unresolved DictConfig pickles its interpolations as text, and a Ray actor resolves them anew. On a
# Ray that the command starts, actors inherit its environment, and all is well; on a Ray that runs already (every
# multi-node run) they have that of `ray start`: the default, 1, without a word. verl 0.9.1 hands its configuration over so
# (verl/trainer/main_ppo.py, `runner.run.remote(config)`, resolved only in `TaskRunnerV1.run`). It matters here since a run
# asked for on 64 GPUs trains on 8, and with another model. Mended by `OmegaConf.resolve(config)` before `.remote(config)`.
# Needs Python 3.11 or 3.12 and a package index. Exits non-zero if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d /tmp/oc-env-XXXXXX)
${PYTHON:-python3.11} -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet ray==2.56.1 omegaconf==2.3.1 2>/dev/null
export PATH=$folder/venv/bin:$PATH RAY_USAGE_STATS_ENABLED=0
env -u NODES ray start --head --block --node-ip-address 127.0.0.1 --port 6411 --num-cpus 1 --include-dashboard false \
  --object-store-memory 100000000 --temp-dir "$folder/ray" >"$folder/log" 2>&1 &
head=$!
trap 'kill $head; wait $head 2>/dev/null || true; rm -rf "$folder"' EXIT
cat >"$folder/driver.py" <<'PY'
import sys
import time
from importlib.metadata import version

import ray
from omegaconf import OmegaConf


@ray.remote(num_cpus=0)
def nodes(config):
    return config.trainer.nnodes


for _ in range(60):
    try:
        ray.init(address="127.0.0.1:6411", log_to_driver=False, logging_level="ERROR")
        break
    except ConnectionError:
        time.sleep(2)
config = OmegaConf.create({"trainer": {"nnodes": "${oc.decode:${oc.env:NODES,1}}"}})
driver, actor = config.trainer.nnodes, ray.get(nodes.remote(config))
OmegaConf.resolve(config)
resolved = ray.get(nodes.remote(config))
print(f"ray {version('ray')}, omegaconf {version('omegaconf')}, NODES=8")
print(f"driver reads {driver}; actor reads {actor}; actor, of a config resolved before it was sent, {resolved}")
sys.exit((driver, actor, resolved) != (8, 1, 8))
PY
NODES=8 python "$folder/driver.py"
