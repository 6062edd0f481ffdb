"""The commands as a user meets them: help, errors that name the place, lists and transcripts."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands import retcon
from comparing import FIX, repaired, trajectory
from retcon.cli.app import COMMANDS, app
from retcon.config.load import load_recipe
from retcon.store import jsonl

SANDBOX = ("serve", "exec", "doctor")


@pytest.fixture
def trajectories(tmp_path: Path) -> Path:
    path = tmp_path / "some.jsonl"
    jsonl.write(
        path, [trajectory("numbers/aa/0", FIX, reward=-1.0), repaired("numbers/ab/0"), repaired("numbers/ab/1")]
    )
    return path


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS), *(("sandbox", c) for c in SANDBOX)])
def test_every_command_has_help(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*command, "--help"], prog_name="retcon")
    assert (done.exit_code, " ".join(("Usage: retcon", *command)) in done.stdout) == (0, True), done.stdout
    if not command:
        assert all(name in done.stdout for name in COMMANDS)


def test_output_onto_a_full_disk_is_one_message() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "retcon", "recipes"], stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": "src"}, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "error: [Errno 28] No space left on device: make room and run the same command again\n"


TOO_LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("show", TOO_LONG),
        ("recipes", f"{TOO_LONG}.toml"),
        ("purify", "some.jsonl", "-o", f"{TOO_LONG}.jsonl"),
    ],
)
def test_a_file_that_the_system_refuses_is_one_message(words: tuple[str, ...], trajectories: Path) -> None:
    words = tuple(str(trajectories) if word == trajectories.name else word for word in words)
    done = retcon(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert f"File name too long: '{TOO_LONG}" in done.stderr
    assert "Traceback" in retcon(*words, RETCON_DEBUG="1").stderr


def test_a_bad_recipe_is_one_message_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[rl]\nstepz = 3\n")
    words = ("train", tmp_path / "mine.toml", "--from", tmp_path)
    done = retcon(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "mine.toml, line 2" in done.stderr
    assert "did you mean 'steps'?" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in retcon(*words, RETCON_DEBUG="1").stderr
    assert "Traceback" not in retcon(*words, RETCON_DEBUG="0").stderr


def test_a_missing_checkpoint_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "cold_start").mkdir()
    (tmp_path / "cold_start/run.json").write_text("{}")
    done = retcon("eval", tmp_path / "cold_strat")
    assert done.returncode == 2
    assert "did you mean 'cold_start'?" in done.stderr
    unfinished = retcon("train", "quickstart/saar", "--from", tmp_path / "cold_start")
    assert unfinished.returncode == 2
    assert "has no final/ yet" in unfinished.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--arms", "basline"), "did you mean 'baseline'?"),
        (("repair.kind=none",), "choose them with --arms"),
        (("rl.stepz=3",), "did you mean 'steps'?"),
    ],
)
def test_the_quickstart_refuses_before_it_begins(tmp_path: Path, words: tuple[str, ...], part: str) -> None:
    done = retcon("quickstart", *words, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert part in done.stderr
    assert not (tmp_path / "out").exists()


def test_show_lists_a_file(trajectories: Path) -> None:
    done = retcon("show", trajectories)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["numbers/aa/0", "-1", "answer", "1", "0", "0"]
    assert lines[2].split() == ["numbers/ab/0", "1", "answer", "2", "1", "0", "shallow"]
    assert "and 2 more" in retcon("show", trajectories, "--limit", "1").stdout


def test_show_tells_before_and_after_and_raw_text(trajectories: Path) -> None:
    shown = retcon("show", trajectories, "--first-repaired")
    assert shown.returncode == 0, shown.stderr
    assert "NameError" in shown.stdout
    assert "numbers/ab/0" in shown.stdout
    raw = retcon("show", trajectories, "numbers/aa/0", "--raw")
    assert raw.stdout == trajectory("x", FIX).text + "\n"


def test_doctor_speaks_json() -> None:
    done = retcon("doctor", "--json", OMP_NUM_THREADS="7")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert told["extras"].keys() == project["optional-dependencies"].keys() - {"dev"}
    assert {"cydifflib", "rapidfuzz"} < told["versions"].keys()
    wanted = [*project["dependencies"], *(r for e in told["extras"] for r in project["optional-dependencies"][e])]
    assert told["versions"].keys() == {re.split(r"[^\w.-]", requirement)[0] for requirement in wanted}
    assert told["machine"]["cores"] >= 1
    assert told["machine"]["threads"] == load_recipe(None).run.threads, "whatever the machine has"
    assert told["sandbox"]["tier"] in ("namespaces", "landlock", "rlimits", None)


def test_show_lists_the_rollouts_of_a_folder_and_names_the_nearest_of_a_missing_file(trajectories: Path) -> None:
    folder = retcon("show", trajectories.parent)
    assert folder.returncode == 0
    assert "numbers/ab/1" in folder.stdout
    assert "did you mean 'some.jsonl'?" in retcon("show", trajectories.with_name("sone.jsonl")).stderr
