"""Hand the command's folder and environment to verl's processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PREFIXES, SUFFIXES = ("RETCON_", "HF_", "WANDB_"), ("_API_KEY", "_TOKEN")
"""Names of the variables that rollouts, downloads and trackers read."""


def add_environment(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """Add a set-up function to a runtime_env. Ray's RAY_RUNTIME_ENV_HOOK; each process of the run calls it first.

    Ray hands a function over through its own store. Values in `runtime_env["env_vars"]` are on the command line of each
    worker while it starts, and in a log that every account on the machine can read.
    """
    folder = Path.cwd()
    values = {k: v for k, v in os.environ.items() if k.startswith(PREFIXES) or k.endswith(SUFFIXES)}

    def take_environment() -> None:
        os.environ.update(values)
        if folder.is_dir():  # else this node does not share it
            os.chdir(folder)

    return {**(runtime_env or {}), "worker_process_setup_hook": take_environment}
