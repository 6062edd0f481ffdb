"""Ends verl's trainer before it makes a worker, and writes what it had: for launch.sh on a Ray that runs already."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class RetconSampler:
    """verl makes it first of all in its trainer, in an actor, whose folder is that of the command."""

    def __init__(self, refill_fn: Any, **about: Any) -> None:
        config = refill_fn.__self__.config
        found = {
            "nodes": [config.trainer.nnodes, config.trainer.n_gpus_per_node],
            "model": config.actor_rollout_ref.model.path,
            "recipe": config.retcon.recipe,
            "overrides": list(config.retcon.overrides),
            "token": os.environ.get("RETCON_SANDBOX_TOKEN"),
        }
        Path("found.json").write_text(json.dumps(found))
        raise SystemExit("here it ends")
