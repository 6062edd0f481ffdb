#!/usr/bin/env bash
# verl 0.9 lets an agent loop return several outputs of one rollout (sub-agents, compacted histories). One would guess that
# the group's baseline goes by rollouts whatever the estimator, as the trainer calls one function for all of them,
# `compute_advantage_for_multi_trajectories`. It does so for `grpo` alone. For `rloo`, `opo`, `gpg` and
# `reinforce_plus_plus_baseline` each output is a member of the group: of two rollouts, one right and one wrong, the right one
# has as much less advantage as it has more outputs, and the wrong one has more against it. Nothing warns. It matters here since a
# policy that delegates is then paid less for being right than one that does not: Retcon's plug-in refuses `credit.kind =
# "inherit"` with another estimator than grpo. Source: verl/trainer/ppo/v1/utils.py, lines 148 to 222.
# Needs Python 3.11 or 3.12 and a package index (2 GB). Exits non-zero if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d /tmp/verl-children-XXXXXX)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3.11} -m venv "$folder/venv"
pip=("$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" torch==2.13.0 torchdata==0.11.0 tensordict==0.15.3 ray==2.56.1 transformers==5.23.0 TransferQueue==0.1.11 \
  hydra-core==1.3.8 omegaconf==2.3.1 datasets==5.2.0 peft==0.21.2 accelerate==1.15.0 codetiming==1.4.0 dill==0.4.1 \
  pandas==3.1.1 cachetools==8.0.1 fastapi==0.165.0 uvicorn==0.54.0 orjson==3.13.0 pyzmq==27.3.0 pillow==12.3.0 2>/dev/null
"${pip[@]}" --no-deps verl==0.9.1 2>/dev/null
cat >"$folder/advantages.py" <<'PY'
import sys
import warnings
from importlib.metadata import version

warnings.filterwarnings("ignore")
import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories


def advantages(estimator, right):
    """Of a right rollout with so many outputs, and of a wrong one with one."""
    keys = [*(f"prompt_0_{n}" for n in range(right)), "prompt_1_0"]
    rewards = torch.zeros(len(keys), 2)
    rewards[:right, -1] = 1.0
    ones = torch.ones(len(keys), 2, dtype=torch.int64)
    data = DataProto.from_dict(
        tensors={"response_mask": ones, "token_level_rewards": rewards},
        non_tensors={"uid": np.array(["prompt"] * len(keys), dtype=object)},
    )
    found = compute_advantage_for_multi_trajectories(
        data, batch_keys=keys, adv_estimator=estimator, norm_adv_by_std_in_grpo=False
    ).batch["advantages"]
    return round(float(found[0, 0]), 2), round(float(found[-1, 0]), 2)


print(f"verl {version('verl')}, torch {version('torch')}: advantages of the right and of the wrong rollout")
found = {name: [advantages(name, outputs) for outputs in (1, 3)] for name in ("grpo", "rloo", "opo", "gpg")}
for name, (one, three) in found.items():
    print(f"{name}: {one}; where the right one has three outputs: {three}")
sys.exit(
    found != {"grpo": [(0.5, -0.5)] * 2, "rloo": [(1.0, -1.0), (0.33, -1.0)], "opo": [(0.5, -0.5), (0.25, -0.75)],
              "gpg": [(1.0, -1.0), (0.33, -1.0)]}
)
PY
"$folder/venv/bin/python" "$folder/advantages.py" 2>/dev/null
