"""Errors come before the libraries: what a user got wrong is known before torch is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from typer.testing import CliRunner
from retcon.cli.app import app
from retcon.core.errors import RetconError
for words in json.loads(sys.argv[1]):
    found = CliRunner().invoke(app, words)
    print(json.dumps(str(found.exception) if isinstance(found.exception, RetconError) else found.output))
assert not set(sys.argv[2:]) & set(sys.modules), "a library came before an error"
"""
ERRORS = {
    "train own task.path=nope.jsonl --from base": "nope.jsonl does not exist",
    "train own task.path=problem.jsonl --from base": "problem.jsonl does not exist (did you mean 'problems.jsonl'?)",
    "train own task.path=wrong.jsonl --from base": "wrong.jsonl, line 1: no known convention",
    "train own task.path=problems.jsonl --from bse": "there is no model bse (did you mean 'base'?)",
    "train own task.path=problems.jsonl --from base --out full": "full is not empty and has no run.json",
    "train own task.path=nope.jsonl --from base --dry-run": "nope.jsonl does not exist",
    "train own rl.step=3": "unknown key 'step' in [rl] (did you mean 'steps'?); the nearest of its ",
    "eval base --data nope.jsonl": "nope.jsonl does not exist",
    "eval bse": "there is no model bse (did you mean 'base'?)",
    "difficulty base own task.path=nope.jsonl --tasks 3": "nope.jsonl does not exist",
    "audit base own task.path=nope.jsonl": "nope.jsonl does not exist",
    "sft own --demonstrations nope.jsonl": "nope.jsonl is not there: give an existing",
    "dpo --pairs nope.jsonl": "--pairs: nope.jsonl does not exist",
    "ask bse hello": "there is no model bse (did you mean 'base'?)",
    "serve-agent base --host 0.0.0.0 --port 0": "other machines can reach the server",
}


WORDS_ALONE = {
    "purify nope.jsonl": "name the output, or give --dry-run",
    "purify nope.jsonl -o clean.jsonl": "nope.jsonl does not exist",
    "compare mini/dapo-baseline mini/clener": "no recipe 'mini/clener' (did you mean 'mini/cleaner'?)",
    "compare mini/dapo-baseline": "name two recipes or more",
    "compare mini/dapo-baseline mini/cleaner rl.step=3": "unknown key 'step' in [rl] (did you mean 'steps'?)",
    "reproduce clener": "no paper 'clener' (did you mean 'cleaner'?)",
    "reproduce cleaner --only gama": "no such study (did you mean 'gamma'?)",
    "reproduce cleaner rl.step=3": "unknown key 'step' in [rl] (did you mean 'steps'?)",
}
"""Errors for which no data are read."""


@pytest.mark.slow
@pytest.mark.torch  # which must be there not to be imported
@pytest.mark.parametrize(
    ("errors", "libraries"),
    [(ERRORS, ["torch", "transformers"]), (WORDS_ALONE, ["torch", "transformers", "numpy", "retcon.tasks.data.rows"])],
)
def test_errors_come_before_libraries(errors: dict[str, str], libraries: list[str], tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text('{"question": "What is 1 + 1?", "answer": "2"}\n')
    (tmp_path / "wrong.jsonl").write_text('{"q": "a", "z": 1}\n')
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").touch()
    words = json.dumps([line.split() for line in errors])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, words, *libraries]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, said in zip(errors.items(), done.stdout.splitlines(), strict=True):
        assert line[1] in json.loads(said), line[0]
