"""Everything left of the local engine and of training works where torch and its company are not installed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from comparing import repaired
from retcon.core.installing import how_to_install
from retcon.store import jsonl

Python = Callable[..., subprocess.CompletedProcess[str]]
CORE_PYTHON = os.environ.get("RETCON_CORE_PYTHON")

BLOCKED = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "tokenizers", "safetensors"}:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
IMPORT_ALL = """
import importlib, pkgutil, retcon

RIGHT = (  # [train], [serve], TRL
    "retcon.train", "retcon.__main__", "retcon.cli.compare", "retcon.cli.demonstrations",
    "retcon.cli.dry_run", "retcon.cli.quickstart", "retcon.cli.reproduce", "retcon.cli.runner",
    "retcon.engine.local", "retcon.http", "retcon.models", "retcon.planning.estimate", "retcon.planning.needs",
    "retcon.plugins", "retcon.sandbox.service", "retcon.serve",
)  # fmt: skip
for module in pkgutil.walk_packages(retcon.__path__, "retcon."):
    name = module.name
    if name.startswith(RIGHT):
        continue
    importlib.import_module(name)
    print(name)
"""
COMMAND = """
from retcon.cli.app import main
main()
"""


@pytest.fixture(params=["blocked", "absent"])
def python(request: pytest.FixtureRequest) -> Python:
    """Runs a program where the packages are blocked, and in an environment that never had them."""
    absent = request.param == "absent"
    if absent and CORE_PYTHON is None:
        pytest.skip("RETCON_CORE_PYTHON is not set: `make test` makes an environment without the extras and sets it")

    def run(program: str, *words: object) -> subprocess.CompletedProcess[str]:
        interpreter = CORE_PYTHON if absent and CORE_PYTHON else sys.executable
        return subprocess.run(
            [interpreter, "-c", program if absent else BLOCKED + program, *map(str, words)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": "src", "COLUMNS": "120"},
            check=False,
        )

    return run


def test_all_that_is_left_of_training_imports(python: Python) -> None:
    done = python(IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    for name in (
        "retcon.rollout.loop",
        "retcon.build",
        "retcon.engine.kinds.local",
        "retcon.evaluate.runner",
        "retcon.report.page",
        "retcon.cli.experiments",
    ):
        assert name in done.stdout.splitlines()


def test_show_and_doctor_work(tmp_path: Path, python: Python) -> None:
    jsonl.write(tmp_path / "some.jsonl", [repaired("a/0")])
    shown = python(COMMAND, "show", tmp_path / "some.jsonl", "a/0")
    assert shown.returncode == 0, shown.stderr
    assert "NameError" in shown.stdout
    told = python(COMMAND, "doctor")
    assert told.returncode == 0, told.stderr


def test_pass_rates_over_a_server_need_no_torch(tmp_path: Path) -> None:
    blocked = BLOCKED.replace('"tokenizers", ', "")  # the words of another's model are counted in a model's tokens
    words = ("difficulty", "base", "quickstart/saar", "--tasks", "1", "--out", str(tmp_path / "rates.jsonl"))

    def told(*more: str) -> str:
        command = [sys.executable, "-c", blocked + COMMAND, *words, *more]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"}, check=False
        )
        assert done.returncode == 2, done.stderr
        return done.stderr

    assert how_to_install("train") in told()
    assert "http://127.0.0.1:1/v1" in told("engine.kind=openai", "engine.url=http://127.0.0.1:1/v1")


def test_training_says_what_to_install(tmp_path: Path, python: Python) -> None:
    done = python(COMMAND, "quickstart", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert how_to_install("train") in done.stderr
    assert "Traceback" not in done.stderr
