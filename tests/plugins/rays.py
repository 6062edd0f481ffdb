"""A Ray for tests: their own, or that of RAY_ADDRESS, where a machine is too busy to start one in time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

ROOT = Path(__file__).parents[2]


@contextmanager
def a_ray() -> Iterator[None]:
    """A Ray of our own on the loopback, whose processes end with it and find what is tested; that of RAY_ADDRESS where
    there is one, which was started with the same PYTHONPATH."""
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests/plugins")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  else 15 beyond our own, at which nothing moves on a busy machine
    os.environ.update(VERL_LOGGING_LEVEL="CRITICAL", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1",
                      RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")  # fmt: skip
    about: dict[str, Any] = {"log_to_driver": bool(os.environ.get("RETCON_RAY_LOG")), "logging_level": "ERROR"}
    folder = tempfile.mkdtemp(prefix="retcon-ray-", dir="/tmp")  # the names of its sockets must be short
    if "RAY_ADDRESS" in os.environ:
        ray.init(**about)
    else:
        ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=folder,
                 object_store_memory=100 * 2**20, **about)  # fmt: skip
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
