"""Attacks once more, as an ordinary user, where root runs the tests.

That user gets a copy of the source, and a mount namespace in which Python can be read where root keeps it to itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
UID = 4242
MATTERS = "landlock or attack_reach or attack_processes or attack_files or attack_network or attack_syscalls or choice_of_tier"
"""Where it makes a difference: whom a call reaches in any tier, and everything in the one whose calls keep their user."""

# As root: show the folders of Python, and nothing else, of those that only root may enter; become the user; run.
BECOME = """
import os, sys
sys.path.insert(0, sys.argv[1])
from retcon.sandbox.jail import kernel
from retcon.sandbox.jail.confine.users import become, closed_to_others
prefixes = [os.path.realpath(p) for p in (sys.base_prefix, sys.prefix)]
closed = {c for p in prefixes if (c := closed_to_others(p))}
kernel.unshare(0x00020000)
kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
kept = {p: os.open(p, os.O_PATH) for p in prefixes if any((p + "/").startswith(c + "/") for c in closed)}
for folder in closed:
    kernel.mount("tmpfs", folder, "tmpfs", 0, "mode=0755,size=64k")
for path, fd in kept.items():
    os.makedirs(path, exist_ok=True)
    kernel.mount(f"/proc/self/fd/{fd}", path, None, kernel.MS_BIND)
become(int(sys.argv[2]))
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[3:]])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="these tests run as an ordinary user already")
def test_the_attacks_are_contained_for_an_ordinary_user_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = Path("/tmp") / f"retcon-as-user-{os.getpid()}"
    try:
        for name in ("src", "tests"):
            shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "assets"))
        shutil.copy(PROJECT / "pyproject.toml", copy)
        for folder, _, files in os.walk(copy):
            Path(folder).chmod(0o755)
            for name in files:
                (Path(folder) / name).chmod(0o644)
        arguments = ["-p", "no:cacheprovider", "-p", "no:xdist", "-x", "-k", MATTERS, "tests/integration/sandbox"]
        arguments += ["tests/contract/test_sandbox_contract.py"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        ran = subprocess.run(
            [sys.executable, "-c", BECOME, str(PROJECT / "src"), str(UID), *arguments],
            cwd=copy,
            env=environment | {"HOME": "/tmp", "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if "Operation not permitted" in ran.stderr and "unshare" in ran.stderr:
            pytest.skip("Python lies where only root may enter, and this root may not make a mount namespace")
        assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-3000:]
        assert " passed" in ran.stdout
    finally:
        shutil.rmtree(copy, ignore_errors=True)
