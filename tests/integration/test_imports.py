"""What importing does: nothing but bring names in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="what the engine and training import needs the [train] extra")

PROGRAM = """
import importlib, os, pkgutil
import torch, transformers
import retcon

VERLS = (f"retcon.plugins.verl.{name}" for name in ("__main__", "agent", "manager", "sampler"))
NOT_HERE = {"retcon.__main__", "retcon.plugins.ray_servers", "retcon.plugins.verifiers", *VERLS}  # installed elsewhere
before = dict(os.environ)
for module in pkgutil.walk_packages(retcon.__path__, "retcon."):
    if module.name not in NOT_HERE:
        importlib.import_module(module.name)
set_here = {k: v for k, v in os.environ.items() if before.get(k) != v and not k.startswith("TORCH")}  # torch's own
assert not set_here, set_here
"""
LISTS = """
import sys
from retcon.config.load import reference
assert "kind = " in reference()
brought = sorted({"torch", "transformers"} & set(sys.modules))
assert not brought, brought
"""

MODELLING = """
import importlib, pkgutil, sys
import retcon.engine.local, retcon.planning, retcon.train

for package in (retcon.engine.local, retcon.planning, retcon.train):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
brought = sorted(name for name in sys.modules if name.partition(".")[0] == "transformers")
assert not brought, brought
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "program",
    [PROGRAM, LISTS, MODELLING],
    ids=["no variable is set", "all kinds are listed without torch", "transformers waits for a model"],
)
def test_what_an_import_does_not_do(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "src"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
